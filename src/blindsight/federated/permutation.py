"""Permutations from a shared secret: φ (user-shared) and φ^(n) (user-aggregator) of Sections 2.3 and 2.4.

A permutation is an array `to`: entry i moves to place to[i]. It is drawn by sorting pseudo-random 64-bit keys, which
is exactly uniform given distinct keys; should two coincide (probability below D²/2^65), the next stretch of the stream
is used. The stream is SHAKE-256 of the secret, the purpose, and in `block` mode the round, so that every round has a
fresh permutation and nobody has to send one.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["derive", "inverse", "permutation", "stream"]


def stream(secret: bytes, purpose: str, context: bytes, length: int) -> bytes:
    """`length` pseudo-random bytes for one purpose and context; fields are length-prefixed so none can run over."""
    parts = (secret, purpose.encode(), context)
    head = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hashlib.shake_256(head).digest(length)


def derive(secret: bytes, purpose: str, context: bytes = b"") -> bytes:
    """A 32-byte key for one purpose."""
    return stream(secret, purpose, context, 32)


def permutation(secret: bytes, purpose: str, context: bytes, size: int) -> NDArray[np.intp]:
    """The permutation of `size` things that all holders of the secret agree on."""
    for attempt in range(16):
        data = stream(secret, purpose, context + attempt.to_bytes(1, "little"), 8 * size)
        keys = np.frombuffer(data, dtype="<u8")
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
