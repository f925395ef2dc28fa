"""Equations 13 and 17 to 22 of the tagging paper: what follows from its premises, and where what it
prints is something else.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import laplace

from benchmarks.tagging.robustness import (
    estimated_weights,
    estimation_error,
    loss_bias,
    printed_loss_bias,
    printed_variance,
    weight_variance,
)
from blindsight.core.errors import InvalidData

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 30))
W = RNG.normal(size=(3, 4))


def test_least_squares_finds_the_weights_and_equation_19_is_its_error():
    noise = RNG.normal(size=(3, 30))
    np.testing.assert_allclose(estimated_weights(W @ X, X), W)
    found = estimated_weights(W @ X + noise, X)
    np.testing.assert_allclose(found - W, estimation_error(noise, X))


def test_equation_18_is_a_shrinkage_but_not_entry_by_entry():
    """The printed inequality compares matrices; what shrinks is the norm."""
    plain, ridge = estimated_weights(W @ X, X), estimated_weights(W @ X, X, ridge=5.0)
    shrink = np.eye(4) - 5.0 * np.linalg.inv(X @ X.T + 5.0 * np.eye(4))
    np.testing.assert_allclose(ridge, plain @ shrink)
    assert np.linalg.norm(ridge) < np.linalg.norm(plain)
    assert (ridge > plain).any()


@pytest.mark.parametrize("ridge", [0.0, 0.5, 20.0])
def test_the_variance_is_the_one_of_the_linear_map_from_noise_to_weights(ridge):
    """With A = x'(x x' + λI)⁻¹ the error is o A, whose squared norm has mean C σ² |A|²."""
    A = X.T @ np.linalg.inv(X @ X.T + ridge * np.eye(4))
    expected = 3 * 0.7**2 * np.sum(A**2)
    assert weight_variance(X, noise=0.7, labels=3, ridge=ridge) == pytest.approx(expected)


def test_the_trace_identity_of_equation_20_is_wrong():
    """tr((x x')⁻¹) is 1 by chance only: it falls as images are added."""
    assert printed_variance(X, noise=1.0) == printed_variance(10 * X, noise=1.0) == 1.0
    assert weight_variance(X, noise=1.0) == pytest.approx(np.trace(np.linalg.inv(X @ X.T)))
    assert weight_variance(10 * X, noise=1.0) == pytest.approx(weight_variance(X, noise=1.0) / 100)
    standard = np.sqrt(30) * np.linalg.qr(X.T)[0].T
    assert weight_variance(standard, noise=1.0) == pytest.approx(4 / 30)


def test_lemma_4_holds_for_cyclic_shifts_only():
    E, F, G = np.random.default_rng(1).normal(size=(3, 4, 4))
    assert np.trace(E @ F @ G) == pytest.approx(np.trace(G @ E @ F))
    assert np.trace(E @ F @ G) != pytest.approx(np.trace(F @ E @ G))


def test_the_conclusion_of_equation_21_survives_and_its_factor_does_not():
    for ridge in (0.01, 1.0, 100.0):
        assert weight_variance(X, noise=1.0, ridge=ridge) < weight_variance(X, noise=1.0)
    # Printed, z = Var(Ridge)/Var(LR) would be above 1 here: ridge would be the worse.
    small = 0.1 * np.eye(4)
    assert printed_variance(small, noise=1.0, ridge=0.01) > printed_variance(small, noise=1.0)
    assert weight_variance(small, noise=1.0, ridge=0.01) < weight_variance(small, noise=1.0)


@pytest.mark.parametrize("bound_factor", [1.0, 0.8])
def test_the_bias_is_an_eighth_of_the_noise_s_second_moment(bound_factor):
    moment = laplace(scale=bound_factor * 20 / 10).moment(2)
    found = loss_bias(10.0, sensitivity=20.0, labels=20, bound_factor=bound_factor)
    assert found == pytest.approx(20 * moment / 8)


def test_the_printed_bias_is_linear_in_the_bound_factor():
    full = printed_loss_bias(10.0, sensitivity=20.0)
    assert full == pytest.approx(20 / 400)
    half = printed_loss_bias(10.0, sensitivity=20.0, bound_factor=0.5)
    assert half == pytest.approx(full / 2)
    assert loss_bias(10.0, sensitivity=20.0, labels=20, bound_factor=0.5) == pytest.approx(
        loss_bias(10.0, sensitivity=20.0, labels=20) / 4
    )


def test_errors_say_what_to_do():
    with pytest.raises(InvalidData, match="Transpose"):
        estimated_weights(np.ones((3, 4)), X)
    with pytest.raises(InvalidData, match="ridge above 0"):
        weight_variance(np.ones((3, 2)), noise=1.0)
    assert weight_variance(np.ones((3, 2)), noise=1.0, ridge=1.0) == pytest.approx(6 / 49)
