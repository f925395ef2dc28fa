"""What many releases cost together: our own thin layer on Google's dp-accounting.

Never below what dp-accounting gives, and calibration rounds toward privacy.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, UnitMismatch
from blindsight.privacy.cost import Cost
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon as closed_form
from blindsight.privacy.plan import Plan, Planned

__all__ = ["compose", "least_noise", "price"]


# Beyond this epsilon the finer accountant would need a huge grid, for a promise not worth keeping.
_FINE_BELOW = 60.0


def price(releases: Plan, *, delta: float = 0.0) -> Cost:
    """What a plan costs in all, at one `delta`, in the unit that all of its mechanisms share.

    Pure epsilons add. Gaussian releases add in mu^2 and are read off the exact Gaussian curve;
    those on Poisson samples are composed by their privacy-loss distributions (a unit of several
    rows as a mixture, Ganesh 2024), and the smaller of that and the bound without sampling counts.
    rho is the bound without sampling.
    """
    if not releases:
        raise InvalidParameter("a plan must name at least one release.")
    relations = {(item.mechanism.unit, item.mechanism.neighbours) for item in releases}
    if len(relations) > 1:
        named = " and ".join(sorted(f"per {unit} ({neighbours})" for unit, neighbours in relations))
        raise UnitMismatch(f"one plan must speak of one unit, got releases {named}.")
    ((unit, neighbours),) = relations
    pure = [item for item in releases if not hasattr(item.mechanism, "mu")]
    gaussian = [item for item in releases if hasattr(item.mechanism, "mu")]
    epsilon = math.fsum(item.count * item.mechanism.cost.epsilon for item in pure)
    rho = math.fsum(item.count * item.mechanism.cost.epsilon**2 / 2 for item in pure)
    spent = math.fsum(item.count * item.mechanism.cost.delta for item in pure)
    if gaussian:
        left = checks.probability("delta", delta, below_one=True) - spent
        if left <= 0:
            raise InvalidParameter(
                f"delta must be above {spent:g} for a plan with Gaussian noise, got {delta!r}."
            )
        epsilon += _gaussian_plan_epsilon(tuple(gaussian), left)
        rho += math.fsum(item.count * _mu(item) ** 2 / 2 for item in gaussian)
        spent = delta
    known = None if any(item.mechanism.cost.delta for item in pure) else rho
    # A single pure release states what its mechanism does; its rho follows from epsilon.
    return Cost(
        epsilon=epsilon,
        delta=spent,
        unit=unit,
        neighbours=neighbours,
        rho=known if gaussian else None,
    )


def least_noise(
    epsilon: float,
    releases: Callable[[float], Plan],
    *,
    delta: float,
    low: float = 1e-3,
    precision: float = 1.001,
) -> float:
    """The least noise (to 0.1%) whose plan keeps (epsilon, delta), rounded toward privacy.

    `releases` makes the plan for a noise scale; more noise must not cost more.
    """
    target = checks.positive("epsilon", epsilon)

    def fits(noise: float) -> bool:
        return price(releases(noise), delta=delta).epsilon <= target

    high = max(1.0, low)
    while not fits(high):
        high *= 2
        if high > 1e9:
            raise InvalidParameter(
                f"no noise keeps epsilon {target:g}: other parts of the plan cost more."
            )
    while high / 2 > low and fits(high / 2):
        high /= 2
    least = high / 2
    while high / least > precision:
        middle = math.sqrt(least * high)
        least, high = (least, middle) if fits(middle) else (middle, high)
    return high


def _mu(item: Planned) -> float:
    return float(item.mechanism.mu)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=512)
def _gaussian_plan_epsilon(releases: Plan, delta: float) -> float:
    whole = closed_form(
        math.sqrt(math.fsum(item.count * _mu(item) ** 2 for item in releases)), delta
    )
    if all(item.rate == 1 for item in releases):
        return whole
    bound = whole
    if all(item.group == 1 for item in releases):
        bound = min(bound, _renyi(releases, delta))
    return bound if bound > _FINE_BELOW else min(bound, _by_distribution(releases, delta))


def _renyi(releases: Plan, delta: float) -> float:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    with _quiet():
        for item in releases:
            accountant.compose(_event(item), item.count)
        return float(accountant.get_epsilon(delta))


def _event(item: Planned) -> Any:
    from dp_accounting import dp_event

    event: dp_event.DpEvent = dp_event.GaussianDpEvent(1 / _mu(item))
    return event if item.rate == 1 else dp_event.PoissonSampledDpEvent(item.rate, event)


def _by_distribution(releases: Plan, delta: float) -> float:
    """Composition of privacy-loss distributions; pessimistic, so never below the truth."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from scipy.stats import binom

    # A grid well below the typical loss of one step; coarser is faster and still an upper bound.
    step = min(
        max(1e-5, min(1e-3 * (1 + 4 * (item.group > 1)), 0.05 * item.rate * _mu(item)))
        for item in releases
    )
    total: Any = None
    for item in releases:
        rows = range(item.group + 1)
        sizes = [float(count) / item.group for count in rows] if item.rate < 1 else [1.0]
        chances = binom.pmf(rows, item.group, item.rate).tolist() if item.rate < 1 else [1.0]
        one = pld.from_mixture_gaussian_mechanism(
            standard_deviation=1 / _mu(item),
            sensitivities=sizes,
            sampling_probs=chances,
            pessimistic_estimate=True,
            value_discretization_interval=step,
        ).self_compose(item.count)
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(delta))


def compose(costs: Iterable[Cost]) -> Cost:
    """Basic composition: what releases on the same data cost together (epsilons and deltas add)."""
    listed = list(costs)
    if not listed:
        raise InvalidParameter("costs must hold at least one cost, got none.")
    return functools.reduce(lambda one, other: one + other, listed)


@contextmanager
def _quiet() -> Iterator[None]:
    # Orders of Renyi accounting that do not converge are left out with a log line each: nothing for
    # the reader to do.
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
