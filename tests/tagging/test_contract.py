"""The estimator contract for PrivateTagger."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from blindsight.tagging import PrivateTagger
from contracts.estimator import EstimatorContract

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 12)).astype(np.float32)
Y = (X @ RNG.normal(size=(12, 5)) > 0).astype(np.uint8)


class TestPrivateTagger(EstimatorContract):
    private = True
    expected_failures = None  # labels are tables of 0 and 1, which scikit-learn's checks do not make

    def make(self, **params):
        return PrivateTagger(epsilon=4.0, epochs=2, **params)

    def data(self):
        return X, Y

    def output(self, fitted):
        return fitted.predict(X)

    def spend(self, ledger, estimator=None):
        tagger = (estimator if estimator is not None else self.make()).fit(X, Y)
        tagger.predict(X[:1], ledger=ledger)
