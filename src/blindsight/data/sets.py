"""Data sets as frozen values: image sets, multi-label sets, tables and labelled pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of, positive, probability, whole
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data.reading import to_rgb
from blindsight.data.sources import LazyImages

__all__ = ["ImageSet", "MultiLabelSet", "PairSet", "Table", "partition_indices", "split_indices"]

Indices = NDArray[np.int64]


def split_indices(
    n: int, parts: Mapping[str, float], *, seed: int = 0, labels: NDArray[np.int64] | None = None
) -> dict[str, Indices]:
    """Disjoint, sorted index arrays whose sizes follow the shares; stratified if labels are given.

    The same `n`, shares, seed and labels give the same split on every machine.
    """
    if not parts:
        raise InvalidParameter("parts must name at least one part, got none.")
    shares = np.array([probability(f"share of {name!r}", share) for name, share in parts.items()])
    if shares.sum() > 1 + 1e-9:
        raise InvalidParameter(f"the shares must add up to at most 1, got {shares.sum():g}.")
    rng = np.random.default_rng(seed)
    groups = (
        [np.arange(n)]
        if labels is None
        else [np.flatnonzero(labels == c) for c in np.unique(labels)]
    )
    chosen: list[list[Indices]] = [[] for _ in parts]
    for group in groups:
        order = rng.permutation(group)
        ends = np.floor(np.cumsum(shares) * len(order) + 0.5).astype(int)
        for part, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            chosen[part].append(order[start:end])
    return {name: np.sort(np.concatenate(part)) for name, part in zip(parts, chosen, strict=True)}


def partition_indices(
    n: int,
    owners: int,
    *,
    how: str = "iid",
    seed: int = 0,
    labels: NDArray[np.int64] | None = None,
    classes_per_owner: int = 2,
    alpha: float = 0.5,
) -> list[Indices]:
    """Divide indices among owners; every index goes to exactly one owner, and no owner is left
    empty.

    Parameters:
        n: The number of examples.
        owners: The number of owners.
        how: "iid" divides evenly at random; "class" gives each owner shards of about
            `classes_per_owner` classes; "dirichlet" draws each class's shares among owners from
            Dirichlet(`alpha`) (small alpha: very uneven).
        seed: The same seed gives the same division.
        labels: Class of each example, needed for "class" and "dirichlet".
        classes_per_owner: Shards an owner receives with how="class".
        alpha: Concentration of the Dirichlet distribution.
    """
    whole("owners", owners)
    one_of("how", how, {"iid", "class", "dirichlet"})
    if owners > n:
        raise InvalidParameter(
            f"owners must be at most the number of examples ({n}), got {owners}."
        )
    rng = np.random.default_rng(seed)
    if how == "iid":
        return [np.sort(part) for part in np.array_split(rng.permutation(n), owners)]
    if labels is None:
        raise InvalidData(f"how={how!r} needs one class label per example; this set has none.")
    if how == "class":
        shards = owners * whole("classes_per_owner", classes_per_owner)
        # Shuffled within a class first, so that a shard is a random piece of its class.
        order = rng.permutation(n)
        order = order[np.argsort(labels[order], kind="stable")]
        pieces = np.array_split(order, min(shards, n))
        deal = rng.permutation(len(pieces))
        return [
            np.sort(np.concatenate([pieces[p] for p in deal[o::owners]])) for o in range(owners)
        ]
    return _dirichlet(labels, owners, positive("alpha", alpha), rng)


def _dirichlet(
    labels: NDArray[np.int64], owners: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(owners)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(owners, alpha))
        ends = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for owner, piece in enumerate(np.split(members, ends)):
            parts[owner].append(piece)
    result = [np.sort(np.concatenate(part)) for part in parts]
    for owner, part in enumerate(result):
        if len(part) == 0:  # take one example from the owner with most
            largest = int(np.argmax([len(p) for p in result]))
            result[owner], result[largest] = result[largest][-1:], result[largest][:-1]
    return result


class _Rows:
    """What all sets share: length, choosing rows, batches, splits and division among owners."""

    def _fields(self) -> tuple[str, ...]:
        raise AttributeError("a set names the fields that have one entry per row")

    def __len__(self) -> int:
        return next(
            len(value) for name in self._fields() if (value := getattr(self, name)) is not None
        )

    def take(self, indices: Any) -> Self:
        """The rows at these indices (or where a mask is true), as a set of the same kind."""
        chosen = np.arange(len(self))[indices]
        changes = {
            name: value.take(chosen)
            if _is_lazy(value)
            else value[indices if isinstance(indices, slice) else chosen]
            for name in self._fields()
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **changes)  # type: ignore[type-var]

    def batches(self, size: int) -> Iterator[Self]:
        """The set in order, in sets of at most `size` rows; lazy images are read batch by batch."""
        whole("size", size)
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def split(self, parts: Mapping[str, float], *, seed: int = 0) -> dict[str, Self]:
        """Disjoint parts by share, for example {"train": 0.8, "test": 0.2}; stratified by class
        label.
        """
        indices = split_indices(len(self), parts, seed=seed, labels=self._classes_of_rows())
        return {name: self.take(chosen) for name, chosen in indices.items()}

    def partition(
        self,
        owners: int,
        *,
        how: str = "iid",
        seed: int = 0,
        classes_per_owner: int = 2,
        alpha: float = 0.5,
    ) -> list[Self]:
        """Divide the set among owners: how="iid", "class" or "dirichlet" (`partition_indices`)."""
        parts = partition_indices(
            len(self),
            owners,
            how=how,
            seed=seed,
            labels=self._classes_of_rows(),
            classes_per_owner=classes_per_owner,
            alpha=alpha,
        )
        return [self.take(part) for part in parts]

    def _classes_of_rows(self) -> NDArray[np.int64] | None:
        return None


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(_Rows):
    """Images with at most one class label each.

    `set[3]` is one `(image, label)`; `set[2:9]`, `set[mask]` and `set[[4, 1]]` are sets.

    Parameters:
        images: uint8 array (n, h, w) or (n, h, w, 3), or images that are read on demand.
        labels: One class number per image, or None.
        names: One name per image (a file name, say), or None.
        classes: The names of the classes.
        name: What the set is called.
    """

    images: NDArray[np.uint8] | LazyImages
    labels: NDArray[np.int64] | None = None
    names: NDArray[np.str_] | None = None
    classes: tuple[str, ...] = ()
    name: str = "images"

    def __post_init__(self) -> None:
        _check_images(self.images)
        object.__setattr__(self, "classes", tuple(str(c) for c in self.classes))
        if self.labels is not None:
            labels = np.asarray(self.labels)
            if labels.dtype.kind not in "iu":
                raise InvalidData(f"labels must be whole numbers, got dtype {labels.dtype}.")
            object.__setattr__(
                self, "labels", _column("labels", labels.astype(np.int64), len(self.images))
            )
            if (
                self.classes
                and len(labels)
                and not 0 <= labels.min() <= labels.max() < len(self.classes)
            ):
                raise InvalidData(
                    f"labels must lie in [0, {len(self.classes)}): there are that many classes."
                )
        if self.names is not None:
            object.__setattr__(
                self, "names", _column("names", np.asarray(self.names), len(self.images))
            )

    def _fields(self) -> tuple[str, ...]:
        return ("images", "labels", "names")

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.labels is not None else "no labels"
        return (
            f"ImageSet({self.name}: {len(self):,} images, "
            f"{kind}{', read on demand' if self.lazy else ''})"
        )

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            index = range(len(self))[key]
            return self.images[index], None if self.labels is None else int(self.labels[index])
        return self.take(key)

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], int | None]]:
        return (self[i] for i in range(len(self)))

    @property
    def lazy(self) -> bool:
        """Whether images are read on demand rather than held in memory."""
        return _is_lazy(self.images)

    def array(self, size: int | None = None) -> NDArray[np.uint8]:
        """All images as one uint8 array; with `size`, as RGB (n, size, size, 3)."""
        return _stack(self.images, size)

    def _classes_of_rows(self) -> NDArray[np.int64] | None:
        return self.labels


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabelSet(_Rows):
    """Images, or feature vectors, with any number of labels each.

    Parameters:
        labels: uint8 array (n, number of classes) of 0 and 1.
        images: Images as in `ImageSet`, or None.
        features: Float array (n, d), or None.
        classes: The names of the labels.
        names: One name per row, or None.
        known: Where a label is certain (VOC marks "only difficult objects" as uncertain), or None
            for everywhere.
        name: What the set is called.
    """

    labels: NDArray[np.uint8]
    images: NDArray[np.uint8] | LazyImages | None = None
    features: NDArray[np.floating[Any]] | None = None
    classes: tuple[str, ...] = ()
    names: NDArray[np.str_] | None = None
    known: NDArray[np.bool_] | None = None
    name: str = "labelled images"

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 2 or labels.dtype.kind not in "biu" or (labels.size and labels.max() > 1):
            raise InvalidData(
                f"labels must be a 0/1 array (n, classes), got {labels.dtype} {labels.shape}."
            )
        if labels.size and labels.min() < 0:
            raise InvalidData("labels must be 0 or 1; mark unsure ones in `known`.")
        object.__setattr__(self, "labels", labels.astype(np.uint8, copy=False))
        classes = tuple(str(c) for c in self.classes) or tuple(
            str(i) for i in range(labels.shape[1])
        )
        object.__setattr__(self, "classes", classes)
        if len(classes) != labels.shape[1]:
            raise InvalidData(
                f"labels have {labels.shape[1]} columns but {len(classes)} classes are named."
            )
        if self.images is not None:
            _check_images(self.images)
        for part in ("images", "features", "names", "known"):
            value = getattr(self, part)
            if value is not None and len(value) != len(labels):
                raise InvalidData(
                    f"{part} must have one entry per row ({len(labels)}), got {len(value)}."
                )

    def _fields(self) -> tuple[str, ...]:
        return ("labels", "images", "features", "names", "known")

    def __repr__(self) -> str:
        return f"MultiLabelSet({self.name}: {len(self):,} rows, {len(self.classes)} labels)"

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            index = range(len(self))[key]
            rows = self.images if self.images is not None else self.features
            return None if rows is None else rows[index], self.labels[index]
        return self.take(key)

    @property
    def lazy(self) -> bool:
        """Whether images are read on demand rather than held in memory."""
        return _is_lazy(self.images)

    def array(self, size: int | None = None) -> NDArray[np.uint8]:
        """All images as one uint8 array; with `size`, as RGB (n, size, size, 3)."""
        if self.images is None:
            raise InvalidData(f"{self.name} has no images, only labels or features.")
        return _stack(self.images, size)


@dataclass(frozen=True, eq=False, repr=False)
class Table(_Rows):
    """Rows of numbers with a class label.

    Parameters:
        X: float64 array (n, columns).
        y: Class number of each row, or None.
        columns: Names of the columns.
        classes: Names of the classes.
        name: What the table is called.
    """

    X: NDArray[np.float64]
    y: NDArray[np.int64] | None = None
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    name: str = "table"

    def __post_init__(self) -> None:
        if self.X.ndim != 2:
            raise InvalidData(f"X must have two dimensions, got shape {self.X.shape}.")
        if self.columns and len(self.columns) != self.X.shape[1]:
            raise InvalidData(f"X has {self.X.shape[1]} columns but {len(self.columns)} are named.")
        if self.y is not None:
            object.__setattr__(
                self, "y", _column("y", np.asarray(self.y, dtype=np.int64), len(self.X))
            )

    def _fields(self) -> tuple[str, ...]:
        return ("X", "y")

    def __repr__(self) -> str:
        return f"Table({self.name}: {len(self):,} rows, {self.X.shape[1]} columns)"

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            index = range(len(self))[key]
            return self.X[index], None if self.y is None else int(self.y[index])
        return self.take(key)

    def _classes_of_rows(self) -> NDArray[np.int64] | None:
        return self.y


@dataclass(frozen=True, eq=False, repr=False)
class PairSet(_Rows):
    """Labelled pairs of rows: 1 similar, 0 dissimilar.

    Parameters:
        indices: int array (n, 2) of row numbers.
        labels: 1 or 0 for each pair.
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    name: str = "pairs"

    def __post_init__(self) -> None:
        indices, labels = np.asarray(self.indices), np.asarray(self.labels)
        if indices.ndim != 2 or indices.shape[1] != 2 or indices.dtype.kind not in "iu":
            raise InvalidData(
                f"indices must be whole numbers (n, 2), got {indices.dtype} {indices.shape}."
            )
        if indices.size and indices.min() < 0:
            raise InvalidData("indices must not be negative.")
        if labels.dtype.kind not in "biu" or not np.isin(labels, (0, 1)).all():
            raise InvalidData("labels must be 1 (similar) or 0 (dissimilar).")
        object.__setattr__(self, "indices", indices.astype(np.int64, copy=False))
        object.__setattr__(self, "labels", _column("labels", labels.astype(np.int64), len(indices)))

    def _fields(self) -> tuple[str, ...]:
        return ("indices", "labels")

    def __repr__(self) -> str:
        return f"PairSet({self.name}: {len(self):,} pairs, {int(self.labels.sum()):,} similar)"

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, np.integer)):
            index = range(len(self))[key]
            return self.indices[index], int(self.labels[index])
        return self.take(key)

    def of(self, X: NDArray[Any]) -> NDArray[Any]:
        """The pairs of rows of X as an array (n, 2, d), the shape that the metric estimators
        take.
        """
        if len(self) and self.indices.max() >= len(X):
            raise InvalidData(f"pairs point to row {self.indices.max()} but X has {len(X)} rows.")
        return X[self.indices]


def _is_lazy(images: Any) -> bool:
    return (
        images is not None and not isinstance(images, np.ndarray) and isinstance(images, LazyImages)
    )


def _check_images(images: Any) -> None:
    if _is_lazy(images):
        return
    if not isinstance(images, np.ndarray):
        raise InvalidData(
            f"images must be a uint8 array or lazy images, got {type(images).__name__}."
        )
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or (images.ndim == 4 and images.shape[3] != 3)
    ):
        raise InvalidData(
            f"images must be uint8 of shape (n, h, w) or (n, h, w, 3), got {images.dtype} "
            f"{images.shape}."
        )


def _column(name: str, values: NDArray[Any], n: int) -> NDArray[Any]:
    if values.ndim != 1 or len(values) != n:
        raise InvalidData(f"{name} must have one entry per row ({n}), got shape {values.shape}.")
    return values


def _stack(images: NDArray[np.uint8] | LazyImages, size: int | None) -> NDArray[np.uint8]:
    if isinstance(images, np.ndarray) and size is None:
        return images
    one_by_one: Any = images
    if size is not None:
        whole("size", size)
        result = np.empty((len(images), size, size, 3), dtype=np.uint8)
        for i in range(len(images)):
            result[i] = to_rgb(one_by_one[i], size)
        return result
    read = [one_by_one[i] for i in range(len(images))]
    if not read:
        return np.empty((0, 0, 0), dtype=np.uint8)
    if len({image.shape for image in read}) == 1:
        return np.stack(read)
    coloured = [to_rgb(image) for image in read]
    if len({image.shape for image in coloured}) > 1:
        raise InvalidData(
            "the images differ in height or width: ask for array(size=...) to resize them."
        )
    return np.stack(coloured)
