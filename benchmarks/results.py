"""docs/RESULTS.md, written from what was measured: no number in it that a command did not make."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.growth.sizing import fill_page
from benchmarks.harness import markdown_table, read_report
from benchmarks.papers import glance, races

__all__ = ["write_results"]

_INTRODUCTION = """# Results
Written by `python -m benchmarks all` from the JSON reports beside this page; every figure names its command, and seed,
versions and machine are in the JSON. `paper` is the number printed in the paper. Ratios are medians of both runners in
one run, in turns. Times and ratios move with the machine; orders and shares should not.
"""


def write_results(reports: Path, target: Path) -> list[str]:
    """Turn `reports`/ROOM.json and `reports`/ROOM/*.svg into the page `target`; returns the rooms found."""
    beside = target.parent / "results"
    beside.mkdir(parents=True, exist_ok=True)
    parts, rooms, rows = [], [], []
    for source in sorted(reports.glob("*.json")):
        room = source.stem
        report = read_report(source)
        rooms.append(room)
        rows += report["rows"]
        (beside / source.name).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        plots = [shutil.copy(plot, beside / f"{room}-{plot.name}") for plot in sorted((reports / room).glob("*.svg"))]
        parts.append(_section(room, report, [Path(plot) for plot in plots]))
    top = "\n".join([*glance({row["id"]: row for row in rows}), *races(rows)])
    target.write_text("\n".join([_INTRODUCTION, top, *parts]))
    cluster = target.parent / "cluster.md"
    if "growth" in rooms and cluster.exists():
        fill_page(reports / "growth.json", cluster)
    return rooms


def _section(room: str, report: dict[str, Any], plots: Iterable[Path]) -> str:
    machine, run = report["machine"], report.get("run", {})
    how = f"`python -m benchmarks {room}{' --quick' if run.get('quick') else ''}`"
    seconds = f", {run['seconds']:.0f} s" if "seconds" in run else ""
    lines = [
        f"## {room.capitalize()}",
        f"{how} on {machine['cores']} cores, Python {machine['python']}{seconds}. "
        f"[All rows as JSON](results/{room}.json).",
        "",
    ]
    for plot in plots:
        lines += [f"![{plot.stem}](results/{plot.name})", ""]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault(_group(row["id"]), []).append(row)
    single = [row for rows in groups.values() if len(rows) == 1 for row in rows]
    if single:
        lines += _table(single)
    for name, rows in groups.items():
        if len(rows) > 1:
            lines += [f"### {name}", *_table(rows)]
    return "\n".join(lines) + "\n"


def _group(row_id: str) -> str:
    """`hashing.table1.itq.24` belongs to `hashing.table1`."""
    return ".".join(row_id.split(".")[:2])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [
        (row["id"], "skipped" if row["unit"] == "skipped" else f"{row['value']:.4g}", row["unit"], row["paper"],
         row["peer"], row["note"])
        for row in rows
    ]  # fmt: skip
    return [*markdown_table(("figure", "measured", "unit", "paper", "against", "note"), cells), ""]
