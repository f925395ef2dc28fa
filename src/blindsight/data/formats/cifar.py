"""CIFAR-10 and CIFAR-100 in their binary version: label bytes, then 3,072 bytes of one image, over
and over.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data.limits import LIMITS, Limits, regular_file
from blindsight.data.sets import ImageSet

__all__ = ["load_cifar", "read_cifar_batch"]

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

    Args:
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
