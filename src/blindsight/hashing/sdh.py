"""Supervised discrete hashing (Shen, Shen, Liu and Shen 2015): codes that a linear classifier can
read.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from blindsight.core import checks
from blindsight.hashing.base import Hasher
from blindsight.hashing.kernel import AnchorKernel
from blindsight.privacy.entropy import RandomState

__all__ = ["SDH"]

Array = NDArray[Any]


class SDH(Hasher):
    """Alternate three steps: a ridge classifier on the codes (G), the codes bit by bit (B), the
    hash function (F).

    min |Y - B W|^2 + lambda |W|^2 + nu |B - F(X)|^2 over binary B, with F a linear map of kernel
    features.
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
