"""Accounts that count in zero-concentrated differential privacy (zCDP), and what their rho is worth
in epsilon.

A release is rho-zCDP if its Renyi divergence of every order alpha > 1 is at most alpha * rho (Bun
and Steinke 2016). A Gaussian of noise multiplier s is 1/(2 s^2)-zCDP; a pure epsilon is
epsilon^2/2-zCDP (their Proposition 1.4).

Why an account may add up rho although each release is chosen after seeing the ones before: a
*privacy filter*. Feldman and Zrnic (2021, Theorem 4.3) prove for Renyi divergence of a fixed order,
and Whitehouse, Ramdas, Rogers and Wu (2023, Theorem 1) for zCDP itself, that a sequence stopped
before its parameters add up to more than rho, all of them chosen adaptively, is rho-zCDP as a
whole. Refusing a charge that would overflow is exactly this stopping rule. Nothing is lost against
a sequence that was fixed beforehand.

The total is turned into (epsilon, delta) once, at the grant, by the bound of Canonne, Kamath and
Steinke (2020, Proposition 12): epsilon = alpha rho + ln(1/(alpha delta))/(alpha - 1) + ln(1 -
1/alpha) for any alpha > 1. Every alpha gives a true statement, so the search for the best one may
be as rough as it likes.
"""

from __future__ import annotations

import math
from fractions import Fraction

from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.privacy.cost import Cost

__all__ = ["epsilon_of", "largest_rho", "rho_of"]

_ROUNDING = 1e-12  # floating point's share, taken off a budget and put on a cost


def rho_of(cost: Cost) -> Fraction:
    """A release's zCDP parameter, exactly as stated; `NotProven` where an (epsilon, delta) says
    nothing about it.
    """
    rho = cost.rho
    if rho is not None:
        if not math.isfinite(rho):
            raise NotProven("this release has no proven rho (it is inf); nothing was charged.")
        return Fraction(repr(float(rho)))
    if cost.delta == 0:
        return Fraction(repr(cost.epsilon)) ** 2 / 2
    raise NotProven(
        f"this budget per {cost.unit} counts in zCDP, and an epsilon with a delta says nothing "
        "about rho; nothing was "
        "charged. Charge a cost that states its rho (Gaussian noise has one), or grant a budget "
        "with "
        'composition="basic".'
    )


def epsilon_of(rho: float, delta: float) -> float:
    """The epsilon that rho-zCDP proves at this delta, rounded up."""
    if rho <= 0:
        return 0.0
    if not 0 < delta < 1:
        return math.inf

    def bound(shift: float) -> float:
        alpha = 1 + math.exp(shift)
        return alpha * rho - math.log(alpha * delta) / (alpha - 1) + math.log1p(-1 / alpha)

    low, high = -20.0, 40.0
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if bound(left) < bound(right):
            high = right
        else:
            low = left
    return max(0.0, bound((low + high) / 2)) * (1 + _ROUNDING)


def largest_rho(epsilon: float, delta: float) -> float:
    """The largest rho that proves (epsilon, delta), rounded down."""
    if not 0 < delta < 1:
        raise InvalidParameter(
            'a budget with composition="zcdp" needs a delta above 0: rho-zCDP proves an epsilon '
            "only up to one."
        )
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        high *= 2
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low * (1 - _ROUNDING)
