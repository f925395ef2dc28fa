"""The owner's knowledge of a release: the photo of each code, and what each photo shows.

What a photo shows is taken from labels, from folders, or from a public network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from blindsight.core.arrays import Array, Bytes, Floats32, Ints
from blindsight.core.errors import BlindsightError, InvalidData
from blindsight.data import read_image, to_rgb
from blindsight.data.label_tables import read_column
from blindsight.data.sources import content_digest
from blindsight.encoders import BuiltIn, Encoder, open_encoder
from blindsight.index.encoder import CodeRecipe, PhotoEncoder, load_encoder
from blindsight.index.index_file import IndexHeader
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import Vault

__all__ = ["Album", "Kinds", "folder_kinds", "kinds_of", "owner_kinds", "read_album"]


@dataclass(frozen=True, eq=False)
class Kinds:
    """What each photo shows.

    Parameters:
        shows: the number of each photo's kind.
        names: the names of the kinds.
        source: where this information is from.
    """

    shows: Ints
    names: tuple[str, ...]
    source: str


def kinds_of(
    names: Sequence[str],
    rows: Array,
    encoder: Encoder,
    labels: str | None = None,
    *,
    folders: bool = True,
) -> tuple[Kinds, ...]:
    """Return what photos show by every source: the owner's labels alone, or folders and network.

    Parameters:
        names: the photos' names relative to their folder.
        rows: the photos' features.
        encoder: the encoder of the features; the classes of its public classifier, if it has one,
            are a source.
        labels: "folder", or FILE.csv:COLUMN with the photos' names in the first column.
        folders: whether folders say what photos show; False if they name people.

    Returns:
        The sources, the owner's first; empty if there is none.
    """
    if labels is not None and labels != "folder":
        labelled = owner_kinds(names, labels)
        return () if labelled is None else (labelled,)
    by_folder = owner_kinds(names, labels) if folders else None
    weights = _classifier(encoder)
    by_network: tuple[Kinds, ...] = ()
    if weights is not None:
        classes = [str(number) for number in (rows @ weights.T).argmax(axis=1)]
        by_network = (_numbered(classes, f"the {len(weights):,} public classes of the network"),)
    return by_network if by_folder is None else (by_folder, *by_network)


def _classifier(encoder: Encoder) -> Floats32 | None:
    """Return the weights of the encoder's public classes; built-in ones need no file of names."""
    if isinstance(encoder, BuiltIn):
        from blindsight.encoders.network import head

        return None if encoder.network is None else head(encoder.network)
    classes = encoder.classes()
    return None if classes is None else classes.weights


def owner_kinds(names: Sequence[str], labels: str | None) -> Kinds | None:
    """Return what photos show according to the owner's labels or folders.

    Returns:
        None if there are neither labels nor several folders.

    Raises:
        InvalidData: if a table lacks a photo, or folders are asked for and there is only one.
    """
    if labels is not None and labels != "folder":
        return _numbered(
            _from_table(labels, names), f"column {labels.rpartition(':')[2]} of your table"
        )
    kinds = folder_kinds(names)
    if kinds is None and labels == "folder":
        if len({_last_folder(name) for name in names}) < 2:
            raise InvalidData(
                "the photos lie in one folder, so folders say nothing of what they show."
            )
        return _numbered([_last_folder(name) for name in names], "the folders they lie in")
    return kinds


def folder_kinds(names: Sequence[str]) -> Kinds | None:
    """Return the last folder of each photo as what it shows: "2024/beach/1.jpg" shows a beach.

    People usually name the last folder after the subject, also in archives of years or trips.

    Returns:
        None if there is only one folder, or if folders hold fewer than about two photos each.

    Examples:
        >>> folder_kinds([f"{year}/{kind}/1.jpg" for year in "ab" for kind in ("cat", "dog")]).names
        ('cat', 'dog')
    """
    folders = [_last_folder(name) for name in names]
    if not 2 <= len(set(folders)) <= len(folders) // 2:
        return None
    return _numbered(folders, "the folders they lie in")


def _last_folder(name: str) -> str:
    return name.rpartition("/")[0].rpartition("/")[2]


def _numbered(texts: Sequence[str], source: str) -> Kinds:
    names, shows = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    return Kinds(shows.astype(np.int64), tuple(str(name) for name in names), source)


def _from_table(rule: str, names: Sequence[str]) -> list[str]:
    table = read_column(rule, names, option="labels")
    missing = sum(not table.get(name) for name in names)
    if missing:
        path = rule.rpartition(":")[0]
        raise InvalidData(
            f"{missing} of {len(names)} photos have no label in {path}. Every photo needs one."
        )
    return [table[name] for name in names]


Step = Callable[[int, int, str], None]
_BATCH = 32
_THUMBNAIL = 32


@dataclass(frozen=True, eq=False)
class Album:
    """A release and the photos that it was made of, in one order.

    Parameters:
        release: the release folder.
        encoder: its public hash function.
        guarantee: the guarantee that its index states.
        stored: how many codes were shared; the arrays hold those that were measured.
        ids: the ids of the released codes.
        codes: the released codes as packed bytes.
        rows: the features of the photos.
        thumbnails: small pictures of the photos.
        names: the photos' names, for the owner only.
        recipe: how it was made, with the owner's own paths if the vault remembers them.
        problems: what the files themselves reveal, in sentences.
        lost: the number of codes whose photo no longer exists or was changed.
    """

    release: ReleaseFolder
    encoder: PhotoEncoder
    guarantee: Guarantee
    stored: int
    ids: tuple[str, ...]
    codes: Bytes
    rows: Floats32
    thumbnails: Bytes
    names: tuple[str, ...]
    recipe: CodeRecipe
    problems: tuple[str, ...] = ()
    lost: int = 0


def read_album(
    release: Path,
    vault: Path,
    *,
    photos: Path | None,
    most: int,
    encoder: str | PathLike[str] | Encoder | None = None,
    dataset: str = "",
    rng: np.random.Generator,
    step: Step,
) -> Album:
    """Read the release as an attacker would, then find the photos in the owner's folder.

    The parameters are those of `audit_release`.
    """
    release_folder, owner_vault = ReleaseFolder.read(release), Vault(vault)
    if owner_vault.number != release_folder.vault:
        raise InvalidData(
            f"{vault} is not the vault of {release}: that one has number {release_folder.vault}."
        )
    recipe = CodeRecipe.from_fields(release_folder.recipe)
    if recipe.of_vectors:
        raise InvalidData(
            f"{release} was made from vectors, so there are no photos to compare it with. Audit it "
            "without --vault, which attacks its mechanism."
        )
    if encoder is not None:
        recipe = recipe.with_encoder(open_encoder(encoder), what=str(release))
    folder = photos or (Path(owner_vault.fact("source")) if owner_vault.fact("source") else None)
    if folder is None or not folder.is_dir():
        raise InvalidData(
            "the vault does not say where the photos are, or they moved. Give their folder: "
            "--photos."
        )
    header = IndexHeader.of(release_folder.codes)
    if header.guarantee is None:
        raise InvalidData(
            f"{release_folder.codes} is an index of plain codes: it promises nothing."
        )
    coder = load_encoder(recipe, release_folder.path, header.decoding)
    ids, codes = _codes(coder, release_folder)
    problems = tuple(_file_problems(release_folder, owner_vault, ids, codes, dataset))
    chosen = np.sort(rng.permutation(len(ids))[:most])
    positions, rows, thumbnails, names = _looked_at(
        coder, owner_vault, folder, release_folder, [ids[i] for i in chosen], dataset, step
    )
    if len(positions) < 20:
        raise InvalidData(
            f"only {len(positions)} photos of the release were found in {folder}; an audit needs "
            "20."
        )
    noted = owner_vault.fact(f"recipe {release_folder.release}")
    return Album(
        release=release_folder,
        encoder=coder,
        guarantee=header.guarantee,
        stored=len(ids),
        ids=tuple(ids[i] for i in chosen[positions]),
        codes=codes[chosen[positions]],
        rows=rows,
        thumbnails=thumbnails,
        names=tuple(names),
        recipe=recipe
        if noted is None
        else dataclasses.replace(CodeRecipe.from_fields(noted), opened=recipe.opened),
        problems=problems,
        lost=len(chosen) - len(positions),
    )


def _codes(encoder: PhotoEncoder, release: ReleaseFolder) -> tuple[list[str], Bytes]:
    ids: list[str] = []
    blocks = []
    for names, codes in encoder.load(release.codes).items():
        ids += [str(name) for name in names]
        blocks.append(codes)
    return ids, np.concatenate(blocks) if blocks else np.zeros((0, 1), np.uint8)


def _looked_at(
    encoder: PhotoEncoder,
    vault: Vault,
    folder: Path,
    release: ReleaseFolder,
    ids: Sequence[str],
    dataset: str,
    step: Step,
) -> tuple[Ints, Floats32, Bytes, list[str]]:
    """Return the photos that are unchanged since the release.

    Returns:
        Their positions in `ids`, features, thumbnails and names.
    """
    own = {key: [key] for key in ids} if release.names == "keep" else vault.names_of(ids, dataset)
    positions: list[int] = []
    names: list[str] = []
    waiting: list[Array] = []
    small: list[Array] = []
    blocks: list[Array] = []
    recipe = encoder.recipe.image
    for number, key in enumerate(ids):
        step(number, len(ids), f"looking at {number:,} of {len(ids):,} photos")
        pixels = _pixels(
            folder,
            own.get(key, ()),
            key if release.names == "random" else None,
            vault,
            recipe.at_least,
        )
        if pixels is None:
            continue
        positions.append(number)
        names.append(own[key][0])
        waiting.append(recipe.prepare(pixels))
        small.append(to_rgb(pixels, _THUMBNAIL))
        if len(waiting) == _BATCH:
            blocks.append(recipe.rows(np.stack(waiting)))
            waiting = []
    if waiting:
        blocks.append(recipe.rows(np.stack(waiting)))
    rows = np.concatenate(blocks) if blocks else np.zeros((0, 1), np.float32)
    pictures = np.stack(small) if small else np.zeros((0, _THUMBNAIL, _THUMBNAIL, 3), np.uint8)
    return np.array(positions, np.int64), rows, pictures, names


def _pixels(
    folder: Path, names: Sequence[str], record: str | None, vault: Vault, at_least: int | None
) -> Array | None:
    """Return the pixels of the first file that is still the record, or None."""
    for name in names:
        try:
            content = (folder / name).read_bytes()
            if record is None or (vault.record_of(content_digest(content, name=name)) == record):
                return read_image(folder / name, at_least=at_least)
        except (OSError, BlindsightError):
            continue
    return None


def _names_in(content: bytes, names: Set[str]) -> set[str]:
    """Return the file names that occur in `content`, by one search per suffix, not per name."""
    groups: dict[bytes, dict[bytes, str]] = {}
    for name in names:
        groups.setdefault(Path(name).suffix.encode(), {})[name.encode()] = name
    found = {name for spelled, name in groups.pop(b"", {}).items() if spelled in content}
    for suffix, group in groups.items():
        lengths = {len(spelled) for spelled in group}
        start = content.find(suffix)
        while start >= 0:
            end = start + len(suffix)
            for spelled in group.keys() & {content[max(0, end - n) : end] for n in lengths}:
                found.add(group[spelled])
            start = content.find(suffix, start + 1)
    return found


def _file_problems(
    release: ReleaseFolder,
    vault: Vault,
    ids: Sequence[str],
    codes: Bytes,
    dataset: str,
) -> list[str]:
    """Return what the files reveal by themselves: names, or codes that the vault did not record."""
    problems = []
    photos = vault.photos(dataset)
    if release.names == "random":
        content = b"".join(
            path.read_bytes() for path in sorted(release.path.rglob("*")) if path.is_file()
        )
        found = _names_in(content, {last for name in photos if len(last := Path(name).name) > 5})
        named = [name for name in photos if Path(name).name in found]
        if named:
            problems.append(f"the names of {len(named)} photos stand in the release")
        strange = (
            set(ids)
            - {photo.record for photo in photos.values()}
            - set(vault.codes(release.release))
        )
        if strange:
            problems.append(f"{len(strange)} codes stand under ids that are not the vault's")
        noted = vault.codes(release.release)
        changed = sum(
            key in noted and noted[key] != code.tobytes()
            for key, code in zip(ids, codes, strict=True)
        )
        if changed:
            problems.append(
                f"{changed} codes are not those that the vault recorded: a photo was released "
                "twice, or the file changed"
            )
    return problems
