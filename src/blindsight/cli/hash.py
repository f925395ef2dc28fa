"""`blindsight hash FOLDER --out INDEX`: a folder of photos to a private index, in a stream,
continued if stopped.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from blindsight.cli.terminal import console, emit_json, errors, progress_bar, table

if TYPE_CHECKING:
    from blindsight.index.encoder import CodeRecipe
    from blindsight.index.release_folder import ReleaseFolder
    from blindsight.index.sync import SyncResult
    from blindsight.privacy import Guarantee
    from blindsight.privacy.vault import Vault

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("hash")(hash_folder)


def hash_folder(
    folder: Annotated[Path, typer.Argument(help="The photos; subfolders are searched too.")],
    out: Annotated[
        Path, typer.Option("--out", help="The index: a new folder, or one to continue.")
    ],
    method: Annotated[
        str | None,
        typer.Option(help="codebook (default), phashing-itq, phashing-sh or phashing-lsh."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget per unit (default 8).")] = None,
    unit: Annotated[
        str | None, typer.Option(help="record (a whole photo, default) or bit.")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="proven (default) or paper.")] = None,
    cells: Annotated[
        int | None, typer.Option(help="With codebook: how many cells (default: by budget).")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="With phashing: bits of a code (default: by budget).")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="efficientnet (default where installed), efficientnet-reduced (camera photos), "
            "lite2 or pixels."
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="Public pictures like the photos: a folder (best: a subfolder per class), or a "
            "set's name."
        ),
    ] = None,
    first_page: Annotated[
        bool | None,
        typer.Option(
            "--first-page", help="More cells: better first ten hits, worse order of the rest."
        ),
    ] = None,
    prior: Annotated[
        float | None, typer.Option(help="Share of photos that match a query beforehand (0.01).")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            envvar="BLINDSIGHT_LEDGER",
            help="Charge this ledger before anything is released.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(help="What you keep: key, names, what was released (default: OUT.vault)."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Take out codes whose photos are gone, for good.")
    ] = False,
    names: Annotated[
        str | None, typer.Option(help="random ids (default), or keep: the photos' own names.")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="Whose photos: folder (first subfolder), dicom (PatientID) or FILE.csv:COLUMN."
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option(help="With --person: most images of one person (default 1).")
    ] = None,
    thumbnails: Annotated[
        bool,
        typer.Option("--thumbnails", help="Keep small pictures in the vault, for contact sheets."),
    ] = False,
    new_release: Annotated[
        bool,
        typer.Option(
            "--new-release",
            help="Start anew where the vault was lost: all photos are released again.",
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Workers that share the work: local, or a Ray cluster's address."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Turn a folder of photos into an index of noisy codes that can be searched without the photos.

    Run it again whenever the folder has changed, or after a stop: a photo has one code for good,
    however it is moved, renamed, copied or brought back, and is charged once. Two folders come of
    it: OUT to give away, and a vault to keep.
    """
    from blindsight.core.errors import (
        BudgetExceeded,
        InvalidData,
        InvalidParameter,
        NotProven,
        UnitMismatch,
    )
    from blindsight.data.reading import SUFFIXES
    from blindsight.index import release_folder as photos
    from blindsight.index.bulk import pool_at
    from blindsight.index.encoder import load_encoder, make_encoder
    from blindsight.index.public_images import refuse_private
    from blindsight.index.sync import sync_release, sync_thumbnails

    asked = {
        "method": method,
        "epsilon": epsilon,
        "unit": unit,
        "calibration": calibration,
        "features": features,
        "public": public,
        "first_page": first_page,
        "prior": prior,
        "seed": seed,
    }
    if most is not None and person is None:
        raise InvalidParameter(
            "--most is a number of images of one person: say whose they are, with --person."
        )
    kept = vault or photos.vault_beside(out)
    listed = list(photos.photo_names(folder, SUFFIXES, leave_out=(out, kept)))
    place = photos.ReleaseFolder.find(out)
    asked["bits"] = _code_size(
        method or (place.recipe.get("method") if place else None), cells, bits
    )
    old = place if new_release else None
    if old is not None:
        place, kept = None, _free(kept)
    if place is None and not listed:
        raise InvalidData(
            f"{folder} holds no photos ({', '.join(sorted(SUFFIXES))}). Check the path."
        )
    fresh = not (kept / "key").exists()
    safe = photos.open_vault(kept, place)
    asking = False
    try:
        recipe = _recipe(asked, place, safe)
        refuse_private(recipe.public, folder, listed)
        chosen, limit = _choices(place, names, person, most)
        with progress_bar("learning from public data"):
            encoder = photos.encoder_in_vault(safe, recipe, make_encoder, load_encoder)
        guarantee = photos.folder_guarantee(encoder.guarantee, names=chosen, most=limit)
        law = photos.mechanism_id(encoder, guarantee)
        number = safe.release_of(law)
        if place is not None and place.release != number:
            raise InvalidParameter(
                f"{out} was made by another hash function or mechanism than this machine makes "
                "now; the two together "
                "would be two releases. Restore its files from a copy, or choose another --out "
                "(charged again)."
            )
        whose = None if person is None else photos.persons_of(folder, listed, person)
        with progress_bar("recognising photos") as progress:
            found = photos.scan(folder, listed, safe, persons=whose, progress=progress)
        if limit:
            safe.chosen(
                number, found.records, limit
            )  # refuses persons who have given more, before anything is charged
        asking = True
        charged = _charge(safe, number, guarantee, ledger, dataset or folder.resolve().name)
    except BaseException as error:
        # A vault that was asked to pay stays, unless it was plainly refused: its key is how the
        # charge is known again.
        if fresh and (not asking or isinstance(error, (BudgetExceeded, UnitMismatch, NotProven))):
            shutil.rmtree(kept, ignore_errors=True)
        raise
    if not json and place is None:  # a folder in step with its photos says it in its card.json
        table("Privacy card: each photo's code", ("field", "value"), guarantee.rows())
    if old is not None:
        old.clear()
    place = place or photos.ReleaseFolder(
        out, recipe.to_fields(), safe.number, number, chosen, limit
    )
    safe.note(source=str(folder.resolve()), **{f"recipe {number}": recipe.to_fields()})
    place.write()
    encoder.save(out)
    with progress_bar("hashing photos") as progress:
        done = sync_release(
            place,
            folder,
            found,
            safe,
            encoder,
            guarantee,
            law,
            prune=prune,
            pool=pool_at(ray),
            progress=progress,
        )
    if thumbnails or safe.fact("thumbnails"):
        safe.note(thumbnails=True)
        with progress_bar("making thumbnails") as progress:
            sync_thumbnails(safe, folder, found, prune=prune, progress=progress)
    _report(place, safe, recipe, guarantee, done, charged, json)


def _code_size(method: str | None, cells: int | None, bits: int | None) -> int | None:
    """Cells of a codebook or bits of a flipped code, each under its own name."""
    from blindsight.core.errors import InvalidParameter

    if method in (None, "codebook"):
        if bits is not None:
            raise InvalidParameter(
                "a codebook has cells, not bits: say --cells, or choose a phashing --method."
            )
        if cells is not None and cells < 2:
            raise InvalidParameter(
                f"--cells must be at least 2, got {cells}: one cell tells nothing and finds "
                "nothing."
            )
        return cells
    if cells is not None:
        raise InvalidParameter(f"{method} has bits, not cells: say --bits.")
    return bits


def _free(kept: Path) -> Path:
    """A vault's place that is not taken: what an earlier vault holds is never written over."""
    place, number = kept, 2
    while place.exists():
        place, number = kept.with_name(f"{kept.name}-{number}"), number + 1
    return place


def _choices(
    place: ReleaseFolder | None, names: str | None, person: str | None, most: int | None
) -> tuple[Literal["random", "keep"], int]:
    """Names and persons as asked for; a release keeps what it was begun with."""
    from blindsight.core import checks
    from blindsight.core.errors import InvalidParameter

    limit = 0 if person is None else checks.whole("--most", 1 if most is None else most)
    if place is None:
        return checks.one_of("--names", names or "random", ("random", "keep")), limit
    if names is not None and names != place.names:
        raise InvalidParameter(
            f"{place.path} was made with --names {place.names}. Choose another --out to change it."
        )
    if limit != place.most:
        was = f"at most {place.most} images of one person" if place.most else "no persons"
        raise InvalidParameter(
            f"{place.path} was made with {was}. Give the same --person and --most to continue."
        )
    return place.names, limit


def _recipe(asked: dict[str, Any], place: ReleaseFolder | None, vault: Vault) -> CodeRecipe:
    """What was asked for, or what the index was made with; the two must agree."""
    from blindsight.core.errors import InvalidParameter
    from blindsight.index.encoder import BUILT_IN, CodeRecipe, default_bits, default_features

    given = {name: value for name, value in asked.items() if value is not None}
    if "public" in given and Path(given["public"]).is_dir():
        given["public"] = str(Path(given["public"]).resolve())
    if place is not None:
        # The owner's copy knows the folder of public images; the one that is given away does not.
        own = vault.fact(f"recipe {place.release}") or {}
        recipe = CodeRecipe.from_fields(
            {**place.recipe, "public": own.get("public", place.recipe.get("public"))}
        )
        for name, value in given.items():
            if getattr(recipe, name) != value:
                option = (
                    "cells"
                    if name == "bits" and recipe.method == "codebook"
                    else name.replace("_", "-")
                )
                raise InvalidParameter(
                    f"{place.path} was made with --{option} {getattr(recipe, name)}, now {value} "
                    "is asked for. "
                    "Leave the option out to continue, or choose another --out (a second release, "
                    "charged again)."
                )
        return recipe
    defaults: dict[str, Any] = {"features": default_features(), "public": BUILT_IN}
    merged = {**defaults, **given}
    if "bits" not in merged:
        merged["bits"] = default_bits(
            merged.get("method", CodeRecipe.method),
            merged.get("unit", CodeRecipe.unit),
            merged.get("epsilon", CodeRecipe.epsilon),
        )
    return CodeRecipe(**merged)


def _charge(
    vault: Vault, number: str, guarantee: Guarantee, ledger: str | None, dataset: str
) -> str:
    """Charge before anything is released, by the release's number: however often it is tried,
    once.
    """
    from blindsight.core.errors import InvalidParameter
    from blindsight.index.sync import charge
    from blindsight.privacy.ledger import Ledger

    if ledger is None and (noted := vault.fact("ledger")) is not None:
        if not Path(noted).is_file():
            raise InvalidParameter(
                f"earlier releases of this vault were charged to the ledger {noted}, which is not "
                "there to be asked. "
                "Say where it is now, with --ledger."
            )
        ledger, dataset = noted, vault.fact("dataset") or dataset
    if ledger is None:
        return "not charged: no --ledger was given"
    with Ledger(ledger, dataset=dataset) as opened:
        now = charge(guarantee, vault, number, opened)
    return (
        f"{guarantee.cost} charged to {dataset}"
        if now
        else f"charged to {dataset} by an earlier run"
    )


def _report(
    place: ReleaseFolder,
    vault: Vault,
    recipe: CodeRecipe,
    guarantee: Guarantee,
    done: SyncResult,
    charged: str,
    json: bool,
) -> None:
    import json as text

    from blindsight.index.encoder import default_features

    if json:
        emit_json(
            {
                "index": str(place.path),
                "vault": str(vault.path),
                "released": done.released,
                "restored": done.restored,
                "known": done.known,
                "refused": [{"name": name, "why": why} for name, why in done.refused],
                "copies": done.copies,
                "left_out": done.left_out,
                "vanished": done.vanished,
                "pruned": done.pruned,
                "stored": done.stored,
                "ledger": charged,
                "recipe": recipe.to_fields(),
                "guarantee": text.loads(guarantee.to_json()),
            }
        )
        return
    for name, why in done.refused:
        errors.print(f"left out {name}: {why}", markup=False)
    lines = [
        f"{done.released} images released, {done.known} were there already, {len(done.refused)} "
        "could not be read."
    ]
    if done.copies:
        lines.append(f"Copies that share the code of another file: {done.copies}.")
    if done.left_out:
        lines.append(
            f"{done.left_out} images were left out: their person has {place.most} released already."
        )
    if done.pruned:
        lines.append(f"{done.pruned} codes were taken out.")
    if done.vanished:
        lines.append(f"{done.vanished} codes have no photo any more: --prune takes them out.")
    if recipe.features == "pixels" == default_features():
        lines.append(
            "Photos are compared by their pixels: pip install 'blindsight[features]' finds what "
            "they show."
        )
    lines.append(f"Ledger: {charged}.")
    named = ", with the photos' names" if place.names == "keep" else ""
    lines.append(f"Give away: {place.path} ({done.stored} codes{named}).")
    lines.append(
        f"Keep, and give to nobody: {vault.path} (the key behind the noise, and the names)."
    )
    console.print("\n".join(lines), markup=False)
