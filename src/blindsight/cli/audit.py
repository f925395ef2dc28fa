"""`blindsight audit`: compare what is claimed and proven with what an attack measures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, stage_bar
from blindsight.core.errors import InvalidParameter

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `audit` to the command line."""
    app.command("audit")(audit)


def audit(
    target: Annotated[
        Path | None, typer.Argument(help="A saved model, sketches, or a release.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Audit the claims of the five papers and our own.")
    ] = False,
    vault: Annotated[
        Path | None,
        typer.Option(
            help="The release's vault: attack the release with your photos as ground truth."
        ),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the photos: for sketches, for published tags, or if it was moved."
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
        int, typer.Option(help="Processes for the attacks that repeat a computation.", min=1)
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Attack what you made or shared, or with --all the claims of all five methods.

    With --vault the attack runs on your own photos, on this computer. It measures how often a photo
    is singled out, how often what it shows is guessed, how well it is reconstructed, and what
    search still finds. TARGET is a folder of codes, a table of published tags, or with --photos a
    file of sketches. The exit code is 1 if a guarantee is refuted.
    """
    if everything == (target is not None):
        raise InvalidParameter("give either a model or a release to audit, or --all.")
    if vault is None and (labels is not None or (photos is not None and everything)):
        raise InvalidParameter(
            "--photos and --labels need --vault: they describe the photos behind a release."
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
