"""`blindsight search INDEX QUERY.jpg`: the most similar photos of a private index, as a table, JSON or a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, table

if TYPE_CHECKING:
    from blindsight.index import Hit, Hits
    from blindsight.index.encoder import PhotoEncoder
    from blindsight.index.milvus import MilvusIndex
    from blindsight.index.photos import PhotoFolder

__all__ = ["register"]

_THUMBNAIL = 320


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("search")(search_index)


def search_index(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight hash.")],
    queries: Annotated[list[Path], typer.Argument(help="One or more photos to look for.", metavar="QUERY...")],
    k: Annotated[int, typer.Option("-k", help="How many hits.")] = 12,
    radius: Annotated[
        int | None, typer.Option(help="All photos within this Hamming distance, instead of the best k.")
    ] = None,
    ranking: Annotated[
        str, typer.Option(help="soft (finds what looks alike) or distance (finds the very same photo).")
    ] = "soft",
    min_probability: Annotated[
        float | None, typer.Option(help="Only hits that are a match with at least this probability.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a contact sheet: one page, thumbnails inside.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the photos are, for the contact sheet (default: where they were).")
    ] = None,
    vault: Annotated[
        Path | None, typer.Option(help="The owner's vault, which knows the photos' names (default: INDEX.vault).")
    ] = None,
    milvus: Annotated[
        str | None, typer.Option(help="Search on Milvus at this URI; a collection that is not there yet is filled.")
    ] = None,
    collection: Annotated[str, typer.Option(help="The Milvus collection.")] = "blindsight",
    token: Annotated[
        str,
        typer.Option(envvar="BLINDSIGHT_MILVUS_TOKEN", help="user:password or API key of Milvus.", show_default=False),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Find the photos of an index that look like a query. The query stays on this machine and carries no noise."""
    import numpy as np

    from blindsight.core import checks
    from blindsight.data import read_image, to_rgb
    from blindsight.index import CodeIndex, HammingIndex
    from blindsight.index.encoder import Recipe, load_encoder
    from blindsight.index.photos import PhotoFolder

    place = PhotoFolder.read(index)
    recipe = Recipe.from_fields(place.recipe)
    stored: CodeIndex = (
        HammingIndex.load(place.codes) if milvus is None else _on_milvus(place.codes, milvus, collection, token)
    )
    with stored:
        encoder = load_encoder(recipe, index, stored.decoding)
        pixels = [read_image(query) for query in queries]
        squeezed = np.stack([to_rgb(image, recipe.size) for image in pixels])
        if radius is None:
            hits = encoder.search(stored, squeezed, k, ranking=ranking)
        else:
            hits = encoder.within(stored, squeezed, radius)
        if min_probability is not None:
            hits = hits.at_least(checks.probability("min_probability", min_probability))
        known = _Names(place, vault, hits)
        if html is not None:
            _write_sheet(html, queries, pixels, hits, stored, folder or known.source, encoder, known)
        if json:
            _emit(queries, hits, stored, encoder.meaning, html, known)
            return
        for query, found in zip(queries, hits, strict=True):
            _show(query, found, encoder.match_word, known)
        console.print(f"{encoder.match_word}: {encoder.meaning}", markup=False)
        if stored.guarantee is not None:
            console.print(f"codes: {stored.guarantee.line()}", markup=False)
        if html is not None:
            console.print(f"contact sheet: {html}", markup=False)


def _on_milvus(codes: Path, uri: str, collection: str, token: str) -> MilvusIndex:
    """The collection, or a new one with the index's codes; Milvus then holds what the index file holds, no more."""
    from blindsight.core.errors import InvalidParameter
    from blindsight.index.milvus import MilvusIndex

    try:
        return MilvusIndex(uri, collection=collection, token=token)
    except InvalidParameter:  # not there yet
        return MilvusIndex.load(codes, uri, collection=collection, token=token)


class _Names:
    """What the owner calls the hits: names from the vault, if it is here and this index's; else the ids."""

    def __init__(self, place: PhotoFolder, vault: Path | None, hits: Hits) -> None:
        from blindsight.index.photos import vault_beside
        from blindsight.privacy.vault import Vault

        at = vault or vault_beside(place.path)
        opened = Vault(at) if vault is not None or (at / "key").exists() else None
        mine = opened is not None and opened.number == place.vault
        self.source = Path(str(opened.fact("source") or "")) if opened is not None and mine else None
        self._names: dict[str, list[str]] = {}
        if opened is not None and mine and place.names == "random":
            self._names = opened.names_of({str(hit.id) for found in hits for hit in found})

    def of(self, key: object) -> list[str]:
        """The files that show a record, or its id where they are not known."""
        return self._names.get(str(key), [str(key)])


def _show(query: Path, found: list[Hit], word: str, known: _Names) -> None:
    from blindsight.index.contact_sheet import percent

    rows = [
        (rank, ", ".join(known.of(hit.id)), hit.distance, round(hit.score, 4), percent(hit.probability or 0.0))
        for rank, hit in enumerate(found, start=1)
    ]
    table(f"{query.name}: {len(rows)} hits", ("rank", "photo", "distance", "score", word), rows)


def _emit(queries: list[Path], hits: Hits, stored: Any, meaning: str, html: Path | None, known: _Names) -> None:
    import json as text

    emit_json(
        {
            "queries": [
                {"query": str(query), "hits": [{**hit._asdict(), "names": known.of(hit.id)} for hit in found]}
                for query, found in zip(queries, hits, strict=True)
            ],
            "stored": len(stored),
            "match": meaning,
            "guarantee": None if stored.guarantee is None else text.loads(stored.guarantee.to_json()),
            "html": None if html is None else str(html),
        }
    )


def _write_sheet(
    target: Path,
    queries: list[Path],
    pixels: list[Any],
    hits: Hits,
    stored: Any,
    folder: Path | None,
    encoder: PhotoEncoder,
    known: _Names,
) -> None:
    from blindsight.core.errors import BlindsightError
    from blindsight.core.storage import write_atomically
    from blindsight.data import read_image
    from blindsight.index.contact_sheet import Sheet, contact_sheet

    def original(name: str) -> bytes | None:
        if folder is None:
            return None
        path = folder / name
        # A name from an index must not lead out of the folder.
        if not path.resolve().is_relative_to(folder.resolve()):
            return None
        try:
            return _thumbnail(read_image(path))
        except (BlindsightError, OSError):
            return None

    thumbnails: dict[str, bytes] = {}
    shown = [[hit._replace(id=known.of(hit.id)[0]) for hit in found] for found in hits]
    for found in shown:
        for hit in found:
            name = str(hit.id)
            if name not in thumbnails and (picture := original(name)) is not None:
                thumbnails[name] = picture
    sheets = [
        Sheet(query.name, _thumbnail(image), found, thumbnails)
        for query, image, found in zip(queries, pixels, shown, strict=True)
    ]
    page = contact_sheet(sheets, stored.guarantee, stored=len(stored), word=encoder.match_word, meaning=encoder.meaning)
    write_atomically(target, page.encode())


def _thumbnail(pixels: Any) -> bytes:
    import io

    from PIL import Image

    picture = Image.fromarray(pixels).convert("RGB")
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82)
    return buffer.getvalue()
