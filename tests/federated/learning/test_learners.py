"""Local learners find what an independent solver finds, and are as sparse as they are asked to
be.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, SGDClassifier

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.federated.learning import (
    SGD,
    LocalTrainer,
    Proximal,
    adapt,
    initial_weights,
    linear,
)
from blindsight.federated.learning.linear import LOSSES


def objective(learner: Proximal, X: np.ndarray, signs: np.ndarray, weights: np.ndarray) -> float:
    margins = signs * linear.scores(weights, X)
    penalised = weights[:, :-1]
    ridge, lasso = learner.strength * (1 - learner.l1_ratio), learner.strength * learner.l1_ratio
    value = LOSSES[learner.loss].value(margins).sum(axis=1).mean()
    return float(value + lasso * np.abs(penalised).sum() + ridge / 2 * (penalised**2).sum())


@pytest.mark.parametrize("loss", ["squared hinge", "logistic"])
def test_proximal_solver_reaches_the_minimum(loss: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 5)), rng.integers(0, 3, 80)
    signs = linear.targets(y, 3)
    learner = Proximal(loss=loss, strength=0.05, iterations=2000, tolerance=0)
    found = objective(learner, X, signs, learner.fit(X, signs, np.zeros((3, 6))))
    # An independent solver: positive and negative parts with bounds make the l1 norm smooth.

    def split(z: np.ndarray) -> float:
        plus, minus = z.reshape(2, 3, 6)
        weights = plus - minus
        margins = signs * linear.scores(weights, X)
        smooth = (
            LOSSES[loss].value(margins).sum(axis=1).mean()
            + 0.025 / 2 * (weights[:, :-1] ** 2).sum()
        )
        return float(smooth + 0.025 * (plus[:, :-1] + minus[:, :-1]).sum())

    best = minimize(
        split, np.zeros(36), bounds=[(0, None)] * 36, method="L-BFGS-B", options={"maxfun": 100_000}
    )
    assert found <= best.fun + 1e-4


def test_logistic_regression_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 4))
    y = (X[:, 0] + 0.5 * rng.normal(size=200) > 0).astype(int)
    signs = linear.targets(y, 2)
    ours = Proximal(loss="logistic", strength=0.02, l1_ratio=0.0, iterations=3000, tolerance=0).fit(
        X, signs, np.zeros((1, 5))
    )
    theirs = LogisticRegression(C=1 / (0.02 * 200), tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours[0, :-1], theirs.coef_[0], atol=1e-4)
    np.testing.assert_allclose(ours[0, -1], theirs.intercept_[0], atol=1e-4)


class InOrder(np.random.Generator):
    """Leaves the rows in their order."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def permutation(self, x, axis=0):
        return np.arange(x)


@pytest.mark.parametrize("strength", [0.003, 0.03])
def test_falling_steps_agree_with_scikit_learn_from_round_to_round(strength: float) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(120, 20))
    y = (X[:, 0] - X[:, 1] + rng.normal(size=120) > 0).astype(int)
    theirs = SGDClassifier(
        penalty="elasticnet", l1_ratio=0.5, alpha=strength, shuffle=False, random_state=0
    )
    learner = SGD(strength=strength, epochs=1, batch=1, schedule="optimal")
    ours = np.zeros((1, 21))
    for round in range(3):  # partial_fit goes on with the steps where it left off
        theirs.partial_fit(X, y, classes=[0, 1])
        ours = learner.fit(X, linear.targets(y, 2), ours, rng=InOrder(), round=round)
    np.testing.assert_allclose(ours[0, :-1], theirs.coef_[0], atol=1e-9)
    np.testing.assert_allclose(ours[0, -1], theirs.intercept_[0], atol=1e-9)
    assert np.array_equal(ours[0, :-1] == 0, theirs.coef_[0] == 0)


@pytest.mark.parametrize(
    "learner",
    [Proximal(strength=1e-3), SGD(strength=1e-4), SGD(strength=1e-2, schedule="optimal")],
    ids=["proximal", "sgd", "sgd with falling steps"],
)
def test_learners_classify_digits(learner, digits) -> None:
    signs = linear.targets(digits["y"], 10)
    weights = learner.fit(digits["X"], signs, np.zeros((10, 65)), rng=np.random.default_rng(0))
    assert np.mean(linear.predicted(weights, digits["test"]) == digits["test_y"]) > 0.85


@pytest.mark.parametrize("learner", [Proximal(), SGD()], ids=["proximal", "sgd"])
@pytest.mark.parametrize("target", [0.5, 0.8, 0.95])
def test_strength_adapts_to_the_sparsity_wanted(learner, target: float, digits) -> None:
    signs = linear.targets(digits["y"][:300], 10)

    def fit(tried):
        return tried.fit(digits["X"][:300], signs, np.zeros((10, 65)), rng=np.random.default_rng(0))

    weights, found = adapt(learner, fit, target=target)
    assert target <= linear.sparsity(weights) < target + 0.05
    assert np.any(weights[:, :-1] != 0)
    np.testing.assert_array_equal(weights, fit(found))


def test_more_strength_gives_more_zeros(digits) -> None:
    signs = linear.targets(digits["y"][:300], 10)
    shares = [
        linear.sparsity(
            Proximal(strength=s, iterations=100).fit(digits["X"][:300], signs, np.zeros((10, 65)))
        )
        for s in (1e-3, 1e-2, 1e-1, 1.0)
    ]
    assert shares == sorted(shares)


def test_only_free_weights_move(digits) -> None:
    rng = np.random.default_rng(0)
    start, free = rng.normal(size=(10, 65)), rng.random((10, 65)) < 0.2
    signs = linear.targets(digits["y"][:100], 10)
    for learner in (Proximal(), SGD(epochs=1)):
        weights = learner.fit(digits["X"][:100], signs, start, free=free, rng=rng)
        np.testing.assert_array_equal(weights[~free], start[~free])
        assert np.any(weights[free] != start[free])


def test_a_photo_may_have_several_labels_and_each_is_learned_by_itself(digits) -> None:
    own = digits["y"][:200, None] == np.arange(10)
    even = (digits["y"][:200] % 2 == 0)[:, None]
    both = np.column_stack([own, even]).astype(np.int64)
    X, learner = digits["X"][:200], Proximal(iterations=30, tolerance=0)
    together = initial_weights(X, both, classes=11, learner=learner)
    alone = initial_weights(X, digits["y"][:200], classes=10, learner=learner)
    np.testing.assert_allclose(together[: 10 * 65], alone, atol=1e-12)
    last = initial_weights(X, even[:, 0].astype(np.int64), classes=2, learner=learner)
    np.testing.assert_allclose(together[10 * 65 :], last, atol=1e-12)


def test_training_starts_from_the_shared_weights(digits) -> None:
    few = LocalTrainer(digits["X"][:30], digits["y"][:30], 10, Proximal(iterations=3))
    start = initial_weights(digits["public"], digits["public_y"], classes=10)
    before = np.mean(linear.predicted(linear.shaped(start, 64), digits["test"]) == digits["test_y"])
    after = np.mean(
        linear.predicted(linear.shaped(few(start, 1), 64), digits["test"]) == digits["test_y"]
    )
    alone = np.mean(
        linear.predicted(linear.shaped(few(np.zeros(650), 1), 64), digits["test"])
        == digits["test_y"]
    )
    assert before > 0.8
    assert after > alone


def test_local_training_is_a_function_of_weights_and_round(digits) -> None:
    def trainer() -> LocalTrainer:
        return LocalTrainer(digits["X"][:60], digits["y"][:60], 10, SGD(epochs=1), 0.5, seed=[3, 1])

    np.testing.assert_array_equal(trainer()(np.zeros(650), 1), trainer()(np.zeros(650), 1))
    assert np.any(trainer()(np.zeros(650), 1) != trainer()(np.zeros(650), 2))


def test_mistakes_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="loss"):
        Proximal(loss="hinge")
    with pytest.raises(InvalidParameter, match="l1_ratio"):
        SGD(l1_ratio=2)
    with pytest.raises(InvalidData, match="rows"):
        LocalTrainer(np.zeros((0, 3)), np.zeros(0), 2)
    with pytest.raises(InvalidData, match="multiple"):
        linear.shaped(np.zeros(7), 2)
