"""`blindsight search INDEX QUERY.jpg`: the most similar photos of a private index, as a table, JSON
or a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, table

if TYPE_CHECKING:
    from blindsight.index import CodeIndex, Hit, Hits
    from blindsight.index.encoder import PhotoEncoder
    from blindsight.index.owner_view import OwnerPhotos
    from blindsight.index.release_folder import OwnerNames

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("search")(search_index)


def search_index(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight protect.")],
    queries: Annotated[
        list[Path] | None,
        typer.Argument(help="Photos to look for, or a folder of them.", metavar="[QUERY]..."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option("--words", help='Look for what words say: "dog on a beach". May be repeated.'),
    ] = None,
    like: Annotated[
        list[str] | None, typer.Option(help="Look for what is like this stored photo (its id).")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many hits.")] = 12,
    rerank: Annotated[
        int | None,
        typer.Option(
            help="The owner's way: take this many candidates and order them by the photos "
            "themselves."
        ),
    ] = None,
    inside: Annotated[
        str | None,
        typer.Option(
            "--in", help="Only photos whose name begins so: a subfolder, say trips/2024/."
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="Only photos taken on this day or later (YYYY-MM-DD)."
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Only photos taken on this day or before."),
    ] = None,
    radius: Annotated[
        int | None,
        typer.Option(help="All photos within this Hamming distance; for flipped codes only."),
    ] = None,
    ranking: Annotated[
        str,
        typer.Option(help="soft (finds what looks alike) or distance (finds the very same photo)."),
    ] = "soft",
    min_probability: Annotated[
        float | None,
        typer.Option(
            help="Only hits that are a match, or relevant, with at least this probability."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a contact sheet: one page, thumbnails inside.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the photos are, for the owner (default: where they were)."),
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(
            help="The owner's vault, which knows the photos' names (default: INDEX.vault)."
        ),
    ] = None,
    milvus: Annotated[
        str | None,
        typer.Option(
            help="Search on Milvus at this URI; a collection that is not there yet is filled."
        ),
    ] = None,
    collection: Annotated[str, typer.Option(help="The Milvus collection.")] = "blindsight",
    token: Annotated[
        str,
        typer.Option(
            envvar="BLINDSIGHT_MILVUS_TOKEN",
            help="user:password or API key of Milvus.",
            show_default=False,
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Find the photos of an index that look like a query.

    The query stays on this machine and carries no noise.
    """
    from blindsight.core import checks
    from blindsight.core.errors import InvalidData, InvalidParameter
    from blindsight.index.encoder import CodeRecipe, load_encoder
    from blindsight.index.index_file import Header
    from blindsight.index.owner_view import OwnerPhotos
    from blindsight.index.release_folder import OwnerNames, ReleaseFolder

    _check_order(index, queries or [])
    if rerank is not None:
        checks.whole("--rerank", rerank)
    if since is not None and until is not None and since > until:
        raise InvalidParameter(
            f"--since {since:%Y-%m-%d} is after --until {until:%Y-%m-%d}: no photo is of both."
        )
    place = ReleaseFolder.read(index)
    encoder = load_encoder(
        CodeRecipe.from_fields(place.recipe), index, Header.of(place.codes).decoding
    )
    names = OwnerNames(place, vault)
    if inside is not None and names.vault is None and place.names == "random":
        raise InvalidData(
            "--in asks for names, which are the owner's: the vault is not here (see --vault)."
        )
    own = OwnerPhotos(names, folder or names.source, encoder)
    stored = (
        encoder.load(place.codes)
        if milvus is None
        else encoder.on_milvus(milvus, codes=place.codes, collection=collection, token=token)
    )
    with stored:
        asked = _asked(encoder, stored, queries or [], words or [], like or [], names)
        filtered = inside is not None or since is not None or until is not None
        wanted = max(k, rerank or 0, len(stored) if filtered else 0)
        hits = _search(encoder, stored, asked, wanted, ranking, radius)
        if inside is not None:
            hits = hits.only(own.inside(hits, inside))
        if since is not None or until is not None:
            hits = hits.only(own.between(hits, since and since.date(), until and until.date()))
        if min_probability is not None:
            hits = hits.at_least(checks.probability("min_probability", min_probability))
        found = _first(hits, k if rerank is None else max(k, rerank))
        if rerank is not None:
            found = _rerank(own, asked, found, k)
        if html is not None:
            _write_sheet(html, asked, found, stored, own)
        if json:
            _emit(asked, found, stored, encoder.meaning(stored), html, names)
            return
        for text, taken in zip(asked.titles, asked.taken, strict=False):
            console.print(f"“{text}”: {taken}.", markup=False)
        for query, present, ranked in zip(asked.titles, asked.present, found, strict=True):
            _show(query, ranked, encoder.match_word, names, present=present)
        _explain(found, stored, encoder, html)


@dataclass(frozen=True)
class Asked:
    """The queries of one call: titles, their pictures where they are pictures, how they fit the
    cells, the ids of those that are stored, and what words were taken to mean.
    """

    titles: list[str]
    pixels: list[Any]
    squeezed: Any | None
    similarity: Any | None
    present: list[bool]
    records: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


def _rerank(own: OwnerPhotos, asked: Asked, found: list[list[Hit]], k: int) -> list[list[Hit]]:
    """Candidates in the order of the photos themselves; a stored query is looked up among the
    owner's photos.
    """
    import numpy as np

    from blindsight.core.errors import InvalidParameter
    from blindsight.index.base import by_photos

    squeezed = asked.squeezed
    if squeezed is None and asked.records:
        pictures = [picture for key in asked.records if (picture := own.squeezed(key)) is not None]
        squeezed = np.stack(pictures) if len(pictures) == len(asked.records) else None
    if squeezed is None:
        raise InvalidParameter(
            "--rerank compares pictures: give a query picture, or --like with a photo that is here "
            "(see --folder)."
        )
    ordered = own.encoder.rerank(squeezed, found, own.squeezed, k)
    if any(found) and not any(ordered):
        raise InvalidParameter(
            "--rerank is the owner's: none of the photos are here (--folder, --vault say where)."
        )
    return [[by_photos(key, value) for key, value in pairs] for pairs in ordered]


def _check_order(index: Path, queries: list[Path]) -> None:
    """The mistakes that people make: index and query swapped, a file where the index is
    expected.
    """
    from blindsight.core.errors import InvalidData

    if not (index / "about.json").is_file() and any(
        (query / "about.json").is_file() for query in queries
    ):
        raise InvalidData(f"{queries[0]} is the index, and comes first; then what to look for.")
    if (index / "key").is_file():
        raise InvalidData(
            f"{index} is a vault, which is the owner's alone. The index is the folder beside it."
        )
    if index.is_file():
        raise InvalidData(
            f"{index} is a file. The first argument is the index: the folder that blindsight "
            "protect made."
        )


def _asked(
    encoder: PhotoEncoder,
    stored: CodeIndex,
    queries: list[Path],
    words: list[str],
    like: list[str],
    names: OwnerNames,
) -> Asked:
    import numpy as np

    from blindsight.core.errors import InvalidParameter
    from blindsight.data import read_image
    from blindsight.data.reading import SUFFIXES
    from blindsight.encoders.words import understood
    from blindsight.index.release_folder import photo_names

    if sum(map(bool, (queries, words, like))) != 1:
        raise InvalidParameter("ask by photos, by --words or by --like: by one of them.")
    if queries:
        paths = [
            path / name if path.is_dir() else path
            for path in queries
            for name in (photo_names(path, SUFFIXES) if path.is_dir() else [""])
        ]
        pixels = [read_image(path) for path in paths]
        squeezed = (
            np.stack([encoder.recipe.image.prepare(image) for image in pixels]) if pixels else None
        )
        if squeezed is None:
            raise InvalidParameter(f"{queries[0]} holds no photos to look for.")
        return Asked(
            [str(path) for path in paths],
            pixels,
            squeezed,
            None,
            encoder.present(stored, squeezed).tolist(),
        )
    if words:
        similarity = encoder.similarity_of_words(words)
        taken = tuple(understood(text).line() for text in words)
        present = encoder.present_like(stored, similarity, words=True).tolist()
        return Asked(words, [], None, similarity, present, taken=taken)
    records = tuple(names.record(name) for name in like)
    similarity = encoder.similarity_of_stored(stored, records)
    return Asked(like, [], None, similarity, [True] * len(records), records)


def _search(
    encoder: PhotoEncoder, stored: CodeIndex, asked: Asked, k: int, ranking: str, radius: int | None
) -> Hits:
    from blindsight.core.errors import InvalidParameter

    if asked.squeezed is None:
        if radius is not None:
            raise InvalidParameter("--radius needs a query picture and flipped codes.")
        return encoder.search_like(stored, asked.similarity, k)  # type: ignore[arg-type]
    if radius is not None:
        return encoder.within(stored, asked.squeezed, radius)
    return encoder.search(stored, asked.squeezed, k, ranking=ranking)


def _first(hits: Hits, k: int) -> list[list[Hit]]:
    return [found[:k] if hits.distances is None else found for found in hits]


def _show(query: str, found: list[Hit], word: str, names: OwnerNames, *, present: bool) -> None:
    """A table in which hits that the index cannot tell apart stand together, under one rank."""
    from itertools import groupby

    from blindsight.index.contact_sheet import percent, shown, standing

    title = Path(query).name
    if not found:
        console.print(f"{title}: no photo passes what was asked for.", markup=False)
        return
    if not present:
        console.print(
            f"{title}: nothing like this here, as far as the noisy cells tell. The nearest:",
            markup=False,
        )
    told = any(shown(hit) is not None for hit in found)
    rows: list[tuple[str, ...]] = []
    # The photos of a cell share everything that the index knows of them; others are ranked one by
    # one.
    for _, tied in groupby(
        enumerate(found, start=1),
        key=lambda pair: pair[0] if pair[1].cell is None else pair[1].cell,
    ):
        group = list(tied)
        (first, hit), last = group[0], group[-1][0]
        chance = shown(hit)
        facts = (
            str(first) if first == last else f"{first}-{last}",
            standing(hit)[1],
            percent(chance) if chance else "",
        )
        for place, (_, each) in enumerate(group):
            rank, value, number = facts if place == 0 else ("", "", "")
            rows.append((rank, ", ".join(names.of(each.id)), value, *((number,) if told else ())))
    columns = ("rank", "photo", standing(found[0])[0], *((word,) if told else ()))
    table(f"{title}: {len(rows)} hit{'' if len(rows) == 1 else 's'}", columns, rows)


def _explain(found: list[list[Hit]], stored: Any, encoder: PhotoEncoder, html: Path | None) -> None:
    hits = [hit for each in found for hit in each]
    if any(hit.cell is None and hit.distance is None for hit in hits):
        console.print(
            "likeness: the cosine of the photos' own features with the query's; 1 is the same.",
            markup=False,
        )
    elif hits:
        console.print(f"{encoder.match_word}: {encoder.meaning(stored)}", markup=False)
    if any(hit.tied > 1 for hit in hits):
        console.print(
            "Photos of one cell share a rank: nothing tells which of them is nearer.", markup=False
        )
    if stored.guarantee is not None:
        console.print(f"codes: {stored.guarantee.line()}", markup=False)
    if html is not None:
        console.print(f"contact sheet: {html}", markup=False)


def _emit(
    asked: Asked,
    found: list[list[Hit]],
    stored: Any,
    meaning: str,
    html: Path | None,
    names: OwnerNames,
) -> None:
    import json as text

    all_taken = asked.taken or (None,) * len(found)
    emit_json(
        {
            "queries": [
                {
                    "query": query,
                    "present": present,
                    "taken": taken,
                    "hits": [_plain(hit, names) for hit in hits],
                }
                for query, present, taken, hits in zip(
                    asked.titles, asked.present, all_taken, found, strict=True
                )
            ],
            "stored": len(stored),
            "match": meaning,
            "guarantee": None
            if stored.guarantee is None
            else text.loads(stored.guarantee.to_json()),
            "html": None if html is None else str(html),
        }
    )


def _plain(hit: Hit, names: OwnerNames) -> dict[str, Any]:
    return {**hit._asdict(), "names": names.of(hit.id)}


def _write_sheet(
    target: Path, asked: Asked, found: list[list[Hit]], stored: Any, own: OwnerPhotos
) -> None:
    from blindsight.core.storage import write_atomically
    from blindsight.index.contact_sheet import Sheet, contact_sheet, thumbnail

    encoder = own.encoder
    small = own.thumbnails({hit.id for hits in found for hit in hits} | set(asked.records))
    thumbnails = {own.names.of(key)[0]: picture for key, picture in small.items()}
    found = [[hit._replace(id=own.names.of(hit.id)[0]) for hit in hits] for hits in found]
    pictures: list[bytes | None] = [thumbnail(image) for image in asked.pixels]
    pictures = pictures or [small.get(key) for key in asked.records] or [None] * len(found)
    sheets = [
        Sheet(Path(query).name, picture, hits, thumbnails, present)
        for query, picture, hits, present in zip(
            asked.titles, pictures, found, asked.present, strict=True
        )
    ]
    word, meaning = encoder.match_word, encoder.meaning(stored)
    page = contact_sheet(sheets, stored.guarantee, stored=len(stored), word=word, meaning=meaning)
    write_atomically(target, page.encode())
