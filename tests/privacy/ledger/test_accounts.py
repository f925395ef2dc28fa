"""A charge moves every account that it bears on, names are one account, and a statement says it."""

from __future__ import annotations

import json

import pytest

from blindsight.core.errors import InvalidParameter, UnitMismatch
from blindsight.privacy.cost import Cost
from blindsight.privacy.ledger import AuditedRelease, Ledger, datasets, statement

REPLACE = Cost(epsilon=1, unit="record")
ADD = Cost(epsilon=1, unit="record", neighbours="add or remove one")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def granted(path, *costs, dataset="ward"):
    ledger = Ledger(path, dataset=dataset)
    for cost in costs:
        ledger.grant(cost)
    return ledger


def spent(ledger, unit="record", neighbours="replace one"):
    return ledger.balance(unit, neighbours).spent.epsilon


def test_a_charge_under_one_relation_moves_the_account_under_the_other(path):
    ten = Cost(epsilon=10, unit="record")
    with granted(path, ten, Cost(epsilon=10, unit="record", neighbours=ADD.neighbours)) as ledger:
        ledger.charge(REPLACE, what="codes")
        assert (spent(ledger), spent(ledger, neighbours=ADD.neighbours)) == (1, 1)
        ledger.charge(ADD, what="a model")
        assert (spent(ledger), spent(ledger, neighbours=ADD.neighbours)) == (3, 2)
        ledger.verify()


@pytest.mark.parametrize("unit", ["record", "pair", "person"])
def test_a_cost_per_kappa_pairs_does_not_pass_by_other_accounts(path, unit):
    kappa = Cost(epsilon=1, unit="kappa pairs")
    both = (Cost(epsilon=9, unit="kappa pairs"), Cost(epsilon=9, unit=unit))
    with granted(path, *both) as ledger:
        with pytest.raises(UnitMismatch, match="kappa pairs"):
            ledger.charge(kappa, what="a metric")
        assert spent(ledger, "kappa pairs") == spent(ledger, unit) == 0
        ledger.charge((kappa, Cost(epsilon=3, unit=unit)), what="a metric")
        assert (spent(ledger, "kappa pairs"), spent(ledger, unit)) == (1, 3)


@pytest.mark.parametrize("name", ["ward ", " ward", "  ward  ", "w\uff41rd"])
def test_names_that_differ_in_form_alone_are_one_account(path, name):
    with granted(path, Cost(epsilon=1, unit="record")) as ledger, Ledger(path, dataset=name) as two:
        assert two.dataset == "ward"
        two.charge(Cost(epsilon=1, unit="record"), what="codes")
        assert spent(ledger) == 1
    assert datasets(path) == ["ward"]


@pytest.mark.parametrize(
    "name",
    [
        "w\u0430rd",  # a Cyrillic a among Latin letters
        "\u0441\u0430\u0441\u0430",  # all Cyrillic, and reads as Latin
        "wa\u200brd",  # an invisible space
        "wa\u0301rd\u0337",
    ],
)
def test_names_that_look_like_others_are_refused(path, name):
    with pytest.raises(InvalidParameter, match=r"data set's name|printable"):
        Ledger(path, dataset=name)


@pytest.mark.parametrize("name", ["Ward", "WARD", "w-ard", "w.a.r.d"])
def test_a_new_data_set_cannot_be_mistaken_for_another(path, name):
    granted(path, Cost(epsilon=1, unit="record")).close()
    with (
        Ledger(path, dataset=name) as other,
        pytest.raises(InvalidParameter, match="called 'ward'"),
    ):
        other.grant(Cost(epsilon=1, unit="record"))
    assert datasets(path) == ["ward"]


@pytest.mark.parametrize("name", ["Москва", "Zürich 2", "東京の写真", "Ωμέγα"])
def test_names_in_any_one_script_are_fine(path, name):
    with granted(path, Cost(epsilon=1, unit="record"), dataset=name) as ledger:
        assert ledger.charge(REPLACE, what="codes").dataset == name


def test_a_statement_says_what_was_released_by_whom_and_for_what(path):
    with granted(path, Cost(epsilon=9, unit="record"), Cost(epsilon=9, unit="person")) as ledger:
        cost = (REPLACE, Cost(epsilon=2, unit="person"))
        ledger.charge(
            cost,
            what="codes <b>",
            key="release 0a",
            actor="Anna",
            purpose="a study",
            vault="0f",
            generation=1,
        )
        ledger.charge(cost, what="a model", key="release 0b")
        audits = [AuditedRelease(release="0a", attack="membership", epsilon=0.3, confidence=0.95)]
        made = statement(ledger, audits=audits, remarks=["The vault is older."])
    first, second = made.releases
    assert (first.actor, first.purpose, first.release) == ("Anna", "a study", "0a")
    assert (first.epsilon_per_record, first.epsilon_per_person) == (1, 2)
    assert second.purpose == "" and second.actor
    assert made.remarks == ("The vault is older.", "2 of 4 charges state no purpose.")
    fields = json.loads(json.dumps(made.to_dict()))
    assert fields["framework"] == "NIST SP 800-226" and len(fields["budgets"]) == 2
    page = made.to_html()
    assert "codes &lt;b&gt;" in page and "<b>" not in page
    for words in ("Anna", "a study", "membership", "The vault is older.", "ε = 7"):
        assert words in page
