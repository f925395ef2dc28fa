"""Limits on the size of files from outside, and bounded reading of their bytes."""

from __future__ import annotations

import os
import stat
import threading
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from blindsight.core.errors import HostileFile, MissingData

__all__ = [
    "LIMITS",
    "Limits",
    "check_packing",
    "kind_of",
    "quiet",
    "read_at_most",
    "read_bytes",
    "regular_file",
]

MEGA = 1 << 20
_FILTERS = threading.Lock()
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"})


@dataclass(frozen=True)
class Limits:
    """Bounds that are checked before anything is allocated.

    Parameters:
        pixels: Most pixels of one image, read from its header before it is decoded.
        image_bytes: Most bytes of one encoded image file.
        file_bytes: Most bytes of one data file (an idx file, a batch, a table) on disk.
        unpacked_bytes: Most bytes that a compressed data file may grow to.
        text_bytes: Most bytes of a table or list in text, whose cells take far more memory than
            their letters.
        cells: Most cells of a table in text.
        rows: Most rows of a table, members of an archive or files of a folder.
        columns: Most columns of a table or labels of a label set.
        frames: Most frames of an animation, of which the first is read; 0 for no bound.
    """

    pixels: int = 50_000_000
    image_bytes: int = 64 * MEGA
    file_bytes: int = 2048 * MEGA
    unpacked_bytes: int = 2048 * MEGA
    text_bytes: int = 512 * MEGA
    cells: int = 30_000_000
    rows: int = 5_000_000
    columns: int = 20_000
    frames: int = 0


LIMITS = Limits()


class Readable(Protocol):
    """An object with a `read` method: a file, a member of a zip file, an unpacking stream."""

    def read(self, size: int, /) -> bytes: ...


def check_packing(member: zipfile.ZipInfo) -> None:
    """Refuse bzip2 and LZMA, which zipfile unpacks without a bound, kilobytes to gigabytes."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise HostileFile(
            f"{member.filename[:60]} is packed by another method than deflate. Pack the file again."
        )


def regular_file(path: str | os.PathLike[str], *, largest: int) -> Path:
    """Return the path if it is an ordinary file of at most `largest` bytes (not a device, pipe or
    folder).
    """
    path = Path(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise MissingData(f"{path} does not exist. Check the path.") from None
    except OSError as error:
        raise HostileFile(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(status.st_mode):
        raise HostileFile(f"{path} must be an ordinary file; it is a folder, pipe or device.")
    if status.st_size > largest:
        raise HostileFile(
            f"{path.name} has {status.st_size:,} bytes, more than the limit of {largest:,}. "
            "Pass larger limits if you trust it."
        )
    return path


def read_at_most(stream: Readable, most: int) -> bytes:
    """Read at most this many bytes of a stream, in pieces: one large read would allocate them all
    at once.
    """
    pieces: list[bytes] = []
    remaining = most
    while remaining > 0 and (piece := stream.read(min(MEGA, remaining))):
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def read_bytes(path: str | os.PathLike[str], *, largest: int) -> bytes:
    """All bytes of an ordinary file, never more than `largest` even if the file grows meanwhile."""
    path = regular_file(path, largest=largest)
    try:
        with path.open("rb") as stream:
            data = read_at_most(stream, largest + 1)
    except OSError as error:
        raise HostileFile(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > largest:
        raise HostileFile(f"{path.name} has more than {largest:,} bytes.")
    return data


@contextmanager
def quiet(*raised: type[Warning]) -> Iterator[None]:
    """Silence the warnings of decoders, which quote the content of files.

    Python's filters belong to the whole process, so only one thread at a time may change them.

    Parameters:
        raised: warnings that are raised as errors instead.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in raised:
            warnings.simplefilter("error", kind)
        yield


def kind_of(data: bytes) -> Literal["pictures", "dicom", "heif"]:
    """Return the kind of reader that the first bytes of a file call for.

    A DICOM file begins with 128 arbitrary bytes, then DICM; a HEIC or HEIF file has one of their
    brands (AVIF has other brands).
    """
    if data[128:132] == b"DICM":
        return "dicom"
    return "heif" if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS else "pictures"
