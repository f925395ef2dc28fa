"""Exact amounts: epsilon in millionths, delta in units of 1e-18, rho in units of 1e-12, all whole
numbers.

Ten charges of 0.1 must use up a budget of 1 and not a bit more, so nothing is added in floating
point. A float stands for the decimal number it prints as (0.1 is one tenth, not
0.1000000000000000055). What does not fit the grid is rounded toward privacy: costs up, budgets
down.

An account may count in zero-concentrated differential privacy (zCDP). A release is rho-zCDP if its
Renyi divergence of every order alpha > 1 is at most alpha * rho (Bun and Steinke 2016). A Gaussian
of noise multiplier s is 1/(2 s^2)-zCDP; a pure epsilon is epsilon^2/2-zCDP (their Proposition 1.4).

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
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.privacy.cost import Cost

__all__ = [
    "ATTO",
    "LARGEST",
    "MICRO",
    "PICO",
    "Amount",
    "Composition",
    "budget_amount",
    "cost_amount",
    "epsilon_of",
    "largest_rho",
    "rho_of",
]

_ROUNDING = 1e-12  # a margin for floating point: subtracted from budgets, added to costs


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
        "about rho; nothing was charged. Charge a cost that states its rho (Gaussian noise has "
        'one), or grant a budget with composition="basic".'
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


Composition = Literal["basic", "zcdp"]

MICRO = 10**6  # micro-epsilons in one epsilon
ATTO = 10**18  # delta's units in a delta of one
PICO = 10**12  # pico-rhos in one rho
LARGEST = 2**63 - 1  # what an SQL BIGINT holds


@dataclass(frozen=True, order=False)
class Amount:
    """An exact amount of epsilon and delta, and of rho where an account counts in zCDP.

    Examples:
        >>> Amount(100_000, 0) + Amount(200_000, 0)
        Amount(micro_epsilon=300000, atto_delta=0, pico_rho=0)
        >>> (Amount(100_000, 0) + Amount(200_000, 0)).epsilon
        0.3
    """

    micro_epsilon: int
    atto_delta: int
    pico_rho: int = 0

    @property
    def epsilon(self) -> float:
        """Epsilon as the nearest float."""
        return self.micro_epsilon / MICRO

    @property
    def delta(self) -> float:
        """Delta as the nearest float."""
        return self.atto_delta / ATTO

    @property
    def rho(self) -> float:
        """Rho as the nearest float."""
        return self.pico_rho / PICO

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.micro_epsilon + other.micro_epsilon,
            self.atto_delta + other.atto_delta,
            self.pico_rho + other.pico_rho,
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.micro_epsilon - other.micro_epsilon,
            self.atto_delta - other.atto_delta,
            self.pico_rho - other.pico_rho,
        )

    def within(self, other: Amount, composition: Composition = "basic") -> bool:
        """Whether it is at most the other: both epsilon and delta, or rho where the account counts
        in that.
        """
        if composition == "zcdp":
            return self.pico_rho <= other.pico_rho
        return self.micro_epsilon <= other.micro_epsilon and self.atto_delta <= other.atto_delta

    def __str__(self) -> str:
        delta = f", δ = {self.delta:.6g}" if self.atto_delta else ""
        return f"ε = {decimal_text(self.micro_epsilon)}{delta}"


def decimal_text(micro_epsilon: int) -> str:
    """Micro-epsilons as an exact decimal number: 1500000 is "1.5"."""
    sign = "-" if micro_epsilon < 0 else ""
    units, rest = divmod(abs(micro_epsilon), MICRO)
    return f"{sign}{units:,}" + (f".{rest:06d}".rstrip("0") if rest else "")


def cost_amount(cost: Cost, composition: Composition = "basic") -> Amount:
    """What a cost takes from the budget: rounded up. An infinite cost cannot be charged."""
    if math.isinf(cost.epsilon):
        raise NotProven(
            "this release has no proven epsilon (it is inf), so no budget can cover it; nothing "
            'was charged. Use calibration="proven", or make the release without a ledger and call '
            "it unprotected."
        )
    rho = math.ceil(rho_of(cost) * PICO) if composition == "zcdp" else 0
    return _fitting(
        Amount(math.ceil(_exact(cost.epsilon) * MICRO), math.ceil(_exact(cost.delta) * ATTO), rho)
    )


def budget_amount(total: Cost, composition: Composition = "basic") -> Amount:
    """What a granted budget allows: rounded down. A budget is finite."""
    if math.isinf(total.epsilon):
        raise InvalidParameter("a budget's epsilon must be finite, got inf.")
    plain = _fitting(
        Amount(math.floor(_exact(total.epsilon) * MICRO), math.floor(_exact(total.delta) * ATTO))
    )
    if composition == "basic":
        return plain
    rho = math.floor(_exact(largest_rho(plain.epsilon, plain.delta)) * PICO)
    return _fitting(Amount(plain.micro_epsilon, plain.atto_delta, rho))


def _exact(value: float) -> Fraction:
    return Fraction(Decimal(repr(value)))


def _fitting(amount: Amount) -> Amount:
    # Deltas stay below one each; half the range leaves room to add a cost to a total without
    # overflow.
    if amount.micro_epsilon > LARGEST // 2:
        raise InvalidParameter(
            f"epsilon must be at most {LARGEST // 2 // MICRO:,} for the ledger, got "
            f"{amount.epsilon:.3g}."
        )
    if amount.pico_rho > LARGEST // 2:
        raise InvalidParameter(
            f"rho must be at most {LARGEST // 2 // PICO:,} for the ledger, got {amount.rho:.3g}."
        )
    return amount
