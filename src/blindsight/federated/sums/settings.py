"""The settings on which all parties of a secure sum agree before the first round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.noise import GaussianShares, RecordShares
from blindsight.federated.sums.field import KeySharing
from blindsight.federated.sums.pad.cipher import MOST_VALUE_BITS
from blindsight.federated.sums.pad.parameters import LONGEST, Parameters, choose
from blindsight.federated.sums.wire import Reader, Writer

__all__ = ["MOST_HOLDERS", "SUM", "Settings"]

SUM: Final = "sum of updates"  # the name of the release in guarantees and ledgers

MOST_HOLDERS: Final = 20
_DEFAULT_HOLDERS = 5
_MOST_USERS = 1 << 16
_NO_LIMIT = 1 << 32
_MOST_GROUPS = 255


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one federation; settings that do not fit together are refused here.

    Parameters:
        dimension: the length of every update.
        users: the number of enrolled users, at least 3: with two, each learns the other's update by
            subtracting its own from the sum.
        bound: weights in fixed point lie in [-bound, bound].
        bits: the bits of a weight in fixed point.
        holders: the number of key holders, 3 to 20. By default up to 20 users are their own
            holders, and larger federations have 5.
        colluders: how many users may collude with the aggregator without exposing the update of
            any other user.
        most_users: the largest number of users in one round (K); by default all users.
        least_users: the fewest contributors of a round that is opened. By default and at least the
            hiding set without noise; with noise at least colluders + 2.
        across_rounds: whether holders also protect against combinations of sums of different
            rounds (the labels `ever`). By default True without noise and False with noise.
        clip: the largest l2 norm of an update. Users scale their updates down to it, and every
            party refuses a sum that is longer than a sum of clipped updates can be, so that one
            user cannot move the mean outside the ball of this radius. With noise, `noise` has its
            own clip.
        rounds: the largest number of accepted sums that contain a user's update; with noise, how
            often a user contributes.
        groups: 1, or an odd number of groups of users that are summed one after the other. The
            model then moves by the median of the groups' means, so that up to (groups - 1) / 2
            lying users move no coordinate beyond the honest groups' means (see `simulation`). Only
            without noise.
        noise: the noise of which every user adds a share; `bound` and `bits` are then those of its
            code.

    Examples:
        >>> settings = Settings(dimension=1000, users=100, holders=5)
        >>> settings.needed, settings.hiding_set, settings.least_users
        (4, 34, 34)
    """

    dimension: int
    users: int
    bound: float = 1.0
    bits: int = 16
    holders: int | None = None
    colluders: int = 1
    most_users: int | None = None
    least_users: int | None = None
    across_rounds: bool | None = None
    clip: float | None = None
    rounds: int = _NO_LIMIT
    noise: GaussianShares | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension)
        checks.whole("rounds", self.rounds)
        if checks.whole("users", self.users) < 3:
            raise InvalidParameter(
                f"users must be at least 3, got {self.users}: with two users each learns the "
                "other's update by subtracting its own. Let each send its own update with noise: "
                "`blindsight federate update`, or blindsight.federated.noised_update."
            )
        if self.dimension > LONGEST or self.users > _MOST_USERS:
            raise InvalidParameter(
                f"at most {LONGEST:,} weights and {_MOST_USERS:,} users are possible, got "
                f"{self.dimension:,} and {self.users:,}."
            )
        self._check_groups()
        self._set_defaults()
        self._check_sets()
        self._check_noise()
        if self.bits > MOST_VALUE_BITS:
            raise InvalidParameter(f"bits must be at most {MOST_VALUE_BITS}, got {self.bits}.")
        _ = self.code, self.pad(self.dimension)

    def _check_groups(self) -> None:
        few = self.users // checks.whole("groups", self.groups) < 3
        if few or self.groups % 2 == 0 or self.groups > _MOST_GROUPS:
            raise InvalidParameter(
                f"groups must be 1 or an odd number up to {_MOST_GROUPS} that leaves at least 3 "
                f"users in each group, got {self.groups} for {self.users} users."
            )
        if self.groups > 1 and self.noise is not None:
            raise InvalidParameter(
                "groups are for sums without noise: leave groups or the noise out."
            )

    def group(self, user: int) -> int:
        """Return the group of a user, from 0."""
        return (user - 1) % self.groups

    def _set_defaults(self) -> None:
        defaults = {
            "holders": self.users if self.users <= MOST_HOLDERS else _DEFAULT_HOLDERS,
            "most_users": -(-self.users // self.groups),
            "across_rounds": self.noise is None,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        checks.whole("colluders", self.colluders, least=0)
        group = -(-self.users // self.groups)
        if not 3 <= checks.whole("most_users", self.most_users) <= group:
            raise InvalidParameter(f"most_users must be in [3, {group}], got {self.most_users}.")
        if self.least_users is None:
            floor = max(3, self.colluders + 2) if self.noise is not None else self.hiding_set
            object.__setattr__(self, "least_users", floor)

    def _check_sets(self) -> None:
        if not 3 <= checks.whole("holders", self.holders) <= MOST_HOLDERS:
            raise InvalidParameter(f"holders must be in [3, {MOST_HOLDERS}], got {self.holders}.")
        if self.colluders > self.largest_round - 2:
            raise InvalidParameter(
                f"colluders must be at most {self.largest_round - 2}, so that two other users are "
                f"in every sum, got {self.colluders}."
            )
        floor = max(3, self.colluders + 2) if self.noise is not None else self.hiding_set
        most = min(self.largest_round, self.users // self.groups)
        least = checks.whole("least_users", self.least_users)
        if not floor <= least <= most:
            raise InvalidParameter(f"least_users must be in [{floor}, {most}], got {least}.")
        if not isinstance(self.across_rounds, bool):
            raise InvalidParameter(
                f"across_rounds must be True, False or None, got {self.across_rounds!r}."
            )
        if self.clip is not None:
            checks.positive("clip", self.clip)
            if self.noise is not None:
                raise InvalidParameter("with noise the clip is that of the noise: leave clip out.")

    def _check_noise(self) -> None:
        if self.noise is None:
            return
        if not isinstance(self.noise, GaussianShares):
            raise InvalidParameter(
                f"noise must be a GaussianShares or None, got {type(self.noise).__name__}."
            )
        if self.code != self.noise.code():
            raise InvalidParameter("with noise, bound and bits must be those of its code.")
        if isinstance(self.noise, RecordShares) and self.noise.dimension != self.dimension:
            raise InvalidParameter(
                f"the noise is for {self.noise.dimension} weights, not for {self.dimension}."
            )
        if self.noise.shares > self.fewest - self.colluders:
            raise InvalidParameter(
                f"the noise counts {self.noise.shares} shares, but of {self.least_users} "
                f"contributors {self.colluders} may tell theirs."
            )

    @property
    def largest_round(self) -> int:
        """K, the largest number of users in one round."""
        return self.users if self.most_users is None else self.most_users

    @property
    def fewest(self) -> int:
        """The fewest contributors of a round that is opened."""
        return 3 if self.least_users is None else self.least_users

    @property
    def n_holders(self) -> int:
        """n, the number of key holders."""
        return _DEFAULT_HOLDERS if self.holders is None else self.holders

    @property
    def faulty_holders(self) -> int:
        """f, how many holders may be dishonest together with the aggregator."""
        return (self.n_holders - 1) // 2

    @property
    def needed(self) -> int:
        """t, how many holders must answer: no two sets of one round can both get so many."""
        return (self.n_holders + self.faulty_holders) // 2 + 1

    @property
    def hiding_set(self) -> int:
        """h, the fewest users in any combination of the sums opened on one model."""
        return max(3, self.colluders + 2, -(-self.largest_round // 3))

    @property
    def floor_now(self) -> int:
        """The floor of the labels `now`; 0 with noise, where they are off."""
        return self.hiding_set if self.noise is None else 0

    @property
    def floor_ever(self) -> int:
        """The floor of the labels `ever`; 0 where they are off."""
        return max(3, self.colluders + 2) if self.across_rounds else 0

    @cached_property
    def code(self) -> FixedPoint:
        return FixedPoint(bound=self.bound, bits=self.bits)

    def pad(self, length: int) -> Parameters:
        """Return the pad for vectors of this many weights."""
        return choose(self.largest_round, length, self.bits)

    def sharing(self, length: int) -> KeySharing:
        """Return the sharing of the key of a round with vectors of this many weights."""
        return KeySharing(
            needed=self.needed,
            holders=self.n_holders,
            users=self.largest_round,
            degree=self.pad(length).degree,
        )

    def encode(self) -> bytes:
        """The settings as bytes; part of the roster."""
        writer = Writer().number("Q", self.dimension).number("I", self.users)
        writer.number("d", self.bound).number("B", self.bits).number("B", self.n_holders)
        writer.number("I", self.colluders).number("I", self.largest_round)
        writer.number("I", self.fewest).number("B", bool(self.across_rounds))
        writer.number("d", self.clip or 0.0).number("Q", self.rounds).number("B", self.groups)
        noise = self.noise
        records = noise.records if isinstance(noise, RecordShares) else 0
        writer.number("B", 0 if noise is None else 2 if records else 1)
        if noise is not None:
            writer.number("d", noise.clip).number("d", noise.step).number("B", noise.levels)
            writer.number("I", noise.shares).number("d", noise.delta)
        if records:
            writer.number("Q", records)
        return bytes(writer)

    @classmethod
    def decode(cls, data: bytes) -> Settings:
        reader = Reader(data)
        dimension = reader.number("Q")
        settings = cls(
            dimension=dimension,
            users=reader.number("I"),
            bound=reader.real(),
            bits=reader.number("B"),
            holders=reader.number("B"),
            colluders=reader.number("I"),
            most_users=reader.number("I"),
            least_users=reader.number("I"),
            across_rounds=bool(reader.number("B")),
            clip=reader.real() or None,
            rounds=reader.number("Q"),
            groups=reader.number("B"),
            noise=_read_noise(reader, dimension),
        )
        reader.end()
        return settings


def _read_noise(reader: Reader, dimension: int) -> GaussianShares | None:
    kind = reader.number("B")
    if kind not in (0, 1, 2):
        raise ProtocolError(f"settings name a noise of kind {kind}, which is unknown.")
    if kind == 0:
        return None
    clip, step, levels = reader.real(), reader.real(), reader.number("B")
    shares, delta = reader.number("I"), reader.real()
    if kind == 1:
        return GaussianShares(clip=clip, step=step, levels=levels, shares=shares, delta=delta)
    return RecordShares(
        clip=clip,
        step=step,
        levels=levels,
        shares=shares,
        delta=delta,
        dimension=dimension,
        records=reader.number("Q"),
    )
