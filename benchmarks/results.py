"""docs/RESULTS.md and the pages behind it, written from what was measured: no number that a command
did not make.

`python -m benchmarks.results` writes them again from docs/results/*.json, whoever wrote those.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.growth.sizing import fill_page
from benchmarks.harness import markdown_table, read_report
from benchmarks.papers import glance, losses, races

__all__ = ["collect", "write_results"]

PAGE = Path("docs/RESULTS.md")
_INTRODUCTION = """# Results
Written by `python -m benchmarks.results` from the JSON reports in `docs/results`; every figure names its row, and
command, seed, versions and machine are in the JSON. Ratios are medians of both runners in one run, in turns. Times and
ratios move with the machine; orders and shares should not.
"""  # noqa: E501


def collect(reports: Path, beside: Path) -> list[str]:
    """Copy `reports`/PART.json and `reports`/PART/*.svg of a run of benchmarks beside the page;
    returns the parts.
    """
    beside.mkdir(parents=True, exist_ok=True)
    parts = []
    for source in sorted(reports.glob("*.json")):
        parts.append(source.stem)
        (beside / source.name).write_text(
            json.dumps(read_report(source), indent=1, ensure_ascii=False) + "\n"
        )
        for plot in sorted((reports / source.stem).glob("*.svg")):
            shutil.copy(plot, beside / f"{source.stem}-{plot.name}")
    return parts


def write_results(page: Path = PAGE) -> list[str]:
    """Write the page, and one page per part behind it, from the reports beside it; returns the
    parts.
    """
    beside = page.parent / "results"
    found: dict[str, dict[str, Any]] = {}
    for source in sorted(beside.glob("*.json")):
        report = _report(source)
        if report is None:
            sys.stderr.write(f"{source} is no report of rows: left out.\n")
            continue
        found[source.stem] = report
    rows = {
        row["id"]: row
        for report in found.values()
        for row in report["rows"]
        if row["unit"] != "skipped"
    }
    versions = {
        name: number
        for report in found.values()
        for name, number in report.get("versions", {}).items()
    }
    lines = [
        _INTRODUCTION,
        *glance(rows),
        *losses(rows),
        *races(rows.values(), versions=versions),
        "## All rows",
        "",
    ]
    for part, report in found.items():
        plots = sorted(path.name for path in beside.glob(f"{part}-*.svg"))
        (beside / f"{part}.md").write_text(_page(part, report, plots))
        lines.append(
            f"- [{part.capitalize()}](results/{part}.md): {len(report['rows'])} "
            f"rows{_pictures(plots)}."
        )
    page.write_text("\n".join(lines) + "\n")
    cluster = page.parent / "cluster.md"
    if "growth" in found and cluster.exists():
        fill_page(beside / "growth.json", cluster)
    return list(found)


def _report(source: Path) -> dict[str, Any] | None:
    """A report with whole rows, or None where a file is something else."""
    try:
        report = read_report(source)
        fields = ("id", "value", "unit", "peer", "paper", "note")
        report["rows"] = [{**dict.fromkeys(fields), **row} for row in report["rows"]]
    except (ValueError, KeyError, TypeError):
        return None
    return report


def _pictures(plots: list[str]) -> str:
    return f", {len(plots)} picture{'s' if len(plots) > 1 else ''}" if plots else ""


def _page(part: str, report: dict[str, Any], plots: Iterable[str]) -> str:
    machine, run = report.get("machine", {}), report.get("run", {})
    how = f"`python -m benchmarks {part}{' --quick' if run.get('quick') else ''}`"
    seconds = (
        f", {run['seconds']:.0f} s"
        if "seconds" in run
        else f"; {run['parts']}"
        if "parts" in run
        else ""
    )
    where = f" on {machine['cores']} cores, Python {machine['python']}" if machine else ""
    versions = ", ".join(f"{name} {number}" for name, number in report.get("versions", {}).items())
    lines = [
        f"# Results: {part}",
        f"{how}{where}{seconds}. [The rows as JSON]({part}.json). "
        f"{versions + '.' if versions else ''}",
        "",
    ]
    for plot in plots:
        lines += [f"![{Path(plot).stem}]({plot})", ""]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault(_group(row["id"]), []).append(row)
    single = [row for rows in groups.values() if len(rows) == 1 for row in rows]
    if single:
        lines += _table(single)
    for name, rows in groups.items():
        if len(rows) > 1:
            lines += [f"## {name}", *_table(rows)]
    return "\n".join(lines) + "\n"


def _group(row_id: str) -> str:
    """`hashing.table1.itq.24` belongs to `hashing.table1`."""
    return ".".join(row_id.split(".")[:2])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [
        (
            row["id"],
            "skipped" if row["unit"] == "skipped" else f"{row['value']:.4g}",
            row["unit"],
            row["paper"],
            row["peer"],
            row["note"],
        )
        for row in rows
    ]
    return [*markdown_table(("figure", "measured", "unit", "paper", "against", "note"), cells), ""]


if __name__ == "__main__":
    sys.stdout.write(f"wrote {PAGE} ({', '.join(write_results())})\n")
