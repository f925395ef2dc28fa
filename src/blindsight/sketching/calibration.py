"""Choose the allocation Q over bits with the most useful information within a bound on the leak.

The paper's twelve settings were chosen by hand. Here the goal is a bound on the PSNR of every
attacker or on the implied epsilon per pixel. The objective is the information in the bits that a
network can use: weighted by their usefulness, or, against the informed attacker, the information
that neighbouring pixels share (`ImageStatistics`). With mu = K/2 (the default here) a bit with
q = 1/L leaks nothing, so the leak can be assigned to the bits in which it is useful.

In digits that are nearly black and white, all bits of a pixel are nearly equal. The paper's
posterior mean ignores that: it assumes independent bits and weights them by 2^(L-j), so it misses
a leak through the trailing bits that any other attacker uses. Both quantities here are computed
from public images:

- the leak: the squared error of the best linear estimate of a pixel from the counts of all its
  bits;
- the use: the information about the factor that neighbouring pixels share. A network recognises
  shapes, which are what neighbours have in common; a bit that depends on its own pixel only is
  noise to the network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq, minimize

from blindsight.core import checks
from blindsight.core.arrays import Floats
from blindsight.core.errors import InvalidParameter
from blindsight.sketching.attackers import quietest_needed
from blindsight.sketching.leak import bit_distribution, pixel_epsilon, pixel_epsilon_rdp
from blindsight.sketching.parameters import PAPER_R, QKParameters, to_bits, window

__all__ = ["ImageStatistics", "balanced_p", "calibrate", "signal", "usefulness"]

_MOST_PIXELS = 4_000_000  # from which moments are computed: more would change little


def signal(differing: ArrayLike, agreeing: float) -> Floats:
    """Return the signal-to-noise ratio of each bit.

    n_1 - n_0 changes by 2 (lambda_s - lambda_d) with the bit and has the variance
    lambda_s + lambda_d.
    """
    wrong = np.asarray(differing, np.float64)
    return 4 * (agreeing - wrong) ** 2 / np.maximum(agreeing + wrong, 1e-300)


@dataclass(frozen=True)
class ImageStatistics:
    """Second moments of a kind of images.

    Parameters:
        peak: the largest value of a pixel.
        variance: the variance of a pixel's value.
        bits: the covariance (L, L) of the bits of a pixel.
        with_value: the covariance (L,) of each bit with the value.
        loadings: how strongly each bit (L,) depends on the factor that neighbouring pixels share.
    """

    peak: float
    variance: float
    bits: Floats = field(repr=False)
    with_value: Floats = field(repr=False)
    loadings: Floats = field(repr=False)

    @classmethod
    def of(cls, reference: ArrayLike, depth: int) -> ImageStatistics:
        """Compute the moments of public images (n, h, w) or (n, h, w, channels).

        All channels are treated alike.
        """
        images = np.asarray(reference)
        if images.ndim == 4:
            images = np.moveaxis(images, -1, 1).reshape(-1, *images.shape[1:3])
        if (
            images.ndim != 3
            or images.dtype.kind not in "iu"
            or min(images.shape[1:], default=0) < 2
            or not len(images)
        ):
            raise InvalidParameter(
                f"reference must be images of whole numbers, at least 2 x 2, got {images.shape}."
            )
        if images.min() < 0 or images.max() >= 2**depth:
            raise InvalidParameter(f"reference must be images of whole numbers below {2**depth}.")
        images = window(images)
        most = max(1, _MOST_PIXELS // images[0].size)
        if len(images) > most:
            images = images[np.sort(np.random.default_rng(0).permutation(len(images))[:most])]
        value = images.astype(np.float64)
        if value.var() == 0:
            raise InvalidParameter(
                "reference must not be of one colour: it has no information about your images."
            )
        planes = to_bits(images, depth).astype(np.float64)
        planes -= planes.mean(axis=(0, 1, 2))
        flat, pixels = planes.reshape(-1, depth), value.size
        across = np.einsum("nhwi,nhwj->ij", planes[:, 1:], planes[:, :-1], optimize=True)
        along = np.einsum("nhwi,nhwj->ij", planes[:, :, 1:], planes[:, :, :-1], optimize=True)
        pairs = value[:, 1:].size + value[:, :, 1:].size
        common = (across + along + across.T + along.T) / (2 * pairs)
        strengths, directions = np.linalg.eigh(common)
        loadings = math.sqrt(max(float(strengths[-1]), 0.0)) * directions[:, -1]
        return cls(
            peak=2.0**depth - 1,
            variance=float(value.var()),
            bits=flat.T @ flat / pixels,
            with_value=flat.T @ (value.ravel() - value.mean()) / pixels,
            loadings=loadings,
        )

    @property
    def blind_psnr(self) -> float:
        """The PSNR of guessing the mean pixel, without any sketch."""
        return 10 * math.log10(self.peak**2 / self.variance)

    def psnr(self, differing: ArrayLike, agreeing: float) -> float:
        """Return the PSNR of the best linear estimate of a pixel from its own counts."""
        scale = np.sqrt(signal(differing, agreeing))
        covariance = scale * self.with_value
        explained = float(
            covariance
            @ np.linalg.solve(np.eye(scale.size) + scale[:, None] * self.bits * scale, covariance)
        )
        return 10 * math.log10(self.peak**2 / max(self.variance - explained, 1e-9))

    def shared(self, differing: ArrayLike, agreeing: float) -> float:
        """Return the information per pixel, in bits, about the factor that neighbours share."""
        strength = signal(differing, agreeing)
        own = np.maximum(np.diag(self.bits) - self.loadings**2, 0)
        return 0.5 * math.log2(
            1 + float((strength * self.loadings**2 / (1 + strength * own)).sum())
        )


LEAST_Q = 1e-3  # of a bit
STEP = 1e-5  # of q, by which gradients are estimated


def balanced_p(specified: int = 3) -> tuple[float, ...]:
    """Return shares p of the types of records with mu = K/2, for which q = 1/L leaks nothing."""
    K = checks.whole("specified", specified, least=2)
    p = np.zeros(K)
    p[math.floor(K / 2) - 1] += 0.5
    p[math.ceil(K / 2) - 1] += 0.5
    return tuple(float(value) for value in p)


def _weights(depth: int) -> Floats:
    """Return the usefulness of each bit to a network.

    It is the bit's share 4^(1-j) of a pixel's variance minus 1/64. Bits after the fourth help an
    attacker more than a network, so their weight is negative.
    """
    return np.asarray(4.0 ** -np.arange(depth) - 1 / 64, np.float64)


def usefulness(parameters: QKParameters) -> float:
    """Return the information in the bits, each weighted by its usefulness to a network."""
    agreeing = parameters.agreeing_rate
    information = [
        bit_distribution(float(d), agreeing).information for d in parameters.differing_rate
    ]
    return float(np.dot(information, _weights(parameters.depth)))


class _Curves:
    """Information, mean and variance of a bit's posterior as smooth functions of q."""

    def __init__(self, base: QKParameters) -> None:
        agreeing = base.agreeing_rate
        per_q = base.r * base.depth * base.mean_differing
        neutral = agreeing / per_q
        grid = np.unique(
            np.concatenate(
                [neutral * np.geomspace(0.01, 1, 60), np.geomspace(neutral, 1, 60), [1.0]]
            )
        )
        distributions = [bit_distribution(float(per_q * q), agreeing) for q in grid]
        self.information = PchipInterpolator(grid, [bit.information for bit in distributions])
        self.mean = PchipInterpolator(grid, [bit.mean for bit in distributions])
        self.variance = PchipInterpolator(grid, [bit.variance for bit in distributions])


def _histograms(reference: ArrayLike | None, depth: int) -> Floats:
    """Return a histogram of pixel values for each image, or a uniform one without a reference."""
    if reference is None:
        return np.full((1, 2**depth), 2.0**-depth)
    images = np.asarray(reference)
    if (
        images.ndim < 2
        or images.dtype.kind not in "iu"
        or images.size == 0
        or images.max() >= 2**depth
    ):
        raise InvalidParameter(f"reference must be images of whole numbers below {2**depth}.")
    return np.stack(
        [np.bincount(image.ravel(), minlength=2**depth) / image.size for image in images]
    )


def _psnr(parameters: QKParameters, histograms: Floats) -> float:
    """Return the expected PSNR of the posterior-mean attacker, averaged over the images.

    The error of a pixel's estimate is the sum over its bits of 2^(L-j) times one minus the
    posterior of the true value, with the sign that pulls towards the middle. Means and variances of
    the posteriors are known (`BitDistribution`).
    """
    distributions = [
        bit_distribution(float(d), parameters.agreeing_rate) for d in parameters.differing_rate
    ]
    return _psnr_from(
        [bit.mean for bit in distributions], [bit.variance for bit in distributions], histograms
    )


def _psnr_from(mean: ArrayLike, variance: ArrayLike, histograms: Floats) -> float:
    truth, spread = np.asarray(mean), np.asarray(variance)
    depth = truth.size
    weights = 2.0 ** np.arange(depth - 1, -1, -1)
    pull = 1 - 2.0 * to_bits(np.arange(2**depth), depth)
    squared = (pull @ (weights * (1 - truth))) ** 2 + float((weights**2 * spread).sum())
    return float(np.mean(10 * np.log10((2**depth - 1) ** 2 / (histograms @ squared))))


def calibrate(
    *,
    max_psnr: float | None = None,
    epsilon_per_pixel: float | None = None,
    attacker: str = "all",
    delta: float = 1e-5,
    depth: int = 8,
    p: Sequence[float] | None = None,
    r: float = PAPER_R,
    reference: ArrayLike | None = None,
    steps: int = 150,
) -> QKParameters:
    """Choose parameters that meet a goal and preserve the most useful information.

    Parameters:
        max_psnr: bound on the attacker's PSNR on `reference`. Give exactly one of the two goals.
        epsilon_per_pixel: bound on the implied local epsilon of a pixel at `delta`.
        attacker: the attacker whose PSNR is bounded. "all" runs every attacker
            (`attackers.Suite`) on every image, which takes minutes. The other two are single
            attackers, and a bound on them is weak: "mean" is the paper's, who has no knowledge of
            such images (without `reference`, pixel values are assumed to be uniform); "informed"
            knows how bits are correlated in `reference` and uses one pixel at a time.
        delta: probability bound of `epsilon_per_pixel`.
        depth: bits per pixel.
        p: shares of the types of records; None for mu = K/2 with K = 3.
        r: records per bit; it is lowered if the goal requires it.
        reference: public images of the size and kind of yours; the PSNR depends on both.
        steps: training steps of the network among "all".

    Returns:
        The parameters.

    Raises:
        InvalidParameter: the goal cannot be met, or not exactly one goal is given.
    """
    if (max_psnr is None) == (epsilon_per_pixel is None):
        raise InvalidParameter("calibrate needs exactly one goal: max_psnr or epsilon_per_pixel.")
    types = balanced_p() if p is None else tuple(p)
    base = QKParameters.k_hidden(depth, p=types, r=r)
    checks.one_of("attacker", attacker, ("all", "mean", "informed"))
    if attacker == "all" and max_psnr is not None:
        if reference is None:
            raise InvalidParameter(
                "max_psnr needs reference, public images of the size and kind of yours: what "
                'attackers recover depends on both. attacker="mean" bounds the paper\'s attacker '
                "only, who is the weakest."
            )
        return _against_all(base, reference, checks.number("max_psnr", max_psnr), steps=steps)
    if attacker == "informed":
        if max_psnr is None or reference is None:
            raise InvalidParameter(
                "the informed attacker needs max_psnr and reference, public images like yours."
            )
        return _against_informed(
            base, ImageStatistics.of(reference, depth), checks.number("max_psnr", max_psnr)
        )
    histograms = _histograms(reference, depth)
    curves = _Curves(base)
    weights = _weights(depth)

    def worth(q: Floats) -> float:
        return float(weights @ curves.information(q))

    def loose(q: Floats, allowance: float) -> float:
        """Return a smooth approximation of `excess` that is cheap to differentiate."""
        if max_psnr is not None:
            return _psnr_from(curves.mean(q), curves.variance(q), histograms) - max_psnr
        rates = base.r * depth * base.mean_differing * q
        implied = min(pixel_epsilon_rdp(rates, base.agreeing_rate, delta=delta), 1e3)
        return implied - allowance * _given(epsilon_per_pixel)

    def excess(parameters: QKParameters) -> float:
        """Return by how much the goal is exceeded; it is met where this is at most 0."""
        if max_psnr is not None:
            return _psnr(parameters, histograms) - max_psnr
        return pixel_epsilon(parameters, delta=delta) - _given(epsilon_per_pixel)

    floor = _psnr(QKParameters.k_hidden(depth, p=types, r=1e-9), histograms)
    if max_psnr is not None and checks.number("max_psnr", max_psnr) <= floor:
        raise InvalidParameter(
            f"max_psnr must be above {floor:.2f} dB, which a guess without any sketch reaches, got "
            f"{max_psnr:g}."
        )
    if epsilon_per_pixel is not None:
        checks.positive("epsilon_per_pixel", epsilon_per_pixel)
    allocations = [
        _polish(base, worth, start, partial(loose, allowance=1.0)) for start in _starts(base)
    ]
    met = [_lower_r(parameters, excess) for parameters in allocations]
    best = max(met, key=usefulness)
    if epsilon_per_pixel is None:
        return best
    # Renyi orders overstate epsilon by some percent. Optimise again from the best allocation with
    # that much more allowed; `excess` checks the exact goal.
    further = [
        _polish(base, worth, np.array(best.q), partial(loose, allowance=a)) for a in (1.05, 1.1)
    ]
    return max([best, *(_lower_r(parameters, excess) for parameters in further)], key=usefulness)


def _against_informed(base: QKParameters, kind: ImageStatistics, goal: float) -> QKParameters:
    """Return the allocation with the most shared information that meets the goal.

    The goal is a bound on the PSNR of the informed attacker.
    """
    if goal <= kind.blind_psnr:
        raise InvalidParameter(
            f"max_psnr must be above {kind.blind_psnr:.2f} dB, which a guess without any sketch "
            f"reaches, got {goal:g}."
        )
    per_q, agreeing = base.r * base.depth * base.mean_differing, base.agreeing_rate

    def worth(q: Floats) -> float:
        return kind.shared(per_q * q, agreeing)

    starts = _starts(base)
    allocations = [
        _polish(base, worth, start, lambda q: kind.psnr(per_q * q, agreeing) - goal)
        for start in [*starts, *(start[::-1] for start in starts)]
    ]
    met = [
        _lower_r(allocation, lambda at: kind.psnr(at.differing_rate, at.agreeing_rate) - goal)
        for allocation in allocations
    ]
    return max(met, key=lambda at: kind.shared(at.differing_rate, at.agreeing_rate))


def _against_all(
    base: QKParameters, reference: ArrayLike, goal: float, *, steps: int
) -> QKParameters:
    """Return the setting with the most information for which no attacker reaches the goal.

    It is chosen among the settings against the informed attacker.
    """
    kind = ImageStatistics.of(reference, base.depth)
    blind = kind.blind_psnr
    loudest = max(goal - blind, 3.0)

    @functools.lru_cache(maxsize=32)
    def setting(at: float) -> QKParameters:
        # The gain of a single pixel over a blind guess, on a logarithmic scale from a millionth of
        # a decibel.
        return _against_informed(base, kind, blind + 1e-6 * (loudest / 1e-6) ** at)

    return quietest_needed(setting, np.asarray(reference), goal, steps=checks.whole("steps", steps))


def _given(value: float | None) -> float:
    return 0.0 if value is None else float(value)


def _starts(base: QKParameters) -> list[Floats]:
    """Return initial allocations.

    The leading bits are observed mostly wrong or mostly right, and the other bits leak as little as
    possible.
    """
    depth = base.depth
    neutral = min(base.agreeing_rate / (base.r * depth * base.mean_differing), 1.0)
    starts = []
    for leading in range(1, min(depth, 2) + 1):
        for factor in (0.4, 0.8, 1.4, 2.5):
            q = np.full(depth, neutral)
            q[:leading] *= factor
            q[-1] = max(LEAST_Q, 1 - q[:-1].sum())
            starts.append(np.clip(q, LEAST_Q, 1) / np.clip(q, LEAST_Q, 1).sum())
    return starts


def _polish(
    base: QKParameters,
    worth: Callable[[Floats], float],
    start: Floats,
    excess: Callable[[Floats], float],
) -> QKParameters:
    """Maximise `worth` on the simplex subject to the goal (sequential quadratic programming)."""

    def loss(q: Floats) -> float:
        return -worth(q)

    def total(q: Floats) -> float:
        return float(q.sum()) - 1

    def slack(q: Floats) -> float:
        return -excess(q)

    result = minimize(
        loss,
        start,
        method="SLSQP",
        jac=partial(_gradient, loss),
        bounds=[(LEAST_Q, 1.0)] * base.depth,
        constraints=[
            {"type": "eq", "fun": total, "jac": partial(_gradient, total)},
            {"type": "ineq", "fun": slack, "jac": partial(_gradient, slack)},
        ],
        options={"maxiter": 60, "ftol": 1e-6},
    )
    q = np.clip(result.x if np.isfinite(result.x).all() else start, LEAST_Q, 1)
    return QKParameters(q=tuple(float(value) for value in q / q.sum()), p=base.p, r=base.r)


def _gradient(f: Callable[[Floats], float], q: Floats) -> Floats:
    """Return forward differences of f, or backward ones where q is at most `STEP` below 1.

    SciPy would take the same ones; for functions as quick as these, its own work takes longer than
    theirs.
    """
    q = np.clip(q, LEAST_Q, 1.0)
    here = f(q)
    gradient = np.empty_like(q)
    for i, value in enumerate(q):
        moved = q.copy()
        moved[i] = value + (STEP if value + STEP <= 1.0 else -STEP)
        gradient[i] = (f(moved) - here) / (moved[i] - value)
    return gradient


def _lower_r(parameters: QKParameters, excess: Callable[[QKParameters], float]) -> QKParameters:
    """Lower r to the largest value for which this q meets the goal; fewer records leak less."""

    def at(log_r: float) -> QKParameters:
        return QKParameters(q=parameters.q, p=parameters.p, r=math.exp(log_r))

    high = math.log(parameters.r)
    if excess(parameters) <= 0:
        return parameters
    low = high - 12
    if excess(at(low)) > 0:
        return at(low)
    root = brentq(lambda log_r: excess(at(log_r)), low, high, xtol=1e-4)
    while excess(at(root)) > 0:  # Round toward less leak.
        root -= 1e-4
    return at(root)
