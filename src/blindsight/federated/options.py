"""What a `FederatedClassifier` is told, as values: how updates are summed, and the noise on the
sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = ["Pad", "Paper", "SumNoise"]


@dataclass(frozen=True, kw_only=True)
class SumNoise:
    """Noise on every sum: at most (epsilon, delta) over all rounds.

    Parameters:
        epsilon: per user, or per record.
        delta: of the guarantee.
        clip: the largest l2 norm of a user's update, 1 by default. With unit "record" it is left
            out: the learner clips records.
        unit: "user" bounds what the sums tell about all rows of one user together, and needs many
            users; "record" bounds what they tell about one row.
        records: with unit "record", about how many rows a user has at most. It sizes the slots
            of the sum and is public.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float | None = None
    unit: str = "user"
    records: int = 10_000

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("unit", self.unit, ("user", "record"))
        checks.whole("records", self.records)
        if self.clip is not None:
            checks.positive("clip", self.clip)
            if self.unit == "record":
                raise InvalidParameter(
                    "with unit='record' the learner clips: leave clip out and pass "
                    "learner=RecordDescent(clip=...)."
                )
        if not 0 < checks.number("delta", self.delta) < 1:
            raise InvalidParameter(f"delta must be above 0 and below 1, got {self.delta!r}.")

    @property
    def per_record(self) -> bool:
        """Whether the unit is a record."""
        return self.unit == "record"


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Sums under one-time pads that key holders open together; the fields are those of `Settings`.

    Parameters:
        holders: how many key holders there are; by default up to 20 users are their own holders.
        least_users, most_users: the fewest and the most users of a round.
        colluders: how many users may tell the aggregator what they know.
        across_rounds: whether combinations of sums of different rounds are protected, too.
        bound: fixed point; with noise they follow from it and must be left out.
        clip: the largest norm of an update, checked on the sum; without noise only.
        groups: an odd number of groups whose means are compared, so that a few lying users cannot
            move the model beyond what the honest groups say; without noise only.
    """

    holders: int | None = None
    least_users: int | None = None
    most_users: int | None = None
    colluders: int = 1
    across_rounds: bool | None = None
    bound: float | None = None
    bits: int | None = None
    clip: float | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        _check_code(self.bound, self.bits, None)
        checks.whole("colluders", self.colluders, least=0)
        if self.clip is not None:
            checks.positive("clip", self.clip)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Algorithm 1 to the letter, weaknesses included: one ciphertext per weight, `capacity` (M) of
    them in a shard.
    """

    capacity: int | None = None
    bound: float | None = None
    bits: int | None = None
    key_bits: int | None = None

    def __post_init__(self) -> None:
        _check_code(self.bound, self.bits, self.key_bits)


def _check_code(bound: float | None, bits: int | None, key_bits: int | None) -> None:
    if bound is not None:
        checks.positive("bound", bound)
    if bits is not None:
        checks.whole("bits", bits, least=2)
    if key_bits is not None:
        checks.whole("key_bits", key_bits)
