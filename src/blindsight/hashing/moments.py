"""Sums over clipped rows: what PITQ and the codebook learn from, with noise through the door where
rows are private.

Neighbours replace one row. Rows have norm at most B, so that a replaced row moves
- the sum of rows by at most 2 B,
- the second moment, sum of y y', by at most sqrt(2) B^2 in Frobenius norm (|yy' - zz'|^2 <= 2 B^4),
- a cross moment U'V, sum of u v' with |u| <= A and |v| <= B, by at most 2 A B,
- the sums of clusters by at most 2 B, and their counts by at most sqrt(2). All noise is Gaussian on
  a grid. Gaussian releases of mu_i (sensitivity over noise) compose exactly to one with mu^2 = sum
  of mu_i^2, so a budget is handed out in shares of mu^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core.arrays import Array, Floats
from blindsight.privacy import Plan, Planned
from blindsight.privacy.accounting import price
from blindsight.privacy.door import FILLED, Outer, added
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian

__all__ = ["NoNoise", "Share", "Sums", "cross", "mean", "plan_for", "second"]


@dataclass(frozen=True)
class Share:
    """One kind of release: what, its share of the budget over all its times, its sensitivity and
    its coordinates.
    """

    what: str
    share: float
    sensitivity: float
    dimensions: int
    count: int = 1


class Sums(Protocol):
    """Where sums leave: a door, or `NoNoise` for rows that are public."""

    def release(self, what: str, value: ArrayLike) -> Array:
        """The value, noisy."""

    def total(self, what: str, rows: ArrayLike | Outer) -> Array:
        """The sum of clipped rows, noisy."""


class NoNoise:
    """Sums of public rows: nothing to hide, nothing to clip."""

    def release(self, what: str, value: ArrayLike) -> Array:
        return np.asarray(value)

    def total(self, what: str, rows: ArrayLike | Outer) -> Array:
        return (
            rows.left.T @ rows.right
            if isinstance(rows, Outer)
            else np.asarray(rows).sum(axis=0, dtype=np.float64)
        )


def plan_for(shares: Sequence[Share], *, epsilon: float, delta: float) -> Plan:
    """Discrete Gaussian releases that together cost at most (epsilon, delta) per record."""
    return _plan_for(tuple(shares), epsilon, delta)


@lru_cache(maxsize=64)  # asked for the promise, and again for the door
def _plan_for(shares: tuple[Share, ...], epsilon: float, delta: float) -> Plan:
    whole = Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="record").sigma

    def planned(sigma: float) -> Plan:
        return tuple(
            Planned(
                what=item.what,
                count=item.count,
                mechanism=DiscreteGaussian.fine(
                    sigma=sigma * math.sqrt(item.count / item.share) * item.sensitivity,
                    sensitivity=item.sensitivity,
                    dimensions=item.dimensions,
                    delta=delta,
                    unit="record",
                ),
            )
            for item in shares
        )

    plan = planned(whole)
    while price(plan, delta=delta).epsilon > epsilon:  # rounding to the grid costs a little
        whole *= 1.0005
        plan = planned(whole)
    return plan


def mean(X: Array, door: Sums) -> Floats:
    """The mean of rows; their number is public."""
    return door.total("mean", X) / len(X)


def second(X: Array, door: Sums, *, what: str = "second moment") -> Floats:
    """The sum of y y' over rows of norm at most the bound, symmetric: noise on the upper triangle,
    mirrored.
    """
    # A replaced row moves the sum by sqrt(2) B^2, less than `Door.total` supposes (2 B^2), so the
    # sum is made here, with the door's own slack for rounding: rows are a little shorter than their
    # bound, and blocks are added with their errors.
    rows = np.asarray(X, np.float64) * math.sqrt(FILLED)
    moment = added(np.ones(len(rows)), lambda chosen: rows[chosen].T @ rows[chosen])
    upper = np.triu_indices(len(moment))
    noisy = np.zeros_like(moment)
    noisy[upper] = door.release(what, moment[upper])
    return noisy + np.triu(noisy, 1).T


def cross(U: Array, V: Array, door: Sums, *, what: str = "cross moment") -> Floats:
    """U'V, each record's u v' clipped to the bound."""
    return door.total(what, Outer(U, V))
