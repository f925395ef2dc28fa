"""What many releases cost together.

Never below what Google's dp-accounting gives (the tests compare them), and calibration rounds
toward privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, UnitMismatch
from blindsight.privacy.cost import Cost
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon as closed_form
from blindsight.privacy.plan import Plan, Planned

__all__ = ["compose", "least_noise", "price"]


def price(releases: Plan, *, delta: float = 0.0) -> Cost:
    """What a plan costs in all, at one `delta`, in the unit that all of its mechanisms share.

    Pure epsilons add. Gaussian releases add in mu^2 and are read off the exact Gaussian curve.
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
    return closed_form(
        math.sqrt(math.fsum(item.count * _mu(item) ** 2 for item in releases)), delta
    )


def compose(costs: Iterable[Cost]) -> Cost:
    """Basic composition: what releases on the same data cost together (epsilons and deltas add)."""
    listed = list(costs)
    if not listed:
        raise InvalidParameter("costs must hold at least one cost, got none.")
    return functools.reduce(lambda one, other: one + other, listed)
