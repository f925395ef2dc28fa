"""The paper's noise as it is printed (Equation 6), and what it promises.

Lap(S_b S / ε) on every raw logit, S = C (text) or 1 (published code), proves nothing: logits have
no bound. Clipped to ±B it is worth 2BC / scale per query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Floats
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption, Cost, Guarantee
from blindsight.privacy.mechanisms import Laplace
from blindsight.privacy.plan import Planned
from blindsight.tagging.answers import Answers
from blindsight.tagging.guarantee import ANSWER

__all__ = ["OUTPUTS", "PaperLaplace", "of_printed_answers", "of_printed_training"]

OUTPUTS = "training outputs"
_ANEW = Assumption(
    "noise drawn anew",
    "noise on training outputs is drawn anew at every step and averages out of the weights; "
    "outputs have no bound, and "
    "label counts are used as they are",
)


@dataclass(frozen=True, kw_only=True)
class PaperLaplace:
    """Equation 6 to the letter: Lap(0, S_b S / ε) on every raw logit.

    `sensitivity` is "C" (the text: the number of labels) or "1" (the authors' published code). The
    paper claims ε, and ε / S_b with a bound factor S_b < 1 (Section 4.3). Raw logits have no bound,
    so nothing is proven; with `clip` the vector's l1 sensitivity is 2 B C and a number follows.
    """

    epsilon: float
    n_labels: int
    sensitivity: Literal["C", "1"] = "C"
    bound_factor: float = 1.0
    clip: float | None = None
    sampler: ClassVar[str] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("sensitivity", self.sensitivity, ("C", "1"))
        checks.positive("bound_factor", self.bound_factor)

    @property
    def scale(self) -> float:
        """S_b S / ε."""
        return self.bound_factor * self._stated / self.epsilon

    @property
    def _stated(self) -> float:
        return float(self.n_labels) if self.sensitivity == "C" else 1.0

    @property
    def claimed(self) -> float:
        """The paper's epsilon ("relaxed" where S_b is below 1)."""
        return self.epsilon / self.bound_factor

    @property
    def noise(self) -> Laplace:
        """As a mechanism: for logits within ±clip; or with the sensitivity S that the paper states,
        which is none.
        """
        reach = self._stated if self.clip is None else 2 * self.clip * self.n_labels
        return Laplace(scale=self.scale, sensitivity=reach, unit="query")

    @property
    def training_noise(self) -> Laplace:
        """The same noise on the outputs that training sees (Equation 8), for whom it protects
        nothing.
        """
        return replace(self.noise, unit="record", neighbours="add or remove one")

    @property
    def cost(self) -> Cost:
        """What is proven: nothing, unless the logits are clipped."""
        if self.clip is None:
            return Cost(epsilon=math.inf, unit="query")
        return self.noise.cost

    def value(self, logits: ArrayLike) -> Floats:
        """The logits, clipped where there is a bound."""
        values = checks.finite_array("logits", logits, ndim=2)
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)

    def read(self, released: ArrayLike) -> Answers:
        """A label is a tag where its noisy logit is above 0."""
        noisy = np.asarray(released, np.float64)
        return Answers(noisy > 0, noisy)

    def answer(self, logits: ArrayLike, *, rng: np.random.Generator) -> Answers:
        """Noisy logits, drawn outside the door: for trials."""
        return self.read(self.noise.release(self.value(logits), rng=rng))


def of_printed_training(
    release: PaperLaplace, steps: int, *, claimed: float | None, entropy: EntropyName
) -> Guarantee:
    """The noise of the paper's training, as it is drawn; it proves nothing per record."""
    return Guarantee(
        releases=(Planned(what=OUTPUTS, mechanism=release.training_noise, count=steps),),
        unproven=(_ANEW,),
        model="central",
        claimed=claimed,
        calibration="paper",
        entropy=entropy,
    )


def of_printed_answers(release: PaperLaplace, *, entropy: EntropyName) -> Guarantee:
    """The paper's claim per answer, and what is proven of it."""
    unbounded = Assumption(
        "unbounded logits", "logits have no bound, so no noise hides what one image does to them"
    )
    bounded = release.clip is not None
    return Guarantee(
        releases=(Planned(what=ANSWER, mechanism=release.noise),),
        unproven=() if bounded else (unbounded,),
        mechanism=f"Lap({release.scale:.3g}) on {'clipped' if bounded else 'raw'} logits, as "
        "printed",
        model="central",
        claimed=release.claimed,
        calibration="paper",
        entropy=entropy,
    )
