"""Metric learning under pairwise privacy: the paper's figures, the same budgets proven, and races
for kappa.

Tables: Adult and Bank where they are on the machine, the census sets of the paper if a user has
them, and any other CSV named in BLINDSIGHT_METRIC_TABLES as "file.csv:target" (several separated by
commas).

`python -m benchmarks.metric.rows figure_9 bank` measures Figure 9 on one table only, and
`parameters bank` Figure 11; their rows go into docs/results/metric.json. Figure 9 is drawn with all
tables only.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, put_row
from benchmarks.metric.digits import attack_rows, deep_rows, digit_rows, selection_rows
from benchmarks.metric.figures import (
    budgets,
    canvas,
    mechanism_rows,
    parameter_rows,
    proven_mechanism_rows,
    start_rows,
    toy_rows,
)
from benchmarks.metric.kappa import kappa_rows
from benchmarks.metric.protocol import METHODS, Measured, Split, make_split, measure, method
from benchmarks.metric.verification import verification_rows
from benchmarks.plots import legend_below
from blindsight import data
from blindsight.core.errors import MissingData, MissingDependency

__all__ = ["figure_9_claims", "main", "rows"]

Progress = Callable[[int, int], None]
# name -> (catalogue entry, options, nodes: half of Table I's pairs)
TABLES: dict[str, tuple[str, dict[str, Any], int]] = {
    "adult": ("adult", {"encoding": "binary"}, 18_700),
    "bank": ("bank-33", {}, 8_464),
    "ipums-br": ("ipums-br", {}, 30_016),
    "ipums-us": ("ipums-us", {}, 31_104),
}
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
# the closed form's constants were picked on the first splits; it is judged on splits from here on
FRESH = 1000
REPEATS, FIGURE_9_REPEATS = 5, 20


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Progress | None = None
) -> Iterator[Row]:
    """All rows of the room; figures go to `out` as SVG."""
    out.mkdir(parents=True, exist_ok=True)
    yield from verification_rows(quick=quick, seed=seed)
    yield from kappa_rows(quick=quick, seed=seed, out=out)
    yield from toy_rows(quick=quick, seed=seed, out=out)
    yield from digit_rows(quick=quick, seed=seed)
    yield from selection_rows(quick=quick, seed=seed, out=out)
    yield from attack_rows(quick=quick, seed=seed)
    tables, missing = _tables()
    yield from missing
    splits = {name: _split(X, y, nodes, seed, quick) for name, (X, y, nodes) in tables.items()}
    if tables:
        yield from _learner_rows(tables, quick=quick, seed=seed)
        yield from _figure_9(tables, quick=quick, seed=seed, out=out, progress=progress)
        shown = dict(list(splits.items())[: 1 if quick else 2])
        yield from mechanism_rows(shown, seed=seed, out=out, seeds=2 if quick else 10)
        yield from proven_mechanism_rows(shown, seed=seed)
        yield from start_rows(shown, seed=seed, seeds=2 if quick else 5)
        yield from parameter_rows(
            splits.get("bank", next(iter(splits.values()))), quick=quick, seed=seed, out=out
        )
    if not quick:
        try:
            yield from deep_rows(seed=seed)
        except MissingDependency as error:
            yield Row(id="metric.skipped.deep", value=0, unit="skipped", note=str(error))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a figure on one table again, and put its rows into a report in place of the old."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metric.rows")
    parser.add_argument("figure", choices=("figure_9", "parameters"))
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--json", type=Path, default=Path("docs/results/metric.json"))
    parser.add_argument("--out", type=Path, default=Path("out/bench/metric"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    tables, missing = _tables()
    if given.table not in tables:
        measured = iter([row for row in missing if row.id.endswith(given.table)])
    elif given.figure == "parameters":
        split = _split(*tables[given.table], seed=0, quick=False)
        measured = parameter_rows(split, quick=False, seed=0, out=given.out)
    else:
        chosen = {given.table: tables[given.table]}
        measured = _figure_9(chosen, quick=False, seed=0, out=given.out, progress=None)
    for row in measured:
        print(f"{row.id}  {row.value:.4g} {row.unit}\n    {row.note}", flush=True)
        put_row(given.json, row)


def _tables() -> tuple[dict[str, tuple[Any, Any, int]], list[Row]]:
    """What is here, and a row for what is not."""
    found: dict[str, tuple[Any, Any, int]] = {}
    missing = []
    for name, (entry, options, nodes) in TABLES.items():
        try:
            table = data.load(entry, **options)
            found[name] = (table.X, table.y, nodes)
        except MissingData as error:
            missing.append(
                Row(id=f"metric.skipped.{name}", value=0, unit="skipped", note=str(error))
            )
    for named in filter(None, os.environ.get("BLINDSIGHT_METRIC_TABLES", "").split(",")):
        path, _, target = named.rpartition(":")
        table = data.load_csv(path, target=target)
        found[Path(path).stem] = (table.X, table.y, min(len(table) // 2, 20_000))
    return found, missing


def _split(X: Any, y: Any, nodes: int, seed: int, quick: bool) -> Split:
    size = min(nodes, 1500) if quick else nodes
    return make_split(
        X, y, nodes=size, rng=np.random.default_rng(seed), tested=1000 if quick else 2000
    )


def _learner_rows(
    tables: dict[str, tuple[Any, Any, int]], *, quick: bool, seed: int
) -> Iterator[Row]:
    """The closed form against descent at epsilon 1 per pair, with all of the table's pairs and
    columns, also scaled.

    On splits that no constant was picked on.
    """
    gains: dict[str, list[float]] = {"": [], "_scaled": []}
    for table, (X, y, nodes) in tables.items():
        found: dict[tuple[str, Any], list[Measured]] = {}
        for repeat in range(seed + FRESH, seed + FRESH + (1 if quick else REPEATS)):
            split = _split(X, y, nodes, repeat, quick=False)
            for loss in ("moments", "contrastive"):
                for scale in (None, "private"):
                    changes = {"n_components": None, "loss": loss, "scale": scale}
                    found.setdefault((loss, scale), []).append(
                        measure(method("ours", 1.0, split, repeat, **changes), split)
                    )
        for suffix, scale in (("", None), ("_scaled", "private")):
            both = {loss: found[loss, scale] for loss in ("moments", "contrastive")}
            auc, knn, fair = (
                {
                    loss: float(np.mean([getattr(m, field) for m in runs]))
                    for loss, runs in both.items()
                }
                for field in ("auc", "accuracy", "balanced")
            )
            gains[suffix].append(auc["moments"] - auc["contrastive"])
            yield Row(
                id=f"metric.auc_moments_vs_contrastive_{table}{suffix}",
                value=gains[suffix][-1],
                unit="pair AUC",
                seed=seed,
                note=f"{len(split.pairs):,} pairs, epsilon 1 per "
                f"pair{', columns scaled privately' if scale else ''}: "
                f"AUC {auc['moments']:.3f} against {auc['contrastive']:.3f}, kNN "
                f"{knn['moments']:.3f} against "
                f"{knn['contrastive']:.3f}, balanced {fair['moments']:.3f} against "
                f"{fair['contrastive']:.3f}; "
                f"{len(both['moments'])} fresh splits, smallest gain in AUC "
                f"{min(m.auc - c.auc for m, c in zip(both['moments'], both['contrastive'], strict=True)):+.3f}",  # noqa: E501
            )
    note = f"mean over {', '.join(tables)}, each with all of its pairs"
    yield Row(
        id="metric.auc_moments_vs_contrastive",
        value=float(np.mean(gains[""])),
        unit="pair AUC",
        seed=seed,
        note=note,
    )


def _figure_9(
    tables: dict[str, tuple[Any, Any, int]],
    *,
    quick: bool,
    seed: int,
    out: Path,
    progress: Progress | None,
) -> Iterator[Row]:
    """kNN accuracy, balanced accuracy, held-out pair AUC and objective against epsilon; the paper
    repeats 20 times.
    """
    epsilons = (1.0, 4.0) if quick else EPSILONS
    repeats = 1 if quick else FIGURE_9_REPEATS
    total, done = len(tables) * repeats, 0
    figure, axes = canvas(4, len(tables), (4 * len(tables), 11))
    for column, (table, (X, y, nodes)) in enumerate(tables.items()):
        began = time.process_time()
        found: dict[tuple[str, float], list[Measured]] = {}
        for repeat in range(seed, seed + repeats):
            split = _split(X, y, nodes, repeat, quick)
            for name in METHODS:
                for epsilon in _asked(name, epsilons):
                    found.setdefault((name, epsilon), []).append(
                        measure(method(name, epsilon, split, repeat), split)
                    )
            done += 1
            if progress is not None:
                progress(done, total)
        seconds = time.process_time() - began
        summary = list(_summary(table, found, seed, seconds))
        yield from summary
        yield from figure_9_claims({row.id: row.value for row in summary}, table, epsilons)
        for panel, score in zip(
            axes[:, column], ("accuracy", "balanced", "auc", "relative"), strict=True
        ):
            _plot_scores(panel, found, score, epsilons, table)
    legend_below(figure, axes[0][0])
    figure.savefig(out / "metric_figure_9.svg", metadata={"Date": None})


def _asked(name: str, epsilons: tuple[float, ...]) -> tuple[float, ...]:
    """Epsilon means nothing to the learners without noise; for our variants two budgets tell
    enough.
    """
    if name in ("nonprivate", "untrained"):
        return epsilons[:1]
    return (1.0, 4.0) if name.startswith("ours_") else epsilons


def _summary(
    table: str, found: dict[tuple[str, float], list[Measured]], seed: int, seconds: float
) -> Iterator[Row]:
    for (name, epsilon), scores in found.items():
        mean = {
            field: float(np.mean([getattr(s, field) for s in scores]))
            for field in Measured.__dataclass_fields__
        }
        at = "" if name in ("nonprivate", "untrained") else f"_eps{epsilon:g}"
        spread = np.std([s.accuracy for s in scores])
        yield Row(
            id=f"metric.{table}_knn_{name}{at}",
            value=mean["accuracy"],
            unit="accuracy",
            seed=seed,
            seconds=seconds,
            note=f"Figure 9: {METHODS[name]}; balanced {mean['balanced']:.3f}, pair AUC "
            f"{mean['auc']:.3f}, objective "
            f"{mean['objective']:.4f} (free of scale {mean['relative']:.3f}); {len(scores)} runs, "
            f"sd {spread:.3f}",
        )
        yield Row(
            id=f"metric.{table}_auc_{name}{at}", value=mean["auc"], unit="pair AUC", seed=seed
        )
        yield Row(
            id=f"metric.{table}_balanced_{name}{at}",
            value=mean["balanced"],
            unit="balanced accuracy",
            seed=seed,
        )


def figure_9_claims(
    means: dict[str, float], table: str, epsilons: tuple[float, ...] = EPSILONS
) -> Iterator[Row]:
    """At which share of the budgets the paper's comparisons come out in the means, from the rows of
    Figure 9: DPP above node privacy, DPP-S above DPP, input perturbation worst, and accuracy that
    rises with the budget.

    Parameters:
        means: values by the id of their row, such as the rows of a report.
        table: the table's name in those ids.
        epsilons: the budgets.
    """
    for score, word in (("knn", "accuracy"), ("auc", "pair AUC")):
        curve = {
            name: [means[f"metric.{table}_{score}_{name}_eps{epsilon:g}"] for epsilon in epsilons]
            for name in ("dpp", "dpp_s", "node", "input")
        }
        others = np.array([curve[name] for name in ("dpp", "dpp_s", "node")])
        for claim, holds, what in (
            ("dpp_above_node", np.greater(curve["dpp"], curve["node"]), "DPP above node privacy"),
            ("dpp_s_above_dpp", np.greater(curve["dpp_s"], curve["dpp"]), "DPP-S above DPP"),
            ("input_worst", np.less(curve["input"], others.min(axis=0)), "input perturbation last"),
            (
                "rises",
                np.diff(np.vstack([others, [curve["input"]]]), axis=1).ravel() > 0,
                "a step to the next epsilon raises it, over the four methods",
            ),
        ):
            yield Row(
                id=f"metric.figure9_{claim}_{score}_{table}",
                value=float(holds.mean()),
                unit="share",
                paper=1.0,
                note=f"{what}, in {word}: {int(holds.sum())} of {holds.size}",
            )


def _plot_scores(
    panel: Any,
    found: dict[tuple[str, float], list[Measured]],
    score: str,
    epsilons: tuple[float, ...],
    title: str,
) -> None:
    for name, label in METHODS.items():
        asked = _asked(name, epsilons)
        values = [np.mean([getattr(s, score) for s in found[name, e]]) for e in asked]
        if name in ("nonprivate", "untrained"):
            panel.axhline(
                values[0],
                linestyle=":",
                label=label,
                color="black" if name == "nonprivate" else "grey",
            )
        else:
            panel.plot(asked, values, "o-", label=label, markersize=3)
    budgets(panel, epsilons)
    panel.set_title(f"{title}: {score}", fontsize=9)
    panel.set_xlabel("epsilon")


if __name__ == "__main__":
    main()
