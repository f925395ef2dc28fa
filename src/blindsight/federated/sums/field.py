"""The field F_P with P = 2^61 - 1: tags of vectors, and Shamir's secret sharing of keys and tags.

Arithmetic on secrets has no branch and no division: products are folded (2^61 is 1 modulo P), and
the last subtraction of P is masked.

A vector's *tag* is κ' + Σ κ_j m_j modulo P under a key that users share and the aggregator does not
have. The tags of k vectors add up to k κ' plus the inner product of κ with their sum, so users can
check the sum that they are shown. Because of the constant κ', the tag of any other sum can only be
guessed: without it the tag of twice the sum would be twice the opened tag.

A *key* is summed in secret. It has the N entries of a pad's secret s, each as s + 64 in
[1, 127], and the tag. Entries are packed w bits each, ⌊60 / w⌋ to a field element, lowest first,
where w is the bit length of 127 K and K the largest number of summed users; so no sum carries into
the next entry. The last element is the tag.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import njit
from blindsight.federated.sums.pad.ring import _less
from blindsight.federated.sums.pad.sampler import Stream, expand

__all__ = ["KeySharing", "P", "add", "fold_sum", "interpolate", "multiply", "tag", "uniform"]

P: Final = (1 << 61) - 1
OFFSET: Final = 64
LARGEST_ENTRY: Final = 127
SEED_BYTES: Final = 16
Elements = NDArray[np.uint64]
_P, _ONE = np.uint64(P), np.uint64(1)
_30, _31, _32, _61 = np.uint64(30), np.uint64(31), np.uint64(32), np.uint64(61)
_LOW30, _LOW31, _LOW32 = (np.uint64((1 << bits) - 1) for bits in (30, 31, 32))
_CHUNK = 1 << 20  # coefficients under one nonce
_PIECE = 1 << 13  # coefficients at a time, so that they stay in the processor's cache
_CONSTANT_NONCE = b"\xff" * 4  # of κ'; chunks of coefficients never reach it
_PROBE = 64  # elements that are checked before the others are computed


@njit(cache=True, nogil=True)
def _fold(x: np.uint64) -> np.uint64:
    return (x & _P) + (x >> _61)


@njit(cache=True, nogil=True)
def _reduced(x: np.uint64) -> np.uint64:
    """x modulo P for any 64-bit x."""
    return _less(_fold(x), _P)


@njit(cache=True, nogil=True)
def _product(x: np.uint64, y: np.uint64) -> np.uint64:
    """x y modulo P, for x and y below 2^61, by halves of 31 bits."""
    x1, x0 = x >> _31, x & _LOW31
    y1, y0 = y >> _31, y & _LOW31
    middle = x1 * y0 + x0 * y1
    # 2^62 is 2 and 2^61 is 1 modulo P.
    total = ((x1 * y1) << _ONE) + (middle >> _30) + ((middle & _LOW30) << _31) + _fold(x0 * y0)
    return _reduced(total)


@njit(cache=True, nogil=True)
def _dot(keys: Elements, values: Elements, limbs: Elements) -> None:
    """limbs += Σ keys[i] values[i] = c0 + 2^32 c1 + 2^64 c2 + 2^96 c3, of fewer than 2^30 terms.

    Halves of 32 bits are what vector instructions multiply, and sums of halves need no reduction.
    """
    c0 = c1 = c2 = c3 = np.uint64(0)
    for i in range(values.shape[0]):
        k0, k1 = keys[i] & _LOW32, keys[i] >> _32
        m0, m1 = values[i] & _LOW32, values[i] >> _32
        low, cross, cross_back, high = k0 * m0, k0 * m1, k1 * m0, k1 * m1
        c0 += low & _LOW32
        c1 += (low >> _32) + (cross & _LOW32) + (cross_back & _LOW32)
        c2 += (cross >> _32) + (cross_back >> _32) + (high & _LOW32)
        c3 += high >> _32
    limbs[0] += c0
    limbs[1] += c1
    limbs[2] += c2
    limbs[3] += c3


@njit(cache=True, nogil=True)
def _add_into(total: Elements, x: Elements) -> None:
    for i in range(total.shape[0]):
        total[i] = _reduced(total[i] + x[i])


@njit(cache=True, nogil=True)
def _combine(points: Elements, weights: Elements) -> Elements:
    """Σ_k weights[k] · points[k], element by element."""
    out = np.zeros(points.shape[1], dtype=np.uint64)
    for k in range(points.shape[0]):
        for i in range(points.shape[1]):
            out[i] = _reduced(out[i] + _product(weights[k], points[k, i]))
    return out


def multiply(x: int, y: int) -> int:
    """x · y modulo P, by the routine that is used on vectors; x and y are below P."""
    return int(_product(np.uint64(x), np.uint64(y)))


def add(x: int, y: int) -> int:
    """x + y modulo P for elements below P."""
    return int(_reduced(np.uint64(x) + np.uint64(y)))


def fold_sum(total: Elements, x: Elements) -> None:
    """total += x modulo P, in place."""
    _add_into(total, x)


def tag(seed: bytes, context: bytes, values: NDArray[np.unsignedinteger], users: int = 1) -> int:
    """The tag users · κ' + Σ κ_j m_j modulo P of the sum m of so many users' vectors.

    κ is AES-128 in counter mode under the first 16 bytes of SHA-256("blindsight tag 3" ‖ seed ‖
    context): for coefficient j, the j mod 2^20-th little-endian 64-bit word of the stream whose
    nonce is ⌊j / 2^20⌋, reduced modulo P after its top three bits are folded onto its low bits; κ'
    is the first word of the stream whose nonce is 2^32 - 1.

    Parameters:
        seed: the tag seed that users share.
        context: the round's context.
        values: whole numbers in [0, 2^61).
        users: how many vectors were summed.

    Returns:
        The tag, below P.
    """
    stream = Stream(hashlib.sha256(b"blindsight tag 3" + seed + context).digest()[:16])
    stream.start(_CONSTANT_NONCE)
    word = int.from_bytes(stream.read(8), "little")
    total = multiply(int(_reduced(np.uint64(word))), users)
    for chunk in range(-(-len(values) // _CHUNK)):
        stream.start(chunk.to_bytes(4, "little"))
        part, limbs = values[chunk * _CHUNK : (chunk + 1) * _CHUNK], np.zeros(4, dtype=np.uint64)
        for start in range(0, len(part), _PIECE):
            piece = part[start : start + _PIECE].astype(np.uint64, copy=False)
            keys = np.frombuffer(stream.read(8 * len(piece)), dtype="<u8")
            _dot(keys.astype(np.uint64, copy=False), piece, limbs)
        for position, limb in enumerate(limbs):
            total = add(total, multiply(int(_reduced(limb)), (1 << 32 * position) % P))
    return total


def uniform(seed: bytes, count: int) -> Elements:
    """`count` uniform field elements from a seed: 61 bits of each AES-CTR word, P itself left out.

    A word is left out with probability 2^-61; then the next word of the stream is used.
    """
    out = np.empty(0, dtype=np.uint64)
    wanted = count
    while len(out) < count:
        words = np.frombuffer(expand(seed, b"", 8 * wanted), dtype="<u8").astype(np.uint64) & _P
        out, wanted = words[words != _P], wanted + 64
    return out[:count]


def _weights(xs: Sequence[int], at: int) -> Elements:
    """Lagrange's coefficients: f(at) = Σ weights · f(known)."""
    weights = []
    for j in xs:
        top = bottom = 1
        for m in xs:
            if m != j:
                top, bottom = top * (at - m) % P, bottom * (j - m) % P
        weights.append(top * pow(bottom, -1, P) % P)
    return np.array(weights, dtype=np.uint64)


def interpolate(points: Mapping[int, Elements], at: int = 0) -> Elements:
    """The value at `at` of the polynomials of lowest degree through all given points."""
    xs = tuple(sorted(points))
    return _combine(np.stack([points[j] for j in xs]), _weights(xs, at))


@dataclass(frozen=True, kw_only=True)
class KeySharing:
    """Sharing of a pad's key among holders: any `needed` of `holders` shares determine it.

    Parameters:
        needed: t, the number of shares that determine the key; fewer reveal nothing.
        holders: n, the number of shares.
        users: K, the largest number of users whose keys are added.
        degree: N, the number of entries of the pad's secret.
    """

    needed: int
    holders: int
    users: int
    degree: int

    @property
    def width(self) -> int:
        """Bits of one packed entry."""
        return (LARGEST_ENTRY * self.users).bit_length()

    @property
    def per_element(self) -> int:
        """Entries in one field element."""
        return 60 // self.width

    @property
    def elements(self) -> int:
        """Field elements of a key, the tag included."""
        return -(-self.degree // self.per_element) + 1

    def plain_bytes(self, holder: int) -> int:
        """Bytes of one holder's share: a seed for the first t - 1 holders, elements for others."""
        return SEED_BYTES if holder < self.needed else 8 * self.elements

    def pack(self, secret: NDArray[np.int8], value: int) -> Elements:
        """Return a pad's secret and a tag as field elements."""
        entries = np.zeros((self.elements - 1) * self.per_element, dtype=np.uint64)
        entries[: self.degree] = (secret.astype(np.int64) + OFFSET).astype(np.uint64)
        rows = entries.reshape(-1, self.per_element)
        packed = np.zeros(self.elements, dtype=np.uint64)
        for position in range(self.per_element):
            packed[:-1] |= rows[:, position] << np.uint64(position * self.width)
        packed[-1] = value
        return packed

    def unpack(self, total: Elements, users: int) -> tuple[NDArray[np.int64], int] | None:
        """Return the summed secret and the summed tag of this many users' keys.

        Returns None if an entry is outside the range of such a sum, as it nearly always is for
        elements that are not a sum of keys.
        """
        rows = np.empty((self.elements - 1, self.per_element), dtype=np.uint64)
        mask = np.uint64((1 << self.width) - 1)
        for position in range(self.per_element):
            rows[:, position] = total[:-1] >> np.uint64(position * self.width) & mask
        if (total[:-1] >> np.uint64(self.per_element * self.width)).any():
            return None
        entries = rows.ravel()
        inside, padding = entries[: self.degree].astype(np.int64), entries[self.degree :]
        if padding.any() or (inside < users).any() or (inside > LARGEST_ENTRY * users).any():
            return None
        return inside - OFFSET * users, int(total[-1])

    def share(self, key: Elements) -> dict[int, bytes]:
        """One plain share for each holder: seeds first, then values of the polynomials."""
        seeds = {j: secrets.token_bytes(SEED_BYTES) for j in range(1, self.needed)}
        points = {0: key, **{j: uniform(seed, self.elements) for j, seed in seeds.items()}}
        values = {
            j: interpolate(points, j).astype("<u8").tobytes()
            for j in range(self.needed, self.holders + 1)
        }
        return {**seeds, **values}

    def read(self, holder: int, plain: bytes) -> Elements | None:
        """A holder's field elements from its plain share; None where an element is not below P."""
        if len(plain) != self.plain_bytes(holder):
            return None
        if holder < self.needed:
            return uniform(plain, self.elements)
        values = np.frombuffer(plain, dtype="<u8").astype(np.uint64)
        return None if (values >= _P).any() else values

    def candidates(
        self, sums: Mapping[int, Elements], users: int
    ) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...]]]:
        """Yield every different summed secret that t of the answers give, with their holders.

        A subset with a wrong answer nearly always gives entries out of range and is left out here.
        An error of a few units may stay in range: such a secret opens a pad to numbers out of
        range, and the caller continues with the next candidate.

        Yields:
            The sum of the secrets, and the t holders.
        """
        tried: set[bytes] = set()
        for chosen in combinations(sorted(sums), self.needed):
            if self.elements > _PROBE:
                probe = interpolate({j: sums[j][:_PROBE] for j in chosen})
                if not self._in_range(probe, users):
                    continue
            total = interpolate({j: sums[j] for j in chosen})
            opened = self.unpack(total, users)
            if opened is not None and total[:-1].tobytes() not in tried:
                tried.add(total[:-1].tobytes())
                yield opened[0], chosen

    def some_fit(self, tag_shares: Mapping[int, int], value: int) -> bool:
        """Whether t of the holders' shares of the summed tag give this value.

        A wrong value passes with probability 2^-61 for each subset, of which there are at most
        15,504 with 20 holders.
        """
        for chosen in combinations(sorted(tag_shares), self.needed):
            points = {j: np.array([tag_shares[j]], dtype=np.uint64) for j in chosen}
            if int(interpolate(points)[0]) == value:
                return True
        return False

    def _in_range(self, elements: Elements, users: int) -> bool:
        """Whether full elements hold entries in the range of a sum of this many users."""
        low, high = users, LARGEST_ENTRY * users
        mask = np.uint64((1 << self.width) - 1)
        for position in range(self.per_element):
            entries = elements >> np.uint64(position * self.width) & mask
            if (entries < low).any() or (entries > high).any():
                return False
        return not (elements >> np.uint64(self.per_element * self.width)).any()
