"""The hashing bench's plots, as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.plots import legend_below

__all__ = ["Curve", "by_bits", "by_epsilon", "lookup_curve", "precision_recall"]


@dataclass(frozen=True)
class Curve:
    """Precision and recall of everything within a Hamming radius, averaged over queries.

    Parameters:
        radius: the radii 0 to c.
        precision: the mean over the queries that retrieve anything at that radius; NaN if none do.
        recall: the mean over all queries.
    """

    radius: NDArray[np.int64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]


def lookup_curve(counts: NDArray[np.int64], n_bits: int) -> Curve:
    """The precision-recall curve of hash lookup: everything within Hamming radius 0, 1, ..., c.

    Parameters:
        counts: what `blindsight.evaluation.retrieval.distance_counts` returns.
        n_bits: the length of the codes, c.
    """
    retrieved = np.cumsum(counts, axis=2)[:, :, : n_bits + 1].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = retrieved[:, 1] / retrieved[:, 0]
        recall = retrieved[:, 1] / counts[:, 1].sum(axis=1)[:, None]
    return Curve(np.arange(n_bits + 1), _column_means(precision), _column_means(recall))


def _column_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=0)
    means = np.full(values.shape[1], np.nan)
    return np.asarray(np.divide(total, known.sum(axis=0), out=means, where=known.any(axis=0)))


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"font.size": 8, "svg.hashsalt": "blindsight", "axes.grid": True, "grid.alpha": 0.3}
    )
    from matplotlib import pyplot

    return pyplot


def precision_recall(
    curves: dict[tuple[str, int, float], list[Curve]], target: Path, title: str
) -> None:
    """Figure 2: a row per base, a column per code length, a line per epsilon: the seeds' mean and
    range.
    """
    plt = _pyplot()
    names = list(dict.fromkeys(name for name, _, _ in curves))
    lengths = list(dict.fromkeys(n_bits for _, n_bits, _ in curves))
    figure, axes = plt.subplots(
        len(names),
        len(lengths),
        figsize=(2.6 * len(lengths), 2.2 * len(names)),
        squeeze=False,
        layout="constrained",
    )
    for (name, n_bits, epsilon), found in curves.items():
        panel = axes[names.index(name)][lengths.index(n_bits)]
        label = f"PHashing, epsilon {epsilon:g}" if epsilon else name
        recall = np.mean([curve.recall for curve in found], axis=0)
        precision = np.array([curve.precision for curve in found])
        (line,) = panel.plot(
            recall, precision.mean(axis=0), marker=".", markersize=3, linewidth=1, label=label
        )
        panel.fill_between(
            recall, precision.min(axis=0), precision.max(axis=0), alpha=0.2, color=line.get_color()
        )
        panel.set_title(f"{name}, {n_bits} bits")
        panel.set_xlabel("recall")
        panel.set_ylabel("precision")
    axes[0][0].legend(fontsize=6)
    figure.suptitle(f"Precision and recall by Hamming radius, {title} (paper's calibration)")
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def by_bits(lines: dict[str, dict[int, tuple[float, float]]], target: Path, title: str) -> None:
    """Figure 3: mAP against code length, a line per method: mean and deviation over the seeds."""
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    for name, values in lines.items():
        means, spread = zip(*values.values(), strict=True)
        style = "--" if name == "PITQ" else "-"
        panel.errorbar(
            list(values),
            means,
            spread,
            fmt=f"o{style}",
            markersize=3,
            linewidth=1,
            capsize=2,
            label=name,
        )
    panel.set_xlabel("bits")
    panel.set_ylabel("mAP")
    panel.set_title(title)
    legend_below(figure, panel)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def by_epsilon(
    lines: dict[str, dict[float, float]], levels: dict[str, float], target: Path, title: str
) -> None:
    """mAP against epsilon per record, a line per method, dashed levels for what needs no noise."""
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for index, (name, values) in enumerate(lines.items()):
        style = {"marker": "osv^D<>ph*X"[index % 11], "color": plt.colormaps["tab20"](index % 20)}
        panel.plot(
            list(values), list(values.values()), markersize=4, linewidth=1, label=name, **style
        )
    for (name, level), dashes in zip(levels.items(), ("--", ":", "-."), strict=False):
        panel.axhline(level, linestyle=dashes, linewidth=0.8, color="gray", label=name)
    panel.set_xscale("log", base=2)
    ticks = sorted({epsilon for values in lines.values() for epsilon in values})
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_xlabel("proven epsilon per record")
    panel.set_ylabel("mAP")
    panel.set_title(title)
    legend_below(figure, panel)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)
