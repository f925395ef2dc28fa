"""Guarantees of the private hashers as values, and the base class that releases codes.

A guarantee can be read before any image is seen. `ReleasesCodes` charges the ledger, releases codes
and writes files that hold public and released values only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from blindsight.core import checks, storage
from blindsight.core.arrays import Array
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.hashing.base import KIND
from blindsight.privacy import Assumption, Cost, Door, Guarantee, Planned
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.estimator import Protected
from blindsight.privacy.mechanisms import BitFlip
from blindsight.privacy.vault import RecordSource

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = [
    "CODE",
    "LEARNED",
    "ONCE",
    "PUBLIC",
    "PUBLIC_NUMBER",
    "ReleasesCodes",
    "Source",
    "fact",
    "flip_guarantee",
]

#: the name by which the door knows the release of codes.
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
    "finite epsilon: "
    "learn from public images (learned_from='public'), or with PITQ or CodebookHasher",
)
PUBLIC_NUMBER = Assumption("public number", "the number of images is public")
_ONE_BIT = Assumption(
    "one bit", "neighbours differ in one bit of one code, the paper's Definition 1"
)
_COMPLEMENT = Assumption(
    "complement", "beta is above one half: the codes are complemented more than hidden"
)


def fact(public: Mapping[str, object], name: str) -> int:
    """A public number that a promise hangs on."""
    if name not in public:
        raise InvalidParameter(f"say {name}= to know what will be promised: it is a public fact.")
    return checks.whole(name, public[name])


def flip_guarantee(
    mechanism: BitFlip,
    *,
    calibration: Literal["proven", "paper"],
    entropy: EntropyName,
    independent: bool,
) -> Guarantee:
    """The guarantee of flipped codes in both units; `independent`: h does not depend on the
    released records.
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
    """The base of hashers whose codes pass the door; a subclass says what it promises and how it
    computes a code.
    """

    _kind: ClassVar[str] = KIND

    def fingerprint(self) -> str:
        """A digest of the hash function: noise by name must differ between two functions of one
        record.
        """
        parts = {**self.public_, **self.released_}
        if hasattr(self, "base_") and "base" not in parts:
            raise InvalidParameter(
                f"{type(self.base_).__name__} cannot be told from another hash function, and noise "
                "by name on two "
                "functions would show how they differ: leave names= out, or use one of "
                "Blindsight's hashers."
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
        """Charge `promised`, then release each record's value; with `names`, noise by name.

        Under a vault's key the same values of the same records are the same release, whenever it is
        made: it is paid once, and anything else is paid by itself.
        """
        source = self.random_state
        if names is None:
            return Door(promised, what=what, ledger=ledger, random_state=source).release(
                CODE, values
            )
        about, key = self.fingerprint(), None
        if isinstance(source, RecordSource):
            key = source.receipt(names, values, f"{about}/{promised.releases}")
        door = Door(promised, what=what, ledger=ledger, random_state=source, key=key)
        return door.release_each(CODE, values, names, about=about)

    def _saved_parameters(self) -> dict[str, Any]:
        return {"class": type(self).__name__, **super()._saved_parameters()}

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        given = dict(fields)
        name = given.pop("class")
        if name != cls.__name__:
            raise HostileFile(f"the file holds a {name}, not a {cls.__name__}.")
        return super()._read_parameters(given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.transformer_tags.preserves_dtype = []
        return tags
