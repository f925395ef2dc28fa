"""EfficientNet-Lite features: 1,280 numbers per image, pretrained on ImageNet; nothing of an image
stays behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from blindsight.core.checks import one_of, whole
from blindsight.data import LazyImages, cache_folder, to_rgb
from blindsight.encoders.cache import FeatureCache
from blindsight.encoders.images import as_images, chunks, content_key
from blindsight.encoders.network import DIMENSIONS, ENGINES, Engine, default_engine, network
from blindsight.encoders.weights import NETWORKS

__all__ = ["EfficientNet"]

Progress = Callable[[int, int], None]

_LOOK_UP = 2000  # images whose keys are looked up in the cache at once


class EfficientNet(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Pretrained features. Nothing is learned from the images: `fit` only checks the settings.

    The network was trained on public data (ImageNet), so the features carry no information about
    other records of the set. They do say much about their own image: treat them as private as the
    image.

    Args:
        size: Images are squeezed to size x size. 224 is what the network was trained at; 96 is
        about seven
            times faster and the better choice for small images (32 x 32 of CIFAR-10, 28 x 28 of
            MNIST).
        network: "lite0", or "lite2": somewhat better and slower. batch_size: Images at a time
        through the network; small batches stay in the processor's cache. threads: The network's
        threads. One is best when the machine is shared. cache: False (the default) keeps no traces.
        For public images only: True for the folder `features` of the
            cache, or a folder of your own.
        engine: "onnxruntime" or "torch"; by default the first where it is installed. Their features
        agree to 2e-5 of
            the largest.
    """

    def __init__(
        self,
        size: int = 224,
        *,
        network: str = "lite0",
        batch_size: int = 16,
        threads: int = 1,
        cache: bool | str | Path = False,
        engine: Engine | None = None,
    ) -> None:
        self.size = size
        self.network = network
        self.batch_size = batch_size
        self.threads = threads
        self.cache = cache
        self.engine = engine

    def fit(self, X: Any = None, y: Any = None) -> EfficientNet:
        """Check the settings; there is nothing to learn."""
        whole("size", self.size, least=32)
        one_of("network", self.network, tuple(NETWORKS))
        whole("batch_size", self.batch_size)
        whole("threads", self.threads)
        one_of("engine", self.engine or default_engine(), ENGINES)
        return self

    def transform(self, X: Any, *, progress: Progress | None = None) -> NDArray[np.float32]:
        """Features (n, 1280) of an image set, a uint8 array or lazy images."""
        images = as_images(X)
        result = np.empty((len(images), DIMENSIONS), dtype=np.float32)
        for where, vectors in self.stream(images, progress=progress):
            result[where] = vectors
        return result

    def stream(
        self, X: Any, *, progress: Progress | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """The same in pieces, `(row numbers, vectors)`, for sets whose features do not fit memory.

        Every row comes exactly once; within a few thousand rows, cached ones come first.
        """
        self.fit()
        images = as_images(X)
        done = 0
        for run_of_rows in chunks(len(images), _LOOK_UP):
            for where, vectors in self._some(images, np.array(run_of_rows)):
                done += len(where)
                yield where, vectors
                if progress is not None:
                    progress(done, len(images))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """efficientnet0 ... efficientnet1279."""
        return np.array([f"efficientnet{i}" for i in range(DIMENSIONS)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _some(
        self, images: NDArray[np.uint8] | LazyImages, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        store = self._store()
        if store is None:
            yield from self._compute(images, rows)
            return
        keys = [content_key(images, int(row)) for row in rows]
        found = store.get(keys)
        known = np.array([key in found for key in keys])
        if known.any():
            yield (
                rows[known],
                np.stack([found[key] for key, k in zip(keys, known, strict=True) if k]),
            )
        key_of = dict(zip(rows.tolist(), keys, strict=True))
        for where, vectors in self._compute(images, rows[~known]):
            store.put([key_of[row] for row in where.tolist()], vectors)
            yield where, vectors

    def _compute(
        self, images: NDArray[np.uint8] | LazyImages, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        if len(rows) == 0:
            return
        run = network(self.network, self.size, self.threads, self.engine or default_engine())
        for places in chunks(len(rows), self.batch_size):
            where = rows[places.start : places.stop]
            yield where, run(np.stack([to_rgb(images[int(row)], self.size) for row in where]))

    def _store(self) -> FeatureCache | None:
        if self.cache is False:
            return None
        folder = cache_folder() / "features" if self.cache is True else Path(self.cache)
        # The settings are in the file's name: other weights, size or preparation never meet.
        weights = NETWORKS[self.network].sha256[:8]
        return FeatureCache(
            folder / f"{self.network}-{self.size}-squeeze-{weights}.sqlite", DIMENSIONS
        )
