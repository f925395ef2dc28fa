"""`blindsight watch FOLDER --out RELEASE`: protect new photos as they arrive."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.options import ActorOption, LedgerOption, PurposeOption
from blindsight.cli.terminal import console, emit_json, errors, show_files

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch)


def watch(
    folder: Annotated[Path, typer.Argument(help="The photos; subfolders are watched too.")],
    out: Annotated[
        Path, typer.Option("--out", help="The folder to share: a new one, or one to continue.")
    ],
    epsilon: Annotated[float | None, typer.Option(help="Budget per photo (default 8).")] = None,
    encoder: Annotated[str | None, typer.Option(help="As in protect.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The small network.")] = False,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")
    ] = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    vault: Annotated[
        Path | None, typer.Option(help="What you keep private (default: OUT.vault).")
    ] = None,
    people: Annotated[
        str | None, typer.Option("--people", help="Whose photos: folder, dicom or FILE:COLUMN.")
    ] = None,
    max_per_person: Annotated[
        int | None, typer.Option("--most", help="With --people: most images of one person.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Machine-readable output when it ends.")
    ] = False,
) -> None:
    """Protect the photos of a folder, and new ones as they arrive, until you press Ctrl-C.

    Every run is charged like `protect`, before anything is released. The log holds counts and no
    names.
    """
    from blindsight.app.watch import watch as watch_folder

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    result = watch_folder(
        folder,
        out,
        epsilon=epsilon,
        ledger=ledger,
        dataset=dataset,
        actor=actor,
        purpose=purpose,
        vault=vault,
        encoder=encoder,
        fast=fast,
        people=people,
        max_per_person=max_per_person,
        stop=stop,
        report=lambda run: errors.print(str(run), markup=False, soft_wrap=True),
    )
    if json:
        emit_json(result.to_dict())
        return
    console.print(result.title, markup=False)
    for label, text in result.facts():
        console.print(f"{label}: {text}", markup=False)
    show_files(None if result.last is None else result.last.files)
