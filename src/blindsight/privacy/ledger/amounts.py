"""Exact amounts: epsilon in millionths, delta in units of 1e-18, rho in units of 1e-12, all whole
numbers.

Ten charges of 0.1 must use up a budget of 1 and not a bit more, so nothing is added in floating
point. A float stands for the decimal number it prints as (0.1 is one tenth, not
0.1000000000000000055). What does not fit the grid is rounded toward privacy: costs up, budgets
down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.privacy.cost import Cost
from blindsight.privacy.ledger import zcdp

__all__ = [
    "ATTO",
    "LARGEST",
    "MICRO",
    "PICO",
    "Amount",
    "Composition",
    "budget_amount",
    "cost_amount",
]

Composition = Literal["basic", "zcdp"]

MICRO = 10**6  # micro-epsilons in one epsilon
ATTO = 10**18  # delta's units in a delta of one
PICO = 10**12  # pico-rhos in one rho
LARGEST = 2**63 - 1  # what an SQL BIGINT holds


@dataclass(frozen=True, order=False)
class Amount:
    """So much epsilon and delta, exactly; rho where an account counts in zCDP.

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
    whole, rest = divmod(abs(micro_epsilon), MICRO)
    return f"{sign}{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")


def cost_amount(cost: Cost, composition: Composition = "basic") -> Amount:
    """What a cost takes from the budget: rounded up. An infinite cost cannot be charged."""
    if math.isinf(cost.epsilon):
        raise NotProven(
            "this release has no proven epsilon (it is inf), so no budget can cover it; nothing "
            "was charged. "
            'Use calibration="proven", or make the release without a ledger and call it '
            "unprotected."
        )
    rho = math.ceil(zcdp.rho_of(cost) * PICO) if composition == "zcdp" else 0
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
    rho = math.floor(_exact(zcdp.largest_rho(plain.epsilon, plain.delta)) * PICO)
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
