"""What will be released, said before any private value is seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter, NotProven
from blindsight.privacy.cost import build
from blindsight.privacy.mechanisms import Mechanism, from_fields, to_fields

__all__ = ["Plan", "Planned", "plan_from_fields", "plan_to_fields"]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One kind of release and how often it happens.

    Parameters:
        what: what is released, in a word or two ("label counts"); the door knows the release by it.
        mechanism: how. Its sensitivity is that of a whole unit, with all `group` rows of it in the
            sum.
        count: how often it is released about the same unit.
        group: how many rows (pairs, photos) of one unit may be in the sum.
        parts: rows are dealt to so many parts by public facts, and each release is about one of
            them: `count` is how often one unit is touched, and as many as count x parts releases
            may pass.
        change: how far a unit moves the sum at most, in bounds of its rows. None: 2 where a unit
            is replaced (its old rows leave, new ones come), 1 where it is added or removed. A
            replaced label that moves a row to other coordinates of the sum moves it by root 2.

    Examples:
        >>> from blindsight.privacy.mechanisms import Laplace
        >>> noise = Laplace(scale=2.0, sensitivity=1.0, unit="record")
        >>> print(Planned(what="label counts", mechanism=noise, count=3))
        label counts: Laplace noise of scale 2, 3 times
    """

    what: str
    mechanism: Mechanism
    count: int = 1
    group: int = 1
    parts: int = 1
    change: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.what, str) or not self.what.strip():
            raise InvalidParameter(f"what must say what is released, got {self.what!r}.")
        if not isinstance(self.mechanism, Mechanism):
            raise InvalidParameter(
                "mechanism must have unit, neighbours, cost, domain, release, log_prob and "
                "worst_pair, "
                f"got {type(self.mechanism).__name__}."
            )
        checks.whole("count", self.count)
        checks.whole("group", self.group)
        checks.whole("parts", self.parts)
        if self.change is not None and not 1 <= checks.number("change", self.change) <= 2:
            raise InvalidParameter(f"change must be between 1 and 2, got {self.change}.")

    @property
    def row_bound(self) -> float:
        """How large one row may be, in the mechanism's norm, so that a unit stays within the
        sensitivity.
        """
        times = self.change
        if times is None:
            times = 2 if self.mechanism.neighbours == "replace one" else 1
        return self.mechanism.domain.reach / (self.group * times)

    def __str__(self) -> str:
        often = f", {self.count:,} times" if self.count > 1 else ""
        rows = f", up to {self.group} rows per {self.mechanism.unit}" if self.group > 1 else ""
        parts = f", on {self.parts:,} disjoint parts" if self.parts > 1 else ""
        return f"{self.what}: {self.mechanism.says}{often}{rows}{parts}"


Plan: TypeAlias = tuple[Planned, ...]


def plan_to_fields(plan: Iterable[Planned]) -> list[dict[str, Any]]:
    """Plain values for JSON."""
    return [
        {
            "what": item.what,
            "mechanism": to_fields(item.mechanism),
            "count": item.count,
            "rate": 1.0,  # required by the card's format; this version never samples records
            "group": item.group,
            "parts": item.parts,
            **({} if item.change is None else {"change": item.change}),
        }
        for item in plan
    ]


def plan_from_fields(fields: Any) -> Plan:
    """The inverse of `plan_to_fields`; anything else is refused."""
    if not isinstance(fields, list):
        raise InvalidData(f"releases must be a list, got {type(fields).__name__}.")
    for item in fields:
        if not isinstance(item, dict):
            raise InvalidData(f"a release must be a JSON object, got {type(item).__name__}.")
        if item.get("rate", 1.0) != 1.0:
            raise NotProven(
                f"a release samples its records with probability {item['rate']!r}; expected 1: "
                "sampled releases are not accounted for."
            )
    return tuple(
        build(
            Planned,
            {
                **{name: value for name, value in item.items() if name != "rate"},
                "mechanism": from_fields(item.get("mechanism")),
            },
        )
        for item in fields
    )
