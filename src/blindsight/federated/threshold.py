"""No single key holder: t of n holders decrypt together, fewer learn nothing (Shoup 2000; Damgård and Jurik 2001).

With m = (p-1)(q-1)/4, the squares modulo n^(s+1) form a cyclic group of order n^s·m. The dealer picks d with
d = 0 mod m and d = 1 mod n^s, and a random polynomial f modulo n^s·m of degree t - 1 with f(0) = d; holder i gets f(i).
For a ciphertext c and Δ = (number of holders)!

    holder i:        c_i = c^(2 Δ f(i))
    from t of them:  Π c_i^(2 λ_i) = c^(4 Δ² d) = (1 + n)^(4 Δ² x),   λ_i = Δ Π_{j≠i} j/(j-i), whole numbers,

and the logarithm of the right side gives x. Shares of t - 1 holders are independent of d because all differences
i - j are units modulo n^s·m: `keys` makes primes for which m has no factor below 1,024. The dealer knows the key: it
should deal and forget. A holder who answers falsely is noticed where the product is no power of 1 + n, and otherwise
can spoil a sum (not open one): holders are trusted to answer, but none is trusted alone with a secret.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import gmpy2
from gmpy2 import mpz

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated import keys
from blindsight.federated.paillier import PrivateKey, PublicKey, padic_log
from blindsight.federated.wire import Writer, seal, unseal

__all__ = ["MOST_HOLDERS", "KeyShare", "combine", "deal"]

MOST_HOLDERS = 64


class KeyShare:
    """One holder's share of a private key: useless alone, shown by nothing but `dump`."""

    def __init__(self, public: PublicKey, *, index: int, needed: int, holders: int, value: int) -> None:
        self.public = public
        self.index, self.needed, self.holders = index, needed, holders
        self._value = mpz(value)

    def __repr__(self) -> str:
        return f"KeyShare({self.index} of {self.holders}, {self.needed} needed)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a key share is never pickled or copied: use dump() and keep the bytes to their holder.")

    def partial(self, ciphertexts: Sequence[int], *, workers: int = 2) -> list[mpz]:
        """c^(2 Δ f(i)) of each ciphertext; the powers release the GIL."""
        self.public.check(ciphertexts)
        exponent = 2 * math.factorial(self.holders) * self._value
        numbers = [mpz(c) for c in ciphertexts]
        if workers <= 1 or len(numbers) < 2:
            return gmpy2.powmod_base_list(numbers, exponent, self.public.modulus)
        size = -(-len(numbers) // workers)
        parts = [numbers[i : i + size] for i in range(0, len(numbers), size)]
        with ThreadPoolExecutor(workers) as threads:
            done = threads.map(lambda part: gmpy2.powmod_base_list(part, exponent, self.public.modulus), parts)
            return [power for part in done for power in part]

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        width = (self._value.bit_length() + 7) // 8
        writer = Writer().field(keys.dump_public(self.public))
        writer.number("H", self.index).number("H", self.needed).number("H", self.holders)
        return seal(b"SHAR", bytes(writer.field(self._value.to_bytes(width, "little"))))

    @classmethod
    def load(cls, data: bytes) -> KeyShare:
        """Read what `dump` wrote."""
        reader = unseal(b"SHAR", data)
        public = keys.load_public(reader.field())
        index, needed, holders = (reader.number("H") for _ in range(3))
        value = mpz.from_bytes(reader.field(), "little")
        reader.end()
        return cls(public, index=index, needed=needed, holders=holders, value=value)


def deal(private: PrivateKey, *, needed: int, holders: int) -> list[KeyShare]:
    """Split a private key among `holders`, any `needed` of whom decrypt together."""
    checks.whole("needed", needed, least=2)
    if not needed <= checks.whole("holders", holders, least=2) <= MOST_HOLDERS:
        raise InvalidParameter(f"holders must be in [{needed}, {MOST_HOLDERS}], got {holders}.")
    public = private.public
    p, q = private.factors()
    order = (p - 1) * (q - 1) // 4
    modulus = public.plaintext_modulus * order
    d = order * gmpy2.invert(order, public.plaintext_modulus)  # 0 mod m, 1 mod n^s
    coefficients = [d, *(mpz(secrets.randbelow(int(modulus))) for _ in range(needed - 1))]
    return [
        KeyShare(
            public,
            index=i,
            needed=needed,
            holders=holders,
            value=int(sum(a * mpz(i) ** k for k, a in enumerate(coefficients)) % modulus),
        )
        for i in range(1, holders + 1)
    ]


def combine(public: PublicKey, partials: Mapping[int, Sequence[int]], *, needed: int, holders: int) -> list[mpz]:
    """The plaintexts from partial decryptions by holder index; the first `needed` of them are used."""
    if len(partials) < needed:
        raise ProtocolError(f"too few key holders: {needed} are needed, {len(partials)} answered.")
    chosen = sorted(partials)[:needed]
    if not all(1 <= i <= holders for i in chosen) or len({len(partials[i]) for i in chosen}) != 1:
        raise ProtocolError("partial decryptions do not fit together.")
    delta = math.factorial(holders)
    weights = [2 * _lagrange(i, chosen, delta) for i in chosen]
    n, s = public.n, public.s
    scale = gmpy2.invert(4 * delta * delta * padic_log(1 + n, n, s), public.plaintext_modulus)
    result = []
    for row in zip(*(partials[i] for i in chosen), strict=True):
        product = mpz(1)
        for power, weight in zip(row, weights, strict=True):
            product = product * gmpy2.powmod(power, weight, public.modulus) % public.modulus
        if product % n != 1:
            raise ProtocolError("a key holder's answer is wrong: the product is no power of 1 + n.")
        result.append(padic_log(product, n, s) * scale % public.plaintext_modulus)
    return result


def _lagrange(i: int, chosen: Sequence[int], delta: int) -> int:
    """Δ Π_{j≠i} j/(j-i): a whole number."""
    above = math.prod(j for j in chosen if j != i)
    below = math.prod(j - i for j in chosen if j != i)
    return delta * above // below
