"""The estimator contract for both taggers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from blindsight.tagging import PrivateTagger, Tagger
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


class TestTagger(EstimatorContract):
    expected_failures = None  # as above

    def make(self, **params):
        return Tagger(hidden=16, epochs=3, **params)

    def data(self):
        return X, Y

    def output(self, fitted):
        return fitted.decision_function(X)

    def test_regularisation_shrinks_and_training_fits(self):
        plain = Tagger(hidden=64, epochs=40, learning_rate=0.01, random_state=0).fit(X, Y, validation=(X, Y))
        assert plain.curves_.validation_map[-1] > 0.9
        assert (plain.predict(X) == Y).mean() > 0.8
        robust = Tagger(robust=0.1, hidden=64, epochs=40, learning_rate=0.01, random_state=0).fit(X, Y)
        assert np.linalg.norm(robust.weights_) < np.linalg.norm(plain.weights_)
