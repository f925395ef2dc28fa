"""COCO annotations: labels and images from a JSON file of any size.

The file is read one element of a top-level list at a time, so that half a gigabyte of JSON needs a
few megabytes of memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile
from blindsight.data.formats.folders import relative_file
from blindsight.data.limits import LIMITS, Limits, regular_file
from blindsight.data.sets import MultiLabelSet
from blindsight.data.sources import Files

__all__ = ["load_coco", "stream_lists"]


def load_coco(
    annotations: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    order: str = "name",
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """A multi-label set from instances_*.json, streamed: outlines and boxes are never held in
    memory.

    Args:
        annotations: The JSON file. images: The folder of the images, or None for labels only.
        order: "name" sorts the categories by name (as the label graphs do); "id" keeps COCO's
        order. limits: Bounds on bytes, images and categories.
    """
    one_of("order", order, {"name", "id"})
    files: dict[int, str] = {}
    categories: dict[int, str] = {}
    seen: set[tuple[int, int]] = set()
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
                seen.add((_whole(item["image_id"]), _whole(item["category_id"])))
        except (KeyError, TypeError):
            raise HostileFile(f"{name} has an entry in {key} without its id or name.") from None
        if len(files) > limits.rows or len(categories) > limits.columns or len(seen) > limits.cells:
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
    for image, category in seen:
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
    """A window on the text: decodes one value at a time and forgets what was read."""

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
        # A list that is not wanted may be as large as one that is: go through it the same way.
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
