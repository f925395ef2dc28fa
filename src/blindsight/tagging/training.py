"""Training of a tagger: settings as frozen values, and gradient descent on the linear head.

`DPTraining` has one total (epsilon, delta). Label counts, the centre of the features (if it is not
known from public images), the spread of answers (if a codebook is fitted to it) and all gradients
are Gaussian releases: their squared ratios of sensitivity to noise add up to that of the total, and
each part gets a share of it. `Ordinary` trains without privacy, `Untrained` uses
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

from blindsight.core import checks
from blindsight.core.arrays import Array, Bytes, Floats, Floats32
from blindsight.core.errors import InvalidData
from blindsight.evaluation.scores import mean_average_precision
from blindsight.privacy.accounting import Plan, Planned, least_noise
from blindsight.privacy.mechanisms import DiscreteGaussian
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
    "TaggingForecast",
    "Training",
    "TrainingFacts",
    "Untrained",
    "descend",
    "forecast",
    "noise_variance",
    "trusted_share",
]

CLIP = 0.7
_MOMENTUM = 0.9
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LinearHead:
    """Training settings of the head: label rates, step size, weight of rare labels, and ridge."""

    rates: Floats
    step: float
    power: float = 0.3
    ridge: float = 0.0

    @property
    def weights(self) -> Floats:
        """rate^-g, scaled so that a record's residual at the rates has a norm of about 1."""
        raw = self.rates**-self.power
        return np.asarray(raw / np.sqrt((raw**2 * self.rates * (1 - self.rates)).sum()))


@dataclass(frozen=True)
class HeldOut:
    """Labelled images that are not used in training. Results on them are for the owner only."""

    rows: Floats32
    labels: Bytes

    @classmethod
    def of(cls, validation: Any, n_features: int, classes: Any = None) -> HeldOut | None:
        """Make it from a pair of features and labels, or return None for None."""
        if validation is None:
            return None
        rows, labels = (
            private_rows(validation[0], n_features=n_features)[0],
            label_rows(validation[1], classes=classes),
        )
        if len(rows) != len(labels):
            raise InvalidData(
                f"validation must have as many labels as rows, got {len(labels)} and {len(rows)}."
            )
        return cls(rows, labels)

    def looking(self, x: Floats, offset: Floats, curve: list[float]) -> Callable[[Floats], None]:
        """Return a function that appends the mean average precision of weights to `curve`.

        `x` are the inputs, and `offset` the scores to which the head's outputs are added.
        """
        return lambda learned: curve.append(
            mean_average_precision(self.labels, offset + x @ learned.T)
        )


def descend(
    head: LinearHead,
    x: Floats,
    labels: Array,
    offset: Floats,
    *,
    steps: int,
    n_records: int,
    total: Callable[[Floats, Floats], Floats],
    look: Callable[[Floats], None] | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Return the learned weights (C, width).

    Parameters:
        head: the training settings.
        x: inputs (n, width).
        labels: labels (n, C).
        offset: scores (n, C) to which the head's outputs are added.
        steps: number of steps.
        n_records: the public number of records, by which sums are divided; the number of rows may
            be private.
        total: `total(residuals, x)` returns the sum of the records' gradients, residual x'.
        look: called with the weights that would result if the step were the last.
        progress: called with (done, total).
    """
    labelled = np.asarray(labels, np.float64)
    learned = np.zeros((labelled.shape[1], x.shape[1]))
    speed, mean = np.zeros_like(learned), np.zeros_like(learned)
    half = steps // 2
    for number in range(steps):
        residuals = (sigmoid(offset + x @ learned.T) - labelled) * head.weights
        speed = _MOMENTUM * speed + total(residuals, x) / n_records + head.ridge * learned
        learned = learned - head.step * speed
        if number >= half:
            mean += learned / (steps - half)
        if look is not None:
            look(mean * ((steps - half) / (number + 1 - half)) if number >= half else learned)
        if progress is not None:
            progress(number + 1, steps)
    return mean


def noise_variance(*, steps: int, step: float, sigma: float, n_records: int) -> float:
    """Return the variance of each weight of `descend` that is due to the noise of the gradients.

    Weights are linear in the noise, apart from its effect on later gradients, which is ignored, so
    this is an upper estimate. It depends on settings and sizes only.
    """
    half = steps // 2
    # The weights after step t contain the noise of step s times -step * (1 + m + ... + m^(t-s)).
    after = (1 - _MOMENTUM ** np.arange(1, steps + 1)) / (1 - _MOMENTUM)
    coefficients = [
        step * sum(after[t - s] for t in range(max(s, half), steps)) / (steps - half)
        for s in range(steps)
    ]
    return float(np.square(coefficients).sum() * (sigma / n_records) ** 2)


def trusted_share(weights: Floats, variance: float, n_records: int) -> float:
    """Return the factor for the learned weights, between 0 (nothing was learned) and 1.

    The share of the squared weights that noise does not explain is compared with `_CLEAR`: far
    below it, the learned scores rank labels worse than the public scores from which training
    started. Few records say little even without noise, so with fewer than `_ENOUGH` the factor is
    smaller. It is computed from released weights and public numbers, so it costs nothing.
    """
    energy = float(np.square(weights).sum())
    signal = 1 - weights.size * variance / energy if energy > 0 else 0.0
    if signal < _UNCLEAR:
        return 0.0
    return min(1.0, (signal / _CLEAR) ** 2) * min(1.0, n_records / _ENOUGH)


# Shares of squared weights that noise does not explain: below the first the factor is 0, from the
# second on it is 1, given enough records. Chosen on the training photos of the COCO and VOC2012
# subsets.
_UNCLEAR, _CLEAR, _ENOUGH = 0.1, 0.25, 1000


COUNTS, CENTRE, GRADIENT, SPREAD = (
    "label counts",
    "features' centre",
    "gradient",
    "spread of answers",
)
# Shares of the total mu squared; gradients get the rest. A centre that is used in few directions
# needs less.
_SHARES = {COUNTS: 0.1, CENTRE: 0.1, SPREAD: 0.1}
_DIRECTED_CENTRE = 0.05


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """Public facts of a training: sizes, which parts must be released, what is known."""

    n_records: int
    n_labels: int
    n_features: int
    width: int
    centred: bool
    spread: bool
    informed: bool
    directed: bool = False

    @property
    def directions(self) -> int:
        """The number of directions in which the spread of answers is released."""
        return min(DIRECTIONS, self.n_labels, self.width - 1)


@dataclass(frozen=True, kw_only=True)
class DPTraining:
    """Private training by noisy gradient descent, with one total (epsilon, delta) per record.

    Parameters:
        epsilon: the total budget of everything that is learned from the records.
        delta: the probability bound of that total.
        steps: steps of gradient descent, each over all records; None uses 24 with a prior and 40
            without.
        components: the number of public directions that the head uses; None derives it from the
            number of photos and epsilon.
        prior_weight: the initial weight of a label's public score.
        power: residuals are weighted by rate^-power, in favour of rare labels.
        max_labels: in label counts, a record with more labels than this is scaled down.

    Examples:
        >>> DPTraining(epsilon=2.0).steps is None
        True
    """

    epsilon: float = 2.0
    delta: float = 1e-5
    steps: int | None = None
    components: int | None = None
    prior_weight: float = 0.6
    power: float = 0.3
    max_labels: int = 4

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("delta", checks.probability("delta", self.delta, below_one=True))
        checks.whole("max_labels", self.max_labels)
        for name in ("steps", "components"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name))
        checks.non_negative("prior_weight", self.prior_weight)
        checks.non_negative("power", self.power)

    def plan(self, facts: TrainingFacts) -> Plan:
        """Return the plan of all releases, with the least noise for the total budget."""
        return _plan(self, facts)

    def components_for(self, n_records: int) -> int:
        """The number of public directions that the head uses.

        Examples:
            >>> [DPTraining(epsilon=2).components_for(n) for n in (100, 3000)]
            [8, 84]
        """
        if self.components is not None:
            return self.components
        return int(np.clip(round(self.evidence(n_records)), *_COMPONENTS))

    def evidence(self, n_records: int) -> float:
        """A measure of how much can be learned: photos times epsilon^.85, scaled to directions.

        Noise on a mean falls with the number of photos and with mu, and mu grows about as
        epsilon^.85 at the usual deltas.
        """
        return float(n_records * self.epsilon**0.85 / _PHOTOS_PER_DIRECTION)

    def steps_for(self, facts: TrainingFacts) -> int:
        """The number of steps."""
        return self.steps if self.steps is not None else (24 if facts.informed else 40)

    def step_size(self, facts: TrainingFacts) -> float:
        """The step size, which is larger if the noise of a mean gradient is smaller."""
        gradient = next(item for item in self.plan(facts) if item.what == GRADIENT)
        ratio = CLIP / gradient.mechanism.sigma * math.sqrt(gradient.count)  # type: ignore[attr-defined]
        return min(_LARGEST_STEP, _STEP * float(ratio) * facts.n_records / 1000)


# Chosen on a third of the COCO subset's training images.
_STEP, _LARGEST_STEP = 4.5, 32.0
_PHOTOS_PER_DIRECTION, _COMPONENTS = 64.0, (8, 256)
# Evidence from which training gains .005 of mean average precision over public knowledge, with 20
# labels or fewer; with more labels it grows with their number to the power .8, because each label
# has fewer photos. Chosen on the training photos of the VOC2012 (20 labels) and COCO (80) subsets.
_PAYING_EVIDENCE, _FEW_LABELS, _LABELS_POWER = 4.0, 20, 0.8


@dataclass(frozen=True)
class TaggingForecast:
    """Whether training is expected to improve on public knowledge, before anything is charged.

    Parameters:
        n_records: the number of photos to train on.
        epsilon: the budget of training.
        least: the number of photos from which an improvement is expected at this epsilon.
    """

    n_records: int
    epsilon: float
    least: int

    @property
    def pays(self) -> bool:
        """Whether there are enough photos."""
        return self.n_records >= self.least

    def line(self) -> str:
        """One sentence for the owner.

        Examples:
            >>> forecast(DPTraining(epsilon=2), 100, n_labels=80).line()[:62]
            'With epsilon 2, learning pays from about 440 photos; there are'
        """
        text = (
            f"With epsilon {self.epsilon:g}, learning pays from about {self.least:,} photos; "
            f"there are {self.n_records:,}."
        )
        if self.pays:
            return text
        return (
            f"{text} Expect no gain on public knowledge, which is free (`tag start`). If the "
            "learned weights do not exceed the noise, the free start is used unchanged."
        )


def forecast(training: DPTraining, n_records: int, n_labels: int) -> TaggingForecast:
    """Predict from public numbers alone whether training on this many photos pays."""
    labels = max(n_labels, _FEW_LABELS) / _FEW_LABELS
    least = _PAYING_EVIDENCE * labels**_LABELS_POWER / training.evidence(1)
    return TaggingForecast(n_records, training.epsilon, int(math.ceil(least / 10) * 10))


@dataclass(frozen=True, kw_only=True)
class Ordinary:
    """Training without privacy, for comparison or if only the queried images are secret.

    Parameters:
        steps: number of steps of gradient descent.
        step_size: size of a step.
        components, prior_weight: as for `DPTraining`.
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
    """No training: only public knowledge is used, and epsilon is 0.

    `rate` is the assumed frequency of a label, and `prior_weight` the weight of its public score.
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
    if facts.centred:
        shares[CENTRE] = _DIRECTED_CENTRE if facts.directed else _SHARES[CENTRE]
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
