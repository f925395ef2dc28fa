"""Open a release that was received, and answer a request for photos as its owner."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.app import defaults
from blindsight.app.result import JobResult, ResultTable, counted
from blindsight.app.search import SearchResult, search
from blindsight.core import checks, durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.encoders import Encoder
from blindsight.index.cell_index import CodebookIndex
from blindsight.index.contact_sheet import OwnerNames
from blindsight.index.encoder import CodeRecipe, load_encoder
from blindsight.index.hamming import HammingIndex
from blindsight.index.index_file import IndexHeader
from blindsight.index.release_folder import ReleaseFolder, vault_beside
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import Vault
from blindsight.release.contents import PHOTO_CODES, entries_of
from blindsight.release.manifest import (
    BUNDLE_KINDS,
    Manifest,
    check_folder,
    fingerprint_of,
    is_signed,
    read_card,
)

__all__ = [
    "AnsweredRequest",
    "OpenedFile",
    "OpenedRelease",
    "ReleaseContents",
    "answer_request",
    "hand_over",
    "log_request",
    "open_release",
    "open_shared",
    "release_contents",
    "request_signer",
]

PathText = str | PathLike[str]
_REQUEST = "blindsight request 1"
_MAX_REQUEST_BYTES, _MAX_REQUEST_IDS, _MAX_MESSAGE = 1 << 20, 1000, 2000


@dataclass(frozen=True)
class OpenedRelease(JobResult):
    """A release whose signature and files were checked.

    Parameters:
        folder: the folder.
        manifest: what the owner signed.
        guarantee: what is promised for each photo.
        card: the privacy card, as JSON values.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight import open_release, protect
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "photos").mkdir()
        >>> Image.new("RGB", (64, 64), "red").save(folder / "photos" / "red.png")
        >>> made = protect(folder / "photos", folder / "release", encoder="pixels")
        >>> release = open_release(folder / "release", fingerprint=made.fingerprint)
        >>> release.manifest.facts["entries"], release.guarantee.epsilon
        (1, 8.0)
    """

    folder: Path
    manifest: Manifest
    guarantee: Guarantee
    card: dict[str, object]

    @property
    def title(self) -> str:
        counted_records = counted(self._count, f"protected {self._noun}")
        return f"{self.folder}: {counted_records}, signed and unchanged"

    @property
    def _noun(self) -> str:
        encoder = self.manifest.facts.get("encoder")
        of_vectors = isinstance(encoder, dict) and encoder.get("kind") == "embeddings"
        return "vector" if of_vectors else "photo"

    @property
    def _count(self) -> int:
        return checks.whole("entries", self.card["entries"], least=0)

    def facts(self) -> list[tuple[str, str]]:
        noun = self._noun
        unit = noun if self.guarantee.unit == "record" else self.guarantee.unit
        pairs = [
            ("signed by", f"{self.manifest.fingerprint} (compare with what the owner told you)"),
            (
                "holds",
                f"{self._count:,} entries: an id and a noisy code for each {noun}, no {noun}s",
            ),
            ("promise", self.guarantee.line()),
            (
                "meaning",
                f"a code could have come from any other {unit}; it changes the odds about the "
                f"{unit} by a factor of at most e^{self.guarantee.epsilon:g}",
            ),
            ("made with", f"Blindsight {self.manifest.version}"),
        ]
        if (self.folder / "search.html").is_file():
            pairs.append(("search", f"open {self.folder / 'search.html'} in a browser"))
        return pairs

    def to_dict(self) -> dict[str, object]:
        return {
            "folder": str(self.folder),
            "fingerprint": self.manifest.fingerprint,
            "version": self.manifest.version,
            "card": self.card,
        }

    def verify(self, fingerprint: str | None = None) -> None:
        """Check the signature and every file again.

        Parameters:
            fingerprint: what the owner told.

        Raises:
            HostileFile: Something was changed since, or another key signed.
        """
        check_folder(self.folder, fingerprint=fingerprint)

    def search(
        self,
        photo: PathText | Sequence[PathText] | None = None,
        *,
        text: str | Sequence[str] | None = None,
        vector: ArrayLike | None = None,
        encoder: PathText | Encoder | None = None,
        k: int = defaults.SEARCH_HITS,
    ) -> SearchResult:
        """Search the release; see `blindsight.search`."""
        return search(self.folder, photo, text=text, vector=vector, encoder=encoder, k=k)

    @property
    def entries(self) -> dict[str, NDArray[np.str_] | NDArray[np.uint32]]:
        """The columns `id` and `cell` (or `code`) of every entry, in the order of the ids.

        `pandas.DataFrame(release.entries)` and `pyarrow.table(release.entries)` make tables of
        them. They are read from the release itself, so that neither package is needed.
        """
        folder = ReleaseFolder.read(self.folder)
        cells = folder.recipe.get("method") == "codebook"
        index = (CodebookIndex if cells else HammingIndex).load(folder.codes)
        rows = entries_of(index, cells=cells)
        ids = np.array([key for key, _ in rows], np.str_)
        values = [value for _, value in rows]
        if cells:
            return {"id": ids, "cell": np.array(values, np.uint32)}
        return {"id": ids, "code": np.array(values, np.str_)}


def open_release(folder: PathText, *, fingerprint: str | None = None) -> OpenedRelease:
    """Open a folder that was received, after checking the signature and every file.

    Parameters:
        folder: the folder.
        fingerprint: what the owner told, by another way than the folder came; None trusts the key
            in the folder, which then only shows that nothing was damaged.

    Returns:
        The release, with `search`, `entries` and `card`.

    Raises:
        HostileFile: Any byte was changed, a file was added or removed, or another key signed.
        InvalidData: The folder is not a finished release.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> from blindsight import protect
        >>> made = protect(folder, f"{folder}.release", encoder="pixels", page=False)
        >>> opened = open_release(made.release, fingerprint=made.fingerprint)
        >>> print(opened.guarantee.line())
        cell: k-ary response over 150 cells: proven ε = 8 per record (replace one)
    """
    target = Path(folder)
    if not target.is_dir():
        raise InvalidData(f"{target} is not a folder. Give the folder that the owner shared.")
    manifest = check_folder(target, fingerprint=fingerprint)
    if manifest.kind != PHOTO_CODES:
        known = (
            "open_shared opens it" if manifest.kind in BUNDLE_KINDS else "unknown to this version"
        )
        raise InvalidData(f"{target} holds {manifest.kind!r} and no release of photos: {known}.")
    fields = read_card(target)
    try:
        guarantee = Guarantee.from_json(json.dumps(fields["guarantee"]))
        checks.whole("entries", fields["entries"], least=0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HostileFile(
            f"{target / 'card.json'} is not a privacy card. Ask the owner for a new copy."
        ) from error
    stated = ReleaseFolder.read(target)
    if stated.release != manifest.release:
        raise HostileFile(
            f"{target} was put together from two releases. Ask the owner for a new copy."
        )
    return OpenedRelease(target, manifest, guarantee, fields)


@dataclass(frozen=True)
class OpenedFile(JobResult):
    """A shared model, metric, set of statistics or file of sketches that was checked.

    Parameters:
        folder: the folder.
        manifest: what the owner signed.
        file: the file in it.
        guarantee: what is promised about the data behind it; None where nothing is.
        card: the card, as JSON values.

    Examples:
        >>> import tempfile
        >>> from blindsight import sketch
        >>> made = sketch("digits", f"{tempfile.mkdtemp()}/digits.sketches", random_state=0)
        >>> opened = open_shared(f"{made.file}.shared")
        >>> opened.file.name, opened.guarantee
        ('digits.sketches', None)
    """

    folder: Path
    manifest: Manifest
    file: Path
    guarantee: Guarantee | None
    card: dict[str, object]

    @property
    def title(self) -> str:
        return f"{self.folder}: {self.manifest.kind} {self.file.name!r}, signed and unchanged"

    def facts(self) -> list[tuple[str, str]]:
        promise = "none: see card.txt" if self.guarantee is None else self.guarantee.line()
        return [
            ("signed by", f"{self.manifest.fingerprint} (compare with what the owner told you)"),
            ("promise", promise),
            ("use", BUNDLE_KINDS[self.manifest.kind].replace("FILE", str(self.file))),
            ("made with", f"Blindsight {self.manifest.version}"),
        ]

    def to_dict(self) -> dict[str, object]:
        return {
            "folder": str(self.folder),
            "kind": self.manifest.kind,
            "fingerprint": self.manifest.fingerprint,
            "version": self.manifest.version,
            "card": self.card,
        }

    def verify(self, fingerprint: str | None = None) -> None:
        """Check the signature and every file again, as `OpenedRelease.verify` does."""
        check_folder(self.folder, fingerprint=fingerprint)


def open_shared(folder: PathText, *, fingerprint: str | None = None) -> OpenedRelease | OpenedFile:
    """Open anything that was shared, after checking the signature and every file.

    Parameters:
        folder: a release of photos, or the folder of a model, a metric, statistics or sketches.
        fingerprint: as for `open_release`.

    Returns:
        What the folder holds.

    Raises:
        HostileFile: Any byte was changed, a file was added or removed, or another key signed.
        InvalidData: The folder is not finished, or of a kind that this version does not know.

    Examples:
        >>> import tempfile
        >>> from blindsight import sketch
        >>> made = sketch("digits", f"{tempfile.mkdtemp()}/digits.sketches", random_state=0)
        >>> open_shared(f"{made.file}.shared").manifest.kind
        'sketches'
    """
    target = Path(folder)
    if not target.is_dir():
        raise InvalidData(f"{target} is not a folder. Give the folder that the owner shared.")
    manifest = check_folder(target, fingerprint=fingerprint)
    if manifest.kind not in BUNDLE_KINDS:
        return open_release(target, fingerprint=fingerprint)
    card = read_card(target)
    name = card.get("file")
    if card.get("kind") != manifest.kind or name not in manifest.files:
        raise HostileFile(f"{target} has a card of something else. Ask the owner for a new copy.")
    guarantee = None
    if card.get("guarantee") is not None:
        try:
            guarantee = Guarantee.from_json(json.dumps(card["guarantee"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HostileFile(
                f"the card of {target} states no guarantee that can be read. Ask the owner for a "
                "new copy."
            ) from error
    return OpenedFile(target, manifest, target / str(name), guarantee, card)


@dataclass(frozen=True)
class ReleaseContents(JobResult):
    """What a release of photos holds and, for its owner, which photo is behind an id.

    Parameters:
        release: the folder.
        entries: how many codes it holds.
        recipe: how photos became codes: method, encoder, number of cells or bits.
        guarantee: what is promised for each photo.
        vault: the owner's vault, where it is here.
        photos: ids with the files that show them; with no files where the vault is not here.
    """

    release: Path
    entries: int
    recipe: CodeRecipe
    guarantee: Guarantee
    vault: Path | None
    photos: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def title(self) -> str:
        noun = "vector" if self.recipe.of_vectors else "photo"
        return f"{self.release}: {self.entries:,} noisy codes, one per {noun}, and no {noun}s"

    def facts(self) -> list[tuple[str, str]]:
        size = "cells" if self.recipe.method == "codebook" else "bits"
        bits = f", {self.recipe.bits:,} {size}" if self.recipe.bits else ""
        noun = "vectors" if self.recipe.of_vectors else "photos"
        owner = f"not here: ids stand for {noun}" if self.vault is None else str(self.vault)
        return [
            ("promise", self.guarantee.line()),
            ("method", self.recipe.method + bits),
            ("encoder", self.recipe.features),
            ("owner's vault", owner),
        ]

    def tables(self) -> list[ResultTable]:
        shown = len(self.photos)
        of_vectors = self.recipe.of_vectors
        noun, known = ("vectors", "your ids") if of_vectors else ("photos", "files")
        title = f"{shown:,} of {self.entries:,} {noun}" if shown < self.entries else noun.title()
        rows = [(key, ", ".join(files)) for key, files in self.photos]
        return [ResultTable(title, ("id", f"{known}, known to the owner"), rows)]


def release_contents(
    release: PathText,
    ids: Sequence[str] = (),
    *,
    vault: PathText | None = None,
    limit: int = defaults.LEDGER_ENTRIES_SHOWN,
) -> ReleaseContents:
    """Say what a release holds and, for its owner, which photo is behind an id.

    Parameters:
        release: the folder that `protect` made.
        ids: ids or, for the owner, file names to look up; by default the first `limit` ids.
        vault: the owner's vault (default: beside the release).
        limit: how many ids are listed where none are named.

    Raises:
        InvalidData: if the folder is no release, or an id is not in it.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight import protect
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "photos").mkdir()
        >>> Image.new("RGB", (64, 64), "red").save(folder / "photos" / "red.png")
        >>> made = protect(folder / "photos", folder / "release", encoder="pixels")
        >>> release_contents(folder / "release").photos[0][1]
        ('red.png',)
    """
    folder = ReleaseFolder.read(Path(release))
    recipe = CodeRecipe.from_fields(folder.recipe)
    header = IndexHeader.of(folder.codes)
    names = OwnerNames(folder, None if vault is None else Path(vault))
    with load_encoder(recipe, folder.path, header.decoding).load(folder.codes) as stored:
        known = {str(key) for batch, _ in stored.items() for key in batch.tolist()}
        guarantee = stored.guarantee
    if guarantee is None:
        raise HostileFile(f"{release} states no guarantee. Ask the owner for a new copy.")
    wanted = [names.record(name) for name in ids] or sorted(known)[:limit]
    for name, key in zip(ids, wanted, strict=False):
        if key not in known:
            raise InvalidData(
                f"{release} holds no photo {name!r}. Without ids, the first ones are listed."
            )
    hidden = names.vault is None and folder.names == "random"
    photos = tuple((key, () if hidden else tuple(names.of(key))) for key in wanted)
    return ReleaseContents(folder.path, len(known), recipe, guarantee, names.vault, photos)


@dataclass(frozen=True)
class AnsweredRequest(JobResult):
    """The photos that a request asks for, for the owner only.

    Parameters:
        release: the number of the release.
        message: what the receiver wrote.
        photos: for each requested id the files that show it.
        unknown: ids that the vault does not know.
        signed_by: the fingerprint of the key that signed the request; None for an unsigned one.

    Examples:
        >>> photos = (("9c1e", ("beach/07.jpg",)),)
        >>> AnsweredRequest("4f2a", "May we print this one?", photos).title
        'A request for 1 photo. Nothing was sent: you decide.'
    """

    release: str
    message: str
    photos: tuple[tuple[str, tuple[str, ...]], ...]
    unknown: tuple[str, ...] = ()
    signed_by: str | None = None

    @property
    def title(self) -> str:
        photos = counted(len(self.photos), "photo")
        return f"A request for {photos}. Nothing was sent: you decide."

    def facts(self) -> list[tuple[str, str]]:
        signer = self.signed_by or "nobody: ask the sender whether the request is theirs"
        pairs = [("message", self.message or "none"), ("signed by", signer)]
        if self.unknown:
            pairs.append(("unknown ids", f"{len(self.unknown)}, not photos of this release"))
        return pairs

    def tables(self) -> list[ResultTable]:
        rows = [(key, ", ".join(files)) for key, files in self.photos]
        return [ResultTable("requested photos", ("id", "files"), rows)]


def answer_request(
    request: PathText, release: PathText, *, vault: PathText | None = None
) -> AnsweredRequest:
    """Look up which photos a request asks for. Nothing is copied or sent.

    That a request was looked up is written to the vault's log, with the time and the number of
    photos.

    Parameters:
        request: the file that the receiver saved in `search.html`.
        release: the release that it is about.
        vault: the owner's vault (default: beside the release).

    Raises:
        HostileFile: The file is not a request.
        InvalidData: The request is about another release, or the vault is not here.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> from blindsight import protect
        >>> made = protect(folder, f"{folder}.release", encoder="pixels", page=False)
        >>> ids = [key for key, _ in release_contents(made.release).photos]
        >>> asked = {"format": _REQUEST, "release": made.release_id, "message": "", "ids": ids}
        >>> _ = (folder / "request.json").write_text(json.dumps(asked))
        >>> answer_request(folder / "request.json", made.release).photos[0][1]
        ('red.png',)
    """
    ids, message, number, signed_by = _read_request(Path(request))
    folder = ReleaseFolder.read(Path(release))
    if number != folder.release:
        raise InvalidData(
            f"{request} asks for photos of another release than {release}. Give the release that "
            "it was saved from."
        )
    at = vault_beside(folder.path) if vault is None else Path(vault)
    names = OwnerNames(folder, at)
    if names.vault is None:
        raise InvalidData(f"the vault of {release} is not at {at}: --vault says where it is.")
    known = set(Vault(names.vault).codes(folder.release)) if folder.names == "random" else None
    photos = tuple((key, tuple(names.of(key))) for key in ids if known is None or key in known)
    unknown = tuple(key for key in ids if known is not None and key not in known)
    log_request(names.vault, folder.release, photos=len(photos), unknown=len(unknown))
    return AnsweredRequest(folder.release, message, photos, unknown, signed_by)


def hand_over(
    request: PathText,
    release: PathText,
    ids: Sequence[str],
    out: PathText,
    *,
    vault: PathText | None = None,
) -> tuple[Path, ...]:
    """Copy the requested photos that the owner chose into a new folder. Nothing is sent.

    The copies are the files as they are, with everything that is written in them. Their number is
    noted in the vault's log.

    Parameters:
        request: the file that the receiver saved in `search.html`.
        release: the release that it is about.
        ids: the ids that the owner decided to hand over; each must be one that was asked for.
        out: the folder for the copies, which must not exist.
        vault: the owner's vault (default: beside the release).

    Returns:
        The copies, each named by its id.

    Raises:
        InvalidParameter: An id was not asked for, or the folder exists.
        InvalidData: A photo is not where the vault saw it.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> from blindsight import protect
        >>> made = protect(folder, f"{folder}.release", encoder="pixels", page=False)
        >>> ids = [key for key, _ in release_contents(made.release).photos]
        >>> asked = {"format": _REQUEST, "release": made.release_id, "message": "", "ids": ids}
        >>> _ = (folder / "request.json").write_text(json.dumps(asked))
        >>> copies = hand_over(folder / "request.json", made.release, ids, f"{folder}.copies")
        >>> len(copies), copies[0].suffix
        (1, '.png')
    """
    answer = answer_request(request, release, vault=vault)
    known = dict(answer.photos)
    if unasked := [key for key in ids if key not in known]:
        raise InvalidParameter(f"{unasked[0]} was not asked for. Choose among the requested ids.")
    folder = ReleaseFolder.read(Path(release))
    names = OwnerNames(folder, vault_beside(folder.path) if vault is None else Path(vault))
    target = Path(out)
    if target.exists():
        raise InvalidParameter(f"{target} exists. Choose a new folder for the copies.")
    if names.vault is None or names.source is None:
        raise InvalidData("the vault does not know where the photos lie. Run protect again.")
    copies = []
    with durable.staging_folder(target.resolve()) as staging:
        for number, key in enumerate(dict.fromkeys(ids)):
            photo = names.source / known[key][0]
            if not photo.is_file():
                raise InvalidData(f"{photo} is not there any more. Run protect again.")
            # By a number and the id: a name may say more than the owner wants to hand over.
            name = (
                f"{number + 1:03d}-{key[:12]}" if folder.names == "random" else f"{number + 1:03d}"
            )
            copies.append(f"{name}{photo.suffix.lower()}")
            shutil.copyfile(photo, staging / copies[-1])
        durable.replace_folder(staging, target.resolve(), last="")
    log_request(names.vault, folder.release, handed_over=len(copies))
    return tuple(target / name for name in copies)


def request_signer(
    format_: str, release: str, message: str, ids: Sequence[str], key: str, signature: str
) -> str:
    """The fingerprint of the key that signed a request.

    Parameters:
        format_, release, message, ids: what the request says; the signature is of these as JSON.
        key: the public key, as hexadecimal digits.
        signature: as hexadecimal digits.

    Raises:
        ValueError: The signature is not of this request.
    """
    public = bytes.fromhex(key)
    signed = json.dumps(
        [format_, release, message, *ids], separators=(",", ":"), ensure_ascii=False
    )
    if not is_signed(public, bytes.fromhex(signature), signed.encode()):
        raise ValueError("the signature does not fit")
    return fingerprint_of(public)


def _read_request(path: Path) -> tuple[list[str], str, str, str | None]:
    try:
        if path.stat().st_size > _MAX_REQUEST_BYTES:
            raise ValueError("too large")
        fields = json.loads(path.read_bytes())
        ids, message, release = fields["ids"], fields["message"], fields["release"]
        texts = [message, release, *ids]
        if fields["format"] != _REQUEST or not isinstance(ids, list):
            raise ValueError("another format")
        if not all(isinstance(text, str) for text in texts) or len(ids) > _MAX_REQUEST_IDS:
            raise ValueError("other values")
        if len(message) > _MAX_MESSAGE or any(len(text) > _MAX_MESSAGE for text in ids):
            raise ValueError("too long")
        signed_by = None
        if "signature" in fields or "key" in fields:
            signed_by = request_signer(
                _REQUEST, release, message, ids, fields["key"], fields["signature"]
            )
    except OSError as error:
        raise InvalidData(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HostileFile(
            f"{path} is not a request that search.html saved. Ask the receiver for another."
        ) from error
    printable = "".join(letter for letter in message if letter.isprintable() or letter == "\n")
    return list(dict.fromkeys(ids)), printable, release, signed_by


def log_request(vault: Path, release: str, **counts: int) -> None:
    """Append one line to a vault's log of requests: when, about which release, how many photos.

    Parameters:
        vault: the folder of the vault.
        release: the number of the release.
        counts: numbers of photos, each under a word; names are not written.
    """
    line = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "release": release,
        **counts,
    }
    path = vault / "requests.log"
    with durable.only_writer(vault):
        with suppress(FileExistsError):
            durable.write_file(path, b"", replace=False)
        log = durable.DurableFile(path)
        try:
            log.append(json.dumps(line).encode() + b"\n")
        finally:
            log.close()
