"""A user's local training, with or without a target sparsity, and gradients clipped by record.

For a target sparsity, the strength of the regularisation is adapted until the local weights are
sparse enough (Section 3.2).

`SGD` learns a linear SVM by stochastic gradient descent with the elastic net (Section 3.1 of the
paper).

`Proximal` uses FISTA (Beck and Teboulle 2009) for a smooth loss and the elastic net: it gives exact
zeros and needs few passes over the data.

`RecordDescent` learns with epsilon per record. In each round every site sums its records'
gradients, each clipped to a norm; the secure sum adds the sites' sums and their shares of noise;
every party updates the model by the same step. A single record changes the sum by at most its clip.
Reference: Abadi et al. (2016), Deep learning with differential privacy, Algorithm 1, without
sampling; the noise is that of `RecordShares`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.federated.learning import linear
from blindsight.federated.learning.linear import LOSSES
from blindsight.federated.noise import clipped_sum
from blindsight.privacy.door import Outer

__all__ = ["SGD", "LocalTrainer", "Proximal", "RecordDescent", "adapt", "initial_weights"]

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent in small batches, with a cumulative l1 penalty.

    The cumulative penalty (Tsuruoka, Tsujii and Ananiadou 2009, as in scikit-learn's
    `SGDClassifier`) applies the penalty of all steps so far to each weight, so that zeros are exact
    and the noise of single steps does not move a weight away from zero. A soft threshold in each
    step alone reaches the paper's sparsities only with a strength that destroys the model.

    With schedule "scaled" the step decays as 1 / (1 + strength t), from `step` divided by the mean
    squared norm of the rows, which adapts it to the features' scale. With "optimal" it is Bottou's
    1 / (strength (t0 + t)), from a first step of strength^(-1/4), as in scikit-learn. There t keeps
    counting from round to round, so that later rounds refine the shared weights; starting again
    with large steps would lose them.
    """

    loss: str = "hinge"
    strength: float = 1e-3
    l1_ratio: float = 0.5
    epochs: int = 5
    batch: int = 8
    step: float = 1.0
    schedule: Literal["scaled", "optimal"] = "scaled"

    def __post_init__(self) -> None:
        checks.one_of("loss", self.loss, tuple(LOSSES))
        checks.non_negative("strength", self.strength)
        checks.probability("l1_ratio", self.l1_ratio)
        checks.whole("epochs", self.epochs)
        checks.whole("batch", self.batch)
        checks.positive("step", self.step)
        checks.one_of("schedule", self.schedule, ("scaled", "optimal"))
        if self.schedule == "optimal":
            checks.positive("strength", self.strength)

    def fit(
        self,
        X: NDArray[Any],
        signs: Matrix,
        start: Matrix,
        *,
        free: NDArray[np.bool_] | None = None,
        rng: np.random.Generator | None = None,
        round: int = 0,
    ) -> Matrix:
        """Return weights (rows, features + 1) for signs (n, rows) in {-1, 1}.

        `rng` orders the records. `round` is the number of earlier rounds, from which the "optimal"
        schedule continues.
        """
        order = np.random.default_rng() if rng is None else rng
        slope = LOSSES[self.loss].slope
        data = np.column_stack([X, np.ones(len(X))])
        if self.schedule == "optimal":
            first = self.strength**-0.25
        else:
            first = self.step / float(np.mean(np.sum(data * data, axis=1)))
        ridge, lasso = self.strength * (1 - self.l1_ratio), self.strength * self.l1_ratio
        penalised = np.arange(data.shape[1]) < data.shape[1] - 1  # all but the bias
        # `unpaid` are the weights before the penalty, which is subtracted for all steps at once.
        unpaid = np.array(start, dtype=np.float64)
        weights, owed = unpaid, 0.0
        batches = -(-len(data) // self.batch)
        steps = round * self.epochs * batches if self.schedule == "optimal" else 0
        for _ in range(self.epochs):
            for batch in np.array_split(order.permutation(len(data)), batches):
                rate = first / (1 + self.strength * first * steps)
                steps += 1
                owed += rate * lasso
                rows, own = data[batch], signs[batch]
                slopes = slope(own * (rows @ weights.T)) * own
                gradient = (slopes * (rate / len(batch))).T @ rows
                gradient += (rate * ridge) * penalised * weights
                unpaid = unpaid - gradient
                weights = unpaid - np.clip(unpaid, -owed * penalised, owed * penalised)
                if free is not None:
                    weights = np.where(free, weights, start)
        return weights


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """Minimise mean loss + strength (l1_ratio |w|_1 + (1 - l1_ratio)/2 |w|²); bias unpenalised.

    It starts at the shared weights and stops after `iterations` steps, so that the result still
    depends on what others learned: the solution of a convex problem does not depend on its start.
    """

    loss: str = "squared hinge"
    strength: float = 0.01
    l1_ratio: float = 0.5
    iterations: int = 20
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        checks.one_of("loss", self.loss, ("squared hinge", "logistic"))
        checks.non_negative("strength", self.strength)
        checks.probability("l1_ratio", self.l1_ratio)
        checks.whole("iterations", self.iterations)
        checks.non_negative("tolerance", self.tolerance)

    def fit(
        self,
        X: NDArray[Any],
        signs: Matrix,
        start: Matrix,
        *,
        free: NDArray[np.bool_] | None = None,
        rng: Any = None,
        round: int = 0,
    ) -> Matrix:
        """Return weights (rows, features + 1) for signs (n, rows) in {-1, 1}.

        Weights stay unchanged where `free` is false. `rng` and `round` are not used.
        """
        loss = LOSSES[self.loss]
        data = np.column_stack([X, np.ones(len(X))])
        ridge, lasso = self.strength * (1 - self.l1_ratio), self.strength * self.l1_ratio
        step = 1 / (loss.curvature * _squared_norm(data) / len(data) + ridge)
        weights = np.array(start, dtype=np.float64)
        ahead, momentum = weights, 1.0
        for _ in range(self.iterations):
            gradient = (loss.slope(signs * (data @ ahead.T)) * signs).T @ data / len(data)
            gradient[:, :-1] += ridge * ahead[:, :-1]
            moved = ahead - step * gradient
            moved[:, :-1] = np.sign(moved[:, :-1]) * np.maximum(
                0, np.abs(moved[:, :-1]) - step * lasso
            )
            if free is not None:
                moved = np.where(free, moved, start)
            after = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
            ahead = moved + (momentum - 1) / after * (moved - weights)
            change = float(np.abs(moved - weights).max())
            weights, momentum = moved, after
            if change <= self.tolerance * float(np.abs(weights).max()):
                break
        return weights


def _squared_norm(data: NDArray[np.float64]) -> float:
    """Return slightly more than the largest squared singular value.

    The power iteration has a fixed start, so the result is deterministic.
    """
    vector = np.ones(data.shape[1]) / np.sqrt(data.shape[1])
    for _ in range(30):
        image = data.T @ (data @ vector)
        norm = float(np.linalg.norm(image))
        if norm == 0:
            return 1.0
        vector = image / norm
    return 1.05 * norm


Learner = TypeVar("Learner", Proximal, SGD)
_WEAKEST, _STRONGEST = 1e-8, 1e4


@dataclass
class LocalTrainer:
    """Maps shared weights to locally updated ones: w̄_t to w_t^(n) (Section 2.1).

    With `target_sparsity` the strength is adapted, and the next round starts its search from the
    strength that was found.
    """

    X: NDArray[Any] = field(repr=False)
    labels: NDArray[Any] = field(repr=False)
    classes: int
    learner: Proximal | SGD = field(default_factory=Proximal)
    target_sparsity: float | None = None
    seed: Any = None

    def __post_init__(self) -> None:
        if len(self.X) == 0 or len(self.X) != len(self.labels):
            raise InvalidData(
                f"a user needs rows and a label for each, got {len(self.X)} and {len(self.labels)}."
            )
        self._signs = linear.targets(np.asarray(self.labels), self.classes)
        self.strength = self.learner.strength

    def __call__(
        self, weights: NDArray[np.float64], round: int, free: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """Return the flat vector after local training; it is unchanged where `free` is false."""
        start = linear.shaped(weights, self.X.shape[1])
        allowed = None if free is None else linear.shaped(free, self.X.shape[1])

        def fit(learner: Proximal | SGD) -> NDArray[np.float64]:
            # The same order for every strength, so that the search evaluates one function.
            rng = np.random.default_rng(
                self.seed if self.seed is None else [*_words(self.seed), round]
            )
            return learner.fit(self.X, self._signs, start, free=allowed, rng=rng, round=round)

        if self.target_sparsity is None or free is not None:
            return linear.flat(fit(self.learner))
        fitted, learner = adapt(
            replace(self.learner, strength=self.strength), fit, target=self.target_sparsity
        )  # type: ignore[type-var]
        self.strength = learner.strength
        return linear.flat(fitted)


def _words(seed: Any) -> list[int]:
    return list(seed) if isinstance(seed, (list, tuple)) else [int(seed)]


def initial_weights(
    X: NDArray[Any],
    labels: NDArray[Any],
    *,
    classes: int,
    learner: Proximal | SGD | None = None,
    rng: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Return w̄_0 from public data (Section 2.1), flat."""
    chosen = Proximal(iterations=100) if learner is None else learner
    signs = linear.targets(np.asarray(labels), classes)
    start = np.zeros((signs.shape[1], np.asarray(X).shape[1] + 1))
    return linear.flat(chosen.fit(np.asarray(X), signs, start, rng=rng))


def adapt(
    learner: Learner,
    fit: Callable[[Learner], Matrix],
    *,
    target: float,
    tolerance: float = 0.01,
    trials: int = 14,
) -> tuple[Matrix, Learner]:
    """Find the smallest strength that makes a share `target` of the weights zero.

    The search doubles or halves the learner's own strength until the target is bracketed, then
    bisects on the logarithmic scale. It stops within `tolerance` above the target, because accuracy
    is lost beyond it: at 99.9% sparsity nearly nothing is left.

    Parameters:
        learner: the learner whose strength is adapted.
        fit: trains a learner and returns its weights.
        target: the share of zeros.
        tolerance: how far the share of zeros may be above the target.
        trials: the largest number of calls of `fit`.

    Returns:
        The weights, and the learner with the strength that was found.
    """
    checks.probability("target", target, below_one=True)
    low: float | None = None
    high: float | None = None
    best: tuple[Matrix, Learner] | None = None
    tried = replace(learner, strength=max(learner.strength, _WEAKEST))
    for _ in range(checks.whole("trials", trials)):
        weights = fit(tried)
        reached = linear.sparsity(weights)
        if reached >= target:
            best, high = (weights, tried), tried.strength
            if reached <= target + tolerance or high <= _WEAKEST:
                break
        else:
            low = tried.strength
            if low >= _STRONGEST:
                break
        tried = replace(tried, strength=_between(low, high))
    if best is None:  # no strength reached the target: return the sparsest weights
        best = fit(replace(learner, strength=_STRONGEST)), replace(learner, strength=_STRONGEST)
    return best


def _between(low: float | None, high: float | None) -> float:
    if low is None or high is None:
        strength: Any = high / 4 if low is None and high is not None else (low or 1.0) * 4
        return float(np.clip(strength, _WEAKEST, _STRONGEST))
    return float(np.sqrt(low * high))


@dataclass(frozen=True, kw_only=True)
class RecordDescent:
    """Logistic regression (softmax) by full gradients, clipped record by record.

    Rows with their constant 1 are scaled to unit length, which does not change the predicted class
    of a linear model. A record contributes its clipped gradient and a count, so that the mean can
    be computed without any site's number of records.

    Parameters:
        clip: the largest norm of a record's gradient; for rows of unit length the norm is at most
            sqrt(2) without clipping.
        rate: the step, as a multiple of the mean gradient.
        count_weight: what a record adds to the count, as a multiple of the clip. It makes the noise
            larger by the factor sqrt(1 + count_weight^2).

    Examples:
        >>> descent = RecordDescent()
        >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), np.array([0, 1, 2])
        >>> weights = np.zeros(9)
        >>> for _ in range(5):
        ...     weights = descent.advanced(weights, descent.contribution(weights, X, y, classes=3))
        >>> linear.predicted(linear.shaped(weights, 2), X).tolist()
        [0, 1, 2]
    """

    clip: float = 0.5
    rate: float = 20.0
    count_weight: float = 0.2

    def __post_init__(self) -> None:
        checks.positive("clip", self.clip)
        checks.positive("rate", self.rate)
        checks.positive("count_weight", self.count_weight)

    @property
    def record_norm(self) -> float:
        """The largest norm of what one record contributes: the clip of the noise."""
        return float(self.clip * np.hypot(1.0, self.count_weight))

    def contribution(
        self, weights: Vector, X: NDArray[Any], labels: NDArray[Any], *, classes: int
    ) -> Vector:
        """Return a site's sum: minus its records' clipped gradients, and the count.

        Parameters:
            weights: the shared model, flat.
            X: the site's rows; a row with NaN or infinity counts as zeros.
            labels: class numbers.
            classes: the number of classes.

        Returns:
            A vector one longer than the model.
        """
        rows = _unit(np.asarray(X, np.float64))
        scores = rows @ linear.shaped(weights, rows.shape[1] - 1).T
        if classes <= 2:
            error = (1 + np.tanh(scores[:, 0] / 2)) / 2 - (np.asarray(labels) == 1)
            error = error[:, None]
        else:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = scores / scores.sum(axis=1, keepdims=True)
            error[np.arange(len(rows)), labels] -= 1
        gradients = clipped_sum(Outer(-error, rows), self.clip)
        return np.append(gradients.ravel(), len(rows) * self.count_weight * self.clip)

    def advanced(self, weights: Vector, total: Vector) -> Vector:
        """Return the model after the sum of all sites' contributions.

        A mean of clipped gradients is at most as long as the clip; if noise makes it longer, it is
        scaled down.
        """
        count = max(float(total[-1]) / (self.count_weight * self.clip), 1.0)
        mean = np.asarray(total[:-1], np.float64) / count
        longest = max(float(np.linalg.norm(mean)), self.clip)
        return np.asarray(weights + self.rate * self.clip / longest * mean, np.float64)


def _unit(X: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = np.column_stack([X, np.ones(len(X))])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
