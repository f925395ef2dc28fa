"""Training data for others: feature statistics with a guarantee, and the paper's sketches.

Sketches carry no privacy guarantee.
"""

from __future__ import annotations

import importlib
from typing import Any

from blindsight.core.checks import core_module

core_module("sklearn")  # The error names the extra to install.

from blindsight.sketching.calibration import calibrate
from blindsight.sketching.estimator import CodebookClassifier, CodebookSketcher, FlippedBits
from blindsight.sketching.feature_statistics import FeatureStatistics, PrivateHead
from blindsight.sketching.leak import Leak, leak_of
from blindsight.sketching.negative_database import NegativeDatabase
from blindsight.sketching.paper import NegativeSketcher, SketchServer, SketchUser
from blindsight.sketching.parameters import PAPER_Q, FlipParameters, QKParameters
from blindsight.sketching.sketches import Permanent, SketchSet
from blindsight.sketching.statistics import (
    FeatureBasis,
    Statistics,
    StatisticsLayout,
    merge_statistics,
)
from blindsight.sketching.statistics_receiver import (
    StatisticsClassifier,
    fit_from_statistics,
    sample_rows,
)

__all__ = [
    "PAPER_Q",
    "CodebookClassifier",
    "CodebookSketcher",
    "FeatureBasis",
    "FeatureStatistics",
    "FlipParameters",
    "FlippedBits",
    "Leak",
    "NegDL",
    "NegativeDatabase",
    "NegativeSketcher",
    "Permanent",
    "PrivateHead",
    "QKParameters",
    "SketchDataset",
    "SketchServer",
    "SketchSet",
    "SketchUser",
    "Statistics",
    "StatisticsClassifier",
    "StatisticsLayout",
    "calibrate",
    "fit_from_statistics",
    "leak_of",
    "merge_statistics",
    "sample_rows",
]

# These import torch, so they are imported on first use.
_LATER = ("NegDL", "SketchDataset")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from blindsight.core.checks import optional_module

    optional_module("torch", extra="torch")
    return getattr(importlib.import_module("blindsight.sketching.trainer"), name)
