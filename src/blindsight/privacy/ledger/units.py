"""What a release takes from an account in another unit than it is stated in, and refusals that say
what to do.

Two conversions always hold. Replacing one is removing one and adding one, so a cost under "add or
remove one" counts twice under "replace one". And whoever changes a pixel or a bit of a record
changes the record, and whoever changes a record changes its person's or its user's records: what
bounds the larger bounds the smaller, as it is. The other way, from the smaller to the larger, needs
to know how many there are, and only the release knows that: where it does not say, an account in a
larger unit would go on as if nothing had been released, so the charge is refused.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence

from blindsight.core.errors import BudgetExceeded, UnitMismatch
from blindsight.privacy.cost import INSIDE, Cost
from blindsight.privacy.ledger.amounts import Amount
from blindsight.privacy.ledger.chain import Account, Entry

__all__ = ["dues", "overspent", "uncovered", "ungranted", "unit_mismatch"]

# (from, to): how often the larger unit holds the smaller one.
TIMES = {
    ("pair", "record"): ("most_pairs_of_a_record", "the most pairs that any one record is in"),
    ("bit", "record"): ("n_bits", "the number of bits in a record's code"),
    ("pixel", "record"): ("n_pixels", "the number of pixels in an image"),
    ("pair", "user"): ("most_pairs_of_a_user", "the most pairs that any one user's records are in"),
    ("bit", "user"): ("most_bits_of_a_user", "the most bits in all codes of one user"),
    ("pixel", "user"): ("most_pixels_of_a_user", "the most pixels in all images of one user"),
    ("record", "user"): ("most_records_of_a_user", "the most records that any one user has"),
    ("query", "user"): ("most_queries_of_a_user", "the most queries that touch any one user"),
    ("record", "person"): ("most_records_of_a_person", "the most records that any one person has"),
    ("pair", "person"): (
        "most_pairs_of_a_person",
        "the most pairs that any one person's records are in",
    ),
    ("bit", "person"): ("most_bits_of_a_person", "the most bits in all codes of one person"),
    ("pixel", "person"): ("most_pixels_of_a_person", "the most pixels in all images of one person"),
    ("query", "person"): ("most_queries_of_a_person", "the most queries that touch any one person"),
    ("query", "record"): ("most_queries_of_a_record", "the most queries that touch any one record"),
}


def dues(costs: Sequence[Cost], accounts: Collection[Account]) -> list[Cost]:
    """What a release takes from each of the accounts: as stated where it is, else by a conversion
    that always holds.
    """
    stated: dict[Account, Cost] = {(cost.unit, cost.neighbours): cost for cost in costs}
    posted = [cost for account, cost in stated.items() if account in accounts]
    for unit, neighbours in sorted(set(accounts) - stated.keys()):
        # Only of a release that has an account of its own: otherwise its owner is told how to
        # convert.
        wider = [cost for cost in costs if cost.unit in (unit, *INSIDE.get(unit, ()))]
        if posted and wider and neighbours == "replace one":
            least = min(map(_replaced, wider), key=lambda cost: cost.epsilon)
            posted.append(dataclasses.replace(least, unit=unit))  # type: ignore[arg-type]
    return posted


def _replaced(cost: Cost) -> Cost:
    if cost.neighbours == "replace one":
        return cost
    return dataclasses.replace(cost.per(cost.unit, times=2), neighbours="replace one")


def uncovered(
    costs: Sequence[Cost], posted: Sequence[Cost], dataset: str, accounts: Collection[Account]
) -> UnitMismatch | None:
    """The refusal of a release that says nothing for an account in a larger unit; None where there
    is no such.
    """
    spoken = {cost.unit for cost in posted}
    for unit, _ in sorted(accounts):
        # An image that is asked about is no record of the data set.
        smaller = [
            cost
            for cost in costs
            if (cost.unit, unit) in TIMES and cost.unit != "query" and cost.epsilon > 0
        ]
        if unit not in spoken and smaller:
            name, words = TIMES[smaller[0].unit, unit]
            return UnitMismatch(
                f"data set {dataset!r} has a budget per {unit} too, and this release does not say "
                "what it costs per "
                f"{unit}; nothing was charged. It is {words} times its cost per {smaller[0].unit}, "
                "charged together: "
                f"ledger.charge((cost, cost.per({unit!r}, times={name})), what=...)."
                + (" For photos, say whose they are: --person." if unit == "person" else "")
            )
    return None


def unit_mismatch(cost: Cost, dataset: str, accounts: Collection[Account]) -> UnitMismatch:
    """A cost in a unit that has no budget, on a data set that has one in another."""
    granted = " and ".join(f"per {unit} ({neighbours})" for unit, neighbours in sorted(accounts))
    sentence = (
        f"the cost is per {cost.unit} ({cost.neighbours}), but data set {dataset!r} has a budget "
        f"{granted}; "
        "nothing was charged. "
    )
    hints = [_hint(cost, unit, neighbours) for unit, neighbours in sorted(accounts)]
    return UnitMismatch(sentence + " ".join(dict.fromkeys(hints)))


def _hint(cost: Cost, unit: str, neighbours: str) -> str:
    if cost.unit == unit:
        return _neighbours_hint(cost, unit)
    if cost.unit == "kappa pairs":
        return (
            "A cost per kappa pairs assumes what an attacker knows and does not convert: take the "
            "cost per pair and "
            f"multiply it by the most pairs any one {unit} is in."
        )
    known = TIMES.get((cost.unit, unit))
    if known is None:
        return (
            f"A cost per {cost.unit} has no conversion to {unit}: grant a budget per {cost.unit} "
            "of its own."
        )
    name, words = known
    then = "" if cost.neighbours == neighbours else " " + _neighbours_hint(cost, unit)
    return (
        f"To convert it, multiply by {words}: ledger.charge(cost.per({unit!r}, times={name}), "
        f"what=...).{then}"
    )


def _neighbours_hint(cost: Cost, unit: str) -> str:
    if cost.neighbours == "add or remove one":
        return (
            "Replacing one is removing one and adding one, so it costs twice: "
            f"dataclasses.replace(cost.per({unit!r}, times=2), neighbours='replace one')."
        )
    return (
        "A cost under 'replace one' says nothing about adding or removing one: "
        f"grant a budget per {unit} under 'replace one'."
    )


def overspent(amount: Amount, *, cost: Cost, before: Entry) -> BudgetExceeded:
    """A cost that is larger than what its account has left."""
    per, dataset = f"per {cost.unit} ({cost.neighbours})", before.dataset
    if before.kind == "close":
        return BudgetExceeded(
            f"the budget of data set {dataset!r} {per} is closed; nothing was charged or released."
        )
    remaining = before.budget - before.spent
    if before.composition == "zcdp":
        needs, left = f"ρ = {amount.rho:.6g}", f"ρ = {remaining.rho:.6g}"
    else:
        needs, left = str(amount), str(remaining)
    return BudgetExceeded(
        f"this needs {needs} {per}, but data set {dataset!r} has {left} left; nothing was charged "
        "or released. "
        "Spend less, or have its keeper grant more."
    )


def ungranted(cost: Cost, dataset: str, where: str) -> BudgetExceeded:
    """A charge to a data set that nobody has granted a budget."""
    options = "" if cost.unit == "record" else f" --unit {shlex.quote(cost.unit)}"
    options += (
        "" if cost.neighbours == "replace one" else f" --neighbours {shlex.quote(cost.neighbours)}"
    )
    options += f" --delta {cost.delta:g}" if cost.delta else ""
    return BudgetExceeded(
        f"data set {dataset!r} has no budget yet; nothing was charged or released. Grant one "
        "first: "
        f"ledger.grant(Cost(epsilon=..., unit={cost.unit!r}, neighbours={cost.neighbours!r})), or "
        f"blindsight ledger grant --ledger {shlex.quote(where)} --dataset {shlex.quote(dataset)} "
        f"--epsilon {cost.epsilon:g}{options}"
    )
