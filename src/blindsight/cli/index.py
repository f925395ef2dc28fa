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
    from blindsight.core.errors import InvalidData
    from blindsight.index.encoder import CodeRecipe, load_encoder
    from blindsight.index.index_file import Header
    from blindsight.index.owner_view import ALIKE, OwnerPhotos
    from blindsight.index.release_folder import OwnerNames, ReleaseFolder

    place = ReleaseFolder.read(index)
    encoder = load_encoder(
        CodeRecipe.from_fields(place.recipe), index, Header.of(place.codes).decoding
    )
    names = OwnerNames(place, vault)
    if names.vault is None and place.names == "random":
        raise InvalidData(
            "only the owner can tell: the vault is not here (--vault says where it is)."
        )
    own = OwnerPhotos(names, folder or names.source, encoder)
    with encoder.load(place.codes) as stored:
        keys = sorted(str(key) for ids, _ in stored.items() for key in ids.tolist())
    groups = own.duplicates(keys, alike=ALIKE if alike is None else alike)
    listed = [[names.of(key) for key in group] for group in groups]
    copies = [files for key in keys if len(files := names.of(key)) > 1]
    if json:
        emit_json({"groups": listed, "copies": copies})
        return
    for number, group in enumerate(listed, start=1):
        console.print(f"{number}. " + "  ".join(", ".join(files) for files in group), markup=False)
    count = sum(len(group) for group in groups)
    console.print(f"{count} photos in {len(groups)} groups are nearly the same.", markup=False)
    for files in copies:
        console.print("copies: " + ", ".join(files), markup=False)
