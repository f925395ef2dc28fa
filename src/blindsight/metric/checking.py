"""What the owner of labelled pairs wants to know before a metric is learned, and nobody else may.

Contradictions between labels, and labels of one kind only, are facts about private data. A learner
that refused such pairs would answer questions about them for free, so `DPPMetric.fit` learns from
whatever it is given, and this is where the owner looks first. Everything here is computed without
noise: keep it inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.metric.graph import PairGraph, connected, pair_labels

__all__ = ["PairReport", "check_pairs"]


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """What was found among labelled pairs; every number is private.

    Attributes:
        pairs: distinct pairs, and how many lines named a pair again. repeated: distinct pairs, and
        how many lines named a pair again. similar: how many of the distinct pairs are similar (by
        their first label). both_ways: pairs that carry both labels. chains: dissimilar pairs that a
        chain of similar pairs joins; None where the relation is not transitive. circles: components
        that two classes cannot explain; None where the number of classes was not said to be 2.
    """

    pairs: int
    repeated: int
    similar: int
    both_ways: int
    chains: int | None
    circles: int | None

    @property
    def fine(self) -> bool:
        """Whether nothing needs the owner's attention."""
        return not self.problems()

    def problems(self) -> list[str]:
        """One sentence for each finding."""
        found = []
        if self.both_ways:
            found.append(
                f"{self.both_ways} pairs are labelled both similar and dissimilar; the first label "
                "is used."
            )
        if self.chains:
            found.append(
                f"{self.chains} pairs are labelled dissimilar although a chain of similar pairs "
                "joins them. Correct "
                "the labels, or say that being similar does not carry over."
            )
        if self.circles:
            found.append(
                f"{self.circles} groups of joined records do not fit two classes: an odd number of "
                "dissimilar pairs "
                "closes a circle."
            )
        if self.similar in (0, self.pairs):
            kind = "similar" if self.similar else "dissimilar"
            found.append(
                f"all pairs are {kind}: add pairs of the other kind, or there is little to learn."
            )
        return found


def check_pairs(
    pairs: Any, y: Any, *, transitive: bool = True, n_classes: int | None = None
) -> PairReport:
    """Look for labels that cannot all hold (the inference patterns of Section V-A).

    Examples:
        >>> check_pairs([[0, 1], [1, 2], [2, 0]], [1, 1, 0]).chains
        1
    """
    if n_classes is not None and checks.whole("n_classes", n_classes) < 2:
        raise InvalidData(f"n_classes must be at least 2, got {n_classes}.")
    given, labels = np.asarray(pairs), pair_labels(y)
    graph = PairGraph.from_pairs(given, labels)
    edges = np.sort(given.astype(np.int64), axis=1)
    _, number, counts = np.unique(edges, axis=0, return_inverse=True, return_counts=True)
    alike = np.bincount(number.ravel(), weights=labels)
    return PairReport(
        pairs=len(graph),
        repeated=len(given) - len(graph),
        similar=int(graph.similar.sum()),
        both_ways=int(((alike > 0) & (alike < counts)).sum()),
        chains=_chains(graph) if transitive else None,
        circles=_circles(graph) if transitive and n_classes == 2 else None,
    )


def _chains(graph: PairGraph) -> int:
    """Dissimilar pairs inside one class of the similar ones."""
    group = connected(graph.n_nodes, graph.edges[graph.similar])
    across: NDArray[np.int64] = graph.edges[~graph.similar]
    return int((group[across[:, 0]] == group[across[:, 1]]).sum())


def _circles(graph: PairGraph) -> int:
    """Components in which some record would be of both classes.

    Double cover (v, side): similar keeps the side, dissimilar changes it; nobody may be on both
    sides.
    """
    n = graph.n_nodes
    shift = np.where(graph.similar, 0, n)
    a, b = graph.edges[:, 0], graph.edges[:, 1]
    cover = np.concatenate(
        [np.column_stack([a, b + shift]), np.column_stack([a + n, b + n - shift])]
    )
    side = connected(2 * n, cover)
    return len(np.unique(graph.components()[side[:n] == side[n:]]))
