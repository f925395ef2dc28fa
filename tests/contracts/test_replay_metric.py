"""The replay contract of the private metrics: every loss, per pair, per kappa pairs and per
record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from blindsight.audit.engine import Neighbour
from blindsight.metric import DPPMetric
from contracts.replay import ReplayContract

RNG = np.random.default_rng(3)
PAIRS = RNG.normal(size=(12, 2, 3))
SAME = RNG.permutation(np.arange(12) % 2)
RECORDS = RNG.normal(size=(10, 3))
TABLE = np.array([[0, 1], [0, 2], [0, 3], [4, 5], [6, 7]])
QUERIES = np.random.default_rng(4).normal(size=(5, 3))


class _Metric(ReplayContract):
    """With little noise: drowned in it, the private data would not show even where nothing protects
    them.
    """

    params: ClassVar[dict[str, Any]]

    def make(self) -> Any:
        return DPPMetric(**{"epsilon": 5000.0, "unit": "pair", **self.params})

    def data(self) -> Any:
        return (PAIRS, SAME)

    def removed(self) -> bool:
        return True

    def answers(self, fitted: Any) -> Any:
        return fitted.transform(QUERIES), fitted.describe(kept="for the file")


class TestMoments(_Metric):
    """The closed form."""

    params: ClassVar[dict[str, Any]] = {"loss": "moments"}


class TestContrastive(_Metric):
    """Noisy descent."""

    params: ClassVar[dict[str, Any]] = {"loss": "contrastive"}


class TestAuto(_Metric):
    """The default, with columns scaled within the budget."""

    params: ClassVar[dict[str, Any]] = {"scale": "private"}


class TestKappaPairs(_Metric):
    """The paper's unit."""

    params: ClassVar[dict[str, Any]] = {"unit": "kappa pairs", "loss": "contrastive", "kappa": 2}


class TestTriplet(_Metric):
    """Tuples of three."""

    params: ClassVar[dict[str, Any]] = {"loss": "triplet"}

    def data(self) -> Any:
        return np.random.default_rng(5).normal(size=(8, 3, 3))


class TestRecord(ReplayContract):
    """Per record: the features of a record, who was compared with whom being public."""

    records = (0, 3)
    loss: ClassVar[str] = "auto"

    def data(self) -> Any:
        return RECORDS

    def run(self, data: Any, folder: Path) -> Any:
        metric = DPPMetric(epsilon=5000.0, unit="record", loss=self.loss, preprocessor=data)
        fitted = metric.fit(TABLE, [1, 0, 1, 0, 1])
        fitted.save(folder / "model.safetensors")
        learned = {
            name: value
            for name, value in vars(fitted).items()
            if name.endswith("_") and name != "owner_only_"
        }
        return learned, fitted.transform(QUERIES)


class TestRecordDescent(TestRecord):
    """The same by descent, whose gradients nothing bounds but the door."""

    loss: ClassVar[str] = "contrastive"


class TestLabels(ReplayContract):
    """Only the labels are private: kappa, groups and refusals rest on who was compared with whom
    alone.
    """

    unit = "kappa pairs"
    triangle: ClassVar[list[list[int]]] = [[0, 1], [1, 2], [0, 2], [3, 4], [5, 6], [7, 8]]

    def data(self) -> Any:
        return np.array([1, 1, 1, 0, 1, 0])

    def run(self, data: Any, folder: Path) -> Any:
        fitted = DPPMetric(epsilon=5000.0, unit=self.unit, preprocessor=RECORDS).fit(
            self.triangle, data
        )
        fitted.save(folder / "model.safetensors")
        return fitted.kappa_, fitted.public_, fitted.released_, fitted.guarantee_


class TestLabelsPerPair(TestLabels):
    """The same per pair."""

    unit = "pair"


class TestLabelUnit(TestLabels):
    """The default statement: one label of a public pair graph is replaced by the other one."""

    unit = "label"
    loss: ClassVar[str] = "moments"

    def neighbours(self) -> list[Neighbour]:
        labels = self.data()
        flipped = [np.where(np.arange(6) == i, 1 - labels, labels) for i in (0, 3)]
        return [
            Neighbour(f"label {i} replaced", other)
            for i, other in zip((0, 3), flipped, strict=True)
        ]

    def run(self, data: Any, folder: Path) -> Any:
        metric = DPPMetric(epsilon=5000.0, loss=self.loss, preprocessor=RECORDS)
        fitted = metric.fit(self.triangle, data)
        fitted.save(folder / "model.safetensors")
        return (
            fitted.public_,
            fitted.released_,
            fitted.guarantee_,
            fitted.predict(QUERIES[None, :2]),
        )


class TestLabelUnitDescent(TestLabelUnit):
    """The same by descent, whose gradients may turn around."""

    loss: ClassVar[str] = "contrastive"


class TestLabelUnitPlain(TestLabelUnit):
    """The same where nothing but threshold and error rates is learned."""

    loss: ClassVar[str] = "plain"


class TestPerson(TestRecord):
    """Per person: all records of a person change together."""

    def neighbours(self) -> list[Neighbour]:
        other = RECORDS.copy()
        other[[0, 1]] = np.random.default_rng(9).normal(size=(2, 3)) * 5
        return [Neighbour("both records of person 0 replaced", other)]

    def run(self, data: Any, folder: Path) -> Any:
        metric = DPPMetric(epsilon=5000.0, unit="person", loss="moments", preprocessor=data)
        fitted = metric.fit(TABLE, [1, 0, 1, 0, 1], people=np.arange(10) // 2)
        fitted.save(folder / "model.safetensors")
        return fitted.public_, fitted.released_, fitted.guarantee_
