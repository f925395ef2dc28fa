"""`blindsight demo`: all five protections on data inside installed packages, ending in the table of three numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.audit import audit_everything, show_verdicts
from blindsight.cli.terminal import console

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed, so that two runs agree.", min=0)] = 0,
) -> None:
    """Attack what five papers promise, and what Blindsight promises instead; leaves a report to open in a browser."""
    console.print("Five ways a visual pipeline gives something away; five published protections; what holds of them.")
    report = audit_everything(deep=False, workers=1, seed=seed)
    show_verdicts(report)
    written = report.write(out)
    console.print(f"Open {written[0]} in a browser.", markup=False)
