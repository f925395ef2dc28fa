"""Large JSON files, one element of a top-level list at a time, so that half a gigabyte needs a few
megabytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, TextIO

from blindsight.core.errors import HostileFile
from blindsight.data.limits import LIMITS, Limits, regular_file

__all__ = ["stream_lists"]

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
