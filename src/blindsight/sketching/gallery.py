"""The picture that says it best: originals above what attackers recover, setting by setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.core.arrays import Array
from blindsight.core.errors import InvalidData
from blindsight.privacy.entropy import RandomState
from blindsight.sketching.paper import NegativeSketcher
from blindsight.sketching.parameters import PAPER_P, PAPER_Q, PAPER_R, pixels_of

__all__ = ["draw_gallery", "settings_gallery"]

_SIDE = 512  # pixels of a picture that are drawn


def draw_gallery(
    path: str | Path, rows: Sequence[tuple[str, Array]], *, peak: float = 255.0
) -> Path:
    """Write rows of images, each with its caption, as SVG or PNG (by the file's ending)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not rows or not all(len(images) for _, images in rows):
        raise InvalidData("a gallery needs at least one row of images.")
    columns = max(len(images) for _, images in rows)
    figure = Figure(figsize=(1.6 + columns * 0.9, 0.95 * len(rows)))
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (caption, images) in zip(axes, rows, strict=True):
        for axis in line:
            axis.axis("off")
        for axis, image in zip(line, images, strict=False):
            step = max(
                1, max(image.shape[:2]) // _SIDE
            )  # not averaged: that would be an attack of its own
            axis.imshow(
                np.clip(image[::step, ::step] / peak, 0, 1),
                cmap="gray",
                vmin=0,
                vmax=1,
                interpolation="nearest",
            )
        line[0].text(
            -0.15, 0.5, caption, transform=line[0].transAxes, ha="right", va="center", fontsize=8
        )
    figure.subplots_adjust(
        left=1.5 / (1.6 + columns * 0.9),
        right=0.99,
        top=0.99,
        bottom=0.01,
        wspace=0.05,
        hspace=0.05,
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target


def settings_gallery(
    path: str | Path,
    images: Any,
    *,
    names: Sequence[str] = tuple(PAPER_Q),
    p: Sequence[float] = PAPER_P,
    r: float = PAPER_R,
    random_state: RandomState = None,
) -> Path:
    """Originals, and what the paper's attacker recovers of them under each setting Q1 to Q12."""
    pixels = pixels_of(images)
    rows: list[tuple[str, Array]] = [("original", pixels)]
    for name in names:
        sketcher = NegativeSketcher(name, p=p, r=r, random_state=random_state).fit(pixels)
        rows.append((name, sketcher.sketch(pixels).pictures()))
    return draw_gallery(path, rows)
