"""Random-looking bytes from a key: AES in counter mode, about 2 GB per second where the processor
has it.
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

__all__ = ["expand", "secret_words"]


def expand(key: bytes, nonce: bytes, length: int) -> bytes:
    """`length` bytes of AES-CTR; a nonce of at most 8 bytes leaves the counter its own half."""
    if len(nonce) > 8:
        raise AssertionError("the counter's half of the nonce is not ours")
    cipher = Cipher(algorithms.AES(key), modes.CTR(nonce.ljust(16, b"\0")))
    return cipher.encryptor().update(bytes(length))


def secret_words(count: int) -> NDArray[np.uint64]:
    """`count` fresh 64-bit words: AES-256 in counter mode under a key that the operating system
    draws for this call.

    The key is forgotten with the call, so no state is kept that could be read, forked or restored.
    """
    return np.frombuffer(expand(os.urandom(32), b"", 8 * count), dtype="<u8")
