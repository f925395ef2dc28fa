"""Doubly permuted encryption: what the aggregator and the key holder get in the paper's protocol,
and in ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blindsight.audit.engine.blackbox import collect
from blindsight.audit.engine.worst_inputs import Attack, attack_outcomes
from blindsight.audit.methods.federated.attacks import (
    single_contributors,
    single_user_decryption,
    subset_subtraction,
    support_intersection,
)
from blindsight.audit.methods.federated.cheats import stopped_by
from blindsight.audit.report.verdict import Verdict
from blindsight.core.arrays import Array
from blindsight.privacy import Recovery

__all__ = ["attack_sum", "verdicts"]

_ATTACKS: tuple[tuple[str, str, str, Callable[..., Recovery], str], ...] = (
    (
        "support index",
        "30 rounds",
        "nobody learns it",
        support_intersection,
        "send every weight, under a pad: sums=Pad()",
    ),
    (
        "weight",
        "5 users, 96% sparse",
        "only sums are seen",
        single_contributors,
        "send every weight: send=Change() with sums=Pad()",
    ),
    (
        "update",
        "two subsets subtracted",
        "only sums are seen",
        subset_subtraction,
        "let key holders decide which sets are opened: sums=Pad()",
    ),
    (
        "update",
        "one user passed off as the sum",
        "only sums are seen",
        single_user_decryption,
        "check who is in the sum: sums=Pad()",
    ),
)


def verdicts(*, seed: int = 0) -> Iterator[Verdict]:
    """Four attacks on the paper's protocol, and every attack by a cheating party on ours."""
    for unit, setting, promise, attack, advice in _ATTACKS:
        found = attack(seed=seed)
        broken = found.value > max(0.05, 10 * (found.chance or 0.0))
        yield _verdict("DPHE", setting, unit, "paper", promise, found, broken, advice)
    for unit, setting, promise, attack, advice in _ATTACKS[:1]:
        found = attack("pad", seed=seed)
        broken = found.value > max(0.05, 10 * (found.chance or 0.0))
        yield _verdict(
            "sums under a pad (ours)", setting, unit, "proven", promise, found, broken, advice
        )
    tried = stopped_by()
    through = [name for name, code in tried.items() if not code]
    found = Recovery(
        attack=f"{len(tried)} ways to cheat by real messages",
        measure="share that went through",
        value=len(through) / len(tried),
        chance=0.0,
    )
    advice = f"mend the rules: {', '.join(through)} went through"
    setting = "cheating aggregator, key holder or user"
    yield _verdict(
        "sums under a pad (ours)",
        setting,
        "update",
        "proven",
        "only sums are seen",
        found,
        bool(through),
        advice,
    )


def _verdict(
    method: str,
    setting: str,
    unit: str,
    calibration: Any,
    promise: str,
    found: Recovery,
    broken: bool,
    advice: str,
) -> Verdict:
    return Verdict(
        room="federated",
        method=method,
        setting=setting,
        unit=unit,
        calibration=calibration,
        claimed=None,
        proven=math.inf,
        promise=promise,
        recovered=found,
        broken=broken,
        advice=advice if broken else "",
    )


def attack_sum(model: Any, *, trials: int, seed: int) -> Attack:
    """A round's sum as six real users make it, each with noise of its own.

    One of them sends its bound, or minus it; where the unit is a record, a record of the largest
    norm is there or not.
    """
    from blindsight.federated import Pad
    from blindsight.federated.agreement import agree
    from blindsight.federated.learning import RecordDescent
    from blindsight.federated.sums import Settings, Simulation

    asked = {name: getattr(model.noise, name) for name in ("epsilon", "delta", "clip")}
    per_record, colluders = model.noise.per_record, (model.sums or Pad()).colluders
    if per_record:
        learner = RecordDescent() if model.learner is None else model.learner
        asked |= {"clip": learner.record_norm, "records": model.noise.records}
    settings = agree(
        dimension=4, users=6, rounds=model.rounds, colluders=colluders, **asked
    ).settings
    assert isinstance(settings, Settings)  # noqa: S101  (the paper's protocol has no noise)
    # No more than must be there: the least noise.
    silent = [np.zeros(4)] * (settings.fewest - 1)
    reach = float(settings.noise.clip) * np.eye(4)[0]  # type: ignore[union-attr]

    def run(update: Array, rng: np.random.Generator) -> Array:
        users = Simulation(settings, encrypt=False, rng=rng)
        return np.array([users.round([update, *silent]).total[0]])

    return attack_outcomes(
        collect(run, reach, 0 * reach if per_record else -reach, trials=trials, seed=seed),
        what="one round's sum of 6 users, one "
        + ("record added" if per_record else "of them replaced"),
        delta=model.guarantee_.delta,
        statistic=lambda sums: np.asarray(sums[:, 0], np.float64),
    )
