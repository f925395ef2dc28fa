"""Iterative quantisation: its loss, its rotation."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.hashing import ITQ
from blindsight.hashing.plain import principal_axes, procrustes, random_rotation


@pytest.mark.parametrize("n_bits", [3, 8, 20])
def test_loss_never_rises(n_bits):
    X = np.random.default_rng(0).normal(size=(300, 8)) @ np.diag(np.arange(1, 9))
    losses = np.array(ITQ(n_bits, random_state=1).fit(X).losses_)
    assert (np.diff(losses) <= 1e-9 * losses[0]).all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("shape", [(6, 6), (4, 9)])
def test_procrustes_beats_every_random_rotation(shape):
    rng = np.random.default_rng(2)
    V, U = rng.normal(size=(50, shape[0])), np.sign(rng.normal(size=(50, shape[1])))
    R = procrustes(U.T @ V)
    np.testing.assert_allclose(R @ R.T, np.eye(shape[0]), atol=1e-12)
    best = np.square(U - V @ R).sum()
    for _ in range(200):
        assert best <= np.square(U - V @ random_rotation(*shape, rng)).sum() + 1e-9


def test_principal_axes_are_those_of_scikit_learn():
    from sklearn.decomposition import PCA

    X = np.random.default_rng(0).normal(size=(80, 6)) @ np.diag([6, 5, 4, 3, 2, 1])
    axes = principal_axes(np.cov(X.T), 3)
    reference = PCA(3).fit(X).components_
    np.testing.assert_allclose(np.abs(np.sum(axes.T * reference, axis=1)), 1, atol=1e-10)
