"""Choose Q for a goal: the allocation over bits that keeps most of what a network can use for a
given leak.

The paper's twelve settings were chosen by hand. Here the goal is a bound, on the PSNR of every
attacker or on the implied epsilon per pixel, and what is maximised is the information in the bits
that a network can use: weighted by their worth, or, against the informed attacker, what
neighbouring pixels share (`ImageStatistics`). With mu = K/2 (the default here) a bit with q = 1/L
leaks nothing, so the leak can be put where it is useful.

In digits that are nearly black and white, all bits of a pixel are nearly equal. The paper's
posterior mean ignores that: it takes bits as independent and weights them by 2^(L-j), so it misses
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
from blindsight.sketching.leak import bit_law, pixel_epsilon, pixel_epsilon_rdp
from blindsight.sketching.parameters import PAPER_R, QKParameters, to_bits, window

__all__ = ["ImageStatistics", "balanced_p", "calibrate", "expected_psnr", "signal", "usefulness"]

_VALUES = (
    4_000_000  # pixels that moments are taken of, at most: more would cost memory and change little
)


def signal(differing: ArrayLike, agreeing: float) -> Floats:
    """Signal to noise a bit: n_1 - n_0 moves by 2 (lambda_s - lambda_d) with the bit, and has
    variance their sum.
    """
    wrong = np.asarray(differing, np.float64)
    return 4 * (agreeing - wrong) ** 2 / np.maximum(agreeing + wrong, 1e-300)


@dataclass(frozen=True)
class ImageStatistics:
    """Second moments of a kind of image: of a pixel's value, of its bits, and of the factor that
    neighbouring pixels share.
    """

    peak: float
    variance: float
    bits: Floats = field(repr=False)
    with_value: Floats = field(repr=False)
    loadings: Floats = field(repr=False)

    @classmethod
    def of(cls, reference: ArrayLike, depth: int) -> ImageStatistics:
        """Learn the moments from public images (n, h, w), or (n, h, w, channels) with channels
        taken alike.
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
        most = max(1, _VALUES // images[0].size)
        if len(images) > most:
            images = images[np.sort(np.random.default_rng(0).permutation(len(images))[:most])]
        value = images.astype(np.float64)
        if value.var() == 0:
            raise InvalidParameter(
                "reference must not be of one colour: it tells nothing of your images."
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
        """What guessing the mean pixel reaches, without any sketch."""
        return 10 * math.log10(self.peak**2 / self.variance)

    def psnr(self, differing: ArrayLike, agreeing: float) -> float:
        """PSNR of the best linear guess of a pixel from its own counts at these rates."""
        scale = np.sqrt(signal(differing, agreeing))
        seen = scale * self.with_value
        explained = float(
            seen @ np.linalg.solve(np.eye(scale.size) + scale[:, None] * self.bits * scale, seen)
        )
        return 10 * math.log10(self.peak**2 / max(self.variance - explained, 1e-9))

    def shared(self, differing: ArrayLike, agreeing: float) -> float:
        """Bits of information a pixel about the factor that it shares with its neighbours."""
        strength = signal(differing, agreeing)
        own = np.maximum(np.diag(self.bits) - self.loadings**2, 0)
        return 0.5 * math.log2(
            1 + float((strength * self.loadings**2 / (1 + strength * own)).sum())
        )


def balanced_p(specified: int = 3) -> tuple[float, ...]:
    """Types of records with mu = K/2: then q = 1/L leaks nothing."""
    K = checks.whole("specified", specified, least=2)
    p = np.zeros(K)
    p[math.floor(K / 2) - 1] += 0.5
    p[math.ceil(K / 2) - 1] += 0.5
    return tuple(float(value) for value in p)


def _weights(depth: int) -> Floats:
    """What a bit's information is worth to a network: its share of a pixel's variance, 4^(1-j),
    less 1/64.

    Bits past the fourth tell a network next to nothing and an attacker something: they count
    against.
    """
    return np.asarray(4.0 ** -np.arange(depth) - 1 / 64, np.float64)


def usefulness(parameters: QKParameters) -> float:
    """Information in the bits, each weighted by what it is worth to a network (`_weights`)."""
    agreeing = parameters.agreeing_rate
    information = [bit_law(float(d), agreeing).information for d in parameters.differing_rate]
    return float(np.dot(information, _weights(parameters.depth)))


class _Curves:
    """Information, mean and variance of a bit's posterior as smooth functions of its q, for one p
    and r.
    """

    def __init__(self, base: QKParameters) -> None:
        agreeing = base.agreeing_rate
        per_q = base.r * base.depth * base.mean_differing
        neutral = agreeing / per_q
        grid = np.unique(
            np.concatenate(
                [neutral * np.geomspace(0.01, 1, 60), np.geomspace(neutral, 1, 60), [1.0]]
            )
        )
        laws = [bit_law(float(per_q * q), agreeing) for q in grid]
        self.information = PchipInterpolator(grid, [law.information for law in laws])
        self.mean = PchipInterpolator(grid, [law.mean for law in laws])
        self.variance = PchipInterpolator(grid, [law.variance for law in laws])


def _histograms(reference: ArrayLike | None, depth: int) -> Floats:
    """One histogram of pixel values per image; uniform where there is no reference."""
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


def expected_psnr(parameters: QKParameters, reference: ArrayLike | None = None) -> float:
    """The PSNR that the posterior-mean attacker reaches, before any sketch is drawn: mean over the
    reference images.

    The estimate of a pixel is off by the sum over its bits of 2^(L-j) times one minus the posterior
    of the true value, with the sign that pulls towards the middle; means and variances of the
    posteriors are known (`BitLaw`).
    """
    return _psnr(parameters, _histograms(reference, parameters.depth))


def _psnr(parameters: QKParameters, histograms: Floats) -> float:
    laws = [bit_law(float(d), parameters.agreeing_rate) for d in parameters.differing_rate]
    return _psnr_from([law.mean for law in laws], [law.variance for law in laws], histograms)


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
    """Parameters that meet the goal and keep most of the useful information.

    Parameters:
        max_psnr: bound on the attacker's PSNR, on `reference`: public images of the size and kind
            of yours, since what comes back depends on both.
        attacker: whose PSNR. "all" is every attacker there is (`attackers.Suite`), image by image:
            it takes minutes. The other two are single attackers, and a bound on them is a weak one:
            "mean" is the paper's, who knows nothing of such images (without `reference` pixel
            values are taken as uniform); "informed" knows how bits hang together in `reference`,
            and looks at one pixel at a time.
        steps: of training of the network among "all".
        epsilon_per_pixel: bound on the implied local epsilon of a pixel at `delta`. Give exactly
            one of the two goals.
        p: types of records; None for mu = K/2 with K = 3.
        r: records a bit, lowered where the goal asks for it.
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
                "attackers recover depends "
                'on both. attacker="mean" bounds the paper\'s attacker only, who is the weakest.'
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
        """A smooth stand-in for the goal, cheap enough to differentiate; at most 0 where it is
        met.
        """
        if max_psnr is not None:
            return _psnr_from(curves.mean(q), curves.variance(q), histograms) - max_psnr
        rates = base.r * depth * base.mean_differing * q
        implied = min(pixel_epsilon_rdp(rates, base.agreeing_rate, delta=delta), 1e3)
        return implied - allowance * _given(epsilon_per_pixel)

    def excess(parameters: QKParameters) -> float:
        """The goal itself: at most 0 where it is met."""
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
    found = [_polish(base, worth, start, partial(loose, allowance=1.0)) for start in _starts(base)]
    met = [_lower_r(parameters, excess) for parameters in found]
    best = max(met, key=usefulness)
    if epsilon_per_pixel is None:
        return best
    # Renyi orders overstate epsilon by some percent: go on from the best with that much allowed;
    # `excess` decides.
    further = [
        _polish(base, worth, np.array(best.q), partial(loose, allowance=a)) for a in (1.05, 1.1)
    ]
    return max([best, *(_lower_r(parameters, excess) for parameters in further)], key=usefulness)


def _against_informed(base: QKParameters, kind: ImageStatistics, goal: float) -> QKParameters:
    """The allocation with most shared information under which the informed attacker stays below the
    goal.
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
    found = [
        _polish(base, worth, start, lambda q: kind.psnr(per_q * q, agreeing) - goal)
        for start in [*starts, *(start[::-1] for start in starts)]
    ]
    met = [
        _lower_r(one, lambda at: kind.psnr(at.differing_rate, at.agreeing_rate) - goal)
        for one in found
    ]
    return max(met, key=lambda at: kind.shared(at.differing_rate, at.agreeing_rate))


def _against_all(
    base: QKParameters, reference: ArrayLike, goal: float, *, steps: int
) -> QKParameters:
    """Along the informed attacker's settings, the loudest at which no attacker reaches the goal."""
    kind = ImageStatistics.of(reference, base.depth)
    blind = kind.blind_psnr
    loudest = max(goal - blind, 3.0)

    @functools.lru_cache(maxsize=32)
    def setting(at: float) -> QKParameters:
        # What one pixel tells above a blind guess, from a millionth of a decibel up, in equal
        # ratios.
        return _against_informed(base, kind, blind + 1e-6 * (loudest / 1e-6) ** at)

    return quietest_needed(setting, np.asarray(reference), goal, steps=checks.whole("steps", steps))


def _given(value: float | None) -> float:
    return 0.0 if value is None else float(value)


def _starts(base: QKParameters) -> list[Floats]:
    """Leading bits seen more often wrong, or more often right, than not; the rest as near to no
    leak as they can.
    """
    depth = base.depth
    neutral = min(base.agreeing_rate / (base.r * depth * base.mean_differing), 1.0)
    starts = []
    for leading in range(1, min(depth, 2) + 1):
        for factor in (0.4, 0.8, 1.4, 2.5):
            q = np.full(depth, neutral)
            q[:leading] *= factor
            q[-1] = max(1e-3, 1 - q[:-1].sum())
            starts.append(np.clip(q, 1e-3, 1) / np.clip(q, 1e-3, 1).sum())
    return starts


def _polish(
    base: QKParameters,
    worth: Callable[[Floats], float],
    start: Floats,
    excess: Callable[[Floats], float],
) -> QKParameters:
    """Climb from a start along the simplex while the goal holds (sequential quadratic
    programming).
    """
    result = minimize(
        lambda q: -worth(q),
        start,
        method="SLSQP",
        bounds=[(1e-3, 1.0)] * base.depth,
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1},
            {"type": "ineq", "fun": lambda q: -excess(q)},
        ],
        options={"maxiter": 60, "ftol": 1e-6, "eps": 1e-5},
    )
    q = np.clip(result.x if np.isfinite(result.x).all() else start, 1e-3, 1)
    return QKParameters(q=tuple(float(value) for value in q / q.sum()), p=base.p, r=base.r)


def _lower_r(parameters: QKParameters, excess: Callable[[QKParameters], float]) -> QKParameters:
    """The largest r at which the goal is met for this q; fewer records leak less."""

    def at(log_r: float) -> QKParameters:
        return QKParameters(q=parameters.q, p=parameters.p, r=math.exp(log_r))

    high = math.log(parameters.r)
    if excess(parameters) <= 0:
        return parameters
    low = high - 12
    if excess(at(low)) > 0:
        return at(low)
    root = brentq(lambda log_r: excess(at(log_r)), low, high, xtol=1e-4)
    while excess(at(root)) > 0:  # round toward less leak
        root -= 1e-4
    return at(root)
