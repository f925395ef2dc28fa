"""The report's pictures: SVG and PNG as text, so that the page needs nothing beside itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.membership import Membership, roc
from blindsight.audit.verdict import Verdict

__all__ = ["gallery", "png", "roc_curves", "three_numbers", "utility_curves"]

_GREY, _BLUE, _RED, _GREEN = "#888888", "#3b82c4", "#d1495b", "#2a9d6f"
_CEILING = 30.0


def three_numbers(verdicts: Sequence[Verdict]) -> str:
    """Claimed, proven and audited side by side, one line a method that has an epsilon."""
    shown = [v for v in verdicts if v.audited is not None]
    figure, axes = _axes(9, 0.42 * len(shown) + 1.2)
    for line, verdict in enumerate(reversed(shown)):
        assert verdict.audited is not None  # noqa: S101  (filtered above)
        proven, audited = min(verdict.proven, _CEILING), min(verdict.audited.epsilon, _CEILING)
        axes.plot([audited, proven], [line, line], color=_GREY, lw=1, zorder=1)
        marker = ">" if verdict.proven > _CEILING else "o"
        axes.scatter(proven, line, color=_GREEN, marker=marker, zorder=2, label="proven" if line == 0 else None)
        if verdict.claimed is not None:
            axes.scatter(verdict.claimed, line, color=_BLUE, marker="|", s=160, zorder=3)
        color = _RED if verdict.refuted else _GREY
        axes.scatter(audited, line, color=color, marker="D", s=28, zorder=4)
    labels = [f"{v.method}: {v.setting}" for v in reversed(shown)]
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    axes.set_xlabel("epsilon: | claimed, ◆ audited (red: refuted), ● proven (▶: more, or none)", fontsize=8)
    axes.set_xlim(left=-0.5)
    return _svg(figure)


def utility_curves(curves: Mapping[str, Sequence[tuple[float, float]]], *, ylabel: str, chance: float) -> str:
    """Utility against proven epsilon, one line a method."""
    figure, axes = _axes(7, 3.6)
    for (name, points), color in zip(curves.items(), (_GREEN, _RED, _BLUE, _GREY), strict=False):
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", color=color, label=name)
    axes.axhline(chance, color=_GREY, lw=1, ls=":", label="chance")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("proven epsilon per record")
    axes.set_ylabel(ylabel)
    _legend(axes)
    return _svg(figure)


def roc_curves(found: Mapping[str, Membership]) -> str:
    """Membership inference on log-log axes: what matters is the left edge."""
    figure, axes = _axes(5, 4)
    for (name, membership), color in zip(found.items(), (_RED, _GREEN, _BLUE), strict=False):
        fpr, tpr = roc(membership.scores, membership.included)
        axes.plot(np.maximum(fpr, 1e-3), np.maximum(tpr, 1e-3), color=color, label=f"{name}, AUC {membership.auc:.2f}")
    axes.plot([1e-3, 1], [1e-3, 1], color=_GREY, lw=1, ls=":", label="guessing")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(2e-3, 1)
    axes.set_ylim(2e-3, 1)
    axes.set_xlabel("false accusations")
    axes.set_ylabel("members found")
    _legend(axes)
    return _svg(figure)


def gallery(rows: Mapping[str, NDArray[Any]], *, scale: int = 2) -> str:
    """Rows of small pictures with a caption each, as one HTML table."""
    lines = []
    for caption, images in rows.items():
        cells = "".join(f'<td><img alt="" src="data:image/png;base64,{png(image, scale)}"></td>' for image in images)
        lines.append(f"<tr><th>{caption}</th>{cells}</tr>")
    return f'<div class="scroll"><table class="gallery">{"".join(lines)}</table></div>'


def png(image: NDArray[Any], scale: int = 1) -> str:
    """A picture as base64 PNG."""
    from PIL import Image

    picture = Image.fromarray(np.clip(np.rint(image), 0, 255).astype(np.uint8))
    if scale > 1:
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # One grey that reads on white and on black, since the page follows the reader's theme.
    for spine in axes.spines.values():
        spine.set_color(_GREY)
    axes.tick_params(colors=_GREY)
    axes.xaxis.label.set_color(_GREY)
    axes.yaxis.label.set_color(_GREY)
    axes.grid(color=_GREY, alpha=0.2)
    return figure, axes


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, labelcolor=_GREY, fontsize=8)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
