"""Private answers: their noise, their sensitivity by search, and the bound between any two images."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.entropy import SystemEntropy
from blindsight.tagging.answer_spread import AnswerSpread, SpreadRelease
from blindsight.tagging.codebook import Codebook, Confidence, ConfidenceRelease, choose_codebook, sigmoid
from blindsight.tagging.label_graph import cooccurrence
from blindsight.tagging.label_tree import LabelTree
from blindsight.tagging.outputs import (
    CodebookAnswer,
    GaussianScores,
    LaplaceScores,
    PaperLaplace,
    TopTags,
)


def tree(c=4, n=500, seed=0):
    rng = np.random.default_rng(seed)
    return LabelTree.from_counts(cooccurrence(rng.random((n, c)) < 0.3), n)


def spread(c=4):
    rng = np.random.default_rng(0)
    return AnswerSpread(np.full(c, -1.0), rng.normal(size=(3, c)) * 2)


def book(c=4, epsilon=3.0, source=None, **options):
    return choose_codebook(source or spread(c), epsilon=epsilon, rng=np.random.default_rng(0), **options)


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
    clipped = np.clip(np.vstack([corners, np.random.default_rng(0).normal(size=(200, c)) * 9]), -b, b)
    change = clipped[:, None] - clipped[None]
    laplace = LaplaceScores(epsilon=1.0, n_labels=c, bound=b).noise
    gauss = GaussianScores(epsilon=1.0, delta=1e-6, n_labels=c, bound=b).noise
    worst = np.abs(change).sum(axis=2).max()
    assert worst == 2 * b * c
    assert laplace.sensitivity * laplace.grid >= worst
    assert math.sqrt(gauss.squared_sensitivity) * gauss.grid >= np.linalg.norm(change, axis=2).max()


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_no_two_images_differ_by_more_than_epsilon_under_laplace(epsilon):
    release = LaplaceScores(epsilon=epsilon, n_labels=3, bound=1.0)
    noise = release.noise
    here, there = np.full(3, 1.0), np.full(3, -1.0)  # the worst pair
    out = noise.release(np.tile(here, (2000, 1)), rng=np.random.default_rng(0))
    loss = (noise.log_prob(out, here) - noise.log_prob(out, there)).sum(axis=1)
    assert loss.max() <= epsilon + 1e-9
    assert loss.max() > 0.95 * epsilon  # and the budget is used
    assert release.cost.epsilon <= epsilon


def test_no_two_images_differ_by_more_than_epsilon_under_a_codebook():
    release = CodebookAnswer(epsilon=2.0, codebook=book(epsilon=2.0))
    k = len(release.codebook)
    log_prob = np.array([[float(release.noise.log_prob(out, x)) for out in range(k)] for x in range(k)])
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1.0)
    assert (log_prob.max(axis=0) - log_prob.min(axis=0)).max() <= 2.0 + 1e-12


def test_no_two_images_differ_by_more_than_epsilon_under_top_k():
    release = TopTags(epsilon=1.5, k=2, bound=3.0)
    lists = np.array(list(itertools.permutations(range(4), 2)))
    corners = np.array(list(itertools.product((-3.0, 3.0), repeat=4)))
    log_prob = np.array([release.noise.log_prob(lists, x) for x in corners])
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1.0)
    assert (log_prob.max(axis=0) - log_prob.min(axis=0)).max() <= 1.5


def test_gaussian_answers_state_their_delta():
    release = GaussianScores(epsilon=2.0, delta=1e-6, n_labels=5)
    assert release.cost.epsilon <= 2.0
    assert release.cost.delta == 1e-6
    assert release.sampler == "exact"
    out = release.answer(np.zeros((400, 5)), rng=np.random.default_rng(0)).scores
    deviation = math.sqrt(release.noise.variance) * release.noise.grid
    assert out.std() == pytest.approx(deviation, rel=0.08)


@pytest.mark.parametrize("make", [
    lambda: LaplaceScores(epsilon=1.0, n_labels=4),
    lambda: GaussianScores(epsilon=1.0, delta=1e-6, n_labels=4),
    lambda: CodebookAnswer(epsilon=1.0, codebook=book()),
])  # fmt: skip
def test_answers_at_the_edge_draw_from_the_operating_system(make):
    answers = make().answer(np.zeros((3, 4)), rng=SystemEntropy())
    assert answers.tags.shape == answers.scores.shape == (3, 4)


def test_noisy_scores_lie_on_a_coarse_grid():
    release = LaplaceScores(epsilon=1.0, n_labels=4)
    out = release.answer(np.random.default_rng(0).normal(size=(50, 4)), rng=np.random.default_rng(0)).scores
    assert (out / release.noise.grid == np.rint(out / release.noise.grid)).all()


def test_with_a_large_budget_the_codebook_names_the_model_s_own_tags():
    codebook = book(epsilon=30.0, source=tree())
    labels = tree().sample(300, rng=np.random.default_rng(1))
    logits = np.where(labels > 0, 6.0, -6.0)
    answers = CodebookAnswer(epsilon=30.0, codebook=codebook).answer(logits, rng=np.random.default_rng(2))
    assert (answers.tags == labels).all(axis=1).mean() > 0.97


def test_codebook_sizes_grow_with_the_budget():
    sizes = [len(book(6, epsilon=e)) for e in (1.0, 4.0, 9.0)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_codebook_depends_on_released_values_only():
    one, two = book(epsilon=4.0), book(epsilon=4.0)
    np.testing.assert_array_equal(one.words, two.words)
    for values in (one.words, one.values):
        assert values.min() >= 0
        assert values.max() <= 1


def test_a_word_stands_for_the_mean_label_given_its_release():
    # By simulation of the whole channel: answers, nearest words, lies, and the mean answer of each released word.
    codebook, rng = book(epsilon=1.5), np.random.default_rng(3)
    logits = spread().sample(200_000, rng=rng)
    cells = CodebookAnswer(epsilon=1.5, codebook=codebook).noise.release(codebook.encode(logits), rng=rng)
    means = np.stack([sigmoid(logits[cells == word]).mean(axis=0) for word in range(len(codebook))])
    np.testing.assert_allclose(means, codebook.values, atol=0.03)


def test_under_a_tiny_budget_every_word_falls_back_to_the_rates():
    codebook = book(epsilon=0.01)
    assert np.ptp(codebook.values, axis=0).max() < 0.02


def test_spread_rows_lie_in_the_unit_ball_whatever_the_record():
    release = SpreadRelease(epsilon=1.0, delta=1e-6)
    logits = np.random.default_rng(0).normal(size=(200, 6)) * 10 ** np.random.default_rng(1).uniform(-2, 6, (200, 1))
    rows = release.rows(logits, np.full(6, 0.2), np.eye(6))
    moments = rows[:, :, None] * rows[:, None, :]
    upper = np.triu_indices(7)
    assert np.linalg.norm(moments[:, upper[0], upper[1]], axis=1).max() <= 2.0 + 1e-9
    assert release.noise(6).cost.epsilon <= release.cost.epsilon == 1.0
    assert release.cost.unit == "record"


def test_released_spread_finds_the_answers_main_direction():
    rng = np.random.default_rng(0)
    axis = np.array([1.0, -1.0, 1.0, 0.0, 0.0, 0.0])
    logits = -1.4 + rng.normal(size=(4000, 1)) * axis + 0.05 * rng.normal(size=(4000, 6))
    found = SpreadRelease(epsilon=1.0, delta=1e-6).release(logits, np.full(6, 0.2), np.eye(6), rng=rng)
    main = found.factor[np.argmax(np.linalg.norm(found.factor, axis=1))]
    assert abs(main @ axis) / np.linalg.norm(main) / np.linalg.norm(axis) > 0.98
    np.testing.assert_allclose(found.mean, -1.4, atol=0.2)


def test_graph_post_processing_helps_when_labels_go_together():
    rng = np.random.default_rng(0)
    topic = rng.random(4000) < 0.5
    y = np.stack([topic ^ (rng.random(4000) < 0.05) for _ in range(6)], axis=1).astype(np.uint8)
    logits = np.where(y > 0, 4.0, -4.0)
    plain = LaplaceScores(epsilon=10.0, n_labels=6, bound=4.0)
    graph = LaplaceScores(
        epsilon=10.0,
        n_labels=6,
        bound=4.0,
        tree=LabelTree.from_counts(cooccurrence(y), 4000),
        confidence=Confidence(4.0, 2.0, -4.0, 2.0),
    )
    from blindsight.evaluation.multilabel import mean_average_precision as score

    a = score(y, plain.answer(logits, rng=np.random.default_rng(1)).scores)
    b = score(y, graph.answer(logits, rng=np.random.default_rng(1)).scores)
    assert b > a + 0.02


def test_top_k_names_exactly_k_tags_and_ranks_the_rest_by_the_graph():
    conditional = np.zeros((5, 5))
    conditional[0, 4] = 0.9
    release = TopTags(epsilon=1e6, k=1, bound=5.0, conditional=conditional)
    answers = release.answer(np.array([[5.0, 0, 0, 0, 0]]), rng=np.random.default_rng(0))
    assert answers.tags[0].tolist() == [True, False, False, False, False]
    assert answers.scores[0].argsort()[-2] == 4


def test_confidence_contributions_are_bounded_whatever_the_record():
    release = ConfidenceRelease(epsilon=1.0)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 6)) * 10 ** rng.uniform(-2, 6, (200, 1))
    labels = rng.random((200, 6)) < rng.random((200, 1))
    assert np.abs(release.contributions(logits, labels)).sum(axis=1).max() <= 5.0
    spread = release.release(np.where(labels, 3.0, -4.0), labels, rng=rng)
    assert spread.on_mean == pytest.approx(3.0, abs=1.5)
    assert spread.off_mean == pytest.approx(-4.0, abs=1.5)
    assert release.cost.unit == "record"


def test_what_cannot_be_a_codebook_or_an_answer_is_refused():
    with pytest.raises(InvalidData):
        Codebook(np.array([[0.5, 2.0], [0.0, 1.0]]), np.ones(2))
    with pytest.raises(InvalidData):
        Codebook(np.zeros((1, 2)), np.ones(2))
    with pytest.raises(InvalidData):
        LaplaceScores(epsilon=1.0, n_labels=2).answer([[np.nan, 1.0]], rng=np.random.default_rng(0))
    with pytest.raises(InvalidParameter):
        LaplaceScores(epsilon=1.0, n_labels=2, bound=-1.0).answer([[0.0, 1.0]], rng=np.random.default_rng(0))
    with pytest.raises(InvalidParameter):
        PaperLaplace(epsilon=1.0, n_labels=3, sensitivity="2")


def test_sigmoid_does_not_overflow():
    assert sigmoid([-1e6, 0.0, 1e6]).tolist() == pytest.approx([0.0, 0.5, 1.0])
