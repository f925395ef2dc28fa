"""An exact sampler on integers: no floating point between the dice and the noise.

The discrete Laplace of Canonne, Kamath and Steinke (2020), vectorised. Parameters are fractions,
every decision is the comparison of a uniform integer with an integer, so the output has the stated
distribution exactly, whatever the dice are, and tells nothing through its low bits.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter
from blindsight.privacy.entropy import Rng

__all__ = ["discrete_laplace", "fraction_above"]


def fraction_above(value: float) -> Fraction:
    """The least fraction of at least `value` that the samplers can take (nine digits): rounds
    toward privacy.
    """
    if not 0 < value < 2**30:
        raise InvalidParameter(
            f"the exact samplers take a noise scale below 2^30 grid steps, got {value:.4g}; use a "
            "coarser grid."
        )
    shift = 30 - max(0, math.frexp(value)[1])
    return Fraction(math.ceil(Fraction(value) * (1 << shift)), 1 << shift)


def _below(bound: int, size: int, rng: Rng) -> NDArray[np.int64]:
    return np.asarray(rng.integers(0, bound, size=size, dtype=np.int64))


def _unit_exp(top: NDArray[np.int64], bottom: int, rng: Rng) -> NDArray[np.bool_]:
    """True with probability exp(-top/bottom), elementwise, for ratios in [0, 1].

    The first k at which Bernoulli(x/k) fails is odd with probability exp(-x).
    """
    odd = np.ones(top.shape, np.bool_)
    alive, k = np.arange(top.size), 1
    while alive.size:
        # Bernoulli(x/k) as Bernoulli(x) and Bernoulli(1/k) keeps the integers small.
        go_on = _below(bottom, alive.size, rng) < top[alive]
        if k > 1:
            go_on &= _below(k, alive.size, rng) == 0
        alive = alive[go_on]
        odd[alive] = ~odd[alive]
        k += 1
    return odd


def discrete_laplace(scale: Fraction, size: int, *, rng: Rng) -> NDArray[np.int64]:
    """Integers with Pr(z) proportional to exp(-|z| / scale)."""
    if scale <= 0:
        raise InvalidParameter(f"scale must be above 0, got {scale}.")
    top, bottom = scale.numerator, scale.denominator
    if max(top, bottom) > 2**31:
        raise InvalidParameter(
            f"scale must be a fraction of 31-bit integers, got {scale}; see fraction_above."
        )
    result = np.empty(size, np.int64)
    todo = np.arange(size)
    while todo.size:
        value, fine = _geometric(top, bottom, todo.size, rng)
        negative = _below(2, todo.size, rng) == 1
        # Zero would be counted twice (as +0 and as -0).
        fine &= ~(negative & (value == 0))
        result[todo[fine]] = np.where(negative, -value, value)[fine]
        todo = todo[~fine]
    return result


def _geometric(
    top: int, bottom: int, size: int, rng: Rng
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A draw of Geometric(1 - exp(-bottom/top)) for each element, and which of them were
    accepted.
    """
    offset = _below(top, size, rng)
    accepted = _unit_exp(offset, top, rng)
    turns = np.zeros(size, np.int64)
    alive = np.flatnonzero(accepted)
    while alive.size:
        alive = alive[_unit_exp(np.full(alive.size, 1, np.int64), 1, rng)]
        turns[alive] += 1
    return (offset + top * turns) // bottom, accepted
