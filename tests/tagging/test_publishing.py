"""A model is made once and a photo is answered once (and after kill -9:
tests/workbench/test_kill.py).
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from scipy import sparse

from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault
from blindsight.tagging import (
    CodebookAnswers,
    DPTraining,
    Exact,
    LaplaceAnswers,
    PrivateTagger,
)
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.photos import publish, train_once

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 10)).astype(np.float32)
Y = (X @ RNG.normal(size=(10, 4)) > 0.5).astype(np.uint8)
RECORDS = [f"{number:032x}" for number in range(len(X))]


def made(answers=CodebookAnswers(4.0, k=6), **settings):  # noqa: B008
    return PrivateTagger(DPTraining(steps=3, **settings), answers, classes=4)


@pytest.fixture(scope="module")
def tagger():
    return made().fit(X, Y)


def rows(places):
    return X[places]


def test_an_answer_is_the_same_alone_among_others_and_in_any_order(tagger, tmp_path):
    vault = Vault.create(tmp_path / "vault")
    shutil.copytree(vault.path, tmp_path / "other")
    all_at_once = publish(tagger, RECORDS, rows, vault=vault)
    copy = Vault(tmp_path / "other")  # the same key, and nothing that was kept
    order = [7, 3, 3, 40]
    some = publish(
        tagger,
        [RECORDS[i] for i in order],
        lambda places: X[[order[i] for i in places]],
        vault=copy,
    )
    np.testing.assert_array_equal(some.scores, all_at_once.scores[order])
    # A cell is the same under another key with probability .84: of 600 all, below 1e-40.
    anew = publish(tagger, RECORDS, rows, vault=Vault.create(tmp_path / "new"))
    assert not np.array_equal(anew.scores, all_at_once.scores)


def test_what_was_answered_is_not_looked_at_again(tagger, tmp_path):
    vault, looked = Vault.create(tmp_path / "vault"), []

    def watched(places):
        looked.extend(places)
        return X[places]

    publish(tagger, RECORDS[:5], watched, vault=vault)
    publish(tagger, RECORDS[3:9], watched, vault=vault)
    assert looked == [0, 1, 2, 3, 4, 2, 3, 4, 5]


@pytest.mark.parametrize("change", ["model", "epsilon"])
def test_another_model_or_epsilon_is_another_release_with_other_noise(tagger, tmp_path, change):
    vault, ledger = (
        Vault.create(tmp_path / "vault"),
        Ledger(tmp_path / "ledger.db", dataset="photos"),
    )
    ledger.grant(Cost(epsilon=20.0, unit="query"))
    other = made().fit(X, Y) if change == "model" else made(CodebookAnswers(5.0, k=6)).fit(X, Y)
    for one in (tagger, other, tagger, other):
        publish(one, RECORDS, rows, vault=vault, ledger=ledger)
    assert ledger.balance("query").spent.epsilon == pytest.approx(8.0 if change == "model" else 9.0)


def test_noise_on_all_scores_is_kept_to_the_last_bit(tmp_path):
    tagger, vault = made(LaplaceAnswers(4.0)).fit(X, Y), Vault.create(tmp_path / "vault")
    first = publish(tagger, RECORDS[:300], rows, vault=vault).scores  # more than one part
    np.testing.assert_array_equal(publish(tagger, RECORDS[:300], rows, vault=vault).scores, first)
    assert first.shape == (300, 4)


def test_what_cannot_be_permanent_is_refused(tmp_path):
    with pytest.raises(InvalidParameter, match="exact answers"):
        publish(made(Exact()).fit(X, Y), RECORDS, rows, vault=Vault.create(tmp_path / "vault"))


def test_one_record_less_or_another_setting_is_another_training(tmp_path):
    vault, ledger = (
        Vault.create(tmp_path / "vault"),
        Ledger(tmp_path / "ledger.db", dataset="photos"),
    )
    ledger.grant(Cost(epsilon=100.0, delta=0.1, unit="record", neighbours="add or remove one"))
    first = train_once(made(), X, Y, vault=vault, ledger=ledger, notes={"from": "a test"})
    assert first.public_["from"] == "a test"
    again = train_once(made(), X, Y, vault=vault, ledger=ledger)
    np.testing.assert_array_equal(again.weights_, first.weights_)
    charged = ledger.balance("record", "add or remove one").spent.epsilon
    assert charged == pytest.approx(2.0, rel=0.01)
    for n, (x, y, settings) in enumerate([(X[1:], Y[1:], {}), (X, Y, {"epsilon": 2.001})], start=2):
        other = train_once(made(**settings), x, y, vault=vault, ledger=ledger)
        assert not np.array_equal(other.weights_, first.weights_)
        assert ledger.balance("record", "add or remove one").spent.epsilon == pytest.approx(
            n * charged, rel=0.01
        )


def test_trainings_that_differ_in_one_number_of_a_long_table_are_two(tmp_path):
    vault, thin = Vault.create(tmp_path / "vault"), sparse.csr_matrix(Y)
    words = np.random.default_rng(0).random((400, 4))
    other = words.copy()
    other[200, 2] += 1e-3  # in the middle, where a repr has dots

    def trained(table, y=Y):
        book = CodebookAnswers(4.0, words=AnswerCodebook(table, np.ones(4)))
        return train_once(
            PrivateTagger(DPTraining(steps=2), book, classes=np.arange(4)), X, y, vault=vault
        )

    first = trained(words)
    assert not np.array_equal(trained(other).weights_, first.weights_)
    np.testing.assert_array_equal(trained(words, thin).weights_, first.weights_)
