"""Exact samplers on integers: no floating point between the dice and the noise.

The discrete Laplace and Gaussian of Canonne, Kamath and Steinke (2020), vectorised. Parameters are fractions, every
decision is the comparison of a uniform integer with an integer, so the output has the stated distribution exactly,
whatever the dice are, and tells nothing through its low bits.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter
from blindsight.privacy.entropy import Rng

__all__ = ["discrete_gaussian", "discrete_laplace", "fraction_above"]


def fraction_above(value: float) -> Fraction:
    """The least fraction of at least `value` that the samplers can take (nine digits): rounds toward privacy."""
    if not 0 < value < 2**30:
        raise InvalidParameter(
            f"the exact samplers take a noise scale below 2^30 grid steps, got {value:.4g}; use a coarser grid."
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
        raise InvalidParameter(f"scale must be a fraction of 31-bit integers, got {scale}; see fraction_above.")
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


def _geometric(top: int, bottom: int, size: int, rng: Rng) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A draw of Geometric(1 - exp(-bottom/top)) for each element, and which of them were accepted."""
    offset = _below(top, size, rng)
    accepted = _unit_exp(offset, top, rng)
    turns = np.zeros(size, np.int64)
    alive = np.flatnonzero(accepted)
    while alive.size:
        alive = alive[_unit_exp(np.full(alive.size, 1, np.int64), 1, rng)]
        turns[alive] += 1
    return (offset + top * turns) // bottom, accepted


def discrete_gaussian(variance: Fraction, size: int, *, rng: Rng) -> NDArray[np.int64]:
    """Integers with Pr(z) proportional to exp(-z^2 / (2 variance)), by rejection from a discrete Laplace."""
    if variance <= 0:
        raise InvalidParameter(f"variance must be above 0, got {variance}.")
    scale = int(np.floor(np.sqrt(float(variance)))) + 1
    result = np.empty(size, np.int64)
    todo = np.arange(size)
    while todo.size:
        proposal = discrete_laplace(Fraction(scale), todo.size, rng=rng)
        accepted = _accept_gaussian(np.abs(proposal), variance, scale, rng)
        result[todo[accepted]] = proposal[accepted]
        todo = todo[~accepted]
    return result


def _accept_gaussian(size: NDArray[np.int64], variance: Fraction, scale: int, rng: Rng) -> NDArray[np.bool_]:
    """True with probability exp(-(|z| - variance/scale)^2 / (2 variance)).

    With variance = a/b and scale = t the exponent is (|z| t b - a)^2 / (2 a b t^2), a ratio of integers that may
    outgrow 64 bits; Python's integers take it, once for each distinct |z|.
    """
    a, b, t = variance.numerator, variance.denominator, scale
    bottom = 2 * a * b * t * t
    accepted = np.empty(size.shape, np.bool_)
    for value in np.unique(size):
        where = np.flatnonzero(size == value)
        top = (int(value) * t * b - a) ** 2
        accepted[where] = _bernoulli_exp_big(top, bottom, where.size, rng)
    return accepted


def _bernoulli_exp_big(top: int, bottom: int, size: int, rng: Rng) -> NDArray[np.bool_]:
    """True with probability exp(-top/bottom), for one ratio of integers of any length and size."""
    ones, rest = divmod(top, bottom)
    result = np.ones(size, np.bool_)
    alive = np.arange(size)
    for _ in range(ones):
        stays = _unit_exp(np.ones(alive.size, np.int64), 1, rng)
        result[alive[~stays]] = False
        alive = alive[stays]
        if not alive.size:
            return result
    if rest:
        odd = np.ones(alive.size, np.bool_)
        going, k = np.arange(alive.size), 1
        while going.size:
            going = going[_less(rest, bottom * k, going.size, rng)]
            odd[going] = ~odd[going]
            k += 1
        result[alive[~odd]] = False
    return result


def _less(top: int, bottom: int, size: int, rng: Rng) -> NDArray[np.bool_]:
    """Bernoulli(top/bottom) for integers of any length: compare binary digits of a uniform with those of top/bottom."""
    undecided = np.arange(size)
    result = np.zeros(size, np.bool_)
    rest = top
    while undecided.size:
        # The next 32 binary digits of top/bottom against 32 random ones; equal digits go on to the next block.
        digits, rest = divmod(rest << 32, bottom)
        drawn = _below(2**32, undecided.size, rng)
        result[undecided[drawn < digits]] = True
        undecided = undecided[drawn == digits]
        if rest == 0:  # the remaining digits are zeros: a uniform is never below them
            break
    return result
