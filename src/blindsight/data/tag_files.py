"""Tags as files that other programs read: tables, XMP sidecars, and tasks of Label Studio.

| format | what is written | read by |
|---|---|---|
| `csv` | `image,labels`, labels separated by semicolons | spreadsheets, `tag train --labels` |
| `json` | a list of objects with image, labels and probabilities | programs |
| `parquet` | columns image, labels, probabilities (extra `tables`) | pandas, DuckDB, Spark |
| `xmp` | one sidecar beside each name, in a folder | digiKam, darktable, Lightroom (raw files) |
| `label-studio` | tasks with the tags as predictions | Label Studio, for corrections |

Whatever is written here is read back by `blindsight.data.label_tables`. File names that are not
UTF-8 are written with escapes.

Photo managers keep keywords inside the photos or in sidecars: in `dc:subject`, hierarchies
(`animal|dog`) in `lr:hierarchicalSubject`, older programs in the IPTC field 2:25. A sidecar is a
file `photo.jpg.xmp` or `photo.xmp` beside the photo, as Lightroom, darktable and digiKam read and
write them. `photo_keywords` reads all of these.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from blindsight.core import checks, durable
from blindsight.core.checks import optional_module
from blindsight.core.errors import BlindsightError, InvalidData, InvalidParameter
from blindsight.data.limits import LIMITS, read_bytes
from blindsight.data.listing import relative_file, shown_name
from blindsight.data.reading import RAW_SUFFIXES

__all__ = [
    "FORMATS",
    "TaggedImage",
    "embedded_keywords",
    "format_of",
    "photo_keywords",
    "sidecar_text",
    "write_tags",
]

FORMATS = ("csv", "json", "parquet", "xmp", "label-studio")
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}


@dataclass(frozen=True)
class TaggedImage:
    """The tags of one image.

    Attributes:
        image: its name relative to the folder of photos, or an id.
        labels: the tags; `animal|dog` is a tag with a level above it.
        probabilities: the probability of each tag, in the same order; empty where unknown.
    """

    image: str
    labels: tuple[str, ...]
    probabilities: tuple[float, ...] = ()


def format_of(out: str | os.PathLike[str], requested: str | None) -> str:
    """Return the requested format, or the one that the file's ending names.

    Raises:
        InvalidParameter: The format is unknown, or is neither given nor named by an ending.
    """
    if requested is not None:
        checks.one_of("format", requested, FORMATS)
        return requested
    suffix = Path(out).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidParameter(
            f"{os.fspath(out)} ends in none of {', '.join(_SUFFIXES)}: name the format, one of "
            f"{', '.join(FORMATS)}."
        )
    return _SUFFIXES[suffix]


def write_tags(
    images: Sequence[TaggedImage], out: str | os.PathLike[str], *, format: str | None = None
) -> list[Path]:
    """Write the tags of images for other programs.

    Parameters:
        images: the images with their tags.
        out: the file to write, or for `xmp` the folder for the sidecars.
        format: one of `FORMATS`; by default the one that the ending of `out` names.

    Returns:
        the files that were written.

    Raises:
        InvalidData: A sidecar exists already; it may hold somebody's edits.
        InvalidParameter: The format is unknown, or is neither given nor named by an ending.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> [file] = write_tags([TaggedImage("a.jpg", ("dog", "sea"))], folder / "tags.csv")
        >>> print(file.read_text().strip())
        image,labels
        a.jpg,dog;sea
    """
    chosen = format_of(out, format)
    target = Path(out)
    if chosen == "xmp":
        return _write_sidecars(images, target)
    writers = {
        "csv": _csv,
        "json": _json,
        "parquet": _parquet,
        "label-studio": _label_studio,
    }
    durable.write_file(target, writers[chosen](images))
    return [target]


def _csv(images: Iterable[TaggedImage]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "labels"))
    writer.writerows((shown_name(item.image), ";".join(item.labels)) for item in images)
    return text.getvalue().encode()


def _json(images: Iterable[TaggedImage]) -> bytes:
    rows = [
        {
            "image": shown_name(item.image),
            "labels": list(item.labels),
            "probabilities": list(item.probabilities),
        }
        for item in images
    ]
    return json.dumps(rows, ensure_ascii=False, indent=1).encode() + b"\n"


def _parquet(images: Sequence[TaggedImage]) -> bytes:
    arrow: Any = optional_module("pyarrow", extra="tables")
    parquet: Any = optional_module("pyarrow.parquet", extra="tables")
    table = arrow.table(
        {
            "image": arrow.array([shown_name(item.image) for item in images], arrow.string()),
            "labels": arrow.array(
                [list(item.labels) for item in images], arrow.list_(arrow.string())
            ),
            "probabilities": arrow.array(
                [list(item.probabilities) for item in images], arrow.list_(arrow.float64())
            ),
        }
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()


def _label_studio(images: Iterable[TaggedImage]) -> bytes:
    """Tasks for local storage: a `Choices` field called labels over an `Image` called image."""
    tasks = [
        {
            "data": {"image": f"/data/local-files/?d={quote(shown_name(item.image))}"},
            "predictions": [
                {
                    "model_version": "blindsight",
                    "score": min(item.probabilities, default=1.0),
                    "result": [
                        {
                            "from_name": "labels",
                            "to_name": "image",
                            "type": "choices",
                            "value": {"choices": list(item.labels)},
                        }
                    ],
                }
            ],
        }
        for item in images
    ]
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode() + b"\n"


def _write_sidecars(images: Iterable[TaggedImage], folder: Path) -> list[Path]:
    """A file NAME.jpg.xmp for each image, and NAME.xmp as well for a camera's raw file.

    digiKam and darktable read the first; Lightroom reads sidecars of raw files only, by the second.
    """
    texts: dict[Path, bytes] = {}
    for item in images:
        # Photos that were named one by one come with their whole paths.
        outside = os.path.isabs(item.image) or ".." in Path(item.image).parts
        path = relative_file(folder, Path(item.image).name if outside else item.image)
        text = sidecar_text(item.labels).encode()
        texts[path.with_name(path.name + ".xmp")] = text
        if path.suffix.lower() in RAW_SUFFIXES:
            texts[path.with_suffix(".xmp")] = text
    existing = [path for path, text in texts.items() if path.exists() and path.read_bytes() != text]
    if existing:
        raise InvalidData(
            f"{len(existing)} sidecars exist already, {shown_name(str(existing[0]))} for example, "
            "and may hold edits. Nothing was written: choose another folder."
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_file(path, text)
    return list(texts)


_MOST_XMP = 1 << 20
_MOST_KEYWORDS = 2000
_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_SUBJECTS = (
    "{http://purl.org/dc/elements/1.1/}subject",
    "{http://ns.adobe.com/lightroom/1.0/}hierarchicalSubject",
    "{http://www.digikam.org/ns/1.0/}TagsList",
)
_XMP_START, _XMP_END = b"<x:xmpmeta", b"</x:xmpmeta>"
_PHOTOSHOP = b"Photoshop 3.0\x00"
_IPTC_RESOURCE, _KEYWORD = 0x0404, (2, 25)


def photo_keywords(path: Path) -> set[str]:
    """The keywords of one photo: inside the file, and in sidecars beside it.

    A file that cannot be read, or that holds no valid fields, has no keywords.

    Parameters:
        path: the photo.

    Returns:
        Each level of a hierarchy is a keyword of its own.
    """
    keywords: set[str] = set()
    with contextlib.suppress(BlindsightError):
        keywords |= embedded_keywords(read_bytes(path, largest=LIMITS.image_bytes))
    for sidecar in (path.with_name(path.name + ".xmp"), path.with_suffix(".xmp")):
        if sidecar.is_file():
            try:
                keywords |= _levels(_xmp(read_bytes(sidecar, largest=_MOST_XMP)))
            except BlindsightError:
                continue
    return keywords


def embedded_keywords(data: bytes) -> set[str]:
    """The keywords inside an image file's bytes."""
    words = list(_iptc(data))
    start = data.find(_XMP_START)
    if start >= 0:
        end = data.find(_XMP_END, start, start + _MOST_XMP)
        if end >= 0:
            words += _xmp(data[start : end + len(_XMP_END)])
    return _levels(words)


def sidecar_text(keywords: Iterable[str]) -> str:
    """The text of an XMP sidecar that holds these keywords.

    `animal|dog` is a keyword with a level above it: both levels are written as `dc:subject`, and
    the whole as `lr:hierarchicalSubject`.

    Examples:
        >>> text = sidecar_text(["animal|dog", "beach & sea"])
        >>> sorted(_levels(_xmp(text.encode())))
        ['animal', 'beach & sea', 'dog']
    """
    paths = sorted(set(keywords))
    plain = _bag(sorted(_levels(paths)))
    hierarchies = _bag(paths)
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
        ' <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n'
        '  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"\n'
        '    xmlns:lr="http://ns.adobe.com/lightroom/1.0/">\n'
        f"   <dc:subject>{plain}</dc:subject>\n"
        f"   <lr:hierarchicalSubject>{hierarchies}</lr:hierarchicalSubject>\n"
        "  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n"
        '<?xpacket end="w"?>\n'
    )


def _bag(words: Iterable[str]) -> str:
    items = "".join(f"\n     <rdf:li>{escape(word)}</rdf:li>" for word in words)
    return f"\n    <rdf:Bag>{items}\n    </rdf:Bag>\n   "


def _xmp(packet: bytes) -> list[str]:
    """The keywords of an XMP packet; a document type is refused, because it can define entities."""
    start = packet.find(_XMP_START)
    if start < 0 or b"<!" in packet:
        return []
    try:
        root = ElementTree.fromstring(packet[start : packet.rfind(b">") + 1].split(b"<?xpacket")[0])  # noqa: S314
    except (ElementTree.ParseError, ValueError):
        return []
    words = []
    for name in _SUBJECTS:
        for subject in root.iter(name):
            items = subject.iter(f"{_RDF}li")
            separator = "/" if name.endswith("TagsList") else "|"
            words += [(item.text or "").replace(separator, "|") for item in items]
    return words[:_MOST_KEYWORDS]


def _iptc(data: bytes) -> Iterator[str]:
    """The IPTC keywords of a JPEG file's Photoshop segments."""
    at = 2
    if data[:2] != b"\xff\xd8":
        return
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        if size < 2:
            return
        segment = data[at + 4 : at + 2 + size]
        if data[at + 1] == 0xED and segment.startswith(_PHOTOSHOP):
            for block in _resources(segment[len(_PHOTOSHOP) :]):
                yield from _records(block)
        at += 2 + size


def _resources(segment: bytes) -> Iterator[bytes]:
    at = 0
    while segment[at : at + 4] == b"8BIM" and at + 12 <= len(segment):
        number = int.from_bytes(segment[at + 4 : at + 6], "big")
        name = 1 + segment[at + 6]
        at += 6 + name + name % 2
        size = int.from_bytes(segment[at : at + 4], "big")
        if number == _IPTC_RESOURCE:
            yield segment[at + 4 : at + 4 + size]
        at += 4 + size + size % 2


def _records(block: bytes) -> Iterator[str]:
    at = 0
    while at + 5 <= len(block) and block[at] == 0x1C:
        kind = (block[at + 1], block[at + 2])
        size = int.from_bytes(block[at + 3 : at + 5], "big")
        if kind == _KEYWORD:
            yield block[at + 5 : at + 5 + size].decode("utf-8", errors="replace")
        at += 5 + size


def _levels(words: Iterable[str]) -> set[str]:
    parts = (part for word in words for part in word.split("|"))
    return {" ".join(unicodedata.normalize("NFC", part).split()) for part in parts} - {""}
