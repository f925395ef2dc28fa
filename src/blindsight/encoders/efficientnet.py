"""Feature extractors as scikit-learn transformers.

`EfficientNet` computes the features of a pretrained network, with a cache on disk. `pixels` and
`PixelPCA` use the pixels and their principal components.

The cache is one SQLite file per kind of extractor. A key is the BLAKE2b hash of the image's bytes;
the value is the vector with a checksum, so that a damaged entry is noticed and computed again.
Features reveal much about an image, so only the owner can read the file, and by default
(`cache=False`) the extractor stores nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import storage
from blindsight.core.checks import one_of, whole
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.data import ImageSet, LazyImages, MultiLabelSet, cache_folder, to_rgb
from blindsight.encoders.network import (
    DIMENSIONS,
    ENGINES,
    NETWORKS,
    Engine,
    default_engine,
    network,
)

__all__ = [
    "EfficientNet",
    "FeatureCache",
    "PixelPCA",
    "as_images",
    "chunks",
    "content_key",
    "pixels",
]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, vector BLOB NOT NULL, checksum "
    "INTEGER NOT NULL)"
)
_ASK_AT_ONCE = 500  # below SQLite's limit of variables in one statement


class FeatureCache:
    """A mapping on disk from image keys to float32 vectors of one length.

    Several processes may use it at once.
    """

    def __init__(self, path: Path, dimensions: int) -> None:
        self.path = path
        self.dimensions = dimensions

    def get(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The vectors that are stored and undamaged, by key; a damaged entry counts as absent."""
        if not self.path.exists():
            return {}
        vectors: dict[bytes, NDArray[np.float32]] = {}
        try:
            with self._connect() as connection:
                for start in range(0, len(keys), _ASK_AT_ONCE):
                    some = list(keys[start : start + _ASK_AT_ONCE])
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, vector, checksum FROM features WHERE key IN ({marks})"  # noqa: S608
                    for key, vector, checksum in connection.execute(query, some):
                        if self._whole(key, vector, checksum):
                            vectors[key] = np.frombuffer(vector, dtype="<f4").astype(
                                np.float32, copy=False
                            )
        except sqlite3.DatabaseError as error:
            self._discard(error)
        return vectors

    def put(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Store vectors. A cache that cannot be written (read-only or full disk) is not used."""
        rows = [
            (key, data := vector.astype("<f4").tobytes(), _checksum(key, data))
            for key, vector in zip(keys, vectors, strict=True)
        ]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._connect() as connection:
                connection.execute("PRAGMA page_size = 8192")  # of a new file
                # Take the write lock first: SQLite waits for it, but not for the upgrade of a read
                # lock.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
        except (sqlite3.DatabaseError, OSError) as error:
            self._discard(error)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            # Only the owner may read the file from its creation on. SQLite gives its side files the
            # same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        # Use the plain rollback journal: when SQLite begins a write-ahead log it does not wait for
        # other processes, and a batch written at that moment would be lost.
        with contextlib.closing(
            sqlite3.connect(self.path, timeout=60, isolation_level=None)
        ) as connection:
            yield connection

    def _whole(self, key: object, vector: object, checksum: object) -> bool:
        return (
            isinstance(key, bytes)
            and isinstance(vector, bytes)
            and len(vector) == 4 * self.dimensions
            and checksum == _checksum(key, vector)
        )

    def _discard(self, error: Exception) -> None:
        """Remove a file that is no database, but not one that is busy, full or read-only."""
        if isinstance(error, sqlite3.OperationalError) or not isinstance(
            error, sqlite3.DatabaseError
        ):
            return
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _checksum(key: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(key))


def as_images(images: Any) -> NDArray[np.uint8] | LazyImages:
    """The images of a set, or the array itself after its type and shape were checked."""
    if isinstance(images, (ImageSet, MultiLabelSet)):
        if images.images is None:
            raise InvalidData(f"{images.name} has no images to compute features from.")
        return images.images
    if isinstance(images, LazyImages) and not isinstance(images, np.ndarray):
        return images
    # An image set checks shape and type.
    return ImageSet(np.asarray(images)).array()


def content_key(images: NDArray[np.uint8] | LazyImages, index: int) -> bytes:
    """Hash one image: the encoded file if there is one, else the pixels and their shape."""
    digest = hashlib.blake2b(digest_size=20)
    if isinstance(images, np.ndarray):
        image = np.ascontiguousarray(images[index])
        digest.update(f"pixels {image.shape} ".encode())
        digest.update(image.data)
    else:
        digest.update(b"file ")
        digest.update(images.content(index))
    return digest.digest()


def chunks(n: int, size: int) -> Iterator[range]:
    """Split range(n) into consecutive ranges of at most `size` numbers."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))


Progress = Callable[[int, int], None]

_LOOK_UP = 2000  # images whose keys are looked up in the cache at once


class EfficientNet(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of a pretrained network. `fit` only checks the settings and learns nothing.

    The network was trained on public data (ImageNet), so the features of an image carry no
    information about other records of the set. They reveal much about the image itself: treat
    them as being as private as the image.

    Parameters:
        size: Images are resized to size x size. The network was trained at 224; 96 is about seven
            times faster and the better choice for small images (32 x 32 of CIFAR-10, 28 x 28 of
            MNIST).
        network: "lite0", or "lite2", which is somewhat better and slower.
        batch_size: Number of images that the network processes at once. Small batches stay in the
            processor's cache.
        threads: Number of threads of the network. One is best if the machine is shared.
        cache: False (the default) stores nothing. For public images only: True for the folder
            `features` of the cache, or the path of another folder.
        engine: "onnxruntime" or "torch"; by default onnxruntime if it is installed. Their features
            agree to 2e-5 of the largest.
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
        """Check the settings. Nothing is learned."""
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
        """Yield features in pieces, `(row numbers, vectors)`, for sets that do not fit into memory.

        Every row occurs exactly once. Within a few thousand rows, cached ones come first.
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
        """The names efficientnet0 to efficientnet1279."""
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
        stored = store.get(keys)
        is_stored = np.array([key in stored for key in keys])
        if is_stored.any():
            yield (
                rows[is_stored],
                np.stack([stored[key] for key, k in zip(keys, is_stored, strict=True) if k]),
            )
        key_of = dict(zip(rows.tolist(), keys, strict=True))
        for where, vectors in self._compute(images, rows[~is_stored]):
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
        # The file's name contains the settings, so vectors of other weights, sizes or preparations
        # are never mixed.
        weights = NETWORKS[self.network].sha256[:8]
        return FeatureCache(
            folder / f"{self.network}-{self.size}-squeeze-{weights}.sqlite", DIMENSIONS
        )


def pixels(images: Any, *, size: int | None = None) -> NDArray[np.float32]:
    """Convert images to rows of numbers in [0, 1].

    Parameters:
        images: An image set, a uint8 array or lazy images.
        size: Resize the images to size x size RGB first; needed if they differ in size.
    """
    source = as_images(images)
    array = ImageSet(source).array(size)
    return array.reshape(len(array), -1).astype(np.float32) / np.float32(255)


class PixelPCA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components of the pixels.

    The mean and the directions that `fit` learns depend on every image and carry no privacy
    guarantee: fit on public images if the result is released.

    Parameters:
        n_components: Number of components.
        whiten: Scale every component to unit variance.
        size: Resize images to size x size RGB first; needed if they differ in size.
        random_state: Seed of the randomised solver (used for large images only); None uses fresh
            entropy.
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
        n_kept = min(self.n_components, *rows.shape)
        pca = PCA(n_kept, whiten=self.whiten, random_state=self.random_state).fit(rows)
        self.components_, self.mean_ = pca.components_, pca.mean_
        # A component without variance is not scaled, to avoid a division by zero.
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

    def save(self, path: str | Path) -> None:
        """Write the mean and the components to one safetensors file."""
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
