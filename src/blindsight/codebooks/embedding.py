"""Where codebooks live: features weighted by what a public classifier looks at, on the unit sphere.

The head W of a pretrained classifier (one row per class) is a public statement of which directions
of the features tell photos apart. With W = A S V', its rows centred, e(x) = unit(sqrt(S / S_1) V'(x
- mean of x's entries)): strong directions count more, but only by the square root, and nothing is
cut. Nothing is learned from any stored image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile, InvalidData

__all__ = ["Embedding", "head_space", "unit_rows"]

Array = NDArray[Any]
Floats = NDArray[np.float32]


def unit_rows(X: Array) -> Floats:
    """Every row scaled to norm 1; rows of zeros stay."""
    norm = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norm > 0, norm, 1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Features (n, d) to unit rows (n, m). Both `axes` (d, m) and `centre` (m,) are public.

    With public pictures of the domain, `centre` is their mean: what all of them share does not tell
    them apart.
    """

    axes: Floats
    centre: Floats

    def __post_init__(self) -> None:
        if self.axes.ndim != 2 or self.centre.shape != self.axes.shape[1:]:
            raise HostileFile(
                "the embedding of a codebook has shapes that do not fit. Make it again."
            )

    def __call__(self, X: Array) -> Floats:
        rows = np.asarray(X, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != len(self.axes):
            raise InvalidData(f"features must have shape (n, {len(self.axes)}), got {rows.shape}.")
        return self.moved(unit_rows((rows - rows.mean(axis=1, keepdims=True)) @ self.axes))

    def moved(self, points: Floats) -> Floats:
        """Points on the sphere as seen from the centre."""
        return unit_rows(points - self.centre) if self.centre.any() else points

    def around(self, pictures: Array) -> Embedding:
        """The same, centred at public pictures of the domain (features)."""
        return Embedding(self.axes, self(pictures).mean(axis=0).astype(np.float32))

    @classmethod
    def plain(cls, d: int) -> Embedding:
        """Every direction alike: for features without a classifier, such as pixels."""
        return cls(np.eye(d, dtype=np.float32), np.zeros(d, dtype=np.float32))

    @classmethod
    def of_head(cls, head: Array) -> Embedding:
        """From a classifier's weights (classes, d)."""
        W = np.asarray(head, dtype=np.float64)
        W = W - W.mean(axis=0)
        # By the eigenvectors A of W W': a third of the time of a singular value decomposition, and
        # V = W'A / S.
        squares, A = np.linalg.eigh(W @ W.T)
        S, A = np.sqrt(np.maximum(squares[::-1], 0)), A[:, ::-1]
        kept = 1e-4 * S[0] < S
        axes = (W.T @ A[:, kept] / S[kept] * np.sqrt(S[kept] / S[0])).astype(np.float32)
        return cls(axes, np.zeros(axes.shape[1], dtype=np.float32))


@lru_cache(maxsize=2)
def head_space(network: str) -> tuple[Embedding, Floats]:
    """The embedding of a pretrained network's head, and its classes as atoms in it."""
    from blindsight.encoders.weights import head

    W = head(network)
    embedding = Embedding.of_head(W)
    return embedding, embedding(W - W.mean(axis=0))
