"""Legends and labels that lie on nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["label_points", "legend_below"]

_PLACES = ((5, 4), (5, -10), (-5, 4), (-5, -10), (8, 14), (8, -20), (-8, 14), (-8, -20), (0, 24), (0, -30))


def legend_below(figure: Any, axes: Any, *, columns: int = 3) -> None:
    """One legend under the whole figure, from the lines of one panel."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)


def label_points(axes: Any, points: Iterable[tuple[str, tuple[float, float]]], *, size: float = 6) -> None:
    """Name points once all is plotted, each where its label hides no other; one that finds no place is left out."""
    figure = axes.figure
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    taken: list[Any] = []
    for name, point in sorted(points, key=lambda item: item[1]):
        for right, up in _PLACES:
            across = "left" if right > 0 else "right" if right < 0 else "center"
            text = axes.annotate(
                name, point, xytext=(right, up), textcoords="offset points", fontsize=size, ha=across,
                arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "0.6"} if abs(up) > 10 else None,
            )  # fmt: skip
            box = text.get_window_extent(renderer).padded(1)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()
