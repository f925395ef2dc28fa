"""An image file without what was written about it: the bytes by which a picture is known again.

Dates, places, comments and thumbnails are changed by every program that touches a photo, and the picture stays. So JPEG
files are taken without their APPn and comment segments (but Adobe's APP14, which says how colours are coded), PNG files
without all chunks that a reader may pass over (but tRNS, which is part of the picture). What is neither, or is not
built as it should be, is taken whole.
"""

from __future__ import annotations

import struct

__all__ = ["bare"]

_PNG = b"\x89PNG\r\n\x1a\n"


def bare(content: bytes) -> bytes:
    """The bytes that make the picture; the whole file where they cannot be told from the rest."""
    if content.startswith(b"\xff\xd8"):
        return _jpeg(content) or content
    if content.startswith(_PNG):
        return _png(content) or content
    return content


def _jpeg(content: bytes) -> bytes | None:
    kept, at = [content[:2]], 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xDA:  # from the first scan on, everything is the picture
            return b"".join([*kept, content[at:]])
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9:  # nothing that may stand before the first scan
            return None
        (length,) = struct.unpack_from(">H", content, at + 2)
        end = at + 2 + length
        if length < 2 or end > len(content):
            return None
        about = marker == 0xFE or (0xE0 <= marker <= 0xEF and marker != 0xEE)
        if not about:
            kept.append(content[at:end])
        at = end
    return None


def _png(content: bytes) -> bytes | None:
    kept, at = [_PNG], len(_PNG)
    while at + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        end = at + 12 + length
        if end > len(content):
            return None
        needed = not kind[0] & 0x20  # an upper-case first letter: no reader may pass over it
        if needed or kind == b"tRNS":
            kept.append(content[at:end])
        at = end
        if kind == b"IEND":
            return b"".join(kept)
    return None
