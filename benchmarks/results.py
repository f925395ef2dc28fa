"""docs/RESULTS.md, docs/papers.md and the pages behind them, written from what was measured: no
number that a command did not make.

Other pages quote rows by a template in a comment, `<!-- rows`, lines with {id} or {id:.3f}, or
{id!paper} for what the paper states, `-->`; what stands between it and `<!-- end of rows -->` is
written from it.

`python -m benchmarks.results` writes them again from docs/results/*.json, whoever wrote those.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.growth.sizing import fill_page
from benchmarks.harness import Row, markdown_table, read_report
from benchmarks.papers import glance, glance_rows, losses, races
from benchmarks.register import PAPERS, papers_page

__all__ = ["collect", "fill_rows", "write_results"]

PAGE = Path("docs/RESULTS.md")
_FIELDS = tuple(field.name for field in dataclasses.fields(Row))
_FEW = 60  # a part with so many rows is shown whole
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
    every = {row["id"]: row for report in found.values() for row in report["rows"]}
    rows = {key: row for key, row in every.items() if row["unit"] != "skipped"}
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
        _write_csv(beside / f"{part}.csv", report["rows"])
        lines.append(
            f"- [{part.capitalize()}](results/{part}.md): {len(report['rows'])} "
            f"rows{_pictures(plots)}."
        )
    (page.parent / "papers.md").write_text(papers_page(every))
    for quoting in sorted(page.parent.rglob("*.md")):
        text = quoting.read_text(encoding="utf-8")
        if "<!-- rows\n" in text:
            quoting.write_text(fill_rows(text, rows), encoding="utf-8")
    page.write_text("\n".join(lines) + "\n")
    cluster = page.parent / "cluster.md"
    if "growth" in found and cluster.exists():
        fill_page(beside / "growth.json", cluster)
    return list(found)


_QUOTED = re.compile(r"(<!-- rows\n(.*?)-->\n).*?(<!-- end of rows -->)", re.DOTALL)
_CELL = re.compile(r"\{([\w.-]+?)(?:!(paper)|:([^}]+))?\}")


def fill_rows(text: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A page whose templates are filled from the rows; an id that no row has is left as it is.

    Examples:
        >>> page = "<!-- rows\\n{a.b:.2f} of {a.b!paper}\\n-->\\n<!-- end of rows -->"
        >>> fill_rows(page, {"a.b": {"value": 0.256, "paper": 0.3}}).splitlines()[3]
        '0.26 of 0.3'
    """

    def cell(match: re.Match[str]) -> str:
        found = rows.get(match[1])
        if found is None:
            return match[0]
        return str(found["paper"]) if match[2] else format(found["value"], match[3] or ".4g")

    def section(match: re.Match[str]) -> str:
        return f"{match[1]}{_CELL.sub(cell, match[2])}{match[3]}"

    return _QUOTED.sub(section, text)


def _report(source: Path) -> dict[str, Any] | None:
    """A report with whole rows, or None where a file is something else."""
    try:
        report = read_report(source)
        report["rows"] = [{**dict.fromkeys(_FIELDS), **row} for row in report["rows"]]
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
        f"{how}{where}{seconds}. All {len(report['rows'])} rows with their notes, to download: "
        f"[JSON]({part}.json), [CSV]({part}.csv). {versions + '.' if versions else ''}",
        "",
    ]
    for plot in plots:
        lines += [f"![{Path(plot).stem}]({plot})", ""]
    rows = report["rows"]
    chosen = rows if len(rows) <= _FEW else _main_rows(part, rows)
    if chosen:
        lines += _table(chosen)
    if len(chosen) < len(rows):
        groups = Counter(_group(row["id"]) for row in rows)
        named = ", ".join(f"`{name}` {count}" for name, count in groups.items() if count > 2)
        lines += [f"Rows in the files, by the beginning of their ids: {named}.", ""]
    return "\n".join(lines) + "\n"


def _main_rows(part: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that the page of the papers, the tables of RESULTS.md or a race name."""
    named = {asked for _, _, items in PAPERS for item in items for asked in item.rows}
    named |= set(glance_rows())
    return [
        row for row in rows if row["id"] in named or (row["peer"] and row["unit"].startswith("x"))
    ]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, fieldnames=_FIELDS, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)


def _group(row_id: str) -> str:
    """`hashing.table1.itq.24` and `hashing.table1_itq` belong to `hashing.table1`."""
    return ".".join(re.split(r"[._]", row_id)[:2])


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """One line a row; the notes are in the files."""
    cells = [
        (
            f"`{row['id']}`",
            "skipped" if row["unit"] == "skipped" else f"{row['value']:.4g} {row['unit']}",
            row["paper"],
            row["peer"],
        )
        for row in rows
    ]
    columns = ("figure", "measured", "paper", "against")
    kept = [k for k in range(4) if k < 2 or any(cell[k] is not None for cell in cells)]
    return [
        *markdown_table([columns[k] for k in kept], [[cell[k] for k in kept] for cell in cells]),
        "",
    ]


if __name__ == "__main__":
    sys.stdout.write(f"wrote {PAGE} ({', '.join(write_results())})\n")
