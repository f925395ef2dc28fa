"""The scheme: pad a vector under a fresh secret, add padded vectors, open the sum with the sum of
the secrets.

A vector of whole numbers in [0, 2^value_bits) is cut into blocks of slots · N; weight w of a block
is in slot w // N of coefficient w % N. A block is sent as residues in the transformed domain, prime
by prime, bit-packed. The public a_k is drawn from AES-128 in counter mode under a digest of the
round's header, by rejection sampling: it is exactly uniform given an ideal cipher, and nobody can
choose it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import njit
from blindsight.core.errors import ProtocolError
from blindsight.federated.sums.pad import bits, ring
from blindsight.federated.sums.pad.parameters import Parameters
from blindsight.federated.sums.pad.sampler import LARGEST, Stream, secret

__all__ = ["MOST_VALUE_BITS", "PadSum", "new_secret", "pad", "public_block"]

MOST_VALUE_BITS = 28  # the sums inside one coefficient stay below 2^61
_DRAWN = 8  # blocks whose errors are drawn at once
_32, _31 = np.uint64(32), np.uint64(31)
_LOW31, _LOW32 = np.uint64((1 << 31) - 1), np.uint64((1 << 32) - 1)


def new_secret(parameters: Parameters) -> NDArray[np.int8]:
    """Return s: N small numbers, to be used for one vector only."""
    return secret(parameters.degree)


def _header_stream(header: bytes) -> Stream:
    return Stream(hashlib.sha256(b"blindsight pad a" + header).digest()[:16])


@njit(cache=True, nogil=True)
def _accept(
    words: NDArray[np.uint32], mask: int, prime: int, out: NDArray[np.uint32], start: int
) -> int:
    filled = start
    for word in words:
        value = word & np.uint32(mask)
        if value < prime and filled < out.shape[0]:
            out[filled] = value
            filled += 1
    return filled


def public_block(
    stream: Stream, parameters: Parameters, block: int, index: int
) -> NDArray[np.uint32]:
    """Return a_k modulo the prime of this index."""
    prime, width = parameters.primes[index], parameters.prime_bits[index]
    out = np.empty(parameters.degree, dtype=np.uint32)
    filled, wanted = 0, parameters.degree + parameters.degree // 8
    while filled < len(out):  # primes lie just below a power of two: once is nearly always enough
        stream.start(block.to_bytes(4, "little") + index.to_bytes(2, "little"))
        words = np.frombuffer(stream.read(4 * wanted), dtype="<u4")
        filled = _accept(words, (1 << width) - 1, prime, out, 0)
        wanted *= 2
    return out


@lru_cache(maxsize=64)
def _factors(parameters: Parameters, index: int) -> NDArray[np.uint64]:
    """Return constants modulo one prime p.

    They are 2^(slot_bits j) for each slot, t, -64 t, then 2^31 and 1 with their companions, and p.
    """
    p = parameters.primes[index]
    slots = [pow(2, parameters.slot_bits * j, p) for j in range(parameters.slots)]
    t = pow(2, parameters.plain_bits, p)
    r = (1 << 31) % p
    tail = [t, -(LARGEST + 1) * t % p, r, ring.shoup(r, p), ring.shoup(1, p), p]
    return np.array(slots + tail, dtype=np.uint64)


@njit(cache=True, nogil=True)
def _fill(
    values: NDArray[np.uint64],
    errors: NDArray[np.int8],
    factors: NDArray[np.uint64],
    out: NDArray[np.uint32],
) -> None:
    """Compute Σ slot_j 2^(slot_bits j) + t e modulo p; the sum is below 2^61 before its reduction.

    Factors have 32 bits; they are masked so that the compiler uses vector instructions.
    """
    n, slots = out.shape[0], factors.shape[0] - 6
    t, shift, r, r_companion, unit_companion, p = factors[slots:]
    total = np.empty(n, dtype=np.uint64)
    for i in range(n):
        total[i] = (np.uint64(np.int64(errors[i]) + 64) & _LOW32) * (t & _LOW32) + shift
    for j in range(slots):
        factor, part = factors[j] & _LOW32, values[j * n : (j + 1) * n]
        for i in range(n):
            total[i] += (part[i] & _LOW32) * factor
    for i in range(n):
        x = ring._lazy(total[i] >> _31, r, r_companion, p) + (total[i] & _LOW31)
        out[i] = np.uint32(ring._less(ring._lazy(x, np.uint64(1), unit_companion, p), p))


@njit(cache=True, nogil=True)
def _signed(s: NDArray[np.int8], prime: int, out: NDArray[np.uint32]) -> None:
    p = np.uint64(prime)
    for i in range(out.shape[0]):
        out[i] = np.uint32(ring._less(np.uint64(np.int64(s[i]) + np.int64(prime)), p))


def pad(
    parameters: Parameters, header: bytes, values: NDArray[np.uint64], s: NDArray[np.int8]
) -> bytes:
    """Return the padded vector, `parameters.bytes(len(values))` bytes.

    The secret s must never be used twice.
    """
    if (
        parameters.value_bits > MOST_VALUE_BITS
        or int(values.max(initial=0)) >> parameters.value_bits
    ):
        raise AssertionError("values must fit their slots")
    n, stream = parameters.degree, _header_stream(header)
    fields = [ring.field(prime, n) for prime in parameters.primes]
    secrets = np.empty((len(fields), n), dtype=np.uint32)
    for i, at in enumerate(fields):
        _signed(s, at.prime, secrets[i])
        ring.forward(secrets[i], at)
    parts: list[bytes] = []
    x, padded = np.empty(n, dtype=np.uint32), np.zeros(parameters.block, dtype=np.uint64)
    blocks = parameters.blocks(len(values))
    for block in range(blocks):
        part = values[block * parameters.block : (block + 1) * parameters.block]
        padded[: len(part)], padded[len(part) :] = part, 0
        if block % _DRAWN == 0:
            drawn = secret(n * min(_DRAWN, blocks - block)).reshape(-1, n)
        errors = drawn[block % _DRAWN]
        for i, at in enumerate(fields):
            _fill(padded, errors, _factors(parameters, i), x)
            ring.forward(x, at)
            ring.multiply_add(public_block(stream, parameters, block, i), secrets[i], x, at.prime)
            parts.append(bits.pack(x, parameters.prime_bits[i]))
    return b"".join(parts)


class PadSum:
    """The sum of padded vectors; its size does not depend on how many were added."""

    def __init__(self, parameters: Parameters, dimension: int) -> None:
        self.parameters, self.dimension = parameters, dimension
        shape = (parameters.blocks(dimension), len(parameters.primes), parameters.degree)
        self._total = np.zeros(shape, dtype=np.uint32)

    def add(self, data: bytes | memoryview) -> None:
        """Add one padded vector; if `check` refuses it, the sum is unchanged."""
        self.add_residues(self.check(data))

    def add_residues(self, residues: NDArray[np.uint32]) -> None:
        """Add a padded vector's residues, as `check` returned them."""
        for i, prime in enumerate(self.parameters.primes):
            for total, row in zip(self._total[:, i], residues[:, i], strict=True):
                ring.add_into(total, row, prime)

    def check(self, data: bytes | memoryview) -> NDArray[np.uint32]:
        """Return the residues of one padded vector.

        Raises:
            ProtocolError: the length is wrong, or a residue is not below its prime.
        """
        parameters = self.parameters
        if len(data) != parameters.bytes(self.dimension):
            raise ProtocolError(
                f"malformed: a padded vector has {parameters.bytes(self.dimension)} bytes here."
            )
        view, at = memoryview(data), 0
        residues = np.empty(self._total.shape, dtype=np.uint32)
        for rows in residues:
            for row, prime, width in zip(
                rows, parameters.primes, parameters.prime_bits, strict=True
            ):
                size = parameters.degree * width // 8
                if bits.unpack(view[at : at + size], width, row) >= prime:
                    raise ProtocolError(
                        "malformed: a padded vector's residues must lie below their primes."
                    )
                at += size
        return residues

    def open(self, header: bytes, secrets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of the vectors, given the sum of their secrets.

        A wrong sum of secrets gives random numbers.
        """
        parameters, n, stream = self.parameters, self.parameters.degree, _header_stream(header)
        fields = [ring.field(prime, n) for prime in parameters.primes]
        opened = np.empty((len(fields), n), dtype=np.uint32)
        sums = []
        for at in fields:
            residues = (secrets % at.prime).astype(np.uint32)
            ring.forward(residues, at)
            sums.append(residues)
        result = np.empty((len(self._total), parameters.slots, n), dtype=np.int64)
        for block, total in enumerate(self._total):
            for i, at in enumerate(fields):
                opened[i] = total[i]
                ring.multiply_subtract(
                    public_block(stream, parameters, block, i), sums[i], opened[i], at.prime
                )
                ring.inverse(opened[i], at)
            _read(opened, *_chinese(parameters), parameters.slot_bits, result[block])
        return result.reshape(-1)[: self.dimension]

    def write(self) -> bytes:
        """Return the residues, for a state file."""
        return self._total.astype("<u4").tobytes()

    def read(self, data: bytes) -> None:
        """Continue from the residues that `write` returned."""
        total = np.frombuffer(data, dtype="<u4").astype(np.uint32).reshape(self._total.shape)
        if any((total[:, i] >= prime).any() for i, prime in enumerate(self.parameters.primes)):
            raise ProtocolError("malformed: a saved sum's residues must lie below their primes.")
        self._total = total


@lru_cache(maxsize=64)
def _chinese(
    parameters: Parameters,
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the constants of the Chinese remainder theorem.

    They are the primes; the inverse of prime j modulo prime i, with its companion; and t (E + 1)
    modulo each prime, which is added to make all numbers positive.
    """
    primes = parameters.primes
    inverses = [[pow(q, -1, p) if q != p else 0 for q in primes] for p in primes]
    companions = [[ring.shoup(w, p) for w in row] for row, p in zip(inverses, primes, strict=True)]
    shift = (parameters.errors + 1) << parameters.plain_bits
    return (
        np.array(primes, dtype=np.uint64),
        np.array([inverses, companions], dtype=np.uint64),
        np.array([shift % p for p in primes], dtype=np.uint64),
    )


@njit(cache=True, nogil=True)
def _read(
    x: NDArray[np.uint32],
    primes: NDArray[np.uint64],
    inverses: NDArray[np.uint64],
    shift: NDArray[np.uint64],
    slot_bits: int,
    out: NDArray[np.int64],
) -> None:
    """Convert residues by Garner's mixed radix, then Horner modulo a power of two in 32-bit limbs.

    The opened numbers are public, so the arithmetic need not be constant-time.
    """
    count, n, slots = x.shape[0], x.shape[1], out.shape[0]
    limbs = (slots * slot_bits + 31) // 32 + 2
    digits, words = np.empty(count, dtype=np.uint64), np.empty(limbs, dtype=np.uint64)
    low, mask = np.uint64(0xFFFFFFFF), (np.uint64(1) << np.uint64(slot_bits)) - np.uint64(1)
    for i in range(n):
        for k in range(count):
            p = primes[k]
            value = ring._less(np.uint64(x[k, i]) + shift[k], p)
            for j in range(k):
                # A digit is below 4p, because primes differ by at most one bit in length.
                digit = ring._less(ring._less(digits[j], p + p), p)
                w, companion = inverses[0, k, j], inverses[1, k, j]
                value = ring._less(ring._lazy(value + p - digit, w, companion, p), p)
            digits[k] = value
        words[:] = 0
        for k in range(count - 1, -1, -1):
            carry = digits[k]
            for w in range(limbs):
                carry += words[w] * primes[k]
                words[w] = carry & low
                carry >>= _32
        for s in range(slots):
            first, offset = s * slot_bits // 32, np.uint64(s * slot_bits % 32)
            value = (words[first] | words[first + 1] << _32) >> offset
            value |= (words[first + 2] << _32) << (_32 - offset)
            out[s, i] = np.int64(value & mask)
