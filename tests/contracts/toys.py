"""Small private estimators written for the auditor: one sound for each way through the door, and
their broken kin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blindsight.privacy import Door, Guarantee, Planned
from blindsight.privacy.door import finite_rows
from blindsight.privacy.estimator import Protected
from blindsight.privacy.mechanisms import (
    BitFlip,
    DiscreteGaussian,
    DiscreteLaplace,
    Duchi,
    Gaussian,
    KaryResponse,
    Laplace,
    NoisyTopK,
    PrivUnit,
    Staircase,
    SubsetSelection,
)

__all__ = ["Counted", "Descent", "Grouped", "Local", "Summed"]

UNIT: dict[str, Any] = {"unit": "record"}
ADDED: dict[str, Any] = {"unit": "record", "neighbours": "add or remove one"}
LOCAL = {
    "flip": BitFlip.proven(4.0, n_bits=4, unit="record"),
    "cells": KaryResponse(epsilon=2.0, k=5, unit="record"),
    "subset": SubsetSelection(epsilon=1.0, k=6, unit="record"),
    "duchi": Duchi(epsilon=2.0, dimensions=3, unit="record"),
    "privunit": PrivUnit(epsilon=4.0, dimensions=3, unit="record"),
}
CENTRAL = {
    "gaussian": Gaussian.calibrate(1.0, delta=1e-5, sensitivity=2.0, **UNIT),
    "discrete gaussian": DiscreteGaussian.calibrate(
        1.0, delta=1e-5, sensitivity=2.0, dimensions=3, **UNIT
    ),
    "laplace": Laplace.calibrate(1.0, sensitivity=2.0, **UNIT),
    "discrete laplace": DiscreteLaplace.calibrate(
        1.0, sensitivity=2.0, grid=2.0**-8, dimensions=3, **UNIT
    ),
    "staircase": Staircase.calibrate(1.0, sensitivity=2.0, dimensions=3, **UNIT),
    "top": NoisyTopK(epsilon=1.0, k=2, sensitivity=1.0, **UNIT),
}


class Summed(Protected):
    """The mean of rows, by a total or a value through one central mechanism."""

    _kind = "toy sum"

    def __init__(self, kind: str = "discrete gaussian", random_state: Any = None) -> None:
        self.kind, self.random_state = kind, random_state

    def mechanism(self) -> Any:
        return CENTRAL[self.kind]

    def promise(self, **public: Any) -> Guarantee:
        plan = (Planned(what="sum", mechanism=self.mechanism()),)
        return Guarantee(releases=plan, delta=1e-5, model="central", entropy=self.entropy_)

    def fit(self, X: Any, ledger: Any = None) -> Summed:
        self.public_ = {"n": len(X)}
        door = self._open(ledger, what="a mean")
        self.released_ = {"sum": self.through(door, X)}
        return self._settle_in()

    def through(self, door: Door, X: Any) -> Any:
        if self.kind == "top":
            return door.release("sum", np.clip(finite_rows(X), -0.5, 0.5).sum(axis=0))
        if self.kind == "staircase":
            return door.release("sum", np.clip(finite_rows(X), -1, 1).sum(axis=0))
        return door.total("sum", X)

    def _settle(self) -> None:
        self.mean_ = self.released_["sum"] / self.public_["n"]


class Grouped(Summed):
    """Every unit has two rows side by side."""

    def promise(self, **public: Any) -> Guarantee:
        plan = (Planned(what="sum", mechanism=self.mechanism(), group=2),)
        return Guarantee(releases=plan, delta=1e-5, model="central", entropy=self.entropy_)


class Counted(Protected):
    """How many records are of each class, the classes being public."""

    _kind = "toy counts"

    def __init__(self, classes: tuple[int, ...] = (0, 1, 2), random_state: Any = None) -> None:
        self.classes, self.random_state = classes, random_state

    def promise(self, **public: Any) -> Guarantee:
        noise = DiscreteLaplace.calibrate(1.0, sensitivity=2.0, grid=1.0, dimensions=0, **UNIT)
        plan = (Planned(what="counts", mechanism=noise),)
        return Guarantee(releases=plan, model="central", entropy=self.entropy_)

    def fit(self, X: Any, y: Any, ledger: Any = None) -> Counted:
        X = finite_rows(X)
        self.public_ = self.facts(y)
        door = self._open(ledger, what="label counts")
        found = np.array([(np.asarray(y) == label).sum() for label in self.classes], float)
        self.released_ = {"counts": door.release("counts", found)}
        return self._settle_in()

    def facts(self, y: Any) -> dict[str, Any]:
        return {"classes": list(self.classes)}

    def _settle(self) -> None:
        self.share_ = np.maximum(self.released_["counts"], 0)


class Local(Protected):
    """Every record by itself, in one of the local mechanisms."""

    _kind = "toy local"

    def __init__(self, kind: str = "cells", random_state: Any = None) -> None:
        self.kind, self.random_state = kind, random_state

    def mechanism(self) -> Any:
        return LOCAL[self.kind]

    def promise(self, **public: Any) -> Guarantee:
        plan = (Planned(what="answers", mechanism=self.mechanism()),)
        return Guarantee(releases=plan, model="local", entropy=self.entropy_)

    def asked(self, X: Any) -> Any:
        if self.kind in ("cells", "subset"):
            return (np.abs(X[:, 0]) * 10).astype(np.int64) % 5
        if self.kind == "flip":
            return (np.asarray(X)[:, [0, 1, 2, 0]] > 0).astype(np.uint8)
        return X

    def fit(self, X: Any, ledger: Any = None) -> Local:
        X = finite_rows(X)
        self.public_ = {"n": len(X)}
        door = self._open(ledger, what="answers")
        self.released_ = {"answers": np.asarray(door.release("answers", self.asked(X)))}
        return self._settle_in()

    def _settle(self) -> None:
        self.answers_ = self.released_["answers"]


class Descent(Protected):
    """A mean by noisy gradient steps on all records."""

    _kind = "toy descent"

    def __init__(self, steps: int = 6, random_state: Any = None) -> None:
        self.steps, self.random_state = steps, random_state

    def mechanism(self) -> Any:
        return DiscreteGaussian.fine(sigma=2.0, sensitivity=1.0, dimensions=3, delta=1e-5, **ADDED)

    def promise(self, **public: Any) -> Guarantee:
        plan = (Planned(what="gradient", mechanism=self.mechanism(), count=self.steps),)
        return Guarantee(releases=plan, delta=1e-5, model="central", entropy=self.entropy_)

    def fit(self, X: Any, ledger: Any = None) -> Descent:
        X = finite_rows(X)
        self.public_ = {"n": len(X)}
        door = self._open(ledger, what="descent")
        where = np.zeros(X.shape[1])
        for _ in range(self.steps):
            where = where + 0.5 * self.step(door, np.asarray(X) - where) / self.size(X)
        self.released_ = {"where": where}
        return self._settle_in()

    def step(self, door: Door, rows: Any) -> Any:
        return door.total("gradient", rows)

    def size(self, X: Any) -> float:
        # A constant of the plan: under "add or remove one" the number of records is private.
        return 14.0

    def _settle(self) -> None:
        self.where_ = self.released_["where"]
