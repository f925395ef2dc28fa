"""Learn a distance from private labelled pairs, check the pairs, and compare records with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.app.accounts import open_ledger, open_vault, records_of
from blindsight.app.result import (
    Progress,
    Result,
    ResultTable,
    files_table,
    no_progress,
    to_plain,
)
from blindsight.core.errors import InvalidParameter
from blindsight.encoders import Encoder, open_encoder, open_same_encoder
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.metric import DPPMetric, PairGraph
    from blindsight.metric.files import Records

__all__ = [
    "DEFAULT_DELTA",
    "DEFAULT_EPSILON",
    "MIN_HELD_OUT",
    "NEIGHBOURS",
    "Comparison",
    "ImageFeatures",
    "LearnedMetric",
    "NeighbourAccuracy",
    "NeighbourTest",
    "PairCheck",
    "check_labelled_pairs",
    "compare",
    "learn_metric",
    "read_records",
]

#: Privacy budget per unit (by default per pair).
DEFAULT_EPSILON = 1.0
#: Well below one over the number of pairs.
DEFAULT_DELTA = 1e-5
#: Records in no pair that are needed for the test of nearest neighbours.
MIN_HELD_OUT = 30
#: Neighbours that vote in the test, and records that are listed as nearest.
NEIGHBOURS = 5

#: How images become vectors.
ImageFeatures = Literal["pixels", "efficientnet"]


@dataclass(frozen=True)
class NeighbourAccuracy:
    """Accuracy of a nearest-neighbour classifier on held-out records.

    Parameters:
        accuracy: share of records classified correctly.
        balanced: the mean of the accuracies of the classes.
        interval: Wilson's 95% interval of the accuracy.
    """

    accuracy: float
    balanced: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class NeighbourTest:
    """Nearest neighbours with the learned and with the plain distance. Private: for the owner only.

    Parameters:
        learned: with the learned distance.
        before: with the plain Euclidean distance.
        held_out: number of records, in no pair, that were classified.
    """

    learned: NeighbourAccuracy
    before: NeighbourAccuracy
    held_out: int


@dataclass(frozen=True)
class LearnedMetric(Result):
    """A distance that was learned from labelled pairs and written to a file.

    Parameters:
        model: the file of the metric.
        card: the guarantee as JSON, beside it.
        guarantee: what is guaranteed, and for which unit.
        n_pairs: distinct pairs that were given.
        n_used_pairs: pairs that were learned from, after selection.
        loss: the loss that was used.
        kappa: the kappa that was used.
        kappa_bounds: kappa by the methods "second", "bound" and "node".
        neighbour_test: accuracy for the owner only; None if it could not be measured.
        vault: the folder with the key of the noise; keep it, and do not share it.
        charged: whether a ledger was charged.
        files: how many photos were read, and every file of the folder that was not, by kind.
    """

    model: Path
    card: Path
    guarantee: Guarantee
    n_pairs: int
    n_used_pairs: int
    loss: str
    kappa: int
    kappa_bounds: dict[str, int]
    neighbour_test: NeighbourTest | None = None
    vault: Path | None = None
    charged: bool = False
    files: FilesRead | None = None

    def tables(self) -> list[ResultTable]:
        return [] if self.files is None else [files_table(self.files)]

    @property
    def title(self) -> str:
        """One line that says what was learned."""
        return (
            f"{self.n_pairs:,} pairs, {self.n_used_pairs:,} used, learned by {self.loss}. kappa = "
            f"{self.kappa} {_bounds_text(self.kappa_bounds)}."
        )

    def facts(self) -> list[tuple[str, str]]:
        """Accuracy and files."""
        test = self.neighbour_test
        facts = [("guarantee", self.guarantee.line())]
        if test is None:
            facts.append(
                (
                    "accuracy",
                    f"No kNN test: it needs two classes, and at least {MIN_HELD_OUT} records that "
                    "are in no pair.",
                )
            )
        else:
            low, high = test.learned.interval
            facts.append(
                (
                    "accuracy",
                    f"kNN on {test.held_out:,} held-out records: accuracy "
                    f"{test.learned.accuracy:.3f} (95%: {low:.2f} to {high:.2f}; before learning "
                    f"{test.before.accuracy:.3f}), balanced {test.learned.balanced:.3f} "
                    f"({test.before.balanced:.3f}). Computed without noise: not covered by the "
                    "guarantee, keep it to yourself.",
                )
            )
        facts += [("model", str(self.model)), ("card", str(self.card))]
        if self.vault is not None:
            facts.append(("vault", f"{self.vault}: keep it, and share it with nobody."))
        facts.append(("ledger", "ledger charged." if self.charged else "not charged: no --ledger."))
        return facts

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight metric learn --json`; `knn` is private."""
        test = self.neighbour_test
        return {
            "pairs": self.n_pairs,
            "used_pairs": self.n_used_pairs,
            "loss": self.loss,
            "kappa": self.kappa,
            "kappa_bounds": dict(self.kappa_bounds),
            "guarantee": json.loads(self.guarantee.to_json()),
            "knn": None
            if test is None
            else {
                "learned": _accuracy_fields(test.learned),
                "before": _accuracy_fields(test.before),
                "held_out": test.held_out,
            },
            "charged": self.charged,
            "model": str(self.model),
            "card": str(self.card),
            "vault": None if self.vault is None else str(self.vault),
            "files": to_plain(self.files),
        }


@dataclass(frozen=True)
class PairCheck(Result):
    """What was found among labelled pairs. Computed without noise: for the owner only.

    Parameters:
        pairs: distinct pairs.
        repeated: lines that name a pair again.
        similar: distinct pairs that are similar, by their first label.
        both_ways: pairs that carry both labels.
        chains: dissimilar pairs that a chain of similar pairs joins; None if not transitive.
        circles: components that do not fit two classes; None if not asked for.
        problems: one sentence for each problem.
        kappa_bounds: kappa by the methods "second", "bound" and "node".
    """

    pairs: int
    repeated: int
    similar: int
    both_ways: int
    chains: int | None
    circles: int | None
    problems: tuple[str, ...]
    kappa_bounds: dict[str, int]

    @property
    def title(self) -> str:
        """One line with the numbers."""
        return (
            f"{self.pairs:,} pairs ({self.repeated:,} lines repeat one), {self.similar:,} of them "
            f"similar; {_bounds_text(self.kappa_bounds)[1:-1]}."
        )

    def facts(self) -> list[tuple[str, str]]:
        """The problems, and who may see them."""
        problems = self.problems or ("No label contradicts another.",)
        return [
            *(("labels", sentence) for sentence in problems),
            ("private", "Computed without noise: for you alone."),
        ]


@dataclass(frozen=True)
class Comparison(Result):
    """Learned distances from one record to others.

    Parameters:
        record: the id of the record.
        distances: ids and distances, the nearest first if several were listed.
        threshold: pairs at most this far apart count as similar.
        files: how many photos were read, and every file of the folder that was not, by kind.
    """

    record: str
    distances: tuple[tuple[str, float], ...]
    threshold: float
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        """One line that says what was compared."""
        return f"Distance from {self.record}"

    def facts(self) -> list[tuple[str, str]]:
        """The threshold."""
        return [("similar", f"records at most {self.threshold:.4g} apart count as similar")]

    def tables(self) -> list[ResultTable]:
        """Record and distance."""
        rows = [(name, f"{distance:.4g}") for name, distance in self.distances]
        distances = ResultTable(self.title, ("record", "distance"), rows)
        return [distances] if self.files is None else [distances, files_table(self.files)]

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight metric distance --json`."""
        listed = [{"to": name, "distance": distance} for name, distance in self.distances]
        return {"from": self.record, "distances": listed, "files": to_plain(self.files)}


def check_labelled_pairs(
    pairs: str | Path, *, transitive: bool = True, n_classes: int | None = None
) -> PairCheck:
    """Look for contradictory labels before learning, for the owner only.

    Parameters:
        pairs: CSV file with two ids and a label (1/0, same/different).
        transitive: whether being similar carries over (same disease) or not (being friends).
        n_classes: 2 checks that the labels fit two classes.

    Returns:
        The problems, and the bounds of kappa.
    """
    from blindsight.metric import PairGraph, check_pairs
    from blindsight.metric.files import read_pairs

    numbers, similar = read_pairs(pairs)
    report = check_pairs(numbers, similar, transitive=transitive, n_classes=n_classes)
    graph = PairGraph.from_pairs(numbers, similar, transitive=transitive)
    return PairCheck(
        pairs=report.pairs,
        repeated=report.repeated,
        similar=report.similar,
        both_ways=report.both_ways,
        chains=report.chains,
        circles=report.circles,
        problems=tuple(report.problems()),
        kappa_bounds=_kappa_bounds(graph),
    )


def learn_metric(
    pairs: str | Path,
    *,
    features: str | Path | None = None,
    images: str | Path | None = None,
    image_features: ImageFeatures = "pixels",
    encoder: str | Path | Encoder | None = None,
    out: str | Path = "metric.safetensors",
    epsilon: float = DEFAULT_EPSILON,
    delta: float = DEFAULT_DELTA,
    unit: str = "pair",
    loss: str = "auto",
    scale: str = "none",
    kappa: str | int = "second",
    select: str | int = "all",
    n_components: int | None = None,
    transitive: bool = True,
    class_column: str | None = None,
    neighbours: int = NEIGHBOURS,
    drawing: str | Path | None = None,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    vault: str | Path | None = None,
    actor: str | None = None,
    purpose: str = "",
    random_state: int | None = None,
    progress: Progress = no_progress,
) -> LearnedMetric:
    """Learn a distance from private labelled pairs.

    With a ledger or a vault, the same learning run again, also after a crash or with a copy of the
    vault, gives the same metric and is charged once: the noise is derived from the vault's key and
    a digest of pairs, records and settings.

    Parameters:
        pairs: CSV file with two ids and a label (1/0, same/different).
        features: CSV file with a column "id", numbers, and "class" if known.
        images: a folder of images instead; ids are paths within it.
        image_features: how images become vectors.
        encoder: any image encoder in place of `image_features`: a built-in name (lite0, lite2,
            both), a folder of ONNX files, `hub:owner/model@commit`, a file of vectors whose ids
            are the images' names, or an opened encoder. The metric refuses every other one.
        out: the file of the metric; its card goes beside it.
        epsilon: privacy budget per unit.
        delta: well below one over the number of pairs.
        unit: what is protected: "pair", "kappa pairs" or "record".
        loss: "auto", "moments" (many pairs) or "contrastive" (few pairs).
        scale: "none"; "private", within the budget; or a CSV file of public bounds.
        kappa: "second", "exact", "bound", "node", "edge", or a number.
        select: "all", "forest", "matching", or the number of pairs of each record.
        n_components: dimensions of the learned space; None keeps all.
        transitive: whether being similar carries over.
        class_column: column of the classes, for the test of nearest neighbours.
        neighbours: neighbours that vote in the test.
        drawing: write the pair graph to this SVG file, which is private.
        ledger: a ledger to charge before anything is learned.
        dataset: the account of the pairs; by default the name of the file.
        vault: folder for the key of the noise; by default beside `out` if there is a ledger.
        actor: who asks for the release, for the ledger (default: the operating system's user).
        purpose: what the release is for, for the ledger.
        random_state: a seed makes a simulation, and the guarantee says so.
        progress: called with (stage, done, total).

    Returns:
        The files, the guarantee, and the accuracy for the owner.

    Raises:
        BudgetExceeded: if the ledger has too little left; nothing is learned.
        InvalidData: if a file is not what it must be.

    Example:
        >>> import tempfile
        >>> rng, folder = np.random.default_rng(0), Path(tempfile.mkdtemp())
        >>> rows = [f"r{i},{x:.3f},{y:.3f}" for i, (x, y) in enumerate(rng.normal(size=(40, 2)))]
        >>> _ = (folder / "features.csv").write_text("\\n".join(["id,x,y", *rows]))
        >>> lines = [f"r{i},r{i + 1},{i % 4 == 0:d}" for i in range(0, 40, 2)]
        >>> _ = (folder / "pairs.csv").write_text("\\n".join(["a,b,label", *lines]))
        >>> learned = learn_metric(
        ...     folder / "pairs.csv", features=folder / "features.csv",
        ...     out=folder / "metric.safetensors", random_state=0,
        ... )
        >>> learned.n_pairs, learned.guarantee.unit
        (20, 'pair')
        >>> nearest = compare(learned.model, ["r0"], features=folder / "features.csv", nearest=3)
        >>> len(nearest.distances)
        3
    """
    from blindsight.metric import DPPMetric, PairGraph, draw
    from blindsight.metric.estimator import learn_once
    from blindsight.metric.files import read_pairs

    model = Path(out)
    opened = None if encoder is None else open_encoder(encoder)
    records = read_records(
        features,
        images,
        image_features,
        encoder=opened,
        class_column=class_column,
        progress=progress,
    )
    numbers, similar = read_pairs(pairs, records)
    graph = PairGraph.from_pairs(numbers, similar, n_nodes=len(records.ids), transitive=transitive)
    metric = DPPMetric(
        n_components,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        loss=loss,
        scale=_scale(scale, records),
        select=select,
        kappa=kappa,
        transitive=transitive,
        preprocessor=records.X,
        random_state=random_state,
    )
    opened_vault = None
    if random_state is None and (ledger is not None or vault is not None):
        opened_vault = open_vault(vault, model)
    account = open_ledger(
        ledger, dataset or Path(pairs).stem, opened_vault, actor=actor, purpose=purpose
    )
    names = [records.ids[row] for row in np.unique(graph.edges)]
    paired = [] if images is None or opened_vault is None else [Path(images) / n for n in names]
    try:
        learn_once(
            metric,
            graph.edges,
            graph.similar,
            vault=opened_vault,
            ledger=account,
            records=[] if opened_vault is None else records_of(opened_vault, paired),
            out=model,
            progress=lambda done, total: progress("learning", done, total),
        )
    finally:
        if account is not None:
            account.close()
    test = _neighbour_test(metric, graph, records, neighbours)
    if images is not None:
        metric.describe(
            **({"image_features": image_features} if opened is None else {}),
            **({} if opened is None else {"encoder": opened.identity()}),
        )
    metric.save(model)
    card = model.with_suffix(".card.json")
    card.write_text(metric.guarantee_.to_json() + "\n", encoding="utf-8")
    if drawing is not None:
        draw(graph, drawing)
    return LearnedMetric(
        model=model,
        card=card,
        guarantee=metric.guarantee_,
        n_pairs=len(graph),
        n_used_pairs=metric.n_pairs_,
        loss=metric.loss_,
        kappa=metric.kappa_,
        kappa_bounds=_kappa_bounds(graph),
        neighbour_test=test,
        vault=None if opened_vault is None else opened_vault.path,
        charged=account is not None,
        files=records.files,
    )


def compare(
    model: str | Path,
    ids: Sequence[str],
    *,
    features: str | Path | None = None,
    images: str | Path | None = None,
    encoder: str | Path | Encoder | None = None,
    nearest: int = NEIGHBOURS,
    progress: Progress = no_progress,
) -> Comparison:
    """The learned distance of two records, or the records nearest to one.

    Parameters:
        model: a file that `learn_metric` wrote.
        ids: two ids, or one to list its nearest records.
        features: CSV file of the records.
        images: a folder of images instead.
        encoder: the encoder that the metric was learned with, where that is not built in.
        nearest: how many records to list for a single id.
        progress: called with (stage, done, total).

    Returns:
        The distances.

    Raises:
        InvalidParameter: if there are neither one nor two ids, or the encoder is not the one that
            the metric was learned with.
        InvalidData: if an id is unknown.
    """
    from blindsight.metric import DPPMetric

    metric = DPPMetric.load(model)
    how = metric.about_.get("image_features") or "pixels"
    opened = None
    if images is not None and (encoder is not None or "encoder" in metric.about_):
        opened = open_same_encoder(
            metric.about_.get("encoder", {"name": how}), encoder, what=f"the metric {model}"
        )
    records = read_records(features, images, how, encoder=opened, progress=progress)
    if not 1 <= len(ids) <= 2:
        raise InvalidParameter(f"give two ids, or one to list its nearest records; got {len(ids)}.")
    mapped = metric.transform(records.X)
    numbers = records.numbers(list(ids), where="the command line")
    away = np.linalg.norm(mapped - mapped[numbers[0]], axis=1)
    if len(ids) == 2:
        distances = [(ids[1], float(away[numbers[1]]))]
    else:
        order = [i for i in np.argsort(away, kind="stable") if i != numbers[0]][:nearest]
        distances = [(records.ids[i], float(away[i])) for i in order]
    return Comparison(ids[0], tuple(distances), float(metric.threshold_), records.files)


def read_records(
    features: str | Path | None,
    images: str | Path | None,
    image_features: str,
    *,
    encoder: Encoder | None = None,
    class_column: str | None = None,
    progress: Progress = no_progress,
) -> Records:
    """Records from a table or from a folder of images; exactly one of them must be given."""
    from blindsight.metric.files import read_features, read_image_folder

    if features is not None and images is None:
        return read_features(features, class_column=class_column)
    if images is not None and features is None:
        return read_image_folder(
            images,
            how=image_features,
            encoder=encoder,
            progress=lambda done, total: progress("reading", done, total),
        )
    raise InvalidParameter(
        "say where the records are: either --features table.csv or --images folder."
    )


def _scale(
    given: str, records: Records
) -> str | tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    from blindsight.metric.files import read_bounds

    if given in ("none", "private"):
        return None if given == "none" else given
    if not given.lower().endswith(".csv"):
        raise InvalidParameter(
            f"--scale must be none, private or a CSV file of bounds, got {given!r}."
        )
    if not records.columns:
        raise InvalidParameter(
            "--scale with bounds needs named columns: a table given by --features."
        )
    return read_bounds(given, records.columns)


def _kappa_bounds(graph: PairGraph) -> dict[str, int]:
    from blindsight.metric import kappa

    return {
        "second": kappa(graph, "second"),
        "bound": kappa(graph, "bound"),
        "node": kappa(graph, "node"),
    }


def _bounds_text(bounds: dict[str, int]) -> str:
    return (
        f"(second-largest kappa {bounds['second']}, kappa' {bounds['bound']}, largest degree "
        f"{bounds['node']})"
    )


def _neighbour_test(
    metric: DPPMetric, graph: PairGraph, records: Records, k: int
) -> NeighbourTest | None:
    """kNN on records that are in no pair, before and after; None if too few are there."""
    from blindsight.metric import EuclideanMetric
    from blindsight.metric.files import nearest_neighbours, split_by_pairs

    gallery, held_out = split_by_pairs(graph.edges, graph.n_nodes)
    classes = records.classes
    if classes is None or len(held_out) < MIN_HELD_OUT or len(set(classes[gallery])) < 2:
        return None

    def accuracy(mapped: NDArray[np.float64]) -> NeighbourAccuracy:
        scores = nearest_neighbours(
            mapped[gallery], classes[gallery], mapped[held_out], classes[held_out], k=k
        )
        return NeighbourAccuracy(scores.accuracy, scores.balanced, scores.interval())

    plain = EuclideanMetric().fit(records.X)
    return NeighbourTest(
        accuracy(metric.transform(records.X)), accuracy(plain.transform(records.X)), len(held_out)
    )


def _accuracy_fields(measured: NeighbourAccuracy) -> dict[str, object]:
    return {
        "accuracy": measured.accuracy,
        "balanced": measured.balanced,
        "interval": list(measured.interval),
    }
