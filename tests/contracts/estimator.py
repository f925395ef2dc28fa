"""The contract that every estimator passes: subclass `EstimatorContract`, say how to make and feed
one.

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
from blindsight.privacy.door import listening

__all__ = ["EstimatorContract"]

# Checks of scikit-learn's that need no data: for estimators whose data are pairs, images or
# sketches.
WITHOUT_DATA = {
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
}


class _Order:
    """Listens at the door and notes what happens when."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def opened(self, door: Any) -> None:
        self.order.append(f"opened {door.what}")

    def passing(self, passage: Any) -> None:
        self.order.append(f"passed {passage.planned.what}")

    def passed(self, passage: Any, released: Any) -> None:
        return

    def absent(self, n: int) -> None:
        return


class _Noted:
    """A ledger that notes when it is charged."""

    def __init__(self, ledger: Ledger, order: list[str]) -> None:
        self.ledger, self.order = ledger, order

    def charge(self, costs: Any, **options: Any) -> Any:
        entry = self.ledger.charge(costs, **options)
        self.order.append("charged")
        return entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)


class EstimatorContract:
    """Properties of a scikit-learn style estimator of ours; private ones state and charge a
    guarantee.
    """

    private: ClassVar[bool] = False
    # name of a scikit-learn check -> why this estimator cannot pass it; None: data are not plain
    # (X, y) arrays
    expected_failures: ClassVar[dict[str, str] | None] = {}
    # the same for the checks that need no data, where data are not plain
    expected_without_data: ClassVar[dict[str, str]] = {}

    def make(self, **params: Any) -> Any:
        raise AssertionError("say how to make one")

    def data(self) -> tuple[Any, ...]:
        raise AssertionError("say what fit is called with")

    def output(self, fitted: Any) -> np.ndarray:
        raise AssertionError("say what to compare")

    def test_scikit_learn_checks_pass(self) -> None:
        """All of scikit-learn's checks but those named with a reason; where data are not tables,
        those without data.
        """
        reasons = {**(self.expected_failures or {}), **self.expected_without_data}
        if self.private:
            reasons["check_estimators_nan_inf"] = "private records are never refused by value"
        assert all(isinstance(why, str) and why for why in reasons.values()), (
            "say why a check cannot pass"
        )
        failed, ran = [], 0
        for estimator, check in estimator_checks_generator(
            self.make(), legacy=True, expected_failed_checks=None
        ):
            name = getattr(check, "func", check).__name__
            if name in reasons or (self.expected_failures is None and name not in WITHOUT_DATA):
                continue
            try:
                check(estimator)
                ran += 1
            except pytest.skip.Exception:
                continue
            except Exception as error:
                if type(error).__name__ == "SkipTest":
                    continue
                failed.append(f"{name}: {type(error).__name__}: {error}")
        assert not failed, "\n".join(failed)
        assert ran >= 5, "scikit-learn's checks must really run"

    def test_fit_returns_self_and_init_only_stores(self) -> None:
        estimator = self.make()
        assert not [
            name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")
        ]
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

    def test_ledger_is_charged_before_anything_passes_the_door(self, tmp_path: Path) -> None:
        if not self.private:
            assert not hasattr(self.make(), "ledger")
            return
        ledger = self._granted(tmp_path, 1.5)
        order: list[str] = []
        with listening(_Order(order)):
            self.spend(_Noted(ledger, order))
        passed = [event for event in order if event.startswith("passed")]
        assert passed, "a private estimator releases through the door"
        assert order[0] == "charged", order[:3]
        # Every door is opened behind a charge of its own, and nothing passes before the first.
        assert order.index("charged") < order.index(passed[0])
        assert ledger.verify()

    def test_a_refused_charge_releases_nothing(self, tmp_path: Path) -> None:
        if not self.private:
            return
        ledger = self._granted(tmp_path, 0.4)
        order: list[str] = []
        with listening(_Order(order)), pytest.raises(BudgetExceeded):
            # A release in two parts may pay for the first before the second is refused; all of it
            # is more than is left.
            self.spend(ledger)
            self.spend(ledger)
        assert ledger.verify()
        spent = sum(entry.kind == "charge" for entry in ledger.entries())
        assert sum(event.startswith("opened") for event in order) <= spent

    def _granted(self, tmp_path: Path, times: float) -> Ledger:
        """A ledger with a budget of so many times the estimator's cost."""
        ledger = Ledger(tmp_path / "ledger.db", dataset="contract")
        cost = self.make().fit(*self.data()).guarantee_.cost
        delta = min(max(cost.delta * times, cost.delta), 0.9)
        ledger.grant(
            Cost(
                epsilon=cost.epsilon * times,
                delta=delta,
                unit=cost.unit,
                neighbours=cost.neighbours,
            )
        )
        return ledger

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
