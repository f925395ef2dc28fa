"""`blindsight audit`: what is claimed, what is proved, what an attack measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar, table
from blindsight.core.errors import InvalidParameter

__all__ = ["audit_everything", "register", "show_verdicts"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("audit")(audit)


def audit(
    target: Annotated[Path | None, typer.Argument(help="A saved model, sketches, or an index.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Judge the five papers' claims, and ours.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Ten times the trials.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html, report.md and report.json.")] = None,
    workers: Annotated[int, typer.Option(help="Processes for the attacks that run something many times.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Attack a model or an index of yours, or with --all the claims of all five methods.

    Ends with exit code 1 where a claim is refuted. "not refuted" is not a proof.
    """
    if everything == (target is not None):
        raise InvalidParameter("give either a model or an index to audit, or --all.")
    report = (
        audit_everything(deep=deep, workers=workers, seed=seed) if everything else _one(target, deep=deep, seed=seed)
    )
    if json:
        emit_json_text(report.to_json())
    else:
        show_verdicts(report)
    if out is not None:
        written = report.write(out)
        if not json:
            console.print(f"wrote {', '.join(str(path) for path in written)}", markup=False)
    raise typer.Exit(1 if report.refuted else 0)


def emit_json_text(text: str) -> None:
    """JSON that is text already, through the one writer."""
    import json as plain

    emit_json(plain.loads(text))


def show_verdicts(report: Any) -> None:
    """The table, the headline and the advice on the terminal."""
    from blindsight.audit.table import COLUMNS

    if report.verdicts:
        keep = [
            COLUMNS.index(name) for name in ("method", "setting", "unit", "claimed", "proven", "audited", "verdict")
        ]
        rows = [[verdict.cells()[i] for i in keep] for verdict in report.verdicts]
        table(report.title, [COLUMNS[i] for i in keep], rows)
    console.print(report.headline(), markup=False)
    for sentence in report.advice():
        console.print(f"  change  {sentence}", markup=False)
    if len(report.verdicts) == 1:
        for _, card in report.cards:
            console.print(card.card(), markup=False)


def audit_everything(*, deep: bool, workers: int, seed: int) -> Any:
    """The report on all five methods."""
    from blindsight.audit.showcase import report_on_all
    from blindsight.audit.table import all_verdicts

    with progress_bar("auditing five methods") as progress:
        verdicts = all_verdicts(deep=deep, seed=seed, workers=workers, progress=progress)
    with progress_bar("drawing"):
        return report_on_all(verdicts, seed=seed)


def _one(target: Any, *, deep: bool, seed: int) -> Any:
    from blindsight.audit.evidence import report_of
    from blindsight.audit.target import audit_file

    with progress_bar(f"attacking {target}"):
        found = audit_file(target, trials=2_000_000 if deep else 200_000, seed=seed)
    with progress_bar("measuring what it costs and what comes back"):
        return report_of(found, seed=seed)
