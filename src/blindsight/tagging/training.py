"""Training of a tagger: settings as frozen values, and gradient descent on the linear head.

`DPTraining` has one total (epsilon, delta). Label counts, the centre of the features (where no
public images give one), the spread of answers (where a codebook is fitted to it) and all gradients
are Gaussian releases in one account: their squared ratios of sensitivity to noise add up to that of
the total, and each part gets a share of it. `Ordinary` trains without privacy, `Untrained` uses
public knowledge only.

The score of label c on an image is the log-odds of its rate + α times its public score + w_c x;
only w is learned, by full-batch gradient descent with momentum. The gradient of a record is
(residual) x', of norm |residual| |x|, so gradients are clipped and summed without forming each of
them. Residuals are weighted by rate^-g, which gives rare labels, counted by mean average precision
as much as frequent ones, more of the clipping bound. The result is the mean of the weights over the
second half of the steps, which varies less than the last weights.

Guarantee: with a `total` that clips the gradient of each record to `CLIP` and adds noise,
everything here is post-processing of what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.evaluation.multilabel import mean_average_precision
from blindsight.privacy.accounting import least_noise
from blindsight.privacy.mechanisms import DiscreteGaussian
from blindsight.privacy.plan import Plan, Planned
from blindsight.tagging.answer_codebook import DIRECTIONS, SENSITIVITY
from blindsight.tagging.labels import label_rows, sigmoid
from blindsight.tagging.prior import private_rows

__all__ = [
    "CENTRE",
    "CLIP",
    "COUNTS",
    "GRADIENT",
    "SPREAD",
    "DPTraining",
    "HeldOut",
    "LinearHead",
    "Ordinary",
    "Training",
    "TrainingFacts",
    "Untrained",
    "descend",
]

Matrix = NDArray[np.float64]
CLIP = 0.7
_MOMENTUM = 0.9
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LinearHead:
    """What the head is trained with: label rates, step size, how much rare labels count, and
    ridge.
    """

    rates: Matrix
    step: float
    power: float = 0.3
    ridge: float = 0.0

    @property
    def weights(self) -> Matrix:
        """rate^-g, scaled so that a record's residual at the rates has a length of about one."""
        raw = self.rates**-self.power
        return np.asarray(raw / np.sqrt((raw**2 * self.rates * (1 - self.rates)).sum()))


@dataclass(frozen=True)
class HeldOut:
    """Images with labels that training does not look at: what is measured on them is their
    owner's.
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.uint8]

    @classmethod
    def of(cls, validation: Any, n_features: int) -> HeldOut | None:
        """Of a pair of features and labels, or of None."""
        if validation is None:
            return None
        rows, labels = (
            private_rows(validation[0], n_features=n_features)[0],
            label_rows(validation[1]),
        )
        if len(rows) != len(labels):
            raise InvalidData(
                f"validation must have as many labels as rows, got {len(labels)} and {len(rows)}."
            )
        return cls(rows, labels)

    def looking(self, x: Matrix, offset: Matrix, curve: list[float]) -> Callable[[Matrix], None]:
        """Notes the mean average precision of weights, for inputs `x` and scores `offset` to start
        from.
        """
        return lambda learned: curve.append(
            mean_average_precision(self.labels, offset + x @ learned.T)
        )


def descend(
    head: LinearHead,
    x: Matrix,
    labels: NDArray[Any],
    offset: Matrix,
    *,
    steps: int,
    total: Callable[[Matrix, Matrix], Matrix],
    look: Callable[[Matrix], None] | None = None,
    progress: Progress | None = None,
) -> Matrix:
    """The learned weights (C, width). `total(residuals, x)` sums the records' gradients, residual
    x'.

    `look` sees what would be kept if a step were the last.
    """
    n, labelled = len(x), np.asarray(labels, np.float64)
    learned = np.zeros((labelled.shape[1], x.shape[1]))
    speed, mean = np.zeros_like(learned), np.zeros_like(learned)
    half = steps // 2
    for number in range(steps):
        residuals = (sigmoid(offset + x @ learned.T) - labelled) * head.weights
        speed = _MOMENTUM * speed + total(residuals, x) / n + head.ridge * learned
        learned = learned - head.step * speed
        if number >= half:
            mean += learned / (steps - half)
        if look is not None:
            look(mean * ((steps - half) / (number + 1 - half)) if number >= half else learned)
        if progress is not None:
            progress(number + 1, steps)
    return mean


COUNTS, CENTRE, GRADIENT, SPREAD = (
    "label counts",
    "features' centre",
    "gradient",
    "spread of answers",
)
# Shares of the account (of mu squared); gradients get what the others leave.
_SHARES = {COUNTS: 0.1, CENTRE: 0.1, SPREAD: 0.1}


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What is public about a training: sizes, and which parts must be released."""

    n_records: int
    n_labels: int
    n_features: int
    width: int
    centred: bool
    spread: bool
    informed: bool

    @property
    def directions(self) -> int:
        """In how many directions the spread of answers is released."""
        return min(DIRECTIONS, self.n_labels, self.width - 1)


@dataclass(frozen=True, kw_only=True)
class DPTraining:
    """Private training by noisy gradient descent, with one total (epsilon, delta) per record.

    Parameters:
        epsilon: the total of everything that is learned from the records.
        delta: the probability bound of that total.
        steps: steps of the descent, each over all records; None takes 24 with a prior and 40
            without.
        components: the number of directions of public features that the head uses.
        prior_weight: the initial weight of a label's public score.
        power: residuals are weighted by rate^-power, in favour of rare labels.
        max_labels: a record with more labels than this counts for less of each.

    Examples:
        >>> DPTraining(epsilon=2.0).steps is None
        True
    """

    epsilon: float = 2.0
    delta: float = 1e-5
    steps: int | None = None
    components: int = 96
    prior_weight: float = 0.6
    power: float = 0.3
    max_labels: int = 4

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("delta", checks.probability("delta", self.delta, below_one=True))
        for name in (
            ("components", "max_labels")
            if self.steps is None
            else ("steps", "components", "max_labels")
        ):
            checks.whole(name, getattr(self, name))
        checks.non_negative("prior_weight", self.prior_weight)
        checks.non_negative("power", self.power)

    def plan(self, facts: TrainingFacts) -> Plan:
        """Everything that will be released, with the least noise that keeps the total."""
        return _plan(self, facts)

    def steps_for(self, facts: TrainingFacts) -> int:
        """How many steps there will be."""
        return self.steps if self.steps is not None else (24 if facts.informed else 40)

    def step_size(self, facts: TrainingFacts) -> float:
        """Larger where the noise of a mean gradient is smaller: records many, budget large."""
        gradient = next(item for item in self.plan(facts) if item.what == GRADIENT)
        ratio = CLIP / gradient.mechanism.sigma * math.sqrt(gradient.count)  # type: ignore[attr-defined]
        return min(_LARGEST_STEP, _STEP * float(ratio) * facts.n_records / 1000)


# Chosen on a third of the COCO subset's training images.
_STEP, _LARGEST_STEP = 4.5, 32.0


@dataclass(frozen=True, kw_only=True)
class Ordinary:
    """Training without privacy: to compare with, or where only the asked images are secret.

    Parameters:
        steps: how many steps of the descent there are, and `step_size` how long they are.
        components: as `DPTraining`'s, and so is `prior_weight`.
        ridge: weight of the squared weights against the mean loss.
    """

    steps: int = 150
    step_size: float = 16.0
    components: int = 512
    prior_weight: float = 0.5
    ridge: float = 1e-4

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps)
        checks.whole("components", self.components)
        checks.positive("step_size", self.step_size)
        checks.non_negative("prior_weight", self.prior_weight)
        checks.non_negative("ridge", self.ridge)


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Public knowledge only: no record is looked at, epsilon is 0.

    `rate` is how often a label is taken to occur; `prior_weight` how much its public score counts.
    """

    rate: float = 0.03
    prior_weight: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("rate", checks.probability("rate", self.rate, below_one=True))
        checks.positive("prior_weight", self.prior_weight)


Training: TypeAlias = DPTraining | Ordinary | Untrained


@lru_cache(maxsize=128)
def _plan(training: DPTraining, facts: TrainingFacts) -> Plan:
    shares = {COUNTS: _SHARES[COUNTS]}
    shares |= {CENTRE: _SHARES[CENTRE]} if facts.centred else {}
    shares |= {SPREAD: _SHARES[SPREAD]} if facts.spread else {}
    shares[GRADIENT] = 1 - math.fsum(shares.values())
    sizes = {
        COUNTS: (math.sqrt(training.max_labels), facts.n_labels, 1),
        CENTRE: (1.0, facts.n_features, 1),
        SPREAD: (SENSITIVITY, (facts.directions + 1) ** 2, 1),
        GRADIENT: (CLIP, facts.n_labels * facts.width, training.steps_for(facts)),
    }

    def at(noise: float) -> Plan:
        return tuple(
            Planned(
                what=what,
                mechanism=DiscreteGaussian.fine(
                    sigma=noise * sizes[what][0] * math.sqrt(sizes[what][2] / share),
                    sensitivity=sizes[what][0],
                    dimensions=sizes[what][1],
                    delta=training.delta,
                    unit="record",
                    neighbours="add or remove one",
                ),
                count=sizes[what][2],
            )
            for what, share in shares.items()
        )

    return at(least_noise(training.epsilon, at, delta=training.delta))
