"""`blindsight metric check`, `learn` and `distance`: a metric from private labelled pairs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, notes, progress_bar, table

if TYPE_CHECKING:
    from blindsight.metric import DPPMetric, PairGraph
    from blindsight.metric.files import Records

__all__ = ["register"]

Features = Annotated[
    Path | None,
    typer.Option("--features", help="CSV: a column 'id', numbers, and 'class' if known."),
]
Images = Annotated[
    Path | None, typer.Option("--images", help="Folder of images; ids are paths within it.")
]
ImageFeatures = Annotated[
    str | None, typer.Option("--image-features", help="pixels (default) or efficientnet.")
]
# Fewer held-out records than this say nothing about accuracy.
_ENOUGH = 30
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(help="Learn a distance from private labelled pairs.", no_args_is_help=True)
    verbs.command("check")(check)
    verbs.command("learn")(learn)
    verbs.command("distance")(distance)
    app.add_typer(verbs, name="metric")


def check(
    pairs: Annotated[Path, typer.Argument(help="CSV: two ids and a label (1/0, same/different).")],
    intransitive: Annotated[
        bool, typer.Option(help="Similar does not carry over (friends, not illnesses).")
    ] = False,
    classes: Annotated[
        int | None, typer.Option(help="2 checks that labels fit two classes.")
    ] = None,
    json: Json = False,
) -> None:
    """Look for contradictory labels before learning.

    For the owner only: exact, and not to be published.
    """
    from blindsight.metric import PairGraph, check_pairs
    from blindsight.metric.files import read_pairs

    numbers, similar = read_pairs(pairs)
    found = check_pairs(numbers, similar, transitive=not intransitive, n_classes=classes)
    bounds = _bounds(PairGraph.from_pairs(numbers, similar, transitive=not intransitive))
    if json:
        emit_json(
            {**dataclasses.asdict(found), "problems": found.problems(), "kappa_bounds": bounds}
        )
    else:
        console.print(
            f"{found.pairs:,} pairs ({found.repeated:,} lines repeat one), {found.similar:,} of "
            "them similar; "
            f"second-largest kappa {bounds['second']}, kappa' {bounds['bound']}, largest degree "
            f"{bounds['node']}."
        )
        for sentence in found.problems() or ["No label contradicts another."]:
            console.print(sentence)
        console.print("Computed without noise: for you alone.")
    if not found.fine:
        raise typer.Exit(1)


def learn(
    pairs: Annotated[Path, typer.Argument(help="CSV: two ids and a label (1/0, same/different).")],
    features: Features = None,
    images: Images = None,
    image_features: ImageFeatures = None,
    out: Annotated[Path, typer.Option("--out", help="The model; its card goes beside it.")] = Path(
        "metric.safetensors"
    ),
    epsilon: Annotated[float, typer.Option(help="Budget per unit.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Well below one over the number of pairs.")] = 1e-5,
    unit: Annotated[str, typer.Option(help="pair, 'kappa pairs' or record.")] = "pair",
    loss: Annotated[
        str, typer.Option(help="auto, moments (many pairs) or contrastive (few).")
    ] = "auto",
    scale: Annotated[
        str,
        typer.Option(
            help="none; private, within the budget; or a CSV of public bounds (column,low,high)."
        ),
    ] = "none",
    kappa: Annotated[
        str, typer.Option(help="second, exact, bound, node, edge, or a number.")
    ] = "second",
    select: Annotated[
        str, typer.Option(help="all, forest, matching, or how many pairs of each record.")
    ] = "all",
    components: Annotated[int | None, typer.Option(help="Dimensions of the learned space.")] = None,
    intransitive: Annotated[
        bool, typer.Option(help="Similar does not carry over (friends, not illnesses).")
    ] = False,
    class_column: Annotated[
        str | None, typer.Option(help="Column of the classes, for the kNN test.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="k of the kNN test.")] = 5,
    draw: Annotated[
        Path | None, typer.Option(help="Write the pair graph as an SVG (private).")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            envvar="BLINDSIGHT_LEDGER",
            help="Charge this ledger before anything is learned.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The pairs' name in the ledger (default: the file's).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    json: Json = False,
) -> None:
    """Learn a metric; print kappa, guarantee and kNN accuracy on held-out records; save model and
    card.
    """
    from blindsight.metric import DPPMetric, PairGraph
    from blindsight.metric import draw as draw_graph
    from blindsight.metric.files import read_pairs

    with progress_bar("reading") as progress:
        records = _records(features, images, image_features, class_column, progress)
        numbers, similar = read_pairs(pairs, records)
    graph = PairGraph.from_pairs(
        numbers, similar, n_nodes=len(records.ids), transitive=not intransitive
    )
    metric = DPPMetric(
        components,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        loss=loss,
        scale=_scale(scale, records),
        select=int(select) if select.isdigit() else select,
        kappa=int(kappa) if kappa.isdigit() else kappa,
        transitive=not intransitive,
        preprocessor=records.X,
        random_state=seed,
    )
    with notes(), progress_bar("learning") as progress:
        _fit(metric, graph, ledger, dataset or pairs.stem, progress)
    scores = _scores(metric, graph, records, neighbours)
    if images is not None:
        metric.describe(image_features=_image_features(image_features))
    metric.save(out)
    card = out.with_suffix(".card.json")
    card.write_text(metric.guarantee_.to_json() + "\n", encoding="utf-8")
    if draw is not None:
        draw_graph(graph, draw)
    _report(metric, graph, scores, out, card, charged=ledger is not None, json=json)


def distance(
    model: Annotated[Path, typer.Argument(help="A model that `metric learn` wrote.")],
    ids: Annotated[list[str], typer.Argument(help="Two ids, or one to list its nearest records.")],
    features: Features = None,
    images: Images = None,
    nearest: Annotated[int, typer.Option(help="How many records to list for a single id.")] = 5,
    json: Json = False,
) -> None:
    """The learned distance of two records, or the records nearest to one."""
    import numpy as np

    from blindsight.core.errors import InvalidParameter
    from blindsight.metric import DPPMetric

    metric = DPPMetric.load(model)
    with progress_bar("reading") as progress:
        records = _records(features, images, metric.about_.get("image_features"), None, progress)
    if not 1 <= len(ids) <= 2:
        raise InvalidParameter(f"give two ids, or one to list its nearest records; got {len(ids)}.")
    mapped = metric.transform(records.X)
    numbers = records.numbers(ids, where="the command line")
    away = np.linalg.norm(mapped - mapped[numbers[0]], axis=1)
    if len(ids) == 2:
        found = [(ids[1], float(away[numbers[1]]))]
    else:
        order = [i for i in np.argsort(away, kind="stable") if i != numbers[0]][:nearest]
        found = [(records.ids[i], float(away[i])) for i in order]
    if json:
        emit_json(
            {
                "from": ids[0],
                "distances": [{"to": name, "distance": value} for name, value in found],
            }
        )
    else:
        table(f"Distance from {ids[0]}", ("record", "distance"), found)


def _records(
    features: Path | None, images: Path | None, how: str | None, column: str | None, progress: Any
) -> Records:
    from blindsight.core.errors import InvalidParameter
    from blindsight.metric.files import read_features, read_image_folder

    if (features is None) == (images is None):
        raise InvalidParameter(
            "say where the records are: either --features table.csv or --images folder."
        )
    if features is not None:
        return read_features(features, class_column=column)
    return read_image_folder(images, how=_image_features(how), progress=progress)  # type: ignore[arg-type]


def _image_features(how: str | None) -> str:
    return how or "pixels"


def _scale(given: str, records: Records) -> Any:
    from blindsight.core.errors import InvalidParameter
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


def _bounds(graph: PairGraph) -> dict[str, int]:
    from blindsight.metric import kappa

    return {method: kappa(graph, method) for method in ("second", "bound", "node")}


def _fit(
    metric: DPPMetric, graph: PairGraph, ledger: str | None, dataset: str, progress: Any
) -> None:
    from blindsight.privacy.ledger import Ledger

    if ledger is None:
        metric.fit(graph.edges, graph.similar, progress=progress)
        return
    with Ledger(ledger, dataset=dataset) as opened:
        metric.fit(graph.edges, graph.similar, ledger=opened, progress=progress)


def _scores(metric: DPPMetric, graph: PairGraph, records: Records, k: int) -> dict[str, Any] | None:
    """kNN on records that are in no pair, before and after; None where there is too little to test
    on.
    """
    from blindsight.metric import EuclideanMetric
    from blindsight.metric.files import nearest_neighbours, split_by_pairs

    gallery, held_out = split_by_pairs(graph.edges, graph.n_nodes)
    if records.classes is None or len(held_out) < _ENOUGH or len(set(records.classes[gallery])) < 2:
        return None
    plain = EuclideanMetric().fit(records.X)
    found = {}
    for name, fitted in (("learned", metric), ("before", plain)):
        mapped = fitted.transform(records.X)
        scores = nearest_neighbours(
            mapped[gallery],
            records.classes[gallery],
            mapped[held_out],
            records.classes[held_out],
            k=k,
        )
        found[name] = {
            "accuracy": scores.accuracy,
            "balanced": scores.balanced,
            "interval": scores.interval(),
        }
    return {**found, "held_out": len(held_out)}


def _report(
    metric: DPPMetric,
    graph: PairGraph,
    scores: dict[str, Any] | None,
    out: Path,
    card: Path,
    *,
    charged: bool,
    json: bool,
) -> None:
    bounds = _bounds(graph)
    if json:
        emit_json(
            {
                "pairs": len(graph),
                "used_pairs": metric.n_pairs_,
                "loss": metric.loss_,
                "kappa": metric.kappa_,
                "kappa_bounds": bounds,
                "guarantee": _plain(metric.guarantee_.to_json()),
                "knn": scores,
                "charged": charged,
                "model": str(out),
                "card": str(card),
            }
        )
        return
    console.print(
        f"{len(graph):,} pairs, {metric.n_pairs_:,} used, learned by {metric.loss_}. kappa = "
        f"{metric.kappa_} "
        f"(second-largest {bounds['second']}, kappa' {bounds['bound']}, largest degree "
        f"{bounds['node']})."
    )
    table("Privacy card", ("field", "value"), metric.guarantee_.rows())
    if scores is None:
        console.print(
            f"No kNN test: it needs two classes, and at least {_ENOUGH} records that are in no "
            "pair."
        )
    else:
        learned, before = scores["learned"], scores["before"]
        low, high = learned["interval"]
        console.print(
            f"kNN on {scores['held_out']:,} held-out records: accuracy {learned['accuracy']:.3f} "
            f"(95%: {low:.2f} to {high:.2f}; before learning {before['accuracy']:.3f}), balanced "
            f"{learned['balanced']:.3f} ({before['balanced']:.3f}). Computed without noise: not "
            "covered by the "
            "guarantee, keep it inside."
        )
    console.print(
        f"Model: {out}   card: {card}   "
        + ("ledger charged." if charged else "not charged: no --ledger.")
    )


def _plain(text: str) -> Any:
    import json as parser

    return parser.loads(text)
