"""What a shared folder holds beside the codes, and how it is made whole.

    README.md        what this is, for a person who has never heard of it
    card.json        the guarantee, machine-readable; card.txt the same in words
    search.html      searches the release in any browser, offline
    entries.parquet  id and cell of every entry (entries.csv where pyarrow is not installed)
    codes.index, about.json and the hash function: what `blindsight search` reads
    manifest.json    the SHA-256 of every file, and manifest.sig, its signature

The manifest is removed before anything changes and written last: a folder with a manifest is whole.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from dataclasses import dataclass
from pathlib import Path

from blindsight.core import durable
from blindsight.index.base import CodeIndex
from blindsight.index.cell_index import CodebookIndex, from_codes
from blindsight.index.encoder import PhotoEncoder
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy import Guarantee
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.shuffle import ShuffleStatement
from blindsight.release.manifest import Manifest, Signer, remove_manifest, write_manifest
from blindsight.release.page import MAX_ENTRIES, PageFacts, search_page

__all__ = ["PHOTO_CODES", "SharedFacts", "entries_of", "write_contents"]

#: The kind of a release of photos' codes, as its manifest has it.
PHOTO_CODES = "photo codes"
_PAGE, _README = "search.html", "README.md"
_OLD = ("entries.parquet", "entries.csv", _PAGE)


@dataclass(frozen=True)
class SharedFacts:
    """What is stated of a release.

    Parameters:
        guarantee: what is promised for each photo.
        one_batch: whether all entries were released at once, which the shuffle statement needs.
        page: whether `search.html` is written.
    """

    guarantee: Guarantee
    one_batch: bool = False
    page: bool = True


def write_contents(
    folder: ReleaseFolder, encoder: PhotoEncoder, facts: SharedFacts, signer: Signer
) -> Manifest:
    """Write everything that a receiver needs into a release folder, and sign it.

    Parameters:
        folder: the folder with its codes.
        encoder: the encoder that made them.
        facts: what is stated of the release.
        signer: the owner's key.

    Returns:
        The manifest, which is on the disk.
    """
    recipe = encoder.recipe
    built_in = recipe.image if recipe.identity is None else None
    remove_manifest(folder.path)
    for name in _OLD:
        durable.remove(folder.path / name)
    with encoder.load(folder.codes) as index:
        count = len(index)
        shuffled = _shuffled(folder, facts, count)
        entries = _write_entries(folder.path, index)
        has_page = facts.page and isinstance(index, CodebookIndex) and count <= MAX_ENTRIES
        if has_page and isinstance(index, CodebookIndex) and encoder.codebook is not None:
            page = search_page(
                PageFacts(folder.release, folder.names, facts.guarantee, shuffled),
                index,
                encoder.codebook,
                built_in,
                signer=signer,
            )
            durable.write_file(folder.path / _PAGE, page.encode())
    _write_card(folder, facts.guarantee, shuffled, count)
    readme = _readme(facts.guarantee, count, entries, signer, page=has_page)
    durable.write_file(folder.path / _README, readme.encode())
    return write_manifest(
        folder.path,
        signer,
        kind=PHOTO_CODES,
        release=folder.release,
        facts={"entries": count, "encoder": built_in.identity() if built_in else recipe.identity},
    )


def _shuffled(folder: ReleaseFolder, facts: SharedFacts, count: int) -> ShuffleStatement | None:
    """The central guarantee: only for random ids, one batch and one k-ary response."""
    mechanisms = [item.mechanism for item in facts.guarantee.releases]
    if not facts.one_batch or folder.names != "random" or not count or len(mechanisms) != 1:
        return None
    mechanism = mechanisms[0]
    if not isinstance(mechanism, KaryResponse):
        return None
    stated = ShuffleStatement.of_batch(float(facts.guarantee.epsilon), mechanism.k, count)
    return stated if stated.epsilon < stated.local_epsilon else None


def entries_of(index: CodeIndex) -> list[tuple[str, int | str]]:
    """Ids with their cells, or their codes as hexadecimal digits, in the order of the ids.

    The ids are random, so this order says nothing about when an entry was added.

    Example:
        >>> index = CodebookIndex(4, names=True)
        >>> _ = index.add_cells([3, 1], ["b", "a"])
        >>> entries_of(index)
        [('a', 1), ('b', 3)]
    """
    rows: list[tuple[str, int | str]] = []
    for ids, codes in index.items():
        values: list[int | str] = [code.tobytes().hex() for code in codes]
        if isinstance(index, CodebookIndex):
            values = from_codes(codes).tolist()
        rows += zip((str(key) for key in ids), values, strict=True)
    return sorted(rows)


def _write_entries(path: Path, index: CodeIndex) -> str:
    rows, cells = entries_of(index), isinstance(index, CodebookIndex)
    column = "cell" if cells else "code"
    if importlib.util.find_spec("pyarrow") is not None:
        import pyarrow as pa
        from pyarrow import parquet

        kind = pa.uint32() if cells else pa.string()
        table = pa.table(
            {
                "id": pa.array([key for key, _ in rows], pa.string()),
                column: pa.array([value for _, value in rows], kind),
            }
        )
        target = io.BytesIO()
        parquet.write_table(table, target, compression="zstd")
        durable.write_file(path / "entries.parquet", target.getvalue())
        return "entries.parquet"
    text = io.StringIO()
    csv.writer(text).writerows([("id", column), *rows])
    durable.write_file(path / "entries.csv", text.getvalue().encode())
    return "entries.csv"


def _write_card(
    folder: ReleaseFolder, guarantee: Guarantee, shuffled: ShuffleStatement | None, count: int
) -> None:
    fields = {
        "format": "blindsight release card 1",
        "release": folder.release,
        "entries": count,
        "ids": folder.names,
        "guarantee": json.loads(guarantee.to_json()),
        "shuffled": None
        if shuffled is None
        else {
            "epsilon": shuffled.epsilon,
            "delta": shuffled.delta,
            "local_epsilon": shuffled.local_epsilon,
            "cells": shuffled.cells,
            "records": shuffled.records,
            "assumptions": list(shuffled.assumptions),
        },
    }
    text = json.dumps(fields, indent=2, ensure_ascii=False)
    durable.write_file(folder.path / "card.json", text.encode() + b"\n")
    lines = [guarantee.card()]
    if shuffled is not None:
        lines += ["", str(shuffled), "This holds if:", *(f"- {x};" for x in shuffled.assumptions)]
    durable.write_file(folder.path / "card.txt", "\n".join(lines).encode() + b"\n")


def _readme(guarantee: Guarantee, count: int, entries: str, signer: Signer, *, page: bool) -> str:
    unit = "photo" if guarantee.unit == "record" else guarantee.unit
    opening = (
        "1. Double-click `search.html`. It works offline, in any current browser, and sends "
        "nothing.\n"
        if page
        else "1. Search with `blindsight search FOLDER QUERY.jpg`.\n"
    )
    return (
        f"# {count:,} protected photos\n\n"
        "This folder holds no photos. Of each photo there is one noisy code, which was drawn at "
        "random so that it could have come from any other photo "
        f"(proven epsilon = {guarantee.epsilon:g} per {unit}; see `card.txt`).\n\n"
        f"{opening}"
        f"2. `{entries}` lists the id and the code of each entry.\n"
        "3. To check that nothing was changed: `pip install blindsight`, then `blindsight open "
        "FOLDER`. The fingerprint must be the one that the owner told you:\n\n"
        f"       {signer.fingerprint}\n\n"
        "4. Only the owner has the photos. Save a request in `search.html`, send it to the owner, "
        "and the owner decides.\n\n"
        "You may conclude which kinds of photos are here and about how many. You may not conclude "
        "that a certain entry shows something: its code may be one of the wrong ones.\n"
    )
