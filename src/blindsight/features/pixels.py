"""The light alternative: plain pixels, and their principal components."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.checks import whole
from blindsight.data import ImageSet, LazyImages, MultiLabelSet
from blindsight.features.images import as_images

__all__ = ["PixelPCA", "pixels"]


def pixels(images: Any, *, size: int | None = None) -> NDArray[np.float32]:
    """Images as rows of numbers in [0, 1]; `size` resizes them first (to RGB), as lazy sets of photos need."""
    source = as_images(images)
    kept = ImageSet(source).array(size)
    return kept.reshape(len(kept), -1).astype(np.float32) / np.float32(255)


class PixelPCA(TransformerMixin, BaseEstimator):
    """Principal components of the pixels.

    What `fit` learns (mean and directions) depends on every image it sees and carries no guarantee: fit it on
    public images if the result is released.

    Args:
        n_components: How many components to keep.
        whiten: Scale every component to unit variance.
        size: Resize images to size x size RGB first; needed if they differ in size.
        random_state: Seed of the randomised solver (used for large images only); None for fresh randomness.
    """

    def __init__(
        self, n_components: int = 64, *, whiten: bool = False, size: int | None = None, random_state: Any = None
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.size = size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn mean and directions from images (or from rows of numbers)."""
        whole("n_components", self.n_components)
        rows = self._rows(X, reset=True)
        kept = min(self.n_components, *rows.shape)
        self.pca_ = PCA(kept, whiten=self.whiten, random_state=self.random_state).fit(rows)
        self.components_ = self.pca_.components_
        self.mean_ = self.pca_.mean_
        return self

    def transform(self, X: Any) -> NDArray[np.floating[Any]]:
        """Project images (or rows) onto the components."""
        check_is_fitted(self)
        result: NDArray[np.floating[Any]] = self.pca_.transform(self._rows(X, reset=False))
        return result

    def inverse_transform(self, Z: Any) -> NDArray[np.floating[Any]]:
        """Back to rows of pixels in [0, 1], as far as the components remember."""
        check_is_fitted(self)
        result: NDArray[np.floating[Any]] = self.pca_.inverse_transform(Z)
        return result

    @property
    def _n_features_out(self) -> int:
        return int(self.pca_.n_components_)

    def _rows(self, X: Any, *, reset: bool) -> NDArray[np.floating[Any]]:
        images = isinstance(X, (ImageSet, MultiLabelSet)) or (
            isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim in (3, 4)
        )
        if not images and not isinstance(X, np.ndarray) and isinstance(X, LazyImages):
            images = True
        rows = pixels(X, size=self.size) if images else X
        checked: NDArray[np.floating[Any]] = validate_data(
            self, rows, reset=reset, dtype=[np.float64, np.float32], ensure_min_samples=2 if reset else 1
        )
        return checked
