"""Supervised hashing with kernels (Liu, Wang, Ji, Jiang and Chang 2012)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from blindsight.core import checks
from blindsight.hashing.base import Hasher
from blindsight.hashing.kernel import AnchorKernel
from blindsight.hashing.labels import similarity
from blindsight.privacy.entropy import RandomState

__all__ = ["KSH"]

Array = NDArray[Any]


class KSH(Hasher):
    """Kernel hash functions, one bit at a time, so that code inner products follow the pairwise
    labels.

    Each bit fits what the earlier bits left of c S: first by its spectral relaxation, then by
    gradient steps on a smooth sign. `n_labelled` rows enter the pairwise matrix.
    """

    supervised: ClassVar[bool] = True
    _learned: ClassVar[tuple[str, ...]] = ("anchors_", "width_", "kernel_mean_", "weights_")

    def __init__(
        self,
        n_bits: int = 32,
        *,
        n_anchors: int = 300,
        n_labelled: int = 1000,
        n_steps: int = 50,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.n_labelled = n_labelled
        self.n_steps = n_steps
        self.random_state = random_state

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        kernel = AnchorKernel.learn(X, self.n_anchors, rng)
        self.anchors_, self.width_, self.kernel_mean_ = (
            kernel.anchors,
            np.array([kernel.width]),
            kernel.mean,
        )
        count = min(checks.whole("n_labelled", self.n_labelled, least=2), len(X))
        rows = np.sort(rng.choice(len(X), count, replace=False))
        assert labels is not None  # noqa: S101  (fit saw to it)
        K = kernel(X[rows]).astype(np.float64)
        residue = self.n_bits * similarity(labels[rows], labels[rows]).astype(np.float64)
        gram = K.T @ K
        gram[np.diag_indices_from(gram)] += 1e-6 * max(np.trace(gram) / len(gram), 1e-12)
        self.weights_ = np.empty((K.shape[1], self.n_bits))
        for bit in range(self.n_bits):
            a = _spectral(K, gram, residue)
            a = max(
                (a, _refine(K, residue, a, self.n_steps)), key=lambda w: _agreement(K, residue, w)
            )
            b = np.where(K @ a >= 0, 1.0, -1.0)
            residue -= np.outer(b, b)
            self.weights_[:, bit] = a

    def _project(self, X: Array) -> Array:
        return AnchorKernel(self.anchors_, self.width_.item(), self.kernel_mean_)(X) @ self.weights_


def _spectral(K: Array, gram: Array, residue: Array) -> Array:
    """Maximise (Ka)'R(Ka) over |Ka|^2 = l: the leading generalised eigenvector."""
    top = len(gram) - 1
    _, vectors = linalg.eigh(K.T @ residue @ K, gram, subset_by_index=(top, top))
    a = vectors[:, 0]
    return np.asarray(a * np.sqrt(len(K) / max(float(a @ gram @ a), 1e-300)))


def _refine(K: Array, residue: Array, a: Array, n_steps: int) -> Array:
    """Nesterov's gradient on -s'Rs with s = tanh(Ka / 2), the paper's smooth sign; steps halve when
    they fail.
    """
    best, momentum, step, previous = a, a, 1.0, 1.0
    value = _smooth(K, residue, a)
    for _ in range(n_steps):
        s = np.tanh(K @ momentum / 2)
        gradient = K.T @ ((residue @ s) * (1 - s * s))
        norm = float(np.linalg.norm(gradient))
        if norm == 0:
            break
        while step > 1e-6:
            trial = momentum + step * np.linalg.norm(a) * gradient / norm
            reached = _smooth(K, residue, trial)
            if reached >= value:
                break
            step /= 2
        else:
            break
        following = (1 + np.sqrt(1 + 4 * previous**2)) / 2
        momentum = trial + (previous - 1) / following * (trial - best)
        best, value, previous = trial, reached, following
    return best


def _smooth(K: Array, residue: Array, a: Array) -> float:
    s = np.tanh(K @ a / 2)
    return float(s @ residue @ s)


def _agreement(K: Array, residue: Array, a: Array) -> float:
    b = np.where(K @ a >= 0, 1.0, -1.0)
    return float(b @ residue @ b)
