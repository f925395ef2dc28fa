"""Search results side by side as one picture: the query, hits without protection, hits from the
protected index.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["Strip", "film"]

Pixels = NDArray[np.uint8]
_TILE, _GAP, _HEAD, _BETWEEN = 88, 5, 30, 26
_INK, _PAPER, _WRONG = "#1d2129", "#ffffff", "#c8324a"


@dataclass(frozen=True)
class Strip:
    """One query: its picture, or the words that were asked for; and hits, each with whether it
    shows what was asked.

    `groups` are the ways to search, each a sequence of (picture, right).
    """

    query: Pixels | str
    groups: Sequence[Sequence[tuple[Pixels, bool]]]


def film(titles: Sequence[str], strips: Sequence[Strip]) -> bytes:
    """One JPEG, a line per query.

    A wrong hit has a red frame. `titles` stand over the query and the groups.
    """
    most = [max(len(strip.groups[i]) for strip in strips) for i in range(len(titles) - 1)]
    starts = [
        _GAP,
        *np.cumsum(
            [_GAP + _TILE + _BETWEEN, *[n * (_TILE + _GAP) + _BETWEEN for n in most]]
        ).tolist(),
    ]
    size = (int(starts[-1]) - _BETWEEN + _GAP, _HEAD + len(strips) * (_TILE + _GAP) + _GAP)
    sheet = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for title, left in zip(titles, starts, strict=False):
        pen.text((int(left), 7), title, _INK, font)
    for line, strip in enumerate(strips):
        top = _HEAD + line * (_TILE + _GAP)
        if isinstance(strip.query, str):
            words = strip.query.replace(" ", "\n")
            pen.multiline_text(
                (_GAP + _TILE // 2, top + _TILE // 2),
                words,
                _INK,
                font,
                anchor="mm",
                align="center",
            )
        else:
            sheet.paste(_tile(strip.query), (_GAP, top))
        for group, left in zip(strip.groups, starts[1:], strict=False):
            for place, (pixels, right) in enumerate(group):
                x = int(left) + place * (_TILE + _GAP)
                sheet.paste(_tile(pixels), (x, top))
                if not right:
                    pen.rectangle((x, top, x + _TILE - 1, top + _TILE - 1), outline=_WRONG, width=4)
    held = io.BytesIO()
    sheet.save(held, "JPEG", quality=86)
    return held.getvalue()


def _tile(pixels: Any) -> Image.Image:
    return Image.fromarray(pixels).convert("RGB").resize((_TILE, _TILE), Image.Resampling.LANCZOS)
