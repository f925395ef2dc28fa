"""`blindsight audit`: what is claimed, what is proved, what an attack measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar
from blindsight.core.errors import InvalidParameter

__all__ = ["audit_everything", "register", "show_verdicts"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("audit")(audit)


def audit(
    target: Annotated[
        Path | None, typer.Argument(help="A saved model, sketches, or a release.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Judge the five papers' claims, and ours.")
    ] = False,
    vault: Annotated[
        Path | None,
        typer.Option(help="The release's vault: attack it with your own photos as the truth."),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(
            help="The photos' folder: of sketches, of published tags, or if a release's moved."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="With --vault: what the photos show: folder, or FILE.csv:COLUMN."),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Ten times the trials.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, report.md and report.json.")
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes for the attacks that run something many times.", min=1)
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Attack what you made or gave away, or with --all the claims of all five methods.

    With --vault the attack runs on your own photos, on this computer: how well one is singled out,
    what it shows guessed, what is rebuilt of it, and what search still finds. RELEASE is a folder
    of codes, a table of published tags, or with --photos a file of sketches. Ends with exit code 1
    where a promise is refuted.
    """
    if everything == (target is not None):
        raise InvalidParameter("give either a model or a release to audit, or --all.")
    if vault is None and (labels is not None or (photos is not None and everything)):
        raise InvalidParameter(
            "--photos and --labels say more of a release whose --vault is given."
        )
    trials = 2_000_000 if deep else 200_000
    report: Any
    if target is None:
        report = audit_everything(deep=deep, workers=workers, seed=seed)
    elif vault is not None or photos is not None:
        report = _own(target, vault, photos=photos, labels=labels, trials=trials, seed=seed)
    else:
        report = _one(target, trials=trials, seed=seed)
    if json:
        emit_json_text(report.to_json())
    else:
        show_verdicts(report)
    if out is not None:
        written = report.write(out)
        if not json:
            console.print(
                f"wrote {', '.join(str(path) for path in written)}", markup=False, soft_wrap=True
            )
    raise typer.Exit(1 if report.refuted else 0)


def emit_json_text(text: str) -> None:
    """JSON that is text already, through the one writer."""
    import json as plain

    emit_json(plain.loads(text))


def show_verdicts(report: Any) -> None:
    """The answer, what to change, and the numbers, in lines that fit the terminal."""
    console.print(report.to_text(min(console.width, 100)), markup=False, soft_wrap=True, end="")


def audit_everything(*, deep: bool, workers: int, seed: int) -> Any:
    """The report on all five methods."""
    from blindsight.audit.papers import all_verdicts, report_on_all

    with progress_bar("auditing five methods") as progress:
        verdicts = all_verdicts(deep=deep, seed=seed, workers=workers, progress=progress)
    with progress_bar("drawing"):
        return report_on_all(verdicts, seed=seed)


def _one(target: Path, *, trials: int, seed: int) -> Any:
    from blindsight.audit.report.of_file import report_of
    from blindsight.audit.target import audit_file

    with progress_bar(f"attacking {target}"):
        found = audit_file(target, trials=trials, seed=seed)
    with progress_bar("drawing"):
        return report_of(found, seed=seed)


def _own(
    target: Path,
    vault: Path | None,
    *,
    photos: Path | None,
    labels: str | None,
    trials: int,
    seed: int,
) -> Any:
    """What was given away, with the owner's photos: codes, published tags, or sketches."""
    from blindsight.audit.release import audit_release, audit_sketches, audit_tags

    with progress_bar("attacking your release") as progress:
        table = target / "tags.csv" if (target / "tags.csv").is_file() else target
        if target.is_file() and target.suffix.lower() != ".csv":
            if photos is None:
                raise InvalidParameter(
                    "sketches do not say what they are of: give the photos' folder, --photos."
                )
            return audit_sketches(target, photos, trials=trials, seed=seed)
        if vault is None:
            raise InvalidParameter(
                "--photos says more of a release whose --vault is given, or of sketches."
            )
        if table.is_file():
            if photos is None:
                raise InvalidParameter(
                    "published tags do not say where the photos are: give their folder, --photos."
                )
            return audit_tags(table, vault, photos, labels=labels, trials=trials, seed=seed)
        return audit_release(
            target,
            vault,
            photos=photos,
            labels=labels,
            trials=trials,
            seed=seed,
            progress=lambda done, total, _: progress(done, total),
        )
