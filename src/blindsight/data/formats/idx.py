"""The idx format of MNIST: a magic number, the shape, then raw bytes. Plain or gzipped."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile
from blindsight.data.limits import LIMITS, Limits, read_at_most, regular_file
from blindsight.data.sets import ImageSet

__all__ = ["load_idx", "read_idx", "write_idx"]

_GZIP_BEST = 1100  # deflate packs at most 1,032 to 1
UBYTE = 0x08  # the only element type that image sets use


def read_idx(path: str | os.PathLike[str], *, limits: Limits = LIMITS) -> NDArray[np.uint8]:
    """Read one idx file of unsigned bytes. A plain file is memory-mapped, not read.

    The shape that the header claims must match the file's length before anything is allocated.
    """
    path = regular_file(path, largest=limits.file_bytes)
    with path.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    if zipped:
        return _read_zipped(path, limits)
    with path.open("rb") as stream:
        head = stream.read(64)
    shape, start = _header(path.name, head, path.stat().st_size, limits)
    if 0 in shape:
        return np.empty(shape, dtype=np.uint8)
    # A plain view of the map: indexing then gives plain arrays.
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=shape))


def load_idx(
    images: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    classes: tuple[str, ...] = (),
    name: str = "idx images",
    limits: Limits = LIMITS,
) -> ImageSet:
    """An image set from an idx file of images and, if given, one of labels."""
    pixels = read_idx(images, limits=limits)
    if pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] != 3):
        raise HostileFile(
            f"{Path(images).name} must hold images (n, h, w) or (n, h, w, 3), not {pixels.shape}."
        )
    if labels is None:
        return ImageSet(pixels, classes=classes, name=name)
    numbers = read_idx(labels, limits=limits)
    if numbers.shape != (len(pixels),):
        raise HostileFile(
            f"{Path(labels).name} must hold one label for each of {len(pixels)} images, not "
            f"{numbers.shape}."
        )
    known = classes or tuple(str(i) for i in range(int(numbers.max(initial=0)) + 1))
    if len(numbers) and int(numbers.max()) >= len(known):
        raise HostileFile(
            f"{Path(labels).name} has a label {numbers.max()}, but there are {len(known)} classes."
        )
    return ImageSet(pixels, numbers.astype(np.int64), classes=known, name=name)


def write_idx(path: str | os.PathLike[str], array: NDArray[np.uint8]) -> None:
    """Write an array of unsigned bytes as a plain idx file."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, UBYTE, array.ndim, *array.shape)
    with Path(path).open("wb") as stream:
        stream.write(head)
        stream.write(np.ascontiguousarray(array, dtype=np.uint8).data)


def _header(
    name: str, head: bytes, length: int | None, limits: Limits
) -> tuple[tuple[int, ...], int]:
    if len(head) < 4 or head[:2] != b"\0\0":
        raise HostileFile(f"{name} is not an idx file: it does not start with two zero bytes.")
    kind, ndim = head[2], head[3]
    if kind != UBYTE:
        raise HostileFile(
            f"{name} holds elements of type 0x{kind:02x}; only unsigned bytes (0x08) are read."
        )
    if not 1 <= ndim <= 4 or len(head) < 4 + 4 * ndim:
        raise HostileFile(
            f"{name} claims {ndim} dimensions; an idx file of images or labels has 1 to 4."
        )
    shape = struct.unpack(f">{ndim}I", head[4 : 4 + 4 * ndim])
    claimed, start = math.prod(shape), 4 + 4 * ndim  # Python integers: no overflow
    if length is not None and claimed != length - start:
        raise HostileFile(f"{name} claims {claimed:,} bytes of data and has {length - start:,}.")
    if shape[0] > limits.rows:
        raise HostileFile(f"{name} claims {shape[0]:,} rows; the limit is {limits.rows:,}.")
    return shape, start


def _read_zipped(path: Path, limits: Limits) -> NDArray[np.uint8]:
    """Unpack no more than the header claims, and believe no claim that gzip could not have packed
    so tightly.
    """
    try:
        with gzip.open(path) as stream:
            head = stream.read(64)
            shape, start = _header(path.name, head, None, limits)
            length = start + math.prod(shape)
            if length > min(limits.unpacked_bytes, _GZIP_BEST * path.stat().st_size):
                raise HostileFile(
                    f"{path.name} claims {length:,} bytes, more than so small a file can hold."
                )
            # One byte more than claimed, to notice a file that goes on.
            data = head + read_at_most(stream, length + 1 - len(head))
    except (OSError, EOFError, zlib.error) as error:
        raise HostileFile(
            f"{path.name} is a damaged gzip file ({type(error).__name__})."
        ) from error
    if len(data) != length:
        raise HostileFile(f"{path.name} claims {length:,} bytes of data and holds more or fewer.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
