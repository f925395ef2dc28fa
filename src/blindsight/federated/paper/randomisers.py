"""Randomisers (h^n)^a: what makes two encryptions of one value look unrelated, and nearly all of
encryption's cost.

The base is fixed for the life of a key, so its powers come from a table: with w-bit windows, h^a
for a of L bits is the product of L/w table entries, one per digit of a, with no squarings at all.
The digits come from the operating system. Windows are as wide as a table of 64 MB allows, 8 to 10
bits: at 2048 bits 10, and 103 multiplications. A pool holds randomisers made ahead (they don't
depend on the plaintext), so that encrypting online is two multiplications. Each is used once.
"""

from __future__ import annotations

import secrets
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

import gmpy2
from gmpy2 import mpz

from blindsight.core import checks

if TYPE_CHECKING:
    from blindsight.federated.paper.paillier import PublicKey

__all__ = ["FixedBase", "RandomiserPool"]

_CHUNK = 64  # randomisers a thread makes between two reports of progress
_TABLE_BYTES = 64 << 20


class FixedBase:
    """Random powers of one base by windows: L/w multiplications where square-and-multiply takes 1.2
    L.
    """

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
        """base^exponent for an exponent of at most `exponent_bits` bits."""
        places = range(0, self.exponent_bits, self.window)
        return self._product(
            array("H", [(int(exponent) >> place) & self._mask for place in places])
        )

    def random_power(self) -> mpz:
        """base^a for a fresh a from the operating system: one uniform digit a window."""
        return self._product(array("H", secrets.token_bytes(2 * len(self._rows))))

    def _product(self, digits: array[int]) -> mpz:
        modulus, mask, result = self.modulus, self._mask, mpz(1)
        for row, digit in zip(self._rows, digits, strict=True):
            result = result * row[digit & mask] % modulus
        return result

    def random_powers(
        self, count: int, *, workers: int = 2, progress: Callable[[int, int], None] | None = None
    ) -> list[mpz]:
        """`count` independent random powers, over `workers` threads."""
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
    """The widest window of 8 to 10 bits whose table stays within 64 MB."""
    entry = modulus.bit_length() // 8 + 48
    fitting = [w for w in (9, 10) if -(-exponent_bits // w) * entry << w <= _TABLE_BYTES]
    return max(fitting, default=8)


def _release_gil() -> None:
    """gmpy2 lets go of the GIL inside multiplications only where its (per-thread) context allows
    it.
    """
    gmpy2.get_context().allow_release_gil = True


class RandomiserPool:
    """Randomisers made ahead for one key. Thread-safe; each is handed out once; never saved."""

    def __init__(self, public: PublicKey) -> None:
        self._public = public
        self._ready: deque[mpz] = deque()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"RandomiserPool({len(self)} ready)"

    def __len__(self) -> int:
        return len(self._ready)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "randomisers are never pickled or copied: a second use would link two ciphertexts."
        )

    def fill(
        self, count: int, *, workers: int = 2, progress: Callable[[int, int], None] | None = None
    ) -> RandomiserPool:
        """Make randomisers until at least `count` are ready."""
        missing = checks.whole("count", count, least=0) - len(self)
        if missing > 0:
            made = self._public.fixed_base.random_powers(
                missing, workers=workers, progress=progress
            )
            with self._lock:
                self._ready.extend(made)
        return self

    def take(self, count: int, *, workers: int = 2) -> list[mpz]:
        """`count` randomisers; what the pool lacks is made on the spot."""
        with self._lock:
            ready = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        if len(ready) < count:
            ready += self._public.fixed_base.random_powers(count - len(ready), workers=workers)
        return ready
