"""What many releases cost together: our own thin layer on Google's dp-accounting.

Never below what dp-accounting gives, and calibration rounds toward privacy. One trap is walked around here: in
dp-accounting 0.6 `PLDAccountant` drops the count of a composed `RandomizedResponseDpEvent`, so many flips are
composed through the privacy-loss distribution itself.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.guarantee import Cost

__all__ = ["advanced", "compose", "flips_epsilon", "gaussian_epsilon", "noise_multiplier", "parallel"]


def compose(costs: Iterable[Cost]) -> Cost:
    """Basic composition: what releases on the same data cost together (epsilons and deltas add)."""
    listed = list(costs)
    if not listed:
        raise InvalidParameter("costs must hold at least one cost, got none.")
    return functools.reduce(lambda one, other: one + other, listed)


def parallel(costs: Iterable[Cost]) -> Cost:
    """Parallel composition: releases on disjoint parts of the data cost as much as the dearest one.

    Under "replace one" a record may move from one part to another, so it touches two parts: the two dearest add.
    """
    listed = list(costs)
    total = compose(listed)  # checks that units agree
    dearest = 2 if total.neighbours == "replace one" else 1
    epsilons = sorted((cost.epsilon for cost in listed), reverse=True)[:dearest]
    deltas = sorted((cost.delta for cost in listed), reverse=True)[:dearest]
    return Cost(epsilon=sum(epsilons), delta=sum(deltas), unit=total.unit, neighbours=total.neighbours)


def advanced(cost: Cost, count: int, *, delta: float) -> Cost:
    """Advanced composition of `count` equal releases (Kairouz, Oh and Viswanath 2015), or basic where that is less.

    `delta` is the slack spent on top of the releases' own deltas.
    """
    count = checks.whole("count", count)
    slack = checks.probability("delta", delta, below_one=True)
    epsilon = cost.epsilon
    basic = Cost(
        epsilon=count * epsilon,
        delta=min(count * cost.delta, math.nextafter(1, 0)),
        unit=cost.unit,
        neighbours=cost.neighbours,
    )
    if slack == 0 or math.isinf(epsilon):
        return basic
    drift = count * epsilon * math.tanh(epsilon / 2)
    spread = epsilon * math.sqrt(2 * count * math.log(1 / slack))
    if drift + spread >= basic.epsilon:
        return basic
    total = min(slack + basic.delta, math.nextafter(1, 0))
    return Cost(epsilon=drift + spread, delta=total, unit=cost.unit, neighbours=cost.neighbours)


def gaussian_epsilon(*, noise_multiplier: float, steps: int, sampling_rate: float = 1.0, delta: float) -> float:
    """Epsilon at `delta` of `steps` Gaussian releases with Poisson sampling, under "add or remove one".

    `noise_multiplier` is sigma over the l2 clipping bound. The smaller of what the privacy-loss distribution and
    Renyi accounting prove; both are upper bounds.
    """
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    checks.positive("noise_multiplier", noise_multiplier)
    checks.whole("steps", steps)
    rate = checks.probability("sampling_rate", sampling_rate)
    if rate == 0:
        raise InvalidParameter("sampling_rate must be above 0: nothing would be learned.")
    if not 0 < checks.number("delta", delta) < 1:
        raise InvalidParameter(f"delta must be above 0 and below 1, got {delta!r}.")
    event: dp_event.DpEvent = dp_event.GaussianDpEvent(noise_multiplier)
    if rate < 1:
        event = dp_event.PoissonSampledDpEvent(rate, event)
    with _quiet():
        renyi = RdpAccountant().compose(event, steps).get_epsilon(delta)
    if renyi > 60:  # far beyond any promise worth keeping; the finer accountant would need a huge grid
        return float(renyi)
    fine = PLDAccountant(value_discretization_interval=1e-3).compose(event, steps).get_epsilon(delta)
    return float(min(renyi, fine))


@contextmanager
def _quiet() -> Iterator[None]:
    # Orders of Renyi accounting that do not converge are left out with a log line each: nothing for the reader to do.
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def noise_multiplier(*, epsilon: float, delta: float, steps: int, sampling_rate: float = 1.0) -> float:
    """The least noise multiplier (to 0.1%) that keeps (epsilon, delta) over all steps, rounded toward privacy."""
    target = checks.positive("epsilon", epsilon)

    def spent(sigma: float) -> float:
        return gaussian_epsilon(noise_multiplier=sigma, steps=steps, sampling_rate=sampling_rate, delta=delta)

    high = 1.0
    while spent(high) > target:
        high *= 2
        if high > 1e6:
            raise InvalidParameter(f"no noise multiplier below 1e6 keeps epsilon {target:g} over {steps} steps.")
    low = high / 2
    while low > 1e-2 and spent(low) <= target:
        high, low = low, low / 2
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return high


def flips_epsilon(beta: float, count: int, *, delta: float) -> float:
    """Epsilon at `delta` of `count` bits flipped with probability `beta`, all of which may differ.

    With delta > 0 the privacy-loss distribution gives less than count x the epsilon of one bit; never more.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    beta = checks.probability("beta", beta)
    count = checks.whole("count", count)
    slack = checks.probability("delta", delta, below_one=True)
    if beta in (0.0, 1.0):
        return math.inf
    pure = count * abs(math.log1p(-beta) - math.log(beta))
    if slack == 0 or pure == 0:
        return pure
    # noise_parameter is the chance that the answer is replaced by a fair coin: a flip with probability half of it.
    one = pld.from_randomized_response(noise_parameter=2 * min(beta, 1 - beta), num_buckets=2)
    return min(pure, float(one.self_compose(count).get_epsilon_for_delta(slack)))
