"""`protect` when its vault, its ledger or both are older copies, lost, or used twice at once.

No photo is released a second time without a charge, and whichever copy is older is named.
"""

from __future__ import annotations

import importlib
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import blindsight
import warm
from blindsight.app.budget import grant_budget
from blindsight.app.budget_review import budget_statement, reconcile_budget
from blindsight.core import durable
from blindsight.core.errors import (
    BlindsightError,
    BudgetExceeded,
    InvalidData,
    InvalidParameter,
    MissingData,
    RolledBack,
)
from blindsight.index import HammingIndex
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy import Ledger
from blindsight.privacy.vault import Vault

# The package exports the function under the module's name.
protect_module = importlib.import_module("blindsight.app.protect")


class Owner:
    """A folder of photos, a vault and a ledger that can be copied and put back."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.photos, self.vault, self.ledger = base / "photos", base / "vault", base / "budget.db"
        self.photos.mkdir()
        rng = np.random.default_rng(0)
        for number in range(4):
            pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.photos / f"{number}.png")
        grant_budget(self.ledger, "photos", epsilon=16)

    def protect(self, out: str, **options: object) -> blindsight.ProtectedPhotos:
        return blindsight.protect(
            self.photos,
            self.base / out,
            encoder="pixels",
            vault=self.vault,
            ledger=self.ledger,
            **options,  # type: ignore[arg-type]
        )

    def copy(self, *names: str) -> None:
        for name in names:
            source = self.base / name
            copier = shutil.copytree if source.is_dir() else shutil.copy2
            copier(source, self.base / f"{name}.copy")

    def restore(self, *names: str) -> None:
        for name in names:
            target = self.base / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            shutil.move(self.base / f"{name}.copy", target)

    def spent(self) -> float:
        with Ledger(self.ledger, dataset="photos") as ledger:
            return float(ledger.balance("record").spent.epsilon)

    def codes(self, out: str | Path) -> dict[str, bytes]:
        loaded = HammingIndex.load(self.base / out / "codes.index")
        return {
            str(name): code.tobytes()
            for ids, rows in loaded.items()
            for name, code in zip(ids, rows, strict=True)
        }


@pytest.fixture
def owner(tmp_path):
    return Owner(tmp_path)


def test_a_restored_vault_is_named_and_releases_nothing(owner):
    owner.protect("first", epsilon=4)
    owner.copy("vault")
    owner.protect("second", epsilon=6)
    owner.restore("vault")
    before = owner.codes("second")
    for out, options in (("second", {}), ("third", {"epsilon": 6}), ("first", {})):
        with pytest.raises(RolledBack, match=r"The vault .* is older than the ledger"):
            owner.protect(out, **options)
    assert owner.spent() == 10 and owner.codes("second") == before
    assert not (owner.base / "third").exists()


def test_a_restored_ledger_is_named_and_releases_nothing(owner):
    owner.copy("budget.db")
    owner.protect("first", epsilon=12)
    owner.restore("budget.db")
    for out, options in (("first", {}), ("second", {"epsilon": 12})):
        with pytest.raises(RolledBack, match=r"The ledger .* is older than the vault"):
            owner.protect(out, **options)
    assert not (owner.base / "second").exists()


def test_vault_and_ledger_restored_together_are_older_than_the_release(owner):
    owner.protect("first", epsilon=4)
    owner.copy("vault", "budget.db")
    owner.protect("second", epsilon=12)
    owner.restore("vault", "budget.db")
    with pytest.raises(RolledBack, match="which neither of them knows"):
        owner.protect("second")
    assert owner.spent() == 4


def test_without_a_ledger_too_a_restored_vault_is_older_than_the_release(owner):
    options = {"encoder": "pixels", "vault": owner.vault}
    blindsight.protect(owner.photos, owner.base / "first", epsilon=4, **options)
    owner.copy("vault")
    blindsight.protect(owner.photos, owner.base / "second", epsilon=6, **options)
    owner.restore("vault")
    with pytest.raises(RolledBack, match="older than the release"):
        blindsight.protect(owner.photos, owner.base / "second", **options)


@pytest.mark.parametrize("lost", ["key", "records.db"])
def test_a_vault_that_lost_a_file_is_not_made_again(owner, lost):
    owner.protect("first", epsilon=8)
    (owner.vault / lost).unlink()
    with pytest.raises(BlindsightError):
        owner.protect("first")
    with pytest.raises(MissingData):
        owner.protect("second", epsilon=8)
    assert not (owner.vault / lost).exists() and not (owner.base / "second").exists()
    assert owner.spent() == 8


def test_a_lost_ledger_is_not_begun_again(owner):
    owner.protect("first", epsilon=8)
    owner.ledger.unlink()
    grant_budget(owner.ledger, "photos", epsilon=16)
    with pytest.raises(RolledBack, match="lost, or begun again"):
        owner.protect("second", epsilon=8)


def test_a_photo_pays_in_each_data_set_that_contains_it(owner):
    """The same photos under another data set's name: both accounts pay for both releases."""
    grant_budget(owner.ledger, "copies", epsilon=16)
    owner.protect("first", epsilon=4)
    owner.protect("second", epsilon=6, dataset="copies")
    assert owner.spent() == 10
    with Ledger(owner.ledger, dataset="copies") as ledger:
        assert float(ledger.balance("record").spent.epsilon) == 10
    with pytest.raises(BudgetExceeded):
        owner.protect("third", epsilon=7, dataset="copies")


def command(owner: Owner, out: str, *options: str) -> list[str]:
    words = ["protect", str(owner.photos), "--out", str(owner.base / out)]
    words += ["--encoder", "pixels", "--vault", str(owner.vault), "--ledger", str(owner.ledger)]
    return [*words, *options]


def test_two_runs_at_once_keep_the_bound_per_person(owner):
    """All four photos are one person's, and each run is given another two of them."""
    program = (
        "import sys, blindsight\n"
        "photos, out, vault, *names = sys.argv[1:]\n"
        "blindsight.protect(photos, out, encoder='pixels', vault=vault, files=names, "
        "people=dict.fromkeys(names, 'Anna'), max_per_person=1)\n"
    )
    runs = [
        warm.Process(
            ["-c", program, owner.photos, owner.base / out, owner.vault, *names],
            output=owner.base / f"{out}.log",
        )
        for out, names in (
            ("release0", ("0.png", "1.png")),
            ("release1", ("2.png", "3.png")),
        )
    ]
    for number, run in enumerate(runs):
        assert run.wait(600) == 0, (owner.base / f"release{number}.log").read_text()
    released = {name for number in range(2) for name in (owner.codes(f"release{number}"))}
    assert len(released) == 1


class Overtaken:
    """Lets another run finish at the moment at which a run of `protect` has opened its vault."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
        self.original, self.other = protect_module.open_vault, other
        monkeypatch.setattr(protect_module, "open_vault", self)

    def __call__(self, path: Path, folder: ReleaseFolder | None) -> Vault:
        other, self.other = self.other, lambda: None
        other()
        return self.original(path, folder)


@pytest.mark.parametrize("fault", [{"epsilon": 17}, {"public": "nothing"}])
def test_a_run_that_fails_leaves_the_vault_that_another_run_has_just_made(
    owner, monkeypatch, fault
):
    """Without its key, the other run's photos would be released a second time."""
    Overtaken(monkeypatch, lambda: owner.protect("first"))
    with pytest.raises(BlindsightError):
        owner.protect("second", **fault)
    codes = owner.codes("first")
    shutil.rmtree(owner.base / "first")
    owner.protect("first")
    assert owner.codes("first") == codes
    assert owner.spent() == 8


def test_a_release_that_another_run_has_just_made_is_continued_or_refused_and_not_replaced(
    owner, monkeypatch
):
    Overtaken(monkeypatch, lambda: owner.protect("out"))
    with pytest.raises(InvalidParameter, match="was made with --epsilon 8"):
        owner.protect("out", epsilon=4)
    assert owner.spent() == 8
    codes = owner.codes("out")
    shutil.rmtree(owner.base / "out")

    def with_another_photo() -> None:
        Image.new("RGB", (24, 24), "red").save(owner.photos / "red.png")
        owner.protect("out")
        (owner.photos / "red.png").unlink()

    Overtaken(monkeypatch, with_another_photo)
    assert not owner.protect("out").created
    assert len(owner.codes("out")) == len(codes) + 1


def test_a_vault_that_another_run_removed_is_not_used(owner, monkeypatch):
    """Its lock is that of a removed file, which keeps nobody else out."""
    vault = Vault.create(owner.vault)
    lock = durable.lock

    def overtaken(descriptor: int, *, wait: bool = True) -> None:
        monkeypatch.setattr(durable, "lock", lock)
        shutil.rmtree(owner.vault)
        Vault.create(owner.vault)
        lock(descriptor, wait=wait)

    monkeypatch.setattr(durable, "lock", overtaken)
    with pytest.raises(InvalidData, match="removed or replaced"), vault.running():
        pass
    shutil.rmtree(owner.vault)
    with pytest.raises(InvalidData, match="removed or replaced"), vault.running():
        pass


def test_kill_9_after_the_charge_charges_once_and_changes_no_code(owner):
    program = (
        "import os, signal\n"
        "from blindsight.index.hamming import HammingIndex\n"
        "real = HammingIndex.add\n"
        "def stop(self, codes, ids=None):\n"
        "    real(self, codes, ids)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "HammingIndex.add = stop\n"
        "from blindsight.cli.main import run\n"
        "run()\n"
    )
    done = warm.run(["-c", program, *command(owner, "release", "--dataset", "photos")])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (owner.base / "release").exists(), "nothing is shared before all is written"
    vault = Vault(owner.vault)
    before = vault.codes(vault.releases()[-1].release)
    assert before
    made = owner.protect("release")
    assert owner.spent() == 8 and "earlier run" in made.charged
    assert owner.codes("release").items() >= before.items()


def test_the_ledger_names_actor_and_purpose(owner):
    owner.protect("first", epsilon=4, actor="Anna", purpose="a study")
    with Ledger(owner.ledger, dataset="photos") as ledger:
        entry = [each for each in ledger.entries() if each.kind == "charge"][-1]
    assert (entry.actor, entry.purpose) == ("Anna", "a study")


def test_the_owner_decides_after_an_older_vault_and_goes_on(owner):
    owner.protect("first", epsilon=4)
    owner.copy("vault")
    owner.protect("second", epsilon=6)
    owner.restore("vault")
    compared = reconcile_budget(owner.ledger, "photos", owner.vault)
    assert not compared.agrees and "is older than the ledger" in str(compared)
    with pytest.raises(RolledBack):
        owner.protect("third", epsilon=2)
    decided = reconcile_budget(owner.ledger, "photos", owner.vault, decision="take over")
    assert decided.agrees and decided.to_dict()["decision"] == "take over"
    owner.protect("third", epsilon=6)
    assert owner.spent() == 16, "what is released after it is charged again"


def test_a_statement_names_every_release_as_a_page_and_as_json(owner):
    owner.protect("first", epsilon=4, actor="Anna", purpose="a <study>")
    made = budget_statement(owner.ledger, "photos", vault=owner.vault)
    page = made.write(owner.base / "statement.html").read_text()
    assert "Anna" in page and "a &lt;study&gt;" in page and "<study>" not in page
    fields = json.loads(made.write(owner.base / "statement.json").read_text())
    assert fields["releases"][0]["purpose"] == "a <study>"
    with pytest.raises(InvalidParameter, match="html or"):
        made.write(owner.base / "statement.txt")
