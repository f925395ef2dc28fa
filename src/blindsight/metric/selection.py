"""Choose pairs so that the price falls: a forest, a bounded degree, a matching.

Noise grows with how many pairs one unit may change, learning grows with how many pairs there are.
Where the first is steeper, leaving pairs out wins: a spanning forest has kappa' = 1, a matching
touches each record once. All choices look at the graph's structure and at random numbers only,
never at a label or a feature, so they cost no privacy as long as the structure is public.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.compiled import njit
from blindsight.metric.graph import PairGraph

__all__ = ["SELECTIONS", "bounded_degree", "matching", "select", "spanning_forest"]

SELECTIONS = ("all", "forest", "matching")


@njit(cache=True)
def _root(parent: Any, v: Any) -> Any:
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@njit(cache=True)
def _forest(n_nodes: Any, edges: Any, order: Any) -> Any:
    parent = np.arange(n_nodes)
    kept = np.zeros(len(edges), dtype=np.bool_)
    for e in order:
        a, b = _root(parent, edges[e, 0]), _root(parent, edges[e, 1])
        if a != b:
            parent[a] = b
            kept[e] = True
    return kept


@njit(cache=True)
def _bounded(n_nodes: Any, edges: Any, order: Any, limit: Any) -> Any:
    used = np.zeros(n_nodes, dtype=np.int64)
    kept = np.zeros(len(edges), dtype=np.bool_)
    for e in order:
        a, b = edges[e, 0], edges[e, 1]
        if used[a] < limit and used[b] < limit:
            used[a] += 1
            used[b] += 1
            kept[e] = True
    return kept


def spanning_forest(graph: PairGraph, *, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which edges a random spanning forest keeps: no cycles, so kappa' = 1."""
    return np.asarray(_forest(graph.n_nodes, graph.edges, rng.permutation(len(graph))))


def bounded_degree(graph: PairGraph, limit: int, *, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which edges to keep so that no record is in more than `limit` pairs; nothing more could be
    added.

    Edges between records of few pairs come first (ties at random): that keeps more of them than
    chance order.
    """
    limit = checks.whole("limit", limit)
    degrees = graph.degrees
    crowd = degrees[graph.edges].sum(axis=1) + rng.random(len(graph))
    return np.asarray(_bounded(graph.n_nodes, graph.edges, np.argsort(crowd), limit))


def matching(graph: PairGraph, *, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A maximal matching: each record is in at most one pair, so privacy per pair is privacy per
    record.
    """
    return bounded_degree(graph, 1, rng=rng)


def select(graph: PairGraph, how: str | int) -> NDArray[np.bool_]:
    """The mask of the edges that `how` keeps: "all", "forest", "matching", or at most so many pairs
    for each record.

    Ties are broken by a generator of their own, the same for the same number of pairs: a choice
    that anybody could repeat from the public structure.
    """
    rng = np.random.default_rng(len(graph))
    if not isinstance(how, str):
        return bounded_degree(graph, checks.whole("select", how), rng=rng)
    checks.one_of("select", how, SELECTIONS)
    if how == "forest":
        return spanning_forest(graph, rng=rng)
    if how == "matching":
        return matching(graph, rng=rng)
    return np.ones(len(graph), dtype=np.bool_)
