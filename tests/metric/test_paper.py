"""Algorithm 1 as an estimator: the claim stands beside what is true of it, and the mended one has a
proof.
"""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

from benchmarks.metric.baselines import ContrastiveMetric, Descent, InputPerturbation
from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.metric import PairGraph, RowNoise, Steps, Trace, kappa
from blindsight.metric.paper import DPPDML, MendedDML
from blindsight.privacy import Cost, Guarantee, Ledger
from blindsight.privacy.door import listening


def small(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X, classes = rng.normal(size=(n, d)), rng.integers(0, 3, n)
    pairs = rng.integers(0, n, (2 * n, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return X, pairs, classes[pairs[:, 0]] == classes[pairs[:, 1]]


X, PAIRS, SIMILAR = small()
BATCHES = 3  # of 50 pairs in an epoch: as many of kappa = 7 pairs' batches as there can be


def letter(**changes):
    return DPPDML(
        **{"n_components": 3, "margin": 1.0, "preprocessor": X, "random_state": 0, **changes}
    ).fit(PAIRS, SIMILAR)


def test_rows_compose():
    metric = letter(n_components=4)
    guarantee = metric.guarantee_
    assert (guarantee.claimed, guarantee.unit) == (
        1.0,
        "kappa pairs",
    ) and guarantee.epsilon == pytest.approx(4.0)
    assert guarantee.also[0].epsilon == pytest.approx(4.0 / metric.kappa_)


@pytest.mark.parametrize("change", [{"noise": RowNoise(reduced=True)}, {"margin": "mean"}])
def test_what_depends_on_data_without_noise_has_no_epsilon(change):
    guarantee = letter(**change).guarantee_
    assert math.isinf(guarantee.epsilon) and guarantee.claimed == 1.0 and guarantee.unproven


@pytest.mark.parametrize(
    ("mechanism", "factor"),
    [("laplace", 3.0), ("scdf", 3.0 * 5 * BATCHES), ("duchi", 3.0 * BATCHES), ("gaussian", None)],
)
def test_each_mechanism_of_the_paper_is_charged_for_what_it_really_does(mechanism, factor):
    guarantee = letter(noise=RowNoise(family=mechanism), kappa=7).guarantee_
    if factor is not None:
        assert guarantee.epsilon == pytest.approx(factor)
    else:
        # Added in squares over rows and epochs, Gaussian noise does keep the paper's claim here.
        assert 0 < guarantee.epsilon < 1.0 and guarantee.delta == 1e-5


@pytest.mark.parametrize("family", ["laplace", "scdf", "duchi", "gaussian"])
def test_what_the_paper_draws_passes_the_door_as_planned(family):
    class Heard:
        passed_by = 0

        def opened(self, door):
            assert door.guarantee.releases and door.guarantee.entropy == "seed"

        def passing(self, passage):
            self.passed_by += 1

        def passed(self, passage, released):
            assert passage.number <= passage.planned.count * passage.planned.parts

        def absent(self, n):
            return None

    with listening(Heard()) as heard:
        metric = letter(noise=RowNoise(family=family), steps=Steps(epochs=2))
    assert heard.passed_by == (3 if family == "duchi" else 1) * 2 * BATCHES
    assert Guarantee.from_json(metric.guarantee_.to_json()) == metric.guarantee_


@pytest.mark.parametrize("estimator", [DPPDML, MendedDML, ContrastiveMetric, InputPerturbation])
def test_no_constructor_has_more_than_ten_parameters(estimator):
    assert len(inspect.signature(estimator).parameters) <= 10


def test_a_step_of_the_wrong_kind_gets_a_sentence():
    for estimator, wrong in ((DPPDML, Descent()), (MendedDML, 3), (ContrastiveMetric, "paper")):
        with pytest.raises(InvalidParameter, match="steps must be"):
            estimator(steps=wrong, preprocessor=X, random_state=0).fit(PAIRS, SIMILAR)


def test_node_privacy_is_the_largest_degree():
    assert letter(kappa="node").kappa_ == kappa(PairGraph.from_pairs(PAIRS, SIMILAR), "node")


def test_a_delta_that_nothing_would_spend_is_refused():
    with pytest.raises(InvalidParameter, match="gaussian"):
        RowNoise(delta=1e-6)


def test_a_claim_without_a_proof_cannot_be_charged(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward-7")
    ledger.grant(Cost(epsilon=100, delta=1e-4, unit="kappa pairs", neighbours="replace one"))
    with pytest.raises(NotProven):
        DPPDML(2, preprocessor=X).fit(PAIRS, SIMILAR, ledger=ledger)


def test_a_trace_records_objective_and_sensitivity():
    trace = Trace()
    DPPDML(3, margin=1.0, steps=Steps(epochs=2), preprocessor=X, random_state=0).fit(
        PAIRS, SIMILAR, trace=trace
    )
    assert len(trace.objective) == len(trace.sensitivity) > 2


@pytest.mark.parametrize("unit", ["pair", "kappa pairs", "record"])
@pytest.mark.parametrize("mechanism", ["laplace", "scdf", "duchi"])
def test_the_mended_guarantee_is_the_budget_in_the_unit_asked_for(unit, mechanism):
    metric = MendedDML(epsilon=2.0, unit=unit, mechanism=mechanism, preprocessor=X, random_state=0)
    guarantee = metric.fit(PAIRS, SIMILAR).guarantee_
    assert (guarantee.epsilon, guarantee.delta, guarantee.unit, guarantee.calibration) == (
        2.0,
        0.0,
        unit,
        "proven",
    )
    assert guarantee.neighbours == "add or remove one" and guarantee.assumes("public structure")


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_kind_are_learned_from_too(label):
    y = np.full(len(PAIRS), label)
    for estimator in (
        DPPDML(2, preprocessor=X, random_state=0),
        MendedDML(2, preprocessor=X, random_state=0),
    ):
        assert np.isfinite(estimator.fit(PAIRS, y).components_).all()


def test_input_perturbation_counts_both_records_and_the_label():
    claimed = (
        InputPerturbation(3, calibration="paper", preprocessor=X, random_state=0)
        .fit(PAIRS, SIMILAR)
        .guarantee_
    )
    assert (claimed.claimed, claimed.epsilon, claimed.model) == (1.0, 1.5, "local")
    proven = InputPerturbation(3, preprocessor=X, random_state=0).fit(PAIRS, SIMILAR).guarantee_
    assert proven.epsilon == 1.0 and proven.also[0].unit == "record"


def test_the_non_private_learner_lowers_the_objective():
    digits, classes = load_digits(return_X_y=True)
    pairs = np.random.default_rng(0).integers(0, 400, (1500, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    similar = classes[pairs[:, 0]] == classes[pairs[:, 1]]
    trace = Trace()
    metric = ContrastiveMetric(
        steps=Steps(epochs=4, rule="root"), margin="mean", preprocessor=digits, random_state=0
    )
    metric.fit(pairs, similar, trace=trace)
    assert trace.objective[-1] < trace.objective[0]
    ours = ContrastiveMetric(preprocessor=digits, random_state=0).fit(pairs, similar)
    assert ours.score(pairs, similar) > 0.85


def test_a_proven_metric_takes_no_margin_from_the_pairs():
    """The mean distance of private pairs would leave through the map, and nobody would have paid
    for it.
    """
    rng = np.random.default_rng(0)
    X, pairs = rng.normal(size=(60, 4)), np.arange(60).reshape(30, 2)
    with pytest.raises(InvalidParameter, match="margin"):
        MendedDML(margin="mean", preprocessor=X, random_state=0).fit(pairs, rng.integers(0, 2, 30))
    with pytest.raises(InvalidParameter, match="kappa"):
        DPPDML(kappa=1.7, preprocessor=X, random_state=0).fit(pairs, rng.integers(0, 2, 30))
