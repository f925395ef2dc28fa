"""What one release costs: a frozen value that always names its unit.

An epsilon means nothing until it says *per what*. A 48-bit code flipped at epsilon 1 per bit costs
epsilon 48 per record; both statements are true and only one of them protects a person. So a `Cost`
cannot be made without a unit and a neighbour relation, and costs in different units do not add.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from blindsight.core import checks
from blindsight.core.errors import InvalidData, UnitMismatch

__all__ = ["INSIDE", "Cost", "Neighbours", "Sampler", "Unit", "build", "plain"]

Unit = Literal["bit", "pixel", "record", "person", "label", "pair", "kappa pairs", "query", "user"]
Neighbours = Literal["replace one", "add or remove one"]
Sampler = Literal["exact", "float"]
#: The larger units that contain each smaller one. Changing the smaller unit changes the larger one,
#: so a bound for the larger unit also holds for the smaller, and cannot be less than its cost.
INSIDE = {
    "bit": ("record", "person", "user"),
    "pixel": ("record", "person", "user"),
    "record": ("person", "user"),
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one release: (epsilon, delta) per `unit`, under a neighbour relation.

    Parameters:
        epsilon: the bound on the privacy loss.
        delta: the probability with which the bound may be exceeded.
        unit: per what it counts ("record", "person", "label").
        neighbours: "replace one" or "add or remove one".
        rho: the parameter of zero-concentrated privacy, where it is known: what an account that
            composes Gaussian releases tightly is charged, see `zcdp`.

    Examples:
        >>> print(Cost(epsilon=0.5, unit="record") + Cost(epsilon=1.5, unit="record"))
        ε = 2 per record (replace one)
    """

    epsilon: float
    delta: float = 0.0
    unit: Unit
    neighbours: Neighbours = "replace one"
    rho: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", checks.non_negative("epsilon", self.epsilon, infinite=True)
        )
        object.__setattr__(self, "delta", checks.probability("delta", self.delta, below_one=True))
        checks.one_of("unit", self.unit, get_args(Unit))
        checks.one_of("neighbours", self.neighbours, get_args(Neighbours))
        if self.rho is not None:
            object.__setattr__(self, "rho", checks.non_negative("rho", self.rho, infinite=True))

    @property
    def zcdp(self) -> float | None:
        """The parameter rho, or epsilon^2 / 2 for a pure epsilon (Bun and Steinke 2016); None where
        neither is known.
        """
        if self.rho is None and self.delta == 0:
            return self.epsilon * self.epsilon / 2
        return self.rho

    def __add__(self, other: Cost) -> Cost:
        """Basic composition: epsilons and deltas add, in one unit."""
        if not isinstance(other, Cost):
            return NotImplemented
        if (self.unit, self.neighbours) != (other.unit, other.neighbours):
            raise UnitMismatch(
                f"cannot add a cost per {self.unit} ({self.neighbours}) to one per {other.unit} "
                f"({other.neighbours}). Convert one of them first, for example with .per('record', "
                "times=...)."
            )
        return dataclasses.replace(
            self,
            epsilon=self.epsilon + other.epsilon,
            delta=min(self.delta + other.delta, math.nextafter(1, 0)),
            rho=self._added_rho(other),
        )

    def _added_rho(self, other: Cost) -> float | None:
        own, added = self.zcdp, other.zcdp
        if own is None or added is None or (self.rho is None and other.rho is None):
            return None
        return own + added

    def per(self, unit: Unit, *, times: int) -> Cost:
        """The same release in a larger unit that holds up to `times` of this one (group privacy).

        Pure epsilon multiplies. With delta, group privacy gives delta * sum of e^(i epsilon) for i
        < times.

        Examples:
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
        rho = None if self.rho is None else self.rho * times * times
        return dataclasses.replace(
            self, epsilon=self.epsilon * times, delta=delta, unit=unit, rho=rho
        )

    def __str__(self) -> str:
        delta = f", δ = {self.delta:.3g}" if self.delta else ""
        return f"ε = {self.epsilon:.4g}{delta} per {self.unit} ({self.neighbours})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity becomes the string "inf"."""
        fields: dict[str, Any] = plain(dataclasses.asdict(self))
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Cost:
        """The inverse of `to_dict`; unknown or missing fields are an error."""
        cost: Cost = build(cls, fields)
        return cost


def plain(value: Any) -> Any:
    """Values that JSON can hold: tuples become lists, infinity the string "inf"."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def build(cls: Any, fields: Any) -> Any:
    """A dataclass from the fields that `plain` made of it; unknown or missing ones are an error."""
    if not isinstance(fields, dict):
        raise InvalidData(f"a {cls.__name__} must be a JSON object, got {type(fields).__name__}.")
    unknown = fields.keys() - {field.name for field in dataclasses.fields(cls) if field.init}
    if unknown:
        raise InvalidData(f"a {cls.__name__} has no field {sorted(unknown)[0]!r}.")
    values = {key: math.inf if value == "inf" else value for key, value in fields.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise InvalidData(f"a {cls.__name__} misses a field: {error}.") from error
