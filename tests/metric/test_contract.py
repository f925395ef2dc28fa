"""DPPMetric keeps the contract of every private estimator."""

from __future__ import annotations

import numpy as np

from blindsight.metric import DPPMetric
from contracts.estimator import EstimatorContract


class TestDPPMetric(EstimatorContract):
    private = True
    expected_failures = None  # data are pairs, not rows

    def make(self, **params):
        return DPPMetric(3, **params)

    def data(self):
        rng = np.random.default_rng(0)
        X, classes = rng.normal(size=(40, 5)), rng.integers(0, 2, 40)
        pairs = np.column_stack([np.arange(0, 40, 2), np.arange(1, 40, 2)])
        return X[pairs], classes[pairs[:, 0]] == classes[pairs[:, 1]]

    def output(self, fitted):
        return fitted.transform(self.data()[0][:, 0])
