"""`blindsight audit`: what is claimed, what is proved, what an attack measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar, table
from blindsight.errors import InvalidParameter

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
    if len(report.cards) == 1:
        console.print(report.cards[0][1].card(), markup=False)


def audit_everything(*, deep: bool, workers: int, seed: int) -> Any:
    """The report on all five methods."""
    from blindsight.audit.report import Report
    from blindsight.audit.showcase import cards, figures
    from blindsight.audit.table import all_verdicts

    with progress_bar("auditing five methods") as progress:
        verdicts = all_verdicts(deep=deep, seed=seed, workers=workers, progress=progress)
    with progress_bar("drawing"):
        return Report(
            title="Claimed, proven, audited",
            verdicts=verdicts,
            cards=cards(seed=seed),
            figures=figures(verdicts, seed=seed),
            notes=[
                f"Seed {seed}; audited numbers are lower bounds at 95% whose ceiling is set by the number of trials."
            ],
        )


def _one(target: Any, *, deep: bool, seed: int) -> Any:
    from blindsight.audit.figures import three_numbers
    from blindsight.audit.report import Report
    from blindsight.audit.target import audit_file

    with progress_bar(f"auditing {target}"):
        found = audit_file(target, trials=2_000_000 if deep else 200_000, seed=seed)
    verdicts = [] if found.verdict is None else [found.verdict]
    pictures = [("The three numbers", "Audited is a lower bound.", three_numbers(verdicts))] if verdicts else []
    return Report(title=f"Audit of {found.name}", verdicts=verdicts, cards=[(found.name, found.card)], figures=pictures)
