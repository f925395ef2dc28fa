"""Public rules of feature statistics: width, share of the second moment, and a forecast.

Every rule is a function of epsilon, delta, the number of images N and the number of classes C, so
nothing private is used before a release is charged. mu is the parameter of the Gaussian
mechanism at (epsilon, delta); for a person with k images it is divided by sqrt(k). t = mu N / C is
the number of images of a class in units of the noise of its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from blindsight.core import checks
from blindsight.privacy.mechanisms import Gaussian

__all__ = [
    "DEFAULT_DELTA",
    "WIDTHS",
    "StatisticsForecast",
    "forecast",
    "gaussian_mu",
    "least_images",
    "moments_share",
    "width_for",
]

#: Default delta, the probability bound of the guarantee.
DEFAULT_DELTA = 1e-5
#: Widths that the rule chooses from.
WIDTHS = (64, 96, 128, 192, 256, 384, 512)
# Limits on t: below the first a release is refused, below the second it is poor, below the third
# it is worse than without noise by a visible amount.
_REFUSED_BELOW, _POOR_BELOW, _FAIR_BELOW = 10.0, 17.0, 35.0
# From these t on, a second moment is worth its cost: with the smaller and with the larger share.
_MOMENTS_FROM, _MOMENTS_HALF_FROM = 125.0, 500.0
_SMALL_SHARE, _HALF = 0.3, 0.5
# The accuracy without noise that is assumed if it is not known.
_ASSUMED_ACCURACY = 0.9
# Loss of accuracy of class means without a second moment, both without noise: about 7 points on
# 1,000 images of CIFAR-10 and of MNIST. Values from 5 to 15 points rank settings in the same order.
_MEANS_ONLY_LOSS = 0.07

Level = Literal["refused", "poor", "fair", "good"]


@lru_cache(maxsize=256)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return sensitivity over standard deviation of the least noise for (epsilon, delta).

    Examples:
        >>> round(gaussian_mu(1.0, 1e-5), 3)
        0.268
    """
    checks.positive("epsilon", epsilon)
    return Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="record").mu


def _strength(n_records: int, n_classes: int, epsilon: float, delta: float, most: int) -> float:
    """Return t = mu N / C."""
    checks.whole("n_records", n_records, least=0)
    checks.whole("n_classes", n_classes)
    mu = gaussian_mu(float(epsilon), float(delta)) / math.sqrt(checks.whole("most", most))
    return mu * n_records / n_classes


def moments_share(
    n_records: int, n_classes: int, *, epsilon: float, delta: float = DEFAULT_DELTA, most: int = 1
) -> float:
    """Return the share of the squared norm that is spent on the second moment: .5, .3 or 0.

    Examples:
        >>> moments_share(50_000, 10, epsilon=1.0), moments_share(1_000, 10, epsilon=1.0)
        (0.5, 0.0)
    """
    t = _strength(n_records, n_classes, epsilon, delta, most)
    if t >= _MOMENTS_HALF_FROM:
        return _HALF
    return _SMALL_SHARE if t >= _MOMENTS_FROM else 0.0


def width_for(
    n_records: int, n_classes: int, *, epsilon: float, delta: float = DEFAULT_DELTA, most: int = 1
) -> int:
    """Return the length of the rows: the nearest of `WIDTHS` to (mu N)^(2/3), or to 2.5 t.

    If no second moment is released, it is 2.5 t, between max(64, C) and 256.

    Examples:
        >>> width_for(50_000, 10, epsilon=1.0), width_for(1_000, 10, epsilon=1.0)
        (512, 64)
    """
    t = _strength(n_records, n_classes, epsilon, delta, most)
    if moments_share(n_records, n_classes, epsilon=epsilon, delta=delta, most=most):
        wanted = (t * n_classes) ** (2 / 3)
    else:
        wanted = min(max(2.5 * t, 64, n_classes), 256)
    return min(WIDTHS, key=lambda width: (abs(width - wanted), width))


def least_images(
    n_classes: int, *, epsilon: float, delta: float = DEFAULT_DELTA, most: int = 1
) -> int:
    """Return the smallest number of images for which a release is not refused.

    Examples:
        >>> least_images(10, epsilon=1.0)
        374
    """
    per_image = _strength(1, n_classes, epsilon, delta, most)
    return math.ceil(_REFUSED_BELOW / per_image)


@dataclass(frozen=True)
class StatisticsForecast:
    """The expected usefulness of a release of statistics, from public numbers alone.

    Parameters:
        level: "refused", "poor", "fair" (a visible loss) or "good".
        accuracy: predicted accuracy of the receiver's classifier.
        noiseless: the accuracy without noise that this assumes.
        chance: the accuracy of guessing.
        n_records: number of images.
        n_classes: number of classes.
        needed: the smallest number of images that is not refused.
        recommended: the number of images from which the level is "good".
        epsilon: the privacy budget.
    """

    level: Level
    accuracy: float
    noiseless: float
    chance: float
    n_records: int
    n_classes: int
    needed: int
    recommended: int
    epsilon: float

    @property
    def refused(self) -> bool:
        """Whether too little could be learned, so that the release is refused."""
        return self.level == "refused"

    @property
    def lost(self) -> float:
        """Accuracy that the noise is predicted to cost, in points of 100."""
        return 100 * (self.noiseless - self.accuracy)

    def line(self) -> str:
        """Return the forecast as sentences for the user."""
        each = self.n_records / self.n_classes
        start = (
            f"{self.n_records:,} images of {self.n_classes} classes are {each:,.0f} per class at "
            f"ε = {self.epsilon:g}"
        )
        if self.refused:
            return (
                f"{start}: a receiver would learn hardly more than chance ({self.chance:.1%}). At "
                f"least {self.needed:,} images are needed, {self.recommended:,} are recommended; "
                "or use a larger epsilon or fewer classes. Nothing was charged."
            )
        expected = (
            f"a classifier that is right in {self.noiseless:.0%} of cases without noise is "
            f"expected to be right in about {self.accuracy:.0%} (chance: {self.chance:.1%})"
        )
        if self.level == "good":
            return f"{start}: {expected}."
        word = {"poor": "That is poor", "fair": "The loss is visible"}[self.level]
        return f"{start}: {expected}. {word}: {self.recommended:,} images are recommended."


def forecast(
    n_records: int,
    n_classes: int,
    *,
    epsilon: float,
    delta: float = DEFAULT_DELTA,
    most: int = 1,
    noiseless: float = _ASSUMED_ACCURACY,
) -> StatisticsForecast:
    """Predict how useful statistics of this many images will be, before anything is charged.

    Parameters:
        n_records: number of images.
        n_classes: number of classes.
        epsilon: privacy budget per image, or per person.
        delta: probability bound of the guarantee.
        most: number of images of one person, with whose square root the noise grows.
        noiseless: accuracy without noise that is assumed.

    Returns:
        The predicted accuracy, and whether to refuse.

    Examples:
        >>> forecast(300, 10, epsilon=1.0).level, forecast(50_000, 10, epsilon=1.0).level
        ('refused', 'good')
    """
    t = _strength(n_records, n_classes, epsilon, delta, most)
    chance = 1 / n_classes
    best = max(checks.probability("noiseless", noiseless), chance)
    width = width_for(n_records, n_classes, epsilon=epsilon, delta=delta, most=most)
    if moments_share(n_records, n_classes, epsilon=epsilon, delta=delta, most=most):
        lost = 0.32 * width**0.25 / math.sqrt(t * n_classes)
        accuracy = max(chance, best - lost)
    elif t == 0:
        accuracy = chance
    else:
        s = 1.044 / t
        gap = _gap_of(max(chance, best - _MEANS_ONLY_LOSS), n_classes)
        accuracy = _right(gap / math.sqrt(1 + 73 * s**2 + 72 * s**4 * width), n_classes)
    level: Level = "good"
    for limit, name in (
        (_REFUSED_BELOW, "refused"),
        (_POOR_BELOW, "poor"),
        (_FAIR_BELOW, "fair"),
    ):
        if t < limit:
            level = name  # type: ignore[assignment]
            break
    return StatisticsForecast(
        level=level,
        accuracy=float(accuracy),
        noiseless=float(best),
        chance=chance,
        n_records=n_records,
        n_classes=n_classes,
        needed=least_images(n_classes, epsilon=epsilon, delta=delta, most=most),
        recommended=math.ceil(
            _FAIR_BELOW
            / _REFUSED_BELOW
            * least_images(n_classes, epsilon=epsilon, delta=delta, most=most)
        ),
        epsilon=float(epsilon),
    )


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def _right(gap: float, n_classes: int) -> float:
    """Return the probability that the score of the true class is the largest of C scores.

    Its mean is larger than that of the others by `gap`.
    """
    inner = np.exp((n_classes - 1) * log_ndtr(_NODES + gap))
    return float((_WEIGHTS * inner).sum() / math.sqrt(2 * math.pi))


@lru_cache(maxsize=256)
def _gap_of(accuracy: float, n_classes: int) -> float:
    """Return the gap for which `_right` gives this accuracy."""
    if n_classes == 1 or accuracy <= 1 / n_classes:
        return 0.0
    target = min(accuracy, 0.9999)
    return float(brentq(lambda gap: _right(gap, n_classes) - target, 0.0, 20.0))
