"""DPPMetric: it learns, it says what it costs, it pays before it learns, and it refuses what it cannot use."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter, NotProven
from blindsight.data import PairSet
from blindsight.metric import ContrastiveMetric, DPPMetric, EuclideanMetric, InputPerturbation, PairGraph, Trace, kappa
from blindsight.privacy import Cost, Guarantee, Ledger

DIGITS, CLASSES = load_digits(return_X_y=True)


def digit_pairs(seed=0, count=2400, upto=1200):
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, upto, (count * 10, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    similar = CLASSES[pairs[:, 0]] == CLASSES[pairs[:, 1]]
    half = [np.flatnonzero(similar == kind)[: count // 2] for kind in (True, False)]
    chosen = np.concatenate(half)
    return pairs[chosen], similar[chosen]


PAIRS, SIMILAR = digit_pairs()
HELD_OUT = digit_pairs(seed=1)[0] % 597 + 1200
HELD_OUT = HELD_OUT[HELD_OUT[:, 0] != HELD_OUT[:, 1]]
HELD_LABELS = CLASSES[HELD_OUT[:, 0]] == CLASSES[HELD_OUT[:, 1]]


def small(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X, classes = rng.normal(size=(n, d)), rng.integers(0, 3, n)
    pairs = rng.integers(0, n, (2 * n, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return X, pairs, classes[pairs[:, 0]] == classes[pairs[:, 1]]


def test_at_epsilon_1_per_pair_it_beats_the_plain_distance_and_algorithm_1():
    ours = DPPMetric(epsilon=1.0, preprocessor=DIGITS, random_state=0).fit(PAIRS, SIMILAR)
    plain = EuclideanMetric().fit(DIGITS)
    mended = DPPMetric(epsilon=1.0, mechanism="laplace", preprocessor=DIGITS, random_state=0).fit(PAIRS, SIMILAR)
    held_out = DIGITS[HELD_OUT]
    scores = [metric.score(held_out if metric is plain else HELD_OUT, HELD_LABELS) for metric in (ours, plain, mended)]
    assert scores[0] > scores[1] + 0.03
    assert scores[0] > scores[2] + 0.05


def test_indices_and_arrays_of_features_give_the_same_metric():
    X, pairs, similar = small()
    by_index = DPPMetric(preprocessor=X, random_state=3).fit(pairs, similar)
    order = np.unique(X[np.unique(pairs)], axis=0)
    by_array = DPPMetric(random_state=3).fit(X[pairs], similar)
    assert len(order) == len(np.unique(pairs))
    np.testing.assert_allclose(by_index.components_, by_array.components_)
    assert by_index.kappa_ == by_array.kappa_


def test_a_pair_set_is_pairs_and_labels_in_one():
    X, pairs, similar = small()
    one = DPPMetric(preprocessor=X, random_state=3).fit(PairSet(pairs, similar.astype(int)))
    two = DPPMetric(preprocessor=X, random_state=3).fit(pairs, similar)
    np.testing.assert_array_equal(one.components_, two.components_)


def test_records_and_labels_stay_out_of_repr():
    X, pairs, similar = small()
    metric = DPPMetric(preprocessor=X, random_state=3).fit(pairs, similar)
    assert "<records>" in repr(metric) and f"{X[0, 0]:.3f}"[:5] not in repr(metric) + metric._repr_html_()
    assert repr(PairGraph.from_pairs(pairs, similar, transitive=False)).startswith("PairGraph(60 records, ")


def test_distances_agree_whichever_way_they_are_asked():
    X, pairs, similar = small()
    metric = DPPMetric(3, preprocessor=X, random_state=0).fit(pairs, similar)
    distance = metric.pair_distance(pairs)
    np.testing.assert_allclose(distance, metric.pair_distance(X[pairs]))
    mapped = metric.transform(X)
    np.testing.assert_allclose(distance, np.linalg.norm(mapped[pairs[:, 0]] - mapped[pairs[:, 1]], axis=1))
    function = metric.get_metric()
    assert function(X[pairs[0, 0]], X[pairs[0, 1]]) == pytest.approx(distance[0])
    M = metric.get_mahalanobis_matrix()
    assert (np.linalg.eigvalsh(M) > -1e-9).all()
    assert metric.components_.shape == (3, 5)


def test_same_seed_same_metric_and_the_guarantee_says_simulation():
    X, pairs, similar = small()
    first, second = (DPPMetric(preprocessor=X, random_state=7).fit(pairs, similar) for _ in range(2))
    np.testing.assert_array_equal(first.components_, second.components_)
    assert first.guarantee_.simulation
    free = DPPMetric(preprocessor=X).fit(pairs, similar)
    assert not free.guarantee_.simulation
    assert not np.allclose(free.components_, first.components_)


def test_clones_carry_parameters_and_nothing_learned():
    X, pairs, similar = small()
    metric = DPPMetric(2, epsilon=3.0, preprocessor=X, random_state=0).fit(pairs, similar)
    copy = clone(metric)
    assert copy.epsilon == 3.0 and not hasattr(copy, "components_")


@pytest.mark.parametrize("unit", ["pair", "kappa pairs", "record"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "scdf", "duchi"])
def test_the_proven_guarantee_is_the_budget_in_the_unit_asked_for(unit, mechanism):
    X, pairs, similar = small()
    metric = DPPMetric(epsilon=2.0, unit=unit, mechanism=mechanism, preprocessor=X, random_state=0)
    guarantee = metric.fit(pairs, similar).guarantee_
    assert (guarantee.epsilon, guarantee.unit, guarantee.calibration) == (2.0, unit, "proven")
    assert guarantee.neighbours == "add or remove one"
    assert guarantee.delta == (1e-5 if mechanism == "gaussian" else 0.0)
    assert any("structure" in words for words in guarantee.assumptions)


def test_the_same_release_is_priced_in_all_units():
    X, pairs, similar = small()
    by_pair = DPPMetric(preprocessor=X, random_state=0).fit(pairs, similar).guarantee_
    prices = {cost.unit: cost.epsilon for cost in by_pair.also}
    assert by_pair.epsilon < prices["kappa pairs"] <= prices["record"]


def test_poisson_sampling_is_accounted_for_groups_too():
    X, pairs, similar = small()
    chosen = {"unit": "record", "select": "degree", "max_degree": 2}
    metric = DPPMetric(epsilon=4.0, batch_size=10, epochs=1, preprocessor=X, random_state=0, **chosen)
    guarantee = metric.fit(pairs, similar).guarantee_
    assert guarantee.epsilon == 4.0
    assert "Poisson" in guarantee.mechanism


def test_under_paper_calibration_rows_compose():
    X, pairs, similar = small()
    metric = DPPMetric(4, epsilon=1.0, calibration="paper", margin=1.0, preprocessor=X, random_state=0)
    guarantee = metric.fit(pairs, similar).guarantee_
    assert (guarantee.claimed, guarantee.epsilon, guarantee.unit) == (1.0, 4.0, "kappa pairs")
    assert guarantee.also[0].epsilon == pytest.approx(4.0 / metric.kappa_)


@pytest.mark.parametrize("change", [{"sensitivity_reduction": True, "margin": 1.0}, {"margin": "mean"}])
def test_what_depends_on_data_without_noise_has_no_epsilon(change):
    X, pairs, similar = small()
    metric = DPPMetric(3, calibration="paper", preprocessor=X, random_state=0, **change).fit(pairs, similar)
    assert math.isinf(metric.guarantee_.epsilon)
    assert metric.guarantee_.claimed == 1.0


@pytest.mark.parametrize(
    ("mechanism", "factor"), [("laplace", 3.0), ("scdf", 3.0 * 5 * 7), ("duchi", 3.0 * 7), ("gaussian", None)]
)
def test_each_mechanism_of_the_paper_is_charged_for_what_it_really_does(mechanism, factor):
    X, pairs, similar = small()
    metric = DPPMetric(
        3, calibration="paper", mechanism=mechanism, margin=1.0, kappa=7, preprocessor=X, random_state=0
    ).fit(pairs, similar)
    if factor is not None:
        assert metric.guarantee_.epsilon == pytest.approx(factor)
    else:
        # Added in squares over rows and epochs, Gaussian noise does keep the paper's claim here.
        assert 0 < metric.guarantee_.epsilon < 1.0 and metric.guarantee_.delta == 1e-5


def test_the_ledger_is_charged_before_anything_is_learned(tmp_path):
    X, pairs, similar = small()
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward-7")
    ledger.grant(Cost(epsilon=1.5, delta=1e-4, unit="pair", neighbours="add or remove one"))
    metric = DPPMetric(preprocessor=X, random_state=0).fit(pairs, similar, ledger=ledger)
    assert ledger.balance("pair").spent.epsilon == pytest.approx(1.0)
    before = metric.components_.copy()
    with pytest.raises(BudgetExceeded):
        metric.fit(pairs, similar, ledger=ledger)
    np.testing.assert_array_equal(metric.components_, before)
    with pytest.raises(NotProven):
        DPPMetric(2, calibration="paper", preprocessor=X).fit(pairs, similar, ledger=ledger)


def test_fixing_kappa_beforehand_binds_the_pairs():
    X, pairs, similar = small()
    needed = kappa(PairGraph.from_pairs(pairs, similar, transitive=False))
    assert DPPMetric(kappa=needed + 2, preprocessor=X, transitive=False).fit(pairs, similar).kappa_ == needed + 2
    with pytest.raises(InvalidData, match="larger kappa"):
        DPPMetric(kappa=needed - 2, preprocessor=X, transitive=False).fit(pairs, similar)


def test_a_forest_makes_kappa_pairs_one_pair_and_a_matching_makes_a_record_one():
    X, pairs, similar = small()
    forest = DPPMetric(unit="kappa pairs", select="forest", preprocessor=X, random_state=0).fit(pairs, similar)
    assert forest.kappa_ == 1 and "1 pair a unit" in forest.guarantee_.mechanism
    matched = DPPMetric(unit="record", select="matching", preprocessor=X, random_state=0).fit(pairs, similar)
    assert "1 pair a unit" in matched.guarantee_.mechanism and matched.n_pairs_ <= 30
    bounded = DPPMetric(unit="record", select="degree", max_degree=2, preprocessor=X, random_state=0)
    assert "2 pairs a unit" in bounded.fit(pairs, similar).guarantee_.mechanism


@pytest.mark.parametrize("loss", ["triplet", "npair"])
def test_triplets_and_n_pair_tuples_learn_too(loss):
    rng = np.random.default_rng(0)
    by_class = [np.flatnonzero(CLASSES[:1200] == c) for c in range(10)]
    tuples = []
    for _ in range(1500):
        a, *others = rng.permutation(10)[: 2 if loss == "triplet" else 5]
        anchor, positive = rng.choice(by_class[a], 2, replace=False)
        tuples.append([anchor, positive, *(rng.choice(by_class[c]) for c in others)])
    metric = DPPMetric(loss=loss, epsilon=8.0, unit="pair", preprocessor=DIGITS, random_state=0).fit(np.array(tuples))
    plain = EuclideanMetric().fit(DIGITS)
    assert metric.score(HELD_OUT, HELD_LABELS) > plain.score(DIGITS[HELD_OUT], HELD_LABELS) + 0.02
    assert metric.guarantee_.epsilon == 8.0


def test_input_perturbation_counts_both_records_and_the_label():
    X, pairs, similar = small()
    letter = InputPerturbation(3, calibration="paper", preprocessor=X, random_state=0).fit(pairs, similar).guarantee_
    assert (letter.claimed, letter.epsilon, letter.model) == (1.0, 1.5, "local")
    proven = InputPerturbation(3, preprocessor=X, random_state=0).fit(pairs, similar).guarantee_
    assert proven.epsilon == 1.0 and proven.also[0].unit == "record"


def test_the_non_private_learner_lowers_the_objective():
    trace = Trace()
    metric = ContrastiveMetric(how="paper", margin="mean", step_size=1.0, preprocessor=DIGITS, random_state=0)
    metric.fit(PAIRS, SIMILAR, trace=trace)
    assert trace.objective[-1] < trace.objective[0]
    ours = ContrastiveMetric(preprocessor=DIGITS, random_state=0).fit(PAIRS, SIMILAR)
    assert ours.score(HELD_OUT, HELD_LABELS) > 0.9


def test_a_saved_metric_comes_back_equal_and_holds_no_pair(tmp_path):
    X, pairs, similar = small()
    metric = DPPMetric(3, preprocessor=X, random_state=0).fit(pairs, similar)
    metric.save(tmp_path / "metric.safetensors")
    back = DPPMetric.load(tmp_path / "metric.safetensors")
    np.testing.assert_array_equal(back.transform(X), metric.transform(X))
    assert back.guarantee_ == metric.guarantee_
    assert (tmp_path / "metric.safetensors").stat().st_size < 6000


def test_a_file_that_is_not_a_metric_is_refused(tmp_path):
    from blindsight.core import storage

    path = tmp_path / "other.safetensors"
    storage.save(path, kind="metric", arrays={"components": np.ones((2, 2))}, fields={"norm": "l2"})
    with pytest.raises(HostileFile):
        DPPMetric.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(HostileFile):
        DPPMetric.load(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda X, p, s: (X, np.vstack([p, [[3, 3]]]), np.append(s, True)), "self-pairs"),
        (lambda X, p, s: (X, np.vstack([p, p[:1, ::-1]]), np.append(s, ~s[0])), "both similar and dissimilar"),
        (lambda X, p, s: (X, np.array([[0, 1], [1, 2], [2, 0]]), np.array([1, 1, 0])), "contradict"),
        (lambda X, p, s: (np.where(X > 2, np.nan, X), p, s), "NaN"),
        (lambda X, p, s: (X, p, np.ones(len(p))), "single class"),
        (lambda X, p, s: (X, p + 500, s), "unknown records"),
        (lambda X, p, s: (X, p, s[:-1]), "labels"),
        (lambda X, p, s: (X, p[:0], s[:0]), "empty"),
        (lambda X, p, s: (X, p.astype(float), s), "whole numbers"),
        (lambda X, p, s: (X, p, None), "similar"),
        (lambda X, p, s: (None, p, s), "preprocessor"),
    ],
)
def test_bad_input_is_refused_in_one_clear_sentence(spoil, words):
    X, pairs, similar = spoil(*small())
    with pytest.raises(InvalidData, match=words):
        DPPMetric(preprocessor=X).fit(pairs, similar)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0},
        {"epsilon": -1.0},
        {"delta": 0.0},
        {"unit": "person"},
        {"calibration": "none"},
        {"mechanism": "cauchy"},
        {"n_components": 6},
        {"sensitivity_reduction": True},
        {"margin": -1},
        {"clip": 0.0},
        {"select": "some"},
        {"select": "degree"},
        {"kappa": "large"},
        {"mechanism": "laplace", "batch_size": None},
        {"step_rule": "root"},
        {"loss": "hinge"},
        {"random_state": -1},
        {"normalize": "l3"},
    ],
)
def test_bad_parameters_are_refused_at_fit(change):
    X, pairs, similar = small()
    with pytest.raises(InvalidParameter):
        DPPMetric(**{"preprocessor": X, **change}).fit(pairs, similar)


def test_the_guarantee_travels_as_json():
    X, pairs, similar = small()
    guarantee = DPPMetric(preprocessor=X, random_state=0).fit(pairs, similar).guarantee_
    assert Guarantee.from_json(guarantee.to_json()) == guarantee
    assert "PRIVACY CARD" in guarantee.card()
