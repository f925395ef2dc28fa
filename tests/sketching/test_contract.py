from __future__ import annotations

import numpy as np

from blindsight.sketching import NegativeSketcher, NegDL
from blindsight.sketching.estimator import CodebookSketcher, FlippedBits
from contracts.estimator import EstimatorContract

IMAGES = np.random.default_rng(0).integers(0, 256, size=(24, 6, 6)).astype(np.uint8)
LABELS = np.arange(24) % 3
SKETCHES = NegativeSketcher("Q6", random_state=0).fit(IMAGES).sketch(IMAGES, LABELS)


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
        return (SKETCHES,)

    def output(self, fitted):
        return fitted.decision_function(SKETCHES)


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
