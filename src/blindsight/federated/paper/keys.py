"""Making keys, and keeping them: one checksummed binary form each, for the public and for the
private key.

Primes are of equal length with p = q = 3 mod 4 and gcd(p - 1, q - 1) = 2, as Damgård, Jurik and
Nielsen's short exponents need. On top of that, (p - 1)/2 and (q - 1)/2 have no prime factor below
1,024: then no randomisers' base has a small order.
"""

from __future__ import annotations

import hashlib
import secrets
import warnings
from typing import Final

import gmpy2
from gmpy2 import mpz

from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.federated.paper.paillier import PrivateKey, PublicKey, require_bits

__all__ = [
    "SMALLEST_FACTOR",
    "dump_private",
    "dump_public",
    "generate",
    "load_private",
    "load_public",
]

SMALLEST_FACTOR: Final = 1024
_PRIMORIAL = gmpy2.primorial(SMALLEST_FACTOR)
_MAX_BITS: Final = 8192
_PUBLIC, _PRIVATE = b"BSPK", b"BSSK"
_VERSION: Final = 2


def generate(bits: int = 2048, *, insecure_for_tests: bool = False) -> PrivateKey:
    """A fresh private key; its `.public` is what to hand out.

    2048 bits by default, 3072 for what must stay secret beyond 2030. 1024 bits (the paper's length)
    warns: it is for reproducing the paper's times. Anything shorter is refused unless a test says
    so.
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
    """A random prime of exactly `bits` bits, 3 mod 4, with (p - 1)/2 free of small factors."""
    while True:
        # The two top bits set: the product of two such primes has exactly 2·bits bits.
        candidate = mpz(secrets.randbits(bits)) | (mpz(3) << (bits - 2)) | 3
        if gmpy2.gcd(candidate >> 1, _PRIMORIAL) != 1 or gmpy2.gcd(candidate, _PRIMORIAL) != 1:
            continue
        if gmpy2.is_prime(candidate, 40):
            return candidate


def dump_public(public: PublicKey) -> bytes:
    """The public key as bytes: magic, version, modulus bits, n, h, checksum."""
    return _seal(_PUBLIC, public.bits, (public.n, public.h))


def load_public(data: bytes) -> PublicKey:
    """Read a public key; anything wrong is refused."""
    n, h = _open(_PUBLIC, data, "public key")
    return PublicKey(int(n), int(h))


def dump_private(private: PrivateKey) -> bytes:
    """The private key as bytes.

    Whoever reads them opens every ciphertext: keep the file to its owner (mode 0600).
    """
    public = private.public
    return _seal(_PRIVATE, public.bits, (*private.factors(), public.h))


def load_private(data: bytes) -> PrivateKey:
    """Read a private key; anything wrong is refused, and nothing of it is shown."""
    p, q, h = _open(_PRIVATE, data, "private key")
    if not (gmpy2.is_prime(p, 25) and gmpy2.is_prime(q, 25)):
        raise HostileFile("not a private key: its factors are not prime.")
    return PrivateKey(int(p), int(q), PublicKey(int(p * q), int(h)))


def _seal(magic: bytes, bits: int, numbers: tuple[mpz, ...]) -> bytes:
    width = (bits + 7) // 8
    body = b"".join(number.to_bytes(width, "little") for number in numbers)
    data = magic + bytes([_VERSION, len(numbers)]) + bits.to_bytes(2, "little") + body
    return data + hashlib.sha256(data).digest()


def _open(magic: bytes, data: bytes, what: str) -> tuple[mpz, ...]:
    data = bytes(data)
    if len(data) < 40 or data[:4] != magic or data[4] != _VERSION:
        raise HostileFile(f"not a {what} of version {_VERSION}.")
    count, bits = data[5], int.from_bytes(data[6:8], "little")
    width = (bits + 7) // 8
    if (
        bits > _MAX_BITS
        or len(data) != 8 + count * width + 32
        or count != (2 if magic == _PUBLIC else 3)
    ):
        raise HostileFile(f"not a {what}: its length does not fit its header.")
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise HostileFile(f"the {what}'s checksum does not hold: the file is damaged.")
    return tuple(
        mpz.from_bytes(data[8 + i * width : 8 + (i + 1) * width], "little") for i in range(count)
    )
