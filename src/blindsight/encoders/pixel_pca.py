"""The light alternative: plain pixels, and their principal components."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import storage
from blindsight.core.checks import whole
from blindsight.core.errors import HostileFile
from blindsight.data import ImageSet, LazyImages, MultiLabelSet
from blindsight.encoders.images import as_images

__all__ = ["PixelPCA", "pixels"]


def pixels(images: Any, *, size: int | None = None) -> NDArray[np.float32]:
    """Images as rows of numbers in [0, 1]; `size` resizes them first (to RGB), as lazy sets of
    photos need.
    """
    source = as_images(images)
    kept = ImageSet(source).array(size)
    return kept.reshape(len(kept), -1).astype(np.float32) / np.float32(255)


class PixelPCA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components of the pixels.

    What `fit` learns (mean and directions) depends on every image it sees and carries no guarantee:
    fit it on public images if the result is released.

    Args:
        n_components: How many components to keep. whiten: Scale every component to unit variance.
        size: Resize images to size x size RGB first; needed if they differ in size. random_state:
        Seed of the randomised solver (used for large images only); None for fresh randomness.
    """

    def __init__(
        self,
        n_components: int = 64,
        *,
        whiten: bool = False,
        size: int | None = None,
        random_state: Any = None,
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
        pca = PCA(kept, whiten=self.whiten, random_state=self.random_state).fit(rows)
        self.components_, self.mean_ = pca.components_, pca.mean_
        # A component without variance stays as it is rather than being divided by nothing.
        deviation = np.sqrt(np.maximum(pca.explained_variance_, 0))
        self.scale_ = (
            np.where(deviation > 0, deviation, 1) if self.whiten else np.ones_like(deviation)
        )
        return self

    def transform(self, X: Any) -> NDArray[np.floating[Any]]:
        """Project images (or rows) onto the components."""
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        result: NDArray[np.floating[Any]] = ((rows - self.mean_) @ self.components_.T) / self.scale_
        return result

    def inverse_transform(self, Z: Any) -> NDArray[np.floating[Any]]:
        """Back to rows of pixels in [0, 1], as far as the components remember."""
        check_is_fitted(self)
        result: NDArray[np.floating[Any]] = (
            np.asarray(Z) * self.scale_
        ) @ self.components_ + self.mean_
        return result

    def save(self, path: str | Path) -> None:
        """Write what was learned as one safetensors file."""
        check_is_fitted(self)
        arrays = {"components": self.components_, "mean": self.mean_, "scale": self.scale_}
        fields = {"n_components": self.n_components, "whiten": self.whiten, "size": self.size}
        storage.save(path, kind="pixel-pca", arrays=arrays, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            HostileFile: The file is damaged, or is no saved PixelPCA.
        """
        arrays, fields = storage.load(path, kind="pixel-pca")
        try:
            fitted = cls(fields["n_components"], whiten=fields["whiten"], size=fields["size"])
            components, mean, scale = (arrays[name] for name in ("components", "mean", "scale"))
        except KeyError as error:
            raise HostileFile(
                f"{Path(path).name} lacks {error}: it is no saved PixelPCA."
            ) from None
        if (
            components.ndim != 2
            or mean.shape != components.shape[1:]
            or scale.shape != components.shape[:1]
        ):
            raise HostileFile(f"{Path(path).name} holds arrays whose shapes do not fit together.")
        fitted.components_, fitted.mean_, fitted.scale_ = components, mean, scale
        fitted.n_features_in_ = components.shape[1]
        return fitted

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _rows(self, X: Any, *, reset: bool) -> NDArray[np.floating[Any]]:
        images = isinstance(X, (ImageSet, MultiLabelSet)) or (
            isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim in (3, 4)
        )
        if not images and not isinstance(X, np.ndarray) and isinstance(X, LazyImages):
            images = True
        rows = pixels(X, size=self.size) if images else X
        checked: NDArray[np.floating[Any]] = validate_data(
            self,
            rows,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_min_samples=2 if reset else 1,
        )
        return checked
