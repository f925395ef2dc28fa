"""What a protection without an epsilon gives away: who sees what, and what an attack recovered of
it.

Encryption and sketches make no differential-privacy promise, so they carry a `Disclosure` instead
of a `Guarantee`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["Disclosure", "Recovery"]

FORMAT = "blindsight disclosure card 2"


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One attack's result: what it tried, how well it did, in which measure, and what chance would
    give.
    """

    attack: str
    measure: str
    value: float
    chance: float | None = None

    def __str__(self) -> str:
        chance = "" if self.chance is None else f" (chance {self.chance:.3g})"
        return f"{self.attack}: {self.measure} {self.value:.4g}{chance}"


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """Who sees what under a protection that carries no epsilon.

    Parameters:
        method: the protection, in a few words.
        sees: (who, what) rows, one per party.
        recovered: what attacks got back.
        verdict: one plain sentence a person can act on.
        assumptions: what must hold, in words.

    Examples:
        >>> seen = Disclosure(
        ...     method="encrypted updates",
        ...     sees=(("aggregator", "the sum of all updates"), ("other site", "nothing")),
        ...     verdict="With two sites, each can subtract its own update from the sum.",
        ... )
        >>> print(seen.card())
        DISCLOSURE CARD
          method           encrypted updates
          aggregator sees  the sum of all updates
          other site sees  nothing
          epsilon          none claimed
          assumptions      none
          verdict          With two sites, each can subtract its own update from the sum.
    """

    method: str
    sees: tuple[tuple[str, str], ...]
    recovered: tuple[Recovery, ...] = ()
    verdict: str = ""
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.method or not self.sees:
            raise InvalidParameter("a disclosure must name its method and say who sees what.")
        object.__setattr__(self, "sees", tuple((str(who), str(what)) for who, what in self.sees))
        object.__setattr__(self, "recovered", tuple(self.recovered))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))

    def with_recovery(self, *recovered: Recovery, verdict: str | None = None) -> Disclosure:
        """The same disclosure with further attacks' results."""
        return dataclasses.replace(
            self,
            recovered=self.recovered + recovered,
            verdict=self.verdict if verdict is None else verdict,
        )

    def rows(self) -> list[tuple[str, str]]:
        """(field, value) rows, the same shape as a guarantee's card."""
        return [
            ("method", self.method),
            *((f"{who} sees", what) for who, what in self.sees),
            ("epsilon", "none claimed"),
            ("assumptions", "; ".join(self.assumptions) or "none"),
            *(("recovered", str(recovery)) for recovery in self.recovered),
            ("verdict", self.verdict or "not attacked yet"),
        ]

    def card(self) -> str:
        """The card as plain text."""
        rows = self.rows()
        width = max(len(field) for field, _ in rows)
        return "\n".join(
            ["DISCLOSURE CARD", *(f"  {field:<{width}}  {value}" for field, value in rows)]
        )

    def to_json(self) -> str:
        """JSON text; `from_json` reads it back to an equal value."""
        return json.dumps(
            {"format": FORMAT, **dataclasses.asdict(self)}, ensure_ascii=False, indent=2
        )

    @classmethod
    def from_json(cls, text: str) -> Disclosure:
        """Read back what `to_json` wrote; anything else is refused."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise InvalidData(f"expected a {FORMAT!r}")
            fields["sees"] = tuple(tuple(row) for row in fields["sees"])
            fields["recovered"] = tuple(Recovery(**row) for row in fields.get("recovered", ()))
            fields["assumptions"] = tuple(fields.get("assumptions", ()))
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidData(f"not a disclosure: {error}.") from error
