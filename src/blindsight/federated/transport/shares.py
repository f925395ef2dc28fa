"""Small numbers shared among key holders: any `needed` of them give the sum, fewer know nothing
(Shamir 1979).

User i shares its vector v as values f(1), ..., f(n) of a random polynomial with f(0) = v, entry by
entry, modulo the smallest prime above what all users can add up to. The first needed - 1 holders
get a seed of 16 bytes that their values are drawn from, the others the values that this fixes. Each
goes to its holder under X25519 and AES-GCM, bound to the round, the user and the holder. A holder
adds what the users of the agreed set sent and nothing else; the sum of polynomials is the
polynomial of the sum.

    Hiding: given any needed - 1 values, each v has exactly one polynomial through them; what a seed
    stands for is as good as random while AES is. One liar shows with needed + 1 answers, and with
    needed + 2 is outvoted.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import gmpy2
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.compiled import njit
from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.pad import bits
from blindsight.federated.pad.ring import _less
from blindsight.federated.pad.stream import expand

__all__ = ["MOST_HOLDERS", "Sharing", "public_of"]

MOST_HOLDERS = 32
_LARGEST_ENTRY = 127
_SEED_BYTES = 16


def public_of(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@njit(cache=True, nogil=True)
def _accept(
    words: NDArray[np.uint32], mask: int, prime: int, out: NDArray[np.int64], filled: int
) -> int:
    for word in words:
        value = np.int64(word & np.uint32(mask))
        if value < prime and filled < out.shape[0]:
            out[filled] = value
            filled += 1
    return filled


@njit(cache=True, nogil=True)
def _combine(
    points: NDArray[np.int64], weights: NDArray[np.int64], prime: int, barrett: int, width: int
) -> NDArray[np.int64]:
    """Σ_k weights[k] · points[k] modulo the prime, without a division: shares are secrets."""
    p, factor = np.uint64(prime), np.uint64(barrett)
    low, high = np.uint64(width - 1), np.uint64(width + 7)
    out = np.empty(points.shape[1], dtype=np.int64)
    for i in range(points.shape[1]):
        total = np.uint64(0)
        for k in range(points.shape[0]):
            total += np.uint64(weights[k]) * np.uint64(points[k, i])
        value = total - (((total >> low) * factor) >> high) * p
        out[i] = np.int64(_less(_less(_less(value, p), p), p))
    return out


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Shares of vectors of `length` numbers in [0, 127], summed over at most `users`."""

    needed: int
    holders: int
    users: int
    length: int

    def __post_init__(self) -> None:
        checks.whole("needed", self.needed, least=2)
        if not self.needed <= checks.whole("holders", self.holders, least=2) <= MOST_HOLDERS:
            raise InvalidParameter(
                f"holders must be in [{self.needed}, {MOST_HOLDERS}], got {self.holders}."
            )
        checks.whole("users", self.users)
        checks.whole("length", self.length)

    @cached_property
    def prime(self) -> int:
        """The field: no sum of all users' numbers wraps around."""
        return int(gmpy2.next_prime(max(_LARGEST_ENTRY * self.users, MOST_HOLDERS)))

    @property
    def width(self) -> int:
        """Bits of a value."""
        return self.prime.bit_length()

    def share_bytes(self, holder: int) -> int:
        """Bytes of what one holder gets."""
        plain = _SEED_BYTES if holder < self.needed else -(-self.length * self.width // 8)
        return 32 + plain + 16

    def _weights(self, known: tuple[int, ...], at: int) -> NDArray[np.int64]:
        """Lagrange's: f(at) = Σ weights · f(known)."""
        p = self.prime
        found = []
        for j in known:
            top = bottom = 1
            for m in known:
                if m != j:
                    top, bottom = top * (at - m) % p, bottom * (j - m) % p
            found.append(top * pow(bottom, -1, p) % p)
        return np.array(found, dtype=np.int64)

    def _through(
        self, points: NDArray[np.int64], known: tuple[int, ...], at: int
    ) -> NDArray[np.int64]:
        # width <= 23 bits and at most 32 points: the sum stays below 2^51, the products above below
        # 2^60.
        return _combine(
            points,
            self._weights(known, at),
            self.prime,
            (1 << (2 * self.width + 6)) // self.prime,
            self.width,
        )

    def _drawn(self, seed: bytes) -> NDArray[np.int64]:
        """Uniform values below the prime from a seed: masked, and rejected where too large."""
        out, filled, wanted = np.empty(self.length, dtype=np.int64), 0, 2 * self.length + 64
        while filled < self.length:
            words = np.frombuffer(expand(seed, b"", 4 * wanted), dtype="<u4")
            filled, wanted = _accept(words, (1 << self.width) - 1, self.prime, out, 0), 2 * wanted
        return out

    def share(
        self, vector: NDArray[np.integer], publics: Mapping[int, bytes], bound: bytes
    ) -> dict[int, bytes]:
        """What each holder gets, encrypted to its key; `bound` is what it is bound to."""
        seeds = {j: secrets.token_bytes(_SEED_BYTES) for j in range(1, self.needed)}
        known = (0, *seeds)
        points = np.stack(
            [vector.astype(np.int64), *(self._drawn(seed) for seed in seeds.values())]
        )
        plain: dict[int, bytes] = dict(seeds)
        for j in range(self.needed, self.holders + 1):
            plain[j] = bits.pack(self._through(points, known, j).astype(np.uint64), self.width)
        ephemeral = X25519PrivateKey.generate()
        public = ephemeral.public_key().public_bytes_raw()
        sealed = {}
        for j, data in plain.items():
            secret = ephemeral.exchange(X25519PublicKey.from_public_bytes(publics[j]))
            key = _key(secret, public, publics[j])
            sealed[j] = public + AESGCM(key).encrypt(bytes(12), data, bound + bytes([j]))
        return sealed

    def receive(self, holder: int, private: bytes, data: bytes, bound: bytes) -> NDArray[np.int64]:
        """One holder's values of one user's polynomials; damaged or made for another is refused."""
        if len(data) != self.share_bytes(holder):
            raise ProtocolError("malformed: a share has another length.")
        own = X25519PrivateKey.from_private_bytes(private)
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(data[:32]))
            key = _key(secret, data[:32], own.public_key().public_bytes_raw())
            plain = AESGCM(key).decrypt(bytes(12), data[32:], bound + bytes([holder]))
        except (InvalidTag, ValueError) as error:
            raise ProtocolError("malformed: a share does not open.") from error
        if holder < self.needed:
            return self._drawn(plain)
        values = np.empty(self.length, dtype=np.uint64)
        if bits.unpack(plain, self.width, values) >= self.prime:
            raise ProtocolError("malformed: a share's values must lie below the prime.")
        return values.astype(np.int64)

    def combine(
        self, sums: Mapping[int, NDArray[np.int64]]
    ) -> tuple[NDArray[np.int64], tuple[int, ...]] | None:
        """The summed vector, and who lied; None unless needed + 1 answers lie on one polynomial."""
        answered = tuple(sorted(sums))
        for known in combinations(answered, self.needed):
            points = np.stack([sums[j] for j in known])
            agree = [
                j
                for j in answered
                if j in known or (self._through(points, known, j) == sums[j]).all()
            ]
            if len(agree) > self.needed:
                return self._through(points, known, 0), tuple(j for j in answered if j not in agree)
        return None


def _key(secret: bytes, ephemeral: bytes, static: bytes) -> bytes:
    return HKDF(
        algorithm=SHA256(), length=16, salt=None, info=b"blindsight share" + ephemeral + static
    ).derive(secret)
