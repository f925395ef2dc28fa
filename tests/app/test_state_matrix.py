"""Every releasing verb, and vaults and ledgers that are older copies, lost, or used twice at once.

Whatever happens, what is released a second time is the same, or is charged, or is refused; and
whichever copy is older is named. The pages have the same table in `tests/workbench/test_state.py`.
"""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import warm
from app import releasing_verbs
from app.releasing_verbs import VERBS, Owner
from blindsight.app import labelled_images
from blindsight.app.hosting import records_of
from blindsight.core.errors import BlindsightError, InvalidData, MissingData, RolledBack
from blindsight.data.confined import ConfinedReader
from blindsight.privacy import Ledger
from blindsight.privacy.reconcile import join
from blindsight.privacy.vault import Vault
from memory_disk import folder_in_memory

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")


@pytest.fixture(scope="module")
def prepared() -> Iterator[Callable[[str], Path]]:
    """An owner's folder from which nothing was released, with budgets for a verb; only read."""
    with folder_in_memory() as folder:
        Owner.create(folder / "base")

        @functools.cache
        def with_budgets(verb: str) -> Path:
            shutil.copytree(folder / "base", folder / verb)
            Owner(folder / verb).grant(verb)
            return folder / verb

        yield with_budgets


@pytest.fixture
def owner(
    prepared: Callable[[str], Path], memory_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> Owner:
    for target, name in ((ConfinedReader, "decode"), (labelled_images, "BUILT_IN_PICTURES")):
        monkeypatch.setattr(target, name, getattr(target, name))  # put back afterwards
    releasing_verbs.work_in_this_process()
    return copied(prepared(verb), memory_path / "here")


def copied(prepared: Path, base: Path) -> Owner:
    shutil.copytree(prepared, base)
    return Owner(base)


def backup(owner: Owner, *names: str) -> Callable[[], None]:
    """Copy files or folders of the owner; the function puts the copies in their place."""
    for number, name in enumerate(names):
        source = owner.base / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, owner.base / f"copy {number}")

    def restore() -> None:
        for number, name in enumerate(names):
            target = owner.base / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            for left in owner.base.glob(f"{name}-*"):  # journals belong to the newer file
                left.unlink()
            shutil.move(owner.base / f"copy {number}", target)

    return restore


def released_or_refused(owner: Owner, verb: str) -> Any:
    try:
        return VERBS[verb].run(owner)
    except BlindsightError as error:
        return error


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_again_is_the_same_and_free(owner: Owner, verb: str) -> None:
    first = VERBS[verb].run(owner)
    paid = owner.spent()
    assert sum(paid.values()) > 0
    assert VERBS[verb].run(owner) == first
    assert owner.spent() == paid


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("older", ["vault", "ledger", "both"])
def test_an_older_copy_is_named_and_nothing_is_released(
    owner: Owner, verb: str, older: str
) -> None:
    vault = VERBS[verb].vault
    restore = backup(
        owner, *{"vault": [vault], "ledger": ["budget.db"], "both": [vault, "budget.db"]}[older]
    )
    VERBS[verb].run(owner)
    restore()
    before = owner.spent()
    words = {
        "vault": r"vault .* is older than the ledger",
        "ledger": r"ledger .* is older than the vault",
        "both": "are older than the release",
    }
    with pytest.raises(RolledBack, match=words[older]):
        VERBS[verb].run(owner)
    assert owner.spent() == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("lost", ["key", "records.db", "ledger"])
def test_a_lost_file_is_named_and_not_made_again(owner: Owner, verb: str, lost: str) -> None:
    VERBS[verb].run(owner)
    paid = owner.spent()
    vault = owner.base / VERBS[verb].vault
    if lost == "ledger":
        owner.ledger.unlink()
        owner.grant(verb)
        with pytest.raises(RolledBack, match="lost, or begun again"):
            VERBS[verb].run(owner)
        assert not any(owner.spent().values())
        return
    (vault / lost).unlink()
    with pytest.raises((MissingData, InvalidData), match=r"lost|no key|which is not at"):
        VERBS[verb].run(owner)
    assert owner.spent() == paid and not (vault / lost).exists()


@pytest.mark.parametrize("verb", VERBS)
def test_two_runs_at_once_release_the_same_once(owner: Owner, verb: str) -> None:
    results: list[Any] = []
    runs = [
        threading.Thread(target=lambda: results.append(released_or_refused(owner, verb)))
        for _ in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    made = [each for each in results if not isinstance(each, BlindsightError)]
    assert made, results
    paid = owner.spent()
    assert VERBS[verb].run(owner) == made[0] and all(each == made[0] for each in made)
    assert owner.spent() == paid


def run_and_die(verb: str, base: Path, commits: int) -> tuple[list[str], bool]:
    """Run a verb in a process that dies by kill -9 after some writes of the vault.

    Returns:
        The lines that it printed, and whether it was killed.
    """
    line = ["-W", "ignore", "-m", "app.releasing_verbs", verb, base, str(commits)]
    done = warm.run(line, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})
    return [*done.stdout.splitlines(), *done.stderr.splitlines()], done.returncode == -9


@pytest.mark.parametrize("verb", VERBS)
def test_kill_9_at_any_write_charges_once_and_releases_once(
    prepared: Callable[[str], Path],
    owner: Owner,
    verb: str,
    memory_path: Path,
) -> None:
    """Killed at the end, and at the first, a middle and the last write of the vault."""
    said, killed = run_and_die(verb, owner.base, 0)
    assert killed and len(said) == 1, said
    writes = int(said[0])
    paid = owner.spent()
    assert writes > 2 and sum(paid.values()) > 0
    first = VERBS[verb].run(owner)  # what was given away before it was killed, and free
    assert owner.spent() == paid
    for commits in sorted({1, (writes + 1) // 2, writes}):
        again = copied(prepared(verb), memory_path / f"killed at {commits}")
        said, killed = run_and_die(verb, again.base, commits)
        assert killed, said
        second = VERBS[verb].run(again)
        assert again.spent() == paid, "charged once, whatever was killed"
        assert VERBS[verb].run(again) == second
        assert again.spent() == paid
    assert first


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"federate run"}))
def test_a_charge_names_its_photos_its_actor_and_its_vault(owner: Owner, verb: str) -> None:
    """A photo pays in each data set that contains it, whichever verb releases it."""
    owner.grant(verb, "album")
    vault = Vault(owner.vault)
    with Ledger(owner.ledger, dataset="album") as album:
        join(vault, album, records_of(vault, sorted(owner.photos.iterdir())))
        VERBS[verb].run(owner)
        mine = [entry for entry in album.entries() if entry.kind == "charge"]
    with Ledger(owner.ledger, dataset="photos") as ledger:
        charges = [entry for entry in ledger.entries() if entry.kind == "charge"]
    assert charges and len(mine) == len(charges)
    for entry in (*mine, *charges):
        assert (entry.vault, entry.actor, entry.purpose) == (vault.number, "Anna", "a study")
        assert entry.generation


def test_every_verb_that_charges_asks_for_actor_and_purpose() -> None:
    """All verbs share one definition of each option, so that none is forgotten or differs."""
    from blindsight.cli import budget, compare, federate, protect, send, sketch, tag
    from blindsight.cli.options import ActorOption, LedgerOption, PurposeOption

    charging = (
        protect.protect,
        tag.train,
        tag.apply,
        compare.learn,
        sketch.make,
        send.make,
        federate.run,
        budget.grant,
        budget.charge,
    )
    for verb in charging:
        hints = get_type_hints(verb, include_extras=True)
        assert hints["actor"] == ActorOption and hints["purpose"] == PurposeOption, verb
        if verb not in (budget.grant, budget.charge):
            assert hints["ledger"] == LedgerOption, verb
