"""Metric learning that keeps labelled pairs private (differential pairwise privacy)."""

from __future__ import annotations

from blindsight.metric.algorithm1 import RowNoise, Steps, Trace, algorithm1, step_sizes
from blindsight.metric.baselines import (
    ContrastiveMetric,
    Descent,
    EuclideanMetric,
    InputPerturbation,
)
from blindsight.metric.checking import PairReport, check_pairs
from blindsight.metric.contrastive import Contrastive, mean_dissimilar_distance
from blindsight.metric.drawing import draw
from blindsight.metric.estimator import DPPMetric
from blindsight.metric.graph import PairGraph, pair_labels
from blindsight.metric.kappa import kappa, pair_kappa
from blindsight.metric.losses import NPair, Triplet, group_size
from blindsight.metric.paper import DPPDML, MendedDML
from blindsight.metric.selection import bounded_degree, matching, select, spanning_forest

__all__ = [
    "DPPDML",
    "Contrastive",
    "ContrastiveMetric",
    "DPPMetric",
    "Descent",
    "EuclideanMetric",
    "InputPerturbation",
    "MendedDML",
    "NPair",
    "PairGraph",
    "PairReport",
    "RowNoise",
    "Steps",
    "Trace",
    "Triplet",
    "algorithm1",
    "bounded_degree",
    "check_pairs",
    "draw",
    "group_size",
    "kappa",
    "matching",
    "mean_dissimilar_distance",
    "pair_kappa",
    "pair_labels",
    "select",
    "spanning_forest",
    "step_sizes",
]
