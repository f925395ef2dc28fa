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
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from blindsight.core import checks, durable
from blindsight.core.checks import optional_module
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data.formats.folders import relative_file
from blindsight.data.keywords import sidecar_text
from blindsight.data.listing import shown_name
from blindsight.data.reading import RAW_SUFFIXES

__all__ = ["FORMATS", "TaggedImage", "format_of", "write_tags"]

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


def format_of(out: str | os.PathLike[str], given: str | None) -> str:
    """The format that is asked for, or the one that the file's ending names.

    Raises:
        InvalidParameter: The format is unknown, or is neither given nor named by an ending.
    """
    if given is not None:
        checks.one_of("format", given, FORMATS)
        return given
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
