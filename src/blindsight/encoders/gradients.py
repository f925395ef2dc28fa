"""Oriented gradients: features of handwriting and grey drawings, without a network.

Image networks see little in strokes of a pen; histograms of the directions of edges do. The
gradient of each pixel is shared between the two nearest of 8 directions and the four nearest of
7 x 7 cells; every square of 2 x 2 cells is scaled to about norm 1 and contributes 32 numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["GRADIENT_DIMENSIONS", "GRADIENT_SIZE", "oriented_gradients"]

#: The side in pixels that images are resized to.
GRADIENT_SIZE = 28
_DIRECTIONS, _CELLS, _BLOCK = 8, 7, 2
#: The length of a vector.
GRADIENT_DIMENSIONS = _DIRECTIONS * (_BLOCK * (_CELLS - _BLOCK + 1)) ** 2
_FLOOR = 0.01
_BATCH = 512


def oriented_gradients(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Features (n, 1152) of prepared images (n, 28, 28, 3).

    Examples:
        >>> oriented_gradients(np.zeros((2, 28, 28, 3), np.uint8)).shape
        (2, 1152)
    """
    parts = [_of_batch(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH)]
    return np.concatenate(parts) if parts else np.empty((0, GRADIENT_DIMENSIONS), np.float32)


def _of_batch(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey = images.mean(axis=3, dtype=np.float32) / np.float32(255)
    padded = np.pad(grey, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2
    down = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    strength = np.hypot(across, down)
    turn = np.mod(np.arctan2(down, across) / (2 * np.pi), 1.0) * _DIRECTIONS
    lower = np.floor(turn).astype(np.int64)
    share = (turn - lower).astype(np.float32)
    middle = (np.arange(GRADIENT_SIZE) + 0.5) / GRADIENT_SIZE * _CELLS - 0.5
    near = np.maximum(0.0, 1 - np.abs(middle - np.arange(_CELLS)[:, None])).astype(np.float32)
    cells = np.empty((len(grey), _DIRECTIONS, _CELLS, _CELLS), np.float32)
    for direction in range(_DIRECTIONS):
        part = np.where(lower % _DIRECTIONS == direction, 1 - share, 0)
        part += np.where((lower + 1) % _DIRECTIONS == direction, share, 0)
        cells[:, direction] = near @ (strength * part) @ near.T
    blocks = [
        cells[:, :, row : row + _BLOCK, column : column + _BLOCK].reshape(len(grey), -1)
        for row in range(_CELLS - _BLOCK + 1)
        for column in range(_CELLS - _BLOCK + 1)
    ]
    scaled = [
        block / np.sqrt((block * block).sum(axis=1, keepdims=True) + _FLOOR) for block in blocks
    ]
    return np.concatenate(scaled, axis=1)
