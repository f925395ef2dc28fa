"""What each way of learning promises, known before any data: plans for the door, and the paper's
claims beside ours.

`DPPMetric` is priced from its plan: all of it is Gaussian, so the parts share one mu, in squares.
Algorithm 1 to the letter is not: its batches are disjoint and its rows compose, which is worked out
here; anything that depends on the data without noise makes it infinite.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from blindsight.metric.algorithm1 import SCALE, Batches, RowNoise
from blindsight.metric.descent import CLIP, STEPS
from blindsight.metric.moments import BUCKETS, release_size
from blindsight.privacy.cost import Cost, Unit
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption, Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.privacy.plan import Plan, Planned

__all__ = [
    "ABSENT",
    "BINS",
    "KAPPA",
    "ROWS",
    "STRUCTURE",
    "metric_guarantee",
    "metric_plan",
    "paper_guarantee",
    "unit_noise",
]

BINS = 32
STRUCTURE = Assumption(
    "public structure",
    "who was compared with whom (the pair graph's structure and the number of pairs) is public",
)
ROWS = Assumption(
    "rows are records",
    "every row of an array of features is a record of its own, in one pair or tuple",
)
ABSENT = Assumption(
    "absent pairs", "a neighbour lacks the unit's pairs: they count as zero in every sum"
)
KAPPA = Assumption(
    "kappa",
    "an attacker misses at least kappa pairs, as Equation 5 supposes; kappa comes from the public "
    "structure",
)
# Of mu^2: what the releases beside the learner's own may spend. Distances decide the threshold:
# with .04 "same or different" was right in 52 of 100 cases on wine at epsilon .5, with .2 in 63.
_SHARES = {"column sizes": 0.1, "margin": 0.02, "distances": 0.2}


@lru_cache(maxsize=1024)
def unit_noise(epsilon: float, delta: float) -> float:
    """The least sigma of one Gaussian release of sensitivity 1 that keeps (epsilon, delta): 1 /
    mu.
    """
    return Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="pair").sigma


def metric_plan(
    loss: str,
    *,
    scaled: bool,
    columns: int,
    rows: int,
    noise: float,
    group: int,
    unit: Unit,
    delta: float,
) -> Plan:
    """The releases of `DPPMetric`: `noise` is what a single release of sensitivity 1 would need.

    Parameters:
        scaled: whether column sizes are released too.
        rows: of the map that descent moves.
        group: how many pairs or tuples one unit may be in.
    """
    tuples = loss in ("triplet", "npair")
    sizes: dict[str, tuple[float, int]] = {}  # name -> norm of one pair's row, coordinates
    if scaled:
        sizes["column sizes"] = math.sqrt(columns), columns * BUCKETS
    if loss in ("contrastive", "triplet"):
        sizes["margin"] = math.sqrt(2), 2
    sizes["distances"] = math.sqrt(2) if tuples else 1.0, 2 * BINS
    left = 1 - sum(_SHARES[name] for name in sizes)

    def planned(what: str, norm: float, coordinates: int, share: float, count: int = 1) -> Planned:
        mechanism = DiscreteGaussian.fine(
            sigma=group * norm * noise / math.sqrt(share / count),
            sensitivity=group * norm,
            dimensions=coordinates,
            delta=delta,
            unit=unit,
            neighbours="add or remove one",
        )
        return Planned(what=what, mechanism=mechanism, count=count, group=group)

    small = [planned(name, *size, _SHARES[name]) for name, size in sizes.items()]
    if loss == "moments":
        coordinates, norm = release_size(columns)
        return (*small, planned("second moments", norm, coordinates, left))
    return (*small, planned("gradients", CLIP, rows * columns, left, STEPS))


def metric_guarantee(
    loss: str,
    *,
    scaled: bool,
    columns: int,
    rows: int,
    epsilon: float,
    delta: float,
    unit: Unit,
    groups: dict[str, int],
    named: bool,
    entropy: EntropyName,
) -> Guarantee:
    """(epsilon, delta) per unit, and what the same releases cost in the other units."""
    group = groups[unit]
    releases, mu = _calibrated(loss, scaled, columns, rows, epsilon, delta, unit, group)
    others = [other for other in groups if other != unit]
    return Guarantee(
        releases=releases,
        epsilon=epsilon,
        delta=delta,
        model="central",
        assumptions=(
            STRUCTURE,
            ABSENT,
            *(() if named else (ROWS,)),
            *((KAPPA,) if unit == "kappa pairs" else ()),
        ),
        entropy=entropy,
        also=tuple(_cost(mu * groups[other] / group, delta, other) for other in others),
    )


@lru_cache(maxsize=256)
def _calibrated(
    loss: str,
    scaled: bool,
    columns: int,
    rows: int,
    epsilon: float,
    delta: float,
    unit: Unit,
    group: int,
) -> tuple[Plan, float]:
    """The plan with the least noise that keeps the budget, and its mu: remembered, for trials that
    fit again.
    """
    noise = unit_noise(epsilon, delta)
    target = 1 / noise
    while True:
        releases = metric_plan(
            loss,
            scaled=scaled,
            columns=columns,
            rows=rows,
            noise=noise,
            group=group,
            unit=unit,
            delta=delta,
        )
        mu = _mu(releases)
        if mu <= target:
            return releases, mu
        noise *= max(mu / target, 1 + 1e-12)  # rounding to the grid costs a hair


def _mu(releases: Plan) -> float:
    return math.sqrt(math.fsum(item.count * item.mechanism.mu**2 for item in releases))  # type: ignore[attr-defined]


def _cost(mu: float, delta: float, unit: Any) -> Cost:
    epsilon = gaussian_epsilon(mu, delta)
    return Cost(
        epsilon=epsilon, delta=delta, unit=unit, neighbours="add or remove one", rho=mu * mu / 2
    )


def paper_guarantee(
    noise: RowNoise,
    batches: Batches,
    *,
    epsilon: float,
    lipschitz: float,
    kappa: int,
    rows: int,
    columns: int,
    margin_from_data: bool,
    simulation: bool,
) -> Guarantee:
    """Algorithm 1's claim and what is true of it, per kappa pairs (and per pair under `also`)."""
    unproven = []
    if noise.reduced:
        unproven.append(SCALE)
    if margin_from_data:
        says = "the margin is the mean distance of the private pairs, released through W"
        unproven.append(Assumption("margin from the data", says))
    name = {"laplace": "Laplace", "scdf": "staircase", "duchi": "Duchi", "gaussian": "Gaussian"}[
        noise.family
    ]
    facts: Any = {"epsilon": epsilon, "lipschitz": lipschitz, "rows": rows, "columns": columns}
    spent = 0.0 if unproven else noise.spent
    per_pair = _per_pair(noise, noise.plan(batches, kappa=1, **facts), kappa)
    return Guarantee(
        releases=(noise.plan(batches, kappa=kappa, **facts),),
        mechanism=f"Algorithm 1{' with sensitivity reduction (DPP-S)' if noise.reduced else ''}, "
        f"{name} noise on "
        f"{rows} rows, kappa = {kappa}",
        unproven=tuple(unproven),
        delta=spent,
        model="central",
        claimed=epsilon,
        calibration="paper",
        accountant="" if unproven else "rows and epochs composed; batches of an epoch are disjoint",
        assumptions=(STRUCTURE, KAPPA),
        simulation=simulation,
        also=() if unproven else (Cost(epsilon=per_pair, delta=spent, unit="pair"),),
    )


def _per_pair(noise: RowNoise, planned: Planned, kappa: int) -> float:
    """What one pair pays for noise made for kappa of them; `planned` is the plan for kappa = 1."""
    mechanism: Any = planned.mechanism
    if noise.family == "gaussian":
        return gaussian_epsilon(math.sqrt(planned.count) * mechanism.mu / kappa, noise.spent)
    alone = planned.count * float(mechanism.cost.epsilon)
    # Of these only Laplace noise gets cheaper with the distance.
    return alone / kappa if noise.family == "laplace" else alone
