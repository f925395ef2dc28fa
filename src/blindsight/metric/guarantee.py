"""Guarantees of metric learning, computed before any data are read.

The module contains the plans of the releases and the paper's claims.

The cost of `DPPMetric` follows from its plan: all releases are Gaussian, so the squares of their mu
add up. For Algorithm 1 as printed, the batches of an epoch are disjoint and its rows compose; if
anything depends on the data without noise, no finite epsilon is proven.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from blindsight.metric.algorithm1 import SCALE, Batches, RowNoise
from blindsight.metric.losses import CLIP, STEPS
from blindsight.metric.moments import BUCKETS, release_size
from blindsight.privacy.accounting import Plan, Planned
from blindsight.privacy.cost import Cost, Unit
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption, Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon

__all__ = [
    "ABSENT",
    "KAPPA",
    "LABELS",
    "MAX_BINS",
    "MIN_BINS",
    "PEOPLE",
    "ROWS",
    "STRUCTURE",
    "bins_for",
    "metric_guarantee",
    "metric_plan",
    "paper_guarantee",
    "reach",
    "unit_noise",
]

MIN_BINS, MAX_BINS = 8, 40
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
LABELS = Assumption(
    "labels only",
    "what is protected is the label of each pair: the features of the records are known to whoever "
    "attacks",
)
PEOPLE = Assumption(
    "public people", "whose record is in which pair is public, and every record has one person"
)
# Shares of mu^2 of the releases other than the learner's own. The distances determine threshold and
# error rates; if no map is learned, they also get the learner's share.
_SHARES = {"column sizes": 0.1, "margin": 0.02, "distances": 0.2}
# How much a replaced label changes a sum, in norms of one pair's row. Moments and histograms have
# separate coordinates for similar and dissimilar pairs, so the row moves to orthogonal coordinates;
# a gradient may change its sign; the margin counts dissimilar pairs only, so its row appears or
# disappears; column sizes do not depend on labels and are charged as if they did.
_FLIPPED = {
    "column sizes": 1.0,
    "margin": 1.0,
    "distances": math.sqrt(2),
    "second moments": math.sqrt(2),
    "gradients": 2.0,
}


@lru_cache(maxsize=1024)
def unit_noise(epsilon: float, delta: float) -> float:
    """Return the smallest sigma for which a Gaussian release of sensitivity 1 meets the budget.

    It is 1 / mu for (epsilon, delta).
    """
    return Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="pair").sigma


def reach(what: str, unit: str) -> float:
    """Return how much one pair of the unit changes the sum `what`, in norms of one pair's row."""
    return _FLIPPED[what] if unit == "label" else 1.0


def bins_for(n_pairs: int, noise: float) -> int:
    """Return the number of cells of the histograms of distances, from public numbers.

    Parameters:
        n_pairs: number of pairs.
        noise: standard deviation of the noise on a count, if the whole budget were spent on it.

    Examples:
        >>> bins_for(160, 5.2), bins_for(4000, 5.2)
        (8, 40)
    """
    return int(min(MAX_BINS, max(MIN_BINS, (n_pairs / (24 * noise)) ** 2)))


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
    bins: int,
    tuples: bool = False,
) -> Plan:
    """Plan the releases of `DPPMetric`.

    Parameters:
        loss: how the map is learned; "plain" learns none.
        scaled: whether column sizes are released too.
        columns: columns of the records.
        rows: rows of the map that gradient descent learns.
        noise: standard deviation of a single release of sensitivity 1.
        group: how many pairs or tuples may contain one unit.
        unit: what is protected.
        delta: delta of the guarantee.
        bins: cells of each histogram of distances.
        tuples: whether there are triplets rather than pairs.
    """
    sizes: dict[str, tuple[float, int]] = {}  # name -> norm of one pair's row, coordinates
    if scaled:
        sizes["column sizes"] = math.sqrt(columns), columns * BUCKETS
    if loss in ("contrastive", "triplet"):
        sizes["margin"] = math.sqrt(2), 2
    sizes["distances"] = math.sqrt(2) if tuples else 1.0, 2 * bins
    shares = {name: _SHARES[name] for name in sizes}
    remaining = 1 - sum(shares.values())
    if loss == "plain":
        shares["distances"] += remaining

    def planned(what: str, norm: float, coordinates: int, share: float, count: int = 1) -> Planned:
        moved = group * reach(what, unit) * norm
        mechanism = DiscreteGaussian.fine(
            sigma=moved * noise / math.sqrt(share / count),
            sensitivity=moved,
            dimensions=coordinates,
            delta=delta,
            unit=unit,
            neighbours="replace one" if unit == "label" else "add or remove one",
        )
        change = reach(what, unit) if unit == "label" else None
        return Planned(what=what, mechanism=mechanism, count=count, group=group, change=change)

    small = [planned(name, *size, shares[name]) for name, size in sizes.items()]
    if loss == "plain":
        return tuple(small)
    if loss == "moments":
        coordinates, norm = release_size(columns)
        return (*small, planned("second moments", norm, coordinates, remaining))
    return (*small, planned("gradients", CLIP, rows * columns, remaining, STEPS))


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
    bins: int,
    tuples: bool = False,
) -> Guarantee:
    """Return the guarantee (epsilon, delta) per unit, and the cost in the other units."""
    group = groups[unit]
    releases = _calibrated(loss, scaled, columns, rows, epsilon, delta, unit, group, bins, tuples)
    others = [other for other in groups if other != unit]
    return Guarantee(
        releases=releases,
        epsilon=epsilon,
        delta=delta,
        model="central",
        assumptions=(
            STRUCTURE,
            LABELS if unit == "label" else ABSENT,
            *(() if named else (ROWS,)),
            *((KAPPA,) if unit == "kappa pairs" else ()),
            *((PEOPLE,) if "person" in groups else ()),
        ),
        entropy=entropy,
        also=tuple(_cost(_mu_of(releases, other, groups[other]), delta, other) for other in others),
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
    bins: int,
    tuples: bool,
) -> Plan:
    """Return the plan with the least noise within the budget. It is cached for repeated fits."""
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
            bins=bins,
            tuples=tuples,
        )
        mu = _mu_of(releases, unit, group)
        if mu <= target:
            return releases
        noise *= max(mu / target, 1 + 1e-12)  # Rounding to the grid costs a little.


def _mu_of(releases: Plan, unit: str, group: int) -> float:
    """Return mu of all releases together for a unit of `group` pairs.

    The clipped rows of the unit change a sum by at most group x reach x the bound of a row; the
    mechanism's own mu for that sensitivity includes the rounding to its grid.
    """
    total = 0.0
    for item in releases:
        mechanism = item.mechanism
        assert isinstance(mechanism, DiscreteGaussian)  # noqa: S101  (the plan's own)
        moved = group * reach(item.what, unit) * item.row_bound
        total += item.count * replace(mechanism, sensitivity=moved).mu ** 2
    return math.sqrt(total)


def _cost(mu: float, delta: float, unit: Any) -> Cost:
    return Cost(
        epsilon=gaussian_epsilon(mu, delta),
        delta=delta,
        unit=unit,
        neighbours="replace one" if unit == "label" else "add or remove one",
        rho=mu * mu / 2,
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
    """Return the claim of Algorithm 1 and what is proven, per kappa pairs.

    The field `also` states the cost per pair.
    """
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
    """Return the epsilon of one pair under noise for kappa pairs.

    `planned` is the plan for kappa = 1.
    """
    mechanism: Any = planned.mechanism
    if noise.family == "gaussian":
        return gaussian_epsilon(math.sqrt(planned.count) * mechanism.mu / kappa, noise.spent)
    alone = planned.count * float(mechanism.cost.epsilon)
    # Of these mechanisms, only the cost of Laplace noise decreases with the distance.
    return alone / kappa if noise.family == "laplace" else alone
