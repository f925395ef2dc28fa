"""Every hasher passes the estimator contract."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from benchmarks.hashing.privunit import PrivUnitHasher
from benchmarks.hashing.sampling import SampledPHashing
from blindsight.hashing import (
    ADSH,
    DPSH,
    DSH,
    ITQ,
    KSH,
    LSH,
    PITQ,
    SDH,
    SH,
    CodebookHasher,
    HashNet,
    PHashing,
)
from contracts.estimator import EstimatorContract


def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Three clouds in ten dimensions."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1, 2], 20)
    return rng.normal(size=(60, 10)) + 3 * np.eye(10)[y], y


class HasherContract(EstimatorContract):
    cls: ClassVar[Any]
    params: ClassVar[dict[str, Any]] = {}

    def make(self, **params):
        return self.cls(n_bits=12, **self.params, **params)

    def data(self):
        X, y = blobs()
        return (X, y) if self.cls.supervised else (X,)

    def output(self, fitted):
        return fitted.transform(blobs()[0])


class TestLSH(HasherContract):
    cls = LSH


class TestITQ(HasherContract):
    cls = ITQ


class TestSH(HasherContract):
    cls = SH


class TestKSH(HasherContract):
    cls = KSH


class TestSDH(HasherContract):
    cls = SDH


class TestDPSH(HasherContract):
    cls = DPSH
    params: ClassVar = {"n_epochs": 1, "hidden": 8}


class TestDSH(TestDPSH):
    cls = DSH


class TestHashNet(TestDPSH):
    cls = HashNet


class TestADSH(TestDPSH):
    cls = ADSH


class TestPHashing(EstimatorContract):
    private = True

    def make(self, **params):
        return PHashing(LSH(n_bits=12), epsilon=4.0, learned_from="public", **params)

    def data(self):
        return (blobs()[0],)

    def output(self, fitted):
        return fitted.transform(blobs()[0])

    def spend(self, ledger, estimator=None):
        (estimator or self.make()).fit(*self.data()).transform(blobs()[0], ledger=ledger)


class TestSupervisedPHashing(TestPHashing):
    def make(self, **params):
        return PHashing(SDH(n_bits=12), epsilon=4.0, unit="bit", learned_from="public", **params)

    def data(self):
        return blobs()


class TestPITQ(TestPHashing):
    def make(self, **params):
        return PITQ(n_bits=12, epsilon=4.0, **params)

    def spend(self, ledger, estimator=None):
        (estimator or self.make()).fit(*self.data(), ledger=ledger).transform(
            blobs()[0], ledger=ledger
        )


class TestPublicPITQ(TestPHashing):
    def make(self, **params):
        return PITQ(n_bits=12, epsilon=4.0, learned_from="public", **params)


class TestCodebookHasher(TestPHashing):
    def make(self, **params):
        return CodebookHasher(epsilon=4.0, learned_from="public", **params)


class TestSupervisedCodebookHasher(TestPHashing):
    def make(self, **params):
        return CodebookHasher(
            epsilon=4.0, mechanism="k-ary", supervised=True, learned_from="public", **params
        )

    def data(self):
        return blobs()


class TestPrivateCodebookHasher(TestPITQ):
    def make(self, **params):
        return CodebookHasher(
            epsilon=4.0, learned_from="private", supervised=True, classes=(0, 1, 2, 3), **params
        )

    def data(self):
        return blobs()


class TestSampledPHashing(TestPHashing):
    def make(self, **params):
        return SampledPHashing(LSH(n_bits=12), epsilon=4.0, learned_from="public", **params)


class TestPrivUnitHasher(TestPHashing):
    def make(self, **params):
        return PrivUnitHasher(epsilon=4.0, learned_from="public", **params)
