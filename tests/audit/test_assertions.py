"""`assert_private`: fails where a promise is broken, seldom elsewhere, and never without power."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.base import BaseEstimator

from audit.test_others import training_of
from blindsight import PrivacyViolation, assert_private, assert_private_training
from blindsight.core.errors import InvalidData, InvalidParameter

pytest_plugins = ["pytester"]
DATA, NEIGHBOUR = np.zeros(20), np.append(np.zeros(19), 1.0)


def noisy_sum(scale: float) -> Callable[[Any], float]:
    rng = np.random.default_rng(0)
    return lambda rows: float(np.sum(rows)) + rng.laplace(scale=scale)


def test_a_sound_function_passes_and_one_with_half_the_noise_fails() -> None:
    assert 0.3 < assert_private(noisy_sum(1.0), DATA, NEIGHBOUR, epsilon=1.0).epsilon <= 1.0
    with pytest.raises(PrivacyViolation, match="epsilon = 1 is stated") as refuted:
        assert_private(noisy_sum(0.5), DATA, NEIGHBOUR, epsilon=1.0)
    assert isinstance(refuted.value, AssertionError)
    assert refuted.value.audited.epsilon > 1.0


def test_false_alarms_are_not_more_frequent_than_stated() -> None:
    """At the exact edge of its promise, 200 times with one false alarm in ten allowed."""
    rng = np.random.default_rng(1)
    truth = np.e / (1 + np.e)

    def answer(rows: Any) -> bool:
        return bool((np.sum(rows) > 0) == (rng.random() < truth))

    alarms = 0
    for _ in range(200):
        try:
            assert_private(answer, DATA, NEIGHBOUR, epsilon=1.0, trials=200, false_alarm=0.1)
        except PrivacyViolation:
            alarms += 1
    assert alarms <= stats.binom.ppf(1 - 1e-6, 200, 0.1)


@pytest.mark.parametrize(
    ("epsilon", "trials", "words"),
    [(5.0, 200, "give trials="), (9.0, 5000, "give trials="), (40.0, 5000, "test a smaller one")],
)
def test_a_check_that_could_not_fail_is_refused(epsilon: float, trials: int, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        assert_private(lambda rows: rows.sum(), DATA, NEIGHBOUR, epsilon=epsilon, trials=trials)


def test_the_number_of_trials_that_is_advised_is_enough() -> None:
    with pytest.raises(InvalidParameter) as refused:
        assert_private(np.sum, DATA, NEIGHBOUR, epsilon=4.0, trials=300)
    trials = int(str(refused.value).split("trials=")[1].split()[0])
    with pytest.raises(PrivacyViolation):
        assert_private(np.sum, DATA, NEIGHBOUR, epsilon=4.0, trials=trials)


class NoisyMean(BaseEstimator):
    def __init__(self, scale: float = 1.0, leak: bool = False) -> None:
        self.scale, self.leak = scale, leak

    def fit(self, X: Any, y: Any = None) -> NoisyMean:
        noise = np.random.default_rng(int(NOISE.integers(1 << 62))).laplace(scale=self.scale)
        self.mean_ = np.mean(X) + noise / len(X)
        if self.leak:
            self.largest_ = float(np.max(X))
        return self


NOISE = np.random.default_rng(2)


def test_an_estimator_is_held_to_all_that_it_learns() -> None:
    X = DATA[:, None]
    assert_private(NoisyMean(), X, NEIGHBOUR[:, None], epsilon=1.0, trials=1500)
    with pytest.raises(PrivacyViolation):
        assert_private(NoisyMean(leak=True), (X, None), (NEIGHBOUR[:, None], None), epsilon=1.0,
                       trials=1500)  # fmt: skip
    with pytest.raises(InvalidData, match="no learned numbers"):
        assert_private(BaselessEstimator(), X, X, epsilon=1.0)


class BaselessEstimator(BaseEstimator):
    def fit(self, X: Any) -> BaselessEstimator:
        return self


def test_a_measurement_by_opendp_states_its_own_epsilon() -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    assert_private(dp.m.make_laplace(*space, scale=1.0), 0.0, 1.0, d_in=1.0)
    with pytest.raises(PrivacyViolation, match="OpenDP measurement"):
        assert_private(dp.m.make_laplace(*space, scale=1.0), 0.0, 1.0, d_in=0.2)
    with pytest.raises(InvalidParameter, match="say which epsilon"):
        assert_private(noisy_sum(1.0), DATA, NEIGHBOUR)


def test_a_training_is_held_to_its_accountant_and_to_what_is_stated() -> None:
    train, dataset = training_of()
    found = assert_private_training(train, dataset, epsilon=100.0, delta=1e-5)
    with pytest.raises(PrivacyViolation, match="its own accountant says"):
        assert_private_training(train, dataset, epsilon=found.claimed / 2, delta=1e-5)
    train, dataset = training_of(poisson=False)
    with pytest.raises(PrivacyViolation, match="not Poisson sampling"):
        assert_private_training(train, dataset, epsilon=100.0, delta=1e-5)


def test_the_plugin_gives_the_fixture_and_lists_what_was_measured(
    pytester: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An installed package is found by pytest itself; a source tree is not. Named in both cases.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
        import numpy as np
        import pytest

        rng = np.random.default_rng(0)

        @pytest.mark.parametrize("scale", [1.0, 0.1])
        def test_noise(assert_private, scale):
            assert_private(lambda rows: rows.sum() + rng.laplace(scale=scale),
                           np.zeros(3), np.eye(3)[0], epsilon=1.0)
        """
    )
    done = pytester.runpytest_inprocess("-p", "blindsight.pytest_plugin", "--privacy-trials=2000")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*privacy measured by attack*", "*noise*1.0*epsilon >= *1 stated*"])
