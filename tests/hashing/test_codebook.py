"""The codebook hasher: its epsilon by enumeration, its ranking, and what it wins over flipped
bits.
"""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits

from blindsight.core import codes
from blindsight.core.errors import HostileFile, InvalidParameter, TooFewRecords
from blindsight.evaluation import retrieval
from blindsight.hashing import ITQ, CodebookHasher, PHashing
from blindsight.privacy import Cost, Ledger

DATA = load_digits()
X, Y = DATA.data, DATA.target
STORED, QUERIES = slice(300, 1000), slice(0, 300)


def precision(hasher, released=None) -> float:
    released = hasher.transform(X[STORED]) if released is None else released
    found = hasher.scores(X[QUERIES], released)
    return float(
        np.nanmean(retrieval.ranked_precisions(lambda rows: found[rows], Y[QUERIES], Y[STORED]))
    )


@pytest.mark.parametrize("mechanism", ["subset", "k-ary"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_epsilon_of_a_released_cell_is_exact_by_enumerating_neighbours(mechanism, epsilon):
    k = 6
    hasher = CodebookHasher(
        epsilon=epsilon, n_cells=k, mechanism=mechanism, random_state=0, learned_from="public"
    ).fit(X)
    size = hasher.mechanism_.size
    sets = np.array([[v in c for v in range(k)] for c in itertools.combinations(range(k), size)])
    log_prob = np.array([hasher.mechanism_.log_prob(sets, np.full(len(sets), v)) for v in range(k)])
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1, atol=1e-12)
    worst = max((log_prob[a] - log_prob[b]).max() for a, b in itertools.permutations(range(k), 2))
    assert worst == pytest.approx(epsilon, abs=1e-9)
    assert hasher.guarantee_.cost == Cost(epsilon=epsilon, unit="record")
    members = codes.unpack(hasher.transform(X[:50]), k)
    assert (members.sum(axis=1) == size).all()


def test_at_record_epsilon_eight_it_keeps_what_flipped_bits_lose():
    flipped = PHashing(
        ITQ(32, random_state=0), epsilon=8.0, random_state=1, learned_from="public"
    ).fit(X)
    bits = retrieval.mean_average_precision(
        flipped.query(X[QUERIES]), flipped.transform(X[STORED]), Y[QUERIES], Y[STORED]
    )
    cells = precision(CodebookHasher(epsilon=8.0, random_state=1, learned_from="public").fit(X))
    supervised = precision(
        CodebookHasher(epsilon=8.0, supervised=True, random_state=1, learned_from="public").fit(
            X, Y
        )
    )
    assert bits < 0.2
    assert cells > 0.5
    assert supervised > 0.9


def test_supervised_scores_are_probabilities_of_a_match():
    hasher = CodebookHasher(
        epsilon=4.0, supervised=True, random_state=0, learned_from="public"
    ).fit(X[STORED], Y[STORED])
    released = hasher.transform(X[STORED])
    scores = hasher.scores(X[QUERIES], released).ravel()
    matches = (Y[QUERIES, None] == Y[None, STORED]).ravel()
    assert scores.min() >= 0
    assert scores.max() <= 1
    likely = scores > np.quantile(scores, 0.95)
    assert scores[likely].mean() == pytest.approx(matches[likely].mean(), abs=0.12)
    assert scores.mean() == pytest.approx(matches.mean(), abs=0.02)


def test_more_budget_buys_more_cells():
    chosen = [
        CodebookHasher(epsilon=e, random_state=0, learned_from="public").fit(X).n_cells_
        for e in (1.0, 4.0, 16.0)
    ]
    assert chosen == [4, 16, 150]


def test_learning_from_private_images_is_composed_and_charged(tmp_path):
    hasher = CodebookHasher(
        epsilon=8.0, learned_from="private", learning_share=0.25, random_state=0
    )
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward")
    ledger.grant(Cost(epsilon=8.0, delta=1e-5, unit="record"))
    hasher.fit(X, ledger=ledger)
    assert ledger.balance("record").spent.epsilon == pytest.approx(2.0, rel=1e-2)
    hasher.transform(X, ledger=ledger)
    assert ledger.balance("record").spent.epsilon == pytest.approx(8.0, rel=1e-2)
    assert 7.9 < hasher.guarantee_.epsilon <= 8.0
    assert hasher.guarantee_.delta == 1e-5
    assert hasher.guarantee_.model == "central"


@pytest.mark.parametrize("source", ["public", "private"])
def test_learning_and_releasing_at_once_or_one_by_one_states_the_same(source):
    at_once = CodebookHasher(epsilon=8.0, random_state=0, learned_from=source)
    released = at_once.fit_transform(X)
    one_by_one = CodebookHasher(epsilon=8.0, random_state=0, learned_from=source).fit(X)
    np.testing.assert_array_equal(one_by_one.transform(X), released)
    assert one_by_one.guarantee_ == at_once.guarantee_
    assert CodebookHasher().learned_from == "private"


def test_what_leaves_of_private_images_lies_on_a_coarse_grid():
    """The low bits of a float's noise would tell what was added to it."""
    hasher = CodebookHasher(epsilon=4.0, n_cells=8, learned_from="private").fit(X)
    (planned,) = (item for item in hasher.guarantee_.releases if item.what == "mean")
    steps = hasher.codebook_.embedding.centre.astype(float) * len(X) / planned.mechanism.grid
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert all(item.mechanism.sampler == "exact" for item in hasher.guarantee_.releases)


def test_private_labels_need_a_public_label_space():
    settings = {"epsilon": 8.0, "supervised": True, "learned_from": "private", "random_state": 0}
    assert math.isinf(CodebookHasher(**settings).fit(X, Y).guarantee_.epsilon)
    named = CodebookHasher(**settings, classes=range(12)).fit(X, Y)
    assert named.guarantee_.epsilon == pytest.approx(8.0, rel=1e-2)
    # Neither the kind of labels nor how many classes occur may be read off the private labels.
    odd = Y.copy()
    odd[0] = 99
    fewer = CodebookHasher(**settings, classes=range(12)).fit(X, np.minimum(odd, 3))
    assert fewer.released_["coefficients"].shape == named.released_["coefficients"].shape
    assert fewer.guarantee_ == named.guarantee_


def test_private_cells_still_find_something():
    hasher = CodebookHasher(epsilon=16.0, learned_from="private", random_state=0).fit(X)
    assert precision(hasher) > 0.25


def test_multi_label_cells_rank_by_a_shared_label():
    labels = np.stack([Y % 2 == 0, Y < 5, Y >= 8], axis=1).astype(int)
    hasher = CodebookHasher(
        epsilon=16.0, supervised=True, n_cells=16, random_state=0, learned_from="public"
    ).fit(X[STORED], labels[STORED])
    scores = hasher.scores(X[QUERIES], hasher.transform(X[STORED]))
    found = retrieval.ranked_precisions(lambda rows: scores[rows], labels[QUERIES], labels[STORED])
    chance = ((labels[QUERIES] @ labels[STORED].T) > 0).mean()
    assert np.nanmean(found) > chance + 0.2


def test_without_noise_the_posterior_is_the_true_cell():
    hasher = CodebookHasher(epsilon=60.0, n_cells=8, random_state=0, learned_from="public").fit(X)
    np.testing.assert_allclose(
        hasher.posterior(hasher.transform(X)), np.eye(8)[hasher.assign(X)], atol=1e-6
    )


def test_a_file_with_a_better_guarantee_than_its_numbers_is_refused(tmp_path):
    from blindsight.core import storage

    hasher = CodebookHasher(epsilon=8.0, n_cells=8, random_state=0, learned_from="public").fit(X)
    hasher.save(tmp_path / "book")
    arrays, fields = storage.load(tmp_path / "book", kind="hasher")
    fields["guarantee"]["epsilon"] = 7.9
    storage.save(tmp_path / "book", kind="hasher", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile):
        CodebookHasher.load(tmp_path / "book")


@pytest.mark.parametrize(
    "bad", [{"n_cells": 1}, {"n_cells": 10_000}, {"epsilon": 0.0}, {"learning_share": 1.0}]
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        CodebookHasher(**bad, learned_from="public").fit(X)


def test_chance_level_is_what_tiny_budgets_give():
    assert (
        precision(
            CodebookHasher(epsilon=0.01, n_cells=10, random_state=0, learned_from="public").fit(X)
        )
        < 0.15
    )
    assert math.isfinite(
        CodebookHasher(epsilon=0.01, n_cells=10, learned_from="public").fit(X).guarantee_.epsilon
    )


def test_few_private_images_are_warned_of_by_their_number_alone():
    few = CodebookHasher(epsilon=8.0, random_state=0)
    with pytest.warns(TooFewRecords, match=r"250 protected images.*learned_from='public'"):
        few.fit(X[:250])
    with warnings.catch_warnings():
        warnings.simplefilter("error", TooFewRecords)
        CodebookHasher(epsilon=8.0, random_state=0, learned_from="public").fit(X[:250])
        CodebookHasher(epsilon=400.0, random_state=0).fit(X)  # hardly any noise
