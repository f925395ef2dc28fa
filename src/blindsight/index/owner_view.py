"""What only the owner of an index can do, with the vault and the photos: names, dates, thumbnails,
near-duplicates.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import BlindsightError, InvalidData
from blindsight.index.base import Hits
from blindsight.index.contact_sheet import Thumbnails, thumbnail
from blindsight.index.encoder import PhotoEncoder
from blindsight.index.release_folder import OwnerNames

__all__ = ["ALIKE", "OwnerPhotos", "groups_alike"]

# : cosine of two photos' features from which they count as nearly the same: of 300 photos three in
# four are found again
# : cropped, brightened and compressed anew, and 4 of 44,850 pairs of different photos are taken for
# the same.
ALIKE = 0.8
_TAKEN, _CAMERA = (
    0x9003,
    0x8769,
)  # Exif: when the photo was taken, and where the camera's fields are
_BLOCK = 1024


class OwnerPhotos:
    """The photos behind an index, as far as they are at hand.

    Parameters:
        names: what the owner calls the records.
        folder: where the photos are; None where nobody knows.
        encoder: how photos are described.
    """

    def __init__(self, names: OwnerNames, folder: Path | None, encoder: PhotoEncoder) -> None:
        self.names, self.folder, self.encoder = names, folder, encoder

    def original(self, key: Any) -> NDArray[np.uint8] | None:
        """A record's photo as pixels; None where it is gone."""
        from blindsight.data import read_image

        path = self._path(key)
        if path is None:
            return None
        try:
            return read_image(path)
        except (BlindsightError, OSError):
            return None

    def squeezed(self, key: Any) -> NDArray[np.uint8] | None:
        """The same, as the network sees it."""
        image = self.original(key)
        return None if image is None else self.encoder.recipe.image.prepare(image)

    def thumbnails(self, keys: Iterable[Any]) -> dict[str, bytes]:
        """Small JPEGs by record: the vault's, or made from the photos."""
        wanted = {str(key) for key in keys}
        vault = self.names.vault
        found = {} if vault is None else Thumbnails(vault).of(sorted(wanted))
        for key in wanted - found.keys():
            picture = self.original(key)
            if picture is not None:
                found[key] = thumbnail(picture)
        return found

    def inside(self, hits: Hits, begins: str) -> NDArray[np.bool_]:
        """Which hits are of photos whose name begins so."""
        known = {
            key: any(name.startswith(begins) for name in self.names.of(key))
            for key in set(hits.ids.tolist())
        }
        if not any(known.values()):
            raise InvalidData(f"no photo's name begins with {begins!r}.")
        return np.array([known[key] for key in hits.ids], dtype=bool)

    def taken(self, key: Any) -> datetime.date | None:
        """When a photo was taken: by the camera's word, else when its file last changed; None where
        nobody knows.
        """
        path = self._path(key)
        if path is not None and (said := _exif_date(path)) is not None:
            return said
        changed = self.names.changed(key)
        return None if changed is None else datetime.datetime.fromtimestamp(changed / 1e9).date()

    def between(
        self, hits: Hits, since: datetime.date | None, until: datetime.date | None
    ) -> NDArray[np.bool_]:
        """Which hits were taken between two days, both included; those of an unknown day are
        not.
        """
        known = {key: self.taken(key) for key in set(hits.ids.tolist())}
        if not any(known.values()):
            raise InvalidData(
                "no dates are known: they come from the owner's vault and photos, which are not "
                "here."
            )
        first, last = since or datetime.date.min, until or datetime.date.max
        return np.array(
            [(day := known[key]) is not None and first <= day <= last for key in hits.ids],
            dtype=bool,
        )

    def duplicates(self, keys: Sequence[Any], *, alike: float = ALIKE) -> list[list[Any]]:
        """Groups of records whose photos are nearly the same, the largest first."""
        checks.probability("alike", alike)
        pictures = [(key, image) for key in keys if (image := self.squeezed(key)) is not None]
        if not pictures:
            raise InvalidData("none of the photos are here: say where they are (--folder).")
        described = self.encoder.described(np.stack([image for _, image in pictures]))
        return [[pictures[row][0] for row in group] for group in groups_alike(described, alike)]

    def _path(self, key: Any) -> Path | None:
        """The photo's file, where its name does not lead out of the folder."""
        if self.folder is None:
            return None
        path = self.folder / self.names.of(key)[0]
        return path if path.resolve().is_relative_to(self.folder.resolve()) else None


def groups_alike(rows: NDArray[Any], alike: float) -> list[list[int]]:
    """Groups of unit rows (n, d) that are connected by cosines of at least `alike`, the largest
    first.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    part = np.arange(len(rows))
    for start in range(0, len(rows), _BLOCK):
        left, right = np.nonzero(rows[start : start + _BLOCK] @ rows.T >= alike)
        # Parts that were joined before count as one: many copies are as quick as few.
        pairs = (np.ones(len(left), bool), (part[start + left], part[right]))
        part = connected_components(coo_array(pairs, shape=(len(rows), len(rows))), directed=False)[
            1
        ][part]
    groups: dict[int, list[int]] = {}
    for row, number in enumerate(part.tolist()):
        groups.setdefault(number, []).append(row)
    return sorted(
        (group for group in groups.values() if len(group) > 1),
        key=lambda group: (-len(group), group),
    )


def _exif_date(path: Path) -> datetime.date | None:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            said = picture.getexif().get_ifd(_CAMERA).get(_TAKEN)
        return datetime.date(*(int(part) for part in str(said)[:10].split(":"))) if said else None
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError):
        return None
