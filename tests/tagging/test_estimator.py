"""PrivateTagger: what it charges, what it refuses, and that it beats the proven baseline at the same epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from blindsight.core import storage
from blindsight.core.errors import (
    BudgetExceeded,
    HostileFile,
    InvalidData,
    InvalidParameter,
    NotProven,
)
from blindsight.evaluation.multilabel import evaluate
from blindsight.privacy import Cost, Ledger
from blindsight.tagging import PrivateTagger


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(8, 30))
    x = np.abs(rng.normal(size=(2600, 30))).astype(np.float32)
    scores = (x - x.mean(axis=0)) @ w.T
    y = (scores > np.quantile(scores, 0.7, axis=0)).astype(np.uint8)
    return x[:2000], y[:2000], x[2000:], y[2000:]


def fitted(problem, **options):
    x, y, _, _ = problem
    defaults = {"epsilon": 8.0, "training_epsilon": 2.0, "random_state": 0}
    return PrivateTagger(**{**defaults, **options}).fit(x, y)


def measure(tagger, problem):
    _, _, x, y = problem
    answers = tagger.answer(x)
    return evaluate(y, answers.scores, decisions=answers.tags)


def test_codebook_beats_clipped_laplace_at_the_same_proven_epsilon(problem):
    ours = measure(fitted(problem), problem)
    for postprocess in (True, False):
        p2 = measure(fitted(problem, release="laplace", postprocess=postprocess), problem)
        assert ours.mAP > p2.mAP + 0.08
        assert ours.OF1 > p2.OF1 + 0.08


@pytest.mark.parametrize("release", ["codebook", "laplace", "gaussian", "top-k"])
def test_every_release_answers_with_tags_and_scores(problem, release):
    tagger = fitted(problem, release=release, epochs=2)
    tags = tagger.predict(problem[2][:5])
    assert tags.shape == (5, 8)
    assert set(np.unique(tags)) <= {0, 1}
    assert tagger.decision_function(problem[2][:5]).shape == (5, 8)
    assert tagger.guarantee_.unit == "query"
    assert tagger.guarantee_.epsilon <= 8.0
    assert tagger.guarantee_.delta == (1e-6 if release == "gaussian" else 0.0)


def test_guarantees_name_both_units(problem):
    tagger = fitted(problem, epochs=2)
    training = tagger.training_guarantee_
    assert training.unit == "record"
    # 2 for DP-SGD and the centre, 1 for the counts, 0.5 for the spread of answers.
    assert training.epsilon == pytest.approx(3.5, abs=0.01)
    assert training.delta == pytest.approx(1e-5)
    assert tagger.guarantee_.also == (training.cost,)


def test_a_public_graph_costs_nothing(problem):
    _, y, _, _ = problem
    tagger = fitted(problem, graph=(y.T.astype(float) @ y), epochs=2, release="top-k")
    assert tagger.training_guarantee_.epsilon == pytest.approx(2.0, abs=0.01)
    np.testing.assert_array_equal(tagger.learned_.graph.counts, y.T.astype(float) @ y)


def test_counts_are_noisy_under_proven_and_exact_under_paper(problem):
    x, y, _, _ = problem
    exact = y.T.astype(float) @ y
    assert not np.array_equal(fitted(problem, epochs=2, max_labels=8).learned_.graph.counts, exact)
    paper = PrivateTagger(calibration="paper", epochs=2, hidden=8, random_state=0).fit(x, y)
    np.testing.assert_array_equal(paper.learned_.graph.counts, exact)


def test_training_is_charged_per_record_before_it_starts(problem, tmp_path):
    x, y, _, _ = problem
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=4.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    PrivateTagger(training_epsilon=2.0, epochs=2, random_state=0).fit(x, y, ledger=ledger)
    started = []
    with pytest.raises(BudgetExceeded):
        PrivateTagger(training_epsilon=2.0, epochs=2, random_state=0).fit(
            x, y, ledger=ledger, progress=lambda *step: started.append(step)
        )
    assert not started


def test_answers_are_charged_before_release_and_refused_when_spent(problem, tmp_path):
    tagger = fitted(problem, epochs=2, epsilon=2.0)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=10.0, unit="query"))
    tagger.predict(problem[2][:4], ledger=ledger)
    with pytest.raises(BudgetExceeded):
        tagger.predict(problem[2][:2], ledger=ledger)
    tagger.predict(problem[2][:1], ledger=ledger)
    assert ledger.balance("query").remaining.epsilon == pytest.approx(0.0, abs=1e-9)
    assert tagger.answered_ == 5


def test_a_cap_on_queries_holds_without_a_ledger(problem):
    tagger = fitted(problem, epochs=2, max_queries=3)
    tagger.predict(problem[2][:3])
    with pytest.raises(BudgetExceeded, match="only 0 of 3"):
        tagger.predict(problem[2][:1])


def test_paper_calibration_has_a_claim_but_no_proof_and_no_ledger_takes_it(problem, tmp_path):
    x, y, x2, _ = problem
    tagger = PrivateTagger(10.0, calibration="paper", bound_factor=0.8, hidden=8, epochs=2, random_state=0).fit(x, y)
    assert tagger.guarantee_.claimed == pytest.approx(12.5)
    assert math.isinf(tagger.guarantee_.epsilon)
    assert math.isinf(tagger.training_guarantee_.epsilon)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=100.0, unit="query"))
    with pytest.raises(NotProven):
        tagger.predict(x2, ledger=ledger)


@pytest.mark.parametrize("corollary", [1, 2])
def test_corollaries_bound_weights_and_features(problem, corollary):
    x, y, _, _ = problem
    tagger = PrivateTagger(
        10.0,
        calibration="paper",
        corollary=corollary,
        gamma=2.0,
        factor=0.1,
        hidden=8,
        epochs=2,
        label_vectors="random",
        random_state=0,
    ).fit(x, y)
    weights, rows = tagger.learned_.weights, tagger.learned_.scaling(x)
    if corollary == 1:
        assert weights.max() <= 4 * 0.1 + 1e-6
        assert np.abs(rows).min() >= 0.5
        assert tagger.training_guarantee_.claimed == pytest.approx(1.0)
    else:
        assert np.abs(weights).min() >= 0.5 - 1e-6
        assert rows.max() <= 4 * 0.1 + 1e-6


def test_robust_training_shrinks_the_weights(problem):
    x, y, _, _ = problem
    sizes = [
        np.linalg.norm(
            PrivateTagger(calibration="paper", robust=r, train_noise=False, hidden=32, epochs=5, random_state=0)
            .fit(x, y)
            .learned_.weights
        )
        for r in (0.0, 0.1)
    ]
    assert sizes[1] < 0.5 * sizes[0]


def test_graph_head_trains_privately_too(problem):
    tagger = fitted(problem, head="gcn", hidden=16, epochs=2)
    assert "gcn" in tagger.training_guarantee_.mechanism
    assert np.isfinite(tagger.logits(problem[2])).all()


def test_learning_curve_and_validation(problem):
    x, y, x2, y2 = problem
    tagger = PrivateTagger(training_epsilon=None, hidden=32, epochs=2, random_state=0)
    tagger.fit(x, y, validation=(x2, y2))
    assert len(tagger.curves_.loss) == len(tagger.curves_.validation_map) == 2
    assert math.isinf(tagger.training_guarantee_.epsilon)
    assert tagger.guarantee_.epsilon == 10.0


def test_own_codebooks_are_used(problem):
    words = np.vstack([np.zeros(8), np.eye(8)])
    tagger = fitted(problem, codebook=words, epochs=2)
    assert len(tagger.release_.codebook) == 9
    with pytest.raises(InvalidData, match="columns"):
        fitted(problem, codebook=np.eye(3), epochs=2)


@pytest.mark.parametrize(
    "bad",
    [
        {"epsilon": 0.0},
        {"calibration": "honest"},
        {"release": "shout"},
        {"codebook": "none"},
        {"training_epsilon": -1.0},
        {"head": "tail"},
        {"corollary": 3, "calibration": "paper"},
        {"max_queries": -1},
    ],
)
def test_bad_parameters_are_refused(problem, bad):
    x, y, _, _ = problem
    with pytest.raises(InvalidParameter):
        PrivateTagger(**bad).fit(x[:50], y[:50])


def test_bad_data_are_refused(problem):
    x, y, _, _ = problem
    with pytest.raises(InvalidData):
        PrivateTagger().fit(x[:10], y[:9])
    with pytest.raises(InvalidData):
        PrivateTagger().fit(np.full((3, 2), np.nan), y[:3])
    with pytest.raises(InvalidData, match="features of the training data"):
        fitted(problem, epochs=2).predict(x[:, :5])


def test_a_file_whose_guarantee_was_edited_is_refused(problem, tmp_path):
    path = tmp_path / "tagger.safetensors"
    fitted(problem, epochs=2).save(path)
    arrays, fields = storage.load(path, kind="tagger")
    fields["params"]["epsilon"] = 50.0  # weaker noise, same promise
    storage.save(path, kind="tagger", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile, match="guarantee"):
        PrivateTagger.load(path)


@pytest.mark.parametrize("spoil", ["weights", "words", "classes", "params"])
def test_broken_files_are_refused(problem, tmp_path, spoil):
    path = tmp_path / "tagger.safetensors"
    fitted(problem, epochs=2).save(path)
    arrays, fields = storage.load(path, kind="tagger")
    if spoil == "weights":
        arrays["weights"] = arrays["weights"][:, :3]
    elif spoil == "words":
        del arrays["words"]
    elif spoil == "classes":
        fields["classes"] = fields["classes"][:2]
    else:
        fields["params"]["nonsense"] = 1
    storage.save(path, kind="tagger", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile):
        PrivateTagger.load(path)


def test_public_features_replace_the_released_centre(problem, tmp_path):
    x, _, x2, _ = problem
    tagger = fitted(problem, public=x2, public_components=10, epochs=2)
    assert tagger.learned_.weights.shape == (8, 11)
    assert tagger.training_guarantee_.epsilon == pytest.approx(3.5, abs=0.01)
    path = tmp_path / "tagger.safetensors"
    tagger.save(path)
    np.testing.assert_array_equal(PrivateTagger.load(path).logits(x[:5]), tagger.logits(x[:5]))
    with pytest.raises(InvalidData, match="public"):
        fitted(problem, public=x2[:, :4], epochs=2)
