"""A vault of the first format and a ledger of the second, as an earlier version wrote them.

`data/earlier_version` was made by that version: two photos of one person, a release of codes at
epsilon 4 of a budget of 10. Opening them carries them over; nothing is charged or released twice.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, LedgerTampered
from blindsight.data.sources import recognising
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.reconcile import reconcile
from blindsight.privacy.vault import Vault

COST = Cost(epsilon=4, unit="record")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    source = Path(__file__).parent / "data" / "earlier_version"
    shutil.copytree(source, tmp_path / "earlier")
    return tmp_path / "earlier"


@pytest.fixture
def expected(earlier: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((earlier / "expected.json").read_text())
    return fields


def test_the_same_release_is_known_and_not_charged_again(
    earlier: Path, expected: dict[str, Any]
) -> None:
    vault = Vault(earlier / "vault")
    assert vault.number == expected["number"]
    release = vault.release_of("codes at epsilon 4")
    assert release == expected["release"]
    with recognising(vault) as recognise:
        records = [recognise((earlier / name).read_bytes(), name) for name in ("0.png", "1.png")]
    assert records == expected["records"]
    with Ledger(earlier / "budget.db", dataset="holidays") as ledger:
        assert list(ledger.verify()) == expected["head"]
        assert reconcile(vault, ledger).agrees
        done = vault.charge(ledger, COST, release=release, what="codes", records=records)
        assert done.entry is not None and done.entry.key == f"release {release}"
        assert float(ledger.balance("record").spent.epsilon) == 4
        with pytest.raises(BudgetExceeded):
            vault.charge(
                ledger, Cost(epsilon=7, unit="record"), release=vault.release_of("m"), what="more"
            )
    others = np.zeros((2, 3), np.uint8)
    kept = vault.keep_codes(release, records, others)
    assert [code.tobytes().hex() for code in kept] == expected["codes"]


def test_persons_of_an_earlier_version_keep_their_bound(
    earlier: Path, expected: dict[str, Any]
) -> None:
    vault = Vault(earlier / "vault")
    with pytest.raises(InvalidData, match="more than 1 image"):
        vault.chosen(expected["release"], expected["records"], 1)


def test_what_is_released_next_is_charged_with_actor_vault_and_generation(earlier: Path) -> None:
    vault = Vault(earlier / "vault")
    with Ledger(earlier / "budget.db", dataset="holidays", actor="Anna") as ledger:
        vault.charge(
            ledger,
            Cost(epsilon=2, unit="record"),
            release=vault.release_of("tags"),
            what="tags",
        )
        first, *_, last = ledger.entries()
        ledger.verify()
    assert (first.format, first.actor) == (2, "")
    assert (last.format, last.actor, last.vault) == (3, "Anna", vault.number)
    assert last.generation == vault.generation == 2


def _flipped_code(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "vault" / "records.db")) as connection, connection:
        connection.execute("UPDATE codes SET code = x'000000'")


def _cut_key(folder: Path) -> None:
    key = folder / "vault" / "key"
    key.write_bytes(key.read_bytes()[:-9])


def _cheaper_charge(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "budget.db")) as connection, connection:
        connection.execute(
            "UPDATE blindsight_ledger2_entries SET micro_epsilon = 1, spent_micro_epsilon = 1 "
            "WHERE kind = 'charge'"
        )


@pytest.mark.parametrize(
    ("damage", "refusal"),
    [(_cut_key, HostileFile), (_cheaper_charge, LedgerTampered), (_flipped_code, HostileFile)],
)
def test_damage_after_the_first_opening_is_refused(
    earlier: Path, damage: Callable[[Path], None], refusal: type[Exception]
) -> None:
    """The first format of a vault has no codes of authenticity: they are made when it is opened."""
    if damage is _flipped_code:
        Vault(earlier / "vault")
    damage(earlier)
    with pytest.raises(refusal):
        vault = Vault(earlier / "vault")
        vault.verify()
        with Ledger(earlier / "budget.db", dataset="holidays") as ledger:
            ledger.verify()
