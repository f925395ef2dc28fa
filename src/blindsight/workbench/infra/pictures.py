"""Drawings as answers, and numbers and bytes as small pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi.responses import Response
from numpy.typing import NDArray

from blindsight.core.plots import COLOURS, INK, LINE, curves, data_uri, draw

__all__ = ["COLOURS", "INK", "LINE", "SvgResponse", "curves", "data_uri", "draw", "heat", "noise"]


class SvgResponse(Response):
    """An answer that is a drawing."""

    media_type = "image/svg+xml"


def heat(values: NDArray[Any], width: int, *, cell: int = 4) -> str:
    """Signed numbers as a picture: blue below zero, orange above, grey at zero."""
    flat = np.asarray(values, np.float64).ravel()
    rows = -(-len(flat) // width)
    grid = np.zeros(rows * width)
    grid[: len(flat)] = flat
    level = np.clip(grid / (np.abs(flat).max() or 1.0), -1, 1).reshape(rows, width, 1)
    grey, blue, orange = (
        np.array([228, 231, 236]),
        np.array([47, 111, 179]),
        np.array([194, 84, 45]),
    )
    shown = np.where(level > 0, grey + level * (orange - grey), grey - level * (blue - grey))
    return data_uri(shown, cell)


def noise(data: bytes, width: int, *, rows: int = 40, cell: int = 4) -> str:
    """Bytes as grey squares: what a ciphertext looks like."""
    grid = np.frombuffer(data[: width * rows].ljust(width, b"\0"), np.uint8)
    return data_uri(grid[: len(grid) // width * width].reshape(-1, width), cell)
