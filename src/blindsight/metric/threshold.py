"""Where to part similar from dissimilar pairs: from distances, or from noisy counts of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = ["STRATEGIES", "best_threshold", "cut"]

STRATEGIES = ("accuracy", "balanced", "max_tpr", "max_tnr")


def best_threshold(
    distance: NDArray[np.float64],
    similar: NDArray[np.bool_],
    *,
    strategy: str = "accuracy",
    min_rate: float = 0.9,
) -> float:
    """The distance up to which pairs should count as similar, by exact distances of labelled pairs.

    Examples:
        >>> round(best_threshold(np.array([0.1, 0.2, 0.9, 1.1]), np.array([True, True, False, False])), 2)
        0.55
    """  # noqa: E501
    checks.one_of("strategy", strategy, STRATEGIES)
    rate = checks.probability("min_rate", min_rate)
    if len(distance) != len(similar):
        raise InvalidData(
            f"y must have one label per pair: {len(distance)} pairs, {len(similar)} labels."
        )
    if similar.all() or not similar.any():
        raise InvalidData(
            "y must hold both similar and dissimilar pairs: with a single kind no threshold is "
            "better."
        )
    order = np.argsort(distance, kind="stable")
    sorted_distance, alike = distance[order], similar[order]
    # Entry k: the k nearest pairs are called similar. Only between different distances can one cut.
    found = np.r_[0, np.cumsum(alike)] / alike.sum()
    refused = 1 - np.r_[0, np.cumsum(~alike)] / (~alike).sum()
    worth = _worth(found, refused, strategy, rate, share=float(alike.mean()))
    worth[1:-1][sorted_distance[1:] == sorted_distance[:-1]] = -np.inf
    best = int(np.argmax(worth))
    edges = np.r_[0.0, sorted_distance, sorted_distance[-1]]
    return float(edges[best] + edges[best + 1]) / 2


def _worth(
    found: NDArray[np.float64],
    refused: NDArray[np.float64],
    strategy: str,
    rate: float,
    share: float,
) -> NDArray[np.float64]:
    if strategy == "accuracy":
        return share * found + (1 - share) * refused
    if strategy == "balanced":
        return found + refused
    main, other = (found, refused) if strategy == "max_tpr" else (refused, found)
    return np.where(other >= rate, main, -1 + other)


def cut(
    similar: NDArray[np.float64],
    dissimilar: NDArray[np.float64],
    edges: NDArray[np.float64],
    *,
    noise: float,
) -> float:
    """The edge that parts two noisy histograms best, both kinds counting the same.

    Where the noise of all cells together drowns either kind, a third of the range: the typical
    distance.
    """
    near, far = float(similar.sum()), float(dissimilar.sum())
    if min(near, far) <= 4 * noise * np.sqrt(len(similar)):
        return float(edges[-1] / 3)
    return float(edges[1 + int(np.argmax(np.cumsum(similar / near - dissimilar / far)))])
