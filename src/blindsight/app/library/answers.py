"""The owner's answer to a request that a receiver saved in `search.html`: looked at, and decided.

Nothing is sent. The owner sees the requested photos and may copy some of them into a new folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from blindsight.app.library.accounts import vault_of
from blindsight.app.library.datasets import DataSet, DataSetPhoto, DataSets, Release
from blindsight.app.release import log_request
from blindsight.core import durable
from blindsight.core.errors import InvalidParameter, MissingData

__all__ = ["RequestedPhotos", "copy_chosen", "requested_photos"]


@dataclass(frozen=True)
class RequestedPhotos:
    """What a request asks for, for the owner.

    Parameters:
        data_set: the data set of the release.
        release: the release that the request is about.
        photos: the requested photos that are in the release, in the order of the request.
        unknown: how many ids are not of the release.
    """

    data_set: DataSet
    release: Release
    photos: tuple[DataSetPhoto, ...]
    unknown: int


def requested_photos(
    datasets: DataSets, data_set: DataSet, number: str, ids: Sequence[str]
) -> RequestedPhotos:
    """Look up the photos of a request, and note in the vault's log that this was done.

    Parameters:
        datasets: the owner's library.
        data_set: the data set that the release must be of.
        number: the number of the release, as the request states it.
        ids: the ids that are asked for.

    Raises:
        MissingData: No release of the data set has this number.
    """
    found = _looked_up(datasets, data_set, number, ids)
    vault = vault_of(datasets, found.data_set).path
    log_request(vault, number, photos=len(found.photos), unknown=found.unknown)
    return found


def copy_chosen(
    datasets: DataSets,
    data_set: DataSet,
    number: str,
    ids: Sequence[str],
    chosen: Sequence[str],
) -> tuple[Path, ...]:
    """Copy the photos that the owner chose into a new folder. Nothing is sent.

    Parameters:
        datasets: the owner's library.
        data_set: the data set that the release must be of.
        number: the number of the release, as the request states it.
        ids: the ids that are asked for.
        chosen: the ids that the owner decided to hand over.

    Returns:
        The copies, in a new folder below the library's state.

    Raises:
        InvalidParameter: A chosen id was not asked for, or is not of the release.
        MissingData: A photo is not where it was read.
    """
    found = _looked_up(datasets, data_set, number, ids)
    known = {photo.id: photo for photo in found.photos}
    if not chosen or not set(chosen) <= known.keys():
        raise InvalidParameter("choose at least one photo, and only among the requested ones.")
    when = datetime.now(UTC).strftime("%Y-%m-%d %H%M%S.%f")
    target = datasets.settings.state / "handed over" / when
    durable.make_folder(target.parent)
    staging = durable.staging_folder(target)
    names = []
    try:
        for place, key in enumerate(dict.fromkeys(chosen)):
            photo = Path(found.data_set.source) / known[key].name
            if not photo.is_file():
                raise MissingData(f"{photo} is not there any more. Read the folder again.")
            names.append(f"{place + 1:03d}-{key[:12]}{photo.suffix.lower()}")
            shutil.copyfile(photo, staging / names[-1])
        durable.replace_folder(staging, target, last="")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    log_request(vault_of(datasets, found.data_set).path, number, handed_over=len(names))
    return tuple(target / name for name in names)


def _looked_up(
    datasets: DataSets, data_set: DataSet, number: str, ids: Sequence[str]
) -> RequestedPhotos:
    from blindsight.index.release_folder import ReleaseFolder

    for release in data_set.releases:
        folder = datasets.folder(release)
        if release.kind != "search" or not (folder / "about.json").is_file():
            continue
        if ReleaseFolder.read(folder).release != number:
            continue
        released = set(vault_of(datasets, data_set).codes(number))
        shown = {photo.id: photo for photo in datasets.photos(data_set)}
        asked = dict.fromkeys(ids)
        photos = tuple(shown[key] for key in asked if key in released and key in shown)
        return RequestedPhotos(data_set, release, photos, len(asked) - len(photos))
    raise MissingData(
        f"no release of {data_set.name} has the number in the request. Choose the data set that "
        "was shared."
    )
