"""Inputs with a proven local guarantee: per pixel (flipped bits) and per image (a codebook and k-ary response).

Both go through the same storage and training code as sketches. Per pixel is a weak promise: a picture has many
pixels, and the guarantee says how epsilon grows with them. Per image is the promise that protects a picture, and few
questions asked well are all it can pay for: one of k public prototypes, answered with randomised response.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.privacy import Cost, Guarantee
from blindsight.privacy.entropy import release_rng, training_rng
from blindsight.privacy.mechanisms import BitFlip, KaryResponse
from blindsight.sketching.bits import as_images, bit_planes, pixels_of
from blindsight.sketching.flips import FlipParameters
from blindsight.sketching.sketches import SketchSet

__all__ = ["CodebookClassifier", "CodebookSketcher", "FlippedBits", "codebook_size", "flips_guarantee"]


def flips_guarantee(
    parameters: FlipParameters, image_shape: tuple[int, int, int], *, simulation: bool = False
) -> Guarantee:
    """What flipped bits promise, per pixel and per image of (channels, height, width)."""
    per_pixel = Cost(epsilon=parameters.epsilon_pixel, unit="pixel")
    return Guarantee(
        mechanism="random flipping of each bit of each pixel",
        unit="pixel",
        epsilon=per_pixel.epsilon,
        model="local",
        accountant="basic composition over the bits",
        assumptions=("a pixel is one value of one channel", "each image is sent once"),
        sampler="exact",
        simulation=simulation,
        also=(per_pixel.per("record", times=math.prod(image_shape)),),
    )


class FlippedBits(TransformerMixin, BaseEstimator):
    """Images to flipped bits, stored as sketches with one sighting a bit.

    Parameters
    ----------
    epsilon: per pixel; spent on the bits of a pixel where it lowers the squared error most.
    depth: bits a pixel.

    Guarantee
    ---------
    Pure local epsilon per pixel, proven (randomised response); times the number of pixels and channels per image.
    `transform` is the release: hand it the ledger.
    """

    def __init__(self, epsilon: float = 8.0, *, depth: int = 8, random_state: Any = None) -> None:
        self.epsilon = epsilon
        self.depth = depth
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> FlippedBits:
        """Fix the allocation and the shape; nothing is learned from the images."""
        parameters = FlipParameters.proven(self.epsilon, depth=self.depth)
        self._settle(parameters, as_images(pixels_of(X), parameters.depth).shape[1:])
        return self

    def _settle(self, parameters: FlipParameters, image_shape: Sequence[int]) -> None:
        channels, height, width = (int(size) for size in image_shape)
        self.parameters_ = parameters
        self.image_shape_ = (channels, height, width)
        self.guarantee_ = flips_guarantee(parameters, self.image_shape_, simulation=self.random_state is not None)

    def transform(self, X: Any, *, ledger: Any = None) -> NDArray[np.uint8]:
        """Counts (n, channels, L, 2, h, w) with a single one a bit; the ledger is charged before anything is drawn."""
        check_is_fitted(self, "parameters_")
        images = as_images(pixels_of(X), self.parameters_.depth)
        if images.shape[1:] != self.image_shape_:
            raise InvalidData(
                f"images must have (channels, height, width) {self.image_shape_} as in fit, got {images.shape[1:]}."
            )
        if ledger is not None:
            ledger.charge(self.guarantee_.cost, what="flipped bits of images")
        rng, _ = release_rng(self.random_state)
        n, channels, height, width = images.shape
        planes = bit_planes(images.reshape(n * channels, height, width), self.parameters_.depth)
        counts = np.zeros((n * channels, self.parameters_.depth, 2, height, width), np.uint8)
        for j, beta in enumerate(self.parameters_.beta):
            ones = BitFlip(beta=beta).release(planes[:, j], rng=rng)
            counts[:, j, 1] = ones
            counts[:, j, 0] = 1 - ones
        return counts.reshape(n, channels, self.parameters_.depth, 2, height, width)

    def sketch(self, X: Any, y: Any = None, *, ledger: Any = None) -> SketchSet:
        """`transform`, with labels and parameters beside it: what `NegDL` trains on."""
        labels = getattr(X, "labels", None) if y is None else y
        return SketchSet(self.transform(X, ledger=ledger), self.parameters_, labels, tuple(getattr(X, "classes", ())))

    def save(self, path: str | Path) -> None:
        """Write parameters and shape."""
        check_is_fitted(self, "parameters_")
        fields = {
            "parameters": self.parameters_.to_dict(),
            "image_shape": list(self.image_shape_),
            "epsilon": self.epsilon,
            "seed": self.random_state if isinstance(self.random_state, int) else None,
        }
        storage.save(path, kind="flipped-bits", arrays={}, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> FlippedBits:
        """Read back what `save` wrote."""
        _, fields = storage.load(path, kind="flipped-bits")
        try:
            parameters = FlipParameters.from_dict(fields["parameters"])
            flipper = cls(fields["epsilon"], depth=parameters.depth, random_state=fields["seed"])
            flipper._settle(parameters, fields["image_shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise HostileFile(f"{path} does not hold flipped bits' parameters: {error}") from error
        return flipper


def codebook_size(epsilon: float) -> int:
    """A size that fits the budget: k-ary response tells the truth about k prototypes only for epsilon above ln k."""
    return int(np.clip(round(np.exp(0.36 * checks.positive("epsilon", epsilon) + 1.45)), 4, 512))


class CodebookSketcher(TransformerMixin, BaseEstimator):
    """Images to one of k public prototypes, answered with k-ary response: the per-image guarantee.

    Parameters
    ----------
    epsilon: per image. k: prototypes; None for a size that fits epsilon.

    Guarantee
    ---------
    Pure local epsilon per record (image), proven, given that `fit` sees public images only. `transform` is the
    release: hand it the ledger.
    """

    def __init__(self, epsilon: float = 8.0, *, k: int | None = None, random_state: Any = None) -> None:
        self.epsilon = epsilon
        self.k = k
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> CodebookSketcher:
        """Learn the prototypes from *public* images (k-means on their leading principal components)."""
        from sklearn.cluster import KMeans
        from sklearn.decomposition import PCA

        flat = self._flat(pixels_of(X))
        k = codebook_size(self.epsilon) if self.k is None else checks.whole("k", self.k, least=2)
        if k > len(flat):
            raise InvalidData(f"a codebook of {k} prototypes needs as many public images, got {len(flat)}.")
        seed = int(training_rng(self.random_state)[0].integers(1 << 31))
        pca = PCA(min(50, *flat.shape), random_state=seed, svd_solver="randomized").fit(flat)
        cells = KMeans(k, n_init=4, random_state=seed).fit_predict(pca.transform(flat))
        means = np.stack([flat[cells == cell].mean(axis=0) for cell in range(k)])
        self._settle(means.astype(np.float32), np.shape(pixels_of(X))[1:])
        return self

    def _settle(self, prototypes: NDArray[np.float32], image_shape: Sequence[int]) -> None:
        self.prototypes_ = prototypes
        self.image_shape_ = tuple(int(size) for size in image_shape)
        self.mechanism_ = KaryResponse(epsilon=float(self.epsilon), k=len(prototypes), unit="record")
        self.guarantee_ = Guarantee(
            mechanism=f"k-ary response over {len(prototypes)} prototypes",
            unit="record",
            epsilon=self.mechanism_.cost.epsilon,
            model="local",
            assumptions=("the prototypes were learned from public images", "each image is sent once"),
            sampler="exact",
            simulation=self.random_state is not None,
        )

    def _flat(self, images: NDArray[Any]) -> NDArray[np.float32]:
        if images.ndim < 2 or images.dtype.kind not in "iuf" or not images.size:
            raise InvalidData(f"images must be a non-empty array of numbers, got {images.dtype} {images.shape}.")
        return images.reshape(len(images), -1).astype(np.float32)

    def nearest(self, X: Any) -> NDArray[np.int64]:
        """The nearest prototype of each image, before any noise: stays with the owner."""
        check_is_fitted(self, "prototypes_")
        flat = self._flat(pixels_of(X))
        if flat.shape[1] != self.prototypes_.shape[1]:
            raise InvalidData(f"images must have shape {self.image_shape_}, got {np.shape(pixels_of(X))[1:]}.")
        squared = (self.prototypes_**2).sum(axis=1)
        parts = [squared - 2 * flat[a : a + 4096] @ self.prototypes_.T for a in range(0, len(flat), 4096)]
        return np.concatenate(parts).argmin(axis=1)

    def transform(self, X: Any, *, ledger: Any = None) -> NDArray[np.int64]:
        """One released prototype number an image; the ledger is charged before anything is drawn."""
        cells = self.nearest(X)
        if ledger is not None:
            ledger.charge(self.guarantee_.cost, what="prototypes of images")
        rng, _ = release_rng(self.random_state)
        return self.mechanism_.release(cells, rng=rng)

    def pictures(self, released: Any) -> NDArray[np.float32]:
        """What an attacker sees: the posterior mean image given the released number."""
        truth = self.mechanism_.truth_probability
        other = (1 - truth) / (self.mechanism_.k - 1)
        shown = (truth - other) * self.prototypes_ + other * self.prototypes_.sum(axis=0)
        return shown[np.asarray(released)].reshape(-1, *self.image_shape_)

    def save(self, path: str | Path) -> None:
        """Write the prototypes and the budget."""
        check_is_fitted(self, "prototypes_")
        seed = self.random_state if isinstance(self.random_state, int) else None
        fields = {"epsilon": self.epsilon, "image_shape": list(self.image_shape_), "seed": seed}
        storage.save(path, kind="codebook-sketcher", arrays={"prototypes": self.prototypes_}, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> CodebookSketcher:
        """Read back what `save` wrote."""
        arrays, fields = storage.load(path, kind="codebook-sketcher")
        try:
            prototypes = checks.finite_array("prototypes", arrays["prototypes"], ndim=2).astype(np.float32)
            sketcher = cls(fields["epsilon"], k=len(prototypes), random_state=fields["seed"])
            sketcher._settle(prototypes, fields["image_shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise HostileFile(f"{path} does not hold a codebook: {error}") from error
        return sketcher


class CodebookClassifier(ClassifierMixin, BaseEstimator):
    """The server's part for prototypes: which class comes with which released number, counted.

    Training and test images are both private; the best guess for a released number is the class it came with most.
    """

    def fit(self, X: Any, y: Any) -> CodebookClassifier:
        """Count classes a released number."""
        cells, labels = np.asarray(X), np.asarray(y)
        if cells.ndim != 1 or cells.dtype.kind not in "iu" or cells.shape != labels.shape or not cells.size:
            raise InvalidData("released numbers and labels must be two rows of whole numbers of one length.")
        self.classes_, targets = np.unique(labels, return_inverse=True)
        counts = np.zeros((int(cells.max()) + 1, len(self.classes_)))
        np.add.at(counts, (cells, targets), 1)
        self.common_ = int(counts.sum(axis=0).argmax())
        self.counts_ = counts
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The commonest class of each released number."""
        check_is_fitted(self, "counts_")
        cells = np.asarray(X)
        best = np.where(self.counts_.sum(axis=1) > 0, self.counts_.argmax(axis=1), self.common_)
        inside = (cells >= 0) & (cells < len(best))
        return self.classes_[np.where(inside, best[np.where(inside, cells, 0)], self.common_)]
