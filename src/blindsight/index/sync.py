"""A folder of photos kept in step with its release: new photos added, vanished ones pruned, all
else left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from blindsight.core.errors import BlindsightError
from blindsight.data import ImageSet, read_image
from blindsight.data.listing import shown_name
from blindsight.data.sources import Files, LazyImages
from blindsight.index.bulk.hashing import PreparedPhotos, Wanted, hash_to
from blindsight.index.bulk.pools import HERE, Pool
from blindsight.index.contact_sheet import Thumbnails, thumbnail
from blindsight.index.release_folder import ReleaseFolder, Scan, public_name
from blindsight.index.vectors import VectorRows
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.reconcile import ReleaseOnDisk
from blindsight.privacy.vault import Vault

__all__ = ["SyncResult", "charge", "release_on_disk", "sync_release", "sync_thumbnails"]

_AT_ONCE = 64


@dataclass(frozen=True)
class SyncResult:
    """What one run did, in distinct images unless it says otherwise.

    Parameters:
        released: new in the index now.
        restored: those of them that had been released before, and cost nothing.
        known: in the index before.
        refused: photos that could not be read, with the reason.
        copies: files that show what another file shows.
        left_out: not released because their person has enough images released.
        vanished: still in the index though no photo shows them any more; `prune` removes them.
        pruned: removed, from the file's bytes too.
        stored: in the index now.
    """

    released: int
    restored: int
    known: int
    refused: tuple[tuple[str, str], ...]
    copies: int
    left_out: int
    vanished: int
    pruned: int
    stored: int


def charge(
    guarantee: Guarantee,
    vault: Vault,
    number: str,
    ledger: Ledger | None,
    *,
    records: Iterable[str] = (),
    most: int = 0,
    existing: ReleaseFolder | None = None,
) -> bool:
    """Charge a release by its number; True if it was charged now, False if it had been paid
    before.

    Without a ledger the release is noted in the vault, and charged by the first run with one.
    `existing` is the release folder on the disk: one that vault and ledger do not know is newer
    than they are.
    """
    shown = [] if existing is None else [release_on_disk(existing, guarantee)]
    done = vault.charge(
        ledger,
        guarantee,
        release=number,
        what="codes of photos, each released once",
        records=records,
        most=most,
        releases=shown,
    )
    return done.new


def release_on_disk(folder: ReleaseFolder, guarantee: Guarantee | None = None) -> ReleaseOnDisk:
    """A release folder as `reconcile` compares it with vault and ledger."""
    costs = () if guarantee is None else guarantee.costs
    return ReleaseOnDisk(str(folder.path), folder.vault, folder.release, costs)


def sync_release(
    place: ReleaseFolder,
    folder: Path | VectorRows,
    found: Scan,
    vault: Vault,
    encoder: Any,
    guarantee: Guarantee,
    law: str,
    *,
    prune: bool = False,
    pool: Pool = HERE,
    prepared: PreparedPhotos | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SyncResult:
    """Bring a release up to date with what a folder, or a file of vectors, holds. Charge first.

    The vault is held meanwhile: another run on it waits, or is refused with a sentence.
    """
    with vault.running():
        return _sync(
            place, folder, found, vault, encoder, guarantee, law, prune, pool, prepared, progress
        )


def _sync(
    place: ReleaseFolder,
    folder: Path | VectorRows,
    found: Scan,
    vault: Vault,
    encoder: Any,
    guarantee: Guarantee,
    law: str,
    prune: bool,
    pool: Pool,
    prepared: PreparedPhotos | None,
    progress: Callable[[int, int], None] | None,
) -> SyncResult:
    names = [photo.name for photo in found.photos]
    rows = {name: row for row, name in enumerate(names)}
    records = found.records
    chosen = set(records) if not place.most else vault.chosen(place.release, records, place.most)
    keep = place.names == "keep"
    keys = _public_keys([records[record][0] for record in sorted(chosen)]) if keep else {}
    wanted = [
        Wanted(keys.get(records[record][0], record), record, rows[records[record][0]])
        for record in sorted(chosen)
    ]
    if isinstance(folder, VectorRows):
        source: LazyImages = cast(LazyImages, folder)  # rows in the place of pixels
        release, preparation = encoder.release_rows, None
    else:
        root, preparation = folder.resolve(), encoder.recipe.image.preparation
        source = Files([root / name for name in names], at_least=preparation.at_least)
        release = encoder.release
    images = ImageSet(source, names=np.array(names, dtype=np.str_))
    released_before = set(vault.codes(place.release))
    with place.open(n_bits=encoder.n_bits, guarantee=guarantee, decoding=encoder.decoding) as index:
        there = set(index.ids.tolist())
        done = hash_to(
            index,
            images,
            release,
            vault,
            number=place.release,
            spool=vault.path / "shards",
            wanted=wanted,
            about=law,
            keyed=guarantee.entropy == "keyed",
            size=preparation,
            pool=pool,
            prepared=prepared,
            progress=progress,
        )
        renamed = {public_name(photo.name) for photo in found.gone if photo.record in chosen}
        stale = there - {each.key for each in wanted}
        if keep:  # earlier versions stored a name as the file system wrote it
            renamed |= {key for key in stale if public_name(key) in keys.values()}
        out = (
            stale if prune else stale & (renamed if keep else set())
        )  # a code under an old name stands under the new one
        ids = index.ids.tolist()
        if prune or out or ids != sorted(ids):
            # Old bytes leave the disk; and the order of the codes says nothing of who came when,
            # after a crash too.
            index.compact(without=out)
        stored = len(index)
    new = [each for each in wanted if each.key not in there]
    refused, copies = _refused_files(found, done.refused)
    return SyncResult(
        released=done.released,
        restored=sum(each.record in released_before for each in new),
        known=done.known,
        refused=refused,
        copies=copies,
        left_out=len(records) - len(chosen),
        vanished=len(stale - out),
        pruned=len(out),
        stored=stored,
    )


def _public_keys(names: Sequence[str]) -> dict[str, str]:
    """The key of each photo in a release that shows names; two names of one form stay apart."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    # A photo whose name has the form already keeps it, whatever else comes.
    for name in sorted(names, key=lambda name: (public_name(name) != name, name)):
        key = public_name(name)
        keys[name] = key if key not in taken else shown_name(name)
        taken.add(keys[name])
    return keys


def _refused_files(
    found: Scan, late: Sequence[tuple[str, str]]
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Every file that gave no code with the reason, and how many of the others are copies.

    Parameters:
        late: files that were recognised, and could not be read when their code was to be made.
            Further files of such a record were not tried: they have its reason.
    """
    reasons = dict(late)
    refused = list(found.refused)
    copies = 0
    for names in found.records.values():
        reason = next((reasons[name] for name in names if name in reasons), None)
        if reason is None:
            copies += len(names) - 1
        else:
            refused += [(name, reasons.get(name, reason)) for name in names]
    return tuple(refused), copies


def sync_thumbnails(
    vault: Vault,
    folder: Path,
    found: Scan,
    *,
    prune: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Small pictures of all records that have none yet, into the vault; with `prune`, those of gone
    photos go.
    """
    kept = Thumbnails(vault.path)
    records = found.records
    there = kept.records()
    missing = sorted(records.keys() - there)
    for start in range(0, len(missing), _AT_ONCE):
        part = missing[start : start + _AT_ONCE]
        pictures = ((record, _small(folder / records[record][0])) for record in part)
        kept.keep((record, small) for record, small in pictures if small is not None)
        if progress is not None:
            progress(start + len(part), len(missing))
    if prune:
        kept.forget(sorted(there - records.keys()))
    return len(missing)


def _small(path: Path) -> bytes | None:
    try:
        return thumbnail(read_image(path))
    except (BlindsightError, OSError):
        return None
