"""The last step of getting a set: from a package's own files to the files that the loaders read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile
from blindsight.data.formats.csvtable import read_rows, read_text
from blindsight.data.formats.idx import read_idx, write_idx
from blindsight.data.reading import read_image

__all__ = ["cifar_from_pictures", "join_bank", "keep", "unzip_idx"]


def keep(source: Path, target: Path) -> None:
    """The files are what the loaders read already."""
    for path in source.iterdir():
        shutil.move(path, target / path.name)


def unzip_idx(source: Path, target: Path) -> None:
    """Gzipped idx files, checked and written plain, so that they can be memory-mapped."""
    for path in source.iterdir():
        write_idx(target / path.name.removesuffix(".gz"), read_idx(path))


def cifar_from_pictures(source: Path, target: Path) -> None:
    """CIFAR-10 as tall pictures (a row of 1,024 pixels is one image) and labels as JSON, to idx
    files.
    """
    batches = {"train": [f"data_batch_{i}.png" for i in range(1, 6)], "t10k": ["test_batch.png"]}
    labels = {"train": "train_lables.json", "t10k": "test_lables.json"}
    for part, names in batches.items():
        images = np.concatenate([_picture(source / name) for name in names])
        numbers = np.array(json.loads((source / labels[part]).read_text()), dtype=np.int64)
        if numbers.shape != (len(images),) or not np.isin(numbers, range(10)).all():
            raise HostileFile(
                f"{labels[part]} must hold one label of 0 to 9 for each of {len(images)} images."
            )
        write_idx(target / f"{part}-images-idx4-ubyte", images)
        write_idx(target / f"{part}-labels-idx1-ubyte", numbers.astype(np.uint8))


def join_bank(source: Path, target: Path) -> None:
    """Bank's two shuffled parts, joined in the order of UCI's bank-full.csv by their original row
    number.
    """
    numbered: dict[int, list[str]] = {}
    header: list[str] = []
    for name in ("train.csv.gz", "test.csv.gz"):
        (_, *header), *rows = read_rows(read_text(source / name), name=name)
        numbered.update({int(row[0]): row[1:] for row in rows})
    if sorted(numbered) != list(range(len(numbered))):
        raise HostileFile("Bank's row numbers must run from 0 without a gap.")
    lines = [",".join([*header[:-1], "y"])]
    lines += [",".join(numbered[i]) for i in range(len(numbered))]
    (target / "bank-full.csv").write_text("\n".join(lines) + "\n")


def _picture(path: Path) -> NDArray[np.uint8]:
    pixels = read_image(path)
    if pixels.ndim != 3 or pixels.shape[1] != 1024:
        raise HostileFile(f"{path.name} must be 1,024 RGB pixels wide, found shape {pixels.shape}.")
    return pixels.reshape(-1, 32, 32, 3)
