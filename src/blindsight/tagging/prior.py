"""What is known in public about labels, before any private record is seen: a linear score for every
label.

The network that makes the features was trained to name 1,000 classes of ImageNet, and its last
layer still does. Names of labels are near names of classes (word vectors), so a label's score is
the mean of the standardised scores of the few classes nearest to it. That costs no epsilon at all;
private training then only has to learn what is left.

Guarantee: nothing private enters. The network, the class names and the word vectors are public;
`public` must be too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.tagging.inputs import feature_rows
from blindsight.tagging.label_vectors import known_vectors

__all__ = ["Prior", "imagenet_prior"]

Matrix = NDArray[np.float64]
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
    names: Sequence[str], *, public: Any = None, synonyms: Mapping[str, Sequence[str]] | None = None
) -> Prior:
    """The prior for EfficientNet-Lite0's features, from the network's own ImageNet classes.

    Parameters:
        names: the labels' names. public: features of public images, by whose mean and deviation
        scores are standardised; without them the layer's
            own weights stand in.
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
