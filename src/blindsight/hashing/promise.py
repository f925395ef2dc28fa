"""What the private hashers promise: as data, before any image is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Assumption, Cost, Guarantee, Planned
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.mechanisms import BitFlip

__all__ = ["CODE", "LEARNED", "ONCE", "PUBLIC", "PUBLIC_NUMBER", "Source", "fact", "flip_guarantee"]

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


def fact(public: Mapping[str, Any], name: str) -> int:
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
