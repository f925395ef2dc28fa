"""Feature statistics: what one image or person moves, what a receiver learns, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault
from blindsight.sketching import (
    FeatureBasis,
    FeatureStatistics,
    PrivateHead,
    Statistics,
    StatisticsLayout,
    fit_from_statistics,
    merge_statistics,
    sample_rows,
)
from blindsight.sketching.statistics import UnitRows
from blindsight.sketching.statistics_receiver import moments_of
from blindsight.sketching.statistics_rules import (
    forecast,
    gaussian_mu,
    least_images,
    moments_share,
    width_for,
)

CLASSES = ("a", "b", "c")


def _made(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    features = rng.random((n, 20))
    features[np.arange(n), labels] += 1.5
    return features, labels


PUBLIC = np.random.default_rng(9).random((300, 20))
BASIS = FeatureBasis.learn(PUBLIC, width=8)


def _laid_out(layout: StatisticsLayout, z: np.ndarray, label: int) -> np.ndarray:
    """The vector of one row by the formula, as an independent oracle."""
    blocks = np.zeros((layout.n_classes, layout.width + 1))
    blocks[label] = math.sqrt(1 - layout.moments) * np.append(z, 0.3) / math.sqrt(1.09)
    parts = [blocks.ravel()]
    if layout.moments:
        for i in range(layout.width):
            for j in range(i, layout.width):
                factor = 1.0 if i == j else math.sqrt(2)
                parts.append([math.sqrt(layout.moments) * factor * z[i] * z[j]])
    return np.concatenate(parts)


@pytest.mark.parametrize("moments", [0.0, 0.3, 0.5])
def test_the_sum_and_the_norms_are_those_of_the_vectors_laid_out(moments: float) -> None:
    layout = StatisticsLayout(CLASSES, BASIS.width, moments)
    features, labels = _made(12)
    rows = BASIS.rows(features).astype(np.float64)
    vectors = np.stack([_laid_out(layout, z, c) for z, c in zip(rows, labels, strict=True)])
    np.testing.assert_allclose(layout.sum(rows, labels), vectors.sum(axis=0), atol=1e-3)
    units = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5])
    joint = np.stack([vectors[units == unit].sum(axis=0) for unit in range(6)])
    given = UnitRows(layout, rows, labels, units)
    np.testing.assert_allclose(given.norms(2), np.linalg.norm(joint, axis=1), rtol=1e-9)


@pytest.mark.parametrize("moments", [0.0, 0.5])
def test_one_image_moves_the_sum_by_at_most_one_and_a_person_by_the_root(moments: float) -> None:
    layout = StatisticsLayout(CLASSES, BASIS.width, moments)
    features, labels = _made(60)
    rows = BASIS.rows(1e6 * features)
    whole = layout.sum(rows, labels)
    for row in range(5):
        rest = layout.sum(np.delete(rows, row, 0), np.delete(labels, row))
        assert np.linalg.norm(whole - rest) <= 1.0
    # One person has twenty equal images of one class: the worst that can be added.
    same = np.concatenate([rows, np.repeat(rows[:1], 20, axis=0)])
    classes = np.concatenate([labels, np.repeat(labels[:1], 20)])
    people = np.concatenate([np.arange(60), np.full(20, 60)])
    for most in (1, 5):
        moved = layout.sum(same, classes, units=people, most=most)
        moved = moved - layout.sum(rows, labels, most=most)
        assert np.linalg.norm(moved) <= math.sqrt(most)
        assert np.linalg.norm(moved) > 0.99 * math.sqrt(most)


def test_copies_of_one_picture_count_as_one_record() -> None:
    layout = StatisticsLayout(CLASSES, BASIS.width, 0.5)
    features, labels = _made(10)
    rows = BASIS.rows(features)
    copies = layout.sum(
        np.concatenate([rows, rows[:1]]),
        np.concatenate([labels, [2]]),
        units=np.concatenate([np.arange(10), [0]]),
    )
    rest = layout.sum(rows[1:], labels[1:])
    assert np.linalg.norm(copies - rest) <= 1.0


def test_rows_that_are_not_finite_or_have_an_unknown_class_count_nothing() -> None:
    layout = StatisticsLayout(CLASSES, BASIS.width, 0.5)
    features, labels = _made(9)
    clean = layout.sum(BASIS.rows(features), labels)
    spoiled = np.concatenate([features, np.full((3, 20), np.nan)])
    spoiled[-1] = 1e308
    spoiled[-2] = features[0]
    numbers = np.concatenate([labels, [1, 7, 0]])
    np.testing.assert_allclose(layout.sum(BASIS.rows(spoiled), numbers), clean, atol=1e-12)


def test_a_receiver_without_noise_finds_means_counts_and_covariance() -> None:
    features, labels = _made(3000)
    rows = BASIS.rows(features).astype(np.float64)
    layout = StatisticsLayout(CLASSES, BASIS.width, 0.5)
    statistics = Statistics.from_sum(layout.sum(rows, labels), layout, BASIS, sigma=0.0)
    means, counts, within = moments_of(statistics)
    true = np.stack([rows[labels == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(means, true, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(counts, 1000, rtol=1e-3)
    residual = rows - true[labels]
    np.testing.assert_allclose(within, residual.T @ residual / len(rows), atol=1e-4)


@pytest.mark.parametrize("method", ["lda", "ridge"])
def test_a_receiver_learns_from_noisy_statistics(method: str) -> None:
    features, labels = _made(6000)
    names = np.array(CLASSES)[labels]
    sender = FeatureStatistics(2.0, classes=CLASSES, public=PUBLIC, random_state=0)
    model = fit_from_statistics(sender.fit(features, names).statistics_, method)
    test, truth = _made(600, seed=1)
    assert model.score(test, np.array(CLASSES)[truth]) > 0.8
    assert model.predict_proba(test).sum(axis=1) == pytest.approx(1.0)


def test_without_a_second_moment_means_are_enough_and_ridge_is_refused() -> None:
    features, labels = _made(600)
    sender = FeatureStatistics(1.0, classes=CLASSES, public=PUBLIC, random_state=0)
    sender.fit(features, np.array(CLASSES)[labels])
    assert sender.statistics_.moment is None
    assert fit_from_statistics(sender.statistics_).score(features, np.array(CLASSES)[labels]) > 0.6
    with pytest.raises(InvalidData, match="no second moment"):
        fit_from_statistics(sender.statistics_, "ridge")


def test_synthetic_rows_teach_what_the_statistics_teach() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    features, labels = _made(6000)
    sender = FeatureStatistics(4.0, classes=CLASSES, public=PUBLIC, random_state=0)
    sender.fit(features, np.array(CLASSES)[labels])
    rows, drawn = sample_rows(sender.statistics_, 4000, random_state=0)
    model = LinearDiscriminantAnalysis().fit(rows, drawn)
    test, truth = _made(600, seed=1)
    assert (model.predict(sender.statistics_.basis.rows(test)) == truth).mean() > 0.8


def test_statistics_of_senders_add_and_their_noise_adds_up() -> None:
    features, labels = _made(3000)
    layout = StatisticsLayout(CLASSES, BASIS.width, 0.5)
    rows = BASIS.rows(features)
    whole = layout.sum(rows, labels)
    parts = [
        Statistics.from_sum(layout.sum(rows[i::3], labels[i::3]), layout, BASIS, sigma=2.0)
        for i in range(3)
    ]
    merged = merge_statistics(parts)
    np.testing.assert_allclose(merged.vector, whole, rtol=1e-9)
    assert merged.sigma == pytest.approx(2 * math.sqrt(3)) and merged.senders == 3
    other = FeatureBasis.learn(PUBLIC[:200], width=8)
    strange = Statistics.from_sum(whole, layout, other, sigma=1.0)
    with pytest.raises(InvalidData, match="same basis"):
        merge_statistics([parts[0], strange])


def test_too_few_images_are_refused_before_anything_is_charged(tmp_path) -> None:
    features, labels = _made(100)
    ledger = Ledger(tmp_path / "budget.db", dataset="photos")
    ledger.grant(Cost(epsilon=5, delta=1e-4, unit="record", neighbours="add or remove one"))
    ledger.grant(Cost(epsilon=10, delta=1e-4, unit="record"))
    sender = FeatureStatistics(1.0, classes=CLASSES, public=PUBLIC)
    with pytest.raises(InvalidParameter, match="Nothing was charged"):
        sender.fit(features, np.array(CLASSES)[labels], ledger=ledger)
    assert all(balance.spent.epsilon == 0 for balance in ledger.balances())


def test_a_release_beyond_the_budget_is_refused(tmp_path) -> None:
    features, labels = _made(600)
    ledger = Ledger(tmp_path / "budget.db", dataset="photos")
    ledger.grant(Cost(epsilon=0.5, delta=1e-4, unit="record", neighbours="add or remove one"))
    sender = FeatureStatistics(1.0, classes=CLASSES, public=PUBLIC)
    with pytest.raises(BudgetExceeded):
        sender.fit(features, np.array(CLASSES)[labels], ledger=ledger)
    assert not hasattr(sender, "released_")


def test_the_noise_of_a_vault_gives_the_same_bytes_again(tmp_path) -> None:
    features, labels = _made(600)
    names = np.array(CLASSES)[labels]
    vault = Vault.create(tmp_path / "vault")
    files = []
    for number in range(2):
        sender = FeatureStatistics(
            1.0,
            classes=CLASSES,
            public=PUBLIC,
            random_state=vault.training_source(vault.release_of("statistics")),
        ).fit(features, names, ledger=vault.account(None, release=vault.release_of("statistics")))
        sender.save(tmp_path / f"{number}.safetensors")
        files.append((tmp_path / f"{number}.safetensors").read_bytes())
    assert files[0] == files[1]


def test_a_changed_file_is_refused(tmp_path) -> None:
    features, labels = _made(600)
    path = tmp_path / "s.safetensors"
    FeatureStatistics(1.0, classes=CLASSES, public=PUBLIC, random_state=0).fit(
        features, np.array(CLASSES)[labels]
    ).save(path)
    loaded = FeatureStatistics.load(path)
    assert loaded.guarantee_.epsilon == pytest.approx(1.0, rel=1e-3)
    assert tuple(loaded.classes_) == CLASSES
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(HostileFile):
        FeatureStatistics.load(path)


def test_a_person_pays_the_root_of_the_images_in_noise() -> None:
    features, labels = _made(3000)
    names, people = np.array(CLASSES)[labels], np.arange(3000) // 5
    sender = FeatureStatistics(
        1.0, classes=CLASSES, public=PUBLIC, unit="person", most=5, random_state=0
    )
    with pytest.raises(InvalidParameter, match="the person in each image"):
        sender.fit(features, names)
    sender.fit(features, names, units=people)
    assert sender.guarantee_.unit == "person"
    assert sender.guarantee_.epsilon == pytest.approx(1.0, rel=2e-3)
    alone = FeatureStatistics(1.0, classes=CLASSES, public=PUBLIC, random_state=0)
    alone.fit(features, names)
    ratio = sender.statistics_.sigma / alone.statistics_.sigma
    assert ratio == pytest.approx(math.sqrt(5), rel=2e-3)


def test_class_names_from_the_labels_prove_nothing() -> None:
    features, labels = _made(600)
    sender = FeatureStatistics(1.0, public=PUBLIC, random_state=0)
    sender.fit(features, np.array(CLASSES)[labels])
    assert math.isinf(sender.guarantee_.epsilon) and sender.guarantee_.unproven


def test_delta_must_be_below_one_over_the_number_of_images() -> None:
    features, labels = _made(600)
    sender = FeatureStatistics(1.0, delta=0.01, classes=CLASSES, public=PUBLIC, random_state=0)
    with pytest.raises(InvalidParameter, match="delta must be below"):
        sender.fit(features, np.array(CLASSES)[labels])


def test_the_rules_are_those_that_were_measured() -> None:
    assert [round(gaussian_mu(e, 1e-5), 3) for e in (0.5, 1.0, 2.0, 8.0)] == [
        0.142,
        0.268,
        0.502,
        1.666,
    ]
    assert [least_images(10, epsilon=e) // 10 for e in (0.5, 1.0, 2.0, 8.0)] == [70, 37, 20, 6]
    assert width_for(50_000, 10, epsilon=1.0) == 512
    assert [moments_share(n, 10, epsilon=1.0) for n in (3_000, 10_000, 50_000)] == [0.0, 0.3, 0.5]
    levels = [forecast(10 * n, 10, epsilon=1.0).level for n in (30, 50, 100, 500)]
    assert levels == ["refused", "poor", "fair", "good"]


def test_the_forecast_rises_with_more_images_also_where_a_second_moment_begins_to_pay() -> None:
    counts = (*range(400, 5_000, 200), 20_000, 50_000, 100_000, 10**6)
    expected = [forecast(n, 10, epsilon=1.0).accuracy for n in counts]
    assert expected == sorted(expected)


def test_a_head_is_priced_for_all_of_its_steps() -> None:
    features, labels = _made(900)
    names = np.array(CLASSES)[labels]
    for steps in (5, 40):
        head = PrivateHead(2.0, classes=CLASSES, public=PUBLIC, steps=steps, random_state=0)
        head.fit(features, names)
        (planned,) = head.guarantee_.releases
        assert planned.count == steps
        assert 1.98 < head.guarantee_.epsilon <= 2.0
    assert head.score(features, names) > 0.7


def test_a_basis_from_a_classifier_has_its_directions() -> None:
    weights = np.random.default_rng(3).normal(size=(6, 20))
    basis = FeatureBasis.from_classifier(weights, PUBLIC, width=8)
    assert basis.width == 5  # six classes, less their mean
    centred = weights - weights.mean(axis=0)
    inside = basis.directions @ np.linalg.pinv(centred) @ centred
    np.testing.assert_allclose(inside, basis.directions, atol=1e-4)
