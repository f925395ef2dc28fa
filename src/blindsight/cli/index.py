"""`blindsight index duplicates INDEX`: what the owner of an index asks about the photos
themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(help="What the owner asks about an index.", no_args_is_help=True)
    verbs.command("duplicates")(duplicates)
    app.add_typer(verbs, name="index")


def duplicates(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight protect.")],
    alike: Annotated[
        float | None,
        typer.Option(
            help="How alike photos must look, 0 to 1 (default 0.8; 1 is the same picture)."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the photos are (default: where they were).")
    ] = None,
    vault: Annotated[
        Path | None, typer.Option(help="The owner's vault (default: INDEX.vault).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Photos that are nearly the same, for the owner: by the photos themselves, which are looked at
    here and now.

    Copies of one file share a code and cost nothing; photos that are only nearly the same are
    records of their own, and whoever is on several of them is protected per person only (hash
    --person).
    """
    from blindsight.app.search import find_duplicates

    options = {} if alike is None else {"min_similarity": alike}
    result = find_duplicates(index, photos=folder, vault=vault, **options)
    if json:
        emit_json(result.to_dict())
        return
    for number, group in enumerate(result.groups, start=1):
        console.print(f"{number}. " + "  ".join(", ".join(files) for files in group), markup=False)
    console.print(result.title, markup=False)
    for files in result.copies:
        console.print("copies: " + ", ".join(files), markup=False)
