"""Federated classifiers: updates are summed under one-time pads, or by the paper's encryption
(Yonetani et al. 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.core.checks import core_module

if TYPE_CHECKING:
    from blindsight.federated.estimator import FederatedClassifier, Pad, Paper, SumNoise
    from blindsight.federated.learning import (
        SGD,
        Change,
        CommonMask,
        Federation,
        LocalTrainer,
        Proximal,
        TopK,
        Weights,
    )
    from blindsight.federated.own_updates import merge_updates, noised_update
    from blindsight.federated.sums import Settings, Simulation

__all__ = [
    "SGD",
    "Change",
    "CommonMask",
    "FederatedClassifier",
    "Federation",
    "LocalTrainer",
    "Pad",
    "Paper",
    "Proximal",
    "Settings",
    "Simulation",
    "SumNoise",
    "TopK",
    "Weights",
    "merge_updates",
    "noised_update",
]

_WHERE = {
    **dict.fromkeys(("FederatedClassifier", "Pad", "Paper", "SumNoise"), "estimator"),
    **dict.fromkeys(("merge_updates", "noised_update"), "own_updates"),
    **dict.fromkeys(("Settings", "Simulation"), "sums"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: a party's process needs no scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(core_module(f"{__name__}.{_WHERE.get(name, 'learning')}"), name)
