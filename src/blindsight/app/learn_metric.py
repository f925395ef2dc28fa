"""Learn from private labelled pairs: a threshold with its error rates, and a metric if a public
rule predicts that it is better than the plain distance. Check pairs for contradictions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.app.compare import errors_text, read_records
from blindsight.app.defaults import (
    DELTA,
    METRIC_EPSILON,
    METRIC_NEIGHBOURS,
    METRIC_UNIT,
    PLAIN_DISTANCE,
    default_encoder,
    no_progress,
    open_ledger,
    open_vault,
)
from blindsight.app.hosting import records_of, share_file
from blindsight.app.result import JobResult, Progress, ResultTable, files_table, to_plain
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.encoders import Encoder, open_encoder
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.data.sources import DecodedPhotos
    from blindsight.metric import DPPMetric, MetricForecast, OperatingPoint, PairGraph
    from blindsight.metric.files import Records
    from blindsight.privacy.vault import Vault

__all__ = [
    "MIN_HELD_OUT",
    "LearnedMetric",
    "NeighbourAccuracy",
    "NeighbourTest",
    "PairCheck",
    "check_labelled_pairs",
    "learn_metric",
    "predict_metric",
]

#: Records outside all pairs that the test of nearest neighbours needs.
MIN_HELD_OUT = 30


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
    """Nearest neighbours by the learned and by the plain distance. Private: for the owner only.

    Parameters:
        learned: the accuracy with the learned distance.
        before: the accuracy with the plain Euclidean distance.
        held_out: number of classified records, which are in no pair.
    """

    learned: NeighbourAccuracy
    before: NeighbourAccuracy
    held_out: int


@dataclass(frozen=True)
class LearnedMetric(JobResult):
    r"""A distance that was learned from labelled pairs and written to a file.

    Parameters:
        model: the file of the metric.
        card: the file of the guarantee, as JSON.
        guarantee: the guarantee and its unit.
        n_pairs: number of distinct pairs.
        n_used_pairs: number of pairs that were used, after selection.
        loss: the loss that was used.
        kappa: the kappa that was used.
        kappa_bounds: kappa by the methods "second", "bound" and "node".
        forecast: the prediction of the public rule before anything was charged.
        point: the threshold with its error rates; None if noise hides them.
        equal_error: the threshold at which both error rates are equal; None if noise hides them.
        neighbour_test: accuracy for the owner only; None if it could not be measured.
        vault: the folder with the key of the noise, which must be kept and not shared.
        charged: whether a ledger was charged.
        files: number of photos that were read, and the files that were not, by kind.

    Examples:
        >>> import tempfile
        >>> rng, folder = np.random.default_rng(0), Path(tempfile.mkdtemp())
        >>> rows = [f"r{number},{value:.3f}" for number, value in enumerate(rng.normal(size=40))]
        >>> _ = (folder / "features.csv").write_text("\n".join(["id,x", *rows]))
        >>> lines = [f"r{number},r{number + 1},{number % 4 == 0:d}" for number in range(0, 40, 2)]
        >>> _ = (folder / "pairs.csv").write_text("\n".join(["a,b,label", *lines]))
        >>> learned = learn_metric(
        ...     folder / "pairs.csv", features=folder / "features.csv",
        ...     out=folder / "metric", random_state=0,
        ... )
        >>> learned.n_pairs, learned.loss, learned.kappa, learned.guarantee.unit
        (20, 'plain', 1, 'label')
    """

    model: Path
    card: Path
    guarantee: Guarantee
    n_pairs: int
    n_used_pairs: int
    loss: str
    kappa: int
    kappa_bounds: dict[str, int]
    forecast: MetricForecast
    point: OperatingPoint | None = None
    equal_error: OperatingPoint | None = None
    neighbour_test: NeighbourTest | None = None
    vault: Path | None = None
    charged: bool = False
    files: FilesRead | None = None

    def tables(self) -> list[ResultTable]:
        return [] if self.files is None else [files_table(self.files)]

    @property
    def title(self) -> str:
        how = "plain distance" if self.loss == PLAIN_DISTANCE else f"learned by {self.loss}"
        return (
            f"{self.n_pairs:,} pairs, {self.n_used_pairs:,} used, {how}. kappa = "
            f"{self.kappa} {_bounds_text(self.kappa_bounds)}."
        )

    def facts(self) -> list[tuple[str, str]]:
        test = self.neighbour_test
        facts = [
            ("guarantee", self.guarantee.line()),
            ("learning", str(self.forecast)),
            ("errors", errors_text(self.point)),
        ]
        if self.equal_error is not None:
            facts.append(("equal error rate", f"{100 * self.equal_error.error:.1f}%"))
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
        """The fields of `blindsight compare learn --json`; `knn` is private."""
        test = self.neighbour_test
        return {
            "pairs": self.n_pairs,
            "used_pairs": self.n_used_pairs,
            "loss": self.loss,
            "kappa": self.kappa,
            "kappa_bounds": dict(self.kappa_bounds),
            "guarantee": json.loads(self.guarantee.to_json()),
            "learns": self.forecast.learns,
            "threshold": None if self.point is None else to_plain(self.point),
            "equal_error_rate": None if self.equal_error is None else self.equal_error.error,
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
class PairCheck(JobResult):
    """Contradictions among labelled pairs. Computed without noise: for the owner only.

    Parameters:
        pairs: number of distinct pairs.
        repeated: number of lines that repeat a pair.
        similar: number of distinct pairs that are similar, by their first label.
        both_ways: number of pairs with both labels.
        chains: number of dissimilar pairs that a chain of similar pairs connects; None if
            similarity is not transitive.
        circles: number of components that contradict two classes; None if not requested.
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
        return (
            f"{self.pairs:,} pairs ({self.repeated:,} lines repeat one), {self.similar:,} of them "
            f"similar; {_bounds_text(self.kappa_bounds)[1:-1]}."
        )

    def facts(self) -> list[tuple[str, str]]:
        problems = self.problems or ("No label contradicts another.",)
        return [
            *(("labels", sentence) for sentence in problems),
            ("private", "Computed without noise: for you only."),
        ]


def check_labelled_pairs(
    pairs: str | Path, *, transitive: bool = True, n_classes: int | None = None
) -> PairCheck:
    """Look for contradictory labels before learning, for the owner only.

    Parameters:
        pairs: CSV file with two ids and a label (1/0, same/different).
        transitive: whether similarity is transitive (same disease) or not (being friends).
        n_classes: 2 checks that the labels are consistent with two classes.

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


def predict_metric(
    n_pairs: int,
    n_features: int,
    *,
    epsilon: float = METRIC_EPSILON,
    delta: float = DELTA,
    unit: str = METRIC_UNIT,
    pairs_of_unit: int = 1,
) -> MetricForecast:
    """Predict whether a learned metric is better than the plain distance, from public numbers only.

    Parameters:
        n_pairs: number of labelled pairs.
        n_features: number of columns of the records.
        epsilon: privacy budget per unit.
        delta: delta of the guarantee, well below one over the number of pairs.
        unit: the unit of protection.
        pairs_of_unit: the largest number of pairs of one unit.

    Returns:
        The forecast, which prints as a sentence.

    Examples:
        >>> predict_metric(4000, 30).learns, predict_metric(4000, 1280).learns
        (True, False)
    """
    from blindsight.metric import DPPMetric

    metric = DPPMetric(epsilon=epsilon, delta=delta, unit=unit)
    return metric.forecast(n_pairs=n_pairs, n_features=n_features, groups={unit: pairs_of_unit})


def learn_metric(
    pairs: str | Path | None = None,
    *,
    triplets: str | Path | None = None,
    features: str | Path | None = None,
    images: str | Path | None = None,
    encoder: str | Path | Encoder | None = None,
    out: str | Path = "metric.safetensors",
    epsilon: float = METRIC_EPSILON,
    delta: float = DELTA,
    unit: str = METRIC_UNIT,
    people: str | Mapping[str, str] | None = None,
    loss: str = "auto",
    scale: str = "auto",
    kappa: str | int = "second",
    select: str | int = "all",
    n_components: int | None = None,
    transitive: bool = True,
    class_column: str | None = None,
    neighbours: int = METRIC_NEIGHBOURS,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    vault: str | Path | None = None,
    actor: str | None = None,
    purpose: str = "",
    force: bool = False,
    random_state: int | None = None,
    announce: Callable[[MetricForecast], None] | None = None,
    progress: Progress = no_progress,
) -> LearnedMetric:
    """Learn a threshold with its error rates from labelled pairs, and a metric if a public rule
    predicts that it is better than the plain distance.

    With a ledger or a vault, the same call again, also after a crash or with a copy of the vault,
    gives the same metric and is charged once: the noise is derived from the vault's key and a
    digest of pairs, records and settings.

    Parameters:
        pairs: CSV file with two ids and a label (1/0, same/different).
        triplets: CSV file with three ids instead: anchor, a similar and a dissimilar record.
        features: CSV file with a column "id", columns of numbers, and optionally "class".
        images: a folder of images instead; ids are paths within it.
        encoder: the image encoder: a built-in name (lite0, lite2, both), a folder of ONNX
            files, `hub:owner/model@commit`, a file of vectors whose ids are the images' names, or
            an opened encoder. None uses the default. The metric refuses any other encoder later.
        out: the file of the metric; its card goes beside it.
        epsilon: privacy budget per unit.
        delta: delta of the guarantee, well below one over the number of pairs.
        unit: the unit of protection: "label" (one label is replaced; who was compared is public),
            "pair" (one pair is added or removed), "person" (all pairs of a person),
            "record" or "kappa pairs".
        people: the person behind each record: "folder", "dicom" or FILE:COLUMN for images, the
            name of a column for a table, or a mapping from ids to names.
        loss: "auto"; "plain" learns only the threshold; "moments" is for many pairs, "contrastive"
            for few.
        scale: "auto" (tables: "private"; images: "none"); "none"; "private", within the budget; or
            a CSV file of public bounds.
        kappa: "second", "exact", "bound", "node", "edge", or a number.
        select: "all", "forest", "matching", or the number of pairs of each record (of each person,
            where people are given).
        n_components: dimensions of the learned space; None keeps all.
        transitive: whether similarity is transitive.
        class_column: column of the classes, for the test of nearest neighbours.
        neighbours: number of neighbours that vote in the test.
        ledger: a ledger to charge before anything is learned.
        dataset: the account of the pairs; by default the name of the file.
        vault: folder for the key of the noise; by default beside `out` if there is a ledger.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
        force: overwrite another model.
        random_state: a seed for a simulation, which the guarantee states.
        announce: called with the forecast before anything is charged.
        progress: called with (stage, done, total).

    Returns:
        The files, the guarantee, the error rates, and the accuracy for the owner.

    Raises:
        BudgetExceeded: if the remaining budget is too small; nothing is learned.
        InvalidData: if a file does not have the expected content.
        InvalidParameter: if `out` contains another model and `force` is False.

    Examples:
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
        >>> learned.n_pairs, learned.guarantee.unit, learned.loss
        (20, 'label', 'plain')
        >>> from blindsight import compare
        >>> nearest = compare(learned.model, ["r0"], features=folder / "features.csv", nearest=3)
        >>> len(nearest.distances)
        3
    """
    from blindsight.metric import DPPMetric, PairGraph
    from blindsight.metric.estimator import learn_once
    from blindsight.metric.files import read_pairs, read_triplets
    from blindsight.metric.losses import tuple_pairs

    if (pairs is None) == (triplets is None):
        raise InvalidParameter("give either pairs with labels or triplets.")
    model = Path(out)
    if model.exists() and random_state is not None:
        _refuse_other_model(model, None, "", force=force)
    opened = None if images is None else open_encoder(encoder or default_encoder())
    records = read_records(
        features,
        images,
        encoder=opened,
        class_column=class_column,
        people=people,
        progress=progress,
    )
    tuples: NDArray[np.int64]
    labels: NDArray[np.bool_] | None = None
    if triplets is not None:
        tuples = read_triplets(triplets, records)
    else:
        assert pairs is not None  # noqa: S101  (one of the two was given)
        tuples, labels = read_pairs(pairs, records)
    opened_vault = None
    if random_state is None and (ledger is not None or vault is not None):
        opened_vault = open_vault(vault, model)
    pictures: list[str] = []
    if images is not None:
        rows = np.unique(tuples)
        files = [Path(images) / records.ids[row] for row in rows]
        pictures = _pictures(opened_vault, files, records.decoded)
        tuples, labels = _join_copies(tuples, labels, rows, pictures, records.people)
    compared = tuple_pairs(tuples) if labels is None else (tuples, labels)
    graph = PairGraph.from_pairs(*compared, n_nodes=len(records.ids), transitive=transitive)
    if labels is not None:
        tuples, labels = graph.edges, graph.similar
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
    forecast = metric.forecast_of(tuples, labels, people=records.people)
    if announce is not None:
        announce(forecast)
    if model.exists() and random_state is None:
        inputs = metric.inputs_text(tuples, labels, people=records.people)
        _refuse_other_model(model, opened_vault, inputs, force=force)
    account = open_ledger(
        ledger,
        dataset or Path(pairs or triplets or "").stem,
        opened_vault,
        actor=actor,
        purpose=purpose,
    )
    try:
        learn_once(
            metric,
            tuples,
            labels,
            people=records.people,
            vault=opened_vault,
            ledger=account,
            records=[] if opened_vault is None else sorted(set(pictures)),
            out=model,
            progress=lambda done, total: progress("learning", done, total),
        )
    finally:
        if account is not None:
            account.close()
    test = _neighbour_test(metric, graph, records, neighbours)
    metric.describe(
        **({"columns": list(records.columns)} if opened is None else {}),
        **({} if opened is None else {"encoder": opened.identity()}),
    )
    share_file(model, "metric", metric.guarantee_, opened_vault, save=metric.save)
    card = model.with_suffix(".card.json")
    card.write_text(metric.guarantee_.to_json() + "\n", encoding="utf-8")
    rates_known = metric.curve_.known
    return LearnedMetric(
        model=model,
        card=card,
        guarantee=metric.guarantee_,
        n_pairs=len(tuples),
        n_used_pairs=metric.n_pairs_,
        loss=metric.loss_,
        kappa=metric.kappa_,
        kappa_bounds=_kappa_bounds(graph),
        forecast=forecast,
        point=metric.curve_.at_threshold(metric.threshold_) if rates_known else None,
        equal_error=metric.curve_.equal_error() if rates_known else None,
        neighbour_test=test,
        vault=None if opened_vault is None else opened_vault.path,
        charged=account is not None,
        files=records.files,
    )


def _refuse_other_model(model: Path, vault: Vault | None, inputs: str, *, force: bool) -> None:
    """Refuse to overwrite a model, unless it is the same release of the same vault."""
    from blindsight.privacy.charges import read_release_file

    if force:
        return
    written = {(item.vault, item.release) for item in read_release_file(model)}
    if vault is None or (vault.number, vault.release_of(inputs)) not in written:
        raise InvalidParameter(
            f"{model} holds another model. Choose another name, or --force (force=True) to write "
            "over it."
        )


def _pictures(
    vault: Vault | None, files: Sequence[Path], decoded: DecodedPhotos | None
) -> list[str]:
    """Return an id of each picture: its record in the vault, or a digest of its pixels."""
    from blindsight.data.limits import LIMITS, read_bytes
    from blindsight.data.sources import content_digest, pixel_digest

    if vault is not None:
        return records_of(vault, files, decoded)
    digests = []
    for file in files:
        content = read_bytes(file, largest=LIMITS.image_bytes)
        pixels = None if decoded is None else decoded.find(content)
        digest = pixel_digest(pixels) if pixels is not None else None
        digests.append((digest or content_digest(content, name=file.name)).hex())
    return digests


def _join_copies(
    numbers: NDArray[np.int64],
    similar: NDArray[np.bool_] | None,
    rows: NDArray[np.int64],
    pictures: Sequence[str],
    people: NDArray[np.str_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Replace files with the same pixels by one record, and remove pairs of two copies.

    Otherwise a photo with a copy in the folder would count as two records, and the guarantee would
    hold for each copy separately.

    Parameters:
        numbers: pairs of rows (m, 2), or triplets (m, 3).
        similar: the label of each pair; None for triplets.
        rows: the rows that are in a pair, in order.
        pictures: the id of the picture of each of these rows.
        people: the person of each record; copies of one picture must have the same person.
    """
    first: dict[str, int] = {}
    numbered = zip(rows.tolist(), pictures, strict=True)
    representative = np.array([first.setdefault(picture, row) for row, picture in numbered])
    joined = representative[np.searchsorted(rows, numbers)]
    if people is not None and (people[representative] != people[rows]).any():
        raise InvalidData(
            "two files with the same pixels have different people. Correct the names."
        )
    different = (np.diff(np.sort(joined, axis=1), axis=1) != 0).all(axis=1)
    if not different.any():
        raise InvalidData("every pair joins two copies of one picture: there is nothing to learn.")
    return joined[different], None if similar is None else similar[different]


def _scale(
    scale: str, records: Records
) -> str | tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    from blindsight.metric.files import read_bounds

    if scale == "auto":
        # Vectors of an encoder have norm 1, but each column of a table has its own unit.
        return "private" if records.columns else None
    if scale in ("none", "private"):
        return None if scale == "none" else scale
    if not scale.lower().endswith(".csv"):
        raise InvalidParameter(
            f"--scale must be auto, none, private or a CSV file of bounds, got {scale!r}."
        )
    if not records.columns:
        raise InvalidParameter(
            "--scale with bounds needs named columns: a table given by --features."
        )
    return read_bounds(scale, records.columns)


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
    """Test kNN on records that are in no pair, with both distances; None if there are too few."""
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
