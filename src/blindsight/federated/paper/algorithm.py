"""Algorithm 1 of Yonetani et al. (2017) in one process: decompose, permute twice, encrypt,
multiply, decrypt, reorder.

Permutations φ (user-shared) and φ^(n) (user-aggregator) of Sections 2.3 and 2.4 are derived from a
shared secret. A permutation is an array `to`: entry i moves to position to[i]. It is drawn by
sorting pseudo-random 64-bit keys, which is exactly uniform given distinct keys; if two coincide
(probability below D²/2^65), the next part of the stream is used. The stream is SHAKE-256 of the
secret and the purpose, so nobody has to send a permutation.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from gmpy2 import mpz
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.paper.paillier import PrivateKey, PublicKey, generate
from blindsight.federated.sums.messages import RoundSum
from blindsight.federated.sums.simulation import RoundResult, Transcript
from blindsight.federated.sums.wire import Reader, Writer

__all__ = [
    "PaperSettings",
    "PaperSimulation",
    "Shard",
    "combine",
    "decompose",
    "inverse",
    "open_sum",
    "permutation",
    "shards",
    "shared_places",
    "user_places",
]


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """The settings of the paper's protocol.

    Parameters:
        dimension: the length of every update.
        users: the number of users.
        bound: weights in fixed point lie in [-bound, bound].
        bits: the bits of a weight in fixed point.
        capacity: M, the number of ciphertexts in a message; by default ceil(0.1 dimension) (Section
            3.1).
    """

    dimension: int
    users: int
    bound: float = 1.0
    bits: int = 16
    capacity: int | None = None
    noise: None = None

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension)
        checks.whole("users", self.users, least=3)
        if self.capacity is not None and checks.whole("capacity", self.capacity) > self.dimension:
            raise InvalidParameter(
                f"capacity must be at most {self.dimension}, got {self.capacity}."
            )
        if self.code.bits + self.users.bit_length() > 62:
            raise InvalidParameter(
                f"the sum of {self.users:,} values of {self.bits} bits must fit 62 bits."
            )

    @cached_property
    def code(self) -> FixedPoint:
        return FixedPoint(bound=self.bound, bits=self.bits)

    @property
    def m(self) -> int:
        """The encryption capacity M, which is a tenth of the dimension by default."""
        return -(-self.dimension // 10) if self.capacity is None else self.capacity

    def encode(self) -> bytes:
        writer = Writer().raw(b"P").number("Q", self.dimension).number("I", self.users)
        return bytes(writer.number("d", self.bound).number("B", self.bits).number("Q", self.m))

    @classmethod
    def decode(cls, data: bytes) -> PaperSettings:
        reader = Reader(data)
        reader.raw(1)
        settings = cls(
            dimension=reader.number("Q"),
            users=reader.number("I"),
            bound=reader.real(),
            bits=reader.number("B"),
            capacity=reader.number("Q"),
        )
        reader.end()
        return settings


def permutation(secret: bytes, purpose: str, size: int) -> NDArray[np.intp]:
    """Return the permutation of `size` entries that follows from the secret and the purpose."""
    # Length-prefixed fields, so that no two inputs have the same encoding.
    head = b"".join(len(part).to_bytes(4, "little") + part for part in (secret, purpose.encode()))
    for attempt in range(16):
        keys = np.frombuffer(
            hashlib.shake_256(head + bytes([attempt])).digest(8 * size), dtype="<u8"
        )
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return inverse(order)
    raise AssertionError("sixteen streams with equal keys: impossible at any real size")


def inverse(to: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return φ^T = φ^-1 (below Equation 8)."""
    back = np.empty_like(to)
    back[to] = np.arange(len(to))
    return back


@dataclass(frozen=True)
class Shard:
    """A part of a user's message: twice-permuted positions, and as many ciphertexts."""

    places: NDArray[np.uint32]
    ciphertexts: tuple[mpz, ...] = field(repr=False)


def shared_places(settings: PaperSettings, seed: bytes) -> NDArray[np.intp]:
    """Return φ, which users share and use in all rounds (Section 2.3)."""
    return permutation(seed, "user-shared permutation", settings.dimension)


def user_places(settings: PaperSettings, seed: bytes) -> NDArray[np.intp]:
    """Return φ^(n), which user n shares with the aggregator in all rounds (Section 2.4)."""
    return permutation(seed, "user-aggregator permutation", settings.dimension)


def shards(support: NDArray[np.bool_], capacity: int) -> list[NDArray[np.intp]]:
    """Split the support into F parts of at most M indices (Section 2.3, choosing M)."""
    indices = np.flatnonzero(support)
    return np.array_split(indices, max(1, math.ceil(indices.size / capacity)))


def decompose(
    numbers: NDArray[np.int64], indices: NDArray[np.intp], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Decompose w = K v (Equation 3) into v of exactly M values, and K as the index of each value.

    Each column of K has one 1 and each row at most one, so v is filled up with zeros of other
    indices.
    """
    spare = np.setdiff1d(np.arange(len(numbers)), indices, assume_unique=True)[
        : capacity - len(indices)
    ]
    values = np.concatenate([numbers[indices], np.zeros(len(spare), dtype=np.int64)])
    return values, np.concatenate([indices, spare])


def combine(
    settings: PaperSettings,
    public: PublicKey,
    products: Mapping[int, mpz],
    counts: NDArray[np.int64],
    messages: int,
) -> list[mpz]:
    """Combine the messages (line 5): φ ζ(w_sum) = ⊙ φ ζ(w^(n)) (Equations 2 and 4).

    By Equation 5, φ ζ(w^(n)) = Y^(n) + Enc0 · Z^(n). `products` holds at each position the product
    of the Y^(n) of Equation 6. Z^(n) is 1 where message n has no entry, so over all messages a
    position takes Enc0 to the power (messages - counts). Enc0 is computed once.
    """
    enc0 = public.encrypt(0)
    powers = [mpz(1)]
    for _ in range(messages):
        powers.append(powers[-1] * enc0 % public.modulus)
    return [
        products.get(position, mpz(1)) * powers[messages - int(counts[position])] % public.modulus
        for position in range(settings.dimension)
    ]


def open_sum(
    settings: PaperSettings,
    private: PrivateKey,
    shared_seed: bytes,
    contributors: tuple[int, ...],
    ciphertexts: list[mpz],
    *,
    workers: int = 1,
) -> RoundSum:
    """Decrypt (line 6), reorder by φ^T, and return every coordinate of w_sum.

    The key generator does not check what it is asked to decrypt.
    """
    modulus = private.public.n
    half = modulus // 2
    plaintexts = private.decrypt_many(ciphertexts, workers=workers)
    signed = [int(x - modulus if x > half else x) for x in plaintexts]
    if any(abs(x) > settings.users * settings.code.largest for x in signed):
        raise ProtocolError(
            "a sum is larger than all users together can add: one of them sent nonsense."
        )
    values = np.empty(settings.dimension, dtype=np.int64)
    values[inverse(shared_places(settings, shared_seed))] = np.array(signed, dtype=np.int64)
    return RoundSum(contributors, values)


class PaperSimulation:
    """The parties of Algorithm 1 in one process; all of them follow the protocol.

    It reproduces the paper with its weaknesses, which `blindsight.audit.methods.federated`
    measures. Use `blindsight.federated.sums` for anything else.

    Parameters:
        settings: the settings.
        key: the key generator's Paillier key; by default a fresh one of `key_bits` bits.
        key_bits: the length of a fresh key.
        encrypt: False computes the same sums in plain integers.
        workers: threads for encryption and decryption.
    """

    def __init__(
        self,
        settings: PaperSettings,
        *,
        key: PrivateKey | None = None,
        key_bits: int = 2048,
        encrypt: bool = True,
        workers: int = 1,
    ) -> None:
        self.settings, self.encrypt, self.workers = settings, encrypt, workers
        self.key_bits = key_bits if key is None else key.public.bits
        self._key = generate(key_bits) if encrypt and key is None else key
        self.shared_seed = secrets.token_bytes(32)
        self.user_seeds = {n: secrets.token_bytes(32) for n in range(1, settings.users + 1)}
        self._round = 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a simulation holds private keys and is never pickled or copied.")

    @property
    def code(self) -> FixedPoint:
        """The fixed-point code of the updates."""
        return self.settings.code

    @property
    def key(self) -> PrivateKey:
        if self._key is None:
            raise ProtocolError("a simulation without encryption has no key.")
        return self._key

    def contribution(
        self,
        user: int,
        update: ArrayLike,
        support: NDArray[np.bool_] | None = None,
    ) -> list[Shard]:
        """Return ζ(v) and Φ(K) = φ^(n) φ K (lines 3 and 4, Equation 7), one message per shard."""
        settings, public = self.settings, self.key.public
        numbers, chosen = self._numbers(update, support)
        shared = shared_places(settings, self.shared_seed)
        own = user_places(settings, self.user_seeds[user])
        result = []
        for part in shards(chosen, settings.m):
            values, indices = decompose(numbers, part, settings.m)
            # Footnote 2: a negative value is encoded as its residue modulo n.
            plain = [mpz(int(v)) % public.n for v in values]
            encrypted = public.encrypt_many(plain, workers=self.workers)
            result.append(Shard(own[shared[indices]].astype(np.uint32), tuple(encrypted)))
        return result

    def _numbers(
        self, update: ArrayLike, support: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        values = checks.finite_array("update", update, ndim=1)
        if len(values) != self.settings.dimension:
            raise InvalidData(
                f"an update must have {self.settings.dimension} weights, got {len(values)}."
            )
        chosen = values != 0 if support is None else np.asarray(support, dtype=bool)
        if chosen.shape != values.shape or (values[~chosen] != 0).any():
            raise InvalidData(
                "support must have one entry for each weight and be true wherever the update is "
                "not zero."
            )
        return self.settings.code.encode(values), chosen

    def aggregate(self, contributions: Mapping[int, Sequence[Shard]]) -> list[mpz]:
        """Return the product of all users' ciphertexts in the order of φ (line 5)."""
        settings, modulus = self.settings, self.key.public.modulus
        products: dict[int, mpz] = {}
        counts, messages = np.zeros(settings.dimension, dtype=np.int64), 0
        for user, parts in contributions.items():
            back = inverse(user_places(settings, self.user_seeds[user]))
            for part in parts:
                permuted = back[part.places.astype(np.intp)]  # Equation 8: φK = φ^(n)^T Φ(K)
                for position, ciphertext in zip(permuted.tolist(), part.ciphertexts, strict=True):
                    products[position] = products.get(position, mpz(1)) * ciphertext % modulus
                counts[permuted] += 1
                messages += 1
        return combine(settings, self.key.public, products, counts, messages)

    def decrypt(self, contributors: Sequence[int], ciphertexts: list[mpz]) -> RoundSum:
        """Return the key generator's answer (line 6), which it gives to any request."""
        return open_sum(
            self.settings,
            self.key,
            self.shared_seed,
            tuple(sorted(contributors)),
            ciphertexts,
            workers=self.workers,
        )

    def expect(self, model: bytes) -> None:
        """Do nothing: the paper's users accept any model."""

    def round(
        self,
        updates: Mapping[int, ArrayLike] | Sequence[ArrayLike],
        *,
        model: bytes = b"",
        supports: Mapping[int, NDArray[np.bool_]] | None = None,
        only: NDArray[np.bool_] | None = None,
        dropouts: Collection[int] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> RoundResult:
        """Run one round over all users who are present; `model` and `only` have no effect."""
        by_user = (
            updates if isinstance(updates, Mapping) else {i + 1: u for i, u in enumerate(updates)}
        )
        present = {u: v for u, v in sorted(by_user.items()) if u not in dropouts}
        if len(present) < 3:
            raise ProtocolError(f"at least 3 users must be present, got {len(present)}.")
        self._round += 1
        start = time.perf_counter()
        total = np.zeros(self.settings.dimension, dtype=np.int64)
        contributions: dict[int, list[Shard]] = {}
        sent: dict[int, int] = {}
        each = 8 + self.settings.m * (self.key_bits // 4 + 4)
        for done, (user, update) in enumerate(present.items(), start=1):
            support = None if supports is None else supports.get(user)
            numbers, chosen = self._numbers(update, support)
            total += numbers
            sent[user] = each * len(shards(chosen, self.settings.m))
            if self.encrypt:
                contributions[user] = self.contribution(user, update, support)
            if progress is not None:
                progress(done, len(present))
        opened = RoundSum(tuple(present), total)
        if self.encrypt:
            opened = self.decrypt(tuple(present), self.aggregate(contributions))
        seconds = time.perf_counter() - start
        return RoundResult(
            round=self._round,
            total=self.settings.code.decode(opened.values),
            revealed=np.ones(self.settings.dimension, dtype=bool),
            contributors=opened.contributors,
            bytes_per_user=sent,
            seconds={"users": 0.0, "aggregator": 0.0, "holders": 0.0, "total": seconds},
            transcript=Transcript(),
        )
