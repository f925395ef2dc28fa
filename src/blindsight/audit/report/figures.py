"""The report's pictures: SVG and PNG as text, so that the page needs nothing beside itself."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from blindsight.audit.engine.blackbox import Told
from blindsight.audit.engine.membership import Membership, roc
from blindsight.audit.report.verdict import Verdict
from blindsight.core import plots
from blindsight.core.arrays import Array, Floats
from blindsight.core.plots import INK, LINE

__all__ = [
    "Figure",
    "allowed",
    "attack_roc",
    "curves",
    "gallery",
    "guesses",
    "roc_curves",
    "three_numbers",
]

_BLUE, _RED, _GREEN = "#2f6fb3", "#d1495b", "#2a8a61"
_CEILING = 30.0


class Figure(NamedTuple):
    """A picture for the page (trusted HTML or SVG), and the numbers behind it; without a picture
    they are shown.
    """

    title: str
    caption: str
    picture: str
    rows: Sequence[Mapping[str, Any]] = ()


def allowed(fpr: Any, epsilon: float, delta: float = 0.0) -> Floats:
    """The most right accusations that (epsilon, delta) leaves possible at these rates of false
    ones.

    min(e^ε f + δ, 1 - e^-ε (1 - δ - f)) (Kairouz, Oh and Viswanath 2015).
    """
    f = np.asarray(fpr, np.float64)
    grow = math.exp(min(epsilon, 700))
    return np.clip(np.minimum(grow * f + delta, 1 - (1 - delta - f) / grow), 0, 1)


def three_numbers(verdicts: Sequence[Verdict]) -> str:
    """Claimed, proven and audited side by side, one line per method that has an epsilon."""
    shown = [v for v in verdicts if v.audited is not None]

    def paint(axes: Any) -> None:
        for line, verdict in enumerate(reversed(shown)):
            assert verdict.audited is not None  # noqa: S101  (filtered above)
            proven, audited = min(verdict.proven, _CEILING), min(verdict.audited.epsilon, _CEILING)
            axes.plot([audited, proven], [line, line], color=LINE, lw=1, zorder=1)
            axes.scatter(
                proven,
                line,
                color=_GREEN,
                marker=">" if verdict.proven > _CEILING else "o",
                zorder=2,
            )
            if verdict.claimed is not None:
                axes.scatter(verdict.claimed, line, color=_BLUE, marker="|", s=160, zorder=3)
            axes.scatter(
                audited, line, color=_RED if verdict.refuted else INK, marker="D", s=28, zorder=4
            )
        alone = len(shown) == 1  # its setting is in the table
        labels = [v.method if alone else f"{v.method}: {v.setting}" for v in reversed(shown)]
        axes.set_yticks(range(len(shown)), labels, fontsize=8)
        axes.set_xlabel(
            "epsilon: | claimed, ◆ audited (red: refuted), ● proven (▶: more, or none)", fontsize=8
        )
        reach = axes.get_xlim()[1]
        axes.set_xlim(-0.02 * reach, 1.03 * reach)

    return plots.draw(paint, width=9, height=0.42 * len(shown) + 1.2)


def curves(
    lines: plots.Lines,
    *,
    xlabel: str,
    ylabel: str,
    own: tuple[float, float] | None = None,
    chance: float | None = None,
    labels: Mapping[str, tuple[float, float]] | None = None,
    logarithmic: bool = True,
) -> str:
    """Lines of points; `own` is where the audited file stands, a level line where its x is
    infinite.
    """
    levels = {} if chance is None else {"chance": chance}
    draw_lines = plots.curves(lines, xlabel=xlabel, ylabel=ylabel, log=logarithmic, levels=levels)

    def paint(axes: Any) -> None:
        if own is not None and math.isinf(own[0]):
            axes.axhline(
                own[1], color=_RED, lw=1.5, ls="--", label=f"your file: {own[1]:.2f}, no ε proven"
            )
        elif own is not None:
            axes.scatter(
                *own, color=_RED, marker="D", s=60, zorder=5, label=f"your file: {own[1]:.2f}"
            )
        draw_lines(axes)
        for text, point in _apart(labels or {}).items():
            axes.annotate(
                text, point, xytext=(4, -11), textcoords="offset points", fontsize=7, color=INK
            )

    return plots.draw(paint, width=5.4, height=3.4)


def _apart(labels: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Labels that would lie on each other become one."""
    if not labels:
        return {}
    reach = 0.05 * np.ptp(np.array(list(labels.values())), axis=0)
    groups: list[tuple[list[str], tuple[float, float]]] = []
    for text, point in sorted(labels.items(), key=lambda item: item[1]):
        near = next((g for g in groups if (np.abs(np.subtract(g[1], point)) <= reach).all()), None)
        if near is None:
            groups.append(([text], point))
        else:
            near[0].append(text)
    return {", ".join(sorted(names, key=list(labels).index)): point for names, point in groups}


def attack_roc(
    told: Told, *, proven: float, claimed: float | None, delta: float = 0.0, proof: str = "proven"
) -> tuple[str, list[dict[str, Any]]]:
    """Claim, proof and attack on log-log axes; and the same at a few rates, as rows.

    A curve above a line contradicts it. The diamond is the event that the audited number rests on,
    at the stated confidence: it is what refutes; the thin end of the curve is a handful of runs.
    """
    scores = np.concatenate([told.guilty, told.innocent])
    fpr, tpr = roc(scores, np.repeat([True, False], [len(told.guilty), len(told.innocent)]))
    floor = 1 / len(told.innocent)
    grid = np.geomspace(floor, 1, 200)

    def paint(axes: Any) -> None:
        if not math.isinf(proven):
            label = f"{proof}: ε = {proven:.3g}" + (f", δ = {delta:.1g}" if delta else "")
            axes.plot(
                grid, np.maximum(allowed(grid, proven, delta), floor), color=_GREEN, label=label
            )
        if claimed is not None and not math.isinf(claimed):
            line = np.maximum(allowed(grid, claimed, delta), floor)
            axes.plot(grid, line, color=_BLUE, ls="--", label=f"claimed: ε = {claimed:.3g}")
        axes.plot(
            grid, np.maximum(np.interp(grid, fpr, tpr), floor), color=_RED, lw=2, label="attack"
        )
        if told.audited.epsilon > 0:
            axes.scatter(
                *np.maximum(told.rates, floor),
                color=_RED,
                marker="D",
                s=40,
                zorder=5,
                label="audited event",
            )
        _guessing(axes, floor, "right accusations")

    rows = []
    for rate in (1e-3, 1e-2, 1e-1):
        row: dict[str, Any] = {
            "false accusations": rate,
            "attack": round(float(np.interp(rate, fpr, tpr)), 4),
        }
        row["proven allows"] = (
            1.0 if math.isinf(proven) else round(float(allowed(rate, proven, delta)), 4)
        )
        if claimed is not None:
            row["claim allows"] = (
                1.0 if math.isinf(claimed) else round(float(allowed(rate, claimed, delta)), 4)
            )
        rows.append(row)
    return plots.draw(paint, width=5.6, height=4.2), rows


def roc_curves(found: Mapping[str, Membership]) -> str:
    """Membership inference on log-log axes: what matters is the left edge."""

    def paint(axes: Any) -> None:
        for (name, membership), color in zip(found.items(), (_RED, _GREEN, _BLUE), strict=False):
            fpr, tpr = roc(membership.scores, membership.included)
            label = f"{name}, AUC {membership.auc:.2f}"
            axes.plot(np.maximum(fpr, 1e-3), np.maximum(tpr, 1e-3), color=color, label=label)
        _guessing(axes, 2e-3, "members found")

    return plots.draw(paint, width=5, height=4)


def _guessing(axes: Any, floor: float, ylabel: str) -> None:
    """The diagonal, on logarithmic axes from `floor` to 1."""
    axes.plot([floor, 1], [floor, 1], color=INK, lw=1, ls=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.15))
    axes.set(xlabel="false accusations", ylabel=ylabel)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)


def guesses(bars: Mapping[str, tuple[float, float, float]], *, most: float | None) -> str:
    """Shares of right guesses with their intervals, one half for chance, and the most that is
    allowed.
    """

    def paint(axes: Any) -> None:
        for line, (share, low, high) in enumerate(reversed(list(bars.values()))):
            axes.plot([low, high], [line, line], color=_RED, lw=2)
            axes.scatter(share, line, color=_RED, marker="D", s=40, zorder=3)
        axes.axvline(0.5, color=INK, lw=1, ls=":", label="chance")
        if most is not None:
            axes.axvline(most, color=_GREEN, label=f"the proof allows {most:.2f}")
        axes.set_yticks(range(len(bars)), list(bars)[::-1], fontsize=8)
        axes.set(ylim=(-0.6, len(bars) - 0.4), xlim=(0.3, 1.03), xlabel="share of right guesses")
        axes.legend(frameon=False, labelcolor=INK, fontsize=8)

    return plots.draw(paint, width=7, height=0.5 * len(bars) + 1.3)


def gallery(rows: Mapping[str, Array], *, scale: int = 2) -> str:
    """Rows of small pictures, each row under its caption."""
    lines = []
    for caption, images in rows.items():
        cells = "".join(f'<img alt="" src="{plots.data_uri(image, scale)}">' for image in images)
        lines.append(f"<dt>{html.escape(caption)}</dt><dd>{cells}</dd>")
    return f'<dl class="gallery">{"".join(lines)}</dl>'
