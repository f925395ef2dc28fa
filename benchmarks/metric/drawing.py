"""Draw a pair graph: who hangs together, which labels join them, and which records set kappa."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.metric.graph import PairGraph
from blindsight.metric.kappa import kappa, worth

__all__ = ["draw", "layout"]


def layout(graph: PairGraph, *, seed: int = 0, steps: int = 150) -> NDArray[np.float64]:
    """Node positions in the unit square by springs (Fruchterman and Reingold 1991): pairs pull, all
    records push.

    Every record pushes every other, so time and memory grow with the square of their number: for
    pictures of hundreds. Components are held together by a weak pull to the middle, or they would
    drift out of the picture.
    """
    n = graph.n_nodes
    points = np.random.default_rng(seed).random((n, 2)) - 0.5
    spring = 1 / np.sqrt(n)
    a, b = graph.edges[:, 0], graph.edges[:, 1]
    for heat in np.linspace(0.1, 0.002, steps):
        apart = points[:, None, :] - points[None, :, :]
        square = np.einsum("ijk,ijk->ij", apart, apart)
        push = spring**2 * (apart / np.maximum(square, 1e-6)[:, :, None]).sum(axis=1)
        along = points[a] - points[b]
        along *= np.linalg.norm(along, axis=1, keepdims=True) / spring
        np.add.at(push, a, -along)
        np.add.at(push, b, along)
        push -= points
        size = np.linalg.norm(push, axis=1, keepdims=True)
        points += push / np.maximum(size, 1e-12) * np.minimum(size, heat)
    span = np.ptp(points, axis=0)
    return np.asarray((points - points.min(axis=0)) / np.where(span > 0, span, 1.0))


def draw(
    graph: PairGraph,
    path: str | Path,
    *,
    max_nodes: int = 400,
    title: str | None = None,
    seed: int = 0,
) -> Path:
    """Write the graph as an SVG: similar pairs solid, dissimilar dashed, a record darker the more
    it adds to kappa.

    A graph of more than `max_nodes` records is cut to its largest components and says so. The
    picture shows labels and structure: it is as private as the pairs.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    shown = _largest(graph, checks.whole("max_nodes", max_nodes))
    points, values = layout(shown, seed=seed), worth(shown)
    figure = Figure(figsize=(6, 6))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.9))
    segments = points[shown.edges]
    for alike, style, colour in ((True, "solid", "#2b6cb0"), (False, "dashed", "#c05621")):
        chosen: Any = segments[shown.similar == alike]
        axes.add_collection(
            LineCollection(chosen, linestyles=style, colors=colour, linewidths=0.9, zorder=1)
        )
    look: Any = {
        "cmap": "Greys",
        "vmin": -1,
        "edgecolors": "#333333",
        "linewidths": 0.5,
        "s": 28,
        "zorder": 2,
    }
    axes.scatter(points[:, 0], points[:, 1], c=values, **look)
    part = (
        ""
        if shown.n_nodes == graph.n_nodes
        else f" (largest components, {shown.n_nodes:,} of {graph.n_nodes:,})"
    )
    bounds = (
        f"κ ≤ {kappa(graph)}, κ' = {kappa(graph, 'bound')}, largest degree {kappa(graph, 'node')}"
    )
    facts = f"{len(graph):,} pairs, {bounds}"
    axes.set_title(f"{title + ': ' if title else ''}{facts}{part}", fontsize=9)
    axes.set_axis_off()
    path = Path(path)
    figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _largest(graph: PairGraph, max_nodes: int) -> PairGraph:
    """The components, largest first, that fit into `max_nodes` (part of the first when even that is
    too large).
    """
    if graph.n_nodes <= max_nodes:
        return graph
    component = graph.components()
    size = np.bincount(component)[component]
    order = np.lexsort((np.arange(graph.n_nodes), component, -size))
    keep = np.sort(order[:max_nodes])
    number = np.full(graph.n_nodes, -1, dtype=np.int64)
    number[keep] = np.arange(len(keep))
    renamed = number[graph.edges]
    inside = (renamed >= 0).all(axis=1)
    return PairGraph(len(keep), renamed[inside], graph.similar[inside], graph.transitive)
