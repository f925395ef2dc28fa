"""Permutations from a shared secret: φ (user-shared) and φ^(n) (user-aggregator) of Sections 2.3
and 2.4.

A permutation is an array `to`: entry i moves to place to[i]. It is drawn by sorting pseudo-random
64-bit keys, which is exactly uniform given distinct keys; should two coincide (probability below
D²/2^65), the next stretch of the stream is used. The stream is SHAKE-256 of the secret and the
purpose, so nobody has to send a permutation.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["inverse", "permutation"]


def permutation(secret: bytes, purpose: str, size: int) -> NDArray[np.intp]:
    """The permutation of `size` things that all holders of the secret agree on."""
    # Fields with their lengths before them: none can run over into the next.
    head = b"".join(len(part).to_bytes(4, "little") + part for part in (secret, purpose.encode()))
    for attempt in range(16):
        keys = np.frombuffer(
            hashlib.shake_256(head + bytes([attempt])).digest(8 * size), dtype="<u8"
        )
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return inverse(order)
    raise AssertionError("sixteen streams with equal keys: impossible at any real size")


def inverse(to: NDArray[np.intp]) -> NDArray[np.intp]:
    """φ^T = φ^-1 (below Equation 8)."""
    back = np.empty_like(to)
    back[to] = np.arange(len(to))
    return back
