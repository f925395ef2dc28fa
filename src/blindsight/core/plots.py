"""Plots as SVG that follow the reader's light or dark theme, and small pictures as data URIs."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLOURS", "INK", "LINE", "Lines", "curves", "data_uri", "draw"]

# Stand-ins that become CSS variables in the finished file.
INK, LINE = "#010203", "#010204"
COLOURS = ("#2f6fb3", "#c2542d", "#2a8a61", "#7c5cbf")
Lines = Mapping[str, Sequence[tuple[float, float]]]
_STYLE = (
    "<style>:root{--ink:#39424e;--line:#c9d0d9}"
    "@media (prefers-color-scheme:dark){:root{--ink:#c6ced9;--line:#414a57}}</style>"
)
_drawing = threading.Lock()  # matplotlib's settings belong to the process


def data_uri(image: NDArray[Any], scale: int = 1) -> str:
    """An image as a `data:` URI with a PNG file, enlarged by a whole factor."""
    from PIL import Image

    picture = Image.fromarray(np.clip(np.rint(image), 0, 255).astype(np.uint8))
    if scale > 1:
        picture = picture.resize(
            (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
        )
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def draw(
    paint: Callable[[Any], None],
    *,
    width: float = 6.0,
    height: float = 3.2,
    path: Path | None = None,
) -> str:
    """Draw an SVG and return its text.

    Parameters:
        paint: draws on the matplotlib axes that it is given.
        width: in inches.
        height: in inches.
        path: also write the file here.
    """
    with _drawing:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}):
            figure = Figure(figsize=(width, height), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.subplots()
            _quiet(axes)
            paint(axes)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "var(--ink)").replace(LINE, "var(--line)")
    text = text.replace("'DejaVu Sans'", "system-ui")
    head, tail = text.split(">", 1)
    text = f"{head}>{_STYLE}{tail}"
    if path is not None:
        path.write_text(text, encoding="utf-8")
    return text


def curves(
    lines: Lines,
    *,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    levels: Mapping[str, float] | None = None,
    mark: float | None = None,
    unit: bool = False,
) -> Callable[[Any], None]:
    """A painter for `draw`: one line per name, with a legend.

    Parameters:
        lines: points (x, y) by name.
        xlabel: the label of the x axis.
        ylabel: the label of the y axis.
        log: a logarithmic x axis, with a tick at each point.
        levels: horizontal dotted lines by name, for comparison.
        mark: a vertical line at this x.
        unit: fix the y axis to 0 to 1.
    """

    def paint(axes: Any) -> None:
        for (name, points), colour in zip(lines.items(), COLOURS, strict=False):
            x, y = zip(*sorted(points), strict=True) if points else ((), ())
            axes.plot(x, y, marker="o", ms=4, lw=1.8, color=colour, label=name)
        for (name, level), style in zip((levels or {}).items(), (":", "--", "-."), strict=False):
            axes.axhline(level, color=INK, lw=1, ls=style, label=name)
        if mark is not None:
            axes.axvline(mark, color=INK, lw=1, alpha=0.6)
        if log:
            axes.set_xscale("log", base=2)
            ticks = sorted({x for points in lines.values() for x, _ in points})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        else:
            axes.xaxis.get_major_locator().set_params(integer=True)
        if unit:
            axes.set_ylim(0, 1.02)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)

    return paint


def _quiet(axes: Any) -> None:
    axes.patch.set_alpha(0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    axes.tick_params(colors=INK, color=LINE, length=3)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(color=LINE, alpha=0.5, lw=0.6)
    axes.set_axisbelow(True)
