"""Inputs of the head, and public knowledge about labels as a linear score for each label.

Private training clips the gradient of every record, which is its residual times its input, so rows
of one length use the bound fully. Pooled features share a large common part that carries no
information and takes up the bound. It is subtracted: the mean of public images, or the mean of the
records, released with noise. Public images of any subject also provide their main directions,
half-whitened; fewer directions need less noise.

The network that computes the features was trained on the 1,000 classes of ImageNet, and its last
layer still scores them. Names of labels are near names of classes (word vectors), so the score of a
label is the mean of the standardised scores of its nearest classes. That costs no epsilon; private
training only has to learn the rest.

Guarantee: the prior uses nothing private. The network, the class names and the word vectors are
public, and so must be `public`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.encoders.base import Encoder
from blindsight.privacy.clipping import finite_rows, unusable_rows
from blindsight.tagging.paper.label_vectors import known_vectors

__all__ = [
    "CONSTANT",
    "Inputs",
    "PaperInputs",
    "Prior",
    "encoder_prior",
    "feature_rows",
    "imagenet_prior",
    "private_rows",
    "unit_rows",
]

Matrix = NDArray[np.float64]
# The constant beside a row of length one: large enough to learn a rate by, small enough to cost the
# bound little.
CONSTANT = 0.3
_LENGTH = 4.0


def feature_rows(x: ArrayLike, *, n_features: int | None = None) -> NDArray[np.float32]:
    """Finite float rows (n, D), or an error that says what is wrong."""
    rows = checks.finite_array("X", x)
    _check_shape(rows.shape, n_features)
    return rows.astype(np.float32)


def private_rows(x: ArrayLike, *, n_features: int | None = None) -> tuple[NDArray[np.float32], int]:
    """Float rows (n, D) of private records, and how many of them were unusable and count as zeros.

    See `blindsight.privacy.clipping.finite_rows`.
    """
    rows = checks.number_array("X", x)
    _check_shape(rows.shape, n_features)
    return finite_rows(rows).astype(np.float32), int(unusable_rows(rows).sum())


def unit_rows(x: ArrayLike) -> Matrix:
    """Every row divided by its length; rows of zeros stay."""
    rows = np.asarray(x, np.float64)
    peak = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    rows = rows / np.where(peak > 0, peak, 1.0)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


@dataclass(frozen=True)
class Inputs:
    """Centre (D,) taken away from unit rows, and directions (D, r) that they are seen in; both
    public or released.

    The head's input is a row of length one with a constant beside it.
    """

    centre: Matrix
    directions: Matrix | None = None

    def __post_init__(self) -> None:
        # One layout in memory, so that a model that was saved and read gives the same numbers to
        # the last bit.
        object.__setattr__(self, "centre", np.ascontiguousarray(self.centre, np.float64))
        if self.directions is not None:
            object.__setattr__(
                self, "directions", np.ascontiguousarray(self.directions, np.float64)
            )

    @classmethod
    def from_public(cls, x: ArrayLike, *, components: int) -> Inputs:
        """The mean of public features, and their main directions, each scaled by the root of its
        deviation.
        """
        rows = unit_rows(feature_rows(x))
        centre = rows.mean(axis=0)
        _, size, axes = np.linalg.svd(rows - centre, full_matrices=False)
        kept = min(
            checks.whole("components", components), int((size > 1e-6 * max(size[0], 1e-300)).sum())
        )
        if kept == 0:
            raise InvalidData("public must hold images that differ from each other.")
        return cls(centre, axes[:kept].T / np.sqrt(size[:kept]))

    @property
    def width(self) -> int:
        """How many inputs the head has."""
        return 1 + (len(self.centre) if self.directions is None else self.directions.shape[1])

    def __call__(self, x: ArrayLike) -> Matrix:
        """The head's input (n, width)."""
        rows = unit_rows(x) - self.centre
        rows = unit_rows(rows if self.directions is None else rows @ self.directions)
        return np.hstack([rows, np.full((len(rows), 1), CONSTANT)])


@dataclass(frozen=True)
class PaperInputs:
    """ML-GCN's input: y = Wx has no bias, so rows are only scaled to one length.

    `floor` and `ceiling` are the corollaries' conditions: |x_i| at least, x_i at most.
    """

    floor: float | None = None
    ceiling: float | None = None

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """The head's input."""
        rows = (_LENGTH * unit_rows(x)).astype(np.float32)
        if self.floor is not None:
            rows = np.where(rows < 0, -1.0, 1.0) * np.maximum(np.abs(rows), self.floor)
        if self.ceiling is not None:
            rows = np.minimum(rows, self.ceiling)
        return rows.astype(np.float32)


def _check_shape(shape: tuple[int, ...], n_features: int | None) -> None:
    if len(shape) != 2 or shape[0] == 0 or shape[1] == 0:
        raise InvalidData(f"X must be a non-empty table of images by features, got shape {shape}.")
    if n_features is not None and shape[1] != n_features:
        raise InvalidData(
            f"X must have the {n_features} features of the training data, got {shape[1]}."
        )


# Of about 2,000 nouns, one in so many finds where texts lie.
_ONE_NOUN_IN = 20
# Chosen on a third of the COCO subset's training images: how many classes speak for a label, and
# how sharply the nearer ones count more.
_CLASSES, _SHARPNESS = 5, 10.0


@dataclass(frozen=True)
class Prior:
    """Public scores of C labels from features x: weights (C, D) x + offset (C,), of deviation about
    one.
    """

    weights: Matrix
    offset: Matrix

    def __post_init__(self) -> None:
        weights = checks.finite_array("weights", self.weights, ndim=2)
        object.__setattr__(self, "weights", np.ascontiguousarray(weights))
        object.__setattr__(self, "offset", checks.finite_array("offset", self.offset, ndim=1))
        if len(self.weights) != len(self.offset):
            raise InvalidData(
                f"a prior needs one offset per label, got {len(self.offset)} for "
                f"{len(self.weights)}."
            )

    def __call__(self, features: Any) -> Matrix:
        """The scores (n, C)."""
        return np.asarray(features, np.float64) @ self.weights.T + self.offset


def imagenet_prior(
    names: Sequence[str],
    *,
    public: ArrayLike | None = None,
    synonyms: Mapping[str, Sequence[str]] | None = None,
) -> Prior:
    """The prior for EfficientNet-Lite0's features, from the network's own ImageNet classes.

    Parameters:
        names: the labels' names.
        public: features of public images, by whose mean and deviation scores are standardised;
            without them the layer's own weights stand in.
        synonyms: further names of a label, where its own says little ("tv": ["television"]).
    """
    from blindsight.encoders.weights import read_weights
    from blindsight.encoders.words import class_names

    stored = read_weights()
    layer, bias = stored["_fc.weight"].astype(np.float64), stored["_fc.bias"].astype(np.float64)
    spoken = _nearness([[name, *(synonyms or {}).get(name, ())] for name in names], class_names())
    if public is None:
        # Without images: features are not negative and of similar size, so the row sum is a class's
        # usual score.
        mean, deviation = bias + _USUAL * layer.sum(axis=1), _USUAL * np.linalg.norm(layer, axis=1)
    else:
        scores = feature_rows(public, n_features=layer.shape[1]).astype(np.float64) @ layer.T + bias
        mean, deviation = scores.mean(axis=0), scores.std(axis=0)
    spoken = spoken / np.maximum(deviation, 1e-6)
    return Prior(spoken @ layer, spoken @ (bias - mean))


def encoder_prior(
    names: Sequence[str],
    encoder: Encoder,
    *,
    public: ArrayLike | None = None,
    synonyms: Mapping[str, Sequence[str]] | None = None,
) -> Prior:
    """The prior for any encoder that knows words, by its text tower or its classes' names.

    Parameters:
        names: the labels' names.
        encoder: the encoder whose vectors are the features.
        public: vectors of public images, by which scores are standardised; by default those of
            built-in pictures.
        synonyms: further names of a label, where its own says little.

    Raises:
        InvalidParameter: the encoder has neither texts nor classes.
    """
    from blindsight.encoders.embeddings import general_texts
    from blindsight.encoders.public_pictures import typical_vectors

    spoken = [[name, *(synonyms or {}).get(name, ())] for name in names]
    # Texts share a large common part, which says nothing about any label.
    general = general_texts(encoder, one_in=_ONE_NOUN_IN)
    centre = np.zeros(encoder.dimensions) if general is None else general.mean(axis=0)
    directions = np.stack([_label_direction(each, encoder, centre) for each in spoken])
    vectors = typical_vectors(encoder) if public is None else public
    rows = feature_rows(vectors, n_features=encoder.dimensions).astype(np.float64)
    scores = rows @ directions.T
    scale = 1 / np.maximum(scores.std(axis=0), 1e-6)
    return Prior(directions * scale[:, None], -scores.mean(axis=0) * scale)


def _label_direction(names: Sequence[str], encoder: Encoder, centre: Matrix) -> Matrix:
    """The direction (D,) in which images of a label lie; zeros where no word is known."""
    from blindsight.encoders.words import class_weights, understood

    vectors = encoder.texts(list(names))
    if vectors is not None:
        return np.asarray((vectors - centre).mean(axis=0), dtype=np.float64)
    classes = encoder.classes()
    if classes is None:
        raise InvalidParameter(f"{encoder.name} has neither a text tower nor classes.")
    listed = None if encoder.identity().get("kind") == "built-in" else classes.names
    known = [name for name in names if understood(name, listed).names]
    weights = classes.weights.astype(np.float64) - classes.weights.mean(axis=0)
    if not known:
        return np.zeros(weights.shape[1])
    return np.asarray(
        np.mean([class_weights(name, listed) @ weights for name in known], axis=0), np.float64
    )


# A usual feature of an image (mean over EfficientNet-Lite0's 1,280).
_USUAL = 0.3


def _nearness(names: Sequence[Sequence[str]], classes: Sequence[str]) -> Matrix:
    """How much each class speaks for each label (labels, classes): rows sum to one, or to zero for
    unknown words.
    """
    known = known_vectors([name.split("(")[0] for name in classes])
    centre = known.mean(axis=0)
    there = _unit(known - centre)
    spoken = np.zeros((len(names), len(classes)))
    for row, all_names in enumerate(names):
        vectors = known_vectors(all_names)
        vectors = vectors[np.abs(vectors).sum(axis=1) > 0]
        if len(vectors) == 0:
            continue
        near = (_unit(vectors - centre) @ there.T).max(axis=0)
        best = np.argsort(-near, kind="stable")[:_CLASSES]
        weight = np.exp(_SHARPNESS * (near[best] - near[best[0]]))
        spoken[row, best] = weight / weight.sum()
    return spoken


def _unit(rows: Matrix) -> Matrix:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
