"""The replay contract that every private estimator passes: subclass it, say how to make, feed and
use one.

    class TestDPPMetric(ReplayContract):
        def make(self): return DPPMetric(epsilon=1.0)
        def data(self): return (pairs, same)  # arrays with one row per record, at least three
        def answers(self, fitted): return fitted.transform(PUBLIC)

Neighbours and unrelated data sets are made from the data: one record at both ends, opposite, zero,
far out, on one axis, NaN, infinite, 1e308, a copy of another, absent; and wholly other data. A
class whose unit is not a row says itself what its neighbours are.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from blindsight.audit.engine import (
    DoorAudit,
    Neighbour,
    audit_door,
    neighbours_of,
    unrelated_datasets,
    watch,
)

__all__ = ["ReplayContract"]


class ReplayContract:
    """What leaves depends on the data only through what passed the door, and neighbours move that
    little enough.

    `floats` names the releases that are not exact on purpose; `bounds` are what real numbers may be
    (pixels: (0, 1)); `records` are the rows that are replaced.
    """

    floats: ClassVar[Sequence[str]] = ()
    bounds: ClassVar[tuple[float, float] | None] = None
    records: ClassVar[Sequence[int]] = (0,)
    seeds: ClassVar[Sequence[int]] = (0,)
    # What never leaves: the owner's own notes, and the parameter that chooses the entropy.
    kept: ClassVar[Sequence[str]] = ("owner_only_", "random_state")

    def make(self) -> Any:
        raise AssertionError("say how to make one, with the entropy of production")

    def data(self) -> Any:
        raise AssertionError("say what fit is called with")

    def answers(self, fitted: Any) -> Any:
        """What it is asked once it is fitted, about public queries."""
        return None

    def run(self, data: Any, folder: Path) -> Any:
        """Everything that leaves: learned attributes, answers, and the saved file."""
        estimator = self.make()
        watched = "progress" in inspect.signature(estimator.fit).parameters
        fitted = estimator.fit(
            *(data if isinstance(data, tuple) else (data,)),
            **({"progress": watch} if watched else {}),
        )
        fitted.save(folder / "model.safetensors")
        learned = {name: value for name, value in vars(fitted).items() if name not in self.kept}
        return {"learned": learned, "answers": self.answers(fitted)}

    def removed(self) -> bool:
        """Whether neighbours have one unit more or less."""
        return False

    def neighbours(self) -> list[Neighbour]:
        return neighbours_of(
            self.data(), records=self.records, removed=self.removed(), bounds=self.bounds
        )

    def unrelated(self) -> list[Any]:
        return unrelated_datasets(self.data(), bounds=self.bounds)

    def audit(self, seed: int = 0) -> DoorAudit:
        return audit_door(
            self.run,
            self.data(),
            neighbours=self.neighbours(),
            unrelated=self.unrelated(),
            floats=self.floats,
            seed=seed,
            rolls=int(os.environ.get("BLINDSIGHT_AUDIT_ROLLS", "40000")),
        )

    def test_what_leaves_is_what_passed_the_door(self) -> None:
        for seed in self.seeds:
            found = self.audit(seed)
            assert found.passages, "nothing passed the door: " + "; ".join(found.notes)
            assert not any("raised" in note for note in found.notes), "; ".join(found.notes)
            assert not found.refuted, str(found)
