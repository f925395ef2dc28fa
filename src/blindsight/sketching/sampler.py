"""Sketches drawn directly as counts, distributed as in Algorithms 1 and 2, without records.

A sketch only counts, for each bit, how many records disagree and how many agree with the image. So
the sampler draws the number of records of each type and the bit planes of their first differing
bits (multinomial numbers); a compiled kernel then draws the positions of each record and adds them
to two tables; the image decides at the end which of the two counts belongs to the ones. The K
positions of a record are distinct: a position that repeats an earlier one of its record is drawn
again, as in Algorithm 1, so the whole distribution is the same and not only the mean (ignoring
repeats shifts the counts by about 1/M, which is measurable on small images).

Random numbers come from ChaCha8 in numba under a key from the operating system (`fresh_key`). An
attacker who could predict them would see the image, so numpy's generators (fast, but predictable
from their output) are not used; the operating system delivers about 0.4 GB/s, too slow for 0.7 MB
per image, and ChaCha8 about 10 GB/s, because its loop over blocks has no inner loops and compiles
to vector instructions. Each (stream, lane) is a separate nonce, so images can be drawn in any order
and on any core. Keys are never stored. The numbers of types and planes, which are independent of
the image, come from AES under another key (or a numpy generator with a vault's or a user's seed).
Uniform positions are exact (rejection); the q_j of further differing bits are rounded to multiples
of 2^-32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.arrays import Array, Integers
from blindsight.core.checks import njit
from blindsight.privacy.entropy import RandomState, aes_generator
from blindsight.privacy.vault import RecordStream
from blindsight.sketching.parameters import QKParameters

__all__ = ["WORDS", "Dice", "draw_sketches", "fill", "fresh_key", "seeded_key"]

u32 = np.uint32
u64 = np.uint64
WORDS = 16  # in a block of ChaCha8


def fresh_key() -> NDArray[np.uint32]:
    """Return a 256-bit key from the operating system."""
    return np.frombuffer(os.urandom(32), np.uint32).copy()


def seeded_key(rng: np.random.Generator) -> NDArray[np.uint32]:
    """Return a key from a seeded generator, for simulations only."""
    return rng.integers(0, 1 << 32, size=8, dtype=np.uint32)


@njit()
def _quarter(a: u32, b: u32, c: u32, d: u32) -> Any:
    a = u32(a + b)
    d = u32(d ^ a)
    d = u32((d << u32(16)) | (d >> u32(16)))
    c = u32(c + d)
    b = u32(b ^ c)
    b = u32((b << u32(12)) | (b >> u32(20)))
    a = u32(a + b)
    d = u32(d ^ a)
    d = u32((d << u32(8)) | (d >> u32(24)))
    c = u32(c + d)
    b = u32(b ^ c)
    b = u32((b << u32(7)) | (b >> u32(25)))
    return a, b, c, d


@njit()
def _double_round(
    a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, b2: u32, b3: u32,
    c0: u32, c1: u32, c2: u32, c3: u32, d0: u32, d1: u32, d2: u32, d3: u32,
) -> Any:  # fmt: skip
    a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
    a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
    a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
    a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
    a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
    a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
    a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
    a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@njit(nogil=True, cache=True)
def fill(
    key: Integers,
    stream: int,
    lane: int | np.int64,
    counter: int | np.int64,
    out: Integers,
) -> None:
    """Fill `out` (16, blocks) with the keystream of a nonce, from block `counter` on.

    The nonce is (`stream`, `lane`).
    """
    s0, s1, s2, s3 = u32(0x61707865), u32(0x3320646E), u32(0x79622D32), u32(0x6B206574)
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    n0, n1, n2 = u32(stream), u32(u64(stream) >> u64(32)), u32(lane)
    first = u32(counter)
    for block in range(out.shape[1]):
        count = u32(first + u32(block))
        a0, a1, a2, a3, b0, b1, b2, b3 = s0, s1, s2, s3, k0, k1, k2, k3
        c0, c1, c2, c3, d0, d1, d2, d3 = k4, k5, k6, k7, count, n2, n0, n1
        a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = _double_round(
            a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3
        )
        a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = _double_round(
            a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3
        )
        a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = _double_round(
            a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3
        )
        a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = _double_round(
            a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3
        )
        out[0, block], out[1, block] = u32(a0 + s0), u32(a1 + s1)
        out[2, block], out[3, block] = u32(a2 + s2), u32(a3 + s3)
        out[4, block], out[5, block] = u32(b0 + k0), u32(b1 + k1)
        out[6, block], out[7, block] = u32(b2 + k2), u32(b3 + k3)
        out[8, block], out[9, block] = u32(c0 + k4), u32(c1 + k5)
        out[10, block], out[11, block] = u32(c2 + k6), u32(c3 + k7)
        out[12, block], out[13, block] = u32(d0 + count), u32(d1 + n2)
        out[14, block], out[15, block] = u32(d2 + n0), u32(d3 + n1)


BATCH = 1024  # records whose random numbers are drawn at once: they fit the first-level cache
SPARE = 8  # blocks of spare random numbers for redraws
# Two positions share a word if they have at most this many values together; then at most one word
# in 64 is drawn again.
SHARED = 1 << 26


@dataclass(frozen=True)
class Dice:
    """The randomness of one call.

    It has a key for the positions, and a generator for the numbers of records of each type.
    """

    key: NDArray[np.uint32]
    types: np.random.Generator
    simulation: bool

    @classmethod
    def throw(cls, random_state: RandomState = None) -> Dice:
        """Use the operating system's entropy (None), or a seed or generator for a simulation."""
        if random_state is None:
            return cls(fresh_key(), aes_generator(), False)
        rng = np.random.default_rng(random_state)
        return cls(seeded_key(rng), rng, True)

    @classmethod
    def keyed(cls, stream: RecordStream) -> Dice:
        """Use a vault's stream, which gives the same randomness every time it is opened."""
        key = np.frombuffer(stream.bytes(32), "<u4").astype(np.uint32)
        return cls(
            key,
            np.random.Generator(np.random.PCG64(int.from_bytes(stream.bytes(16), "little"))),
            False,
        )

    def __repr__(self) -> str:
        return f"Dice(simulation={self.simulation})"


@njit()
def _scaled(word: int, n: int) -> Any:
    """Return floor(word n / 2^32).

    It is uniform on 0..n-1 if the words of `_biased` are drawn again (Lemire).
    """
    return u32((u64(word) * u64(n)) >> u64(32))


@njit()
def _biased(word: int, n: int) -> Any:
    return u64(u32(u32(word) * u32(n))) < (u64(1) << u64(32)) % u64(n)


@njit(nogil=True, cache=True)
def _spare_word(
    key: Integers,
    stream: int,
    spare: Integers,
    cursor: Integers,
) -> Any:
    """Return the next word of the stream's second lane; cursor = [next word, next block]."""
    if cursor[0] == spare.size:
        fill(key, stream, np.int64(1), cursor[1], spare)
        cursor[1] += spare.shape[1]
        cursor[0] = 0
    word = spare.flat[cursor[0]]
    cursor[0] += 1
    return word


@njit(nogil=True, cache=True)
def _below(
    n: int,
    key: Integers,
    stream: int,
    spare: Integers,
    cursor: Integers,
) -> Any:
    """Draw a uniform number below n from the spare random numbers."""
    word = _spare_word(key, stream, spare, cursor)
    while _biased(word, n):
        word = _spare_word(key, stream, spare, cursor)
    return _scaled(word, n)


@njit(nogil=True, cache=True)
def _redraw(
    differing: bool,
    M: int,
    m: int,
    base: int,
    edges: Integers,
    key: Integers,
    stream: int,
    spare: Integers,
    cursor: Integers,
) -> Any:
    """Draw one position again: by Q for a differing bit, uniformly for an agreeing one."""
    plane = 0
    if differing:
        word = _spare_word(key, stream, spare, cursor)
        plane = base
        for edge in edges:
            plane += word >= edge
    return u32(plane * M) + _below(M if differing else m, key, stream, spare, cursor)


@njit(nogil=True, cache=True)
def _one(
    words: Integers,
    n: int,
    row: Integers,
    again: Integers,
) -> None:
    """Draw uniform positions below n, one per word, and mark those whose word is biased."""
    rim = u32((u64(1) << u64(32)) % u64(n))
    for k in range(words.size):
        product = u64(words[k]) * u64(n)
        row[k] = u32(product >> u64(32))
        again[k] |= u32(1) if u32(product) < rim else u32(0)


@njit(nogil=True, cache=True)
def _two(
    words: Integers, n: int, other: int, row: Integers, next_row: Integers, again: Integers
) -> None:
    """Draw two positions per word, below n and `other`: the two leading digits of word / 2^32."""
    rim = u32((u64(1) << u64(32)) % (u64(n) * u64(other)))
    for k in range(words.size):
        product = u64(words[k]) * u64(n)
        row[k] = u32(product >> u64(32))
        rest = u64(u32(product)) * u64(other)
        next_row[k] = u32(rest >> u64(32))
        again[k] |= u32(1) if u32(rest) < rim else u32(0)


@njit(nogil=True, cache=True)
def _share(
    i: int,
    K: int,
    M: int,
    m: int,
    word_of: Integers,
    span: Integers,
) -> Any:
    """Assign a word to each position t of a record of type i.

    `span` is the number of values that each word represents. Returns the number of words.
    """
    t, used = 0, 0
    while t < K:
        word_of[t] = used
        span[used] = M if t < i else m
        if t + 1 < K and span[used] * (M if t + 1 < i else m) <= SHARED:
            t += 1
            word_of[t] = used
            span[used] *= M if t < i else m
        t += 1
        used += 1
    return used


@njit(nogil=True, cache=True)
def _planes(
    words: Integers,
    base: int,
    edges: Integers,
    M: int,
    positions: Integers,
) -> None:
    """Move each position to the plane of a bit j drawn with probability q_j.

    `edges` are the cumulated q.
    """
    for k in range(words.size):
        positions[k] += u32(base * M)
    for edge in edges:
        for k in range(words.size):
            positions[k] += u32(M) if words[k] >= edge else u32(0)


@njit(nogil=True, cache=True)
def _sorted_planes(remaining: Integers, M: int, positions: Integers) -> None:
    """Move the positions, in order, to the planes; `remaining[j]` are left for plane j."""
    k = 0
    for j in range(remaining.size):
        take = min(remaining[j], positions.size - k)
        for index in range(k, k + take):
            positions[index] += u32(j * M)
        remaining[j] -= take
        k += take


@njit(nogil=True, cache=True)
def _mark_equal(row: Integers, other: Integers, again: Integers) -> None:
    """Mark the columns in which two rows are equal."""
    for k in range(row.size):
        again[k] |= u32(1) if row[k] == other[k] else u32(0)


@njit(nogil=True, cache=True)
def _any(again: Integers) -> Any:
    """Whether any is marked. Without an early exit, the loop compiles to vector instructions."""
    marked = u32(0)
    for k in range(again.size):
        marked |= again[k]
    return marked > 0


@njit(nogil=True, cache=True)
def _add(positions: Integers, table: Integers) -> None:
    for k in range(positions.size):
        table[positions[k]] += np.uint16(1)


@njit(nogil=True, cache=True)
def _mend(
    positions: Integers,
    words: Integers,
    word_of: Integers,
    span: Integers,
    again: Integers,
    i: int,
    M: int,
    m: int,
    base: int,
    edges: Integers,
    key: Integers,
    stream: int,
    spare: Integers,
    cursor: Integers,
) -> None:
    """Draw positions of the marked records again.

    These are first the positions from biased words, and then, in order, those that repeat an
    earlier position.
    """
    K, n = positions.shape[0], again.size
    for k in range(n):
        if not again[k]:
            continue
        for t in range(K):
            if not _biased(words[word_of[t] * n + k], span[word_of[t]]):
                continue
            if t == 0:  # Its plane was drawn beforehand and must not change.
                positions[0, k] = positions[0, k] // u32(M) * u32(M) + _below(
                    M, key, stream, spare, cursor
                )
            else:
                positions[t, k] = _redraw(t < i, M, m, base, edges, key, stream, spare, cursor)
        for t in range(1, K):
            fresh = False
            while not fresh:
                fresh = True
                for earlier in range(t):
                    fresh = fresh and positions[earlier, k] != positions[t, k]
                if not fresh:
                    positions[t, k] = _redraw(t < i, M, m, base, edges, key, stream, spare, cursor)


@njit(nogil=True, cache=True)
def _count(
    of_type: Integers,
    first: Integers,
    M: int,
    m: int,
    base: int,
    edges: Integers,
    key: Integers,
    stream: int,
    differ: Integers,
    agree: Integers,
) -> None:
    """Add the positions of all records of one string to `differ` and `agree`.

    A position is plane M + pixel. first[i - 1, j] of the records of type i have their first
    differing bit on plane j. These numbers are drawn beforehand, because the order of records does
    not matter.
    """
    K = of_type.shape[0]
    words = np.empty(2 * K * BATCH + WORDS, np.uint32)
    spare = np.empty((WORDS, SPARE), np.uint32)
    cursor = np.array([spare.size, 0], np.int64)
    positions = np.empty((K, BATCH), np.uint32)
    marks = np.empty(BATCH, np.uint32)
    word_of, span = np.empty(K, np.int64), np.empty(K, np.int64)
    # These are variables, because `fill` would be compiled again for each literal.
    lane, counter = np.int64(0), np.int64(0)
    for i in range(1, K + 1):  # records of type i: i differing bits, K - i agreeing ones
        remaining = first[i - 1].copy()
        used = _share(i, K, M, m, word_of, span)
        for start in range(0, of_type[i - 1], BATCH):
            n = min(BATCH, of_type[i - 1] - start)
            blocks = ((used + i - 1) * n + WORDS - 1) // WORDS
            fill(key, stream, lane, counter, words[: WORDS * blocks].reshape(WORDS, blocks))
            counter += blocks
            again = marks[:n]
            again[:] = 0
            for t in range(K):
                random_words = words[word_of[t] * n : (word_of[t] + 1) * n]
                if t + 1 < K and word_of[t + 1] == word_of[t]:
                    _two(
                        random_words,
                        M if t < i else m,
                        M if t + 1 < i else m,
                        positions[t, :n],
                        positions[t + 1, :n],
                        again,
                    )
                elif t == 0 or word_of[t - 1] != word_of[t]:
                    _one(random_words, M if t < i else m, positions[t, :n], again)
            _sorted_planes(remaining, M, positions[0, :n])
            for t in range(1, i):
                _planes(
                    words[(used + t - 1) * n : (used + t) * n], base, edges, M, positions[t, :n]
                )
            for t in range(1, K):
                for earlier in range(t):
                    _mark_equal(positions[t, :n], positions[earlier, :n], again)
            if _any(again):
                _mend(
                    positions,
                    words,
                    word_of,
                    span,
                    again,
                    i,
                    M,
                    m,
                    base,
                    edges,
                    key,
                    stream,
                    spare,
                    cursor,
                )
            for t in range(K):
                _add(positions[t, :n], differ if t < i else agree)


@njit(nogil=True, cache=True)
def _sketch(
    strings: Integers,
    of_type: Integers,
    first: Integers,
    base: int,
    edges: Integers,
    key: Integers,
    number: int,
    out: Integers,
) -> None:
    """Write sketches of strings (n, M), numbered from `number`, to out (n, L, 2, M).

    Counts are limited to the largest value of the dtype.
    """
    n, depth, _, M = out.shape
    m = depth * M
    top = 255 if out.itemsize == 1 else 65535
    differ, agree = np.empty(m, np.uint16), np.empty(m, np.uint16)
    for s in range(n):
        differ[:] = 0
        agree[:] = 0
        _count(of_type[s], first[s], M, m, base, edges, key, number + s, differ, agree)
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
    """Return the number of leading bits with q = 0, and the inner edges of the cumulated q.

    The edges are in units of 2^-32.
    """
    likely = np.flatnonzero(parameters.q)
    inner = np.rint(np.cumsum(parameters.q)[likely[0] : likely[-1]] * 2.0**32)
    # A q below 2^-32 may round to 0 or 2^32; it then gets one unit.
    return int(likely[0]), np.clip(inner, 1, 2.0**32 - 1).astype(np.uint32)


def draw_sketches(
    strings: Array,
    parameters: QKParameters,
    *,
    dice: Dice,
    n_jobs: int | None = None,
    out: Array | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Draw sketches of n strings of M pixels: counts (n, L, 2, M), where [.., 0, .] counts zeros.

    Strings are numbered from 0 under the key of `dice`. Every call needs its own `dice`; otherwise
    two images would get the same noise.

    Parameters:
        strings: pixels (n, M), whole numbers.
        parameters: the parameters of the sketches.
        dice: the randomness of this call.
        n_jobs: threads; None for all cores.
        out: an array for the counts; None allocates one.
        progress: called with (done, total).
    """
    n, M = strings.shape
    parameters.check_string(M)
    if parameters.depth * M >= 1 << 31:
        raise ValueError("a string must have fewer than 2^31 bits.")
    counts = np.empty((n, parameters.depth, 2, M), parameters.dtype) if out is None else out
    of_type = dice.types.multinomial(parameters.n_records(M), parameters.p, size=n)
    on_plane = dice.types.multinomial(of_type, parameters.q)
    base, edges = _cumulated(parameters)
    step = max(1, min(64, n // 8))
    starts = range(0, n, step)

    def work(start: int) -> int:
        part = slice(start, min(start + step, n))
        _sketch(
            strings[part], of_type[part], on_plane[part], base, edges, dice.key, start, counts[part]
        )
        return int(part.stop)

    threads = n_jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        for done in pool.map(work, starts):
            if progress is not None:
                progress(done, n)
    return counts
