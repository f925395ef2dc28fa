"""Legends and labels that lie on nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["label_points", "legend_below"]

# Offsets in points, near ones first; from the far ones a thin line leads back to the point.
_NEAR = ((6, 4), (6, -10), (-6, 4), (-6, -10), (0, 8), (0, -14))
_FAR = tuple(
    (side * right, up)
    for up in (16, -22, 28, -34, 40, -46)
    for right in (8, 20)
    for side in (1, -1)
)
_PLACES = (*_NEAR, *_FAR)


def legend_below(figure: Any, axes: Any, *, columns: int = 3) -> None:
    """One legend under the whole figure, from the lines of one panel."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=7, frameon=False
    )


def label_points(
    axes: Any, points: Iterable[tuple[str, tuple[float, float]]], *, size: float = 6
) -> None:
    """Name points once all is plotted, each where its label hides no label, point or line; else it
    is left out.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    taken: list[Any] = []
    marks = _drawn(axes)
    for name, point in sorted(points, key=lambda item: item[1]):
        for right, up in _PLACES:
            across = "left" if right > 0 else "right" if right < 0 else "center"
            text = axes.annotate(
                name,
                point,
                xytext=(right, up),
                textcoords="offset points",
                fontsize=size,
                ha=across,
                arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "0.6"}
                if (right, up) in _FAR
                else None,
            )
            box = text.get_window_extent(renderer).padded(1)
            inside = (
                frame.x0 <= box.x0
                and box.x1 <= frame.x1
                and frame.y0 <= box.y0
                and box.y1 <= frame.y1
            )
            if (
                inside
                and not any(box.overlaps(other) for other in taken)
                and not box.count_contains(marks)
            ):
                taken.append(box)
                break
            text.remove()


def _drawn(axes: Any) -> NDArray[np.float64]:
    """Where lines and points lie, in the picture's own units, close enough that no label slips
    between.
    """
    places = [np.empty((0, 2))]
    for line in axes.get_lines():
        path = axes.transData.transform(line.get_xydata())
        steps = np.linspace(0, 1, 60)[:, None]
        places += [
            path,
            *(start + steps * (end - start) for start, end in itertools.pairwise(path)),
        ]
    places += [axes.transData.transform(one.get_offsets()) for one in axes.collections]
    return np.concatenate(places)
