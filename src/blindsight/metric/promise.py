"""What each way of learning promises: the guarantees beside the noise.

Under `calibration="paper"` the claim is the paper's epsilon per kappa pairs; what is proven follows from counting
rows, coordinates and touched batches. Anything that depends on the data without noise makes it infinite.
"""

from __future__ import annotations

import math
from typing import Any

from blindsight.metric.algorithm1 import PaperMechanism
from blindsight.metric.price import gaussian_epsilon
from blindsight.privacy.guarantee import Cost, Guarantee, Unit

__all__ = ["STRUCTURE", "paper_guarantee", "proven_guarantee"]

STRUCTURE = "who was compared with whom (the pair graph's structure and the number of pairs) is public"
_KAPPA = "an attacker misses at least kappa pairs, as Equation 5 supposes; kappa comes from the public structure"


def paper_guarantee(
    *,
    mechanism: PaperMechanism,
    epsilon: float,
    delta: float,
    epochs: int,
    n_components: int,
    n_features: int,
    kappa: int,
    reduction: bool,
    margin_from_data: bool,
    simulation: bool,
) -> Guarantee:
    """Algorithm 1's claim and what is true of it, per kappa pairs (and per pair under `also`)."""
    reasons = []
    if reduction:
        reasons.append("none proven: the noise scale of DPP-S is the batch's own peak")
    if margin_from_data:
        reasons.append("none proven: the margin is the mean distance of the private pairs, released through W")
    per_kappa, per_pair = _paper_epsilons(mechanism, epsilon, delta, epochs, n_components, n_features, kappa)
    if reasons:
        per_kappa = per_pair = math.inf
    spent_delta = delta if mechanism == "gaussian" and not reasons else 0.0
    name = {"laplace": "Laplace", "scdf": "staircase", "duchi": "Duchi", "gaussian": "Gaussian"}[mechanism]
    return Guarantee(
        mechanism=f"Algorithm 1{' with sensitivity reduction (DPP-S)' if reduction else ''}, {name} noise on "
        f"{n_components} rows, kappa = {kappa}",
        unit="kappa pairs",
        epsilon=per_kappa,
        delta=spent_delta,
        neighbours="replace one",
        model="central",
        claimed=epsilon,
        calibration="paper",
        accountant="rows and epochs composed; batches of an epoch are disjoint",
        assumptions=(STRUCTURE, _KAPPA, *reasons),
        simulation=simulation,
        also=() if reasons else (Cost(epsilon=per_pair, delta=spent_delta, unit="pair"),),
    )


def _paper_epsilons(
    mechanism: PaperMechanism, epsilon: float, delta: float, epochs: int, rows: int, columns: int, kappa: int
) -> tuple[float, float]:
    """(per kappa pairs, per pair) over all epochs, for a scale that does not depend on data."""
    if mechanism == "laplace":
        return rows * epsilon, rows * epsilon / kappa
    if mechanism == "scdf":
        # Any change of a coordinate below one step already costs a full epsilon', and all may change a little;
        # kappa pairs in as many batches pay in each.
        return kappa * rows * columns * epsilon, rows * columns * epsilon
    if mechanism == "duchi":
        return kappa * rows * epsilon, rows * epsilon
    # Gaussian: rows * epochs releases of sensitivity / sigma = epsilon' / sqrt(2 ln(1.25/delta)), which add in squares.
    ratio = math.sqrt(rows * epochs) * (epsilon / epochs) / math.sqrt(2 * math.log(1.25 / delta))
    return _gaussian_epsilon(ratio, delta), _gaussian_epsilon(ratio / kappa, delta)


def _gaussian_epsilon(ratio: float, delta: float) -> float:
    return gaussian_epsilon(1 / ratio, delta)


def proven_guarantee(
    *,
    mechanism: str,
    unit: Unit,
    epsilon: float,
    delta: float,
    group: int,
    accountant: str,
    also: tuple[Cost, ...] = (),
    simulation: bool,
    assumptions: tuple[str, ...] = (),
) -> Guarantee:
    """The guarantee of `private`'s learners."""
    extra: list[Any] = [STRUCTURE, "a neighbour lacks the unit's pairs: their gradients count as zero"]
    if unit == "kappa pairs":
        extra.append(_KAPPA)
    return Guarantee(
        mechanism=f"{mechanism}, up to {group} {'pairs' if group > 1 else 'pair'} a unit",
        unit=unit,
        epsilon=epsilon,
        delta=delta,
        neighbours="add or remove one",
        model="central",
        calibration="proven",
        accountant=accountant,
        assumptions=(*extra, *assumptions),
        simulation=simulation,
        also=also,
    )
