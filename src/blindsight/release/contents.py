"""What a shared folder holds beside the codes, and how it is made whole.

    README.md        what this is, for a person who has never heard of it
    card.json        the guarantee, machine-readable; card.txt the same in words
    search.html      searches the release in any browser, offline
    entries.parquet  id and cell of every entry (entries.csv where pyarrow is not installed)
    codes.index, about.json and the hash function: what `blindsight search` reads
    manifest.json    the SHA-256 of every file, and manifest.sig, its signature

All files are written into a folder beside the release, which then takes its place in one step. A
run that was killed leaves the release as it was.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib.util
import io
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from blindsight.codebooks import Codebook
from blindsight.core import durable
from blindsight.core.codes import from_codes
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.index.base import CodeIndex
from blindsight.index.encoder import FUNCTION_FILES, PhotoEncoder
from blindsight.index.hamming import HammingIndex
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy import Guarantee
from blindsight.privacy.accounting import ShuffleStatement
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.vault import Vault
from blindsight.release.manifest import (
    IGNORED_FILES,
    MANIFEST,
    NOTE_FILE,
    SIGNATURE,
    Manifest,
    Signer,
    check_folder,
    sha256_of,
    write_manifest,
)
from blindsight.release.page import (
    MAX_CELLS,
    MAX_ENTRIES,
    FlippedCodes,
    PageFacts,
    code_digest,
    page_sources,
    search_page,
)

__all__ = [
    "PHOTO_CODES",
    "SharedFacts",
    "amend_release",
    "entries_of",
    "publish",
    "refuse_foreign_files",
    "share_release",
]

#: The kind of a release of photos' codes, as its manifest has it.
PHOTO_CODES = "photo codes"
_PAGE, _README = "search.html", "README.md"
_OURS = frozenset(
    {_PAGE, _README, "card.json", "card.txt", "entries.parquet", "entries.csv", MANIFEST, SIGNATURE}
    | {"codes.index", "about.json", NOTE_FILE, *FUNCTION_FILES}
)


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


def share_release(
    folder: ReleaseFolder,
    index: HammingIndex,
    encoder: PhotoEncoder,
    guarantee: Guarantee,
    vault: Vault,
    *,
    continued: bool,
    page: bool,
    link: bool,
) -> Manifest:
    """Put a release in the place of what was shared before, whole and signed.

    Parameters:
        folder: the folder to share.
        index: all codes of the release.
        encoder: the encoder of the codes.
        guarantee: what is promised for each photo.
        vault: the owner's vault, whose key signs.
        continued: whether an earlier run shared this release.
        page: whether `search.html` is written.
        link: sign with the one key of the vault, so that receivers can see that two releases come
            from one owner.

    Returns:
        The manifest, which is on the disk.
    """
    signer = Signer(vault.signing_seed(None if link else folder.release))
    fact = f"batches {folder.release}"
    # A release that an earlier version began may have had any number of batches.
    noted = vault.fact(fact)
    if not isinstance(noted, dict):
        noted = {"count": 2 if continued else 0, "ids": ""}
    batches, ids = noted["count"], set(index.ids.tolist())
    digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
    shared = HammingIndex.load(folder.codes).ids.tolist() if folder.codes.exists() else []
    # A run that crashed may have shared these very entries or none: that is no batch more.
    if ids - set(shared) and digest != noted["ids"]:
        batches += 1
        vault.note(**{fact: {"count": batches, "ids": digest}})
    facts = SharedFacts(guarantee, one_batch=batches == 1, page=page)
    # Where an earlier version wrote the codes of a run before they were shared.
    shutil.rmtree(vault.path / "journals" / folder.release, ignore_errors=True)
    return publish(folder, index, encoder, facts, signer)


def refuse_foreign_files(path: Path) -> None:
    """Refuse a release folder that holds files which are not the release's.

    Raises:
        InvalidData: There is such a file. It would be shared, or lost when the folder is replaced.
    """
    foreign = sorted(
        entry.name
        for entry in path.iterdir()
        if entry.name not in _OURS | IGNORED_FILES and not entry.name.startswith(".")
    )
    if foreign:
        raise InvalidData(
            f"{path} holds {foreign[0]!r}, which is not a file of the release. A folder to share "
            "holds the release's files only: move it elsewhere."
        )


def publish(
    folder: ReleaseFolder,
    index: HammingIndex,
    encoder: PhotoEncoder,
    facts: SharedFacts,
    signer: Signer,
) -> Manifest:
    """Put a release with everything that a receiver needs in its place, signed, in one step.

    Where the shared folder is whole already and nothing has changed, it is left as it is.

    Parameters:
        folder: the folder to share; what it holds is replaced.
        index: the released codes.
        encoder: the encoder that made them.
        facts: what is stated of the release.
        signer: the owner's key.

    Returns:
        The manifest, which is on the disk.
    """
    target = folder.path.resolve()
    with durable.staging_folder(target) as staging:
        staged = dataclasses.replace(folder, path=staging)
        staged.write()
        encoder.save(staged.path)
        index.save(staged.codes)
        source = _source_digest(staged.path, facts, encoder)
        if (target / MANIFEST).exists():
            with suppress(BlindsightError, OSError):  # what is not whole is replaced
                shared = check_folder(target, fingerprint=signer.fingerprint)
                if shared.facts.get("source") == source:
                    return shared
        if (target / NOTE_FILE).is_file():
            durable.write_file(staged.path / NOTE_FILE, (target / NOTE_FILE).read_bytes())
        manifest = _write_contents(staged, index, encoder, facts, signer, source)
        durable.replace_folder(staged.path, target, last=SIGNATURE)
        return manifest


def amend_release(path: Path, files: Mapping[str, bytes], signer: Signer) -> Manifest:
    """Replace or add files of a shared folder and sign it anew, in one step.

    Parameters:
        path: the folder.
        files: the content of each file.
        signer: the owner's key.

    Returns:
        The new manifest, which states the same as the old one.
    """
    target = path.resolve()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    with durable.staging_folder(target) as staging:
        manifest = check_folder(target)
        if digests.items() <= manifest.files.items():
            return manifest
        for name in manifest.files.keys() - files.keys():
            durable.write_file(staging / name, (target / name).read_bytes())
        for name, data in files.items():
            durable.write_file(staging / name, data)
        amended = write_manifest(
            staging, signer, kind=manifest.kind, release=manifest.release, facts=manifest.facts
        )
        durable.replace_folder(staging, target, last=SIGNATURE)
        return amended


def _source_digest(staging: Path, facts: SharedFacts, encoder: PhotoEncoder) -> str:
    """SHA-256 of everything that decides what the shared files hold."""
    recipe = encoder.recipe
    stated = json.dumps(
        {
            "version": metadata.version("blindsight"),
            "page code": code_digest(),
            "page data": page_sources(recipe.opened if recipe.identity else recipe.image),
            "guarantee": facts.guarantee.to_json(),
            "one batch": facts.one_batch,
            "page": facts.page,
        },
        sort_keys=True,
    )
    digest = hashlib.sha256(stated.encode())
    for path in sorted(staging.iterdir()):
        digest.update(path.name.encode() + b"\0" + sha256_of(path).encode())
    return digest.hexdigest()


def _write_contents(
    folder: ReleaseFolder,
    index: HammingIndex,
    encoder: PhotoEncoder,
    facts: SharedFacts,
    signer: Signer,
    source: str,
) -> Manifest:
    recipe = encoder.recipe
    built_in = recipe.image if recipe.identity is None else None
    count = len(index)
    shuffled = _shuffled(folder, facts, count)
    entries = _write_entries(folder.path, index, encoder.codebook)
    book = encoder.codebook or FlippedCodes.of(encoder.hasher)
    few = not isinstance(book, Codebook) or book.k <= MAX_CELLS
    has_page = facts.page and few and count <= MAX_ENTRIES and book is not None
    if has_page and book is not None:
        stated = PageFacts(folder.release, folder.names, facts.guarantee, shuffled, recipe.features)
        page = search_page(stated, index, book, built_in or recipe.opened, signer=signer)
        durable.write_file(folder.path / _PAGE, page.encode())
    _write_card(folder, facts.guarantee, shuffled, count)
    readme = _readme(facts.guarantee, count, entries, signer, page=has_page)
    durable.write_file(folder.path / _README, readme.encode())
    return write_manifest(
        folder.path,
        signer,
        kind=PHOTO_CODES,
        release=folder.release,
        facts={
            "entries": count,
            "encoder": built_in.identity() if built_in else recipe.identity,
            "guarantee": facts.guarantee.line(),
            "source": source,
        },
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


def entries_of(index: CodeIndex, *, cells: bool) -> list[tuple[str, int | str]]:
    """Ids with their cells, or their codes as hexadecimal digits, in the order of the ids.

    The ids are random, so this order says nothing about when an entry was added.

    Parameters:
        index: the released codes.
        cells: whether the codes are numbers of cells.

    Examples:
        >>> index = HammingIndex(2, names=True)
        >>> _ = index.add(np.array([[3], [1]], np.uint8), ["b", "a"])
        >>> entries_of(index, cells=True), entries_of(index, cells=False)
        ([('a', 1), ('b', 3)], [('a', '01'), ('b', '03')])
    """
    rows: list[tuple[str, int | str]] = []
    for ids, codes in index.items():
        values: list[int | str] = [code.tobytes().hex() for code in codes]
        if cells:
            values = from_codes(codes).tolist()
        rows += zip((str(key) for key in ids), values, strict=True)
    return sorted(rows)


def _write_entries(path: Path, index: HammingIndex, codebook: Codebook | None) -> str:
    cells = codebook is not None
    rows = entries_of(index, cells=cells)
    if codebook is not None and any(int(value) >= codebook.k for _, value in rows):
        raise HostileFile(
            f"a code names a cell past the {codebook.k} there are. Restore the vault from a copy."
        )
    column = "cell" if cells else "code"
    if importlib.util.find_spec("pyarrow") is not None:
        import pyarrow as pa
        from pyarrow import parquet

        # From buffers: pyarrow imports pandas to look at a list.
        arrays: list[pa.Array] = []
        for part in range(1 if cells else 2):
            texts = [str(row[part]).encode() for row in rows]
            ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
            body = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
            arrays.append(pa.StringArray.from_buffers(len(rows), *body))
        if cells:
            numbers = pa.py_buffer(np.array([value for _, value in rows], np.uint32))
            arrays.append(pa.Array.from_buffers(pa.uint32(), len(rows), [None, numbers]))
        table = pa.Table.from_arrays(arrays, ["id", column])
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
        "3. To check that nothing was changed: `pip install 'blindsight[reader]'`, then "
        "`blindsight open FOLDER`. The fingerprint must be the one that the owner told you:\n\n"
        f"       {signer.fingerprint}\n\n"
        "4. Only the owner has the photos. Save a request in `search.html`, send it to the owner, "
        "and the owner decides.\n\n"
        "You may conclude which kinds of photos are here and about how many. You may not conclude "
        "that a certain entry shows something: its code may be one of the wrong ones.\n"
    )
