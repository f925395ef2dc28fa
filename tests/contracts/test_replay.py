"""Every public private estimator passes the replay contract; a class that no case names fails
here.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindsight.audit.engine import Neighbour
from blindsight.privacy import Guarantee, Planned
from blindsight.privacy.door import finite_rows
from blindsight.privacy.estimator import Protected
from contracts.replay import ReplayContract
from contracts.toys import Counted, Descent, Grouped, Local, Summed

X = np.random.default_rng(0).normal(size=(14, 3))
Y = np.random.default_rng(1).permutation(np.arange(14) % 3)


class TestSummed(ReplayContract):
    """The smallest estimator there is."""

    def make(self) -> Any:
        return Summed()

    def data(self) -> Any:
        return X


class TestGaussian(TestSummed):
    """In floating point, for what stays inside."""

    floats = ("sum",)
    kind = "gaussian"

    def make(self) -> Any:
        return Summed(self.kind)


class TestLaplace(TestGaussian):
    """In floating point."""

    kind = "laplace"


class TestDiscreteLaplace(TestGaussian):
    """Exact."""

    kind = "discrete laplace"


class TestStaircase(TestGaussian):
    """In floating point."""

    kind = "staircase"


class TestTop(TestGaussian):
    """Only indices leave."""

    kind = "top"


class TestGrouped(ReplayContract):
    """Units of two rows: both go to extremes."""

    def make(self) -> Any:
        return Grouped()

    def data(self) -> Any:
        return X

    def neighbours(self) -> list[Neighbour]:
        found = []
        for sign in (1, -1):
            other = X.copy()
            other[:2] = 1e6 * sign
            found.append(Neighbour(f"far {sign}", other, record=0))
        return found


class TestCounted(ReplayContract):
    """Counts over public classes."""

    def make(self) -> Any:
        return Counted()

    def data(self) -> Any:
        return (X, Y)


class TestLocal(ReplayContract):
    """One answer per record."""

    def make(self) -> Any:
        return Local()

    def data(self) -> Any:
        return X


class _Twice(Local):
    """Two answers per record, both paid for."""

    def promise(self, **public: Any) -> Guarantee:
        plan = (Planned(what="answers", mechanism=self.mechanism(), count=2),)
        return Guarantee(releases=plan, model="local", entropy=self.entropy_)

    def fit(self, X: Any, ledger: Any = None) -> Any:
        X = finite_rows(X)
        self.public_ = {"n": len(X)}
        door = self._open(ledger, what="answers")
        self.released_ = {
            "answers": np.stack([door.release("answers", self.asked(X)) for _ in range(2)])
        }
        return self._settle_in()


class TestTwice(TestLocal):
    """What is asked twice costs twice."""

    def make(self) -> Any:
        return _Twice()


class TestFlips(TestLocal):
    """Bits."""

    floats = ("answers",)
    kind = "flip"

    def make(self) -> Any:
        return Local(self.kind)


class TestSubset(TestFlips):
    """Subsets of cells."""

    kind = "subset"


class TestDuchi(TestFlips):
    """Corners of a box."""

    kind = "duchi"


class TestPrivUnit(TestFlips):
    """Directions."""

    kind = "privunit"


class TestDescent(ReplayContract):
    """Steps on all records."""

    def make(self) -> Any:
        return Descent()

    def data(self) -> Any:
        return X

    def removed(self) -> bool:
        return True


# Algorithms to the letter: what is proven of them is infinite or worked out by hand, and their
# rooms' tests say so.
_TO_THE_LETTER = {"DPPDML", "MendedDML", "P2MLGCN", "RP2MLGCN", "Tagger"}


def _is_private(value: Any) -> bool:
    """A class that opens a door itself or by one of its parents."""
    if not inspect.isclass(value) or not value.__module__.startswith("blindsight."):
        return False
    ours = [
        base
        for base in value.__mro__
        if base.__module__.startswith("blindsight.") and base is not Protected
    ]
    return issubclass(value, Protected) or any("Door(" in inspect.getsource(base) for base in ours)


@pytest.mark.parametrize("room", ["hashing", "metric", "tagging", "sketching", "federated"])
def test_every_public_private_class_has_a_case(room: str) -> None:
    package = importlib.import_module(f"blindsight.{room}")
    private = {name for name in package.__all__ if _is_private(getattr(package, name))}
    cases = Path(__file__).with_name(f"test_replay_{room}.py").read_text()
    assert private, "a room without private classes would make this test empty"
    assert not {name for name in private - _TO_THE_LETTER if f"{name}(" not in cases}
