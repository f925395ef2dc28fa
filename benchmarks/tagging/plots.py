"""Figures 1 to 5 drawn: S = 1 beside S = C, with 95% intervals over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tagging.sets import Problem

__all__ = ["plot_figures"]

# by row and metric: "mean" over seeds, and half of its 95% interval, "within".
Results = dict[str, dict[str, dict[str, float]]]
_METRICS = ("mAP", "OP")
_WORDS = {"C": ("S = C", "C0"), "1": ("S = 1", "C1")}


def plot_figures(results: Results, problem: Problem, path: Path) -> None:
    """A row for each of Figures 1 or 2, 3a, 3b, 4 and 5: mAP, OP, and the legend beside them."""
    from matplotlib.figure import Figure

    parts = (_epochs, _lambdas, _factors, _models, _corollaries)
    figure = Figure(figsize=(10, 3.1 * len(parts)), layout="constrained")
    for line, draw in zip(figure.subplots(len(parts), 2), parts, strict=True):
        for axes, metric in zip(line, _METRICS, strict=True):
            draw(axes, results, metric, problem)
            axes.set_ylabel(metric)
            axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.suptitle(
        f"{problem.name}: the paper's models as printed, mean of seeds and 95% intervals"
    )
    figure.savefig(path, format="svg")


def _line(axes: Any, results: Results, metric: str, names: dict[float, str], **style: Any) -> None:
    there = {x: results[name][metric] for x, name in names.items() if name in results}
    if there:
        means, within = [v["mean"] for v in there.values()], [v["within"] for v in there.values()]
        axes.errorbar(list(there), means, yerr=within, marker="o", markersize=3, capsize=2, **style)


def _bars(axes: Any, results: Results, metric: str, names: list[tuple[str, str]]) -> None:
    """Each model's two bars; a name without an S stands once, in grey."""
    width = 0.4
    for place, (_, name) in enumerate(names):
        figure, setting = name.split(".", 1)
        both = {s: f"{figure}.{'' if s == 'C' else 'S1.'}{setting}" for s in _WORDS}
        shown = {s: results[key][metric] for s, key in both.items() if key in results}
        alone = len(shown) == 1 or both["C"].endswith(("ml-gcn", "r-ml-gcn"))
        for s, found in list(shown.items())[: 1 if alone else 2]:
            at = place if alone else place + width * (list(_WORDS).index(s) - 0.5)
            colour = "0.6" if alone else _WORDS[s][1]
            axes.bar(at, found["mean"], width, color=colour, yerr=found["within"], capsize=2)
    for word, colour in _WORDS.values():
        axes.bar(0, 0, color=colour, label=word)
    axes.set_ylim(0, 1)
    axes.set_xticks(
        range(len(names)), [short for short, _ in names], rotation=40, ha="right", fontsize=8
    )


def _epochs(axes: Any, results: Results, metric: str, problem: Problem) -> None:
    number = 2 if problem.name.startswith("coco") else 1
    looks = problem.looks
    _line(
        axes,
        results,
        metric,
        {e: f"fig{number}.ml-gcn.epoch{e}" for e in looks},
        label="ML-GCN",
        color="0.4",
    )
    for s, (word, colour) in _WORDS.items():
        for epsilon, line in ((8, ":"), (10, "--"), (30, "-")):
            names = {float(e): f"fig{number}.p2.S{s}.eps{epsilon}.epoch{e}" for e in looks}
            _line(
                axes,
                results,
                metric,
                names,
                label=f"{word}, ε = {epsilon}",
                color=colour,
                linestyle=line,
            )
    axes.set(xlabel="epochs", title=f"Figure {number}: P2-ML-GCN")


def _lambdas(axes: Any, results: Results, metric: str, problem: Problem) -> None:
    for s, (word, colour) in _WORDS.items():
        part = "" if s == "C" else "S1."
        names = {0.0: f"fig3b.{part}sb1"} | {x: f"fig3a.{part}lambda{x:g}" for x in problem.lambdas}
        _line(axes, results, metric, names, label=word, color=colour)
    axes.set(xlabel="λ (0: P2-ML-GCN)", title="Figure 3a: RP2-ML-GCN, ε = 10")


def _factors(axes: Any, results: Results, metric: str, problem: Problem) -> None:
    for s, (word, colour) in _WORDS.items():
        part = "" if s == "C" else "S1."
        _line(axes, results, metric, {x: f"fig3b.{part}sb{x:g}" for x in problem.bound_factors},
              label=word, color=colour)  # fmt: skip
    axes.set(xlabel="S_b", title="Figure 3b: P2-ML-GCN, ε = 10")


def _models(axes: Any, results: Results, metric: str, problem: Problem) -> None:
    names = ("ml-gcn", "r-ml-gcn", "p2", "rp2", "p2-sb", "rp2-sb", "rp2.mean-loss")
    _bars(axes, results, metric, [(name, f"fig4.{name}") for name in names])
    axes.set_title("Figure 4: ε = 10, λ = 0.5, S_b = 0.8")


def _corollaries(axes: Any, results: Results, metric: str, problem: Problem) -> None:
    names = ("corollary1", "weights", "weights-proven", "corollary2", "features", "features-proven")
    _bars(
        axes,
        results,
        metric,
        [(f"{name}, ε {e}", f"fig5.{name}.eps{e}") for e in ("1", "0.1") for name in names],
    )
    axes.set_title("Figure 5: claimed 1 and 0.1")
