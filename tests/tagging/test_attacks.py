"""Black-box attacks on answers: they succeed where nothing protects, and are held to the bound
where something does.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.tagging.attacks import distinguish_images, largest_auc, membership_from_answers
from blindsight.audit.methods.tagging import (
    average_answers,
    repeated_queries,
)
from blindsight.privacy import Cost, Ledger
from blindsight.tagging import (
    P2MLGCN,
    CodebookAnswers,
    DPTraining,
    GraphHead,
    LaplaceAnswers,
    PrivateTagger,
    Schedule,
    Tagger,
)
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.paper import PaperLaplace

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
HEAD, LONG = GraphHead(hidden=64), Schedule(epochs=60, learning_rate=5e-3)
LABELS = 6


@pytest.fixture(scope="module")
def records():
    """Records with labels that cannot be predicted: whoever fits them has memorised them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 200)).astype(np.float32)
    y = (rng.random((240, LABELS)) < 0.4).astype(np.uint8)
    included = np.arange(240) < 120
    return x, y, included


def paper(records, **options):
    x, y, included = records
    rng = np.random.default_rng(1)  # a generator: every answer draws new noise
    return P2MLGCN(8.0, head=HEAD, schedule=LONG, random_state=rng, **options).fit(
        x[included], y[included]
    )


def noisy(way, n_labels):
    """The release's own noise on logits, outside the door: an attacker's laboratory."""
    return lambda logits, rng: (
        way.read(way.noise(n_labels).release(way.value(logits), rng=rng)).scores
    )


def test_membership_shows_in_outputs_without_protection(records):
    x, y, included = records
    tagger = Tagger(head=HEAD, schedule=LONG, random_state=0).fit(x[included], y[included])
    assert membership_from_answers(tagger.logits, x, y, included).value > 0.95


@pytest.mark.parametrize("sensitivity", ["1", "C"])
def test_membership_shows_through_paper_noise_when_asked_again(records, sensitivity):
    x, y, included = records
    tagger = paper(records, sensitivity=sensitivity)
    again = membership_from_answers(tagger.decision_function, x, y, included, repeats=100).value
    assert again > 0.9


def test_private_training_holds_membership_to_its_bound(records):
    x, y, included = records
    tagger = PrivateTagger(DPTraining(epsilon=0.8), classes=LABELS, random_state=2).fit(
        x[included], y[included]
    )
    cost = tagger.guarantee_.cost
    bound = largest_auc(cost.epsilon, cost.delta)
    assert bound < 0.75
    # Exact answers are the strongest view there is, and they are what leaves. 120 against 120:
    # deviation 0.04.
    assert membership_from_answers(tagger.decision_function, x, y, included).value < bound


def test_averaging_recovers_the_outputs_under_paper_calibration(records):
    x, _, _ = records
    tagger = paper(records)
    once = repeated_queries(tagger.decision_function, x[:20], tagger.logits(x[:20]), repeats=1)
    often = repeated_queries(tagger.decision_function, x[:20], tagger.logits(x[:20]), repeats=300)
    assert often.value > 0.99
    assert often.value > once.value


def test_a_ledger_ends_the_averaging(records, tmp_path):
    x, y, included = records
    made = PrivateTagger(DPTraining(steps=2), LaplaceAnswers(2.0), classes=LABELS)
    tagger = made.fit(x[included], y[included])
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=10.0, unit="query"))
    average, answered = average_answers(
        lambda rows: tagger.decision_function(rows, ledger=ledger), x[:1], repeats=100
    )
    assert answered == 100
    one = tagger.decision_function(x[:1], ledger=ledger)
    np.testing.assert_allclose(np.ravel(average), np.ravel(one), rtol=1e-9)
    assert ledger.balance("query").spent.epsilon == 2.0, "one answer, paid once"


def test_paper_noise_is_refuted_and_proven_noise_is_not():
    here, there = np.full(4, 5.0), np.full(4, -5.0)
    printed = PaperLaplace(epsilon=1.0, n_labels=4)
    broken = distinguish_images(
        lambda z, rng: printed.answer(z, rng=rng).scores, here, there, trials=4000
    )
    assert broken.epsilon > printed.claimed
    for way in (
        LaplaceAnswers(1.0),
        CodebookAnswers(1.0, words=AnswerCodebook(np.eye(4), np.ones(4))),
    ):
        held = distinguish_images(noisy(way, 4), here, there, trials=4000)
        assert held.epsilon <= 1.0  # false alarms at 5%, here with a fixed seed


def test_repeats_cost_what_composition_says():
    # Two words, epsilon 0.5 a query: ten answers are told apart beyond one answer's epsilon, within
    # ten's.
    way = CodebookAnswers(0.5, words=AnswerCodebook(np.eye(2), np.ones(2)))
    audited = distinguish_images(
        noisy(way, 2), np.array([5.0, -5.0]), np.array([-5.0, 5.0]), trials=4000, repeats=10
    )
    assert 0.5 < audited.epsilon <= 5.0


def test_largest_auc_by_hand():
    assert largest_auc(0.0) == pytest.approx(0.5, abs=1e-4)
    # Epsilon 1: the curve's corner is at 1/(1+e).
    corner = 1 / (1 + np.e)
    assert largest_auc(1.0) == pytest.approx(
        corner * (1 - corner) / 2 + (1 - corner) * (2 - corner) / 2, abs=1e-4
    )
    assert largest_auc(np.inf) == pytest.approx(1.0, abs=1e-3)
