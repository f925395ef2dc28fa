"""A user's own training: its rows, a learner, and perhaps a sparsity to keep.

The regularisation's strength is adapted until the local weights are as sparse as wanted (Section
3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.federated.learning import linear
from blindsight.federated.learning.proximal import Proximal
from blindsight.federated.learning.sgd import SGD

__all__ = ["LocalTrainer", "adapt", "initial_weights"]

Learner = TypeVar("Learner", Proximal, SGD)
Matrix = NDArray[np.float64]
_WEAKEST, _STRONGEST = 1e-8, 1e4


@dataclass
class LocalTrainer:
    """Maps shared weights to locally updated ones: w̄_t to w_t^(n) (Section 2.1).

    With `target_sparsity` the strength adapts, and the strength found is where the next round
    begins to look.
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
        """The flat vector after local training; where `free` is false it stays as it is."""
        start = linear.shaped(weights, self.X.shape[1])
        allowed = None if free is None else linear.shaped(free, self.X.shape[1])

        def fit(learner: Proximal | SGD) -> NDArray[np.float64]:
            # The same order whatever the strength: the search must see one function.
            rng = np.random.default_rng(
                self.seed if self.seed is None else [*_words(self.seed), round]
            )
            return learner.fit(self.X, self._signs, start, free=allowed, rng=rng)

        if self.target_sparsity is None or free is not None:
            return linear.flat(fit(self.learner))
        found, learner = adapt(
            replace(self.learner, strength=self.strength), fit, target=self.target_sparsity
        )  # type: ignore[type-var]
        self.strength = learner.strength
        return linear.flat(found)


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
    """w̄_0 from public data (Section 2.1), flat."""
    chosen = Proximal(iterations=100) if learner is None else learner
    start = np.zeros((linear.rows_of(classes), np.asarray(X).shape[1] + 1))
    signs = linear.targets(np.asarray(labels), classes)
    return linear.flat(chosen.fit(np.asarray(X), signs, start, rng=rng))


def adapt(
    learner: Learner,
    fit: Callable[[Learner], Matrix],
    *,
    target: float,
    tolerance: float = 0.01,
    trials: int = 14,
) -> tuple[Matrix, Learner]:
    """The weights, and the learner with the least strength found that makes a `target` share of
    them zero.

    `fit` trains a learner and returns its weights. The search doubles or halves from the learner's
    own strength until the target is bracketed, then halves the bracket on the logarithmic scale. It
    stops within `tolerance` above the target, because past it accuracy goes: at 99.9% sparsity
    nearly nothing is left.
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
    if best is None:  # nothing reached the target: the sparsest there is
        best = fit(replace(learner, strength=_STRONGEST)), replace(learner, strength=_STRONGEST)
    return best


def _between(low: float | None, high: float | None) -> float:
    if low is None or high is None:
        given: Any = high / 4 if low is None and high is not None else (low or 1.0) * 4
        return float(np.clip(given, _WEAKEST, _STRONGEST))
    return float(np.sqrt(low * high))
