"""`blindsight hash FOLDER --out INDEX`: a folder of photos to a private index, in a stream, continued if stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, errors, progress_bar, table

if TYPE_CHECKING:
    from blindsight.data import ImageSet
    from blindsight.index.encoder import PhotoEncoder, Recipe
    from blindsight.index.photos import PhotoFolder, Released
    from blindsight.privacy import Guarantee

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("hash")(hash_folder)


def hash_folder(
    folder: Annotated[Path, typer.Argument(help="The photos; subfolders are searched too.")],
    out: Annotated[Path, typer.Option("--out", help="The index: a new folder, or one to continue.")],
    method: Annotated[
        str | None, typer.Option(help="codebook (default), phashing-itq, phashing-sh or phashing-lsh.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget per unit (default 8).")] = None,
    unit: Annotated[str | None, typer.Option(help="record (a whole photo, default) or bit.")] = None,
    calibration: Annotated[str | None, typer.Option(help="proven (default) or paper.")] = None,
    bits: Annotated[
        int | None, typer.Option(help="Bits of a flipped code, or a codebook's cells (default: by budget).")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="efficientnet (default where installed), efficientnet-reduced (camera photos), lite2 or pixels."
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(help="Public pictures like the photos: a folder (best: a subfolder per class), or a set's name."),
    ] = None,
    first_page: Annotated[
        bool | None, typer.Option("--first-page", help="More cells: better first ten hits, worse order of the rest.")
    ] = None,
    prior: Annotated[float | None, typer.Option(help="Share of photos that match a query beforehand (0.01).")] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", envvar="BLINDSIGHT_LEDGER", help="Charge this ledger before anything is released."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Workers that share the work: local, or a Ray cluster's address.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Turn a folder of photos into an index of noisy codes that can be searched without the photos.

    Stop it at any time and run it again: photos that are in the index are neither released nor charged twice.
    """
    from blindsight.core.errors import InvalidData
    from blindsight.data.reading import SUFFIXES
    from blindsight.index.bulk import hash_to, pool_at
    from blindsight.index.encoder import load_encoder, make_encoder
    from blindsight.index.header import Header
    from blindsight.index.photos import PhotoFolder, photo_names
    from blindsight.index.public_images import refuse_private

    asked = {
        "method": method,
        "epsilon": epsilon,
        "unit": unit,
        "calibration": calibration,
        "bits": bits,
        "features": features,
        "public": public,
        "first_page": first_page,
        "prior": prior,
        "seed": seed,
    }
    names = list(photo_names(folder, SUFFIXES, leave_out=out))
    place = PhotoFolder.find(out)
    if place is None and not names:
        raise InvalidData(f"{folder} holds no photos ({', '.join(sorted(SUFFIXES))}). Check the path.")
    recipe = _recipe(asked, place)
    refuse_private(recipe.public, folder, names)
    if place is not None and place.codes.exists():
        encoder = load_encoder(recipe, out, Header.of(place.codes).decoding)
    else:
        with progress_bar("learning from public data"):
            encoder = make_encoder(recipe)
    place = place or PhotoFolder(out, recipe.to_fields(), str(folder.resolve()))
    if not json:
        _say_guarantee(encoder.guarantee)
    charged = _charge(place, encoder.guarantee, ledger, dataset or folder.resolve().name)
    if not place.codes.exists():
        place.write()
        encoder.save(out)
    with place.open(n_bits=encoder.n_bits, guarantee=encoder.guarantee, decoding=encoder.decoding) as index:
        with progress_bar("hashing photos") as progress:
            done = hash_to(
                index,
                _photos(folder, names, recipe.image.at_least),
                encoder.release,
                spool=out / "shards",
                about=place.number,
                size=recipe.size,
                pool=pool_at(ray),
                progress=progress,
            )
        total = len(index)
    _report(place, recipe, encoder, done, total, charged, json)


def _photos(folder: Path, names: list[str], at_least: int | None) -> ImageSet:
    """The photos under their names, read one by one by whoever works on them."""
    import numpy as np

    from blindsight.data import ImageSet
    from blindsight.data.sources import Files

    return ImageSet(
        Files([folder.resolve() / name for name in names], at_least=at_least), names=np.array(names, dtype=np.str_)
    )


def _recipe(asked: dict[str, Any], place: PhotoFolder | None) -> Recipe:
    """What was asked for, or what the index was made with; the two must agree."""
    from blindsight.core.errors import InvalidParameter
    from blindsight.index.encoder import BUILT_IN, Recipe, default_bits, default_features

    given = {name: value for name, value in asked.items() if value is not None}
    if "public" in given and Path(given["public"]).is_dir():
        given["public"] = str(Path(given["public"]).resolve())
    if place is not None:
        recipe = Recipe.from_fields(place.recipe)
        for name, value in given.items():
            if getattr(recipe, name) != value:
                raise InvalidParameter(
                    f"{place.path} was made with --{name} {getattr(recipe, name)}, now {value} is asked for. "
                    "Leave the option out to continue, or choose another --out (a second release, charged again)."
                )
        return recipe
    defaults: dict[str, Any] = {"features": default_features(), "public": BUILT_IN}
    merged = {**defaults, **given}
    if "bits" not in merged:
        merged["bits"] = default_bits(
            merged.get("method", Recipe.method), merged.get("unit", Recipe.unit), merged.get("epsilon", Recipe.epsilon)
        )
    return Recipe(**merged)


def _charge(place: PhotoFolder, guarantee: Guarantee, ledger: str | None, dataset: str) -> str:
    """Charge before anything is released; a refusal leaves nothing behind."""
    from blindsight.index.photos import charge_once
    from blindsight.privacy.ledger import Ledger

    if ledger is None:
        return "not charged: no --ledger was given"
    fresh = not (place.path / "about.json").exists()
    # Written first, so that a crash right after the charge does not make the next run charge again.
    place.write()
    try:
        with Ledger(ledger, dataset=dataset) as opened:
            now = charge_once(place, guarantee, opened)
    except BaseException:
        if fresh:
            place.forget()
        raise
    return f"{guarantee.cost} charged to {dataset}" if now else f"charged to {dataset} by an earlier run"


def _say_guarantee(guarantee: Guarantee) -> None:
    table("Privacy card: each photo's code", ("field", "value"), guarantee.rows())


def _report(
    place: PhotoFolder, recipe: Recipe, encoder: PhotoEncoder, done: Released, total: int, charged: str, json: bool
) -> None:
    import json as text

    if json:
        emit_json(
            {
                "index": str(place.path),
                "released": done.released,
                "known": done.known,
                "refused": [{"name": name, "why": why} for name, why in done.refused],
                "stored": total,
                "ledger": charged,
                "recipe": recipe.to_fields(),
                "guarantee": text.loads(encoder.guarantee.to_json()),
            }
        )
        return
    for name, why in done.refused:
        errors.print(f"left out {name}: {why}", markup=False)
    console.print(
        f"{done.released} photos released, {done.known} were there already, {len(done.refused)} could not be read; "
        f"{place.path} holds {total}.\nLedger: {charged}.",
        markup=False,
    )
