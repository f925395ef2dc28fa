"""`blindsight bench ROOM`: measure, print, and write one shape of JSON."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar, table
from blindsight.errors import InvalidParameter

__all__ = ["ROOMS", "register"]

ROOMS = ("privacy", "hashing", "federated", "metric", "sketching", "tagging", "audit")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench")(bench)


def bench(
    room: Annotated[str, typer.Argument(help=f"One of {', '.join(ROOMS)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="A minute instead of a full run.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here; - for standard output.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for plots.")] = Path("out/bench"),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Measure a room: the paper's tables, ours beside them, and races against peers in one run."""
    from blindsight.bench import harness

    if room not in ROOMS or importlib.util.find_spec(f"blindsight.bench.{room}") is None:
        raise InvalidParameter(f"room must be one of {', '.join(ROOMS)}, got {room!r}.")
    plots = out / room
    plots.mkdir(parents=True, exist_ok=True)
    rows = []
    with progress_bar(f"bench {room}") as progress:
        for row in importlib.import_module(f"blindsight.bench.{room}").rows(
            quick=quick, seed=seed, out=plots, progress=progress
        ):
            rows.append(row)
            if json_file != Path("-"):
                console.print(f"{row.id}  [bold]{row.value:.4g}[/] {row.unit}")
    result = harness.report(rows)
    if json_file == Path("-"):
        emit_json(result)
        return
    table(
        f"bench {room}",
        ("id", "value", "unit", "peer", "paper"),
        [(row.id, float(row.value), row.unit, row.peer or "", "" if row.paper is None else row.paper) for row in rows],
    )
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=2))
