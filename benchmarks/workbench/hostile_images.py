"""Images made to hurt: mutations of good ones, and bombs that unfold when they are opened."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

__all__ = ["BOMBS", "mutations", "seeds"]


def seeds() -> list[bytes]:
    """Good images, one or two a format."""
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 255, (40, 40), dtype=np.uint8)
    colour = rng.integers(0, 255, (48, 36, 3), dtype=np.uint8)
    found = []
    for kind, options in (
        ("PNG", {}),
        ("JPEG", {"quality": 80}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 60}),
        ("GIF", {"save_all": True, "append_images": [Image.fromarray(grey[::-1])]}),
        ("BMP", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {}),
    ):
        for pixels in (grey, colour):
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, kind, **options)
            found.append(buffer.getvalue())
    return found


def mutations(count: int, seed: int = 0) -> Iterator[bytes]:
    """Good images with bytes flipped, cut, doubled, swapped, and numbers in their headers blown
    up.
    """
    rng = np.random.default_rng(seed)
    good = seeds()
    for n in range(count):
        data = bytearray(good[n % len(good)])
        for _ in range(int(rng.integers(1, 6))):
            _hurt(data, rng)
        yield bytes(data)


def _hurt(data: bytearray, rng: np.random.Generator) -> None:
    if len(data) < 16:
        return
    at = int(rng.integers(0, len(data) - 8))
    how = int(rng.integers(0, 6))
    if how == 0:
        data[at] ^= 1 << int(rng.integers(0, 8))
    elif how == 1:
        data[at : at + 4] = bytes([255, 255, 255, 127])
    elif how == 2:
        del data[int(rng.integers(12, len(data))) :]
    elif how == 3:
        data[at:at] = data[at : at + 64]
    elif how == 4:
        data[at : at + 8] = rng.integers(0, 256, 8, dtype=np.uint8).tobytes()
    else:  # within the header, where sizes are
        place = int(rng.integers(8, min(64, len(data) - 4)))
        data[place : place + 4] = struct.pack(
            ">I", int(rng.choice([0, 1, 65_535, 1 << 20, (1 << 31) - 1]))
        )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(width: int, height: int, unfolded: int) -> bytes:
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(unfolded >> 20)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _png_text(unfolded: int) -> bytes:
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(unfolded >> 20)) + packer.flush()
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    text = _chunk(b"zTXt", b"k\x00\x00" + body)
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + text
        + _chunk(b"IDAT", zlib.compress(bytes(72)))
        + _chunk(b"IEND", b"")
    )


def _gif(frames: int) -> bytes:
    frame = b"\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00"
    return b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff" + frame * frames + b";"


def _tiff(width: int, height: int) -> bytes:
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (278, 4, height),
    ]
    tags.append((279, 4, 4))
    rows = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return (
        b"II*\x00"
        + struct.pack("<I", 12)
        + bytes(4)
        + struct.pack("<H", len(tags))
        + rows
        + bytes(4)
    )


def _bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


def _jpeg_scans(scans: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((2000, 2000), np.uint8)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


# Small files that would be large images, long films or slow work: functions that make them.
BOMBS: dict[str, Callable[[], bytes]] = {
    "a PNG of 60,000 x 60,000": lambda: _png(60_000, 60_000, 1000),
    "a PNG whose rows unfold to 100 MB": lambda: _png(8000, 8000, 100_000_000),
    "a GIF of 5,000 frames": lambda: _gif(5000),
    "a TIFF that says it is huge": lambda: _tiff(100_000, 100_000),
    "a BMP of 100,000 x 100,000": lambda: _bmp(100_000, 100_000),
    "a PNG whose text unfolds to 100 MB": lambda: _png_text(100_000_000),
    "a JPEG with 400 empty scans": lambda: _jpeg_scans(400),
}
