"""The indices of the largest scores, released: one-shot noisy top-k.

Adding Gumbel noise of scale 2 k D / epsilon to all scores and reporting the k largest in order is
the same as k rounds of the exponential mechanism without replacement at epsilon/k each (Durfee and
Rogers 2019), where D is how far any one score may move. Pure epsilon for the ordered list; the
scores themselves are not released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.mechanisms.base import Reals

__all__ = ["NoisyTopK"]


@dataclass(frozen=True, kw_only=True)
class NoisyTopK:
    """Release the indices of the `k` largest scores, in order; any score may move by at most
    `sensitivity`.

    Guarantee: `epsilon` per unit, pure, for the ordered list. The noise is floating point but only
    indices leave.
    """

    epsilon: float
    k: int
    sensitivity: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("k", self.k)
        checks.positive("sensitivity", self.sensitivity)
        _ = self.cost

    @property
    def says(self) -> str:
        """In a few words."""
        return f"noisy top-{self.k}"

    @property
    def cost(self) -> Cost:
        """epsilon, for the whole list."""
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def scale(self) -> float:
        """The Gumbel noise's scale, 2 k sensitivity / epsilon."""
        return 2 * self.k * self.sensitivity / self.epsilon

    @property
    def domain(self) -> Reals:
        """Scores, each of which may change by `sensitivity` between neighbours."""
        return Reals(self.sensitivity, np.inf)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.eye(1, self.k + 1)[0] * self.sensitivity, np.eye(1, self.k + 1, self.k)[
            0
        ] * self.sensitivity

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[np.int64]:
        """(..., C) scores to (..., k) indices, the largest first."""
        scores = self._scores(x)
        # Gumbel = -ln(Exponential): standard_exponential is never 0 in numpy's ziggurat but for
        # underflow.
        noise = -np.log(
            np.maximum(rng.standard_exponential(scores.shape), np.finfo(np.float64).tiny)
        )
        noisy = scores / self.scale + noise
        top = np.argpartition(-noisy, min(self.k, scores.shape[-1] - 1), axis=-1)[..., : self.k]
        order = np.argsort(-np.take_along_axis(noisy, top, axis=-1), axis=-1)
        return np.take_along_axis(top, order, axis=-1).astype(np.int64)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """ln Pr(ordered list | scores): Plackett-Luce, one softmax a place."""
        logits = self._scores(x) / self.scale
        chosen = np.asarray(released, np.int64)
        left = np.broadcast_to(logits, (*chosen.shape[:-1], logits.shape[-1])).copy()
        total = np.zeros(chosen.shape[:-1])
        for place in range(self.k):
            index = chosen[..., place : place + 1]
            total += np.take_along_axis(left, index, axis=-1)[..., 0]
            total -= np.logaddexp.reduce(left, axis=-1)
            np.put_along_axis(left, index, -np.inf, axis=-1)
        return total

    def _scores(self, x: ArrayLike) -> NDArray[np.float64]:
        scores = checks.finite_array("x", x)
        if scores.ndim == 0 or scores.shape[-1] < self.k:
            raise InvalidData(
                f"x must have at least k = {self.k} scores in its last axis, got shape "
                f"{scores.shape}."
            )
        return scores
