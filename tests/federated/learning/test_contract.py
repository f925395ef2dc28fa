"""FederatedClassifier keeps the contract of every estimator, with noise and without."""

from __future__ import annotations

import numpy as np

from blindsight.federated import FederatedClassifier, SumNoise
from contracts.estimator import EstimatorContract


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    return rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y], y


class TestFederatedClassifier(EstimatorContract):
    def make(self, **params):
        return FederatedClassifier(**{"encrypt": False, "users": 3, **params})

    def data(self):
        return _data()

    def output(self, fitted):
        return fitted.decision_function(_data()[0])


class TestNoisyFederatedClassifier(EstimatorContract):
    private = True
    # the same class without noise passes scikit-learn's checks; noise does not fit 10 rows
    expected_failures = None

    def make(self, **params):
        return FederatedClassifier(
            **{
                "encrypt": False,
                "users": 10,
                "rounds": 1,
                "noise": SumNoise(epsilon=8.0),
                "classes": (0, 1, 2),
                **params,
            }
        )

    def data(self):
        return _data()

    def output(self, fitted):
        return fitted.decision_function(_data()[0])
