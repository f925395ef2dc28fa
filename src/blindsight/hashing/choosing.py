"""How many cells for a budget: many say more, few are told more truly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import decoding
from blindsight.evaluation import retrieval
from blindsight.hashing.cells import Embedding, learn_cells
from blindsight.hashing.moments import NoNoise
from blindsight.privacy.mechanisms import SubsetSelection

__all__ = ["CANDIDATES", "cells_by_rule", "cells_by_trial"]

CANDIDATES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 160)

# What trials on public images came to, by epsilon; between them, along the logarithm.
_EPSILONS, _CELLS = (1.0, 2.0, 4.0, 8.0, 16.0), (6, 8, 16, 64, 128)


def cells_by_rule(epsilon: float) -> int:
    """Without looking at any image.

    >>> [cells_by_rule(e) for e in (1.0, 4.0, 8.0)]
    [6, 16, 64]
    """
    return round(float(np.exp(np.interp(epsilon, _EPSILONS, np.log(_CELLS)))))


def cells_by_trial(
    embedding: Embedding,
    points: NDArray[Any],
    labels: NDArray[Any] | None,
    epsilon: float,
    rng: np.random.Generator,
    *,
    n_queries: int = 200,
    n_stored: int = 1500,
) -> int:
    """The number of cells that retrieves best in a rehearsal on public images, noise and all.

    Relevant is what shares a label or, without labels, the nearest tenth.
    """
    order = rng.permutation(len(points))
    # Cells are learned from other images than those that rehearse, or many small cells would look too good.
    third = len(points) // 3
    queries, rest = order[: min(n_queries, third)], order[min(n_queries, third) :]
    stored, learn = rest[: min(n_stored, len(rest) // 2)], rest[min(n_stored, len(rest) // 2) :][:5000]
    possible = [k for k in CANDIDATES if k <= len(learn) // 4] or [2]
    if len(possible) == 1:
        return possible[0]
    relevant = (
        labels[queries] @ labels[stored].T > 0
        if labels is not None
        else _nearest_tenth(points[queries], points[stored])
    )
    best, choice = -1.0, possible[0]
    for k in possible:
        cells = learn_cells(points[learn], k, embedding.link, NoNoise(), rng)
        noise = SubsetSelection(epsilon=epsilon, k=k, unit="record")
        members = noise.release(cells.assign(points[stored]), rng=rng)
        posterior = decoding.cell_posterior(members, epsilon, cells.weights)
        scores = embedding.similarity(points[queries], cells.centres) @ posterior.T
        found = float(np.nanmean(retrieval.score_precisions(scores, relevant)))
        if found > best:
            best, choice = found, k
    return choice


def _nearest_tenth(queries: NDArray[Any], stored: NDArray[Any]) -> NDArray[np.bool_]:
    squared = np.square(stored).sum(axis=1) - 2 * queries @ stored.T
    rank = max(1, len(stored) // 10)
    return squared <= np.partition(squared, rank - 1, axis=1)[:, rank - 1 : rank]
