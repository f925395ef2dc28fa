"""kappa in time linear in the pairs, against the paper's way, and what it is worth at various
densities.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Row
from blindsight.core.checks import optional_module
from blindsight.metric import PairGraph, kappa

__all__ = ["kappa_rows", "random_graph", "slow_bound"]


def random_graph(pairs: int, *, density: float = 2.0, seed: int = 0) -> PairGraph:
    """Random pairs at |E|/|V| = density, as in Section VII-B."""
    rng = np.random.default_rng(seed)
    nodes = max(4, int(pairs / density))
    drawn = rng.integers(0, nodes, (int(pairs * 1.05) + 8, 2))
    drawn = drawn[drawn[:, 0] != drawn[:, 1]][:pairs]
    return PairGraph.from_pairs(drawn, np.ones(len(drawn)), n_nodes=nodes)


def slow_bound(graph: PairGraph) -> int:
    """Equation 15 as the paper does it, O(V (V + E)): remove each node, count components anew
    (networkx).
    """
    nx = optional_module("networkx", extra="bench")
    net = nx.Graph()
    net.add_nodes_from(range(graph.n_nodes))
    net.add_edges_from(graph.edges.tolist())
    before = nx.number_connected_components(net)
    best = 0
    for s in list(net):
        around = list(net[s])
        if not around:
            continue
        net.remove_node(s)
        after = nx.number_connected_components(net)
        net.add_edges_from((s, t) for t in around)
        best = max(best, len(around) - (after - before))
    return best


def _blocks_bound(graph: PairGraph) -> int:
    """Equation 15 by networkx's own biconnected components: the peer with the better algorithm."""
    nx = optional_module("networkx", extra="bench")
    net = nx.Graph(graph.edges.tolist())
    blocks: dict[int, int] = {}
    for block in nx.biconnected_components(net):
        for s in block:
            blocks[s] = blocks.get(s, 0) + 1
    return int(max(net.degree(s) - count + 1 for s, count in blocks.items()))


def _timed(function, repeats: int = 3) -> tuple[float, int]:  # type: ignore[no-untyped-def]
    """The median CPU time of some runs, which a busy machine disturbs less than the wall clock."""
    seconds, value = [], 0
    for _ in range(repeats):
        start = time.process_time()
        value = function()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds)), value


def _fresh(graph: PairGraph) -> PairGraph:
    """Without cached adjacency, so that building it is part of the time."""
    return PairGraph(graph.n_nodes, graph.edges, graph.similar, graph.transitive)


def kappa_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Growth, the two races, and kappa against node privacy by density."""
    kappa(random_graph(100), "bound")  # compile
    sizes = [1_000, 10_000, 100_000, 1_000_000, 10_000_000]
    seconds = []
    for size in sizes:
        graph = random_graph(size, seed=seed)
        took, _ = _timed(
            lambda graph=graph: kappa(_fresh(graph), "bound"),
            repeats=1 if size > 1e6 else 3 if quick else 5,
        )
        seconds.append(took)
        yield Row(
            id=f"metric.kappa_seconds_{size}",
            value=took,
            unit="s",
            seed=seed,
            note="kappa', |E|/|V| = 2",
        )
    slope = float(np.polyfit(np.log(sizes[:-1]), np.log(seconds[:-1]), 1)[0])
    yield Row(
        id="metric.kappa_growth_exponent_1e6_1e7",
        value=float(np.log10(seconds[-1] / seconds[-2])),
        unit="exponent",
        note="time ~ pairs^x between 1e6 and 1e7 pairs, both out of cache",
    )
    yield Row(
        id="metric.kappa_growth_exponent",
        value=slope,
        unit="exponent",
        note="time ~ pairs^x, from 1e3 to 1e6 pairs; work is linear, the rest is that a large "
        "graph outgrows the cache",
    )
    largest = 2_000 if quick else 20_000
    graph = random_graph(largest, seed=seed)
    slow_seconds, slow = _timed(lambda: slow_bound(graph), repeats=1)
    fast_seconds, fast = _timed(lambda: kappa(_fresh(graph), "bound"), repeats=5)
    assert slow == fast  # noqa: S101  (a race between different answers would mean nothing)
    yield Row(
        id="metric.kappa_vs_networkx",
        value=slow_seconds / fast_seconds,
        unit="x",
        peer="the paper's O(V(V+E)) way with networkx",
        seconds=slow_seconds,
        seed=seed,
        note=f"{largest:,} pairs, the largest graph given to the slow way (once; ours the median "
        "of 5, CPU time); "
        f"both say kappa' = {fast}",
    )
    graph = random_graph(10_000 if quick else 100_000, seed=seed)
    slow_seconds, slow = _timed(lambda: _blocks_bound(graph), repeats=1)
    fast_seconds, fast = _timed(lambda: kappa(_fresh(graph), "bound"), repeats=5)
    assert slow == fast  # noqa: S101
    yield Row(
        id="metric.kappa_vs_networkx_blocks",
        value=slow_seconds / fast_seconds,
        unit="x",
        peer="networkx biconnected_components",
        note=f"{len(graph):,} pairs; CPU time, the peer once, ours the median of 5",
    )
    yield from _values(seed, quick)
    _plot_growth(sizes, seconds, out)


def _values(seed: int, quick: bool) -> Iterator[Row]:
    graphs = [random_graph(60, density=1.5, seed=seed + i) for i in range(20 if quick else 100)]
    equal = np.mean([kappa(graph, "exact") == kappa(graph, "second") for graph in graphs])
    yield Row(
        id="metric.kappa_second_is_exact",
        value=float(equal),
        unit="share",
        note=f"{len(graphs)} graphs of 60 pairs",
    )
    for density in (0.5, 0.75, 1.0, 2.0):
        graph = random_graph(20_000, density=density, seed=seed)
        values = {name: kappa(graph, name) for name in ("exact", "second", "bound", "node")}
        yield Row(
            id=f"metric.kappa_share_of_degree_{density}",
            value=values["exact"] / values["node"],
            unit="ratio",
            seed=seed,
            note=", ".join(f"{name} {value}" for name, value in values.items()) + ", 20,000 pairs",
        )


def _plot_growth(sizes: list[int], seconds: list[float], out: Path) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.loglog(sizes, seconds, "o-")
    axes.set_xlabel("pairs")
    axes.set_ylabel("seconds")
    axes.set_title("kappa' by biconnected blocks", fontsize=9)
    figure.savefig(out / "metric_kappa_growth.svg", metadata={"Date": None})
