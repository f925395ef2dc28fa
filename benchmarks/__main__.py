"""`python -m benchmarks ROOM`: measure, print, and write one shape of JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar, table
from blindsight.core.errors import BlindsightError, InvalidParameter

__all__ = ["ROOMS", "main"]

ROOMS = (
    "privacy",
    "hashing",
    "federated",
    "metric",
    "send",
    "sketching",
    "tagging",
    "audit",
    "growth",
    "files",
    "encoders",
    "workbench",
    "release",
)


def bench(
    room: Annotated[str, typer.Argument(help=f"One of {', '.join(ROOMS)}; or all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute per part instead of a full run.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here; - for standard output.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for reports and plots.")] = Path("out/bench"),
    results: Annotated[Path, typer.Option(help="The page that `all` writes.")] = Path(
        "docs/RESULTS.md"
    ),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With all: measure again what is already measured.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
) -> None:
    """Measure a part: the paper's tables, ours beside them, and races against peers in one run."""
    if room == "all":
        _all(quick=quick, out=out, results=results, fresh=fresh, seed=seed)
        return
    if room not in ROOMS:
        raise InvalidParameter(f"part must be one of {', '.join(ROOMS)} or all, got {room!r}.")
    to_stdout = json_file == Path("-")
    target = None if to_stdout else json_file
    report = _measure(room, quick=quick, out=out, seed=seed, quiet=to_stdout, target=target)
    if to_stdout:
        emit_json(report)
        return
    _show(room, report)


def _all(*, quick: bool, out: Path, results: Path, fresh: bool, seed: int) -> None:
    """Every part in turn; what a stopped run has finished is kept and not measured again."""
    from benchmarks.results import collect, write_results

    for room in ROOMS:
        target = out / f"{room}.json"
        if not fresh and _done(target, quick=quick, seed=seed):
            console.print(f"{room}: measured already (--fresh measures again)")
            continue
        _show(room, _measure(room, quick=quick, out=out, seed=seed, quiet=False, target=target))
    collect(out, results.parent / "results")
    console.print(f"wrote {results} ({', '.join(write_results(results))})")


def _done(target: Path, *, quick: bool, seed: int) -> bool:
    try:
        run = json.loads(target.read_text())["run"]
    except (OSError, ValueError, KeyError):
        return False
    return run["seed"] == seed and (quick or not run["quick"]) and run.get("whole", True)


def _measure(
    room: str, *, quick: bool, out: Path, seed: int, quiet: bool, target: Path | None
) -> dict[str, Any]:
    """Every row of a room; `target` has what is measured so far, should the run be stopped."""
    from benchmarks import harness

    plots = out / room
    plots.mkdir(parents=True, exist_ok=True)
    measure = importlib.import_module(f"benchmarks.{room}.rows").rows
    rows: list[harness.Row] = []
    start, cpu = time.perf_counter(), time.process_time()

    def report(*, whole: bool) -> dict[str, Any]:
        spent = {
            "seconds": round(time.perf_counter() - start, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
        }
        found = {
            **harness.report(rows),
            "run": {"quick": quick, "seed": seed, **spent, "whole": whole},
        }
        if target is not None:
            _write(target, found)
        return found

    with progress_bar(f"bench {room}") as progress:
        for row in measure(quick=quick, seed=seed, out=plots, progress=progress):
            rows.append(row)
            if not quiet:
                console.print(
                    f"{row.id}  {row.value:.4g} {row.unit}", highlight=False, markup=False
                )
            report(whole=False)
    return report(whole=True)


def _show(room: str, report: dict[str, Any]) -> None:
    table(
        f"bench {room}, {report['run']['seconds']:.0f} s",
        ("id", "value", "unit", "peer", "paper"),
        [
            (
                row["id"],
                float(row["value"]),
                row["unit"],
                row["peer"] or "",
                "" if row["paper"] is None else row["paper"],
            )
            for row in report["rows"]
        ],
    )


def _write(target: Path, report: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    """Run from the command line; an error of ours is one sentence."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench)
    try:
        app(prog_name="python -m benchmarks")
    except BlindsightError as error:
        sys.exit(f"benchmarks: {error}")


if __name__ == "__main__":
    main()
