"""Sketches drawn straight as counts: the law of Algorithms 1 and 2 without ever holding a record.

A sketch only counts, bit by bit, how many records disagree and how many agree with the image. So the kernel draws how
many records there are of each type, and then each record's K positions, and adds them to two tables; the image decides
at the very end which of the two counts is that of the ones. The K positions of a record are distinct: whichever
repeats an earlier one of its record is drawn again, as Algorithm 1 does, so the law is the same and not only the mean
(ignoring repeats shifts the counts by about 1/M, which shows on small images).

Dice: ChaCha8 under a key from the operating system (see `keystream`); type numbers from a generator with the same
entropy. Uniform positions are exact (rejection); the q_j are rounded to multiples of 2^-32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blindsight.sketching.keystream import WORDS, fill, fresh_key, seeded_key
from blindsight.sketching.parameters import QKParameters

__all__ = ["Dice", "draw_sketches"]

BATCH = 1024  # records whose dice are drawn at once: they stay in the first-level cache
SPARE = 8  # blocks of spare dice for redraws
u32, u64 = np.uint32, np.uint64


@dataclass(frozen=True)
class Dice:
    """The randomness of one call: a key for the positions, a generator for the numbers of records a type."""

    key: NDArray[np.uint32]
    types: np.random.Generator
    simulation: bool

    @classmethod
    def throw(cls, random_state: Any = None) -> Dice:
        """From the operating system (None), or a simulation from a seed or generator."""
        if random_state is None:
            return cls(fresh_key(), np.random.default_rng(), False)
        rng = np.random.default_rng(random_state)
        return cls(seeded_key(rng), rng, True)

    def __repr__(self) -> str:
        return f"Dice(simulation={self.simulation})"


@njit(inline="always")
def _scaled(word: Any, n: Any) -> Any:
    """floor(word n / 2^32): uniform on 0..n-1 once the words of `_biased` are drawn again (Lemire)."""
    return np.int32((u64(word) * u64(n)) >> u64(32))


@njit(inline="always")
def _biased(word: Any, n: Any, threshold: Any) -> Any:
    return u32(u32(word) * u32(n)) < u32(threshold)


@njit(nogil=True, cache=True)
def _spare_word(key: Any, stream: Any, spare: Any, place: Any) -> Any:
    """The next word of the stream's second lane; place = [next word, next block]."""
    if place[0] == spare.size:
        fill(key, stream, 1, place[1], spare)
        place[1] += spare.shape[1]
        place[0] = 0
    word = spare.flat[place[0]]
    place[0] += 1
    return word


@njit(nogil=True, cache=True)
def _redraw(
    differing: Any, M: Any, m: Any, base: Any, edges: Any, key: Any, stream: Any, spare: Any, place: Any
) -> Any:
    """One position afresh: by Q for a differing bit, uniform for an agreeing one."""
    plane = 0
    if differing:
        word = _spare_word(key, stream, spare, place)
        plane = base
        for edge in edges:
            plane += word >= edge
    n = M if differing else m
    threshold = (u64(1) << u64(32)) % u64(n)
    word = _spare_word(key, stream, spare, place)
    while _biased(word, n, threshold):
        word = _spare_word(key, stream, spare, place)
    return np.int32(plane * M + _scaled(word, n))


@njit(nogil=True, cache=True)
def _uniform(words: Any, n: Any, positions: Any, again: Any) -> None:
    """Uniform positions below n, one a word; the few words that would favour some are marked."""
    threshold = (u64(1) << u64(32)) % u64(n)
    for k in range(words.size):
        positions[k] = _scaled(words[k], n)
    for k in range(words.size):
        again[k] |= u32(_biased(words[k], n, threshold))


@njit(nogil=True, cache=True)
def _planes(words: Any, base: Any, edges: Any, M: Any, positions: Any) -> None:
    """Move each position to the plane of a bit j drawn with probability q_j (edges: the cumulated q)."""
    for k in range(words.size):
        positions[k] += np.int32(base * M)
    for edge in edges:
        for k in range(words.size):
            positions[k] += np.int32(M) if words[k] >= edge else np.int32(0)


@njit(nogil=True, cache=True)
def _repeats(positions: Any, t: Any, n: Any, again: Any) -> None:
    """Mark the records whose position t repeats an earlier one."""
    for earlier in range(t):
        for k in range(n):
            again[k] |= u32(positions[t, k] == positions[earlier, k])


@njit(nogil=True, cache=True)
def _count(of_type: Any, M: Any, m: Any, base: Any, edges: Any, key: Any, stream: Any, differ: Any, agree: Any) -> None:
    """Add the positions of all records of one string to `differ` and `agree` (position = plane M + pixel)."""
    K = of_type.shape[0]
    words = np.empty(2 * K * BATCH + WORDS, np.uint32)
    spare = np.empty((WORDS, SPARE), np.uint32)
    place = np.array([spare.size, 0], np.int64)
    positions = np.empty((K, BATCH), np.int32)
    again = np.empty(BATCH, np.uint32)
    counter = 0
    for i in range(1, K + 1):  # records of type i: i differing bits, K - i agreeing ones
        for start in range(0, of_type[i - 1], BATCH):
            n = min(BATCH, of_type[i - 1] - start)
            blocks = ((K + i) * n + WORDS - 1) // WORDS
            fill(key, stream, 0, counter, words[: WORDS * blocks].reshape(WORDS, blocks))
            counter += blocks
            again[:n] = 0
            for t in range(K):
                _uniform(words[t * n : (t + 1) * n], M if t < i else m, positions[t], again)
                if t < i:
                    _planes(words[(K + t) * n : (K + t + 1) * n], base, edges, M, positions[t])
                _repeats(positions, t, n, again)
            for k in range(n):
                if again[k]:
                    for t in range(K):
                        limit = M if t < i else m
                        fresh = not _biased(words[t * n + k], limit, (u64(1) << u64(32)) % u64(limit))
                        while True:
                            for earlier in range(t):
                                fresh = fresh and positions[earlier, k] != positions[t, k]
                            if fresh:
                                break
                            positions[t, k] = _redraw(t < i, M, m, base, edges, key, stream, spare, place)
                            fresh = True
            for t in range(K):
                table = differ if t < i else agree
                for k in range(n):
                    table[positions[t, k]] += u32(1)


@njit(nogil=True, cache=True)
def _sketch(strings: Any, of_type: Any, base: Any, edges: Any, key: Any, first: Any, out: Any) -> None:
    """Sketches of strings (n, M) into out (n, L, 2, M); counts beyond the dtype stop at its top."""
    n, depth, _, M = out.shape
    m = depth * M
    top = 255 if out.itemsize == 1 else 65535
    differ, agree = np.empty(m, np.uint32), np.empty(m, np.uint32)
    for s in range(n):
        differ[:] = 0
        agree[:] = 0
        _count(of_type[s], M, m, base, edges, key, first + s, differ, agree)
        for j in range(depth):
            shift = depth - 1 - j
            zeros, ones = out[s, j, 0], out[s, j, 1]
            wrong, right = differ[j * M : (j + 1) * M], agree[j * M : (j + 1) * M]
            for a in range(M):
                bit = (strings[s, a] >> shift) & 1
                d, e = min(wrong[a], top), min(right[a], top)
                zeros[a] = d if bit else e
                ones[a] = e if bit else d


def _cumulated(parameters: QKParameters) -> tuple[int, NDArray[np.uint32]]:
    """(leading bits with q = 0, inner edges of the cumulated q in units of 2^-32)."""
    likely = np.flatnonzero(parameters.q)
    inner = np.rint(np.cumsum(parameters.q)[likely[0] : likely[-1]] * 2.0**32)
    # A q below 2^-32 may round onto the rim; it is then one unit wide.
    return int(likely[0]), np.clip(inner, 1, 2.0**32 - 1).astype(np.uint32)


def draw_sketches(
    strings: NDArray[Any],
    parameters: QKParameters,
    *,
    dice: Dice,
    first: int = 0,
    n_jobs: int | None = None,
    out: NDArray[Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[Any]:
    """Sketches of n strings of M pixels: counts (n, L, 2, M), where [.., 0, .] counts the zeros.

    `first` numbers the strings under one key: two calls with the same dice must not share numbers, or the same
    dice would hide two images.
    """
    n, M = strings.shape
    parameters.check_string(M)
    if parameters.depth * M >= 1 << 31:
        raise ValueError("a string must have fewer than 2^31 bits.")
    counts = np.empty((n, parameters.depth, 2, M), parameters.dtype) if out is None else out
    of_type = dice.types.multinomial(parameters.n_records(M), parameters.p, size=n)
    base, edges = _cumulated(parameters)
    step = max(1, min(64, n // 8))
    starts = range(0, n, step)

    def work(start: int) -> int:
        part = slice(start, min(start + step, n))
        _sketch(strings[part], of_type[part], base, edges, dice.key, first + start, counts[part])
        return part.stop

    threads = n_jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        for done in pool.map(work, starts):
            if progress is not None:
                progress(done, n)
    return counts
