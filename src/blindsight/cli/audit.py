"""`blindsight audit`: what is claimed, what is proved, what an attack measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, stage_bar
from blindsight.core.errors import InvalidParameter

__all__ = ["register"]


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
    encoder: Annotated[
        str | None,
        typer.Option(help="With --vault: the release's encoder, where it is not built in."),
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
    """Attack what you made or shared, or with --all the claims of all five methods.

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
    from blindsight.app.audit import audit_methods, audit_release

    with stage_bar() as progress:
        if target is None:
            result = audit_methods(deep=deep, workers=workers, seed=seed, progress=progress)
        else:
            result = audit_release(
                target,
                vault=vault,
                photos=photos,
                encoder=encoder,
                labels=labels,
                deep=deep,
                seed=seed,
                progress=progress,
            )
    if json:
        emit_json(result.to_dict())
    else:
        console.print(result.text(min(console.width, 100)), markup=False, soft_wrap=True, end="")
    if out is not None:
        written = result.write(out)
        if not json:
            console.print(
                f"wrote {', '.join(str(path) for path in written)}", markup=False, soft_wrap=True
            )
    raise typer.Exit(1 if result.refuted else 0)
