"""The contract that every estimator passes: subclass `EstimatorContract`, say how to make and feed one.

class TestPHashing(EstimatorContract):
    private = True
    def make(self, **params): return PHashing(LSH(n_bits=12), epsilon=4.0, **params)
    def data(self): return (X,)                      # the positional arguments of fit
    def output(self, fitted): return fitted.transform(X)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from blindsight.core.errors import BudgetExceeded, HostileFile
from blindsight.privacy import Cost, Guarantee, Ledger

__all__ = ["EstimatorContract"]


class EstimatorContract:
    """Properties of a scikit-learn style estimator of ours; private ones state and charge a guarantee."""

    private: ClassVar[bool] = False
    # name of a scikit-learn check -> why this estimator cannot pass it; None: data are not plain (X, y) arrays
    expected_failures: ClassVar[dict[str, str] | None] = {}

    def make(self, **params: Any) -> Any:
        raise AssertionError("say how to make one")

    def data(self) -> tuple[Any, ...]:
        raise AssertionError("say what fit is called with")

    def output(self, fitted: Any) -> np.ndarray:
        raise AssertionError("say what to compare")

    def test_scikit_learn_checks_pass(self) -> None:
        if self.expected_failures is None:
            assert not hasattr(self.make(), "score_samples")
            return
        failed = []
        for estimator, check in estimator_checks_generator(self.make(), legacy=True, expected_failed_checks=None):
            name = getattr(check, "func", check).__name__
            if name in self.expected_failures:
                continue
            try:
                check(estimator)
            except pytest.skip.Exception:
                continue
            except Exception as error:
                if type(error).__name__ == "SkipTest":
                    continue
                failed.append(f"{name}: {type(error).__name__}: {error}")
        assert not failed, "\n".join(failed)

    def test_fit_returns_self_and_init_only_stores(self) -> None:
        estimator = self.make()
        assert not [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]
        assert estimator.fit(*self.data()) is estimator

    def test_fixed_seed_gives_equal_results_and_a_simulation(self) -> None:
        first = self.make(random_state=7).fit(*self.data())
        second = self.make(random_state=7).fit(*self.data())
        np.testing.assert_array_equal(self.output(first), self.output(second))
        if self.private:
            assert first.guarantee_.simulation

    def test_clone_does_not_carry_what_was_learned(self) -> None:
        fitted = self.make(random_state=7).fit(*self.data())
        fresh = clone(fitted)
        assert not [name for name in vars(fresh) if name.endswith("_") and not name.startswith("_")]

    def test_guarantee_names_its_unit(self) -> None:
        if not self.private:
            assert not type(self.make()).__name__.startswith("Private")
            return
        guarantee = self.make().fit(*self.data()).guarantee_
        assert isinstance(guarantee, Guarantee)
        assert not guarantee.simulation
        assert guarantee.unit in guarantee.line()
        assert Guarantee.from_json(guarantee.to_json()) == guarantee

    def test_ledger_is_charged_before_release_and_refusal_releases_nothing(self, tmp_path: Path) -> None:
        if not self.private:
            assert not hasattr(self.make(), "ledger")
            return
        ledger = Ledger(tmp_path / "ledger.db", dataset="contract")
        estimator = self.make().fit(*self.data())
        cost = estimator.guarantee_.cost
        ledger.grant(
            Cost(
                epsilon=cost.epsilon * 1.5, delta=min(cost.delta * 1.5, 0.9), unit=cost.unit, neighbours=cost.neighbours
            )
        )
        self.spend(ledger)
        refused = self.make()
        with pytest.raises(BudgetExceeded):
            self.spend(ledger, refused)
        assert ledger.verify()

    def spend(self, ledger: Ledger, estimator: Any = None) -> None:
        """What makes the estimator release once; fit, unless the release happens elsewhere."""
        (estimator if estimator is not None else self.make()).fit(*self.data(), ledger=ledger)

    def test_saved_and_loaded_it_gives_the_same_without_pickle(self, tmp_path: Path) -> None:
        fitted = self.make(random_state=7).fit(*self.data())
        path = tmp_path / "model.safetensors"
        fitted.save(path)
        header = path.read_bytes()
        size = int.from_bytes(header[:8], "little")
        assert "blindsight" in json.loads(header[8 : 8 + size])["__metadata__"]
        loaded = type(fitted).load(path)
        np.testing.assert_array_equal(self.output(loaded), self.output(fitted))
        if self.private:
            assert loaded.guarantee_ == fitted.guarantee_
        path.write_bytes(header[: len(header) // 2])
        with pytest.raises(HostileFile):
            type(fitted).load(path)
