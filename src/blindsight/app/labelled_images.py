"""Labelled images of a folder or a data set: their features, distinct pictures and persons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.app.result import Progress, no_progress
from blindsight.core.errors import BlindsightError, InvalidData, InvalidParameter, MissingData

if TYPE_CHECKING:
    from blindsight.data import ImageSet
    from blindsight.data.sources import LazyImages
    from blindsight.encoders import Encoder
    from blindsight.privacy.vault import Vault
    from blindsight.sketching import FeatureBasis

__all__ = [
    "LabelledImages",
    "ListedImages",
    "class_names",
    "encode_images",
    "list_images",
    "public_basis",
]

#: Public pictures from which a basis is learned, at most.
MAX_PUBLIC_PICTURES = 3000
#: Built-in public pictures that give the mean and the scale where no folder is given.
BUILT_IN_PICTURES = 300
_BUILT_IN_SIZE = 160
_BATCH = 64

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class LabelledImages:
    """Labelled images, with the distinct picture and the person behind each."""

    features: Floats
    labels: NDArray[np.str_]
    records: tuple[str, ...]
    people: tuple[str, ...] | None
    unreadable: tuple[tuple[str, str], ...]
    without_class: int


def public_basis(
    encoder: Encoder,
    public: str | Path | None,
    width: int,
    *,
    picture_size: int | None = None,
    progress: Progress = no_progress,
) -> FeatureBasis:
    """The basis in which images are described: the same for all senders who use the same options.

    Parameters:
        encoder: how images become features.
        public: a folder of public pictures, or the name of a known data set; None for the built-in
            pictures and the encoder's own classifier.
        width: the largest length of the rows.
        picture_size: side in pixels that public pictures are shrunk to first.
        progress: called with (stage, done, total).
    """
    from blindsight.app.sketch import read_images
    from blindsight.encoders.public_pictures import built_in_images
    from blindsight.sketching import FeatureBasis

    known = None if public is not None else encoder.classes()
    if public is not None:
        stored = read_images(str(public), None)
        step = max(1, -(-len(stored) // MAX_PUBLIC_PICTURES))
        chosen = stored.take(np.arange(0, len(stored), step))
        pictures = [np.asarray(chosen.images[place]) for place in range(len(chosen))]
    else:
        count = BUILT_IN_PICTURES if known is not None else 4 * BUILT_IN_PICTURES
        pictures = list(built_in_images(count, picture_size or _BUILT_IN_SIZE))
    features = _features(encoder, pictures, "public pictures", progress, picture_size)
    if known is not None:
        return FeatureBasis.from_classifier(known.weights, features, width=width)
    return FeatureBasis.learn(features, width=width)


@dataclass(frozen=True)
class ListedImages:
    """Labelled images that are not read yet: files of a folder, or the arrays of a data set."""

    labels: NDArray[np.str_]
    folder: Path | None = None
    names: tuple[str, ...] = ()
    arrays: LazyImages | NDArray[np.uint8] | None = None
    picture_size: int | None = None

    def __len__(self) -> int:
        return len(self.labels)


def class_names(
    source: str | Path, classes: str | Sequence[str] | None, labels: str | Path | None
) -> tuple[str, ...]:
    """The names of the classes, which are public: stated, or those of the subfolders."""
    if isinstance(classes, str):
        classes = [name.strip() for name in classes.split(",") if name.strip()]
    if classes is not None:
        return tuple(str(name) for name in classes)
    folder = Path(source)
    if labels is not None:
        raise InvalidParameter(
            "state the names of the classes (--classes a,b,c): names that are read from a table of "
            "labels would tell that there is an image of each."
        )
    if folder.is_dir():
        names = sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )
        if len(names) < 2:
            raise InvalidData(
                f"{folder} must hold one subfolder of images per class, at least two; it has "
                f"{len(names)}. Or name a table of labels (--labels) and the classes (--classes)."
            )
        return tuple(names)
    known = _data_set(str(source), None)
    return known.classes or tuple(str(number) for number in np.unique(np.asarray(known.labels)))


def _data_set(name: str, split: str | None) -> ImageSet:
    from blindsight.app.sketch import read_images

    images = read_images(name, split)
    if images.labels is None:
        raise InvalidData(f"{name} has no labels, so there are no classes to learn.")
    return images


def list_images(
    source: str,
    split: str | None,
    labels: str | Path | None,
    classes: Sequence[str],
    *,
    leave_out: Path | None,
) -> ListedImages:
    """List labelled images; those without exactly one of the classes get the label "".

    Parameters:
        source: a folder, or the name of a known data set.
        split: "train" or "test", for known data sets.
        labels: a table of labels; by default the first subfolder is the label.
        classes: the names of the classes.
        leave_out: a file inside the folder that is being written, with its vault.
    """
    from blindsight.data.label_tables import read_label_table
    from blindsight.data.listing import list_photos
    from blindsight.index.release_folder import vault_beside

    folder = Path(source)
    if not folder.is_dir():
        images = _data_set(source, split)
        numbers = np.asarray(images.labels)
        names = images.classes or tuple(str(n) for n in range(int(numbers.max()) + 1))
        first = np.asarray(images.images[0])
        return ListedImages(
            np.array(names)[numbers],
            arrays=images.images,
            picture_size=max(first.shape[:2]),
        )
    outside = () if leave_out is None else (leave_out, vault_beside(leave_out))
    found = list_photos(folder, leave_out=outside).photos
    if not found:
        raise MissingData(f"{folder} holds no images. Check the path.")
    if labels is None:
        given = {name: {name.partition("/")[0]} for name in found if "/" in name}
    else:
        given = {
            name: set(words)
            for name, words in read_label_table(labels, folder, found).labels.items()
        }
    wanted = set(classes)
    chosen = []
    for name in found:
        own = sorted(given.get(name, set()) & wanted)
        chosen.append(own[0] if len(own) == 1 else "")
    return ListedImages(np.array(chosen), folder=folder, names=tuple(found))


def encode_images(
    listed: ListedImages,
    encoder: Encoder,
    vault: Vault | None,
    people: str | Mapping[str, str] | None,
    dataset: str,
    progress: Progress,
) -> LabelledImages:
    """Features of the images that can be read, with their records and persons."""
    from blindsight.data.content import content_digest, pixel_digest
    from blindsight.data.limits import LIMITS, read_bytes
    from blindsight.index.release_folder import persons_of, scan

    if listed.folder is None:
        if people is not None:
            raise InvalidParameter("people are named for the images of a folder, not of a set.")
        pictures = [np.asarray(listed.arrays[place]) for place in range(len(listed))]  # type: ignore[index]
        digests = [pixel_digest(picture) for picture in pictures]
        records = tuple(
            digest.hex() if vault is None else vault.record_of(digest) for digest in digests
        )
        features = _features(encoder, pictures, "encoding images", progress)
        return LabelledImages(
            features, listed.labels, records, None, (), int((listed.labels == "").sum())
        )
    folder, names = listed.folder, listed.names
    persons = persons_of(folder, names, people) if isinstance(people, str) else people
    label_of = dict(zip(names, listed.labels.tolist(), strict=True))
    record_of: dict[str, str] = {}
    refused: list[tuple[str, str]] = []
    if vault is not None:
        scanned = scan(
            folder,
            names,
            vault,
            persons=persons,
            dataset=dataset,
            progress=lambda done, total: progress("recognising images", done, total),
        )
        record_of = {photo.name: photo.record for photo in scanned.photos}
        refused = list(scanned.refused)
    else:
        for name in names:
            try:
                content = read_bytes(folder / name, largest=LIMITS.image_bytes)
                record_of[name] = content_digest(content, name=name).hex()
            except (OSError, BlindsightError) as error:
                refused.append((name, str(error)))
    used = [name for name in names if name in record_of]
    if not used:
        raise InvalidData(f"no image of {folder} can be read.")
    made = []
    for start in range(0, len(used), _BATCH):
        batch = np.stack([encoder.read(folder / name) for name in used[start : start + _BATCH]])
        made.append(encoder.images(batch))
        progress("encoding images", min(start + _BATCH, len(used)), len(used))
    labels = np.array([label_of[name] for name in used])
    return LabelledImages(
        np.concatenate(made),
        labels,
        tuple(record_of[name] for name in used),
        None if persons is None else tuple(persons[name] for name in used),
        tuple(refused),
        int((labels == "").sum()),
    )


def _features(
    encoder: Encoder,
    pictures: Sequence[NDArray[np.uint8]],
    stage: str,
    progress: Progress,
    shrunk_to: int | None = None,
) -> Floats:
    from blindsight.data import to_rgb
    from blindsight.encoders.preparation import resized

    made = []
    for start in range(0, len(pictures), _BATCH):
        batch = pictures[start : start + _BATCH]
        if shrunk_to is not None:
            batch = [resized(to_rgb(picture), shrunk_to, shrunk_to) for picture in batch]
        made.append(encoder.images(np.stack([encoder.prepare(picture) for picture in batch])))
        progress(stage, min(start + _BATCH, len(pictures)), len(pictures))
    return np.concatenate(made)
