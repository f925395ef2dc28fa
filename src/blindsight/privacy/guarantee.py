"""What a release promises: the mechanisms that passed the door, as data, with the three numbers.

A `Guarantee` is made of planned releases; its epsilon is what one accountant says of them
(`accounting.price`), when it is made and again whenever a file that states it is read. Cards, lines
and JSON are rendered from it; no code reads meaning out of its text.

Encryption and sketches make no differential-privacy promise, so they carry a `Disclosure` instead:
who sees what, and what an attack recovered of it.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.accounting import Plan, Planned, plan_from_fields, plan_to_fields, price
from blindsight.privacy.cost import INSIDE, Cost, Neighbours, Sampler, Unit, build, plain
from blindsight.privacy.entropy import EntropyName

__all__ = [
    "Assumption",
    "Audited",
    "Calibration",
    "Cost",
    "Disclosure",
    "Guarantee",
    "Model",
    "Neighbours",
    "Recovery",
    "Sampler",
    "Unit",
    "costs_of",
]

Model = Literal["central", "local"]
Calibration = Literal["paper", "proven"]
FORMAT = "blindsight privacy card 2"
_RANDOMNESS = {
    "system": "operating system's entropy",
    "keyed": "a secret key: the same noise whenever the same record is released",
    "seed": "fixed seed: a simulation, not a protection",
}
_NOISE = {
    "exact": "exact integer sampling, safe to release",
    "float": "floating point, not for release at full precision",
}


@dataclass(frozen=True)
class Assumption:
    """Something that must hold for a guarantee: a name for code, a sentence for people.

    Parameters:
        name: a short name, by which code recognises the assumption.
        says: the assumption as a whole sentence.

    Examples:
        >>> print(Assumption("public cells", "The cells were made from public pictures."))
        The cells were made from public pictures.
    """

    name: str
    says: str

    def __post_init__(self) -> None:
        for field in ("name", "says"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise InvalidParameter(f"{field} of an assumption must be text, got {value!r}.")

    def __str__(self) -> str:
        return self.says


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an attack measured: epsilon is at least `epsilon`, at this confidence.

    It can refute, never prove.

    Parameters:
        epsilon: the lower bound on epsilon.
        confidence: the probability that the bound holds, for example 0.95.
        attack: the name of the attack.
        trials: how many releases the attack looked at.

    Examples:
        >>> print(Audited(epsilon=0.83, confidence=0.95, attack="canaries", trials=10_000))
        ε ≥ 0.83 (95%, canaries, 10,000 trials)
    """

    epsilon: float
    confidence: float
    attack: str
    trials: int

    def __post_init__(self) -> None:
        checks.non_negative("epsilon", self.epsilon, infinite=True)
        checks.probability("confidence", self.confidence)
        checks.whole("trials", self.trials)

    def __str__(self) -> str:
        return (
            f"ε ≥ {self.epsilon:.3g} ({100 * self.confidence:.6g}%, {self.attack}, {self.trials:,} "
            "trials)"
        )


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a release promises, with the three numbers: claimed, proven, audited.

    Parameters:
        releases: the plan: what is released by which mechanism, how often, in one unit.
        unproven: why nothing is proven, where that is so; epsilon is then inf, and the releases are
            for information.
        mechanism: what was done, in a few words; by default the releases' own.
        unit: per what the proven epsilon counts ("record", "person"); by default the unit of the
            releases.
        neighbours: which data sets count as neighbours; by default as in the releases.
        model: "central" (a curator sees the data) or "local" (each owner protects its own).
        epsilon: the proven epsilon; by default what the releases cost. A smaller one is refused.
        delta: the proven delta, at which the releases are priced.
        claimed: the paper's epsilon, or None where no paper claims one for this release.
        calibration: "paper" (to the letter) or "proven".
        accountant: how the number was composed.
        assumptions: what must hold for it.
        sampler: "exact" (integer sampling, safe to hand to outsiders) or "float"; by default that
            of the releases.
        entropy: what the noise was made of: "system", "keyed" (a vault's key) or "seed".
        simulation: whether the noise can be drawn again by others, because its seed is fixed.
        also: the same release in other units.
        audited: what an attack measured, once one ran.

    Examples:
        >>> from blindsight.privacy.mechanisms import KaryResponse
        >>> from blindsight.privacy.accounting import Planned
        >>> noise = KaryResponse(epsilon=2.0, k=16, unit="record")
        >>> twice = Planned(what="cell", mechanism=noise, count=2)
        >>> promised = Guarantee(releases=(twice,), model="local")
        >>> promised.epsilon, promised.unit, promised.neighbours
        (4.0, 'record', 'replace one')
        >>> print(promised.line())
        cell: k-ary response over 16 cells, 2 times: proven ε = 4 per record (replace one)
    """

    releases: Plan = ()
    unproven: tuple[Assumption, ...] = ()
    mechanism: str = ""
    unit: Unit = ""  # type: ignore[assignment]
    epsilon: float = -1.0
    delta: float = 0.0
    neighbours: Neighbours = ""  # type: ignore[assignment]
    model: Model
    claimed: float | None = None
    calibration: Calibration = "proven"
    accountant: str = ""
    assumptions: tuple[Assumption, ...] = ()
    sampler: Sampler = ""  # type: ignore[assignment]
    entropy: EntropyName = "system"
    simulation: bool = False
    also: tuple[Cost, ...] = ()
    audited: Audited | None = None

    def __post_init__(self) -> None:
        for name in ("releases", "unproven", "assumptions", "also"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("unproven", "assumptions"):
            if not all(isinstance(item, Assumption) for item in getattr(self, name)):
                raise InvalidParameter(
                    f"{name} must be Assumption(name, says) values, so that code can ask for them."
                )
        if not all(isinstance(item, Planned) for item in self.releases):
            raise InvalidParameter(
                "releases must be planned releases (blindsight.privacy.accounting.Planned)."
            )
        self._price()
        if not isinstance(self.mechanism, str) or not (self.mechanism.strip() or self.releases):
            raise InvalidParameter(f"mechanism must say what was done, got {self.mechanism!r}.")
        if not self.mechanism:
            object.__setattr__(self, "mechanism", "; ".join(str(item) for item in self.releases))
        if not self.accountant:
            gaussian = any(hasattr(item.mechanism, "mu") for item in self.releases)
            composed = "Gaussian composition in closed form" if gaussian else "basic composition"
            object.__setattr__(self, "accountant", "none" if self.unproven else composed)
        if not self.sampler:
            exact = all(item.mechanism.sampler == "exact" for item in self.releases) and bool(
                self.releases
            )
            object.__setattr__(self, "sampler", "exact" if exact else "float")
        if not isinstance(self.simulation, bool):
            raise InvalidParameter(f"simulation must be True or False, got {self.simulation!r}.")
        if self.simulation:
            object.__setattr__(self, "entropy", "seed")
        object.__setattr__(self, "simulation", self.entropy == "seed")
        checks.one_of("model", self.model, get_args(Model))
        checks.one_of("calibration", self.calibration, get_args(Calibration))
        checks.one_of("sampler", self.sampler, get_args(Sampler))
        checks.one_of("entropy", self.entropy, get_args(EntropyName))
        if self.claimed is not None:
            object.__setattr__(
                self, "claimed", checks.non_negative("claimed", self.claimed, infinite=True)
            )
        self._check_other_units()

    def _price(self) -> None:
        """epsilon, unit and neighbours from the releases; or as they are stated where there are
        none.
        """
        checks.probability("delta", self.delta, below_one=True)
        unit, neighbours = self.unit, self.neighbours
        if self.releases:
            first = self.releases[0].mechanism
            unit, neighbours = unit or first.unit, neighbours or first.neighbours
        epsilon = math.inf if self.unproven else self.epsilon
        rho = None
        if self.releases and not self.unproven:
            due = price(self.releases, delta=self.delta)
            if (due.unit, due.neighbours) != (unit, neighbours):
                raise InvalidParameter(
                    f"the releases are per {due.unit} ({due.neighbours}), not per {unit}."
                )
            if epsilon == -1.0:
                epsilon = due.epsilon
            if checks.number("epsilon", epsilon) < due.epsilon * (1 - 1e-9):
                raise InvalidParameter(
                    f"epsilon is stated as {epsilon:.6g}, but the releases cost {due.epsilon:.6g} "
                    f"per {due.unit}."
                )
            rho = due.rho
            object.__setattr__(self, "delta", due.delta)
        elif not self.unproven and 0 < checks.number("epsilon", epsilon) < math.inf:
            raise InvalidParameter(
                f"epsilon is stated as {epsilon:.6g}, but nothing says what was released: pass the "
                "planned releases, "
                "from which it is computed, or say in `unproven` why there is no proof."
            )
        cost = Cost(
            epsilon=epsilon,
            delta=self.delta,
            unit=unit,
            neighbours=neighbours or "replace one",
            rho=rho,
        )
        for name in ("epsilon", "delta", "unit", "neighbours"):
            object.__setattr__(self, name, getattr(cost, name))
        object.__setattr__(self, "_cost", cost)

    def _check_other_units(self) -> None:
        """Refuse a larger unit that is stated as cheaper than one that it holds."""
        for small in self.costs:
            for large in self.costs:
                comparable = (
                    large.unit in INSIDE.get(small.unit, ())
                    and small.neighbours == large.neighbours
                )
                if (
                    comparable
                    and large.delta <= small.delta
                    and large.epsilon < small.epsilon * (1 - 1e-9)
                ):
                    raise InvalidParameter(
                        f"a {large.unit} holds a {small.unit}, so {large} cannot be right beside "
                        f"{small}."
                    )

    @property
    def cost(self) -> Cost:
        """What the ledger is charged: the proven number, whatever was claimed."""
        return self._cost  # type: ignore[attr-defined, no-any-return]

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The cost in every unit that is stated: what a ledger posts to each of its accounts."""
        return (self.cost, *self.also)

    @property
    def refuted(self) -> bool:
        """Whether an attack measured more than what is promised (the claim under "paper", the proof
        otherwise).
        """
        if self.audited is None:
            return False
        promised = (
            self.claimed
            if self.calibration == "paper" and self.claimed is not None
            else self.epsilon
        )
        return self.audited.epsilon > promised

    def assumes(self, name: str) -> bool:
        """Whether an assumption of this name must hold."""
        return any(assumption.name == name for assumption in self.assumptions)

    def with_audit(self, audited: Audited) -> Guarantee:
        """The same guarantee, with what an attack measured."""
        return dataclasses.replace(self, audited=audited)

    def line(self) -> str:
        """One line for a terminal or a log."""
        parts = [f"{self.mechanism}: proven {self.cost}"]
        if self.claimed is not None:
            parts.append(f"claimed ε = {self.claimed:.4g}")
        if self.audited is not None:
            parts.append(f"audited {self.audited}{', REFUTED' if self.refuted else ''}")
        if self.simulation:
            parts.append("simulation: fixed seed")
        return "; ".join(parts)

    def __str__(self) -> str:
        return self.line()

    def rows(self) -> list[tuple[str, str]]:
        """The privacy card as (field, value) rows: the fields NIST SP 800-226 asks for, and the
        three numbers.
        """
        verdict = "not audited" if self.audited is None else str(self.audited)
        if self.audited is not None:
            verdict += ": REFUTED" if self.refuted else ": not refuted"
        releases = [str(item) for item in self.releases]
        own_words = [self.mechanism] if self.mechanism != "; ".join(releases) else []
        return [
            *(("mechanism", text) for text in own_words),
            *(("releases", text) for text in releases),
            ("unit of privacy", self.unit),
            ("neighbours", self.neighbours),
            ("model", self.model),
            ("epsilon", f"{self.epsilon:.6g}"),
            ("delta", f"{self.delta:.3g}"),
            (
                "same release in other units",
                "; ".join(str(cost) for cost in self.also) or "none stated",
            ),
            ("accountant", self.accountant),
            ("calibration", self.calibration),
            ("assumptions", "; ".join(item.says for item in self.assumptions) or "none"),
            *(("not proven", item.says) for item in self.unproven),
            ("randomness", f"{_RANDOMNESS[self.entropy]}; {_NOISE[self.sampler]}"),
            ("claimed", "none" if self.claimed is None else f"ε = {self.claimed:.6g}"),
            ("proven", "none (ε = inf)" if math.isinf(self.epsilon) else str(self.cost)),
            ("audited", verdict),
        ]

    def _repr_html_(self) -> str:
        """The privacy card as a table, for a notebook."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(field)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for field, value in self.rows()
        )
        return f"<p><strong>Privacy card</strong></p><table>{rows}</table>"

    def card(self) -> str:
        """The privacy card as plain text."""
        rows = self.rows()
        width = max(len(field) for field, _ in rows)
        return "\n".join(
            ["PRIVACY CARD", *(f"  {field:<{width}}  {value}" for field, value in rows)]
        )

    def to_json(self) -> str:
        """JSON text; `from_json` reads it back to an equal value."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["releases"] = plan_to_fields(self.releases)
        for name in ("unproven", "assumptions", "also"):
            fields[name] = [dataclasses.asdict(item) for item in fields[name]]
        fields["audited"] = None if self.audited is None else dataclasses.asdict(self.audited)
        return json.dumps(
            {"format": FORMAT, **plain(fields)}, ensure_ascii=False, indent=2, allow_nan=False
        )

    @classmethod
    def from_json(cls, text: str) -> Guarantee:
        """Read back what `to_json` wrote; the epsilon is computed again, and one that states less
        is refused.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidData(f"a guarantee must be JSON text: {error}.") from error
        if not isinstance(fields, dict):
            raise InvalidData(f"a guarantee must be a JSON object, got {type(fields).__name__}.")
        if fields.pop("format", None) != FORMAT:
            raise InvalidData(
                f"a guarantee must be a {FORMAT!r}; one of an earlier release must be made again."
            )
        for key in ("also", "assumptions", "unproven", "releases"):
            if not isinstance(fields.get(key, []), list):
                raise InvalidData(
                    f"{key} of a guarantee must be a list, got {type(fields[key]).__name__}."
                )
        fields["releases"] = plan_from_fields(fields.get("releases", []))
        fields["also"] = tuple(Cost.from_dict(cost) for cost in fields.get("also", []))
        for key in ("assumptions", "unproven"):
            fields[key] = tuple(build(Assumption, item) for item in fields.get(key, []))
        if fields.get("audited") is not None:
            fields["audited"] = build(Audited, fields["audited"])
        try:
            return build(cls, fields)  # type: ignore[no-any-return]
        except InvalidParameter as error:
            raise InvalidData(f"not a guarantee: {error}") from error


def costs_of(cost: Guarantee | Cost | Sequence[Cost]) -> tuple[Cost, ...]:
    """The costs of a guarantee, or one or several costs, as a tuple."""
    if isinstance(cost, Guarantee):
        return cost.costs
    return (cost,) if isinstance(cost, Cost) else tuple(cost)


_DISCLOSURE_FORMAT = "blindsight disclosure card 2"


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
        object.__setattr__(
            self, "sees", tuple((str(party), str(view)) for party, view in self.sees)
        )
        object.__setattr__(self, "recovered", tuple(self.recovered))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))

    def rows(self) -> list[tuple[str, str]]:
        """(field, value) rows, the same shape as a guarantee's card."""
        return [
            ("method", self.method),
            *((f"{party} sees", view) for party, view in self.sees),
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
            {"format": _DISCLOSURE_FORMAT, **dataclasses.asdict(self)}, ensure_ascii=False, indent=2
        )

    @classmethod
    def from_json(cls, text: str) -> Disclosure:
        """Read back what `to_json` wrote; anything else is refused."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != _DISCLOSURE_FORMAT:
                raise InvalidData(f"expected a {_DISCLOSURE_FORMAT!r}")
            fields["sees"] = tuple(tuple(row) for row in fields["sees"])
            fields["recovered"] = tuple(Recovery(**row) for row in fields.get("recovered", ()))
            fields["assumptions"] = tuple(fields.get("assumptions", ()))
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidData(f"not a disclosure: {error}.") from error
