"""Discrete Gaussian noise of any width, fast: a sum of small ones at powers of three.

A discrete Gaussian of variance S0 = 41 is read from a table of cumulative probabilities of 256
bits. The noise is z_0 + 3 z_1 + 9 z_2 + ... with J of these, and is nearly the discrete Gaussian of
variance S0 (9^J - 1)/8. How nearly follows from Poisson's summation: for s >= 2 and any shift x

    sum over m in Z of exp(-(m - x)^2 / (2 s^2)) = s sqrt(2 pi) (1 + e),  |e| <= 2.1 exp(-2 pi^2
    s^2).

- *Convolution.* Given z = a + 3^j b with independent discrete Gaussians a (variance A = S0 (9^j -
  1)/8) and b (variance S0), the terms of Pr(z) are a Gaussian in b of variance 1/(1/S0 + 9^j/A) >=
  4.1, so Pr(z) is the discrete Gaussian's up to a factor within exp(+- 2^-114), and the levels
  after the first add less than a thousandth of that.
- *Table.* Values beyond +-160 (probability below 2^-440) are left out and each probability is
  rounded to 2^-256: the statistical distance of one value is below 2^-247.

A vector of a thousand million values is thus within a factor exp(+- 1e-25) of its stated law but
for events of probability 1e-64: what `DiscreteGaussian.mu` adds for it is larger by far.
"""

from __future__ import annotations

import bisect
import math
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter
from blindsight.privacy.entropy import Rng, words

__all__ = ["BASE_VARIANCE", "MOST_LEVELS", "convolved_gaussian", "levels_for", "width"]

BASE_VARIANCE = 41
MOST_LEVELS = 28  # 3^28 x 160 stays below 2^52
_REACH = 160
_MORE = 192  # bits behind the first 64
_BLOCK = 1 << 18


def width(levels: int) -> float:
    """The standard deviation, in steps, of a sum of so many levels."""
    if not 1 <= levels <= MOST_LEVELS:
        raise InvalidParameter(f"levels must be 1 to {MOST_LEVELS}, got {levels}.")
    return math.sqrt(BASE_VARIANCE * (9**levels - 1) / 8)


def levels_for(steps: float) -> int:
    """The fewest levels whose noise is at least so many steps wide."""
    for levels in range(1, MOST_LEVELS + 1):
        if width(levels) >= steps:
            return levels
    raise InvalidParameter(
        f"noise of {steps:.3g} steps is too wide for the sampler; use a coarser grid."
    )


def convolved_gaussian(levels: int, size: int, *, rng: Rng) -> NDArray[np.int64]:
    """`size` integers of the discrete Gaussian with standard deviation `width(levels)`."""
    width(levels)
    result = np.empty(size, np.int64)
    powers = 3 ** np.arange(levels, dtype=np.int64)
    block = _BLOCK // levels
    for start in range(0, size, block):
        part = result[start : start + block]
        # All levels at once: a small vector then costs one look into the table, not one for each
        # level.
        part[:] = powers @ _from_table(levels * part.size, rng).reshape(levels, -1)
    return result


def _from_table(size: int, rng: Rng) -> NDArray[np.int64]:
    """The first value whose cumulative probability exceeds 256 random bits; 64 of them decide but
    for ties.
    """
    first, whole = _table()
    drawn = words(rng, size)
    row = np.searchsorted(first, drawn, side="right")
    for place in np.flatnonzero(np.searchsorted(first, drawn, side="left") != row):
        uniform = (int(drawn[place]) << _MORE) | int.from_bytes(rng.bytes(_MORE // 8), "big")
        row[place] = bisect.bisect_right(whole, uniform)
    return row.astype(np.int64) - _REACH


@lru_cache(maxsize=1)
def _table() -> tuple[NDArray[np.uint64], list[int]]:
    """Cumulative probabilities of -160 .. 159 in units of 2^-256: their first 64 bits, and
    whole.
    """
    with localcontext() as context:
        context.prec = 160
        mass = [(Decimal(-k * k) / (2 * BASE_VARIANCE)).exp() for k in range(-_REACH, _REACH + 1)]
        total, running, rows = sum(mass, Decimal(0)), Decimal(0), []
        for value in mass[:-1]:
            running += value
            rows.append(int(running / total * (1 << (64 + _MORE))))
    return np.array([row >> _MORE for row in rows], np.uint64), rows
