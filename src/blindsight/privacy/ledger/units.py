"""Conversion of a release's cost to the units of the accounts, and the refusals of charges.

Three conversions always hold; (epsilon, delta) is the stated cost.

*Add or remove one to replace one: twice.* Let D and D' be equal but for one record x that is y in
D'. Both differ from D without x by one record that was removed or added, so for every set S of
outputs P(M(D) in S) <= e^epsilon P(M(D - x) in S) + delta <= e^(2 epsilon) P(M(D') in S) + (1 +
e^epsilon) delta: group privacy for two (`Cost.per(times=2)`).

*Replace one to add or remove one: once, with the number of records public.* A guarantee under
"replace one" treats the number of records as public, so the record that is absent cannot be absent
from the count: it is a place that holds a fixed null record (a zero row, a record without a label).
Every mechanism takes a null record as a record, so D with x and D with the null record in x's place
are neighbours under "replace one", and P(M(D) in S) <= e^epsilon P(M(D with null) in S) + delta,
and the same the other way round (zero-out neighbours, Kairouz et al. 2021). An account under "add
or remove one" that was moved by such a charge therefore holds with the number of records public.

*Larger unit to smaller unit: as it is.* Whoever changes a pixel or a bit of a record changes the
record, and whoever changes a record changes its person's or its user's records: the neighbours of
the smaller unit are among those of the larger.

The other way, from the smaller to the larger, needs to know how many there are, and only the
release knows that: where it does not say, an account in a larger unit would go on as if nothing had
been released, so the charge is refused. A cost per "kappa pairs" supposes what an attacker does not
know and converts to no other unit, so it is refused where there are accounts per pair, record,
person or user that the release states no cost for.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from blindsight.core.errors import BudgetExceeded, InvalidParameter, LedgerError, UnitMismatch
from blindsight.privacy.cost import INSIDE, Cost, Neighbours
from blindsight.privacy.ledger.amounts import Amount, cost_amount, decimal_text
from blindsight.privacy.ledger.chain import Account, Entry

__all__ = [
    "check_paid",
    "dues",
    "listed_costs",
    "over_actor_limit",
    "overspent",
    "require_cost",
    "uncovered",
    "ungranted",
    "unit_mismatch",
]

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
    ("pair", "kappa pairs"): ("kappa", "kappa, the number of pairs that an attacker misses,"),
    ("query", "record"): ("most_queries_of_a_record", "the most queries that touch any one record"),
}


def listed_costs(costs: Any) -> tuple[Cost, ...]:
    """What one release costs in different units, as a tuple, or the refusal."""
    if isinstance(costs, Cost) or not isinstance(costs, Sequence) or isinstance(costs, str):
        return (require_cost("charge", costs),)
    listed = tuple(require_cost("charge", cost) for cost in costs)
    if not listed:
        raise InvalidParameter("charge takes at least one Cost, got none.")
    if len({(cost.unit, cost.neighbours) for cost in listed}) != len(listed):
        raise InvalidParameter(
            "costs must be what one release costs in different units; two of them are in the same "
            "one. Charge two releases by two calls."
        )
    return listed


def check_paid(paid: Sequence[Entry], due: Sequence[Cost], key: str) -> None:
    """Refuse a key that was charged before with other costs than those that are due now."""
    costs: dict[Account, Cost] = {(cost.unit, cost.neighbours): cost for cost in due}
    for entry in paid:
        cost = costs.get(entry.account)
        if cost is None or cost_amount(cost, entry.composition) != entry.amount:
            raise LedgerError(
                f"key {key!r} was charged at {entry.time[:19]} as {entry.amount} per {entry.unit}, "
                "and is now used for other costs; nothing was charged or released. Another release "
                "needs another key."
            )


def require_cost(verb: str, value: Any) -> Cost:
    """The value, where it is a cost; a guarantee is refused with how to get its cost."""
    if not isinstance(value, Cost):
        hint = " Pass its .cost." if isinstance(getattr(value, "cost", None), Cost) else ""
        raise InvalidParameter(f"{verb} takes a Cost, got {type(value).__name__}.{hint}")
    return value


def dues(costs: Sequence[Cost], accounts: Collection[Account]) -> list[Cost]:
    """Return the cost for each account: the stated one, or one by an always valid conversion."""
    stated: dict[Account, Cost] = {(cost.unit, cost.neighbours): cost for cost in costs}
    posted = [cost for account, cost in stated.items() if account in accounts]
    for unit, neighbours in sorted(set(accounts) - stated.keys()):
        # Only for a release that has an account in its own unit: otherwise the charge is refused
        # with an explanation of how to convert.
        wider = [cost for cost in costs if cost.unit in (unit, *INSIDE.get(unit, ()))]
        if stated.keys() & set(accounts) and wider:
            converted = [_under(cost, neighbours) for cost in wider]  # type: ignore[arg-type]
            least = min(converted, key=lambda cost: cost.epsilon)
            posted.append(dataclasses.replace(least, unit=unit))  # type: ignore[arg-type]
    return posted


def _under(cost: Cost, neighbours: Neighbours) -> Cost:
    """Return the cost under the other neighbour relation; see the module's docstring."""
    if cost.neighbours == neighbours:
        return cost
    if neighbours == "add or remove one":
        return dataclasses.replace(cost, neighbours=neighbours)
    return dataclasses.replace(cost.per(cost.unit, times=2), neighbours=neighbours)


def uncovered(
    costs: Sequence[Cost], posted: Sequence[Cost], dataset: str, accounts: Collection[Account]
) -> UnitMismatch | None:
    """Return the refusal of a release that states no cost for an account in a larger unit, or
    None.
    """
    spoken = {cost.unit for cost in posted}
    supposing = any(cost.unit == "kappa pairs" and cost.epsilon > 0 for cost in costs)
    for unit, _ in sorted(accounts):
        if supposing and unit in ("pair", "record", "person", "user") and unit not in spoken:
            return UnitMismatch(
                f"data set {dataset!r} has a budget per {unit} too, and this release states its "
                "cost per kappa pairs, which supposes what an attacker does not know and does not "
                f"convert; nothing was charged. State its cost per {unit} as well: the cost per "
                f"pair times the most pairs that any one {unit} is in."
            )
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
                f"what it costs per {unit}; nothing was charged. It is {words} times its cost per "
                f"{smaller[0].unit}, charged together: "
                f"ledger.charge((cost, cost.per({unit!r}, times={name})), what=...)."
                + (" For photos, say whose they are: --person." if unit == "person" else "")
            )
    return None


def unit_mismatch(cost: Cost, dataset: str, accounts: Collection[Account]) -> UnitMismatch:
    """A cost in a unit that has no budget, on a data set that has one in another."""
    granted = " and ".join(f"per {unit} ({neighbours})" for unit, neighbours in sorted(accounts))
    sentence = (
        f"the cost is per {cost.unit} ({cost.neighbours}), but data set {dataset!r} has a budget "
        f"{granted}; nothing was charged. "
    )
    hints = [_hint(cost, unit, neighbours) for unit, neighbours in sorted(accounts)]
    return UnitMismatch(sentence + " ".join(dict.fromkeys(hints)))


def _hint(cost: Cost, unit: str, neighbours: str) -> str:
    if cost.unit == unit:
        return _neighbours_hint(cost, unit)
    if cost.unit == "kappa pairs":
        return (
            "A cost per kappa pairs assumes what an attacker knows and does not convert: take the "
            f"cost per pair and multiply it by the most pairs any one {unit} is in."
        )
    conversion = TIMES.get((cost.unit, unit))
    if conversion is None:
        return (
            f"A cost per {cost.unit} has no conversion to {unit}: grant a budget per {cost.unit} "
            "of its own."
        )
    name, words = conversion
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
        "The data set has no budget under 'replace one', in which this release is stated: "
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
        needs, available = f"ρ = {amount.rho:.6g}", f"ρ = {remaining.rho:.6g}"
    else:
        needs, available = str(amount), str(remaining)
    return BudgetExceeded(
        f"this needs {needs} {per}, but data set {dataset!r} has {available} left; nothing was "
        "charged or released. Use a smaller epsilon, or ask the owner to raise the budget."
    )


def over_actor_limit(entry: Entry, *, allowed: int, spent: int) -> BudgetExceeded:
    """A charge that would exceed what its actor may spend in this account, in micro-epsilons."""
    return BudgetExceeded(
        f"this needs ε = {decimal_text(entry.micro_epsilon)} per {entry.unit} "
        f"({entry.neighbours}), but {entry.actor!r} may spend ε = {decimal_text(allowed)} of data "
        f"set {entry.dataset!r} and has spent ε = {decimal_text(spent)}; nothing was "
        "charged or released. Use a smaller epsilon, or ask the owner to raise this person's "
        "spending limit."
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
        f"first: blindsight budget grant --ledger {shlex.quote(where)} --dataset "
        f"{shlex.quote(dataset)} "
        f"--epsilon {cost.epsilon:g}{options} (in Python: ledger.grant(Cost(epsilon="
        f"{cost.epsilon:g}, unit={cost.unit!r}, neighbours={cost.neighbours!r})))"
    )
