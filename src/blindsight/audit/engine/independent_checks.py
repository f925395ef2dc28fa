"""Independent checks: does the noise have its stated distribution, and is the stated cost correct?

Noise: mechanisms are drawn again at recorded values, and sources of entropy are examined. Each test
rejects sound code with probability about 1e-9 (`_SIGMAS` standard deviations).

Cost: privacy-loss distributions by FFT that share no code with `privacy`. The loss L = ln p(o)/q(o)
of one release is put on a grid. It is not rounded up, as an accountant for promises must do, but
without bias. Powers of its Fourier transform compose releases, and
delta(epsilon) = E max(0, 1 - exp(epsilon - L)).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats
from scipy.special import ndtr

from blindsight.audit.engine.outputs import frozen
from blindsight.core.arrays import Array
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.entropy import Source, SystemEntropy, SystemSource
from blindsight.privacy.mechanisms import Mechanism
from blindsight.privacy.mechanisms.base import Cells, Reals

__all__ = [
    "Gauss",
    "Pure",
    "epsilon_of",
    "gaussian_delta",
    "measured_scale",
    "noise_problems",
    "source_problems",
    "start_problems",
]

_SIGMAS = 6.2
_LEAST_KEY = 16  # bytes: 128 bits


def noise_problems(
    mechanism: Mechanism, value: Array, source: Source, *, rolls: int
) -> Iterator[str]:
    """Draw the mechanism again at a recorded value and yield what is wrong with its noise.

    The noise must come from the given stream only and have the stated distribution.
    """
    yield from _stream_problems(mechanism, value)
    source = _open_source(source)
    # Floating-point noise is cheap to draw, so more of it is tested.
    draws = _stacked(value, rolls * (3 if mechanism.sampler == "float" else 1))
    released = mechanism.release(
        draws, rng=source.stream("audit", exact=mechanism.sampler == "exact")
    )
    if isinstance(mechanism.domain, Reals) and np.asarray(released).dtype.kind == "f":
        yield from _additive_problems(
            mechanism, np.asarray(released, np.float64) - draws, np.shape(value)
        )
        if hasattr(mechanism, "share"):
            yield from _additive_problems(
                mechanism, _of_shares(mechanism, source, rolls), np.shape(value)
            )
    elif isinstance(mechanism.domain, Cells) and np.shape(released) == draws.shape:
        yield from _cell_problems(mechanism, np.asarray(released).ravel(), draws.ravel())
    elif np.shape(released) == draws.shape and draws.dtype.kind in "biu":
        yield from _bit_problems(mechanism, np.asarray(released) != draws, draws)
    most = 120_000 if mechanism.sampler == "float" else 40_000
    yield from _ratio_problems(mechanism, value, source, rolls=min(2 * rolls, most))
    yield from _rounding_problems(mechanism)


def measured_scale(mechanism: Mechanism, source: Source, *, rolls: int = 200_000) -> float:
    """Return an upper bound on the standard deviation of the drawn noise.

    An upper bound is used so that sound noise is never reported as too small.
    """
    source = _open_source(source)
    drawn = mechanism.release(
        np.zeros(rolls), rng=source.stream("audit scale", exact=mechanism.sampler == "exact")
    )
    noise = np.asarray(drawn, np.float64)
    return float(np.sqrt(np.mean(noise**2) * (1 + _SIGMAS * math.sqrt(2 / rolls))))


def _of_shares(mechanism: Any, source: Source, rolls: int) -> Array:
    """Return the total noise of a sum of zeros to which every counted party adds its share."""
    parties = [
        source.stream(f"audit share {number}", exact=True) for number in range(mechanism.shares)
    ]
    drawn = np.sum([mechanism.share(np.zeros(rolls), rng=rng) for rng in parties], axis=0)
    return np.asarray(drawn * mechanism.step)


def _open_source(source: Source) -> Any:
    """Return the source, or the system's entropy for a vault's key, which serves records only."""
    return SystemSource() if source.name == "keyed" else source


def _stacked(value: Array, rolls: int) -> Array:
    """Repeat the value until it has about `rolls` numbers in all."""
    size = max(1, int(np.size(value)))
    times = max(2, min(rolls, -(-rolls // size)))
    return np.repeat(np.asarray(value)[None], times, axis=0)


def _stream_problems(mechanism: Mechanism, value: Array) -> Iterator[str]:
    """The noise must depend on the given stream, and on no other generator."""
    outcomes = []
    for weak, stream in ((1, 5), (2, 5), (1, 6)):
        with frozen(weak), mock.patch("numpy.random.default_rng", _weakened(weak)):
            rng = np.random.Generator(np.random.PCG64(stream))
            draws = _stacked(value, 256)
            outcomes.append(np.asarray(mechanism.release(draws, rng=rng)))
    if not _same(outcomes[0], outcomes[1]):
        yield "its noise comes from a generator other than the door's stream"
    elif _same(outcomes[0], outcomes[2]) and not _likely(mechanism, outcomes[0], draws):
        yield "its noise does not depend on the door's stream"


def _likely(mechanism: Mechanism, outcome: Array, draws: Array) -> bool:
    """Whether equal whole numbers are likely by chance, as they are at a large epsilon."""
    return outcome.dtype.kind != "f" and float(
        np.sum(mechanism.log_prob(outcome, draws))
    ) > math.log(1e-9)


def _weakened(seed: int) -> Any:
    real = np.random.default_rng
    return lambda *arguments, **named: (
        real(seed) if not arguments and not named else real([*np.atleast_1d(arguments[0]), seed])
    )


def _same(first: Array, second: Array) -> bool:
    return first.shape == second.shape and bool(
        np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    )


def _additive_problems(mechanism: Mechanism, noise: Array, shape: tuple[int, ...]) -> Iterator[str]:
    """Test the mean, variance, distribution, single coordinates and correlation of the noise."""
    points, mass = _stated_distribution(mechanism, noise)
    if abs(mass.sum() - 1) > 0.01:
        yield (
            f"its log_prob does not sum to 1 (but to {mass.sum():.3g}): the noise is not on its "
            "scale"
        )
        return
    mass = mass / mass.sum()
    n = noise.size
    variance = float(mass @ points**2)
    fourth = float(mass @ points**4)
    measured = float(np.mean(noise**2))
    spread = math.sqrt(max(fourth - variance**2, 1e-300) / n)
    if abs(measured - variance) > _SIGMAS * spread:
        yield (
            f"its noise has standard deviation {math.sqrt(measured):.4g}, it states "
            f"{math.sqrt(variance):.4g}"
        )
        return
    if abs(_likelihood_score(mechanism, noise, points, mass)) > _SIGMAS:
        yield "the mean log-likelihood of its noise does not fit the distribution that it states"
        return
    ordered = np.sort(noise.ravel())
    at = points[:: max(1, len(points) // 2000)]
    stated = np.cumsum(mass)[:: max(1, len(points) // 2000)]
    drawn = np.searchsorted(ordered, at + 1e-12 * math.sqrt(variance), side="right") / n
    if np.abs(drawn - stated).max() > math.sqrt(21.5 / (2 * n)) + float(mass.max()):
        yield "its noise does not have the distribution that it states"
    columns = noise.reshape(len(noise), -1)
    means = columns.mean(axis=0) * math.sqrt(len(columns) / variance)
    if len(columns) >= 100 and np.abs(means).max(initial=0) > _SIGMAS + math.sqrt(
        2 * math.log(1 + columns.shape[1])
    ):
        yield "its noise has a mean that is not 0"
    flat = noise.ravel() / math.sqrt(variance)
    for lag in {1, 2, shape[-1] if shape else 1, int(np.prod(shape)) or 1}:
        if (
            lag < n // 2
            and abs(float(flat[lag:] @ flat[:-lag])) > _SIGMAS * math.sqrt(n - lag) * 1.5
        ):
            yield f"its noise repeats itself: numbers {lag} apart are correlated"
            return


def _likelihood_score(mechanism: Mechanism, noise: Array, points: Array, mass: Array) -> float:
    """Return how many standard deviations the mean of ln Pr(noise) is from its expected value.

    This test is sensitive to heavy tails.
    """
    possible = mass > 0
    stated = np.asarray(mechanism.log_prob(points[possible], np.zeros(int(possible.sum()))))
    mean = float(mass[possible] @ stated)
    deviation = max(math.sqrt(max(float(mass[possible] @ (stated - mean) ** 2), 0.0)), 1e-2)
    flat = noise.ravel()
    drawn = np.asarray(mechanism.log_prob(flat, np.zeros(flat.size)))
    return float((drawn.mean() - mean) / deviation * math.sqrt(flat.size))


def _stated_distribution(mechanism: Mechanism, noise: Array) -> tuple[Array, Array]:
    """Return points and probabilities of the noise at zero, from the mechanism's `log_prob`.

    Exact noise lies on a grid.
    """
    reach = 40 * float(noise.std()) or 1.0
    grid = getattr(mechanism, "grid", None)
    if grid is None and mechanism.sampler == "exact":
        gaps = np.diff(np.unique(noise))
        grid = float(gaps[gaps > 1e-9 * reach].min(initial=reach))
    if grid is None:
        points = np.linspace(-reach, reach, 400_001)
        step = points[1] - points[0]
        share = np.exp(mechanism.log_prob(points, np.zeros(len(points)))) * step
        return points, share
    stride = max(1, int(2 * reach / grid / 400_000))
    steps = np.arange(-int(reach / grid), int(reach / grid) + 1, stride)
    points = steps * grid
    return points, np.exp(mechanism.log_prob(points, np.zeros(len(points)))) * stride


def _cell_problems(mechanism: Mechanism, released: Array, cells: Array) -> Iterator[str]:
    """Test how often each cell is released truthfully, and how the other cells are distributed."""
    domain: Any = mechanism.domain
    k = domain.k
    for cell in np.unique(cells)[:4]:
        answers = released[cells == cell]
        stated = np.exp(mechanism.log_prob(np.arange(k), np.full(k, cell)))
        counts = np.bincount(answers.astype(np.int64), minlength=k)
        p = min(1.0, max(0.0, float(stated[cell])))
        true, n = counts[cell], len(answers)
        if min(stats.binom.cdf(true, n, p), stats.binom.sf(true - 1, n, p)) < 1e-9:
            share = true / n
            yield f"its answer is true in {share:.4g} of the draws, it states {p:.4g}"
            return
        wanted = stated * len(answers)
        frequent = wanted >= 20
        if frequent.sum() > 2 and (
            (counts[frequent] - wanted[frequent]) ** 2 / wanted[frequent]
        ).sum() > stats.chi2.isf(1e-9, k):
            yield "its answers do not have the distribution that they state"
            return


def _bit_problems(mechanism: Mechanism, flipped: Array, bits: Array) -> Iterator[str]:
    """Every bit must flip as often as stated, and independently of the bits beside it."""
    zero = np.zeros(1, bits.dtype) if bits.min() >= 0 else -np.ones(1, bits.dtype)
    stated = float(np.exp(mechanism.log_prob(np.ones(1, bits.dtype), zero))[0])
    columns = flipped.reshape(len(flipped), -1)
    spread = math.sqrt(max(stated * (1 - stated), 1e-300))
    if abs(columns.mean() - stated) * math.sqrt(columns.size) > _SIGMAS * spread + 0.5:
        yield f"it flips {columns.mean():.4g} of the bits, it states {stated:.4g}"
        return
    odd = np.abs(columns.mean(axis=0) - stated) * math.sqrt(len(columns)) / spread
    limit = _SIGMAS + math.sqrt(2 * math.log(1 + columns.shape[1]))
    if len(columns) * min(stated, 1 - stated) > 30 and odd.max(initial=0) > limit:
        yield "some of its bits flip more seldom, or more often, than stated"
    centred = columns.ravel() - stated
    for lag in {1, columns.shape[1]}:
        if lag < centred.size // 2 and abs(
            float(centred[lag:] @ centred[:-lag])
        ) > 9 * spread**2 * math.sqrt(centred.size):
            yield f"its flips repeat themselves: bits {lag} apart are correlated"
            return


def _ratio_problems(
    mechanism: Mechanism, value: Array, source: Source, *, rolls: int
) -> Iterator[str]:
    """Compare draws at the two worst inputs with the likelihood ratio that the mechanism states.

    On A = {ratio r > 1} the mean of 1/r under the first input is the probability of A under the
    second, for every mechanism. These numbers are between 0 and 1, so few draws suffice.
    """
    pair = [np.asarray(point) for point in mechanism.worst_pair()]
    width = max(1, pair[0].size)
    count = max(200, min(rolls, 2_000_000 // max(width, getattr(mechanism, "k", 1))))
    logs = []
    for point in pair:
        stacked = np.repeat(point[None], count, axis=0)
        drawn = mechanism.release(
            stacked, rng=source.stream("audit ratio", exact=mechanism.sampler == "exact")
        )
        own, opposite = (
            np.asarray(mechanism.log_prob(drawn, np.broadcast_to(side, stacked.shape)))
            .reshape(count, -1)
            .sum(axis=1)
            for side in pair
        )
        with np.errstate(invalid="ignore"):
            logs.append(np.nan_to_num(own - opposite, nan=0.0))
    first, second = logs
    limit = mechanism.cost.epsilon
    if mechanism.cost.delta == 0 and max(first.max(), -second.min()) > limit * (1 + 1e-9) + 1e-9:
        yield (
            f"two neighbours are told apart by e^{max(first.max(), -second.min()):.4g}, its cost "
            f"says {limit:.4g}"
        )
    for near, far in ((first, second), (-second, -first)):
        weights = np.where(near > 0, np.exp(-np.maximum(near, 0)), 0.0)
        expected, observed = weights.mean(), float((far > 0).mean())
        # Bernstein's bound on two means of numbers between 0 and 1.
        error = _SIGMAS * math.sqrt(
            (weights.var() + observed * (1 - observed)) / count
        ) + 2 * _SIGMAS**2 / (3 * count)
        if abs(expected - observed) > error:
            yield (
                f"an outcome has probability {observed:.4g} at a worst input, its log_prob says "
                f"{expected:.4g}"
            )
            return


def _rounding_problems(mechanism: Mechanism) -> Iterator[str]:
    """Test the neighbours that rounding to the grid moves furthest apart."""
    domain, dimensions, grid = (
        mechanism.domain,
        getattr(mechanism, "dimensions", 0),
        getattr(mechanism, "grid", None),
    )
    if not isinstance(domain, Reals) or domain.order != 1 or grid is None or not dimensions:
        return
    near = np.full(dimensions, 0.499 * grid)
    far = near + 0.002 * grid  # each number crosses the middle between two points of the grid
    far[0] += domain.reach - 0.002 * grid * dimensions
    if far[0] <= near[0]:
        return
    outcomes = np.stack([np.rint(near / grid), np.rint(far / grid)]) * grid
    ratio = [
        mechanism.log_prob(outcomes, np.broadcast_to(value, outcomes.shape)).sum(axis=1)
        for value in (near, far)
    ]
    loss = float(np.abs(ratio[0] - ratio[1]).max())
    if loss > mechanism.cost.epsilon * (1 + 1e-9):
        yield (
            f"rounded, neighbours are told apart by e^{loss:.4g}, its cost says "
            f"{mechanism.cost.epsilon:.4g}"
        )


def source_problems(source: Source, *, simulated: bool) -> Iterator[str]:
    """Yield what is wrong with a source of entropy.

    Every stream must take fresh entropy from the operating system, or be a cipher keyed by it; a
    seed is allowed only where `simulated` says so.
    """
    if source.name == "seed":
        if not simulated:
            yield "the door draws from a seeded generator: a simulation, not a protection"
        return
    if source.name != "system":
        return
    real = os.urandom
    for exact in (True, False):
        sizes: list[int] = []

        def urandom(size: int, sizes: list[int] = sizes) -> bytes:
            sizes.append(size)
            return real(size)

        with mock.patch("os.urandom", urandom):
            streams = [source.stream("audit", exact=exact) for _ in range(4)]
            starts = [bytes(stream.bytes(64)) for stream in streams]
        kind = "exact" if exact else "bulk"
        if len(set(starts)) < len(starts):
            yield f"two streams of {kind} noise are the same"
        if sum(sizes) < len(streams) * _LEAST_KEY:
            yield (
                f"a stream of {kind} noise takes only {sum(sizes) // len(streams)} bytes of the "
                "system's entropy"
            )
        bulk = getattr(
            getattr(streams[0], "bit_generator", None), "__class__", type(streams[0])
        ).__name__
        if not isinstance(streams[0], SystemEntropy) and "AES" not in bulk:
            yield f"{kind} noise comes from {bulk}, whose state can be computed from its output"


def start_problems(starts: Sequence[bytes]) -> Iterator[str]:
    """Test the first bytes of streams: no word may repeat, and ones and zeros must be balanced."""
    words = [np.frombuffer(start, np.uint64) for start in starts]
    if any(len(np.unique(stream)) < len(stream) for stream in words):
        yield "a stream repeats itself"
    bits = np.unpackbits(np.frombuffer(b"".join(starts), np.uint8))
    if abs(float(bits.mean()) - 0.5) * 2 * math.sqrt(bits.size) > _SIGMAS:
        yield f"{bits.mean():.4g} of its streams' bits are ones"


_STEP = 2.0**-11
_REACH = 9.0  # standard deviations on either side: the tails have probability below 1e-18


@dataclass(frozen=True)
class Gauss:
    """`count` Gaussian releases with sensitivity over sigma `mu`."""

    mu: float
    count: int = 1


@dataclass(frozen=True)
class Pure:
    """`count` releases of pure epsilon: bounded by randomised response (Kairouz, Oh and Viswanath
    2015).
    """

    epsilon: float
    count: int = 1


def epsilon_of(parts: Sequence[Gauss | Pure], delta: float) -> float:
    """Return the least epsilon at `delta` of all parts composed, to about a hundredth.

    It is the larger epsilon of the two directions (adding and removing the unit).
    """
    if not parts:
        return 0.0
    pure = math.fsum(part.count * part.epsilon for part in parts if isinstance(part, Pure))
    gauss = [part for part in parts if isinstance(part, Gauss)]
    if delta == 0:
        return math.inf if gauss else pure
    if not pure:
        return _least(
            lambda e: gaussian_delta(e, math.sqrt(sum(p.count * p.mu**2 for p in gauss))), delta
        )
    return max(_composed(parts, delta, swapped) for swapped in (False, True))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), by error functions."""
    if mu == 0:
        return 0.0
    tail = float(ndtr(-mu / 2 - epsilon / mu))
    return float(ndtr(mu / 2 - epsilon / mu)) - (
        math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0
    )


def _least(curve: Any, delta: float) -> float:
    high = 1.0
    while curve(high) > delta:
        high *= 2
        if high > 1e6:
            return math.inf
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= delta else (middle, high)
    return high


def _composed(parts: Sequence[Gauss | Pure], delta: float, swapped: bool) -> float:
    singles = [(*_losses(part, swapped), part.count) for part in parts]
    mean = sum(count * float(losses @ mass) for losses, mass, count in singles)
    variance = sum(
        count * float((losses**2) @ mass - (losses @ mass) ** 2) for losses, mass, count in singles
    )
    top = max(float(np.abs(losses).max()) for losses, _, _ in singles)
    width = abs(mean) + 12 * math.sqrt(max(variance, 0.0)) + top + 2
    step = max(_STEP if max(p.count for p in parts) == 1 else _STEP / 8, width * 2.0**-20)
    size = 2 ** math.ceil(math.log2(2 * width / step))
    spectrum: Any = np.ones(size // 2 + 1, np.complex128)
    for losses, mass, count in singles:
        spectrum = spectrum * np.fft.rfft(_on_grid(losses, mass, step, size)) ** count
    total = np.fft.irfft(spectrum, size)[
        : size // 2
    ]  # losses 0, step, 2 step, ...: epsilon is not below 0
    above = np.append(np.cumsum(total[::-1])[::-1], 0.0)
    weighed = np.append(np.cumsum((total * np.exp(-step * np.arange(len(total))))[::-1])[::-1], 0.0)

    def curve(epsilon: float) -> float:
        first = min(int(epsilon / step) + 1, len(total))
        return float(above[first] - math.exp(min(epsilon, 700)) * weighed[first])

    return _least(curve, delta)


def _on_grid(losses: Array, mass: Array, step: float, size: int) -> Array:
    """Divide each loss between its two nearest grid points, which keeps the mean exactly."""
    position = losses / step
    low = np.floor(position).astype(np.int64)
    part = position - low
    laid = np.zeros(size)
    np.add.at(laid, low % size, mass * (1 - part))
    np.add.at(laid, (low + 1) % size, mass * part)
    return laid


def _losses(part: Gauss | Pure, swapped: bool) -> tuple[Array, Array]:
    """Return the values of ln p/q of one release, and their probabilities under p."""
    if isinstance(part, Pure):
        chance = 1 / (1 + math.exp(-part.epsilon))
        return np.array([part.epsilon, -part.epsilon]), np.array([chance, 1 - chance])
    if part.mu <= 0 or part.count < 1:
        raise InvalidParameter("a Gaussian part must have mu above 0 and happen at least once.")
    x = np.linspace(-_REACH, part.mu + _REACH, 60_001)
    plain, moved = -0.5 * x * x, -0.5 * (x - part.mu) ** 2
    p, q = (plain, moved) if swapped else (moved, plain)
    mass = np.exp(p)
    return p - q, mass / mass.sum()
