"""A ChaCha8 keystream in numba: unpredictable random words at memory speed.

Whoever could predict the dice of a sketch would see the image, so numpy's generators (fast, but
predictable from their output) will not do; the operating system gives about 0.4 GB/s, too slow for
0.7 MB of dice an image. Here the system gives only the 256-bit key (`fresh_key`), and ChaCha8
stretches it at about 10 GB/s: the loop over blocks is written without inner loops so that the
compiler turns it into vector instructions. Each (stream, lane) is a separate nonce, so images can
be drawn in any order and on any core. Keys are never stored.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.compiled import njit

__all__ = ["WORDS", "fill", "fresh_key", "seeded_key"]

u32 = np.uint32
u64 = np.uint64
WORDS = 16  # a block


def fresh_key() -> NDArray[np.uint32]:
    """A 256-bit key from the operating system."""
    return np.frombuffer(os.urandom(32), np.uint32).copy()


def seeded_key(rng: np.random.Generator) -> NDArray[np.uint32]:
    """A key from a seeded generator: for simulations only."""
    return rng.integers(0, 1 << 32, size=8, dtype=np.uint32)


@njit(inline="always")
def _quarter(a: Any, b: Any, c: Any, d: Any) -> Any:
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


@njit(inline="always")
def _double_round(
    a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, b2: Any, b3: Any,
    c0: Any, c1: Any, c2: Any, c3: Any, d0: Any, d1: Any, d2: Any, d3: Any,
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
def fill(key: Any, stream: Any, lane: Any, counter: Any, out: Any) -> None:
    """Fill `out` (16, blocks) with the keystream of nonce (`stream`, `lane`) from block `counter`
    on.
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
