"""Reads the word list that ships with the GloVe package: one column of text in a Parquet file.

A whole Parquet library is 40 MB to read one column of words. This reader knows exactly the form
that file has (one text column, Snappy, version 1 pages, plain or dictionary encoded, no missing
values) and refuses everything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blindsight.core.errors import HostileFile

__all__ = ["read_words", "snappy"]

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8


def read_words(path: Path) -> list[str]:
    """All values of the first column, in order."""
    raw = path.read_bytes()
    if raw[:4] != b"PAR1" or raw[-4:] != b"PAR1" or len(raw) < 12:
        raise HostileFile(f"{path.name} is not a Parquet file.")
    try:
        return _read(raw)
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise HostileFile(
            f"{path.name} is not the Parquet file that was expected: {error}."
        ) from error


def _read(raw: bytes) -> list[str]:
    size = int.from_bytes(raw[-8:-4], "little")
    footer, _ = _struct(raw, len(raw) - 8 - size)
    rows, column = footer[3], footer[4][0][1][0][3]
    if column[4] != 1 or column[1] != 6:
        raise ValueError("one text column, compressed by Snappy")
    at = column.get(11, column[9])
    dictionary: list[bytes] = []
    words: list[bytes] = []
    while len(words) < rows:
        header, start = _struct(raw, at)
        at = start + header[3]
        page = snappy(raw[start:at])
        if header[1] == _DICTIONARY_PAGE:
            dictionary = _plain(page, 0, header[7][1])
        elif header[1] == _DATA_PAGE:
            words += _data(page, header[5][1], header[5][2], dictionary)
        else:
            raise ValueError("version 1 pages")
    return [word.decode("utf-8") for word in words]


def _data(page: bytes, count: int, encoding: int, dictionary: list[bytes]) -> list[bytes]:
    # An optional column starts with its definition levels: a length, then runs. Nothing is missing
    # here.
    levels = int.from_bytes(page[:4], "little")
    if not _all_ones(page[4 : 4 + levels], count):
        raise ValueError("no missing values")
    body = 4 + levels
    if encoding == _PLAIN:
        return _plain(page, body, count)
    if encoding not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        raise ValueError("plain or dictionary encoding")
    return [dictionary[i] for i in _runs(page[body + 1 :], page[body], count)]


def _plain(page: bytes, at: int, count: int) -> list[bytes]:
    values = []
    for _ in range(count):
        size = int.from_bytes(page[at : at + 4], "little")
        values.append(page[at + 4 : at + 4 + size])
        at += 4 + size
    if at > len(page):
        raise ValueError("a whole page")
    return values


def _all_ones(levels: bytes, count: int) -> bool:
    return bool(np.all(np.asarray(_runs(levels, 1, count)) == 1))


def _runs(raw: bytes, width: int, count: int) -> list[int]:
    """Parquet's mix of run-length and bit-packed integers."""
    at = 0
    values: list[int] = []
    while len(values) < count:
        head, at = _varint(raw, at)
        if head & 1:
            size = (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(raw[at : at + size], np.uint8), bitorder="little")
            weights = 1 << np.arange(width, dtype=np.int64)
            values += (bits.reshape(-1, width) @ weights).tolist()
            at += size
        else:
            size = (width + 7) // 8
            values += [int.from_bytes(raw[at : at + size], "little")] * (head >> 1)
            at += size
    return values[:count]


def snappy(raw: bytes) -> bytes:
    """Undo Snappy's block compression: literals, and copies from what was already written."""
    size, at = _varint(raw, 0)
    if size > 64 * len(raw) + 64:
        raise ValueError("a plausible size")
    out = bytearray()
    end = len(raw)
    while at < end:
        tag = raw[at]
        kind = tag & 3
        at += 1
        if kind == 0:
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(raw[at : at + extra], "little") + 1
                at += extra
            out += raw[at : at + length]
            at += length
            continue
        if kind == 1:
            length, back = ((tag >> 2) & 7) + 4, ((tag >> 5) << 8) | raw[at]
            at += 1
        else:
            wide = 2 if kind == 2 else 4
            length, back = (tag >> 2) + 1, int.from_bytes(raw[at : at + wide], "little")
            at += wide
        start = len(out) - back
        if back == 0 or start < 0:
            raise ValueError("a copy from inside the text")
        if back >= length:
            out += out[start : start + length]
        else:
            out += (out[start:] * (length // back + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError("as many bytes as announced")
    return bytes(out)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of at most 64 bits")


def _struct(raw: bytes, at: int) -> tuple[dict[int, Any], int]:
    """A Thrift struct in compact form, as field number to value."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = raw[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            value, at = _varint(raw, at)
            number = (value >> 1) ^ -(value & 1)
        fields[number], at = _value(raw, at, head & 15)


def _value(raw: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return raw[at], at + 1
    if kind in (4, 5, 6):
        value, at = _varint(raw, at)
        return (value >> 1) ^ -(value & 1), at
    if kind == 8:
        size, at = _varint(raw, at)
        return raw[at : at + size], at + size
    if kind == 9:
        head = raw[at]
        at += 1
        size = head >> 4
        if size == 15:
            size, at = _varint(raw, at)
        items = []
        for _ in range(size):
            item, at = _value(raw, at, head & 15)
            items.append(item)
        return items, at
    if kind == 12:
        return _struct(raw, at)
    raise ValueError("a Thrift type that is known")
