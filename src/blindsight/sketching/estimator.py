"""Training inputs with a proven local guarantee per pixel or per image.

`FlippedBits` has a guarantee per pixel, and `CodebookSketcher` one per image, by k-ary response.
Both use the storage and training code of sketches. A guarantee per pixel is weak, because a picture
has many pixels; the guarantee states the epsilon per image, too. A guarantee per image protects the
whole picture, but its budget suffices only for one of k public prototypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.codebooks.build import from_classes
from blindsight.codebooks.cells import Embedding, GroupCells, ward_groups
from blindsight.codebooks.codebook import Codebook, number_of_cells
from blindsight.core import checks
from blindsight.core.arrays import Array, Bytes, Floats32, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy import Door, Guarantee
from blindsight.privacy.entropy import RandomState
from blindsight.privacy.estimator import Protected
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.sketching.guarantee import CELL, PIXEL, codebook_guarantee, flips_guarantee
from blindsight.sketching.parameters import FlipParameters, as_images, pixels_of, to_bits
from blindsight.sketching.sketches import Permanent, SketchSet

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["CodebookClassifier", "CodebookSketcher", "FlippedBits"]

_PER_CELL = 6  # average number of public images per cell


class FlippedBits(TransformerMixin, Protected):  # type: ignore[misc]
    """Converts images to flipped bits, stored as sketches with one observation of each bit.

    Parameters:
        epsilon: the budget per pixel, divided among its bits so that the squared error is least.
        depth: bits per pixel. Larger values are clipped, and fractions are rounded.
        random_state: None, a seed for a simulation, or `Permanent(vault)`: an image is then
            released, and charged, once.

    Guarantee:
        Pure local epsilon per pixel (randomised response); per image, it is multiplied by the
        number of pixels and channels. `transform` releases, and charges its ledger. Labels that are
        sent with the images are not protected.

    Examples:
        >>> images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
        >>> len(FlippedBits(epsilon=8.0, random_state=0).fit(images).sketch(images))
        2
    """

    _kind = "flipped-bits"

    def __init__(
        self, epsilon: float = 8.0, *, depth: int = 8, random_state: RandomState | Permanent = None
    ) -> None:
        self.epsilon = epsilon
        self.depth = depth
        self.random_state = random_state

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee for images of the public `image_shape` (channels, height, width)."""
        channels, height, width = (
            checks.whole("image_shape", size) for size in cast("list[int]", public["image_shape"])
        )
        parameters = FlipParameters.proven(self.epsilon, depth=self.depth)
        return flips_guarantee(parameters, (channels, height, width), entropy=self.entropy_)

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> FlippedBits:
        """Set the shape and the flip probabilities; nothing is learned from the images."""
        self.public_ = {"image_shape": [int(size) for size in self._inside(X).shape[1:]]}
        self.released_: dict[str, Any] = {}
        self.guarantee_ = self.promise(**self.public_)
        return self._settle_in()

    def _settle(self) -> None:
        channels, height, width = (int(size) for size in self.public_["image_shape"])
        self.parameters_ = FlipParameters.proven(self.epsilon, depth=self.depth)
        self.image_shape_ = (channels, height, width)

    def _inside(self, X: ArrayLike) -> Array:
        """Clip images (n, channels, h, w) to the depth, so that no private value is refused."""
        images = np.asarray(pixels_of(X))
        if images.dtype.kind == "f":
            images = np.rint(np.nan_to_num(images, posinf=2.0**self.depth, neginf=0.0))
        if images.dtype.kind in "fiu":
            images = np.clip(images, 0, 2**self.depth - 1)
        return as_images(images, self.depth)

    def transform(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Bytes:
        """Release counts (n, channels, L, 2, h, w) with a single 1 per bit.

        The ledger is charged first.
        """
        check_is_fitted(self, "parameters_")
        images = self._inside(X)
        if images.shape[1:] != self.image_shape_:
            raise InvalidData(
                f"images must have (channels, height, width) {self.image_shape_} as in fit, got "
                f"{images.shape[1:]}."
            )
        what = f"flipped bits of {len(images)} images"
        state = self.random_state
        permanent = isinstance(state, Permanent)
        if permanent and ledger is not None:
            ledger = state.account(ledger, self.mechanism_id_)
        door = Door(self.guarantee_, what=what, ledger=ledger, random_state=state)
        if permanent:
            released = door.release_each(PIXEL, images, state.names(images), about="pixels")
        else:
            released = door.release(PIXEL, images)
        ones = np.moveaxis(to_bits(released, self.parameters_.depth), -1, 2)
        return np.stack([1 - ones, ones], axis=3)

    @property
    def mechanism_id_(self) -> str:
        """The identity of the mechanism and of the images' shape, for a vault."""
        return f"{self.parameters_.fingerprint} {self.image_shape_}"

    def sketch(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> SketchSet:
        """Release images with their labels, which are not protected, as a set for `NegDL`."""
        labels = getattr(X, "labels", None) if y is None else np.asarray(y)
        return SketchSet(
            self.transform(X, ledger=ledger),
            self.parameters_,
            labels,
            tuple(getattr(X, "classes", ())),
        )


class CodebookSketcher(TransformerMixin, Protected):  # type: ignore[misc]
    """Releases one of k public prototypes for each image by k-ary response.

    Parameters:
        epsilon: the budget per image.
        k: the number of prototypes; None chooses it by epsilon and the number of public images.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        Pure local epsilon per record (image), if `fit` uses public images only. `transform`
        releases, and charges its ledger. Labels that are sent with the images are not protected.

    Examples:
        >>> public = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
        >>> CodebookSketcher(k=3, random_state=0).fit(public).transform(public[:2]).shape
        (2,)
    """

    _kind = "codebook-sketcher"

    def __init__(
        self,
        epsilon: float = 8.0,
        *,
        k: int | None = None,
        random_state: RandomState | Permanent = None,
    ) -> None:
        self.epsilon = epsilon
        self.k = k
        self.random_state = random_state

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee of releasing one of `k` prototypes."""
        mechanism = KaryResponse(
            epsilon=float(self.epsilon), k=checks.whole("k", public["k"]), unit="record"
        )
        return codebook_guarantee(mechanism, entropy=self.entropy_)

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> CodebookSketcher:
        """Learn the prototypes from public images and, if given, their public labels.

        With labels the prototypes are the classes, assigned by a linear classifier, which is the
        most informative choice for small budgets.
        """
        flat, epsilon = self._flat(pixels_of(X)), checks.positive("epsilon", self.epsilon)
        if y is not None:
            if self.k is not None:
                raise InvalidParameter(
                    "k must be None if public labels are given: then the classes are the cells."
                )
            book = from_classes(flat, np.asarray(y), epsilon, network=None)
        else:
            fitting = min(number_of_cells(epsilon), max(2, len(flat) // _PER_CELL))
            k = fitting if self.k is None else checks.whole("k", self.k, least=2)
            if k > len(flat):
                raise InvalidData(
                    f"a codebook of {k} prototypes needs as many public images, got {len(flat)}."
                )
            embedding = Embedding.plain(flat.shape[1]).around(flat)
            atoms = embedding(flat)
            book = Codebook(
                embedding, GroupCells(atoms, ward_groups(atoms, k)), epsilon, "pictures"
            )
        cells = book.assign(flat)
        sums = np.zeros((book.k, flat.shape[1]))
        np.add.at(sums, cells, flat)
        sizes = np.bincount(cells, minlength=book.k)[:, None]
        # The prototype of a cell without public images is the mean of all images.
        prototypes = np.where(sizes > 0, sums / np.maximum(sizes, 1), flat.mean(axis=0))
        arrays, fields = book.to_parts()
        self.public_ = {
            "k": book.k,
            "image_shape": [int(size) for size in np.shape(pixels_of(X))[1:]],
            "book": fields,
            "prototypes": prototypes.astype(np.float32),
            **{f"book {name}": array for name, array in arrays.items()},
        }
        self.released_: dict[str, Any] = {}
        self.guarantee_ = self.promise(**self.public_)
        return self._settle_in()

    def _settle(self) -> None:
        public = self.public_
        arrays = {
            name.removeprefix("book "): a for name, a in public.items() if name.startswith("book ")
        }
        self.book_ = Codebook.from_parts(arrays, public["book"])
        self.prototypes_ = np.asarray(public["prototypes"], np.float32)
        self.image_shape_ = tuple(int(size) for size in cast("list[int]", public["image_shape"]))
        self.mechanism_ = self.book_.mechanism
        fits = self.prototypes_.shape == (self.mechanism_.k, int(np.prod(self.image_shape_)))
        if not fits or (self.mechanism_.epsilon, self.mechanism_.k) != (
            float(self.epsilon),
            public["k"],
        ):
            raise InvalidData("the codebook, its prototypes and its budget do not fit each other.")

    def _flat(self, images: Array) -> Floats32:
        if images.ndim < 2 or images.dtype.kind not in "iuf" or not images.size:
            raise InvalidData(
                f"images must be a non-empty array of numbers, got {images.dtype} {images.shape}."
            )
        return np.nan_to_num(
            images.reshape(len(images), -1).astype(np.float32), posinf=0.0, neginf=0.0
        )

    def nearest(self, X: ArrayLike) -> Ints:
        """Return the nearest prototype of each image, without noise. It must stay private."""
        check_is_fitted(self, "prototypes_")
        flat = self._flat(pixels_of(X))
        if flat.shape[1] != self.prototypes_.shape[1]:
            raise InvalidData(
                f"images must have shape {self.image_shape_}, got {np.shape(pixels_of(X))[1:]}."
            )
        return np.concatenate(
            [self.book_.assign(flat[a : a + 4096]) for a in range(0, len(flat), 4096)]
        )

    def transform(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Ints:
        """Release one prototype number for each image; charge `ledger` first."""
        cells = self.nearest(X)
        what = f"prototypes of {len(cells)} images"
        door = Door(self.guarantee_, what=what, ledger=ledger, random_state=self.random_state)
        return door.release(CELL, cells)

    def pictures(self, released: ArrayLike) -> Floats32:
        """Return the posterior mean image given each released number, which an attacker sees."""
        truth = self.mechanism_.truth_probability
        lie = (1 - truth) / (self.mechanism_.k - 1)
        means = (truth - lie) * self.prototypes_ + lie * self.prototypes_.sum(axis=0)
        return np.asarray(means[np.asarray(released)].reshape(-1, *self.image_shape_))


class CodebookClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for released prototypes: it predicts the most frequent class of each number.

    Training and test images are both private.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> CodebookClassifier:
        """Count the classes of each released number."""
        cells, labels = np.asarray(X), np.asarray(y)
        if (
            cells.ndim != 1
            or cells.dtype.kind not in "iu"
            or cells.shape != labels.shape
            or not cells.size
        ):
            raise InvalidData(
                "released numbers and labels must be two rows of whole numbers of one length."
            )
        self.classes_, targets = np.unique(labels, return_inverse=True)
        counts = np.zeros((int(cells.max()) + 1, len(self.classes_)))
        np.add.at(counts, (cells, targets), 1)
        self.common_ = int(counts.sum(axis=0).argmax())
        self.counts_ = counts
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predict the most frequent class of each released number."""
        check_is_fitted(self, "counts_")
        cells = np.asarray(X)
        best = np.where(self.counts_.sum(axis=1) > 0, self.counts_.argmax(axis=1), self.common_)
        inside = (cells >= 0) & (cells < len(best))
        return self.classes_[np.where(inside, best[np.where(inside, cells, 0)], self.common_)]
