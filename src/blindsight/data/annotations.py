"""Annotations of images with several labels: COCO, PASCAL VOC, and lists of text.

COCO's JSON is read one element of a top-level list at a time, so that half a gigabyte needs a few
megabytes of memory. VOC's XML, one file per image, is read without ever expanding an entity.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile, InvalidParameter, MissingData
from blindsight.data.limits import LIMITS, Limits, read_bytes, regular_file
from blindsight.data.listing import relative_file
from blindsight.data.sets import MultiLabelSet
from blindsight.data.sources import Files

__all__ = [
    "VOC_CLASSES",
    "load_celeba",
    "load_coco",
    "load_label_list",
    "load_nuswide",
    "load_voc",
    "read_voc_objects",
    "stream_lists",
]


def load_coco(
    annotations: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    order: str = "name",
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """A multi-label set from instances_*.json, streamed: outlines and boxes are never held in
    memory.

    Parameters:
        annotations: The JSON file.
        images: The folder of the images, or None for labels only.
        order: "name" sorts the categories by name (as the label graphs do); "id" keeps COCO's
            order.
        limits: Bounds on bytes, images and categories.
    """
    one_of("order", order, {"name", "id"})
    files: dict[int, str] = {}
    categories: dict[int, str] = {}
    annotated: set[tuple[int, int]] = set()
    name = Path(annotations).name
    for key, item in stream_lists(
        annotations, {"images", "annotations", "categories"}, limits=limits
    ):
        try:
            if key == "images":
                files[_whole(item["id"])] = str(item["file_name"])
            elif key == "categories":
                categories[_whole(item["id"])] = str(item["name"])
            else:
                annotated.add((_whole(item["image_id"]), _whole(item["category_id"])))
        except (KeyError, TypeError):
            raise HostileFile(f"{name} has an entry in {key} without its id or name.") from None
        if (
            len(files) > limits.rows
            or len(categories) > limits.columns
            or len(annotated) > limits.cells
        ):
            raise HostileFile(f"{name} has more images or categories than the limits allow.")
    if not files or not categories:
        raise HostileFile(
            f"{name} must have images and categories; it has {len(files)} and {len(categories)}."
        )
    ids = sorted(files)
    chosen = (
        sorted(categories, key=lambda c: categories[c]) if order == "name" else sorted(categories)
    )
    row, column = {i: r for r, i in enumerate(ids)}, {c: k for k, c in enumerate(chosen)}
    if len(ids) * len(chosen) > limits.unpacked_bytes:
        raise HostileFile(
            f"{name} would need {len(ids):,} x {len(chosen):,} labels, more than the limit."
        )
    labels = np.zeros((len(ids), len(chosen)), dtype=np.uint8)
    for image, category in annotated:
        if image not in row or category not in column:
            raise HostileFile(
                f"{name} has an annotation of an image or category that it does not list."
            )
        labels[row[image], column[category]] = 1
    names = np.array([files[i] for i in ids])
    source = None
    if images is not None:
        source = Files(
            [relative_file(Path(images), file) for file in names.tolist()], limits=limits
        )
    return MultiLabelSet(
        labels, source, None, tuple(categories[c] for c in chosen), names, name=Path(name).stem
    )


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("an id must be a whole number")
    return value


_CHUNK = 1 << 18
_LARGEST_VALUE = 64 << 20


def stream_lists(
    path: str | os.PathLike[str], wanted: set[str], *, limits: Limits = LIMITS
) -> Iterator[tuple[str, Any]]:
    """Yield `(key, element)` for each element of the top-level lists called `wanted`; the rest is
    passed over.
    """
    path = regular_file(path, largest=limits.file_bytes)
    try:
        with path.open(encoding="utf-8") as stream:
            yield from _Reader(stream, path.name).lists(wanted)
    except HostileFile:
        raise
    except (ValueError, RecursionError) as error:
        raise HostileFile(
            f"{path.name} is not JSON that can be read ({type(error).__name__})."
        ) from error


class _Reader:
    """Decodes one JSON value at a time and discards the text that was read."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._text, self._at, self._ended = "", 0, False
        self._decoder = json.JSONDecoder()

    def lists(self, wanted: set[str]) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._peek() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise HostileFile(f"{self._name} has a key that is not text.")
            self._expect(":")
            if key in wanted and self._peek() == "[":
                for element in self._elements():
                    yield key, element
            else:
                self._skip()
            if self._take() == "}":
                return

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            mark = self._take()
            if mark == "]":
                return
            if mark != ",":
                raise HostileFile(f"{self._name} has a list that is not well-formed.")

    def _skip(self) -> None:
        # A list that is not wanted may be as large as one that is: read it element by element, too.
        if self._peek() == "[":
            for _ in self._elements():
                pass
        else:
            self._value()

    def _value(self) -> Any:
        self._peek()
        size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                # A number at the very end of the window may go on beyond it.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except json.JSONDecodeError:
                if self._ended:
                    raise
            if len(self._text) - self._at > _LARGEST_VALUE:
                raise HostileFile(
                    f"{self._name} has one value of more than {_LARGEST_VALUE:,} characters."
                )
            self._more(size)
            size *= 2  # so that a long value is not decoded again and again for every chunk

    def _peek(self) -> str:
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                raise HostileFile(f"{self._name} ends too early.")
            self._more(_CHUNK)

    def _take(self) -> str:
        mark = self._peek()
        self._at += 1
        return mark

    def _expect(self, mark: str) -> None:
        if self._take() != mark:
            raise HostileFile(f"{self._name} must be a JSON object; expected {mark!r}.")

    def _more(self, size: int) -> None:
        piece = self._stream.read(size)
        self._ended = not piece
        self._text, self._at = self._text[self._at :] + piece, 0


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
    tags: list[str] = []
    texts: dict[str, str] = {}

    def start(tag: str, _: dict[str, str]) -> None:
        tags.append(tag)
        if tags == ["annotation", "object"]:
            texts.clear()
        if len(tags) > 32:
            raise HostileFile(f"{name} nests deeper than any annotation.")

    def text(data: str) -> None:
        # Only an object's own fields; a part (head, hand) has names too.
        if len(tags) == 3 and tags[1] == "object" and tags[2] in ("name", "difficult"):
            texts[tags[2]] = texts.get(tags[2], "") + data

    def end(_: str) -> None:
        if tags == ["annotation", "object"]:
            if not texts.get("name", "").strip() or len(objects) >= _OBJECTS:
                raise HostileFile(
                    f"{name} has an object without a name, or more than {_OBJECTS:,} objects."
                )
            objects.append((texts["name"].strip(), texts.get("difficult", "0").strip() == "1"))
        tags.pop()

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

    Parameters:
        root: The folder VOC2007, with Annotations/, ImageSets/Main/ and JPEGImages/.
        split: "train" (the official trainval), "test", "val", a file of ImageSets/Main, or None
            for all.
        classes: The labels, in order.
        limits: Bounds on files and images.

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


_LONGEST_LINE = 1 << 16


def load_celeba(
    attributes: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    partition: str | os.PathLike[str] | None = None,
    split: str | None = None,
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """CelebA's attribute list: how many images, the attributes' names, then a line of 1 and -1 for
    each image.

    Parameters:
        attributes: list_attr_celeba.txt.
        images: The folder of the images, or None for labels only.
        partition: list_eval_partition.txt, needed for a split.
        split: "train", "val", "test" or None.
        limits: Bounds on bytes, images and attributes.
    """
    path = regular_file(attributes, largest=limits.file_bytes)
    lines = _lines(path)
    try:
        count = int(next(lines, "").strip())
    except ValueError:
        raise HostileFile(f"{path.name} must start with the number of images.") from None
    classes = tuple(next(lines, "").split())
    # Each line holds a name and at least two characters per attribute: a false count is noticed
    # before memory is allocated.
    if not 0 < count <= limits.rows or count * 2 * max(len(classes), 1) > path.stat().st_size:
        raise HostileFile(f"{path.name} claims {count:,} images, more than its size allows.")
    if not 0 < len(classes) <= limits.columns:
        raise HostileFile(f"{path.name} must name its attributes in the second line.")
    names, labels = _table(lines, path.name, len(classes), count, {"1": 1, "-1": 0})
    if len(names) != count:
        raise HostileFile(f"{path.name} claims {count:,} images and lists {len(names):,}.")
    whole_set = MultiLabelSet(
        labels, _files(images, names, limits), None, classes, np.array(names), name="celeba"
    )
    if split is None:
        return whole_set
    wanted = {"train": "0", "val": "1", "test": "2"}[
        one_of("split", split, {"train", "val", "test"})
    ]
    if partition is None:
        raise MissingData("a split of CelebA needs list_eval_partition.txt: pass partition=.")
    part = dict(line.split() for line in _lines(Path(partition)) if len(line.split()) == 2)
    return whole_set.take(np.array([part.get(name) == wanted for name in names]))


def load_label_list(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    classes: tuple[str, ...] = (),
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """One line per image: its file, then 0 or 1 for every label (NUS-WIDE, MIRFlickr, COCO in
    hashing papers).
    """
    path = regular_file(path, largest=limits.file_bytes)
    first = next(_lines(path), "").split()
    width = len(first) - 1
    if not 0 < width <= limits.columns:
        raise HostileFile(f"{path.name} must hold a file name and at least one label in each line.")
    names, labels = _table(_lines(path), path.name, width, limits.rows, {"1": 1, "0": 0})
    return MultiLabelSet(
        labels, _files(images, names, limits), None, classes, np.array(names), name=path.stem
    )


def load_nuswide(
    root: str | os.PathLike[str],
    *,
    split: str | None = None,
    images: str | os.PathLike[str] | None = None,
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """NUS-WIDE as it is published: Concepts81.txt, a list of images, and one file of 0 and 1 for
    each concept.

    Parameters:
        root: The folder with ConceptsList/Concepts81.txt, ImageList/ and Groundtruth/ (the files of
            each may also be in root itself).
        split: "train", "test" or None for all 269,648 images.
        images: The folder of the images, or None for labels only.
        limits: Bounds on bytes, images and concepts.
    """
    root = Path(root)
    concepts = tuple(_column(_find(root, "Concepts81.txt"), limits))
    if len(concepts) > limits.columns:
        raise HostileFile(f"Concepts81.txt has more than {limits.columns} concepts.")
    if split is None:
        listing, pattern = "Imagelist.txt", "Labels_{}.txt"
    else:
        part = {"train": "Train", "test": "Test"}[one_of("split", split, {"train", "test"})]
        listing, pattern = f"{part}Imagelist.txt", f"Labels_{{}}_{part}.txt"
    names = [line.replace("\\", "/") for line in _column(_find(root, listing), limits)]
    labels = np.zeros((len(names), len(concepts)), dtype=np.uint8)
    for column, concept in enumerate(concepts):
        path = _find(root, pattern.format(relative_file(root, concept).name))
        values = _column(path, limits)
        if len(values) != len(names) or not set(values) <= {"0", "1"}:
            raise HostileFile(f"{path.name} must hold 0 or 1 for each of {len(names):,} images.")
        labels[:, column] = np.array(values) == "1"
    return MultiLabelSet(
        labels, _files(images, names, limits), None, concepts, np.array(names), name="nus-wide"
    )


def _table(
    lines: Iterator[str], name: str, width: int, most: int, values: dict[str, int]
) -> tuple[list[str], NDArray[np.uint8]]:
    names: list[str] = []
    rows: list[bytes] = []
    for line in lines:
        file, *cells = line.split()
        if len(names) >= most:
            raise HostileFile(f"{name} lists more than {most:,} images.")
        if len(cells) != width or not values.keys() >= set(cells):
            expected = " or ".join(values)
            raise HostileFile(
                f"{name}: image {len(names) + 1} must have {width} labels of {expected}."
            )
        names.append(file)
        rows.append(bytes(values[cell] for cell in cells))
    if not names:
        raise HostileFile(f"{name} lists no images.")
    return names, np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), width)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines that are not blank; the length of a line is bounded."""
    with path.open("rb") as stream:
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE or b"\0" in line:
                raise HostileFile(
                    f"{path.name} is not a list: it has zero bytes or an endless line."
                )
            text = line.decode("utf-8", "replace").strip()
            if text:
                yield text


def _column(path: Path, limits: Limits) -> list[str]:
    text = read_bytes(path, largest=limits.file_bytes).decode("utf-8", "replace")
    values = [line.strip() for line in io.StringIO(text) if line.strip()]
    if not 0 < len(values) <= limits.rows:
        raise HostileFile(f"{path.name} must have between 1 and {limits.rows:,} lines.")
    return values


def _find(root: Path, name: str) -> Path:
    folders = (
        "ConceptsList",
        "ImageList",
        "Groundtruth",
        "Groundtruth/AllLabels",
        "Groundtruth/TrainTestLabels",
    )
    for folder in (".", *folders):
        if (root / folder / name).is_file():
            return root / folder / name
    raise MissingData(f"{root} lacks {name}. Unpack NUS-WIDE's lists there.")


def _files(images: str | os.PathLike[str] | None, names: list[str], limits: Limits) -> Files | None:
    if images is None:
        return None
    return Files([relative_file(Path(images), name) for name in names], limits=limits)
