"""What the federated benches learn from: Caltech-101 features where the data are, digits
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight import data, encoders
from blindsight.core.errors import MissingData

__all__ = ["Split", "caltech", "caltech256", "digits", "faces", "many_labels", "sensitive", "split"]


@dataclass(frozen=True)
class Split:
    """Public rows to start from, the users' rows, and rows to test on."""

    public: tuple[NDArray[np.float64], NDArray[np.int64]]
    private: tuple[NDArray[np.float64], NDArray[np.int64]]
    test: tuple[NDArray[np.float64], NDArray[np.int64]]

    def shares(self, users: int, *, seed: int, repeats: int = 1) -> list[NDArray[np.int64]]:
        """Rows of each of `users` x `repeats` users: split anew each time, so that users overlap
        across repeats.
        """
        found: list[NDArray[np.int64]] = []
        for repeat in range(repeats):
            order = np.random.default_rng([seed, repeat]).permutation(len(self.private[1]))
            # Sorted by class first, then dealt: every user gets its share of every class, as far as
            # it goes.
            order = order[np.argsort(self.private[1][order], kind="stable")]
            found.extend(order[n::users] for n in range(users))
        return found


def caltech() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """EfficientNet-Lite0 features of Caltech-101; `MissingData` where the images are not."""
    images = data.load("caltech101")
    return np.asarray(
        encoders.EfficientNet(cache=True).transform(images), dtype=np.float64
    ), np.asarray(images.labels)


def caltech256() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The same features of Caltech-256 without its clutter class, where a user has it."""
    images = data.load("caltech256")
    return np.asarray(
        encoders.EfficientNet(cache=True).transform(images), dtype=np.float64
    ), np.asarray(images.labels)


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """scikit-learn's digits."""
    found = data.load("digits")
    return found.array().reshape(len(found), -1).astype(np.float64), np.asarray(found.labels)


def sensitive() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images of bathrooms and screens among COCO's: close to what the life-logging set calls
    sensitive places.
    """
    images = data.load("coco-subset")
    words = ("toilet", "sink", "laptop", "tv", "cell phone", "keyboard", "mouse")
    columns = [list(images.classes).index(word) for word in words]
    labels = np.asarray(images.labels)[:, columns].any(axis=1).astype(np.int64)
    return np.asarray(
        encoders.EfficientNet(cache=True).transform(images), dtype=np.float64
    ), np.atleast_1d(labels)


def split(
    X: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    seed: int,
    test: float = 1 / 3,
    public: float = 0.1,
    train: int | None = None,
    most: int | None = None,
) -> Split:
    """Stratified: a share of every class to test on, and of the rest a share (at least one row)
    made public.

    train, most: instead of the share `test`, that many rows of each class to train on and at most
    so many others to test on, as the paper has them; a class with too few rows keeps a tenth of
    them, at least three, for the test.
    """
    rng = np.random.default_rng(seed)
    parts: tuple[list[NDArray[np.intp]], ...] = ([], [], [])
    for c in np.unique(y):
        order = rng.permutation(np.flatnonzero(y == c))
        kept = len(order) - round(test * len(order))
        if train is not None:
            kept = min(train, len(order) - max(3, len(order) // 10))
            order = order[: kept + (most or len(order))]
        shown = max(1, round(public * kept))
        for part, rows in zip(parts, np.split(order, [shown, kept]), strict=True):
            part.append(rows)
    chosen = [np.concatenate(part) for part in parts]
    return Split(*((X[rows], y[rows]) for rows in chosen))


def many_labels(name: str, *, most: int) -> Callable[[int], tuple[Split, NDArray[np.int64]]]:
    """Photos with several labels, of which the `most` frequent are kept.

    Returns a function of a seed: a tenth of the training photos, drawn by it, is public, the others
    are private; as in `faces`, the split's labels are row numbers into the matrix beside it.
    """
    features, labels = [], []
    for which in ("train", "test"):
        images = data.load(name, split=which)
        rows = encoders.EfficientNet(cache=True).transform(images)
        features.append(np.asarray(rows, dtype=np.float64))
        labels.append(np.asarray(images.labels, dtype=np.int64))
    train, test = features
    chosen = np.sort(np.argsort(-labels[0].sum(axis=0), kind="stable")[:most])
    every = np.concatenate(labels)[:, chosen]

    def draw(seed: int) -> tuple[Split, NDArray[np.int64]]:
        order = np.random.default_rng(seed).permutation(len(train))
        public, private = order[: len(train) // 10], order[len(train) // 10 :]
        tested = (test, np.arange(len(train), len(every)))
        return Split((train[public], public), (train[private], private), tested), every

    return draw


def faces() -> tuple[Split, NDArray[np.int64], tuple[str, ...]]:
    """CelebA as Table 3 has it: validation images are public, training images private; all
    attributes of every row.

    The split's labels are row numbers into the returned matrix of attributes.
    """
    parts, labels, start = [], [], 0
    names: tuple[str, ...] = ()
    folder = Path(data.where("celeba"))
    if not data.where("celeba") or not (folder / "img_align_celeba").is_dir():
        raise MissingData(
            "CelebA's images are not on this machine: celeba/img_align_celeba beside its lists."
        )
    for which in ("val", "train", "test"):
        images = data.load_celeba(
            folder / "list_attr_celeba.txt",
            folder / "img_align_celeba",
            partition=folder / "list_eval_partition.txt",
            split=which,
        )
        rows = np.asarray(encoders.EfficientNet(cache=True).transform(images), dtype=np.float64)
        parts.append((rows, np.arange(start, start + len(rows))))
        labels.append(np.asarray(images.labels, dtype=np.int64))
        start, names = start + len(rows), tuple(images.classes)
    return Split(*parts), np.concatenate(labels), names
