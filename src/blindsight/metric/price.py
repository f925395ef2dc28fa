"""What noisy gradient steps cost when one unit may touch several pairs.

Removing a group of k pairs moves a sum of clipped gradients by up to k times the clipping bound. With every pair in
every step this is a Gaussian release of sensitivity k and composes in closed form. With Poisson sampling only some of
the k are drawn each time: the step is then a mixture of Gaussians with a binomial number of them (Ganesh 2024), whose
privacy-loss distribution is composed exactly. That is far less than group privacy applied at the end.
"""

from __future__ import annotations

import math
from functools import lru_cache

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy import accounting
from blindsight.privacy.mechanisms import Gaussian

__all__ = ["ACCOUNTANT", "descent_epsilon", "descent_noise", "gaussian_epsilon", "gaussian_noise"]

ACCOUNTANT = "Gaussian composition (closed form without sampling, privacy-loss distribution with)"


@lru_cache(maxsize=1024)
def gaussian_epsilon(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian release of sensitivity 1; remembered, because solving for it is slow."""
    return Gaussian(sigma=noise, sensitivity=1.0, delta=delta, unit="pair").cost.epsilon


@lru_cache(maxsize=1024)
def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least sigma of one Gaussian release of sensitivity 1 that keeps (epsilon, delta)."""
    return Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="pair").sigma


def descent_epsilon(*, noise: float, steps: int, rate: float, group: int, delta: float) -> float:
    """Epsilon at `delta` of `steps` noisy sums; `noise` is sigma over the clipping bound of one pair.

    Parameters
    ----------
    rate: the Poisson sampling rate of pairs; 1 uses all of them in each step.
    group: how many pairs one unit may touch.
    """
    noise, steps, group = checks.positive("noise", noise), checks.whole("steps", steps), checks.whole("group", group)
    rate = checks.probability("rate", rate)
    if rate == 0:
        raise InvalidParameter("rate must be above 0: nothing would be learned.")
    if rate == 1:
        return gaussian_epsilon(noise / (group * math.sqrt(steps)), delta)
    if group == 1:
        return accounting.gaussian_epsilon(noise_multiplier=noise, steps=steps, sampling_rate=rate, delta=delta)
    return _mixture_epsilon(noise, steps, rate, group, delta)


def _mixture_epsilon(noise: float, steps: int, rate: float, group: int, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld
    from scipy.stats import binom

    counts = range(group + 1)
    step = pld.from_mixture_gaussian_mechanism(
        standard_deviation=noise,
        sensitivities=[float(count) for count in counts],
        sampling_probs=binom.pmf(counts, group, rate).tolist(),
        pessimistic_estimate=True,
        # A grid well below the typical loss of a step; coarser is faster and still an upper bound.
        value_discretization_interval=min(5e-3, 0.05 * rate * group / noise),
    )
    return float(step.self_compose(steps).get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def descent_noise(*, epsilon: float, delta: float, steps: int, rate: float, group: int) -> float:
    """The least noise (to 0.5%) that keeps (epsilon, delta), rounded toward privacy."""
    target = checks.positive("epsilon", epsilon)
    if rate == 1:
        noise = gaussian_noise(target, delta) * group * math.sqrt(steps)
        while descent_epsilon(noise=noise, steps=steps, rate=1, group=group, delta=delta) > target:
            noise *= 1 + 1e-9
        return noise

    if group == 1:
        return accounting.noise_multiplier(epsilon=target, delta=delta, steps=steps, sampling_rate=rate)

    def spent(value: float) -> float:
        return descent_epsilon(noise=value, steps=steps, rate=rate, group=group, delta=delta)

    # Sampling never costs more than taking all, nor a group less than one of it.
    high = descent_noise(epsilon=target, delta=delta, steps=steps, rate=1.0, group=group)
    low = descent_noise(epsilon=target, delta=delta, steps=steps, rate=rate, group=1) / 1.005
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return high
