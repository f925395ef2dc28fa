"""Hashers without privacy that need no neural network.

LSH, SH and ITQ learn from features alone, KSH and SDH from features and labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import linalg

from blindsight.core import checks
from blindsight.core.arrays import Array, Floats
from blindsight.hashing.base import Hasher, similarity
from blindsight.privacy.entropy import RandomState

__all__ = [
    "ITQ",
    "KSH",
    "LSH",
    "SDH",
    "SH",
    "AnchorKernel",
    "principal_axes",
    "procrustes",
    "quantisation_loss",
    "random_rotation",
    "second_moment",
    "unit_rows",
]


def unit_rows(X: Array) -> Floats:
    """Scale every row to norm 1. Rows of zeros are unchanged."""
    rows = np.asarray(X, dtype=np.float64)
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norm > 0, norm, 1))


def second_moment(X: Array, mean: Array, *, block: int = 8192) -> Floats:
    """Compute (X - mean)'(X - mean) in blocks of rows, without a centred copy of X."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), block):
        rows = X[start : start + block] - mean
        total += rows.T @ rows
    return total


def principal_axes(moment: Array, count: int) -> Floats:
    """Return the `count` leading eigenvectors (d, count) of a symmetric matrix.

    They are in descending order of their eigenvalues and have fixed signs.
    """
    size = len(moment)
    _, vectors = linalg.eigh(moment, subset_by_index=(size - count, size - 1))
    axes = vectors[:, ::-1]
    # An eigenvector's sign is arbitrary: fix it, so that two runs agree.
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(count)]
    return np.asarray(axes * np.where(largest < 0, -1.0, 1.0))


def random_rotation(rows: int, columns: int, rng: np.random.Generator) -> Floats:
    """Draw a random (rows, columns) matrix with orthonormal columns.

    If there are fewer rows than columns, the rows are orthonormal instead.
    """
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    basis, upper = np.linalg.qr(tall)
    basis = basis * np.where(np.diag(upper) < 0, -1.0, 1.0)
    return basis if rows >= columns else basis.T


def procrustes(cross: Array) -> Floats:
    """Return the rotation R = M N' that minimises |U - V R|, from `cross` = U'V = N Omega M'."""
    n, _, m = np.linalg.svd(cross, full_matrices=False)
    return np.asarray(m.T @ n.T)


class LSH(Hasher):
    """Locality-sensitive hashing: bits are the sides of random hyperplanes (Charikar 2002).

    With `center=False` the hash function does not depend on the images at all and can be
    published. With `center=True`, which is better for non-negative features, it depends on their
    mean.

    Parameters:
        n_bits: length of a code.
        center: subtract the mean of the images first.
        random_state: seed or generator for learning; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> LSH(16, random_state=0).fit(X).transform(X).shape
        (40, 2)
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "directions_")

    def __init__(
        self, n_bits: int = 32, *, center: bool = True, random_state: RandomState = None
    ) -> None:
        self.n_bits = n_bits
        self.center = center
        self.random_state = random_state

    @property
    def data_free(self) -> bool:  # type: ignore[override]
        """Whether the hash function is independent of the images."""
        return not self.center

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        self.mean_ = X.mean(axis=0, dtype=np.float64) if self.center else np.zeros(X.shape[1])
        self.directions_ = rng.standard_normal((X.shape[1], self.n_bits))

    def _project(self, X: Array) -> Array:
        return (X - self.mean_) @ self.directions_


class SH(Hasher):
    """Spectral hashing (Weiss, Torralba and Fergus 2008).

    Bits are the signs of sin(pi/2 + k pi (v - low) / (high - low)), the analytical eigenfunctions
    of a uniform distribution on a box, along the principal components v. Of all components and
    wave numbers k, those with the c smallest eigenvalues, (k / (high - low))^2, are used.

    Parameters:
        n_bits: length of a code.
        random_state: accepted for consistency with the other hashers; SH draws nothing at random.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> SH(16, random_state=0).fit(X).transform(X).shape
        (40, 2)
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "projection_", "low_", "frequency_")

    def __init__(self, n_bits: int = 32, *, random_state: RandomState = None) -> None:
        self.n_bits = n_bits
        self.random_state = random_state

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        self.mean_ = X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        axes = min(self.n_bits, X.shape[1])
        projection = principal_axes(second_moment(X, self.mean_), axes)
        V = (X - self.mean_) @ projection
        low, high = V.min(axis=0), V.max(axis=0)
        extent = np.maximum(high - low, np.finfo(np.float64).tiny)
        waves = np.arange(1, self.n_bits + 1)
        eigenvalues = np.square(waves[:, None] / extent[None, :])
        chosen = np.argsort(eigenvalues, axis=None, kind="stable")[: self.n_bits]
        wave, axis = np.unravel_index(chosen, eigenvalues.shape)
        self.projection_ = projection[:, axis]
        self.low_ = low[axis]
        self.frequency_ = np.pi * waves[wave] / extent[axis]

    def _project(self, X: Array) -> Array:
        V = (X - self.mean_) @ self.projection_
        return np.asarray(np.sin(np.pi / 2 + (V - self.low_) * self.frequency_))


def quantisation_loss(U: Array, V: Array, R: Array) -> float:
    """Equation 4: ||U - V R||_F^2 with V = Y W."""
    return float(np.square(U - V @ R).sum(dtype=np.float64))


class ITQ(Hasher):
    """Iterative quantisation (Gong et al. 2013).

    After PCA, the codes U = sign(YWR) and the rotation R that fits them best are updated in turn.
    With more bits than features, R is a (d, c) matrix with orthonormal rows; the steps and the
    proof that the loss never increases are the same. `losses_` holds the value of Equation 4 after
    every half step.

    Parameters:
        n_bits: length of a code.
        n_iterations: how often codes and rotation are updated.
        random_state: seed or generator for learning; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> ITQ(16, random_state=0).fit(X).transform(X).shape
        (40, 2)
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "projection_", "rotation_")

    def __init__(
        self, n_bits: int = 32, *, n_iterations: int = 50, random_state: RandomState = None
    ) -> None:
        self.n_bits = n_bits
        self.n_iterations = n_iterations
        self.random_state = random_state

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        checks.whole("n_iterations", self.n_iterations)
        self.mean_ = X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        axes = min(self.n_bits, X.shape[1])
        self.projection_ = principal_axes(second_moment(X, self.mean_), axes).astype(X.dtype)
        V = (X - self.mean_) @ self.projection_
        R = random_rotation(axes, self.n_bits, rng).astype(X.dtype)
        self.losses_: list[float] = []
        for _ in range(self.n_iterations):
            U = np.where(V @ R >= 0, X.dtype.type(1), X.dtype.type(-1))
            self.losses_.append(quantisation_loss(U, V, R))
            R = procrustes(U.T @ V).astype(X.dtype)
            self.losses_.append(quantisation_loss(U, V, R))
        self.rotation_ = R

    def _project(self, X: Array) -> Array:
        return np.asarray((X - self.mean_) @ self.projection_ @ self.rotation_)


@dataclass(frozen=True)
class AnchorKernel:
    """Centred Gaussian kernel features k(x) = exp(-|x - a|^2 / width) - mean for anchors a."""

    anchors: Array
    width: float
    mean: Array

    @classmethod
    def learn(cls, X: Array, n_anchors: int, rng: np.random.Generator) -> AnchorKernel:
        """Draw anchors from the rows; the width is the mean squared distance to the anchors."""
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


class _KernelHasher(Hasher):
    """The base class of KSH and SDH: a linear map of kernel features, learned from labels."""

    supervised: ClassVar[bool] = True
    _learned: ClassVar[tuple[str, ...]] = ("anchors_", "width_", "kernel_mean_", "weights_")
    n_anchors: int

    def _learn_kernel(self, X: Array, rng: np.random.Generator) -> AnchorKernel:
        kernel = AnchorKernel.learn(X, self.n_anchors, rng)
        self.anchors_, self.kernel_mean_ = kernel.anchors, kernel.mean
        self.width_ = np.array([kernel.width])
        return kernel

    def _project(self, X: Array) -> Array:
        kernel = AnchorKernel(self.anchors_, self.width_.item(), self.kernel_mean_)
        return np.asarray(kernel(X) @ self.weights_)


class KSH(_KernelHasher):
    """Supervised hashing with kernels (Liu et al. 2012).

    Bits are learned one at a time, so that inner products of codes approximate c S, where S holds
    the pairwise similarities. Each bit fits the residual of the earlier bits: first by spectral
    relaxation, then by gradient steps on a smooth sign function.

    Parameters:
        n_bits: length of a code.
        n_anchors: number of rows that serve as anchors of the kernel.
        n_labelled: number of rows whose pairwise similarities are used.
        n_steps: gradient steps for each bit.
        random_state: seed or generator for learning; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> KSH(16, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

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
        kernel = self._learn_kernel(X, rng)
        count = min(checks.whole("n_labelled", self.n_labelled, least=2), len(X))
        rows = np.sort(rng.choice(len(X), count, replace=False))
        assert labels is not None  # noqa: S101  (`fit` requires labels)
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


def _spectral(K: Array, gram: Array, residue: Array) -> Array:
    """Maximise (Ka)'R(Ka) subject to |Ka|^2 = l, by the leading generalised eigenvector."""
    top = len(gram) - 1
    _, vectors = linalg.eigh(K.T @ residue @ K, gram, subset_by_index=(top, top))
    a = vectors[:, 0]
    return np.asarray(a * np.sqrt(len(K) / max(float(a @ gram @ a), 1e-300)))


def _refine(K: Array, residue: Array, a: Array, n_steps: int) -> Array:
    """Minimise -s'Rs, where s = tanh(Ka / 2) is the paper's smooth sign, by Nesterov's method.

    The step is halved if it does not improve the objective.
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


class SDH(_KernelHasher):
    """Supervised discrete hashing (Shen et al. 2015).

    Minimises |Y - B W|^2 + lambda |W|^2 + nu |B - F(X)|^2 over binary codes B, where F is a linear
    map of kernel features. Three steps alternate: a ridge classifier on the codes (G), the codes
    bit by bit (B) and the hash function (F).

    Parameters:
        n_bits: length of a code.
        n_anchors: number of rows that serve as anchors of the kernel.
        n_iterations: rounds of the three steps.
        regularisation: weight lambda of the classifier's norm.
        nu: weight of the difference between codes and hash function.
        random_state: seed or generator for learning; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> SDH(16, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

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
        assert labels is not None  # noqa: S101  (`fit` requires labels)
        ridge, nu = (
            checks.positive("regularisation", self.regularisation),
            checks.non_negative("nu", self.nu),
        )
        kernel = self._learn_kernel(X, rng)
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


def _cyclic_descent(B: Array, Q: Array, gram: Array, *, n_sweeps: int = 5) -> Array:
    """Run discrete cyclic coordinate descent.

    Each bit is set to its best values given the others, b = sign(q - B_other W_other w).
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
