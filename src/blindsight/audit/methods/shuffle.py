"""Try to refute the central epsilon of an index whose entries are in random order.

The attacker knows the cell of every photo but one and sees how often each cell occurs. It must tell
which of two cells the remaining photo has. Every other photo lies in a third cell where there is
one, so that nothing but noise falls into the two. The codes come from `KaryResponse.release`, which
also makes the product's codes.
"""

from __future__ import annotations

import numpy as np

from blindsight.audit.engine.bounds import epsilon_from_rates
from blindsight.core import checks
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.shuffle import ShuffleStatement

__all__ = ["epsilon_of_shuffled_counts"]

_MAX_ANSWERS = 1 << 24  # at once in memory


def epsilon_of_shuffled_counts(
    statement: ShuffleStatement,
    *,
    trials: int = 20_000,
    confidence: float = 1 - 1e-6,
    rng: np.random.Generator,
) -> float:
    """Measure a lower bound on the central epsilon by guessing from the counts of the cells.

    The threshold of the guess is chosen on one half of the trials and evaluated on the other.

    Parameters:
        statement: what is claimed; its local epsilon, cells, records and delta are used.
        trials: releases of each of the two neighbouring sets of photos.
        confidence: of the bound.
        rng: draws the answers.

    Returns:
        An epsilon that the release exceeds with the given confidence, 0 where nothing was found.
        More than `statement.epsilon` refutes the statement; less does not prove it.

    Example:
        >>> from blindsight.privacy.shuffle import ShuffleStatement
        >>> claimed = ShuffleStatement.of_batch(3.0, 4, 200)
        >>> found = epsilon_of_shuffled_counts(claimed, rng=np.random.default_rng(0))
        >>> 0 < found < claimed.epsilon
        True
    """
    runs = checks.whole("trials", trials, least=4)
    differences = [_differences(statement, own, runs, rng) for own in (0, 1)]
    half = runs // 2
    best, threshold = 0.0, 0
    for candidate in np.unique(differences[0][:half]):
        found = _bound(differences, candidate, slice(0, half), statement.delta, confidence)
        if found > best:
            best, threshold = found, int(candidate)
    return _bound(differences, threshold, slice(half, runs), statement.delta, confidence)


def _differences(
    statement: ShuffleStatement, own: int, runs: int, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How much more often cell 0 occurs than cell 1, in each run."""
    mechanism = KaryResponse(epsilon=statement.local_epsilon, k=statement.cells, unit="record")
    values = np.full(statement.records, min(2, statement.cells - 1), np.int64)
    values[0] = own
    at_once = max(1, _MAX_ANSWERS // statement.records)
    parts = []
    for start in range(0, runs, at_once):
        rows = min(at_once, runs - start)
        answers = mechanism.release(np.tile(values, rows), rng=rng).reshape(rows, -1)
        parts.append((answers == 0).sum(axis=1) - (answers == 1).sum(axis=1))
    return np.concatenate(parts)


def _bound(
    differences: list[np.ndarray[tuple[int], np.dtype[np.int64]]],
    threshold: int,
    part: slice,
    delta: float,
    confidence: float,
) -> float:
    first, second = (int((each[part] >= threshold).sum()) for each in differences)
    count = len(differences[0][part])
    return epsilon_from_rates(first, count, second, count, confidence=confidence, delta=delta)
