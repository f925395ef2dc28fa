"""Randomisers h_s^a: what makes two encryptions of one value look unrelated, and nearly all of encryption's cost.

The base is fixed for the life of a key, so its powers come from a table: with 8-bit windows, h^a for a of L bits is the
product of L/8 table entries, one per byte of a, with no squarings at all. The exponent's bytes come from the operating
system. A pool holds randomisers made ahead (they don't depend on the plaintext), so that encrypting online is two
multiplications. Each is used once.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

import gmpy2
from gmpy2 import mpz

from blindsight import checks

if TYPE_CHECKING:
    from blindsight.federated.paillier import PublicKey

__all__ = ["FixedBase", "RandomiserPool"]

_CHUNK = 64  # randomisers a thread makes between two reports of progress


class FixedBase:
    """Random powers of one base, by 8-bit windows: L/8 multiplications where square-and-multiply takes 1.2 L."""

    def __init__(self, base: mpz, modulus: mpz, *, exponent_bits: int) -> None:
        self.modulus = modulus
        self.exponent_bytes = (exponent_bits + 7) // 8
        self._rows: list[list[mpz]] = []
        for _ in range(self.exponent_bytes):
            row = [mpz(1)]
            for _ in range(255):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int | bytes) -> mpz:
        """base^exponent; the exponent as a number or as little-endian bytes of `exponent_bytes`."""
        digits = exponent if isinstance(exponent, bytes) else int(exponent).to_bytes(self.exponent_bytes, "little")
        modulus, rows = self.modulus, self._rows
        result = rows[0][digits[0]]
        for row, digit in zip(rows[1:], digits[1:], strict=True):
            result = result * row[digit] % modulus
        return result

    def random_power(self) -> mpz:
        """base^a for a fresh a from the operating system."""
        return self.power(secrets.token_bytes(self.exponent_bytes))

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


def _release_gil() -> None:
    """gmpy2 lets go of the GIL inside multiplications only where its (per-thread) context allows it."""
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
        raise TypeError("randomisers are never pickled or copied: a second use would link two ciphertexts.")

    def fill(
        self, count: int, *, workers: int = 2, progress: Callable[[int, int], None] | None = None
    ) -> RandomiserPool:
        """Make randomisers until at least `count` are ready."""
        missing = checks.whole("count", count, least=0) - len(self)
        if missing > 0:
            made = self._public.fixed_base.random_powers(missing, workers=workers, progress=progress)
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
