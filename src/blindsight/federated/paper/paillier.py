"""Paillier's cryptosystem on gmpy2.

A plaintext is a whole number in [0, n), a ciphertext one in (0, n²). With g = n + 1 (the paper's
footnote 3 calls the modulus T)

    ζ(x) = (1 + n)^x · (h^n)^a  mod n²,     h = -y² mod n,

where a is fresh and of |n|/2 bits (Damgård, Jurik and Nielsen 2010): h generates a group of unknown
order inside the squares and their negatives, and a short fixed-base power of it replaces the n-th
power of a random number. The product of two ciphertexts is a ciphertext of the sum (Equation 1).

Decryption works modulo p² and q² separately. Raising to p - 1 removes the randomiser and leaves
(1 + n)^(x(p-1)), and (1 + pz)^k = 1 + kpz modulo p² turns the power into a product.

*Randomisers* (h^n)^a are nearly all of encryption's cost. The base is fixed for the life of a key,
so its powers come from a table: with w-bit windows, h^a for a of L bits is the product of L/w table
entries, one for each digit of a, with no squarings. The digits come from the operating system.
Windows are as wide as a table of 64 MB allows, 8 to 10 bits: at 2048 bits 10, and 103
multiplications.

*Primes* are of equal length with p = q = 3 mod 4 and gcd(p - 1, q - 1) = 2, as the short exponents
need. In addition, (p - 1)/2 and (q - 1)/2 have no prime factor below 1,024, so that no base of the
randomisers has a small order.
"""

from __future__ import annotations

import hashlib
import math
import operator
import secrets
import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final, NoReturn

import gmpy2
from gmpy2 import mpz

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError

__all__ = ["SMALLEST_FACTOR", "FixedBase", "PrivateKey", "PublicKey", "generate"]

SMALLEST_FACTOR: Final = 1024
_PRIMORIAL = gmpy2.primorial(SMALLEST_FACTOR)
_MAX_BITS: Final = 8192
_CHUNK = 64  # randomisers that a thread makes between two reports of progress
_TABLE_BYTES = 64 << 20
_SMALL_PRIMES = gmpy2.primorial(1 << 16)
_SMALL_ORDERS = math.lcm(*range(1, 1024))
_TEST_BITS = 128  # below this not even a test's plaintext fits


class FixedBase:
    """Random powers of one base by windows: L/w multiplications instead of 1.2 L by squaring."""

    def __init__(
        self, base: mpz, modulus: mpz, *, exponent_bits: int, window: int | None = None
    ) -> None:
        self.modulus = modulus
        self.window = _widest(modulus, exponent_bits) if window is None else window
        self.exponent_bits = -(-exponent_bits // self.window) * self.window
        self._mask = (1 << self.window) - 1
        self._rows: list[list[mpz]] = []
        for _ in range(self.exponent_bits // self.window):
            row = [mpz(1)]
            for _ in range(self._mask):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int) -> mpz:
        """Return base^exponent for an exponent of at most `exponent_bits` bits."""
        places = range(0, self.exponent_bits, self.window)
        return self._product(
            array("H", [(int(exponent) >> shift) & self._mask for shift in places])
        )

    def random_power(self) -> mpz:
        """Return base^a for a fresh a from the operating system, one uniform digit per window."""
        return self._product(array("H", secrets.token_bytes(2 * len(self._rows))))

    def _product(self, digits: array[int]) -> mpz:
        modulus, mask, result = self.modulus, self._mask, mpz(1)
        for row, digit in zip(self._rows, digits, strict=True):
            result = result * row[digit & mask] % modulus
        return result

    def random_powers(
        self, count: int, *, workers: int = 2, progress: Callable[[int, int], None] | None = None
    ) -> list[mpz]:
        """Return `count` independent random powers, computed by `workers` threads."""
        sizes = [min(_CHUNK, count - start) for start in range(0, count, _CHUNK)]
        result: list[mpz] = []
        if workers <= 1 or len(sizes) < 2:
            for size in sizes:
                result += [self.random_power() for _ in range(size)]
                if progress is not None:
                    progress(len(result), count)
            return result
        with ThreadPoolExecutor(workers, initializer=_release_gil) as threads:
            for part in threads.map(self._chunk, sizes):
                result += part
                if progress is not None:
                    progress(len(result), count)
        return result

    def _chunk(self, size: int) -> list[mpz]:
        return [self.random_power() for _ in range(size)]


def _widest(modulus: mpz, exponent_bits: int) -> int:
    """Return the widest window of 8 to 10 bits whose table takes at most 64 MB."""
    entry = modulus.bit_length() // 8 + 48
    fitting = [w for w in (9, 10) if -(-exponent_bits // w) * entry << w <= _TABLE_BYTES]
    return max(fitting, default=8)


def _release_gil() -> None:
    """Allow gmpy2 to release the GIL inside multiplications; its context is per thread."""
    gmpy2.get_context().allow_release_gil = True


def _whole(name: str, value: Any) -> int:
    """Return a whole number; a value like 1.5 is refused, because rounding would change it."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidData(f"{name} must be a whole number, got {type(value).__name__}.") from None


class PublicKey:
    """The public key: the modulus n and the randomisers' base h. It encrypts and adds."""

    def __init__(self, n: int, h: int) -> None:
        self.n = mpz(_whole("a public modulus", n))
        self.h = mpz(_whole("the randomisers' base", h))
        self.bits = self.n.bit_length()
        if self.bits < _TEST_BITS or not gmpy2.is_odd(self.n):
            raise InvalidData(
                f"a public modulus must be odd and of at least {_TEST_BITS} bits, got {self.bits} "
                "bits."
            )
        # With a modulus that others can factor, everybody could read all updates.
        if (
            gmpy2.gcd(self.n, _SMALL_PRIMES) != 1
            or gmpy2.is_power(self.n)
            or gmpy2.is_prime(self.n, 25)
        ):
            raise InvalidData(
                "a public modulus must be a product of large primes: no prime, no power, no small "
                "factor."
            )
        # -1 has Jacobi symbol +1 when p = q = 3 mod 4, so h = -y² must have it too. An h of small
        # order, even modulo one of the primes only, would hardly randomise, or reveal the factors.
        small = gmpy2.gcd(gmpy2.powmod(self.h, _SMALL_ORDERS, self.n) - 1, self.n)
        if not 1 < self.h < self.n - 1 or gmpy2.jacobi(self.h, self.n) != 1 or small != 1:
            raise InvalidData(
                "the randomisers' base must be a unit modulo n with Jacobi symbol 1, and of large "
                "order."
            )
        self.modulus = self.n**2
        self.plaintext_bits = self.bits - 1
        self.ciphertext_bytes = (self.modulus.bit_length() + 7) // 8
        digest = hashlib.sha256(b"blindsight paillier key" + self._numbers())
        self.key_id = digest.digest()[:16]

    def _numbers(self) -> bytes:
        width = (self.bits + 7) // 8
        return bytes(self.n.to_bytes(width, "little")) + bytes(self.h.to_bytes(width, "little"))

    def __repr__(self) -> str:
        return f"PublicKey({self.bits} bits, id={self.key_id.hex()[:8]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.key_id == other.key_id

    def __hash__(self) -> int:
        return hash(self.key_id)

    @cached_property
    def fixed_base(self) -> FixedBase:
        """The window table of h^n, made once; about 60 MB and half a second at 2048 bits."""
        base = gmpy2.powmod(self.h, self.n, self.modulus)
        return FixedBase(base, self.modulus, exponent_bits=(self.bits + 1) // 2)

    def raw(self, plaintext: int) -> mpz:
        """Return (1 + n)^x mod n² = 1 + nx, a ciphertext without a randomiser: it hides nothing."""
        x = mpz(_whole("a plaintext", plaintext))
        if not 0 <= x < self.n:
            raise InvalidData("a plaintext must be a whole number in [0, n).")
        return 1 + self.n * x

    def encrypt(self, plaintext: int) -> mpz:
        """Return a ciphertext of a whole number in [0, n)."""
        return self.raw(plaintext) * self.fixed_base.random_power() % self.modulus

    def encrypt_many(
        self,
        plaintexts: Sequence[int],
        *,
        workers: int = 2,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[mpz]:
        """Return ciphertexts of many plaintexts, computed by `workers` threads without the GIL."""
        randomisers = self.fixed_base.random_powers(
            len(plaintexts), workers=workers, progress=progress
        )
        modulus = self.modulus
        return [self.raw(x) * r % modulus for x, r in zip(plaintexts, randomisers, strict=True)]

    def add(self, *ciphertexts: int) -> mpz:
        """Return the ciphertext of the sum: ζ(Σ x) = Π ζ(x) (Equation 1)."""
        total = mpz(1)
        for ciphertext in ciphertexts:
            total = total * ciphertext % self.modulus
        return total

    def check(self, ciphertexts: Iterable[int]) -> None:
        """Refuse untrusted ciphertexts that are no units of Z/n².

        One gcd suffices: the product shares a factor with n exactly if one of the ciphertexts does.
        """
        product = mpz(1)
        for ciphertext in ciphertexts:
            if not 0 < ciphertext < self.modulus:
                raise ProtocolError("a ciphertext must lie in (0, n²).")
            product = product * ciphertext % self.n
        if gmpy2.gcd(product, self.n) != 1:
            raise ProtocolError("a ciphertext must share no factor with n.")

    def to_bytes(self, ciphertexts: Sequence[mpz]) -> bytes:
        """Return the ciphertexts concatenated, little-endian, each `ciphertext_bytes` long."""
        return b"".join([c.to_bytes(self.ciphertext_bytes, "little") for c in ciphertexts])

    def from_bytes(self, data: bytes | memoryview) -> list[mpz]:
        """Read what `to_bytes` wrote, and check every ciphertext."""
        width = self.ciphertext_bytes
        if len(data) % width:
            raise ProtocolError(
                f"ciphertexts must take a multiple of {width} bytes, got {len(data)}."
            )
        view = bytes(data)
        ciphertexts = [
            mpz.from_bytes(view[i : i + width], "little") for i in range(0, len(view), width)
        ]
        self.check(ciphertexts)
        return ciphertexts


class PrivateKey:
    """The factors of n; decrypts by the Chinese remainder theorem.

    Its `repr` does not reveal them, and it cannot be pickled.
    """

    def __init__(self, p: int, q: int, public: PublicKey) -> None:
        p, q = mpz(p), mpz(q)
        if p == q or p * q != public.n:
            raise InvalidData(
                "a private key must be the two different factors of its public modulus."
            )
        self.public = public
        self._halves = tuple(_Half(prime, public) for prime in (p, q))
        self._lift = gmpy2.invert(p, q)

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.bits} bits)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a private key is never pickled or copied.")

    def factors(self) -> tuple[mpz, mpz]:
        """Return p and q, for saving the key."""
        return self._halves[0].prime, self._halves[1].prime

    def decrypt(self, ciphertext: int) -> mpz:
        """Return the plaintext in [0, n) of one checked ciphertext."""
        return self.decrypt_many([ciphertext])[0]

    def decrypt_many(self, ciphertexts: Sequence[int], *, workers: int = 2) -> list[mpz]:
        """Return the plaintexts of many ciphertexts, computed by `workers` threads."""
        self.public.check(ciphertexts)
        if not ciphertexts:
            return []
        first, second = self._halves
        numbers = [mpz(c) for c in ciphertexts]
        if workers > 1 and len(numbers) > 1:
            with ThreadPoolExecutor(2) as threads:
                left, right = threads.map(lambda half: half.residues(numbers), (first, second))
        else:
            left, right = first.residues(numbers), second.residues(numbers)
        return [
            a + first.prime * ((b - a) * self._lift % second.prime)
            for a, b in zip(left, right, strict=True)
        ]


class _Half:
    """Decryption modulo one prime's square."""

    def __init__(self, prime: mpz, public: PublicKey) -> None:
        self.prime, self.modulus = prime, prime**2
        self._scale = gmpy2.invert(
            public.n // prime * (prime - 1), prime
        )  # (1 + n)^(p-1) = 1 + (p-1)n modulo p²

    def residues(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        units = gmpy2.powmod_base_list(
            [c % self.modulus for c in ciphertexts], self.prime - 1, self.modulus
        )
        return [(unit - 1) // self.prime * self._scale % self.prime for unit in units]


def require_bits(bits: int) -> int:
    """Check a modulus length; `generate` decides which lengths are safe."""
    if checks.whole("bits", bits, least=_TEST_BITS) % 2:
        raise InvalidParameter(f"bits must be even, got {bits}.")
    return bits


def generate(bits: int = 2048, *, insecure_for_tests: bool = False) -> PrivateKey:
    """Return a fresh private key; its `.public` is the public key.

    Parameters:
        bits: the length of the modulus: 2048, or 3072 for data that must stay secret beyond 2030.
            1024 bits (the paper's length) are for reproducing the paper's times and give a warning.
        insecure_for_tests: allow shorter keys.

    Raises:
        InvalidParameter: the length is not allowed.
    """
    require_bits(bits)
    if bits > _MAX_BITS:
        raise InvalidParameter(f"bits must be at most {_MAX_BITS}, got {bits}.")
    if bits < 2048 and not insecure_for_tests:
        if bits != 1024:
            raise InvalidParameter(
                f"bits must be 2048 or more (or 1024, to reproduce the paper), got {bits}."
            )
        warnings.warn(
            "a 1024-bit key is within reach of an attacker with means: use it to reproduce the "
            "paper only.",
            UserWarning,
            stacklevel=2,
        )
    while True:
        p, q = _prime(bits // 2), _prime(bits // 2)
        if gmpy2.gcd(p - 1, q - 1) == 2 and abs(p - q).bit_length() > bits // 2 - 100:
            break
    n = p * q
    while True:
        y = mpz(secrets.randbelow(int(n)))
        if y > 1 and gmpy2.gcd(y, n) == 1:
            break
    return PrivateKey(p, q, PublicKey(n, n - y * y % n))


def _prime(bits: int) -> mpz:
    """Return a random prime of exactly `bits` bits, 3 mod 4, with no small factor in (p - 1)/2."""
    while True:
        # The two top bits are set, so that the product of two primes has exactly 2·bits bits.
        candidate = mpz(secrets.randbits(bits)) | (mpz(3) << (bits - 2)) | 3
        if gmpy2.gcd(candidate >> 1, _PRIMORIAL) != 1 or gmpy2.gcd(candidate, _PRIMORIAL) != 1:
            continue
        if gmpy2.is_prime(candidate, 40):
            return candidate
