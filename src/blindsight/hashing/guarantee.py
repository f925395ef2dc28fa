"""Guarantees of the private hashers as values, and the base class that releases codes.

A guarantee can be read before any image is seen. `ReleasesCodes` charges the ledger, releases codes
and writes files that hold public and released values only.

PITQ and the codebook learn from sums over clipped rows, to which the door adds noise if the rows
are private. Neighbours replace one row. Rows have norm at most B, so a replaced row changes

- the sum of rows by at most 2 B,
- the second moment, sum of y y', by at most sqrt(2) B^2 in Frobenius norm (|yy' - zz'|^2 <= 2 B^4),
- a cross moment U'V, sum of u v' with |u| <= A and |v| <= B, by at most 2 A B,
- the sums of clusters by at most 2 B, and their counts by at most sqrt(2).

All noise is Gaussian on a grid. Gaussian releases of mu_i (sensitivity over noise) compose exactly
to one with mu^2 = sum of mu_i^2, so a budget is divided into shares of mu^2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from blindsight.core import checks, storage
from blindsight.core.arrays import Array, Floats
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.hashing.base import KIND
from blindsight.privacy import Assumption, Cost, Door, Guarantee, Plan, Planned
from blindsight.privacy.accounting import price
from blindsight.privacy.door import FILLED, Outer, added
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.estimator import Protected
from blindsight.privacy.mechanisms import BitFlip, DiscreteGaussian, Gaussian
from blindsight.privacy.vault import RecordSource

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = [
    "CODE",
    "LEARNED",
    "ONCE",
    "PUBLIC",
    "PUBLIC_NUMBER",
    "NoNoise",
    "ReleasesCodes",
    "Share",
    "Source",
    "Sums",
    "fact",
    "flip_guarantee",
    "plan_for",
    "private_cross_moment",
    "private_mean",
    "private_second_moment",
]

#: the name of the release of codes in a plan.
CODE = "code"
Source = Literal["public", "private"]

ONCE = Assumption(
    "released once", "a record's code is released once; each further release adds to the cost"
)
PUBLIC = Assumption(
    "public learning",
    "the hash function does not depend on the protected images (public images, or none)",
)
LEARNED = Assumption(
    "learned without noise",
    "the hash function was learned from the protected images without noise, so a record has no "
    "finite epsilon: learn from public images (learned_from='public'), or with PITQ or "
    "CodebookHasher",
)
PUBLIC_NUMBER = Assumption("public number", "the number of images is public")
_ONE_BIT = Assumption(
    "one bit", "neighbours differ in one bit of one code, the paper's Definition 1"
)
_COMPLEMENT = Assumption(
    "complement", "beta is above one half: the codes are complemented more than hidden"
)


def fact(public: Mapping[str, object], name: str) -> int:
    """Return a public number on which a guarantee depends."""
    if name not in public:
        raise InvalidParameter(f"pass {name}=, a public number on which the guarantee depends.")
    return checks.whole(name, public[name])


def flip_guarantee(
    mechanism: BitFlip,
    *,
    calibration: Literal["proven", "paper"],
    entropy: EntropyName,
    independent: bool,
) -> Guarantee:
    """Return the guarantee of flipped codes, in both units.

    `independent` says whether the hash function is independent of the released records.
    """
    bit = Cost(epsilon=mechanism.epsilon_per_bit, unit="bit")
    record = (
        bit.per("record", times=mechanism.n_bits)
        if independent
        else Cost(epsilon=math.inf, unit="record")
    )
    assumptions = [PUBLIC if independent else LEARNED, ONCE]
    if mechanism.unit == "bit":
        assumptions.append(_ONE_BIT)
    if mechanism.beta > 0.5:
        assumptions.append(_COMPLEMENT)
    unproven = (LEARNED,) if mechanism.unit == "record" and not independent else ()
    return Guarantee(
        releases=(Planned(what=CODE, mechanism=mechanism),),
        unproven=unproven,
        model="local",
        claimed=-math.log(mechanism.beta) if mechanism.beta > 0 else math.inf,
        calibration=calibration,
        assumptions=tuple(assumptions),
        entropy=entropy,
        also=(bit if mechanism.unit == "record" else record,),
    )


class ReleasesCodes(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Protected):  # type: ignore[misc]
    """The base class of hashers that release codes through the door.

    A subclass states its guarantee (`promise`) and computes the codes.
    """

    _kind: ClassVar[str] = KIND

    def fingerprint(self) -> str:
        """Return a digest of the hash function.

        It enters the noise that is derived from a record's name, so that two hash functions get
        different noise for the same record.
        """
        parts = {**self.public_, **self.released_}
        if hasattr(self, "base_") and "base" not in parts:
            raise InvalidParameter(
                f"{type(self.base_).__name__} cannot be distinguished from another hash function, "
                "and the same noise on the codes of two functions would show how they differ: "
                "leave names= out, or use one of Blindsight's hashers."
            )
        arrays = {key: value for key, value in parts.items() if isinstance(value, np.ndarray)}
        return storage.digest(type(self).__name__, arrays)

    def _send(
        self,
        values: Array,
        *,
        what: str,
        ledger: Ledger | None,
        names: Sequence[str] | None,
        promised: Guarantee,
    ) -> Array:
        """Charge `promised`, then release each record's value.

        With `names`, a record's noise is derived from its name. With a vault's key the same values
        of the same records are the same release at any time and are charged once; any other
        release is charged separately.
        """
        source = self.random_state
        if names is None:
            return Door(promised, what=what, ledger=ledger, random_state=source).release(
                CODE, values
            )
        fingerprint, key = self.fingerprint(), None
        if isinstance(source, RecordSource):
            key = source.receipt(names, values, f"{fingerprint}/{promised.releases}")
        door = Door(promised, what=what, ledger=ledger, random_state=source, key=key)
        return door.release_each(CODE, values, names, about=fingerprint)

    def _saved_parameters(self) -> dict[str, Any]:
        return {"class": type(self).__name__, **super()._saved_parameters()}

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        parameters = dict(fields)
        name = parameters.pop("class")
        if name != cls.__name__:
            raise HostileFile(f"the file holds a {name}, not a {cls.__name__}.")
        return super()._read_parameters(parameters)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.transformer_tags.preserves_dtype = []
        return tags


@dataclass(frozen=True)
class Share:
    """One kind of planned release.

    Parameters:
        what: its name.
        share: its share of the budget, for all `count` releases together.
        sensitivity: L2 sensitivity of one release.
        dimensions: number of coordinates.
        count: how often it is released.
    """

    what: str
    share: float
    sensitivity: float
    dimensions: int
    count: int = 1


class Sums(Protocol):
    """An object that releases sums: a `Door`, or `NoNoise` for public rows."""

    def release(self, what: str, value: ArrayLike) -> Array:
        """Return the value with the noise that is planned for `what`."""

    def total(self, what: str, rows: ArrayLike | Outer) -> Array:
        """Return the sum of the clipped rows with the noise that is planned for `what`."""


class NoNoise:
    """Computes sums of public rows, without clipping and without noise."""

    def release(self, what: str, value: ArrayLike) -> Array:
        return np.asarray(value)

    def total(self, what: str, rows: ArrayLike | Outer) -> Array:
        return (
            rows.left.T @ rows.right
            if isinstance(rows, Outer)
            else np.asarray(rows).sum(axis=0, dtype=np.float64)
        )


def plan_for(shares: Sequence[Share], *, epsilon: float, delta: float) -> Plan:
    """Plan discrete Gaussian releases that together cost at most (epsilon, delta) per record."""
    return _plan_for(tuple(shares), epsilon, delta)


@lru_cache(maxsize=64)  # Needed for the guarantee, and again for the door.
def _plan_for(shares: tuple[Share, ...], epsilon: float, delta: float) -> Plan:
    sigma_in_all = Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="record").sigma

    def planned(sigma: float) -> Plan:
        return tuple(
            Planned(
                what=item.what,
                count=item.count,
                mechanism=DiscreteGaussian.fine(
                    sigma=sigma * math.sqrt(item.count / item.share) * item.sensitivity,
                    sensitivity=item.sensitivity,
                    dimensions=item.dimensions,
                    delta=delta,
                    unit="record",
                ),
            )
            for item in shares
        )

    plan = planned(sigma_in_all)
    while price(plan, delta=delta).epsilon > epsilon:  # Rounding to the grid costs a little.
        sigma_in_all *= 1.0005
        plan = planned(sigma_in_all)
    return plan


def private_mean(X: Array, door: Sums) -> Floats:
    """Release the mean of the rows; their number is public."""
    return door.total("mean", X) / len(X)


def private_second_moment(X: Array, door: Sums, *, what: str = "second moment") -> Floats:
    """Release the sum of y y' over rows whose norm is bounded.

    The noise is drawn for the upper triangle and mirrored.
    """
    # A replaced row changes the sum by sqrt(2) B^2, less than `Door.total` assumes (2 B^2), so the
    # sum is computed here, with the same margins for rounding as in the door: rows are scaled to a
    # little less than their bound, and blocks are added with their rounding errors.
    rows = np.asarray(X, np.float64) * math.sqrt(FILLED)
    moment = added(np.ones(len(rows)), lambda chosen: rows[chosen].T @ rows[chosen])
    upper = np.triu_indices(len(moment))
    noisy = np.zeros_like(moment)
    noisy[upper] = door.release(what, moment[upper])
    return noisy + np.triu(noisy, 1).T


def private_cross_moment(U: Array, V: Array, door: Sums, *, what: str = "cross moment") -> Floats:
    """Release U'V, in which each record's u v' is clipped to the bound."""
    return door.total(what, Outer(U, V))
