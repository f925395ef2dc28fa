"""DPPMetric: it learns, it says what it costs, it pays before it learns, and it refuses only what
is public.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter
from blindsight.data import PairSet
from blindsight.metric import DPPMetric, EuclideanMetric, PairGraph, kappa
from blindsight.metric.paper import MendedDML
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


def learned(**parameters):
    X, pairs, similar = small()
    defaults = {"preprocessor": X, "random_state": 0, "loss": "contrastive"}
    return DPPMetric(**{**defaults, **parameters}).fit(pairs, similar)


def large(n=4000, d=6, seed=0):
    """Two classes that differ in one of six columns, and that column is a thousand times narrower
    than the rest.
    """
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    X = rng.normal(size=(n, d))
    X[:, 0] += 3 * classes
    X[:, 1:] *= 1000
    pairs = rng.integers(0, n, (3 * n, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return X, pairs, classes[pairs[:, 0]] == classes[pairs[:, 1]]


def test_at_epsilon_1_per_pair_it_beats_the_plain_distance_and_algorithm_1():
    ours = DPPMetric(epsilon=1.0, unit="pair", preprocessor=DIGITS, random_state=0).fit(
        PAIRS, SIMILAR
    )
    plain = EuclideanMetric().fit(DIGITS)
    mended = MendedDML(epsilon=1.0, preprocessor=DIGITS, random_state=0).fit(PAIRS, SIMILAR)
    held_out = DIGITS[HELD_OUT]
    scores = [
        metric.score(held_out if metric is plain else HELD_OUT, HELD_LABELS)
        for metric in (ours, plain, mended)
    ]
    assert ours.loss_ == "contrastive"
    assert scores[0] > scores[1] + 0.03
    assert scores[0] > scores[2] + 0.05


def test_with_many_pairs_and_few_columns_the_closed_form_is_chosen_and_better():
    X, pairs, similar = large()
    rows = X / [1, *[1000] * 5]
    auto = DPPMetric(epsilon=1.0, preprocessor=rows, random_state=0).fit(pairs, similar)
    descent = DPPMetric(epsilon=1.0, loss="contrastive", preprocessor=rows, random_state=0).fit(
        pairs, similar
    )
    assert auto.loss_ == "moments" and auto.margin_ is None
    assert auto.score(pairs, similar) > descent.score(pairs, similar)


@pytest.mark.parametrize("loss", ["moments", "contrastive"])
def test_scaling_finds_what_wide_columns_hide(loss):
    X, pairs, similar = large()
    common = {"epsilon": 2.0, "loss": loss, "preprocessor": X, "random_state": 0}
    bounds = (np.full(6, -4.0) * [1, *[1000] * 5], np.full(6, 7.0) * [1, *[1000] * 5])
    raw, private, stated = (
        DPPMetric(**common, scale=scale).fit(pairs, similar).score(pairs, similar)
        for scale in (None, "private", bounds)
    )
    assert raw < 0.6
    assert min(private, stated) > raw + 0.05


def test_private_column_sizes_are_part_of_the_plan_and_the_total():
    plans = {scale: learned(scale=scale).guarantee_ for scale in (None, "private")}
    assert "column sizes" in {item.what for item in plans["private"].releases}
    assert plans["private"].epsilon == plans[None].epsilon == 1.0


def test_what_is_learned_does_not_depend_on_which_record_a_row_equals():
    """In an array of features every row is a record of its own; equal rows, even within a pair, are
    fine.
    """
    X, pairs, similar = small()
    rows = X[pairs]
    doubled = rows.copy()
    doubled[0, 1] = doubled[0, 0]
    doubled[1] = doubled[2]
    for given in (rows, doubled):
        found = DPPMetric(unit="record", random_state=0).fit(given, similar).guarantee_
        assert found.releases[0].group == 1
        assert found.assumes("rows are records")
    assert not learned().guarantee_.assumes("rows are records")


def test_a_pair_set_is_pairs_and_labels_in_one():
    X, pairs, similar = small()
    one = DPPMetric(loss="moments", preprocessor=X, random_state=3).fit(
        PairSet(pairs, similar.astype(int))
    )
    two = DPPMetric(loss="moments", preprocessor=X, random_state=3).fit(pairs, similar)
    np.testing.assert_array_equal(one.components_, two.components_)


def test_a_preprocessor_may_be_a_function():
    X, pairs, similar = small()
    one = DPPMetric(loss="moments", preprocessor=lambda numbers: X[numbers], random_state=3).fit(
        pairs, similar
    )
    two = DPPMetric(loss="moments", preprocessor=X, random_state=3).fit(pairs, similar)
    np.testing.assert_allclose(one.components_, two.components_)
    np.testing.assert_allclose(one.pair_distance(pairs), two.pair_distance(pairs))
    with pytest.raises(InvalidData, match="one row for each index"):
        DPPMetric(preprocessor=lambda numbers: X[:3]).fit(pairs, similar)


def test_records_and_labels_stay_out_of_repr():
    X, pairs, similar = small()
    metric = DPPMetric(preprocessor=X, random_state=3).fit(pairs, similar)
    assert (
        "<records>" in repr(metric)
        and f"{X[0, 0]:.3f}"[:5] not in repr(metric) + metric._repr_html_()
    )
    assert repr(PairGraph.from_pairs(pairs, similar, transitive=False)).startswith(
        "PairGraph(60 records, "
    )


def test_same_seed_same_metric_and_the_guarantee_says_simulation():
    first, second = learned(random_state=7), learned(random_state=7)
    np.testing.assert_array_equal(first.components_, second.components_)
    assert first.guarantee_.simulation
    free = learned(random_state=None)
    assert not free.guarantee_.simulation and free.guarantee_.sampler == "exact"
    assert not np.allclose(free.components_, first.components_)


def test_clones_carry_parameters_and_nothing_learned():
    copy = clone(learned(epsilon=3.0))
    assert copy.epsilon == 3.0 and not hasattr(copy, "components_")


@pytest.mark.parametrize("unit", ["label", "pair", "kappa pairs", "record"])
@pytest.mark.parametrize("loss", ["plain", "moments", "contrastive"])
@pytest.mark.parametrize("scale", [None, "private"])
def test_the_guarantee_is_the_budget_in_the_unit_asked_for(unit, loss, scale):
    guarantee = learned(epsilon=2.0, unit=unit, loss=loss, scale=scale).guarantee_
    assert (guarantee.epsilon, guarantee.delta, guarantee.unit) == (2.0, 1e-5, unit)
    assert (guarantee.calibration, guarantee.neighbours, guarantee.sampler) == (
        "proven",
        "replace one" if unit == "label" else "add or remove one",
        "exact",
    )
    assert guarantee.assumes("public structure")


def test_the_plan_is_known_before_the_data_and_wastes_little():
    from blindsight.privacy.accounting import price

    fitted = learned()
    promised = DPPMetric(loss="contrastive", random_state=0).promise(**fitted.public_)
    assert promised == fitted.guarantee_
    assert 0.99 < price(promised.releases, delta=1e-5).epsilon <= 1.0


def test_the_same_release_is_priced_in_all_units():
    by_pair = learned(unit="pair").guarantee_
    prices = {cost.unit: cost.epsilon for cost in by_pair.also}
    assert by_pair.epsilon < prices["kappa pairs"] <= prices["record"]


@pytest.mark.parametrize("loss", ["plain", "moments", "contrastive"])
def test_a_replaced_label_costs_more_than_a_removed_pair_and_ten_pairs_more_than_ten_times(loss):
    """What the pages once said wrongly: epsilon 1 per pair is not epsilon 1 per label."""
    facts = {"n_pairs": 1000, "n_features": 8, "groups": {"label": 1, "pair": 1, "person": 10}}
    by_pair = DPPMetric(unit="pair", loss=loss).promise(**facts)
    other = {cost.unit: cost for cost in by_pair.also}
    assert 1.4 < other["label"].epsilon < 2.16 and other["label"].neighbours == "replace one"
    assert other["person"].epsilon == pytest.approx(14.4, abs=0.1)
    by_label = DPPMetric(loss=loss).promise(**facts)
    pair = next(cost for cost in by_label.also if cost.unit == "pair")
    assert by_label.unit == "label" and 0.45 < pair.epsilon < 0.75


def test_the_ledger_is_charged_before_anything_is_learned(tmp_path):
    X, pairs, similar = small()
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward-7")
    ledger.grant(Cost(epsilon=1.5, delta=1e-4, unit="label"))
    metric = DPPMetric(preprocessor=X, random_state=0).fit(pairs, similar, ledger=ledger)
    assert ledger.balance("label").spent.epsilon == pytest.approx(1.0)
    before = metric.components_.copy()
    with pytest.raises(BudgetExceeded):
        metric.fit(pairs, similar, ledger=ledger)
    np.testing.assert_array_equal(metric.components_, before)


def test_fixing_kappa_beforehand_binds_the_pairs():
    _, pairs, similar = small()
    needed = kappa(PairGraph.from_pairs(pairs, similar))
    assert learned(kappa=needed + 2).kappa_ == needed + 2
    with pytest.raises(InvalidData, match="larger kappa"):
        learned(kappa=needed - 2)


def test_a_forest_makes_kappa_pairs_one_pair_and_a_matching_makes_a_record_one():
    forest = learned(unit="kappa pairs", select="forest")
    assert forest.kappa_ == 1 and forest.guarantee_.releases[0].group == 1
    matched = learned(unit="record", select="matching")
    assert matched.guarantee_.releases[0].group == 1 and matched.n_pairs_ <= 30
    assert learned(unit="record", select=2).guarantee_.releases[0].group == 2


def test_triplets_teach_too():
    rng = np.random.default_rng(0)
    by_class = [np.flatnonzero(CLASSES[:1200] == c) for c in range(10)]
    tuples = []
    for _ in range(1500):
        a, *others = rng.permutation(10)[:2]
        anchor, positive = rng.choice(by_class[a], 2, replace=False)
        tuples.append([anchor, positive, *(rng.choice(by_class[c]) for c in others)])
    tuples = np.array(tuples)
    metric = DPPMetric(epsilon=8.0, preprocessor=DIGITS, random_state=0).fit(tuples)
    plain = EuclideanMetric().fit(DIGITS)
    assert metric.score(HELD_OUT, HELD_LABELS) > plain.score(DIGITS[HELD_OUT], HELD_LABELS) + 0.02
    assert metric.guarantee_.epsilon == 8.0 and metric.loss_ == "triplet"
    assert metric.score(tuples) == (metric.predict(tuples) == 1).mean() > 0.9
    right = (metric.predict(HELD_OUT) == 1) == HELD_LABELS
    assert right.mean() > 0.7 and metric.curve_.known


def test_the_guarantee_of_triplets_counts_every_tuple_a_pair_is_in():
    X, _, _ = small()
    triplets = np.array([[0, 1, 2], [0, 1, 3], [1, 0, 4], [5, 6, 7]])
    metric = DPPMetric(loss="triplet", unit="pair", preprocessor=X, random_state=0).fit(triplets)
    assert metric.guarantee_.releases[0].group == 3
    by_label = DPPMetric(loss="plain", preprocessor=X, random_state=0).fit(triplets)
    assert by_label.guarantee_.releases[0].group == 1
    with pytest.raises(InvalidParameter, match="no y"):
        DPPMetric(loss="triplet", preprocessor=X).fit(triplets, [1, 1, 0, 0])


@pytest.mark.parametrize("scale", [None, "private", (np.full(5, -3.0), np.full(5, 3.0))])
@pytest.mark.parametrize("loss", ["moments", "contrastive"])
def test_a_saved_metric_comes_back_equal_and_holds_no_pair(tmp_path, loss, scale):
    metric = learned(n_components=3, loss=loss, scale=scale).describe(image_features="pixels")
    metric.save(tmp_path / "metric.safetensors")
    back = DPPMetric.load(tmp_path / "metric.safetensors")
    X, pairs, _ = small()
    np.testing.assert_array_equal(back.transform(X), metric.transform(X))
    np.testing.assert_array_equal(back.predict(X[pairs]), metric.predict(X[pairs]))
    assert back.guarantee_ == metric.guarantee_ and back.about_ == {"image_features": "pixels"}
    assert (tmp_path / "metric.safetensors").stat().st_size < 12000


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
    "change", [{"components": np.ones((2, 4))}, {"components": np.full((5, 5), np.nan)}]
)
def test_a_file_whose_map_does_not_fit_is_refused(tmp_path, change):
    metric = learned()
    metric.released_ = metric.released_ | change
    metric.save(tmp_path / "metric.safetensors")
    with pytest.raises(HostileFile):
        DPPMetric.load(tmp_path / "metric.safetensors")


def test_a_file_that_promises_more_than_its_parameters_is_refused(tmp_path):
    metric = learned(epsilon=4.0)
    metric.guarantee_ = learned(epsilon=1.0).guarantee_
    metric.save(tmp_path / "metric.safetensors")
    with pytest.raises(HostileFile, match="guarantee"):
        DPPMetric.load(tmp_path / "metric.safetensors")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda X, p, s: (X, np.vstack([p, [[3, 3]]]), np.append(s, True)), "self-pairs"),
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
        {"loss": "banana"},
        {"unit": "photo"},
        {"select": "some"},
        {"select": 0},
        {"kappa": "most"},
        {"kappa": 0},
        {"scale": "banana"},
        {"scale": ([0.0], [0.0])},
        {"scale": ([0.0, 0.0], [1.0, 1.0])},
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"n_components": 6},
        {"random_state": -1},
    ],
)
def test_bad_parameters_are_refused_at_fit(change):
    with pytest.raises((InvalidParameter, InvalidData)):
        learned(**change)


def test_a_large_delta_is_questioned():
    with pytest.warns(UserWarning, match=r"delta = 0\.5"):
        learned(delta=0.5)


def test_an_unfitted_metric_says_so():
    with pytest.raises(NotFittedError):
        DPPMetric().transform(np.zeros((1, 3)))


def test_the_guarantee_travels_as_json():
    guarantee = learned().guarantee_
    assert Guarantee.from_json(guarantee.to_json()) == guarantee
    assert "PRIVACY CARD" in guarantee.card()


def test_a_delta_of_one_over_the_pairs_or_more_is_questioned():
    rng = np.random.default_rng(0)
    X, pairs = rng.normal(size=(60, 4)), np.arange(60).reshape(30, 2)
    with pytest.warns(UserWarning, match="revealed completely"):
        DPPMetric(delta=0.5, preprocessor=X, random_state=0).fit(pairs, rng.integers(0, 2, 30))


def test_the_plain_distance_is_kept_where_learning_is_not_expected_to_pay():
    """A public rule decides, and says so before anything is charged."""
    facts = {"n_features": 64, "groups": {"label": 1}}
    forecasts = {
        epsilon: DPPMetric(epsilon=epsilon).forecast(n_pairs=2400, **facts)
        for epsilon in (0.5, 2.0, 8.0)
    }
    assert [forecast.loss for forecast in forecasts.values()] == [
        "plain",
        "contrastive",
        "moments",
    ]
    assert "2,400" in str(forecasts[0.5]) and forecasts[0.5].needed > 2400
    wide = DPPMetric().forecast(n_pairs=10**9, n_features=1280, groups={"label": 1})
    assert not wide.learns and "too many columns" in str(wide)


def test_the_plain_distance_is_that_of_whole_records_and_its_file_is_small(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 300))
    pairs, labels = np.arange(40).reshape(20, 2), np.arange(20) % 2
    metric = DPPMetric(preprocessor=rows, random_state=0).fit(pairs, labels)
    assert metric.loss_ == "plain"
    plain = EuclideanMetric().fit(rows)
    np.testing.assert_allclose(metric.pair_distance(pairs), plain.pair_distance(rows[pairs]))
    metric.save(tmp_path / "metric.safetensors")
    assert (tmp_path / "metric.safetensors").stat().st_size < 12000
    back = DPPMetric.load(tmp_path / "metric.safetensors")
    np.testing.assert_array_equal(back.transform(rows), metric.transform(rows))
    assert back.curve_.thresholds.tolist() == metric.curve_.thresholds.tolist()


def test_people_bound_the_pairs_of_a_person_and_are_priced():
    X, pairs, similar = small()
    people = np.array([f"person {i // 3}" for i in range(60)])
    common = {"loss": "moments", "preprocessor": X, "random_state": 0}
    by_person = DPPMetric(unit="person", select=2, **common).fit(pairs, similar, people=people)
    used = by_person.guarantee_
    assert used.unit == "person" and used.releases[0].group == 2 and used.assumes("public people")
    whole = DPPMetric(**common).fit(pairs, similar, people=people).guarantee_
    prices = {cost.unit: cost.epsilon for cost in whole.costs}
    assert prices["person"] > prices["record"] > prices["pair"]
    matched = DPPMetric(unit="person", select="matching", **common).fit(
        pairs, similar, people=people
    )
    assert matched.guarantee_.releases[0].group == 1
    with pytest.raises(InvalidParameter, match="people="):
        DPPMetric(unit="person", **common).fit(pairs, similar)
    with pytest.raises(InvalidData, match="one for each record"):
        DPPMetric(unit="person", **common).fit(pairs, similar, people=people[:-1])


def test_answers_say_how_often_they_are_wrong_and_hidden_rates_are_not_invented():
    X, pairs, similar = large()
    rows = X / [1, *[1000] * 5]
    metric = DPPMetric(epsilon=1.0, preprocessor=rows, random_state=0).fit(pairs, similar)
    answers = metric.answers(pairs)
    same = np.array([answer.same for answer in answers])
    np.testing.assert_array_equal(same, metric.predict(pairs) == 1)
    point = metric.curve_.at_threshold(metric.threshold_)
    assert abs(point.false_accept - same[~similar].mean()) < 0.03
    assert abs(point.false_reject - (~same)[similar].mean()) < 0.03
    strict = metric.curve_.at(false_accept=0.1)
    assert strict.threshold < metric.threshold_ and strict.false_accept <= 0.1
    with pytest.raises(InvalidParameter, match="noise hides"):
        learned(epsilon=0.01).answers(small()[1])
