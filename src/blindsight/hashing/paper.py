"""The algorithms of Wang, Lu and Zhang (2020) to the letter, for study: claimed, not proven.

Algorithm 2 is `PHashing(base, calibration="paper").fit_transform(Y, S)`: learn h and U, flip every
bit of U with beta = e^-eps (Theorems 4 and 6). For ADSH, whose database codes are learned rather
than computed, U is what it learned.

Algorithm 3 (PITQ) is `algorithm_3`, with its line numbers.

Lemma 5 is exact for the squared norm, E|U' - U|_F^2 = 4 beta n c. Lemma 7 holds and says little: a
flipped bit moves a distance by one, so E|d - d'|_1 <= n c beta, which the lemma's n^(3/2) c
sqrt(beta) exceeds by sqrt(n / beta); and once n >= 1 / beta it is above n c, which no distances can
differ by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.hashing.unsupervised import (
    principal_axes,
    procrustes,
    random_rotation,
    second_moment,
)
from blindsight.privacy.mechanisms import BitFlip

__all__ = ["algorithm_3"]

Array = NDArray[Any]


def algorithm_3(
    X: Array, n_bits: int, flips: BitFlip, steps: int, *, printed: bool, rng: np.random.Generator
) -> tuple[Array, Array, Array, list[float]]:
    """PITQ: (mean, W, R, turns), turns[t] = trace(R_t' R_t+1) / c: near -1 where R only follows
    negated codes.

    `printed`: the SVD step as printed, R = N N', which is the identity; else the Procrustes
    solution R = M N'.
    """
    mean = X.mean(axis=0, dtype=np.float64)
    axes = min(n_bits, X.shape[1])
    W = principal_axes(second_moment(X, mean), axes)  # line 1
    V = (X - mean) @ W
    R = random_rotation(axes, n_bits, rng)
    turns: list[float] = []
    for _ in range(steps):
        U = np.where(V @ R >= 0, 1, -1)  # line 3
        U = flips.release(U, rng=rng)  # line 4
        before, R = R, _line_5(U.T @ V, printed=printed)
        turns.append(float(np.sum(before * R) / axes))
    return mean, W, R, turns


def _line_5(cross: Array, *, printed: bool) -> Array:
    if not printed:
        return procrustes(cross)
    # "R <- N N'" with U'(YW) = N Omega N': N is orthogonal, so this is the identity.
    n, _, _ = np.linalg.svd(cross)
    return np.asarray((n @ n.T)[: cross.shape[1]])
