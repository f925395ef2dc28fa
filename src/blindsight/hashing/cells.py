"""Cells to put images in: an embedding of their features, and k centres in it.

Unsupervised, an image is its direction in the leading principal components. Supervised, it is its vector of
predicted label probabilities, so that two images near each other are likely to share a label.

From private images everything is learned from noisy sums over unit rows (`moments`). Principal components
of d features meet noise of size sqrt(d) against eigenvalues of size n, so the features first go through a random
projection, which costs nothing, to few enough dimensions that the components can be told from the noise.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.hashing import moments
from blindsight.hashing.moments import NoNoise, Share, Sums
from blindsight.hashing.projection import principal_axes, random_rotation
from blindsight.privacy.clipping import clip_norm

__all__ = ["Cells", "Embedding", "Link", "learn_cells", "learn_embedding", "learning_shares", "unit_rows"]

Array = NDArray[Any]
Link = Literal["direction", "softmax", "sigmoid"]
Floats = NDArray[np.float64]

# Squared distances between unit rows and centres lie around 1.5; similarity falls to 1/e over 0.3 of that.
_BANDWIDTH = 0.45
# A multi-label probability vector is scaled so that its norm is at most 1; vectors longer than this are clipped.
_LABEL_NORM = 2.0
# With noise there is no label to set the softmax by; least-squares scores of one-hot labels are this far from 1.
_PRIVATE_SHARPNESS = 10.0
_MOST_ROWS = 20_000
# Features are projected at random to this many before anything is learned from private images.
_PRIVATE_DIMENSIONS = 128
_STEPS = 4  # of Lloyd's algorithm, where each step costs


def _lifted(X: Array, lift: Floats) -> Floats:
    rows = unit_rows(X)
    return unit_rows(rows @ lift) if lift.size else rows


def unit_rows(X: Array) -> Floats:
    """Every row scaled to norm 1; rows of zeros stay."""
    norm = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norm > 0, norm, 1)).astype(np.float64)


@dataclass(frozen=True)
class Embedding:
    """Features to points of norm at most 1: directions, or label probabilities (divided by `_LABEL_NORM` if many)."""

    lift: Floats  # (d, m) random projection before all else, empty for none
    mean: Floats
    axes: Floats
    coefficients: Floats  # (p, C), empty for directions
    intercept: Floats
    link: Link

    def __call__(self, X: Array) -> Floats:
        """Points (n, p) or (n, C)."""
        points = self.directions(X)
        if self.link == "direction":
            return points
        scores = points @ self.coefficients + self.intercept
        if self.link == "softmax":
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            return scores / scores.sum(axis=1, keepdims=True)
        return clip_norm(1 / (1 + np.exp(-np.clip(scores, -30, 30))), _LABEL_NORM) / _LABEL_NORM

    def directions(self, X: Array) -> Floats:
        """Unit rows, centred, on the principal axes, scaled to norm 1 again."""
        return unit_rows((_lifted(X, self.lift) - self.mean) @ self.axes)

    def similarity(self, points: Floats, centres: Floats) -> NDArray[np.float32]:
        """How similar (m, k) points are to centres: for label probabilities, the chance that a label is shared."""
        if self.link == "direction":
            squared = np.square(points).sum(axis=1)[:, None] - 2 * points @ centres.T + np.square(centres).sum(axis=1)
            return np.exp(-np.maximum(squared, 0) / _BANDWIDTH).astype(np.float32)
        if self.link == "softmax":
            return (points @ centres.T).astype(np.float32)
        a, b = np.clip(points * _LABEL_NORM, 0, 1), np.clip(centres * _LABEL_NORM, 0, 1)
        none = np.ones((len(a), len(b)))
        for label in range(a.shape[1]):
            none *= 1 - np.outer(a[:, label], b[:, label])
        return (1 - none).astype(np.float32)


@dataclass(frozen=True)
class Cells:
    """k centres and the share of images in each."""

    centres: Floats
    weights: Floats

    def assign(self, points: Floats) -> NDArray[np.int64]:
        """The nearest centre's index."""
        return np.argmin(np.square(self.centres).sum(axis=1) - 2 * points @ self.centres.T, axis=1)


def learning_shares(d: int, *, n_components: int, k: int, classes: int, steps: int = _STEPS) -> tuple[Share, ...]:
    """What is learned from private images and its share of the learning budget: `classes` is 0 without labels."""
    lifted = min(d, _PRIVATE_DIMENSIONS)
    kept = min(n_components, lifted)
    shares = [Share("mean", 0.1, 2.0, lifted), Share("second moment", 0.3, math.sqrt(2), lifted * (lifted + 1) // 2)]
    if classes > 1:
        width = kept + 1
        shares.append(Share("directions' moment", 0.2, math.sqrt(2), width * (width + 1) // 2))
        shares.append(Share("labels' moment", 0.2, 2.0, width * classes))
    left = 1 - sum(item.share for item in shares)
    points = classes if classes else kept
    shares.append(Share("cell sums", 0.75 * left, 2.0, k * points, steps))
    shares.append(Share("cell counts", 0.25 * left, math.sqrt(2), k, steps))
    return tuple(shares)


def learn_embedding(
    X: Array, labels: Array | None, n_components: int, door: Sums, rng: np.random.Generator, *, link: Link
) -> Embedding:
    """From features (n, d) and, supervised, an indicator (n, C); `link` says of which kind the labels are."""
    public = isinstance(door, NoNoise)
    lift = np.empty((X.shape[1], 0))
    if not public and X.shape[1] > _PRIVATE_DIMENSIONS:
        lift = random_rotation(X.shape[1], _PRIVATE_DIMENSIONS, rng)
    Z = _lifted(X, lift)
    mean = moments.mean(Z, door)
    axes = principal_axes(moments.second(clip_norm(Z - mean, 1.0), door), min(n_components, Z.shape[1]))
    plain = Embedding(lift, mean, axes, np.empty((axes.shape[1], 0)), np.empty(0), "direction")
    if labels is None:
        return plain
    G = plain.directions(X)
    if labels.shape[1] == 1:
        coefficients, intercept = np.zeros((G.shape[1], 1)), np.zeros(1)
    elif public:
        coefficients, intercept = _logistic(G, labels, link, rng)
    else:
        coefficients, intercept = _noisy_ridge(G, labels, link, door)
    return Embedding(lift, mean, axes, coefficients, intercept, link)


def learn_cells(points: Floats, k: int, link: Link, door: Sums, rng: np.random.Generator) -> Cells:
    """k-means; with a door, Lloyd's steps on noisy sums."""
    if not isinstance(door, NoNoise):
        centres, weights = moments.clusters(points, _start(points.shape[1], k, link, rng), _STEPS, door)
        return Cells(centres, weights)
    from sklearn.cluster import KMeans

    sample = points[_sample(len(points), rng)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than cells: the spare cells stay empty
        found = KMeans(k, n_init=1, random_state=int(rng.integers(2**31))).fit(sample)
    cells = Cells(found.cluster_centers_.astype(np.float64), np.full(k, 1 / k))
    counts = np.bincount(cells.assign(points), minlength=k) + 0.5
    return Cells(cells.centres, counts / counts.sum())


def _sample(n: int, rng: np.random.Generator) -> Array:
    return np.arange(n) if n <= _MOST_ROWS else np.sort(rng.choice(n, _MOST_ROWS, replace=False))


def _start(dimensions: int, k: int, link: Link, rng: np.random.Generator) -> Floats:
    """Centres to begin with that know nothing of the images."""
    if link == "direction":
        return unit_rows(rng.standard_normal((k, dimensions)))
    corners = np.eye(dimensions)[rng.permutation(dimensions)[:k]]
    mixed = rng.dirichlet(np.full(dimensions, 0.3), max(0, k - dimensions)).reshape(-1, dimensions)
    return np.concatenate([corners, mixed]) * (1.0 if link == "softmax" else 1 / _LABEL_NORM)


def _logistic(G: Floats, labels: Array, link: Link, rng: np.random.Generator) -> tuple[Floats, Floats]:
    from sklearn.linear_model import LogisticRegression

    rows = _sample(len(G), rng)
    G, labels = G[rows], labels[rows]
    C = labels.shape[1]
    coefficients, intercept = np.zeros((G.shape[1], C)), np.full(C, -30.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not yet converged is good enough
        if link == "softmax":
            y = labels.argmax(axis=1)
            seen = np.unique(y)
            if len(seen) == 1:
                intercept[seen] = 0
                return coefficients, intercept
            found = LogisticRegression(C=25.0, max_iter=200).fit(G, y)
            if len(seen) == 2:
                coefficients[:, seen[1]], intercept[seen] = found.coef_[0], (0.0, found.intercept_[0])
            else:
                coefficients[:, seen], intercept[seen] = found.coef_.T, found.intercept_
            return coefficients, intercept
        for label in range(C):
            share = labels[:, label].mean()
            if 0 < share < 1:
                found = LogisticRegression(C=10.0, max_iter=100).fit(G, labels[:, label])
                coefficients[:, label], intercept[label] = found.coef_[0], found.intercept_[0]
            elif share == 1:
                intercept[label] = 30.0
    return coefficients, intercept


def _noisy_ridge(G: Floats, labels: Array, link: Link, door: Sums) -> tuple[Floats, Floats]:
    """Least squares from noisy moments, sharpened to a link."""
    # Labels are scaled into the unit ball, and the constant column so that a row (g, 1)/sqrt(2) has norm 1.
    scale = 1.0 if link == "softmax" else _LABEL_NORM
    Y = clip_norm(labels.astype(np.float64), scale) / scale
    H = np.concatenate([G, np.ones((len(G), 1))], axis=1) / np.sqrt(2)
    second = moments.second(H, door, what="directions' moment")
    cross = moments.cross(H, Y, door, what="labels' moment") * scale
    # Noise may make the moment indefinite: the ridge is at least what the noise can take away.
    low = float(np.linalg.eigvalsh(second)[0])
    ridge = 1e-2 * len(G) / len(second) + 2 * max(0.0, -low)
    W = np.linalg.solve(second + ridge * np.eye(len(second)), cross) / np.sqrt(2)
    if link == "softmax":
        return _PRIVATE_SHARPNESS * W[:-1], _PRIVATE_SHARPNESS * W[-1]
    # A score of a half is even odds.
    return _PRIVATE_SHARPNESS * W[:-1], _PRIVATE_SHARPNESS * (W[-1] - 0.5)
