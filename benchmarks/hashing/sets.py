"""What the hashing bench measures on: features and labels of queries and database, by protocol."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.hashing import paper
from benchmarks.hashing.protocols import PROTOCOLS
from blindsight import data, encoders
from blindsight.core.errors import MissingData, MissingDependency
from blindsight.hashing.plain import principal_axes, second_moment

__all__ = ["SETS", "Collection", "collections", "public_rows", "small_collection"]

SETS = (
    "mnist5k",
    "caltech101",
    "coco-subset",
    "voc2012-subset",
    "cifar10",
    "imagenet",
    "cub",
    "aircraft",
)

# Principal components of the features that the hashers see: c <= 48 bits need no more, and
# everything runs faster.
COMPONENTS = 256


@dataclass(frozen=True)
class Collection:
    """Features and labels of one protocol."""

    name: str
    queries: NDArray[np.float32]
    database: NDArray[np.float32]
    query_labels: NDArray[Any]
    database_labels: NDArray[Any]
    seeds: tuple[int, ...]
    paper: paper.Table | None = None
    raw: tuple[NDArray[np.float32], NDArray[np.float32]] | None = (
        None  # all features, for the deep hashers
    )
    stands_for: str | None = None  # the paper's set, where this one is in its place

    @property
    def public(self) -> NDArray[np.int64]:
        """The fifth of the database that counts as public: the only images that anything shared is
        learned from.
        """
        return public_rows(len(self.database))

    @property
    def chance(self) -> float:
        """The mAP of a random ranking: the mean share of relevant images."""
        if self.query_labels.ndim == 1:
            classes, counts = np.unique(self.database_labels, return_counts=True)
            share = dict(zip(classes, counts / len(self.database_labels), strict=True))
            return float(np.mean([share[label] for label in self.query_labels]))
        relevant = (
            self.query_labels.astype(np.float32) @ self.database_labels.T.astype(np.float32) > 0
        )
        return float(relevant.mean())


def public_rows(n_database: int) -> NDArray[np.int64]:
    """Which rows of a database of that size count as public."""
    return np.sort(np.random.default_rng(0).permutation(n_database)[: n_database // 5])


def small_collection(seeds: tuple[int, ...] = (0, 1)) -> Collection:
    """MNIST 5,000 by pixels, on every machine: 1,000 queries, 4,000 in the database."""
    images = data.load("mnist5k")
    order = np.random.default_rng(0).permutation(len(images))
    images = images[order]
    # Principal components from public images only: the protected ones must not shape what is taken
    # as public.
    pixels = encoders.PixelPCA(n_components=64).fit(images[1000 + public_rows(4000)])
    return _collection(
        "mnist5k", pixels.transform(images), np.asarray(images.labels), 1000, seeds, None
    )


def collections(names: Container[str] = SETS) -> Iterator[Collection | Row]:
    """Every protocol whose images are here; for the others a row that says how to get them."""
    if "mnist5k" in names:
        yield small_collection((0, 1, 2, 3, 4))
    for name, size, table, load, stands_for in (
        ("caltech101", 128, None, _caltech, None),
        ("coco-subset", 224, paper.NUS_WIDE, _pinned, "NUS-WIDE"),
        ("voc2012-subset", 224, paper.NUS_WIDE, _pinned, "NUS-WIDE"),
        ("cifar10", 96, paper.CIFAR10, _pinned, None),
        ("imagenet", 128, paper.IMAGENET, _own_folders, None),
        ("cub", 128, None, _own_folders, None),
        ("aircraft", 128, None, _own_folders, None),
    ):
        if name not in names:
            continue
        try:
            asked, searched = load(name)
            network = encoders.EfficientNet(size=size, cache=True)
            vectors = np.concatenate([network.transform(asked), network.transform(searched)])
        except (MissingData, MissingDependency) as error:
            yield Row(id=f"hashing.skipped.{name}", value=0, unit="skipped", note=str(error))
            continue
        labels = np.concatenate([np.asarray(asked.labels), np.asarray(searched.labels)])
        yield _collection(name, vectors, labels, len(asked), (0, 1, 2, 3, 4), table, stands_for)


def _pinned(name: str) -> tuple[Any, Any]:
    """Queries and database of a protocol, checked to be its own."""
    protocol = PROTOCOLS[name]
    asked, searched = (
        data.load(protocol.data, split="test"),
        data.load(protocol.data, split="train"),
    )
    protocol.check(asked.labels, searched.labels)
    return asked, searched


def _caltech(name: str) -> tuple[Any, Any]:
    """A hundred classes: 5 photos of each ask, the others are searched."""
    images = data.load(name)
    labels, rng = np.asarray(images.labels), np.random.default_rng(0)
    asks = np.sort(
        np.concatenate(
            [rng.choice(np.flatnonzero(labels == c), 5, False) for c in np.unique(labels)]
        )
    )
    return images[asks], images[np.setdiff1d(np.arange(len(labels)), asks)]


def _own_folders(name: str) -> tuple[Any, Any]:
    """The paper's other sets, where a user has them: a folder per class in NAME/queries and in
    NAME/database.
    """
    root = data.data_folder()
    places = [None if root is None else root / name / part for part in ("queries", "database")]
    if any(place is None or not place.is_dir() for place in places):
        raise MissingData(
            f"put {name} as one folder per class into {name}/queries and {name}/database of "
            "BLINDSIGHT_DATA."
        )
    asked, searched = (data.load_class_folders(place) for place in places)  # type: ignore[arg-type]
    if asked.classes != searched.classes:
        raise MissingData(f"{name}/queries and {name}/database must hold the same classes.")
    return asked, searched


def _collection(
    name: str,
    vectors: NDArray[Any],
    labels: NDArray[Any],
    n_queries: int,
    seeds: tuple[int, ...],
    table: paper.Table | None,
    stands_for: str | None = None,
) -> Collection:
    vectors = vectors.astype(np.float32)
    database = vectors[n_queries:]
    raw = (vectors[:n_queries], database)
    if database.shape[1] > COMPONENTS:
        known = database[public_rows(len(database))]
        mean = known.mean(axis=0)
        axes = principal_axes(second_moment(known, mean), COMPONENTS).astype(np.float32)
        vectors = (vectors - mean) @ axes
    asked, searched = vectors[:n_queries], vectors[n_queries:]
    own, others = labels[:n_queries], labels[n_queries:]
    return Collection(name, asked, searched, own, others, seeds, table, raw, stands_for)
