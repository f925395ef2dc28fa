"""What all parties agree on before the first round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.noise import GaussianShares
from blindsight.federated.pad.cipher import MOST_VALUE_BITS
from blindsight.federated.pad.parameters import LONGEST, Parameters, choose
from blindsight.federated.wire import Reader, Writer

__all__ = ["Mode", "Settings"]

Mode = Literal["pad", "paper"]
_LARGEST_USERS = 1 << 16
_NO_LIMIT = 1 << 32
_MOST_SUBSETS = 5_000  # of holders, each of which may have to be tried


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One federation's agreement.

    Parameters:
        dimension: D, the length of every update. users: N, how many users are enrolled; the sum of
        all of them must fit. mode: "pad" (the vector under a lattice pad, default) or "paper"
        (Algorithm 1 to the letter). bound: fixed point: weights in [-bound, bound] as whole numbers
        of `bits` bits. bits: fixed point: weights in [-bound, bound] as whole numbers of `bits`
        bits. least_users: N_min, the fewest contributors of a round that is opened; never below 3.
        colluders: how many users may tell the aggregator what they know without anybody else being
        seen through. group: users come in fixed groups of at least that many, and only whole groups
        are summed: whatever sums are
            ever opened are sums of groups. 1: any users. None: colluders + 2 (at least 3) without
            noise, 1 with noise.
        least_per_coordinate: t; above 1 a round of votes comes first, and only coordinates that at
        least t users have
            in their support are sent at all.
        rounds: R, how many sums of values a user lets be opened with it in them; with noise, how
        often it contributes. holders: None for one key generator, or (needed, holders): so many of
        so many key holders open a round together. capacity: M of the paper; None is the paper's
        ceil(0.1 D). noise: what every user adds its share of, the very object that the guarantee
        prices
            (`blindsight.federated.noise`); `bound` and `bits` are then those of its code. None: no
            noise.
    """

    dimension: int
    users: int
    mode: Mode = "pad"
    bound: float = 1.0
    bits: int = 16
    least_users: int = 3
    colluders: int = 1
    group: int | None = None
    least_per_coordinate: int = 1
    rounds: int = _NO_LIMIT
    holders: tuple[int, int] | None = None
    capacity: int | None = None
    noise: GaussianShares | None = None

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension)
        checks.whole("users", self.users, least=3)
        checks.whole("rounds", self.rounds)
        if self.dimension > LONGEST or self.users > _LARGEST_USERS:
            raise InvalidParameter(
                f"at most {LONGEST:,} weights and {_LARGEST_USERS:,} users, got {self.dimension:,} "
                f"and {self.users:,}."
            )
        checks.one_of("mode", self.mode, get_args(Mode))
        self._check_noise()
        self._check_users()
        if self.capacity is not None and checks.whole("capacity", self.capacity) > self.dimension:
            raise InvalidParameter(
                f"capacity must be at most {self.dimension}, got {self.capacity}."
            )
        if self.code.bits + self.users.bit_length() > 62:
            raise InvalidParameter(
                f"the sum of {self.users:,} values of {self.bits} bits must fit 62 bits."
            )
        if self.mode == "pad":
            if self.bits > MOST_VALUE_BITS:
                raise InvalidParameter(
                    f"bits must be at most {MOST_VALUE_BITS} under a pad, got {self.bits}."
                )
            _ = self.pad(self.dimension)
        elif self.holders is not None or self.least_per_coordinate > 1:
            raise InvalidParameter('key holders and votes need mode="pad".')

    def _check_users(self) -> None:
        # With two users each gets the other's update by subtracting its own (Section 2.5).
        if not 3 <= checks.whole("least_users", self.least_users, least=3) <= self.users:
            raise InvalidParameter(
                f"least_users must be in [3, {self.users}], got {self.least_users}."
            )
        if checks.whole("colluders", self.colluders, least=0) > self.users - 2:
            raise InvalidParameter(
                f"colluders must be at most {self.users - 2}, got {self.colluders}."
            )
        if self.group is None:
            whole = self.mode == "pad" and self.noise is None
            object.__setattr__(self, "group", max(3, self.colluders + 2) if whole else 1)
        group = checks.whole("group", self.group)
        if group != 1 and not max(3, self.colluders + 2) <= group <= self.users:
            raise InvalidParameter(
                f"group must be 1 or in [{max(3, self.colluders + 2)}, {self.users}], so that "
                "colluders see the sum "
                f"of at least two others, got {group}."
            )
        if group == 1 and self.mode == "pad" and self.least_users < self.colluders + 2:
            raise InvalidParameter(
                f"least_users must be at least {self.colluders + 2}, so that {self.colluders} "
                "colluders see the sum of "
                f"at least two others, got {self.least_users}."
            )
        if checks.whole("least_per_coordinate", self.least_per_coordinate) > self.users:
            raise InvalidParameter(
                f"least_per_coordinate must be at most {self.users}, got "
                f"{self.least_per_coordinate}."
            )
        if self.holders is not None:
            needed, total = self.holders
            checks.whole("needed holders", needed, least=2)
            # Answers must be checked against one more than are needed, and no two sets may get
            # enough votes.
            if not needed + 2 <= checks.whole("holders", total) <= 32:
                raise InvalidParameter(
                    f"holders must be in [{needed + 2}, 32] where {needed} are needed, got {total}."
                )
            if math.comb(total, needed) > _MOST_SUBSETS:
                raise InvalidParameter(
                    f"{needed} of {total} holders are too many subsets to find liars in."
                )
            object.__setattr__(self, "holders", (needed, total))

    def _check_noise(self) -> None:
        if self.noise is None:
            return
        if not isinstance(self.noise, GaussianShares):
            raise InvalidParameter(
                f"noise must be a GaussianShares or None, got {type(self.noise).__name__}."
            )
        if self.mode != "pad" or self.least_per_coordinate > 1:
            raise InvalidParameter(
                'noise needs mode="pad" and no votes: every coordinate carries noise.'
            )
        # A sum of all shares that leaves its slot would spoil the whole sum, so the widest share
        # must fit.
        if self.code != self.noise.code():
            raise InvalidParameter("with noise, bound and bits must be those of its code.")
        if self.noise.shares > self.least_users - self.colluders:
            raise InvalidParameter(
                f"the noise counts {self.noise.shares} shares, but of {self.least_users} "
                f"contributors {self.colluders} "
                "may tell theirs."
            )

    @cached_property
    def code(self) -> FixedPoint:
        """The fixed-point code."""
        return FixedPoint(bound=self.bound, bits=self.bits)

    @property
    def m(self) -> int:
        """M, the encryption capacity (Section 3.1: ceil(0.1 D))."""
        return -(-self.dimension // 10) if self.capacity is None else self.capacity

    def pad(self, length: int, *, votes: bool = False) -> Parameters:
        """The pad for vectors of that many weights, or of that many votes."""
        return choose(self.users, length, 1 if votes else self.bits)

    def groups(self) -> list[range]:
        """Users by group; the last one takes those who are left over."""
        size = self.group or 1
        count = self.users // size
        starts = [1 + i * size for i in range(count)] + [self.users + 1]
        return [range(a, b) for a, b in pairwise(starts)]

    def whole_groups(self, present: set[int]) -> tuple[int, ...]:
        """Those of the users present whose groups are complete."""
        return tuple(user for group in self.groups() if present.issuperset(group) for user in group)

    @property
    def unguarded(self) -> bool:
        """Whether any users are summed without noise: two sums on one model may then differ by one
        user's update.
        """
        return self.group == 1 and self.noise is None

    @property
    def confirmations(self) -> int:
        """How many users must confirm a round's set: two sets can't both have that many honest
        ones.
        """
        return (self.users + self.colluders) // 2 + 1

    @property
    def votes(self) -> int:
        """How many key holders must vote for a set, fewer than `needed` of them being dishonest."""
        if self.holders is None:
            return 0
        needed, total = self.holders
        return (total + needed - 1) // 2 + 1

    def encode(self) -> bytes:
        """Bytes, for storing and for the agreement's digest."""
        writer = Writer()
        writer.number("Q", self.dimension).number("I", self.users).text(self.mode).number(
            "d", self.bound
        )
        writer.number("B", self.bits).number("I", self.least_users).number("I", self.colluders)
        writer.number("I", self.group or 1).number("I", self.least_per_coordinate).number(
            "Q", self.rounds
        )
        needed, total = self.holders or (0, 0)
        writer.number("B", needed).number("B", total).number("Q", self.capacity or 0)
        noise = self.noise
        writer.number("B", noise is not None)
        if noise is not None:
            writer.number("d", noise.clip).number("d", noise.step).number("B", noise.levels)
            writer.number("I", noise.shares).number("d", noise.delta)
        return bytes(writer)

    @classmethod
    def decode(cls, data: bytes) -> Settings:
        """The inverse of `encode`."""
        reader = Reader(data)
        settings = cls(
            dimension=reader.number("Q"),
            users=reader.number("I"),
            mode=reader.text(),  # type: ignore[arg-type]
            bound=reader.real(),
            bits=reader.number("B"),
            least_users=reader.number("I"),
            colluders=reader.number("I"),
            group=reader.number("I"),
            least_per_coordinate=reader.number("I"),
            rounds=reader.number("Q"),
            holders=_pair(reader.number("B"), reader.number("B")),
            capacity=reader.number("Q") or None,
            noise=_noise(reader) if reader.number("B") else None,
        )
        reader.end()
        return settings


def _pair(needed: int, total: int) -> tuple[int, int] | None:
    return (needed, total) if needed else None


def _noise(reader: Reader) -> GaussianShares:
    return GaussianShares(
        clip=reader.real(),
        step=reader.real(),
        levels=reader.number("B"),
        shares=reader.number("I"),
        delta=reader.real(),
    )
