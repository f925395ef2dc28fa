"""Cells from the protected images themselves: noisy sums over unit rows give the parts of a
`Codebook`.

Principal components of d features meet noise of size sqrt(d) against eigenvalues of size n, so the
features first go through a random projection, which costs nothing, to few enough dimensions that
the components can be told from the noise. Cells are found within the leading components and are
written as directions of the projected space.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.cells import ClassCells, Embedding, GroupCells
from blindsight.hashing import moments
from blindsight.hashing.moments import Share, Sums
from blindsight.hashing.projection import principal_axes, random_rotation, unit_rows
from blindsight.privacy.clipping import clip_norm
from blindsight.privacy.door import Outer

__all__ = ["learn_classes", "learn_groups", "learning_shares"]

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Features are projected at random to this many; of these, so many principal components are looked
# at.
_DIMENSIONS, _COMPONENTS = 128, 16
_STEPS = 4  # of Lloyd's algorithm: each step costs
# Least-squares scores of one-hot labels are this far from a logistic classifier's.
_SHARPNESS = 10.0


def learning_shares(d: int, *, k: int, classes: int) -> tuple[Share, ...]:
    """What is learned and its share of the learning budget: `classes` is 0 without labels."""
    lifted = min(d, _DIMENSIONS)
    kept = min(_COMPONENTS, lifted)
    space = (
        Share("mean", 0.1, 2.0, lifted),
        Share("second moment", 0.3, math.sqrt(2), lifted * (lifted + 1) // 2),
    )
    if not classes:
        sums = Share("cell sums", 0.5, 2.0, k * kept, _STEPS)
        return (*space, sums, Share("cell counts", 0.1, math.sqrt(2), k))
    width = kept + 1
    directions = Share("directions' moment", 0.3, math.sqrt(2), width * (width + 1) // 2)
    return (*space, directions, Share("labels' moment", 0.3, 2.0, width * classes))


def learn_groups(
    X: Array, k: int, door: Sums, rng: np.random.Generator
) -> tuple[Embedding, GroupCells, Floats]:
    """k directions by Lloyd's algorithm on the sphere, and the share of images near each."""
    embedding, G, axes = _space(X, door, rng)
    # Directions to begin with that know nothing of the images.
    centres = unit_rows(rng.standard_normal((k, G.shape[1])))
    for _ in range(_STEPS):
        centres = unit_rows(door.total("cell sums", Outer(_members(G, centres), G)))
    counts = np.maximum(door.release("cell counts", _members(G, centres).sum(axis=0)), 1)
    cells = GroupCells((centres @ axes.T).astype(np.float32), np.arange(k))
    return embedding, cells, counts / counts.sum()


def learn_classes(
    X: Array, labels: Array, door: Sums, rng: np.random.Generator
) -> tuple[Embedding, ClassCells, Floats]:
    """A classifier by least squares from noisy moments, and the classes' shares; `labels` (n, C)
    have one 1 at most.
    """
    embedding, G, axes = _space(X, door, rng)
    # The constant column is scaled so that a row (g, 1)/sqrt(2) has norm 1.
    H = np.concatenate([G, np.ones((len(G), 1))], axis=1) / math.sqrt(2)
    second = moments.second(H, door, what="directions' moment")
    cross = moments.cross(H, clip_norm(labels, 1.0), door, what="labels' moment")
    # Noise may make the moment indefinite: the ridge is at least what the noise can take away.
    low = float(np.linalg.eigvalsh(second)[0])
    ridge = 1e-2 * len(G) / len(second) + 2 * max(0.0, -low)
    W = _SHARPNESS * np.linalg.solve(second + ridge * np.eye(len(second)), cross) / math.sqrt(2)
    cells = ClassCells((axes @ W[:-1]).T.astype(np.float32), W[-1].astype(np.float32))
    counts = np.maximum(cross[-1], 1)  # the constant column counts the classes, up to its scale
    return embedding, cells, counts / counts.sum()


def _space(X: Array, door: Sums, rng: np.random.Generator) -> tuple[Embedding, Floats, Floats]:
    """The embedding, its points (n, m) on their leading components (n, p) within the unit ball, and
    these (m, p).
    """
    d = X.shape[1]
    lift = random_rotation(d, _DIMENSIONS, rng) if d > _DIMENSIONS else np.eye(d)
    axes = lift.astype(np.float32)
    around = moments.mean(Embedding(axes, np.zeros(axes.shape[1], np.float32))(X), door)
    embedding = Embedding(axes, around.astype(np.float32))
    points = clip_norm(embedding(X), 1.0)
    leading = principal_axes(moments.second(points, door), min(_COMPONENTS, axes.shape[1]))
    return embedding, clip_norm(points @ leading, 1.0), leading


def _members(G: Floats, centres: Floats) -> Floats:
    member = np.zeros((len(G), len(centres)))
    member[np.arange(len(G)), (G @ centres.T).argmax(axis=1)] = 1
    return member
