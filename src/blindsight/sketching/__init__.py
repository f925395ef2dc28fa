"""Sketches of images for training elsewhere: negative databases, NegDL, inputs with an epsilon."""

from __future__ import annotations

import importlib
from typing import Any

from blindsight.sketching.calibration import calibrate
from blindsight.sketching.estimator import CodebookClassifier, CodebookSketcher, FlippedBits
from blindsight.sketching.leak import Leak, leak_of
from blindsight.sketching.negative_database import NegativeDatabase
from blindsight.sketching.paper import NegativeSketcher, SketchServer, SketchUser
from blindsight.sketching.parameters import PAPER_Q, FlipParameters, QKParameters
from blindsight.sketching.permanent import Permanent
from blindsight.sketching.sketches import SketchSet

__all__ = [
    "PAPER_Q",
    "CodebookClassifier",
    "CodebookSketcher",
    "FlipParameters",
    "FlippedBits",
    "Leak",
    "NegDL",
    "NegativeDatabase",
    "NegativeSketcher",
    "Permanent",
    "QKParameters",
    "SketchDataset",
    "SketchServer",
    "SketchSet",
    "SketchUser",
    "calibrate",
    "leak_of",
]

# These import torch, so they are imported on first use.
_LATER = ("NegDL", "SketchDataset")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from blindsight.core.checks import optional_module

    optional_module("torch", extra="torch")
    return getattr(importlib.import_module("blindsight.sketching.trainer"), name)
