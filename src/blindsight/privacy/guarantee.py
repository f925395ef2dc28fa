"""What a release costs (`Cost`) and what it promises (`Guarantee`): frozen values that always name their unit.

An epsilon means nothing until it says *per what*. A 48-bit code flipped at epsilon 1 per bit costs epsilon 48 per
record; both statements are true and only one of them protects a person. So a `Cost` cannot be made without a unit
and a neighbour relation, and costs in different units do not add.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter, UnitMismatch

__all__ = ["Audited", "Calibration", "Cost", "Guarantee", "Model", "Neighbours", "Sampler", "Unit"]

Unit = Literal["bit", "record", "pair", "kappa pairs", "pixel", "query", "user"]
Neighbours = Literal["replace one", "add or remove one"]
Model = Literal["central", "local"]
Calibration = Literal["paper", "proven"]
Sampler = Literal["exact", "float"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one release spends: (epsilon, delta) per `unit`, under a neighbour relation.

    >>> Cost(epsilon=0.5, unit="record") + Cost(epsilon=1.5, unit="record")
    Cost(epsilon=2.0, delta=0.0, unit='record', neighbours='replace one')
    """

    epsilon: float
    delta: float = 0.0
    unit: Unit
    neighbours: Neighbours = "replace one"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.non_negative("epsilon", self.epsilon, infinite=True))
        object.__setattr__(self, "delta", checks.probability("delta", self.delta, below_one=True))
        checks.one_of("unit", self.unit, get_args(Unit))
        checks.one_of("neighbours", self.neighbours, get_args(Neighbours))

    def __add__(self, other: Cost) -> Cost:
        """Basic composition: epsilons and deltas add, in one unit."""
        if not isinstance(other, Cost):
            return NotImplemented
        if (self.unit, self.neighbours) != (other.unit, other.neighbours):
            raise UnitMismatch(
                f"cannot add a cost per {self.unit} ({self.neighbours}) to one per {other.unit} "
                f"({other.neighbours}). Convert one of them first, for example with .per('record', times=...)."
            )
        return dataclasses.replace(
            self,
            epsilon=self.epsilon + other.epsilon,
            delta=min(self.delta + other.delta, math.nextafter(1, 0)),
        )

    def per(self, unit: Unit, *, times: int) -> Cost:
        """The same release in a larger unit that holds up to `times` of this one (group privacy).

        Pure epsilon multiplies. With delta, group privacy gives delta * sum of e^(i epsilon) for i < times.

        >>> Cost(epsilon=1.0, unit="bit").per("record", times=48).epsilon
        48.0
        """
        times = checks.whole("times", times)
        delta = self.delta
        if delta > 0 and times > 1:
            if math.isinf(self.epsilon) or (times - 1) * self.epsilon > 700:
                delta = math.nextafter(1, 0)
            else:
                delta *= math.fsum(math.exp(i * self.epsilon) for i in range(times))
                delta = min(delta, math.nextafter(1, 0))
        return dataclasses.replace(self, epsilon=self.epsilon * times, delta=delta, unit=unit)

    def __str__(self) -> str:
        delta = f", δ = {self.delta:.3g}" if self.delta else ""
        return f"ε = {self.epsilon:.4g}{delta} per {self.unit} ({self.neighbours})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity becomes the string "inf"."""
        return _plain(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Cost:
        """The inverse of `to_dict`; unknown or missing fields are an error."""
        return _build(cls, fields)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an attack measured: epsilon is at least `epsilon`, at this confidence. It can refute, never prove."""

    epsilon: float
    confidence: float
    attack: str
    trials: int

    def __post_init__(self) -> None:
        checks.non_negative("epsilon", self.epsilon, infinite=True)
        checks.probability("confidence", self.confidence)
        checks.whole("trials", self.trials)

    def __str__(self) -> str:
        return f"ε ≥ {self.epsilon:.3g} ({100 * self.confidence:.4g}%, {self.attack}, {self.trials:,} trials)"


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a release promises, with the three numbers: claimed, proven, audited.

    Parameters
    ----------
    mechanism: what was done, in a few words ("random flipping of 48 bits, beta = 0.27").
    unit, neighbours: per what the proven epsilon counts, and which data sets count as neighbours.
    model: "central" (a curator sees the data) or "local" (each owner protects its own).
    epsilon, delta: the proven numbers; `inf` where there is no proof.
    claimed: the paper's epsilon, or None where no paper claims one for this release.
    calibration: "paper" (to the letter) or "proven".
    accountant: how the number was composed.
    assumptions: what must hold for it, in words ("the projection was learned from public images").
    sampler: "exact" (integer sampling, safe to hand to outsiders) or "float" (fast, for inside use).
    simulation: True when made with a fixed seed: whoever knows the seed sees through the noise.
    also: the same release in other units.
    audited: what an attack measured, once one ran.
    """

    mechanism: str
    unit: Unit
    epsilon: float
    delta: float = 0.0
    neighbours: Neighbours = "replace one"
    model: Model
    claimed: float | None = None
    calibration: Calibration = "proven"
    accountant: str = "basic composition"
    assumptions: tuple[str, ...] = ()
    sampler: Sampler = "float"
    simulation: bool = False
    also: tuple[Cost, ...] = ()
    audited: Audited | None = None

    def __post_init__(self) -> None:
        cost = Cost(epsilon=self.epsilon, delta=self.delta, unit=self.unit, neighbours=self.neighbours)
        object.__setattr__(self, "epsilon", cost.epsilon)
        object.__setattr__(self, "delta", cost.delta)
        if not isinstance(self.mechanism, str) or not self.mechanism.strip():
            raise InvalidParameter(f"mechanism must say what was done, got {self.mechanism!r}.")
        if self.claimed is not None:
            object.__setattr__(self, "claimed", checks.non_negative("claimed", self.claimed, infinite=True))
        checks.one_of("model", self.model, get_args(Model))
        checks.one_of("calibration", self.calibration, get_args(Calibration))
        checks.one_of("sampler", self.sampler, get_args(Sampler))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        object.__setattr__(self, "also", tuple(self.also))
        if not isinstance(self.simulation, bool):
            raise InvalidParameter(f"simulation must be True or False, got {self.simulation!r}.")

    @property
    def cost(self) -> Cost:
        """What the ledger is charged: the proven number, whatever was claimed."""
        return Cost(epsilon=self.epsilon, delta=self.delta, unit=self.unit, neighbours=self.neighbours)

    @property
    def refuted(self) -> bool:
        """Whether an attack measured more than what is promised (the claim under "paper", the proof otherwise)."""
        if self.audited is None:
            return False
        promised = self.claimed if self.calibration == "paper" and self.claimed is not None else self.epsilon
        return self.audited.epsilon > promised

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
        """The privacy card as (field, value) rows: the fields NIST SP 800-226 asks for, and the three numbers."""
        randomness = "fixed seed: a simulation, not a protection" if self.simulation else "operating system's entropy"
        noise = (
            "exact integer sampling, safe to release"
            if self.sampler == "exact"
            else "floating point, not for release at full precision"
        )
        verdict = "not audited" if self.audited is None else str(self.audited)
        if self.audited is not None:
            verdict += ": REFUTED" if self.refuted else ": not refuted"
        return [
            ("mechanism", self.mechanism),
            ("unit of privacy", self.unit),
            ("neighbours", self.neighbours),
            ("model", self.model),
            ("epsilon", f"{self.epsilon:.6g}"),
            ("delta", f"{self.delta:.3g}"),
            ("same release in other units", "; ".join(str(cost) for cost in self.also) or "none stated"),
            ("accountant", self.accountant),
            ("calibration", self.calibration),
            ("assumptions", "; ".join(self.assumptions) or "none"),
            ("randomness", f"{randomness}; {noise}"),
            ("claimed", "none" if self.claimed is None else f"ε = {self.claimed:.6g}"),
            ("proven", "none (ε = inf)" if math.isinf(self.epsilon) else str(self.cost)),
            ("audited", verdict),
        ]

    def card(self) -> str:
        """The privacy card as plain text."""
        rows = self.rows()
        width = max(len(field) for field, _ in rows)
        return "\n".join(["PRIVACY CARD", *(f"  {field:<{width}}  {value}" for field, value in rows)])

    def to_json(self) -> str:
        """JSON text; `from_json` reads it back to an equal value."""
        return json.dumps(_plain(dataclasses.asdict(self)), ensure_ascii=False, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Guarantee:
        """Read back what `to_json` wrote; anything else is refused."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidData(f"a guarantee must be JSON text: {error}.") from error
        if not isinstance(fields, dict):
            raise InvalidData(f"a guarantee must be a JSON object, got {type(fields).__name__}.")
        for key in ("also", "assumptions"):
            if not isinstance(fields.get(key, []), list):
                raise InvalidData(f"{key} of a guarantee must be a list, got {type(fields[key]).__name__}.")
        fields["also"] = tuple(Cost.from_dict(cost) for cost in fields.get("also", []))
        if fields.get("audited") is not None:
            fields["audited"] = _build(Audited, fields["audited"])
        return _build(cls, fields)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _build(cls: Any, fields: Any) -> Any:
    if not isinstance(fields, dict):
        raise InvalidData(f"a {cls.__name__} must be a JSON object, got {type(fields).__name__}.")
    unknown = fields.keys() - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise InvalidData(f"a {cls.__name__} has no field {sorted(unknown)[0]!r}.")
    values = {key: math.inf if value == "inf" else value for key, value in fields.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise InvalidData(f"a {cls.__name__} misses a field: {error}.") from error
