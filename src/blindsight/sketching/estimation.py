"""What a sketch tells of its image: Equations 5 to 7 of the paper, by linearity and by table.

Equation 5 is a logistic function of n_1 - n_0 alone: log odds of a one = (n_1 - n_0) ln(P_same /
P_diff). So a table of all differences a bit holds every posterior there is, and Equation 7's sum
over the 2^L values of a pixel is, by linearity of the mean, the sum over its L bits of 2^(L-j)
Pr(bit j = 1). `pixel_mean_by_enumeration` keeps the paper's sum as the tests' oracle.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, xlogy

from blindsight.core.compiled import njit
from blindsight.core.errors import InvalidData
from blindsight.sketching.flips import Law

__all__ = [
    "bit_posteriors",
    "log_odds",
    "pixel_mean_by_enumeration",
    "pixel_means",
    "posterior_of_one",
    "posterior_table",
]

SMALL = 1 << 17  # counts that one thread deals with at once


def log_odds(p_diff: ArrayLike) -> NDArray[np.float64]:
    """ln(P_same / P_diff) a bit: what one more sighting is worth; infinite where P_diff is 0."""
    wrong = np.asarray(p_diff, np.float64)
    with np.errstate(divide="ignore"):
        return np.log1p(-wrong) - np.log(wrong)


def posterior_of_one(n0: ArrayLike, n1: ArrayLike, p_diff: float) -> NDArray[np.float64]:
    """Equation 5 as printed, Pr(bit = 1), in logarithms; 0 log 0 = 0 guards bits that never show a
    wrong value.
    """
    n0, n1 = np.asarray(n0, np.float64), np.asarray(n1, np.float64)
    one = xlogy(n1, 1 - p_diff) + xlogy(n0, p_diff)
    zero = xlogy(n0, 1 - p_diff) + xlogy(n1, p_diff)
    if p_diff in (0.0, 1.0):  # sightings of both values cannot be, and none at all tell nothing
        sure = np.sign(n1 - n0) * (1 if p_diff == 0 else -1)
        return np.asarray(0.5 + 0.5 * sure)
    return np.asarray(expit(one - zero))


def posterior_table(p_diff: ArrayLike, top: int) -> NDArray[np.float32]:
    """Pr(bit j = 1) for every difference n_1 - n_0 from -top to top: table (L, 2 top + 1)."""
    differences = np.arange(-top, top + 1)
    rows = [
        posterior_of_one(np.maximum(-differences, 0), np.maximum(differences, 0), p)
        for p in np.asarray(p_diff)
    ]
    return np.stack(rows).astype(np.float32)


@njit(nogil=True, cache=True)
def _posteriors(counts: Any, table: Any, out: Any) -> None:
    n, depth, _, M = counts.shape
    top = table.shape[1] // 2
    for s in range(n):
        for j in range(depth):
            row, zeros, ones, here = table[j], counts[s, j, 0], counts[s, j, 1], out[s, j]
            for a in range(M):
                here[a] = row[np.int32(ones[a]) - np.int32(zeros[a]) + top]


@njit(nogil=True, cache=True)
def _means(counts: Any, table: Any, out: Any) -> None:
    """Equation 7 by linearity; `table` already carries the weights 2^(L-j)."""
    n, depth, _, M = counts.shape
    top = table.shape[1] // 2
    for s in range(n):
        here = out[s]
        here[:] = 0
        for j in range(depth):
            row, zeros, ones = table[j], counts[s, j, 0], counts[s, j, 1]
            for a in range(M):
                here[a] += row[np.int32(ones[a]) - np.int32(zeros[a]) + top]


def _flat(counts: NDArray[Any], depth: int) -> NDArray[Any]:
    """Counts (..., L, 2, h, w) or (..., L, 2, M) as (strings, L, 2, M)."""
    if counts.ndim == 6 and counts.shape[2:4] == (depth, 2):
        return counts.reshape(-1, depth, 2, counts.shape[4] * counts.shape[5])
    if counts.ndim == 4 and counts.shape[1:3] == (depth, 2):
        return counts
    raise InvalidData(
        f"a sketch at depth {depth} must have shape (n, channels, {depth}, 2, height, width), got "
        f"{counts.shape}."
    )


def _each(
    kernel: Callable[..., None],
    counts: NDArray[Any],
    table: NDArray[Any],
    out: NDArray[Any],
    n_jobs: int | None,
) -> None:
    if counts.size <= SMALL or n_jobs == 1:
        kernel(counts, table, out)  # threads cost more than they bring
        return
    step = max(1, min(256, -(-len(counts) // 4)))
    with ThreadPoolExecutor(n_jobs or os.cpu_count() or 1) as pool:
        starts = range(0, len(counts), step)
        list(pool.map(lambda a: kernel(counts[a : a + step], table, out[a : a + step]), starts))


def _table_for(counts: NDArray[Any], parameters: Law) -> NDArray[np.float32]:
    """A table that no stored count can fall outside of, hostile counts included."""
    if counts.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise InvalidData(f"a sketch's counts must be uint8 or uint16, got {counts.dtype}.")
    return _kept_table(tuple(parameters.p_diff), int(np.iinfo(counts.dtype).max))


@functools.lru_cache(maxsize=16)
def _kept_table(p_diff: tuple[float, ...], top: int) -> NDArray[np.float32]:
    """The table, made once per setting: a single sketch must not pay for it."""
    table = posterior_table(p_diff, top)
    table.flags.writeable = False
    return table


def bit_posteriors(
    counts: NDArray[Any], parameters: Law, *, n_jobs: int | None = None
) -> NDArray[np.float32]:
    """Pr(bit = 1) for every bit: (n, channels, L, h, w) from counts (n, channels, L, 2, h, w), or
    (n, L, M).
    """
    flat = _flat(counts, parameters.depth)
    out = np.empty((len(flat), parameters.depth, flat.shape[3]), np.float32)
    _each(_posteriors, flat, _table_for(counts, parameters), out, n_jobs)
    return out.reshape(*counts.shape[:-3], *counts.shape[-2:]) if counts.ndim == 6 else out


def pixel_means(
    counts: NDArray[Any], parameters: Law, *, n_jobs: int | None = None
) -> NDArray[np.float32]:
    """The posterior mean of every pixel (Equation 7's inner part): (n, channels, h, w), in 0..2^L -
    1.
    """
    flat = _flat(counts, parameters.depth)
    weights = 2.0 ** np.arange(parameters.depth - 1, -1, -1)
    table = (_table_for(counts, parameters) * weights[:, None]).astype(np.float32)
    out = np.empty((len(flat), flat.shape[3]), np.float32)
    _each(_means, flat, table, out, n_jobs)
    return out.reshape(*counts.shape[:2], *counts.shape[-2:]) if counts.ndim == 6 else out


def pixel_mean_by_enumeration(of_one: ArrayLike) -> float:
    """Equations 6 and 7 as printed, for one pixel: the sum over all 2^L values d of d Pr(x = d)."""
    bits = np.asarray(of_one, np.float64)
    total = 0.0
    for d in range(2**bits.size):
        binary = [(d >> (bits.size - 1 - j)) & 1 for j in range(bits.size)]
        total += d * float(np.prod([p if b else 1 - p for b, p in zip(binary, bits, strict=True)]))
    return total
