"""Arrays of images in binary files: idx (MNIST), CIFAR's batches, and npz.

Files from outside are checked before memory is taken for them; nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile, MissingData
from blindsight.core.parsing import one_parser
from blindsight.data.limits import LIMITS, Limits, check_packing, read_at_most, regular_file
from blindsight.data.sets import ImageSet

__all__ = [
    "load_arrays",
    "load_cifar",
    "load_idx",
    "read_cifar_batch",
    "read_idx",
    "write_idx",
]

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
    names = classes or tuple(str(i) for i in range(int(numbers.max(initial=0)) + 1))
    if len(numbers) and int(numbers.max()) >= len(names):
        raise HostileFile(
            f"{Path(labels).name} has a label {numbers.max()}, but there are {len(names)} classes."
        )
    return ImageSet(pixels, numbers.astype(np.int64), classes=names, name=name)


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
    """Unpack no more than the header claims, and refuse a claim beyond what gzip can compress."""
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


_PIXELS = 3 * 32 * 32
_FILES = {
    ("cifar10", "train"): tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    ("cifar10", "test"): ("test_batch.bin",),
    ("cifar100", "train"): ("train.bin",),
    ("cifar100", "test"): ("test.bin",),
}
_NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}


def read_cifar_batch(
    path: str | os.PathLike[str],
    *,
    label_bytes: int = 1,
    classes: int = 10,
    limits: Limits = LIMITS,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 32, 32, 3) and labels of one binary batch; of two label bytes (CIFAR-100), the
    last is kept.
    """
    path = regular_file(path, largest=limits.file_bytes)
    record = label_bytes + _PIXELS
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(2)
    if size % record and start[:1] == b"\x80":
        raise _pickled(path)
    if size == 0 or size % record:
        raise HostileFile(
            f"{path.name} has {size:,} bytes, which is not a whole number of {record}-byte records."
        )
    if size // record > limits.rows:
        raise HostileFile(f"{path.name} has more than {limits.rows:,} records.")
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        raise HostileFile(
            f"{path.name} has a label of {labels.max()}; labels must be below {classes}."
        )
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def load_cifar(
    folder: str | os.PathLike[str],
    *,
    kind: str = "cifar10",
    split: str | None = None,
    limits: Limits = LIMITS,
) -> ImageSet:
    """CIFAR-10 or CIFAR-100 (fine labels) from the folder of its binary version.

    Parameters:
        folder: Holds data_batch_1.bin ... or train.bin, as the original archives unpack.
        kind: "cifar10" or "cifar100".
        split: "train", "test", or None for both.
        limits: Bounds on bytes and rows.
    """
    one_of("kind", kind, {"cifar10", "cifar100"})
    folder = Path(folder)
    parts = ("train", "test") if split is None else (one_of("split", split, {"train", "test"}),)
    files = [folder / name for part in parts for name in _FILES[kind, part]]
    for path in files:
        if not path.is_file():
            if path.with_suffix("").is_file():
                raise _pickled(path.with_suffix(""))
            raise MissingData(
                f"{path} does not exist. {kind} needs the files of its binary version."
            )
    classes = 10 if kind == "cifar10" else 100
    label_bytes = 1 if kind == "cifar10" else 2
    batches = [
        read_cifar_batch(p, label_bytes=label_bytes, classes=classes, limits=limits) for p in files
    ]
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    return ImageSet(images, labels, None, _class_names(folder / _NAMES[kind], classes), kind)


def _pickled(path: Path) -> HostileFile:
    return HostileFile(
        f"{path.name} is the python version of CIFAR, a pickle, which could run code when opened. "
        "Blindsight never unpickles: take the binary version (cifar-10-binary.tar.gz) from the "
        "same page."
    )


def _class_names(path: Path, classes: int) -> tuple[str, ...]:
    if path.is_file() and path.stat().st_size < 100_000:
        names = [
            line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()
        ]
        if len(names) == classes:
            return tuple(names)
    return tuple(str(i) for i in range(classes))


def load_arrays(
    path: str | os.PathLike[str], *, limits: Limits = LIMITS
) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file, by name.

    Raises:
        HostileFile: It is damaged, holds objects, or would unpack to more than the limits allow.
    """
    path = regular_file(path, largest=limits.file_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            size = sum(info.file_size for info in infos)
            if size > limits.unpacked_bytes:
                raise HostileFile(
                    f"{path.name} would unpack to {size:,} bytes; limit {limits.unpacked_bytes:,}."
                )
            for info in infos:
                check_packing(info)
                with archive.open(info) as stream:
                    _check_header(stream, info, path.name)
        with one_parser(), np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except HostileFile:
        raise
    except Exception as error:
        # numpy raises ValueError, BadZipFile, EOFError, zlib.error, KeyError, ... on damaged files.
        raise HostileFile(
            f"{path.name} is not a readable npz file ({type(error).__name__})."
        ) from error


def _check_header(stream: Any, info: zipfile.ZipInfo, name: str) -> None:
    """Refuse an array whose claimed shape exceeds its bytes, before numpy allocates memory."""
    if not info.filename.endswith(".npy"):
        raise HostileFile(f"{name} holds {info.filename[:60]!r}, which is not an array.")
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    with one_parser():
        shape, _, dtype = read(stream)
    claimed = dtype.itemsize
    for extent in shape:
        claimed *= extent
    if dtype.hasobject or claimed > info.file_size:
        raise HostileFile(f"{name}: an array holds objects, or claims more bytes than it has.")
