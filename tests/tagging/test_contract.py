"""The estimator contract for every tagger."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from blindsight.tagging import (
    P2MLGCN,
    RP2MLGCN,
    CodebookAnswers,
    Corollary,
    DPTraining,
    GraphHead,
    PrivateTagger,
    Schedule,
    Tagger,
)
from contracts.estimator import EstimatorContract

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 12)).astype(np.float32)
Y = (X @ RNG.normal(size=(12, 5)) > 0).astype(np.uint8)
VALUES = {
    "check_parameters_default_constructible": "defaults are frozen values, which its list of types "
    "does not know"
}
HEAD, SCHEDULE = GraphHead(hidden=16), Schedule(epochs=3)


class TestPrivateTagger(EstimatorContract):
    private = True
    expected_failures = (
        None  # labels are tables of 0 and 1, which scikit-learn's checks do not make
    )
    expected_without_data = VALUES

    def make(self, **params):
        return PrivateTagger(DPTraining(steps=3), classes=5, **params)

    def data(self):
        return X, Y

    def output(self, fitted):
        return fitted.predict(X)


class TestPrivateTaggerWithNoisyAnswers(TestPrivateTagger):
    def make(self, **params):
        return PrivateTagger(DPTraining(steps=3), CodebookAnswers(4.0, k=4), classes=5, **params)


class TestTagger(EstimatorContract):
    expected_failures = None  # as above
    expected_without_data = VALUES

    def make(self, **params):
        return Tagger(head=HEAD, schedule=SCHEDULE, **params)

    def data(self):
        return X, Y

    def output(self, fitted):
        return fitted.decision_function(X)

    def test_training_fits(self):
        long = Schedule(epochs=40, learning_rate=0.01)
        plain = Tagger(head=GraphHead(hidden=64), schedule=long, random_state=0).fit(
            X, Y, validation=(X, Y)
        )
        assert plain.curves_.validation_map[-1] > 0.9
        assert (plain.predict(X) == Y).mean() > 0.8


class TestP2MLGCN(TestTagger):
    def make(self, **params):
        return P2MLGCN(corollary=Corollary(1), head=HEAD, schedule=SCHEDULE, **params)


class TestRP2MLGCN(TestTagger):
    def make(self, **params):
        return RP2MLGCN(head=HEAD, schedule=SCHEDULE, **params)
