"""Refusals that say what to do: which conversion turns this cost into the budget's unit."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from blindsight.core.errors import BudgetExceeded, UnitMismatch
from blindsight.privacy.cost import Cost
from blindsight.privacy.ledger.amounts import Amount
from blindsight.privacy.ledger.chain import Entry

__all__ = ["overspent", "ungranted", "unit_mismatch"]

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
    ("pair", "person"): ("most_pairs_of_a_person", "the most pairs that any one person's records are in"),
    ("bit", "person"): ("most_bits_of_a_person", "the most bits in all codes of one person"),
    ("pixel", "person"): ("most_pixels_of_a_person", "the most pixels in all images of one person"),
    ("query", "person"): ("most_queries_of_a_person", "the most queries that touch any one person"),
    ("query", "record"): ("most_queries_of_a_record", "the most queries that touch any one record"),
}


def unit_mismatch(cost: Cost, dataset: str, accounts: Collection[tuple[str, str]]) -> UnitMismatch:
    """A cost in a unit that has no budget, on a data set that has one in another."""
    granted = " and ".join(f"per {unit} ({neighbours})" for unit, neighbours in sorted(accounts))
    sentence = (
        f"the cost is per {cost.unit} ({cost.neighbours}), but data set {dataset!r} has a budget {granted}; "
        "nothing was charged. "
    )
    hints = [_hint(cost, unit, neighbours) for unit, neighbours in sorted(accounts)]
    return UnitMismatch(sentence + " ".join(dict.fromkeys(hints)))


def _hint(cost: Cost, unit: str, neighbours: str) -> str:
    if cost.unit == unit:
        return _neighbours_hint(cost, unit)
    if cost.unit == "kappa pairs":
        return (
            "A cost per kappa pairs assumes what an attacker knows and does not convert: take the cost per pair and "
            f"multiply it by the most pairs any one {unit} is in."
        )
    known = TIMES.get((cost.unit, unit))
    if known is None:
        return f"A cost per {cost.unit} has no conversion to {unit}: grant a budget per {cost.unit} of its own."
    name, words = known
    then = "" if cost.neighbours == neighbours else " " + _neighbours_hint(cost, unit)
    return f"To convert it, multiply by {words}: ledger.charge(cost.per({unit!r}, times={name}), what=...).{then}"


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
        return BudgetExceeded(f"the budget of data set {dataset!r} {per} is closed; nothing was charged or released.")
    remaining = before.budget - before.spent
    if before.composition == "zcdp":
        needs, left = f"ρ = {amount.rho:.6g}", f"ρ = {remaining.rho:.6g}"
    else:
        needs, left = str(amount), str(remaining)
    return BudgetExceeded(
        f"this needs {needs} {per}, but data set {dataset!r} has {left} left; nothing was charged or released. "
        "Spend less, or have its keeper grant more."
    )


def ungranted(cost: Cost, dataset: str, where: str) -> BudgetExceeded:
    """A charge to a data set that nobody has granted a budget."""
    options = "" if cost.unit == "record" else f" --unit {shlex.quote(cost.unit)}"
    options += "" if cost.neighbours == "replace one" else f" --neighbours {shlex.quote(cost.neighbours)}"
    options += f" --delta {cost.delta:g}" if cost.delta else ""
    return BudgetExceeded(
        f"data set {dataset!r} has no budget yet; nothing was charged or released. Grant one first: "
        f"ledger.grant(Cost(epsilon=..., unit={cost.unit!r}, neighbours={cost.neighbours!r})), or "
        f"blindsight ledger grant --ledger {shlex.quote(where)} --dataset {shlex.quote(dataset)} "
        f"--epsilon {cost.epsilon:g}{options}"
    )
