"""Published answers: their noise, their sensitivity by search, and the bound between any two
images.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.cost import Cost
from blindsight.privacy.ledger import Ledger
from blindsight.tagging.answer_codebook import (
    SENSITIVITY,
    AnswerCodebook,
    AnswerSpread,
    choose_codebook,
    quota_thresholds,
    shifted_to,
    spread_rows,
)
from blindsight.tagging.estimator import PrivateTagger
from blindsight.tagging.guarantee import CodebookAnswers, LaplaceAnswers
from blindsight.tagging.labels import sigmoid
from blindsight.tagging.paper import PaperLaplace


def spread(c=4):
    rng = np.random.default_rng(0)
    return AnswerSpread(np.full(c, -1.0), rng.normal(size=(3, c)) * 2)


def book(c=4, epsilon=3.0, **options):
    return choose_codebook(spread(c), epsilon=epsilon, rng=np.random.default_rng(0), **options)


@pytest.mark.parametrize(("sensitivity", "scale"), [("C", 20 / 8), ("1", 1 / 8)])
def test_paper_noise_is_laplace_of_the_printed_scale(sensitivity, scale):
    release = PaperLaplace(epsilon=8.0, n_labels=20, sensitivity=sensitivity)
    noise = release.answer(np.zeros((5000, 20)), rng=np.random.default_rng(0)).scores
    assert release.scale == pytest.approx(scale)
    assert np.abs(noise).mean() == pytest.approx(scale, rel=0.03)
    assert release.claimed == 8.0
    assert math.isinf(release.cost.epsilon)  # raw logits have no bound


def test_a_bound_factor_is_just_a_larger_claim():
    release = PaperLaplace(epsilon=10.0, n_labels=20, bound_factor=0.8)
    assert release.scale == pytest.approx(0.8 * 20 / 10)
    assert release.claimed == pytest.approx(12.5)


def test_clipped_paper_noise_costs_ten_times_its_claim():
    # Logits within +-5: l1 sensitivity 2 * 5 * C over a scale of C / 10.
    assert PaperLaplace(epsilon=10.0, n_labels=20, clip=5.0).cost.epsilon == pytest.approx(100.0)


def test_sensitivity_of_clipped_vectors_by_search():
    # The largest change between any two clipped logit vectors, over all corners and random vectors.
    c, b = 4, 2.0
    corners = np.array(list(itertools.product((-9.0, 9.0), repeat=c)))
    logits = np.vstack([corners, np.random.default_rng(0).normal(size=(200, c)) * 9])
    way = LaplaceAnswers(1.0, bound=b)
    values = way.value(logits)
    worst = np.linalg.norm(values[:, None] - values[None], ord=1, axis=2).max()
    assert way.noise(c).domain.reach >= worst
    assert np.abs(values[:, None] - values[None]).max() == 2 * b


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_no_two_images_differ_by_more_than_epsilon_under_laplace(epsilon):
    noise = LaplaceAnswers(epsilon, bound=1.0).noise(3)
    here, there = np.full(3, 1.0), np.full(3, -1.0)  # the worst pair
    out = noise.release(np.tile(here, (2000, 1)), rng=np.random.default_rng(0))
    loss = (noise.log_prob(out, here) - noise.log_prob(out, there)).sum(axis=1)
    assert loss.max() <= epsilon + 1e-9
    assert loss.max() > 0.95 * epsilon  # and the budget is used
    assert noise.cost.epsilon <= epsilon


def test_no_two_images_differ_by_more_than_epsilon_under_a_codebook():
    words = book(epsilon=2.0)
    noise = CodebookAnswers(2.0, words=words).noise(4)
    k = len(words)
    log_prob = np.array([[float(noise.log_prob(out, x)) for out in range(k)] for x in range(k)])
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1.0)
    assert (log_prob.max(axis=0) - log_prob.min(axis=0)).max() <= 2.0 + 1e-12


def test_with_a_large_budget_the_codebook_names_the_model_s_own_tags():
    words = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    way = CodebookAnswers(30.0, words=AnswerCodebook(words, np.ones(4)))
    labels = np.random.default_rng(1).integers(0, 2, (300, 4))
    cells = way.noise(4).release(
        way.value(np.where(labels > 0, 6.0, -6.0)), rng=np.random.default_rng(2)
    )
    assert (way.read(cells).tags == labels).all()


def test_codebook_sizes_grow_with_the_budget():
    sizes = [len(book(6, epsilon=e)) for e in (1.0, 4.0, 9.0)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_word_stands_for_the_mean_label_given_its_release():
    # By simulation of the whole channel: answers, nearest words, lies, and the mean answer of each
    # released word.
    words, rng = book(epsilon=1.5), np.random.default_rng(3)
    logits = spread().sample(200_000, rng=rng)
    way = CodebookAnswers(1.5, words=words)
    cells = way.noise(4).release(way.value(logits), rng=rng)
    means = np.stack([sigmoid(logits[cells == word]).mean(axis=0) for word in range(len(words))])
    np.testing.assert_allclose(means, words.decode(np.arange(len(words)), 1.5), atol=0.03)


def test_under_a_tiny_budget_every_word_falls_back_to_the_rates():
    words = book(epsilon=0.01)
    assert np.ptp(words.decode(np.arange(len(words)), 0.01), axis=0).max() < 0.02


def test_a_word_of_several_stages_is_one_cell_and_nearer_to_the_answer():
    logits = spread(6).sample(500, rng=np.random.default_rng(5))
    missed = {}
    for epsilon in (10.0, 24.0):
        words = book(6, epsilon=epsilon)
        cells = words.encode(logits)
        assert cells.max() < len(words) == np.prod(words.sizes)
        missed[len(words.sizes)] = np.abs(words.decode(cells, epsilon) - sigmoid(logits)).mean()
        way = CodebookAnswers(epsilon, words=words)
        assert way.noise(6).k == len(words)  # one question with the whole budget
    assert missed[3] < 0.5 * missed[1]


def test_each_stage_is_read_back_as_it_was_written():
    stages = np.vstack([np.eye(3), [[-0.1, 0.0, 0.0], [0.0, 0.1, 0.0]]])
    words = AnswerCodebook(stages, np.ones(3), sizes=(3, 2))
    every = words.decode(np.arange(6), 5.0)
    np.testing.assert_allclose(every[1], [1.0, 0.1, 0.0])
    np.testing.assert_allclose(every[2], [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(words.nearest(every[[1, 5]]), [1, 5])
    again = AnswerCodebook.from_fields(words.to_fields())
    np.testing.assert_array_equal(again.decode(np.arange(6), 5.0), every)


def test_spread_rows_lie_within_the_sensitivity_whatever_the_record():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 6)) * 10 ** rng.uniform(-2, 6, (200, 1))
    rows = spread_rows(logits, np.full(6, 0.2), np.eye(6))
    assert (np.linalg.norm(rows, axis=1) ** 2).max() <= SENSITIVITY + 1e-9


def test_the_spread_finds_the_answers_main_direction_through_the_noise():
    rng = np.random.default_rng(0)
    axis = np.array([1.0, -1.0, 1.0, 0.0, 0.0, 0.0])
    logits = -1.4 + rng.normal(size=(4000, 1)) * axis + 0.05 * rng.normal(size=(4000, 6))
    rows = spread_rows(logits, np.full(6, 0.2), np.eye(6))
    noisy = rows.T @ rows + 8.0 * rng.normal(size=(7, 7))
    found = AnswerSpread.from_moments(noisy, np.eye(6), np.full(6, 0.2), n_records=4000, sigma=8.0)
    main = found.factor[np.argmax(np.linalg.norm(found.factor, axis=1))]
    assert abs(main @ axis) / np.linalg.norm(main) / np.linalg.norm(axis) > 0.98
    np.testing.assert_allclose(found.mean, -1.4, atol=0.2)


def test_what_cannot_be_a_codebook_or_an_answer_is_refused():
    with pytest.raises(InvalidData):
        AnswerCodebook(np.array([[0.5, 2.0], [0.0, 1.0]]), np.ones(2))
    with pytest.raises(InvalidData):
        AnswerCodebook(np.zeros((4, 2)), np.ones(2), sizes=(2, 3))
    with pytest.raises(InvalidParameter):
        AnswerCodebook(np.zeros((1, 2)), np.ones(2))
    with pytest.raises(InvalidParameter):
        PaperLaplace(epsilon=1.0, n_labels=3, sensitivity="2")


def test_sigmoid_does_not_overflow():
    assert sigmoid([-1e6, 0.0, 1e6]).tolist() == pytest.approx([0.0, 0.5, 1.0])


def test_copies_of_one_image_get_one_answer(tmp_path):
    """Forty copies of an image share one answer, and asking again gives the same one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6)).astype(np.float32)
    Y = (rng.random((60, 3)) < 0.5).astype(np.uint8)
    tagger = PrivateTagger(answers=LaplaceAnswers(epsilon=1.0), classes=3).fit(X, Y)
    row = np.repeat(X[:1], 40, axis=0)
    with Ledger(tmp_path / "ledger.db", dataset="asked") as ledger:
        ledger.grant(Cost(epsilon=9, delta=1e-3, unit="query"))
        first = tagger.answer(row, ledger=ledger)
        again = tagger.answer(row[:7], ledger=ledger)
        assert len(np.unique(np.vstack([first.scores, again.scores]), axis=0)) == 1
        assert ledger.balance("query").spent.epsilon == 1
        other = tagger.answer(X[1:2], ledger=ledger)
        assert not np.array_equal(other.scores, first.scores[:1]), "another image, another answer"


def test_answers_about_public_images_are_shifted_to_the_released_rates():
    logits = np.random.default_rng(0).normal(size=(4000, 3)) * 2 + 5
    rates = np.array([0.01, 0.2, 0.6])
    moved = shifted_to(logits, rates)
    np.testing.assert_allclose(sigmoid(moved).mean(axis=0), rates, atol=1e-6)
    np.testing.assert_allclose(np.ptp(moved - logits, axis=0), 0, atol=1e-9)


def test_no_label_is_named_more_often_than_its_quota():
    logits = np.random.default_rng(0).normal(size=(4000, 3))
    rates = np.array([0.01, 0.2, 0.6])
    named = logits > quota_thresholds(logits, rates)
    assert (named.mean(axis=0) <= 1.25 * rates + 1e-3).all()


def test_thresholds_from_rates_have_no_less_expected_f1_than_any_common_one():
    rng = np.random.default_rng(0)
    rates = np.array([0.02, 0.05, 0.1, 0.3])
    logits = shifted_to(3 * rng.normal(size=(4000, 4)), rates)
    chances = sigmoid(logits)

    def f1(named):
        return 2 * (named * chances).sum() / (named.sum() + chances.sum())

    own = f1(logits > quota_thresholds(logits, rates))
    assert own >= max(f1(chances > threshold) for threshold in np.linspace(0.1, 0.5, 9)) - 0.01
