"""What all parties agree on before the first round. Its digest is part of what opens a round."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.packing import Count, Packing
from blindsight.federated.paillier import PublicKey
from blindsight.federated.wire import Reader, Writer

__all__ = ["Mode", "Settings", "Support"]

Mode = Literal["block", "paper"]
Support = Literal["sparse", "hidden"]
_LARGEST_DIMENSION = 1 << 28
_LARGEST_USERS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One federation's agreement.

    Parameters
    ----------
    dimension: D, the length of every update.
    users: N, how many users are enrolled; the sum of all of them must fit.
    mode: "block" (packed, default) or "paper" (Algorithm 1 to the letter).
    bound, bits: fixed point: weights in [-bound, bound] as whole numbers of `bits` bits.
    least_users: N_min, the fewest contributors of a round that is opened; never below 3.
    least_per_coordinate: t, the fewest contributors of a coordinate that is revealed ("block" mode).
    count: "coordinate" counts contributors of each coordinate inside the ciphertext; "block" counts a user as a
        contributor to every coordinate of a block it sends, which saves bytes and withholds less.
    support: "sparse" sends non-empty blocks only, "hidden" all of them, so that a message's size tells nothing.
    capacity: M of the paper; None is the paper's ceil(0.1 D).
    clip, noise_variance: with noise, the l2 bound of an update and the variance of one user's share, in grid steps
        (`blindsight.federated.noise` computes both); None and 0 without.
    """

    dimension: int
    users: int
    mode: Mode = "block"
    bound: float = 1.0
    bits: int = 16
    least_users: int = 3
    least_per_coordinate: int = 3
    count: Count = "coordinate"
    support: Support = "sparse"
    capacity: int | None = None
    clip: float | None = None
    noise_variance: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension)
        checks.whole("users", self.users, least=3)
        if self.dimension > _LARGEST_DIMENSION or self.users > _LARGEST_USERS:
            raise InvalidParameter(
                f"at most {_LARGEST_DIMENSION:,} weights and {_LARGEST_USERS:,} users, "
                f"got {self.dimension:,} and {self.users:,}."
            )
        checks.one_of("mode", self.mode, get_args(Mode))
        checks.one_of("support", self.support, get_args(Support))
        checks.one_of("count", self.count, get_args(Count))
        # With two users each gets the other's update by subtracting its own (Section 2.5).
        if not 3 <= checks.whole("least_users", self.least_users, least=3) <= self.users:
            raise InvalidParameter(f"least_users must be in [3, {self.users}], got {self.least_users}.")
        if checks.whole("least_per_coordinate", self.least_per_coordinate) > self.users:
            raise InvalidParameter(
                f"least_per_coordinate must be at most {self.users}, got {self.least_per_coordinate}."
            )
        object.__setattr__(self, "noise_variance", Fraction(self.noise_variance))
        self._check_noise()
        if self.capacity is not None and checks.whole("capacity", self.capacity) > self.dimension:
            raise InvalidParameter(f"capacity must be at most {self.dimension}, got {self.capacity}.")
        if self.code.bits + self.users.bit_length() > 62:
            raise InvalidParameter(f"the sum of {self.users:,} values of {self.bits} bits must fit 62 bits.")

    def _check_noise(self) -> None:
        if (self.clip is None) != (self.noise_variance == 0):
            raise InvalidParameter("clip and noise_variance go together: give both or neither.")
        if self.clip is None:
            return
        checks.positive("clip", self.clip)
        if self.mode != "block" or self.support != "hidden":
            raise InvalidParameter('noise needs mode="block" and support="hidden": every coordinate carries noise.')

    @cached_property
    def code(self) -> FixedPoint:
        """The fixed-point code."""
        return FixedPoint(bound=self.bound, bits=self.bits)

    @property
    def m(self) -> int:
        """M, the encryption capacity (Section 3.1: ceil(0.1 D))."""
        return -(-self.dimension // 10) if self.capacity is None else self.capacity

    def packing(self, public: PublicKey) -> Packing:
        """The layout of a block under a key."""
        return Packing(plaintext_bits=public.plaintext_bits, value_bits=self.bits, users=self.users, count=self.count)

    def places(self, public: PublicKey) -> int:
        """What the permutations permute: blocks, or coordinates in "paper" mode."""
        return self.dimension if self.mode == "paper" else self.packing(public).blocks(self.dimension)

    def contribution_bytes(self, public: PublicKey, ciphertexts: int) -> int:
        """The exact size of a contribution with that many ciphertexts; see docs/federated-protocol.md."""
        dense = self.mode == "block" and ciphertexts == self.places(public)
        return 72 + 9 + ciphertexts * (public.ciphertext_bytes + (0 if dense else 4)) + 64

    def encode(self) -> bytes:
        """Bytes, for storing and for the digest."""
        writer = Writer()
        writer.number("Q", self.dimension).number("I", self.users).text(self.mode).number("d", self.bound)
        writer.number("B", self.bits).number("I", self.least_users).number("I", self.least_per_coordinate)
        writer.text(self.count).text(self.support).number("Q", self.capacity or 0)
        writer.number("d", self.clip or 0.0).text(str(self.noise_variance))
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
            least_per_coordinate=reader.number("I"),
            count=reader.text(),  # type: ignore[arg-type]
            support=reader.text(),  # type: ignore[arg-type]
            capacity=reader.number("Q") or None,
            clip=reader.real() or None,
            noise_variance=Fraction(reader.text()),
        )
        reader.end()
        return settings

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that stand for the whole agreement."""
        return hashlib.sha256(b"blindsight federation settings" + self.encode()).digest()
