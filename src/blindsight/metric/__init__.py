"""Metric learning that keeps labelled pairs private (differential pairwise privacy)."""

from __future__ import annotations

from blindsight.metric.drawing import draw
from blindsight.metric.graph import PairGraph, pair_labels
from blindsight.metric.kappa import kappa, pair_kappa
from blindsight.metric.selection import bounded_degree, matching, select, spanning_forest

__all__ = [
    "PairGraph",
    "bounded_degree",
    "draw",
    "kappa",
    "matching",
    "pair_kappa",
    "pair_labels",
    "select",
    "spanning_forest",
]
