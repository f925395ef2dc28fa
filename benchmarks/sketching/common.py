"""What the sketching rows share: the sets, one training run, one canvas."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight import data
from blindsight.core.errors import MissingData

__all__ = ["Halves", "Trained", "canvas", "halves", "train_pixels", "train_sketches"]


@dataclass(frozen=True)
class Halves:
    """Training and test images with labels, and what they are."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]
    name: str

    def first(self, n: int, n_test: int | None = None) -> Halves:
        """The first n training and n_test test images."""
        return Halves(self.x[:n], self.y[:n], self.x_test[:n_test], self.y_test[:n_test], self.name)


def halves(name: str, *, seed: int = 0) -> Halves:
    """A set in two halves; MNIST's light stand-in of 5,000 digits where the whole is not on the
    machine.
    """
    try:
        train, test = data.load(name, split="train"), data.load(name, split="test")
    except MissingData:
        if name != "mnist":
            raise
        return halves("mnist5k", seed=seed)
    order = np.random.default_rng(seed).permutation(len(train))
    return Halves(train.array()[order], train.labels[order], test.array(), test.labels, name)


@dataclass(frozen=True)
class Trained:
    """Test accuracy in percent, how long training took, and the model."""

    accuracy: float
    seconds: float
    model: Any


def train_sketches(sketcher: Any, sets: Halves, **options: Any) -> Trained:
    """Sketch both halves and train NegDL on them."""
    from blindsight.sketching.trainer import NegDL

    train = sketcher.fit(sets.x[:2]).sketch(sets.x, sets.y)
    if getattr(sketcher, "random_state", None) is not None:
        # A fixed seed repeats its dice at every call; the test images get dice of their own.
        sketcher = (
            clone(sketcher).set_params(random_state=sketcher.random_state + 1).fit(sets.x[:2])
        )
    test = sketcher.sketch(sets.x_test, sets.y_test)
    start = time.perf_counter()
    model = NegDL(**options).fit(train)
    seconds = time.perf_counter() - start
    return Trained(100 * model.score(test), seconds, model)


def train_pixels(sets: Halves, **options: Any) -> Trained:
    """The same network on the images themselves: a sketch that tells every bit for sure is the
    image.
    """
    return train_sketches(Clear(), sets, **options)


class Clear:
    """No protection at all, in the storage of sketches: one true sighting of every bit."""

    def fit(self, images: Any) -> Clear:
        """Nothing to learn."""
        return self

    def sketch(self, images: NDArray[Any], labels: Any = None) -> Any:
        """The bits themselves as counts."""
        from blindsight.sketching.parameters import FlipParameters, as_images, to_bits
        from blindsight.sketching.sketches import SketchSet

        bits = np.moveaxis(to_bits(as_images(images, 8), 8), -1, 2)
        counts = np.stack([1 - bits, bits], axis=3)
        # Flips so rare that none is believed: the posterior of a sighted bit is 1 in single
        # precision.
        return SketchSet(counts, FlipParameters(beta=(1e-12,) * 8), labels)


def canvas(width: float = 6.0, height: float = 4.0) -> tuple[Any, Any]:
    """A figure without a screen, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()
