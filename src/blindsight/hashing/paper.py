"""The algorithms of Wang, Lu and Zhang (2020) to the letter, for study: claimed, not proven.

Algorithm 2 (PHashing) is `PHashing(base, calibration="paper")`: learn h, flip every bit of U = h(X) with beta = e^-eps
(Theorem 4). For ADSH, whose database codes are learned rather than computed, U is the learned V: `algorithm_2` flips
those. They are little more than labels (10 to 17 distinct codes on ten classes), so releasing them releases labels.

Algorithm 3 (PITQ) is `algorithm_3`, with its line numbers.

Lemma 5 is exact for the squared norm, E|U' - U|_F^2 = 4 beta n c. Lemma 7 bounds what flips in one iteration can do to
the rotation; it says nothing of the final codes, which leave without noise, so it proves no epsilon.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import codes
from blindsight.core.errors import InvalidParameter
from blindsight.hashing.projection import principal_axes, procrustes, random_rotation, second_moment
from blindsight.privacy.mechanisms import BitFlip

__all__ = ["algorithm_2", "algorithm_3"]

Array = NDArray[Any]


def algorithm_2(fitted: Any, X: Any, *, epsilon: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The flipped codes U' of the images that a base hasher was fitted on; for ADSH, of its learned database codes.

    A simulation of the paper's release: nothing is charged, and no epsilon per record is proven.
    """
    flips = BitFlip.paper(epsilon, n_bits=fitted.n_bits)
    plain = getattr(fitted, "database_codes_", None)
    if plain is None:
        plain = fitted.transform(X)  # step 1: U = h(X)
    elif len(plain) != len(X):
        raise InvalidParameter(f"learned codes are of the {len(plain)} images of fit, got {len(X)}.")
    return codes.pack(flips.release(codes.unpack(plain, fitted.n_bits), rng=rng))  # step 2: U' = flip(U)


def algorithm_3(
    X: Array, n_bits: int, flips: BitFlip, steps: int, *, printed: bool, rng: np.random.Generator
) -> tuple[Array, Array, Array, list[float]]:
    """PITQ: (mean, W, R, turns), turns[t] = trace(R_t' R_t+1) / c: near -1 where R only follows negated codes.

    `printed`: the SVD step as printed, R = N N', which is the identity; else the Procrustes solution R = M N'.
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
    return (n @ n.T)[: cross.shape[1]]
