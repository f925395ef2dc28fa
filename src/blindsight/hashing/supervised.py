"""Hashers that learn from features and labels: KSH and SDH, and the kernel features they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from blindsight.core import checks
from blindsight.hashing.base import Hasher, similarity
from blindsight.privacy.entropy import RandomState

__all__ = ["KSH", "SDH", "AnchorKernel"]

Array = NDArray[Any]


@dataclass(frozen=True)
class AnchorKernel:
    """Gaussian kernel values to anchors, centred: k(x) = exp(-|x - a|^2 / width) - mean."""

    anchors: Array
    width: float
    mean: Array

    @classmethod
    def learn(cls, X: Array, n_anchors: int, rng: np.random.Generator) -> AnchorKernel:
        """Anchors drawn from the rows; the width is the mean squared distance to them."""
        count = min(checks.whole("n_anchors", n_anchors), len(X))
        anchors = X[np.sort(rng.choice(len(X), count, replace=False))]
        sample = X[np.sort(rng.choice(len(X), min(len(X), 2000), replace=False))]
        width = max(float(_squared_distances(sample, anchors).mean()), np.finfo(np.float64).tiny)
        raw = cls(anchors, width, np.zeros(count, dtype=X.dtype))
        return cls(anchors, width, raw(X).mean(axis=0, dtype=np.float64).astype(X.dtype))

    def __call__(self, X: Array) -> Array:
        values = _squared_distances(X, self.anchors)
        values /= -self.width
        np.exp(values, out=values)
        values -= self.mean
        return values


def _squared_distances(X: Array, anchors: Array) -> Array:
    distances = X @ (-2 * anchors.T)
    distances += np.square(X).sum(axis=1)[:, None]
    distances += np.square(anchors).sum(axis=1)
    return np.asarray(np.maximum(distances, 0, out=distances))


class KSH(Hasher):
    """Kernel hash functions, one bit at a time, so that code inner products follow the pairwise
    labels.

    Each bit fits what the earlier bits left of c S: first by its spectral relaxation, then by
    gradient steps on a smooth sign. `n_labelled` rows enter the pairwise matrix.

    Parameters:
        n_bits: length of a code.
        n_anchors: rows that the kernel compares with.
        n_labelled: rows that enter the pairwise matrix.
        n_steps: gradient steps for each bit.
        random_state: seed or generator of what is drawn while learning; None draws a fresh one.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> KSH(16, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
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


class SDH(Hasher):
    """Alternate three steps: a ridge classifier on the codes (G), the codes bit by bit (B), the
    hash function (F).

    min |Y - B W|^2 + lambda |W|^2 + nu |B - F(X)|^2 over binary B, with F a linear map of kernel
    features.

    Parameters:
        n_bits: length of a code.
        n_anchors: rows that the kernel compares with.
        n_iterations: rounds of the three steps.
        regularisation: weight lambda of the classifier's norm.
        nu: weight of the difference between codes and hash function.
        random_state: seed or generator of what is drawn while learning; None draws a fresh one.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> SDH(16, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

    supervised: ClassVar[bool] = True
    _learned: ClassVar[tuple[str, ...]] = ("anchors_", "width_", "kernel_mean_", "weights_")

    def __init__(
        self,
        n_bits: int = 32,
        *,
        n_anchors: int = 500,
        n_iterations: int = 5,
        regularisation: float = 1.0,
        nu: float = 1e-5,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.n_iterations = n_iterations
        self.regularisation = regularisation
        self.nu = nu
        self.random_state = random_state

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        assert labels is not None  # noqa: S101  (fit saw to it)
        ridge, nu = (
            checks.positive("regularisation", self.regularisation),
            checks.non_negative("nu", self.nu),
        )
        kernel = AnchorKernel.learn(X, self.n_anchors, rng)
        self.anchors_, self.width_, self.kernel_mean_ = (
            kernel.anchors,
            np.array([kernel.width]),
            kernel.mean,
        )
        K = kernel(X)
        gram = (K.T @ K).astype(np.float64)
        gram[np.diag_indices_from(gram)] += 1e-4 * max(np.trace(gram) / len(gram), 1e-12)
        factor = linalg.cho_factor(gram)
        B = np.where(rng.random((len(X), self.n_bits)) < 0.5, np.float32(-1), np.float32(1))
        Y = labels.astype(np.float32)
        P = linalg.cho_solve(factor, (K.T @ B).astype(np.float64))
        for _ in range(checks.whole("n_iterations", self.n_iterations)):
            W = np.linalg.solve(B.T @ B + ridge * np.eye(self.n_bits), B.T @ Y)  # G-step
            Q = Y @ W.T.astype(np.float32) + np.float32(nu) * (K @ P.astype(K.dtype))
            B = _cyclic_descent(B, Q.astype(np.float32), (W @ W.T).astype(np.float32))  # B-step
            P = linalg.cho_solve(factor, (K.T @ B).astype(np.float64))  # F-step
        self.weights_ = P

    def _project(self, X: Array) -> Array:
        kernel = AnchorKernel(self.anchors_, self.width_.item(), self.kernel_mean_)
        return np.asarray(kernel(X) @ self.weights_)


def _cyclic_descent(B: Array, Q: Array, gram: Array, *, n_sweeps: int = 5) -> Array:
    """Discrete cyclic coordinate descent: bit k's best values given the others, b = sign(q -
    B_other W_other w).
    """
    B = B.copy()
    for _ in range(n_sweeps):
        changed = False
        for k in range(B.shape[1]):
            pull = Q[:, k] - B @ gram[:, k] + B[:, k] * gram[k, k]
            fresh = np.where(pull >= 0, np.float32(1), np.float32(-1))
            changed |= not np.array_equal(fresh, B[:, k])
            B[:, k] = fresh
        if not changed:
            break
    return B
