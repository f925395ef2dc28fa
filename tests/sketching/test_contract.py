from __future__ import annotations

from functools import cache

import numpy as np

from blindsight.sketching import (
    FeatureBasis,
    FeatureStatistics,
    NegativeSketcher,
    NegDL,
    PrivateHead,
)
from blindsight.sketching.estimator import CodebookSketcher, FlippedBits
from contracts.estimator import EstimatorContract

IMAGES = np.random.default_rng(0).integers(0, 256, size=(24, 6, 6)).astype(np.uint8)
LABELS = np.arange(24) % 3


@cache
def sketches():
    return NegativeSketcher("Q6", random_state=0).fit(IMAGES).sketch(IMAGES, LABELS)


class TestNegativeSketcher(EstimatorContract):
    expected_failures = None  # images of whole numbers, not plain tables

    def make(self, **params):
        return NegativeSketcher("Q6", **params)

    def data(self):
        return (IMAGES,)

    def output(self, fitted):
        return fitted.transform(IMAGES)


class TestNegDL(EstimatorContract):
    expected_failures = None  # sketches, not plain tables

    def make(self, **params):
        return NegDL(epochs=1, batch_size=8, **params)

    def data(self):
        return (sketches(),)

    def output(self, fitted):
        return fitted.decision_function(sketches())


class _Local(EstimatorContract):
    private = True
    expected_failures = None

    def data(self):
        return (IMAGES,)

    def output(self, fitted):
        return fitted.transform(IMAGES)

    def spend(self, ledger, estimator=None):
        # Fixing the allocation releases nothing; transform does.
        fitted = (estimator if estimator is not None else self.make()).fit(*self.data())
        fitted.transform(IMAGES, ledger=ledger)


class TestFlippedBits(_Local):
    def make(self, **params):
        return FlippedBits(6.0, **params)


class TestCodebookSketcher(_Local):
    def data(self):
        return (np.random.default_rng(1).integers(0, 256, size=(120, 6, 6)).astype(np.uint8),)

    def make(self, **params):
        return CodebookSketcher(3.0, k=5, **params)


FEATURES = np.random.default_rng(1).random((60, 5))
BASIS = FeatureBasis.learn(np.random.default_rng(2).random((40, 5)), width=4)


class TestFeatureStatistics(EstimatorContract):
    private = True
    expected_failures = None  # the basis takes features of one length

    def make(self, **params):
        return FeatureStatistics(2.0, classes=("0", "1", "2"), basis=BASIS, refuse=False, **params)

    def data(self):
        return (FEATURES, np.arange(60) % 3)

    def output(self, fitted):
        return fitted.statistics_.vector


class TestPrivateHead(EstimatorContract):
    private = True
    expected_failures = None  # the basis takes features of one length

    def make(self, **params):
        return PrivateHead(2.0, classes=("0", "1", "2"), basis=BASIS, steps=3, **params)

    def data(self):
        return (FEATURES, np.arange(60) % 3)

    def output(self, fitted):
        return fitted.decision_function(FEATURES)
