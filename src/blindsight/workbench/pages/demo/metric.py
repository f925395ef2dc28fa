"""The demo's metric from private pairs of two strips: the pair graph, the space before and after,
the price.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.pictures import COLOURS, INK, LINE, curves, draw

if TYPE_CHECKING:
    from blindsight import data
    from blindsight.metric import DPPMetric, PairGraph

__all__ = ["EPSILONS", "run"]

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


_REPEATS = 3


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Fit at the asked budget, then along the curve."""

    from sklearn.neighbors import KNeighborsClassifier

    from blindsight.metric import DPPMetric, PairGraph, kappa

    chosen, unit = float(arguments["epsilon"]), str(arguments["unit"])
    steps = 2 + len(EPSILONS) * _REPEATS
    place.say(0, steps, "drawing pairs")
    points, classes = _points()
    train, test = np.arange(200), np.arange(200, 400)
    pairs = _pairs(classes[train], int(arguments["pairs"]), bool(arguments["cycles"]))
    graph = PairGraph.from_pairs(pairs.indices, pairs.labels, n_nodes=200)
    bounds: dict[str, int] = {name: kappa(graph, name) for name in ("second", "bound", "node")}
    draw(lambda axes: _graph(axes, graph), width=5.2, height=5.2, path=place.folder / "graph.svg")
    place.say(1, steps, "learning a metric")

    def fit(epsilon: float) -> DPPMetric:
        return DPPMetric(epsilon=epsilon, unit=unit, preprocessor=points).fit(
            pairs.indices, pairs.labels
        )

    def accuracy(space: NDArray[Any]) -> float:
        return float(
            KNeighborsClassifier(5)
            .fit(space[train], classes[train])
            .score(space[test], classes[test])
        )

    metric = fit(chosen)
    before, after = accuracy(points), accuracy(metric.transform(points))
    _spaces(points, metric.transform(points), classes, place)
    curve, done = [], 2
    for epsilon in EPSILONS:
        scores = []
        for _ in range(_REPEATS):
            scores.append(accuracy(fit(epsilon).transform(points)))
            done += 1
            place.say(done, steps, f"measuring at ε = {epsilon:g}")
        curve.append((epsilon, float(np.mean(scores))))
    open_metric = accuracy(_open(points, pairs).transform(points))
    draw(
        curves(
            {f"private metric, per {unit}": curve},
            xlabel=f"proven epsilon per {unit}",
            ylabel="5-NN accuracy",
            log=True,
            levels={"before learning": before, "without privacy": open_metric},
            mark=chosen,
        ),
        path=place.folder / "accuracy.svg",
    )
    return {
        "pairs": len(graph),
        "records": 200,
        "kappa": bounds,
        "before": before,
        "after": after,
        "open": open_metric,
        "curve": curve,
        "guarantee": json.loads(metric.guarantee_.to_json()),
    }


def _points() -> tuple[NDArray[Any], NDArray[Any]]:
    """The two strips, and six columns that say nothing: Euclidean neighbours are often of the other
    class.
    """

    from blindsight import data

    strips = data.two_strips(400, seed=5, gap=0.05)
    idle = np.random.default_rng(6).normal(0, 0.035, (400, 6))
    rows = np.column_stack([strips.X, idle])
    return rows - rows.mean(axis=0), np.asarray(strips.y)


def _flat(space: NDArray[Any]) -> NDArray[Any]:
    """The two directions in which a space is widest."""
    centred = space - space.mean(axis=0)
    return np.asarray(centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T)


def _pairs(classes: NDArray[Any], count: int, cycles: bool) -> data.PairSet:
    """Without cycles each pair hangs on one edge and kappa is small; random pairs close cycles and
    raise it.
    """

    from blindsight import data

    if not cycles:
        share = min(count // 3, 60)
        return data.acyclic_pairs(classes, similar=share, dissimilar=share)
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, len(classes), (2, 3 * count))
    low, high = np.minimum(a, b), np.maximum(a, b)
    found = np.unique(np.column_stack([low, high])[low < high], axis=0)
    found = found[rng.permutation(len(found))[:count]]
    return data.PairSet(
        found, (classes[found[:, 0]] == classes[found[:, 1]]).astype(np.int64), "random pairs"
    )


def _open(points: NDArray[Any], pairs: data.PairSet) -> Any:
    from blindsight.metric import ContrastiveMetric

    return ContrastiveMetric(preprocessor=points).fit(pairs.indices, pairs.labels)


def _graph(axes: Any, graph: PairGraph) -> None:
    from matplotlib.collections import LineCollection

    from blindsight.metric.blocks import worth
    from blindsight.metric.drawing import layout

    nodes, values = layout(graph), worth(graph)
    for alike, style, colour in ((True, "solid", COLOURS[0]), (False, "dashed", COLOURS[1])):
        lines: Any = nodes[graph.edges[graph.similar == alike]]
        axes.add_collection(
            LineCollection(lines, linestyles=style, colors=colour, linewidths=1.0, zorder=1)
        )
    joined = graph.degrees > 0
    size = 14 + 26 * values / max(1, int(values.max()))
    axes.scatter(
        nodes[joined, 0],
        nodes[joined, 1],
        s=size[joined],
        color=INK,
        edgecolors=LINE,
        lw=0.5,
        zorder=2,
    )
    axes.set_axis_off()
    axes.set_aspect("equal")


def _spaces(
    before: NDArray[Any], after: NDArray[Any], classes: NDArray[Any], place: JobContext
) -> None:
    for name, space in (("before", _flat(before)), ("after", _flat(after))):

        def paint(axes: Any, space: NDArray[Any] = space) -> None:
            for label, colour in ((0, COLOURS[0]), (1, COLOURS[1])):
                rows = classes == label
                axes.scatter(
                    space[rows, 0],
                    space[rows, 1],
                    s=10,
                    color=colour,
                    alpha=0.75,
                    label=f"class {label}",
                )
            axes.set_aspect("equal", "datalim")
            axes.locator_params(nbins=5)
            axes.legend(frameon=False, labelcolor=INK, fontsize=9)

        draw(paint, width=4.4, height=3.8, path=place.folder / f"{name}.svg")
