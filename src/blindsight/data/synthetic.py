"""Small sets made on the spot: the metric paper's two strips, and scenes of several digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import positive, whole
from blindsight.core.errors import InvalidParameter
from blindsight.data.catalogue import load
from blindsight.data.sets import MultiLabelSet, PairSet, Table

__all__ = ["acyclic_pairs", "scenes", "two_strips"]

_CELL = 32  # a digit of 28 x 28 with room to move


def two_strips(n: int = 200, *, seed: int = 0, gap: float = 0.06) -> Table:
    """Two aligned strips, one Gaussian per class (Figure 7a of the metric paper: 200 points, 100
    per class).

    The strips run along the diagonal and lie side by side, so that Euclidean neighbours are often
    of the other class and a metric that shrinks the diagonal separates them. Every row has an l1
    norm of at most 1.

    Args:
        n: Number of points, half in each class.
        seed: The same seed gives the same points.
        gap: Distance between the strips' centre lines.
    """
    whole("n", n, least=2)
    positive("gap", gap)
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    along, across = np.array([1.0, 1.0]) / np.sqrt(2), np.array([1.0, -1.0]) / np.sqrt(2)
    offsets = (labels - 0.5) * gap
    points = (
        np.array([0.25, 0.25])
        + rng.normal(0, 0.07, n)[:, None] * along
        + (offsets + rng.normal(0, 0.012, n))[:, None] * across
    )
    # Both coordinates within [0, 0.5]: the l1 norm is at most 1, as the paper asks of all its data.
    return Table(
        np.clip(points, 0.0, 0.5),
        labels.astype(np.int64),
        ("x", "y"),
        ("left", "right"),
        "two strips",
    )


def acyclic_pairs(
    labels: NDArray[np.int64], *, similar: int = 50, dissimilar: int = 50, seed: int = 0
) -> PairSet:
    """Labelled pairs whose graph has no cycle, as the paper chose for its toy example.

    Args:
        labels: Class of each row.
        similar: Pairs within each class.
        dissimilar: Pairs across classes.
        seed: The same seed gives the same pairs.

    Raises:
        InvalidParameter: There are too few rows for so many pairs without a cycle.
    """
    whole("similar", similar, least=0)
    whole("dissimilar", dissimilar, least=0)
    rng = np.random.default_rng(seed)
    labels = np.asarray(labels)
    parent = np.arange(len(labels))
    pairs: list[tuple[int, int]] = []
    marks: list[int] = []
    groups = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for group in groups:
        pairs += _forest(group, group, similar, parent, rng)
        marks += [1] * similar
    if dissimilar:
        if len(groups) < 2:
            raise InvalidParameter("dissimilar pairs need at least two classes.")
        pairs += _forest(groups[0], np.concatenate(groups[1:]), dissimilar, parent, rng)
        marks += [0] * dissimilar
    order = rng.permutation(len(pairs))
    indices = np.array(pairs, dtype=np.int64).reshape(-1, 2)[order]
    return PairSet(indices, np.array(marks, dtype=np.int64)[order], "acyclic pairs")


def scenes(
    n: int = 1000,
    *,
    seed: int = 0,
    most: int = 4,
    split: str | None = None,
    source: str = "mnist5k",
) -> MultiLabelSet:
    """Scenes of one to four digits on a 64 x 64 canvas, labelled with the digits that occur (10
    labels).

    Args:
        n: Number of scenes. seed: The same seed gives the same scenes. most: At most this many
        digits (1 to 4) in a scene; each lies in its own quarter, moved at random. split: Draw
        digits from this part of the source only, so that train and test share no digit. source: The
        set of 28 x 28 digits: "mnist5k" (built in) or "mnist".
    """
    whole("n", n)
    if not 1 <= whole("most", most) <= 4:
        raise InvalidParameter(f"most must be 1, 2, 3 or 4, got {most}.")
    digits = load(source, split)
    rng = np.random.default_rng(seed)
    canvas = np.zeros((n, 2 * _CELL, 2 * _CELL), dtype=np.uint8)
    labels = np.zeros((n, 10), dtype=np.uint8)
    counts = rng.integers(1, most + 1, n)
    quarters = rng.permuted(np.tile(np.arange(4), (n, 1)), axis=1)
    chosen = rng.integers(0, len(digits), (n, 4))
    moves = rng.integers(0, _CELL - 28 + 1, (n, 4, 2))
    images = digits.images
    for scene in range(n):
        for k in range(counts[scene]):
            row, column = divmod(int(quarters[scene, k]), 2)
            top, left = row * _CELL + moves[scene, k, 0], column * _CELL + moves[scene, k, 1]
            canvas[scene, top : top + 28, left : left + 28] = images[chosen[scene, k]]
            labels[scene, digits.labels[chosen[scene, k]]] = 1
    return MultiLabelSet(labels, canvas, None, digits.classes, name="scenes")


def _forest(
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    count: int,
    parent: NDArray[np.int64],
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Random pairs between two groups, none of which closes a cycle (union-find)."""
    pairs: list[tuple[int, int]] = []
    for _ in range(200 * count + 1000):
        if len(pairs) == count:
            return pairs
        a, b = int(rng.choice(first)), int(rng.choice(second))
        root_a, root_b = _root(parent, a), _root(parent, b)
        if root_a != root_b:
            parent[root_a] = root_b
            pairs.append((a, b))
    if len(pairs) == count:
        return pairs
    raise InvalidParameter(
        f"{count} pairs without a cycle do not fit {len(first)} and {len(second)} rows."
    )


def _root(parent: NDArray[np.int64], node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = int(parent[node])
    return node
