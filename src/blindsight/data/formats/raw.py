"""Camera raw files: the largest JPEG preview that the camera wrote into the file.

Most raw formats (CR2, DNG, NEF, ARW, ORF, RW2, PEF) are TIFF containers. The raw sensor values are
not developed; the preview is the picture that the camera itself showed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["raw_preview"]

# TIFF itself, and the variants of Olympus and Panasonic.
_MAGIC = frozenset({42, 0x4F52, 0x5352, 0x55})
_SUB_IFDS, _EXIF = 0x014A, 0x8769
_JPEG_START, _JPEG_LENGTH = 0x0201, 0x0202
_STRIP_STARTS, _STRIP_LENGTHS = 0x0111, 0x0117
_PANASONIC_PREVIEW, _ORIENTATION = 0x002E, 0x0112
_MOST_DIRECTORIES, _MOST_ENTRIES = 64, 4096
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 7: 1, 13: 4}
# Baseline, extended and progressive frames; what a lossless frame (SOF3) holds is sensor values.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})


def raw_preview(data: bytes) -> tuple[bytes, int]:
    """Find the largest JPEG preview in a raw file.

    Parameters:
        data: the raw file. It may be hostile: every offset is checked.

    Returns:
        The JPEG file. The EXIF orientation of the whole file, 1 where it has none or the preview
        has its own.

    Raises:
        ValueError: The file is not a TIFF container, or holds no preview.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or struct.unpack_from(order + "H", data, 2)[0] not in _MAGIC:
        raise ValueError("not a raw file that holds a preview")
    best, turn = b"", 1
    for tags in _directories(data, order):
        if turn == 1 and _ORIENTATION in tags:
            turn = tags[_ORIENTATION][0]
        for start, length in _places(tags):
            preview = data[start : start + length]
            if len(preview) > len(best) and _is_picture(preview):
                best = preview
    if not best:
        raise ValueError("no preview")
    return best, turn if 1 <= turn <= 8 and b"Exif\x00\x00" not in best[:4096] else 1


def _directories(data: bytes, order: str) -> Iterator[dict[int, tuple[int, ...]]]:
    """Every image file directory, each once: a hostile file may link them in a circle."""
    waiting = [struct.unpack_from(order + "I", data, 4)[0]]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_DIRECTORIES:
        offset = waiting.pop()
        if offset in seen or not 8 <= offset <= len(data) - 2:
            continue
        seen.add(offset)
        count = struct.unpack_from(order + "H", data, offset)[0]
        end = offset + 2 + 12 * count
        if count > _MOST_ENTRIES or end > len(data):
            continue
        tags = {}
        for place in range(offset + 2, end, 12):
            tag, values = _entry(data, order, place)
            tags[tag] = values
        for link in (_SUB_IFDS, _EXIF):
            waiting.extend(tags.get(link, ())[:_MOST_DIRECTORIES])
        if end + 4 <= len(data):
            waiting.append(struct.unpack_from(order + "I", data, end)[0])
        yield tags


def _entry(data: bytes, order: str, place: int) -> tuple[int, tuple[int, ...]]:
    """A tag and its values, as far as they are whole numbers in the file."""
    tag, kind, count = struct.unpack_from(order + "HHI", data, place)
    size = _SIZES.get(kind, 0)
    if not size or not count > 0:
        return tag, ()
    if tag == _PANASONIC_PREVIEW and kind == 7 and count > 4:
        return tag, (struct.unpack_from(order + "I", data, place + 8)[0], count)
    if count > _MOST_ENTRIES:
        return tag, ()
    start = place + 8
    if size * count > 4:
        start = struct.unpack_from(order + "I", data, place + 8)[0]
    if start + size * count > len(data):
        return tag, ()
    letter = {1: "B", 2: "H", 4: "I"}[size]
    return tag, struct.unpack_from(f"{order}{count}{letter}", data, start)


def _places(tags: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Where a directory says that a JPEG may be: start and length."""
    for start, length in ((_JPEG_START, _JPEG_LENGTH), (_STRIP_STARTS, _STRIP_LENGTHS)):
        if len(tags.get(start, ())) == len(tags.get(length, ())) == 1:
            yield tags[start][0], tags[length][0]
    if len(tags.get(_PANASONIC_PREVIEW, ())) == 2:
        yield tags[_PANASONIC_PREVIEW][0], tags[_PANASONIC_PREVIEW][1]


def _is_picture(data: bytes) -> bool:
    """Whether the bytes are a JPEG file with a frame that shows a picture."""
    at = 2
    if data[:3] != b"\xff\xd8\xff":
        return False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            return True
        if marker in (0xC3, 0xDA):
            return False
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False
