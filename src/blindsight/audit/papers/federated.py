"""Doubly permuted encryption: what the aggregator and the key holder get in the paper's protocol, and in ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

from blindsight.audit.federation import (
    single_contributors,
    single_user_decryption,
    subset_subtraction,
    support_intersection,
)
from blindsight.audit.verdict import Verdict
from blindsight.privacy import Recovery

__all__ = ["verdicts"]

_ATTACKS: tuple[tuple[str, str, str, Callable[..., Recovery], str], ...] = (
    (
        "support index",
        "30 rounds",
        "nobody learns it",
        support_intersection,
        "send every weight, under a pad: mode='pad'",
    ),
    (
        "weight",
        "5 users, 96% sparse",
        "only sums are seen",
        single_contributors,
        "vote first, and send only what enough users changed: least_per_coordinate",
    ),
    (
        "update",
        "two subsets subtracted",
        "only sums are seen",
        subset_subtraction,
        "open one set a round, which users confirmed",
    ),
    (
        "update",
        "one user passed off as the sum",
        "only sums are seen",
        single_user_decryption,
        "check who is in the sum: mode='pad'; or key holders",
    ),
)


def verdicts(*, seed: int = 0) -> Iterator[Verdict]:
    """Four attacks on both protocols."""
    sides: tuple[tuple[Literal["paper", "pad"], Literal["paper", "proven"]], ...] = (
        ("paper", "paper"),
        ("pad", "proven"),
    )
    for mode, calibration in sides:
        for unit, setting, promise, attack, advice in _ATTACKS:
            found: Any = attack(mode, seed=seed)
            broken = found.value > max(0.05, 10 * (found.chance or 0.0))
            yield Verdict(
                room="federated",
                method="DPHE" if mode == "paper" else "sums under a pad (ours)",
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
