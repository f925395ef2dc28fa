"""PASCAL VOC: one XML file an image, read without ever expanding an entity."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from xml.parsers import expat

import numpy as np

from blindsight.core.errors import HostileFile, InvalidParameter, MissingData
from blindsight.data.formats.folders import relative_file
from blindsight.data.limits import LIMITS, Limits, read_bytes
from blindsight.data.sets import MultiLabelSet
from blindsight.data.sources import Files

__all__ = ["VOC_CLASSES", "load_voc", "read_voc_objects"]

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",  # noqa: E501
)  # fmt: skip

_XML_BYTES = 1 << 20
_OBJECTS = 10_000


def read_voc_objects(path: str | os.PathLike[str]) -> list[tuple[str, bool]]:
    """The objects of one annotation: `(class, difficult)`.

    Document types and entities are refused.
    """
    name = Path(path).name
    objects: list[tuple[str, bool]] = []
    here: list[str] = []
    found: dict[str, str] = {}

    def start(tag: str, _: dict[str, str]) -> None:
        here.append(tag)
        if here == ["annotation", "object"]:
            found.clear()
        if len(here) > 32:
            raise HostileFile(f"{name} nests deeper than any annotation.")

    def text(data: str) -> None:
        # Only an object's own fields; a part (head, hand) has names too.
        if len(here) == 3 and here[1] == "object" and here[2] in ("name", "difficult"):
            found[here[2]] = found.get(here[2], "") + data

    def end(_: str) -> None:
        if here == ["annotation", "object"]:
            if not found.get("name", "").strip() or len(objects) >= _OBJECTS:
                raise HostileFile(
                    f"{name} has an object without a name, or more than {_OBJECTS:,} objects."
                )
            objects.append((found["name"].strip(), found.get("difficult", "0").strip() == "1"))
        here.pop()

    def refuse(*_: object) -> int:
        raise HostileFile(f"{name} declares a document type or entity, which annotations never do.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = (
        start,
        end,
        text,
    )
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    try:
        parser.Parse(read_bytes(path, largest=_XML_BYTES), True)
    except (expat.ExpatError, ValueError) as error:
        if isinstance(error, HostileFile):
            raise
        raise HostileFile(f"{name} is not well-formed XML: {error}.") from error
    return objects


def load_voc(
    root: str | os.PathLike[str],
    *,
    split: str | None = None,
    classes: Sequence[str] = VOC_CLASSES,
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """PASCAL VOC (2007 and later) as a multi-label set.

    Args:
        root: The folder VOC2007, with Annotations/, ImageSets/Main/ and JPEGImages/. split: "train"
        (the official trainval), "test", "val", a file of ImageSets/Main, or None for all. classes:
        The labels, in order. limits: Bounds on files and images.

    Returns:
        Labels are 1 where an object is present that is not difficult; where a class has only
        difficult objects the label is 0 and `known` is False.
    """
    root = Path(root)
    if not (root / "Annotations").is_dir():
        raise MissingData(f"{root} must hold Annotations/. Unpack VOC2007 there.")
    ids = _ids(root, split, limits)
    number = {name: i for i, name in enumerate(classes)}
    labels = np.zeros((len(ids), len(classes)), dtype=np.uint8)
    known = np.ones((len(ids), len(classes)), dtype=bool)
    for row, image in enumerate(ids):
        objects = read_voc_objects(relative_file(root / "Annotations", f"{image}.xml"))
        unknown = {name for name, _ in objects} - number.keys()
        if unknown:
            raise HostileFile(f"{image}.xml names an object outside the {len(classes)} classes.")
        labels[row, [number[name] for name, difficult in objects if not difficult]] = 1
        unsure = [number[name] for name, difficult in objects if difficult]
        known[row, unsure] = labels[row, unsure] == 1
    photos = [relative_file(root / "JPEGImages", f"{image}.jpg") for image in ids]
    has_photos = (root / "JPEGImages").is_dir()
    return MultiLabelSet(
        labels,
        Files(photos, limits=limits) if has_photos else None,
        None,
        tuple(classes),
        np.array(ids),
        known,
        root.name,
    )


def _ids(root: Path, split: str | None, limits: Limits) -> list[str]:
    if split is None:
        ids = sorted(path.stem for path in (root / "Annotations").glob("*.xml"))
    else:
        if not split.replace("_", "").isalnum():
            raise InvalidParameter(
                f"split must be the name of a file in ImageSets/Main, got {split!r}."
            )
        listing = root / "ImageSets" / "Main" / f"{'trainval' if split == 'train' else split}.txt"
        text = read_bytes(listing, largest=limits.file_bytes).decode("utf-8", "replace")
        ids = [line.split()[0] for line in text.splitlines() if line.strip()]
    if not 0 < len(ids) <= limits.rows:
        raise HostileFile(
            f"{root.name} lists {len(ids):,} images; between 1 and {limits.rows:,} are accepted."
        )
    return ids
