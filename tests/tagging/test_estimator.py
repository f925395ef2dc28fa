"""PrivateTagger: one total, exact answers by default, noise per image where asked for, and what it
refuses.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from blindsight.core import storage
from blindsight.core.errors import (
    BudgetExceeded,
    HostileFile,
    InvalidData,
    InvalidParameter,
    NotProven,
)
from blindsight.evaluation.scores import evaluate
from blindsight.privacy import Cost, Ledger
from blindsight.tagging import (
    CodebookAnswers,
    DPTraining,
    Exact,
    FromLabels,
    LaplaceAnswers,
    Ordinary,
    Prior,
    PrivateTagger,
    Untrained,
)
from blindsight.tagging.answer_codebook import AnswerCodebook

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
QUICK = DPTraining(epsilon=2.0, steps=4)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(8, 30))
    x = np.abs(rng.normal(size=(2600, 30))).astype(np.float32)
    scores = (x - x.mean(axis=0)) @ w.T
    y = (scores > np.quantile(scores, 0.7, axis=0)).astype(np.uint8)
    return x[:2000], y[:2000], x[2000:], y[2000:], Prior(w / 5, -w @ x.mean(axis=0) / 5)


def fitted(problem, training=QUICK, answers=Exact(), **options):  # noqa: B008
    x, y, *_ = problem
    return PrivateTagger(training, answers, **{"classes": 8, "random_state": 0, **options}).fit(
        x, y
    )


def measure(tagger, problem):
    _, _, x, y, _ = problem
    answers = tagger.answer(x)
    return evaluate(y, answers.scores, decisions=answers.tags)


def test_everything_learned_is_in_one_total(problem):
    for answers, parts in ((Exact(), 3), (CodebookAnswers(8.0, k=8), 4)):
        tagger = fitted(problem, answers=answers)
        assert len(tagger.guarantee_.releases) == parts
        assert 1.98 < tagger.guarantee_.epsilon <= 2.0
        assert tagger.guarantee_.delta == 1e-5
        assert tagger.guarantee_.unit == "record"
        assert tagger.guarantee_.sampler == "exact"


def test_public_images_spare_the_centre(problem):
    tagger = fitted(problem, public=problem[2])
    assert {item.what for item in tagger.guarantee_.releases} == {"label counts", "gradient"}


def test_exact_answers_are_the_model_s_own_and_cost_nothing_more(problem, tmp_path):
    x, y, asked, _, _ = problem
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=2.0, delta=1e-5, unit="record", neighbours="add or remove one"))
    tagger = PrivateTagger(QUICK, classes=8).fit(x, y, ledger=ledger)
    for _ in range(3):
        np.testing.assert_array_equal(
            tagger.decision_function(asked, ledger=ledger), tagger.logits(asked)
        )
    assert len(list(ledger.entries())) == 2  # the grant, and training
    assert tagger.answer_guarantee_ is None
    assert tagger.query_cost(5).epsilon == 0


def test_training_is_charged_to_a_budget_for_replaced_records_too(problem, tmp_path):
    x, y, *_ = problem
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=8.0, delta=1e-4, unit="record"))
    tagger = PrivateTagger(QUICK, classes=8).fit(x, y, ledger=ledger)
    spent = ledger.balance("record").spent
    assert spent.delta == tagger.guarantee_.delta
    # Twice the sensitivity: above twice epsilon, and below what group privacy pays in delta for it.
    assert 2 * tagger.guarantee_.epsilon < spent.epsilon < 2.5 * tagger.guarantee_.epsilon


def test_training_is_charged_per_record_before_it_starts(problem, tmp_path):
    x, y, *_ = problem
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=3.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    PrivateTagger(QUICK, classes=8).fit(x, y, ledger=ledger)
    started = []
    with pytest.raises(BudgetExceeded):
        PrivateTagger(QUICK, classes=8).fit(
            x, y, ledger=ledger, progress=lambda *step: started.append(step)
        )
    assert not started


def test_more_epsilon_learns_more_and_a_prior_helps_where_epsilon_is_small(problem):
    scores = {
        (epsilon, prior is not None): fitted(
            problem, DPTraining(epsilon=epsilon), prior=prior
        ).score(*problem[2:4])
        for epsilon in (0.05, 4.0)
        for prior in (None, problem[4])
    }
    assert scores[4.0, False] > scores[0.05, False] + 0.1
    assert scores[0.05, True] > scores[0.05, False] + 0.1


def test_public_knowledge_alone_needs_no_record(problem):
    tagger = PrivateTagger.from_public(8, problem[4])
    assert tagger.guarantee_.epsilon == 0
    assert tagger.score(*problem[2:4]) > 0.9
    with pytest.raises(InvalidParameter, match="from_public"):
        PrivateTagger(Untrained(), classes=8).fit(*problem[:2])


def test_codebook_beats_clipped_laplace_at_the_same_proven_epsilon(problem):
    training = DPTraining(epsilon=4.0)
    ours = measure(fitted(problem, training, CodebookAnswers(8.0)), problem)
    p2 = measure(fitted(problem, training, LaplaceAnswers(8.0)), problem)
    assert ours.mAP > p2.mAP + 0.08
    assert ours.OF1 > p2.OF1 + 0.08


@pytest.mark.parametrize(
    "answers",
    [CodebookAnswers(8.0, k=8), LaplaceAnswers(8.0)],
)
def test_every_noisy_answer_has_tags_scores_probabilities_and_a_promise_per_query(problem, answers):
    tagger = fitted(problem, answers=answers)
    asked = problem[2][:5]
    assert set(np.unique(tagger.predict(asked))) <= {0, 1}
    assert tagger.decision_function(asked).shape == (5, 8)
    chances = tagger.predict_proba(asked)
    assert chances.min() >= 0 and chances.max() <= 1
    assert tagger.answer_guarantee_.unit == "query"
    assert tagger.answer_guarantee_.epsilon <= 8.0
    assert tagger.answer_guarantee_.delta == 0.0


def test_every_image_has_one_answer_and_one_charge_covers_them_all(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(2.0), random_state=None)
    asked = problem[2]
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    with pytest.raises(BudgetExceeded):
        tagger.predict(asked[:2], ledger=ledger)
    ledger.grant(Cost(epsilon=2.0, unit="query"))
    first = tagger.predict(asked[:300], ledger=ledger)
    tagger.predict(asked[300:600], ledger=ledger)
    np.testing.assert_array_equal(tagger.predict(asked[:300][::-1], ledger=ledger), first[::-1])
    assert ledger.balance("query").spent.epsilon == pytest.approx(2.0)


def test_noise_is_not_averaged_away_by_asking_about_one_image_often(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(1.0), random_state=None)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=1.0, unit="query"))
    image = problem[2][:1]
    told = [tagger.decision_function(image, ledger=ledger) for _ in range(20)]
    told.append(tagger.decision_function(np.repeat(image, 380, axis=0), ledger=ledger))
    assert len(np.unique(np.concatenate(told), axis=0)) == 1
    assert ledger.balance("query").spent.epsilon == pytest.approx(1.0)


def test_answers_given_at_the_same_time_are_one_answer(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(1.0), random_state=None)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=100.0, unit="query"))
    together = Barrier(8)

    def ask(_):
        together.wait()
        return tagger.decision_function(problem[2][:1], ledger=ledger)

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(8)))
    assert len(np.unique(np.concatenate(told), axis=0)) == 1
    assert ledger.balance("query").spent.epsilon == pytest.approx(1.0)


def test_a_pickled_copy_gives_the_same_answers_and_is_charged_no_more(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(1.0), random_state=None)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=100.0, unit="query"))
    asked = problem[2][:5]
    first = tagger.decision_function(asked, ledger=ledger)
    joblib.dump(tagger, tmp_path / "tagger.joblib")
    copies = [joblib.load(tmp_path / "tagger.joblib") for _ in range(2)]
    # Images that nobody asked about before the copies were made, too: two copies must not give
    # two answers under one charge.
    others = [copy.decision_function(problem[2][5:9], ledger=ledger) for copy in (tagger, *copies)]
    for copy in copies:
        np.testing.assert_array_equal(
            copy.decision_function(asked[::-1], ledger=ledger), first[::-1]
        )
    assert len(np.unique(np.stack(others), axis=0)) == 1
    assert ledger.balance("query").spent.epsilon == pytest.approx(1.0)


def test_a_tagger_from_a_file_is_charged_anew(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(1.0), random_state=None)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=100.0, unit="query"))
    tagger.predict(problem[2][:1], ledger=ledger)
    tagger.save(tmp_path / "tagger.safetensors")
    PrivateTagger.load(tmp_path / "tagger.safetensors").predict(problem[2][:1], ledger=ledger)
    assert ledger.balance("query").spent.epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("change", ["with_answers", "fit"])
def test_answers_that_were_paid_for_in_one_way_pay_for_none_in_another(problem, tmp_path, change):
    tagger = fitted(problem, answers=LaplaceAnswers(1.0), random_state=None)
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=9.5, unit="query"))
    tagger.predict(problem[2][:1], ledger=ledger)
    dear = LaplaceAnswers(9.0)
    tagger = (
        tagger.with_answers(dear)
        if change == "with_answers"
        else tagger.set_params(answers=dear).fit(*problem[:2])
    )
    with pytest.raises(BudgetExceeded):
        tagger.predict(problem[2][1:2], ledger=ledger)


def test_what_is_charged_does_not_depend_on_which_private_images_are_equal(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(2.0), random_state=None)
    different, equal = problem[2][:4], np.repeat(problem[2][:1], 4, axis=0)
    spent = []
    for number, asked in enumerate((different, equal)):
        ledger = Ledger(tmp_path / f"{number}.db", dataset="answers")
        ledger.grant(Cost(epsilon=100.0, unit="query"))
        for _ in range(3):
            tagger.predict(asked, ledger=ledger)
        spent.append(ledger.balance("query").spent.epsilon)
    assert spent[0] == spent[1] == pytest.approx(2.0)


def test_answers_without_a_ledger_do_not_make_later_ones_cheaper(problem, tmp_path):
    tagger = fitted(problem, answers=LaplaceAnswers(2.0), random_state=None)
    for _ in range(3):
        tagger.predict(problem[2][:1])
    ledger = Ledger(tmp_path / "ledger.db", dataset="answers")
    ledger.grant(Cost(epsilon=2.0, unit="query"))
    tagger.predict(problem[2][:1], ledger=ledger)
    assert ledger.balance("query").spent.epsilon == pytest.approx(2.0)


def test_names_read_off_the_records_prove_nothing(problem, tmp_path):
    x, y, *_ = problem
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=9.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    for classes in (None, FromLabels(tuple("abcdefgh"))):
        tagger = fitted(problem, classes=classes)
        assert math.isinf(tagger.guarantee_.epsilon)
        assert "classes=" in tagger.guarantee_.card()
        with pytest.raises(NotProven):
            PrivateTagger(QUICK, classes=classes).fit(x, y, ledger=ledger)


def test_ordinary_training_learns_best_and_promises_nothing_per_record(problem):
    tagger = fitted(problem, Ordinary())
    assert math.isinf(tagger.guarantee_.epsilon)
    assert tagger.score(*problem[2:4]) > fitted(problem, DPTraining(epsilon=4.0)).score(
        *problem[2:4]
    )
    assert fitted(problem, Ordinary(steps=5), LaplaceAnswers(3.0)).answer_guarantee_.epsilon <= 3.0


def test_the_learning_curve_is_of_images_that_are_not_learned_from_and_stays_with_their_owner(
    problem, tmp_path
):
    x, y, asked, truth, _ = problem
    with_curve = PrivateTagger(QUICK, classes=8, random_state=0).fit(
        x, y, validation=(asked, truth)
    )
    curve = with_curve.owner_only_["learning curve"]
    assert len(curve) == 4
    assert curve[-1] == pytest.approx(with_curve.score(asked, truth))
    with_curve.save(tmp_path / "with")
    fitted(problem).save(tmp_path / "without")
    assert (tmp_path / "with").read_bytes() == (tmp_path / "without").read_bytes()
    with pytest.raises(InvalidData, match="validation"):
        PrivateTagger(QUICK, classes=8).fit(x, y, validation=(asked, truth[:3]))


def test_it_is_a_scikit_learn_estimator(problem):
    x, y, *_ = problem
    tagger = PrivateTagger(QUICK, classes=8, random_state=0)
    assert cross_val_score(tagger, x[:600], y[:600], cv=3).shape == (3,)
    dense, thin = tagger.fit(x, y).logits(x[:5]), tagger.fit(x, sparse.csr_matrix(y)).logits(x[:5])
    np.testing.assert_array_equal(dense, thin)
    with pytest.raises(NotFittedError):
        PrivateTagger().predict(x)


def test_folds_may_be_fitted_in_other_processes(problem):
    x, y, *_ = problem
    tagger = PrivateTagger(QUICK, LaplaceAnswers(8.0), classes=8, random_state=0)
    found = cross_validate(
        tagger, x[:300], y[:300], cv=2, n_jobs=2, return_estimator=True, error_score="raise"
    )
    assert [model.n_labels_ for model in found["estimator"]] == [8, 8]


def test_settings_of_training_are_parameters(problem):
    tagger = PrivateTagger(DPTraining(epsilon=1.0), classes=8)
    assert tagger.get_params(deep=True)["training__epsilon"] == 1.0
    assert "training__epsilon" not in tagger.get_params(deep=False)
    changed = clone(tagger).set_params(training__epsilon=3.0, training__steps=4)
    assert changed.training == DPTraining(epsilon=3.0, steps=4)
    assert tagger.training == DPTraining(epsilon=1.0)
    for wrong in ({"training__epsilons": 1}, {"nonsense": 1}, {"classes__a": 1}):
        with pytest.raises(InvalidParameter, match="no parameter"):
            tagger.set_params(**wrong)
    grid = GridSearchCV(
        PrivateTagger(QUICK, classes=8, random_state=0), {"training__epsilon": [0.1, 8.0]}, cv=2
    )
    assert grid.fit(problem[0][:400], problem[1][:400]).best_params_["training__epsilon"] == 8.0


def test_columns_of_a_table_are_matched_by_name(problem):
    x, y, asked, truth, _ = problem
    names = list("abcdefgh")
    table = pd.DataFrame(y, columns=names)
    plain = PrivateTagger(QUICK, classes=names, random_state=0).fit(x, y)
    mixed = table[names[::-1]]
    matched = PrivateTagger(QUICK, classes=names, random_state=0).fit(x, mixed)
    np.testing.assert_array_equal(matched.logits(asked), plain.logits(asked))
    answers = pd.DataFrame(truth, columns=names)[names[::-1]]
    assert matched.score(asked, answers) == plain.score(asked, truth)
    named = PrivateTagger(QUICK, random_state=0).fit(x, mixed)
    assert named.classes_.tolist() == names[::-1]
    assert math.isinf(named.guarantee_.epsilon)  # names that come with the records prove nothing
    for wrong in (table.rename(columns={"a": "z"}), table[names[:7]], table[[*names, "a"]]):
        with pytest.raises(InvalidData, match="columns of y"):
            PrivateTagger(QUICK, classes=names).fit(x, wrong)


def test_names_of_features_are_kept_and_compared(problem):
    x, y, *_ = problem
    table = pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])
    tagger = PrivateTagger(QUICK, classes=8, random_state=0).fit(table, y)
    assert tagger.feature_names_in_.tolist() == list(table.columns)
    np.testing.assert_allclose(tagger.logits(table[:5]), tagger.logits(x[:5]))
    with pytest.raises(InvalidData, match="'f29' in place of 'f0'"):
        tagger.logits(table[table.columns[::-1]])
    assert not hasattr(tagger.fit(x, y), "feature_names_in_")


def test_ledgers_are_routed_through_pipelines_and_cross_validation(problem, tmp_path):
    x, y, asked, truth, _ = problem
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=10.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    ledger.grant(Cost(epsilon=10.0, unit="query"))
    tagger = PrivateTagger(QUICK, LaplaceAnswers(3.0), classes=8)
    with config_context(enable_metadata_routing=True):
        tagger.set_fit_request(ledger=True).set_predict_request(ledger=True)
        piped = make_pipeline(FunctionTransformer(), tagger).fit(x, y, ledger=ledger)
        assert piped.predict(asked[:4], ledger=ledger).shape == (4, 8)
        assert ledger.balance("query").spent.epsilon == pytest.approx(3.0)
        once = ledger.balance("record", "add or remove one").spent.epsilon
        assert once == pytest.approx(2.0, rel=0.01)
        piped = make_pipeline(
            FunctionTransformer(), PrivateTagger(QUICK, classes=8).set_fit_request(ledger=True)
        )
        cross_val_score(piped, x, y, cv=3, params={"ledger": ledger}, error_score="raise")
        assert ledger.balance("record", "add or remove one").spent.epsilon == pytest.approx(
            4 * once
        )
    exact = fitted(problem)
    assert exact.score(asked, truth) == exact.score(asked, sparse.csr_matrix(truth))
    assert exact.score(asked, truth) == pytest.approx(
        exact.score(asked, truth, sample_weight=np.full(len(asked), 2))
    )
    first = np.arange(len(asked)) < 200
    assert exact.score(asked[first], truth[first]) == pytest.approx(
        exact.score(asked, truth, sample_weight=first)
    )


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 1e300, -1e300])
def test_no_record_makes_training_fail_or_drowns_the_others(problem, spoil):
    x, y, *_ = problem
    bad, labels = x.astype(np.float64), y.astype(np.float64)
    bad[0], labels[1] = spoil, np.nan
    with np.errstate(all="ignore"):
        tagger = PrivateTagger(QUICK, classes=8, random_state=0).fit(bad, labels)
    assert np.isfinite(tagger.weights_).all()
    assert np.abs(tagger.logits(x) - fitted(problem).logits(x)).max() < 1.0


def test_nothing_that_was_learned_from_few_records_is_kept(problem):
    x, y, asked, truth, prior = problem
    few = PrivateTagger(DPTraining(epsilon=0.2), classes=8, prior=prior, random_state=0)
    few.fit(x[:40], y[:40])
    assert few.released_["trusted"] == 0.0
    assert few.score(asked, truth) == PrivateTagger.from_public(8, prior).score(asked, truth)
    many = fitted(problem, DPTraining(epsilon=8.0), prior=prior)
    assert many.released_["trusted"] > 0.5


def test_a_label_is_named_about_as_often_as_it_occurs(problem):
    asked, truth = problem[2:4]
    tagger = fitted(problem, DPTraining(epsilon=8.0))
    assert 0.5 < tagger.predict(asked).sum() / truth.sum() < 1.5
    fixed = fitted(problem, DPTraining(epsilon=8.0), Exact(threshold=0.9))
    assert fixed.predict(asked).sum() < tagger.predict(asked).sum()


def test_own_codebooks_are_public_and_used(problem, tmp_path):
    words = AnswerCodebook(np.vstack([np.zeros(8), np.eye(8)]), np.ones(8))
    tagger = fitted(problem, answers=CodebookAnswers(4.0, words=words))
    assert len(tagger.guarantee_.releases) == 3  # no spread to pay for
    tagger.save(tmp_path / "t.safetensors")
    loaded = PrivateTagger.load(tmp_path / "t.safetensors")
    np.testing.assert_array_equal(loaded.answer_mechanism_.words.words, words.words)
    with pytest.raises(InvalidData, match="columns"):
        fitted(problem, answers=CodebookAnswers(4.0, words=AnswerCodebook(np.eye(3), np.ones(3))))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: DPTraining(epsilon=0.0),
        lambda: DPTraining(delta=0.0),
        lambda: DPTraining(steps=0),
        lambda: Ordinary(ridge=-1.0),
        lambda: Untrained(rate=1.0),
        lambda: CodebookAnswers(0.0),
        lambda: CodebookAnswers(k=1),
        lambda: LaplaceAnswers(bound=-1.0),
    ],
)
def test_values_are_checked_at_birth(bad):
    with pytest.raises(InvalidParameter):
        bad()


@pytest.mark.parametrize(
    "bad",
    [
        {"training": "dp"},
        {"answers": "exact"},
        {"prior": np.eye(8)},
        {"classes": "names"},
        {"classes": ["a"] * 8},
    ],
)
def test_bad_parameters_are_refused(problem, bad):
    with pytest.raises(InvalidParameter):
        PrivateTagger(**{"classes": 8, **bad}).fit(*problem[:2])


def test_shapes_that_do_not_fit_are_refused(problem):
    x, y, _, _, prior = problem
    for made, rows in (
        (PrivateTagger(classes=8), (x[:10], y[:9])),
        (PrivateTagger(classes=5), (x, y)),
        (PrivateTagger(classes=8, public=x[:, :4]), (x, y)),
        (PrivateTagger(classes=8, prior=Prior(prior.weights[:, :3], prior.offset)), (x, y)),
    ):
        with pytest.raises(InvalidData):
            made.fit(*rows)
    with pytest.raises(InvalidData, match="features of the training data"):
        fitted(problem).predict(x[:, :5])


def test_a_file_whose_guarantee_was_edited_is_refused(problem, tmp_path):
    path = tmp_path / "tagger.safetensors"
    fitted(problem).save(path)
    arrays, fields = storage.load(path, kind="private tagger")
    fields["parameters"]["training"]["epsilon"] = 50.0  # weaker noise, same promise
    storage.save(path, kind="private tagger", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile, match="guarantee"):
        PrivateTagger.load(path)


@pytest.mark.parametrize("spoil", ["weights", "words", "classes", "params", "counts", "epsilon"])
def test_broken_files_are_refused(problem, tmp_path, spoil):
    path = tmp_path / "tagger.safetensors"
    fitted(problem, answers=CodebookAnswers(8.0, k=8)).save(path)
    arrays, fields = storage.load(path, kind="private tagger")
    if spoil == "weights":
        arrays["released.weights"] = arrays["released.weights"][:, :3]
    elif spoil == "classes":
        fields["public"]["classes"] = fields["public"]["classes"][:2]
    elif spoil == "params":
        fields["parameters"]["nonsense"] = 1
    elif spoil == "epsilon":
        fields["parameters"]["training"]["epsilon"] = 10**400
    else:
        del arrays[f"released.{spoil}"]
    storage.save(path, kind="private tagger", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile):
        PrivateTagger.load(path)


@pytest.mark.parametrize("field", ["n_records", "n_features", "width"])
@pytest.mark.parametrize("size", [-1, 1e308, 10**400, "x", None, [1], 0.5])
def test_sizes_of_no_data_set_are_refused(problem, tmp_path, field, size):
    path = tmp_path / "tagger.safetensors"
    fitted(problem, Ordinary(steps=1)).save(path)  # its guarantee does not depend on them
    arrays, fields = storage.load(path, kind="private tagger")
    fields["public"][field] = size
    storage.save(path, kind="private tagger", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile):
        PrivateTagger.load(path)


def test_saved_with_public_images_and_a_prior_it_answers_the_same(problem, tmp_path):
    tagger = fitted(problem, DPTraining(components=10), public=problem[2], prior=problem[4])
    assert tagger.weights_.shape == (8, 11)
    tagger.save(tmp_path / "t.safetensors")
    loaded = PrivateTagger.load(tmp_path / "t.safetensors")
    np.testing.assert_array_equal(loaded.logits(problem[0][:5]), tagger.logits(problem[0][:5]))
    assert loaded.guarantee_ == tagger.guarantee_
