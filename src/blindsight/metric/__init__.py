"""Metric learning that keeps labelled pairs private (differential pairwise privacy)."""

from __future__ import annotations

from blindsight.core.checks import core_module

core_module("sklearn")  # The error names the extra to install.

from blindsight.metric.algorithm1 import RowNoise, Steps, Trace, algorithm1, step_sizes
from blindsight.metric.estimator import DPPMetric, MetricForecast
from blindsight.metric.graph import (
    PairGraph,
    PairReport,
    bounded_degree,
    check_pairs,
    matching,
    pair_labels,
    select,
    spanning_forest,
)
from blindsight.metric.kappa import kappa, pair_kappa
from blindsight.metric.linear import ComparisonAnswer, ErrorCurve, EuclideanMetric, OperatingPoint
from blindsight.metric.losses import (
    Contrastive,
    Triplet,
    group_size,
    mean_dissimilar_distance,
)
from blindsight.metric.paper import DPPDML, MendedDML

__all__ = [
    "DPPDML",
    "ComparisonAnswer",
    "Contrastive",
    "DPPMetric",
    "ErrorCurve",
    "EuclideanMetric",
    "MendedDML",
    "MetricForecast",
    "OperatingPoint",
    "PairGraph",
    "PairReport",
    "RowNoise",
    "Steps",
    "Trace",
    "Triplet",
    "algorithm1",
    "bounded_degree",
    "check_pairs",
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
