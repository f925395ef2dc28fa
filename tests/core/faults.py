"""A program that the tests run with faults.c loaded: every write, flush, rename and truncation
fails, one at a time.

faults.py SCENARIO FOLDER    prints how many operations were made to fail, or the first promise that
broke
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.ma  # here, and not by every child anew
import safetensors.numpy  # noqa: F401

from blindsight.core import storage
from blindsight.index import HammingIndex
from blindsight.index.bulk import Spool
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.vault import Photo, Vault

KINDS = {
    "no space": (0, 0),
    "input/output": (1, 0),
    "torn": (2, 0),
    "full for good": (0, 1),
    "killed": (3, 0),
}
KINDS["killed in a write"] = (4, 0)
SHIM = ctypes.CDLL(None)


class JournalScenario:
    """Codes of an index: acknowledged ones are there as they were, nothing is there by halves."""

    compacting = False

    def prepare(self, folder: Path) -> None:
        HammingIndex.create(folder / "x.index", 64).close()

    def work(self, folder: Path, attempt) -> None:
        index = attempt("open", lambda: HammingIndex.open(folder / "x.index"))
        if index is None:
            return
        for number in range(3):
            attempt(
                f"add {number}",
                lambda n=number: index.add(np.full((4, 8), n, np.uint8), ids=np.arange(4) + 4 * n),
            )
        attempt("remove 1", lambda: index.remove(np.arange(4, 8)))
        if (
            self.compacting
        ):  # by itself: a compaction would clear away what a failed append left behind
            attempt("compact", index.compact)
        attempt("add 3", lambda: index.add(np.full((4, 8), 3, np.uint8), ids=np.arange(12, 16)))
        index.close()

    def check(self, folder: Path, done: set[str], tried: set[str]) -> None:
        for found in (HammingIndex.load(folder / "x.index"), HammingIndex.open(folder / "x.index")):
            for number in range(4):
                ids = np.arange(4) + 4 * number
                present = [int(key) in found for key in ids]
                assert all(present) or not any(present), f"add {number} is there by halves"
                if any(present):
                    assert f"add {number}" in tried
                    assert (found.codes_of(ids) == number).all()
                removed = number == 1 and "remove 1" in tried
                assert any(present) or f"add {number}" not in done or removed, (
                    f"add {number} is lost"
                )
                assert not (
                    any(present) and number == 1 and "remove 1" in done and "add 1" in done
                ), "back again"
        found.add(np.full((4, 8), 9, np.uint8), ids=np.arange(100, 104))
        found.close()
        assert 100 in HammingIndex.load(folder / "x.index")


class CompactionScenario(JournalScenario):
    """The same with a compaction in between."""

    compacting = True


class SpoolScenario:
    """Shards of a job: what was published is there, whole, and once."""

    def prepare(self, folder: Path) -> None:
        pass  # the first beginning fails too

    def work(self, folder: Path, attempt) -> None:
        spool = attempt("begin", lambda: Spool.begin(folder / "s", "job"))
        if spool is None:
            return
        for key in ("a", "b"):
            codes = {"codes": np.full((3, 2), ord(key), np.uint8)}
            attempt(f"publish {key}", lambda k=key, c=codes: spool.publish(k, c, {"names": [k]}))
        attempt("taken a", lambda: spool.taken("a"))

    def check(self, folder: Path, done: set[str], tried: set[str]) -> None:
        again = Spool.begin(folder / "s", "job")
        for key in ("a", "b"):
            present = key in again.finished()
            assert present or f"publish {key}" not in done or (key == "a" and "taken a" in tried), (
                f"{key} is lost"
            )
            if present:
                assert (again.read(key)[0]["codes"] == ord(key)).all()
        assert again.publish("c", {"codes": np.zeros((1, 1), np.uint8)}, {})


class LedgerScenario:
    """Charges under keys: an acknowledged one stands, and trying again charges what is missing,
    once.
    """

    def prepare(self, folder: Path) -> None:
        with Ledger(folder / "ledger.db", dataset="ward-7") as ledger:
            ledger.grant(Cost(epsilon=10, unit="record"))
            ledger.grant(Cost(epsilon=100, unit="pixel"))

    def work(self, folder: Path, attempt) -> None:
        ledger = attempt("open", lambda: Ledger(folder / "ledger.db", dataset="ward-7"))
        if ledger is None:
            return
        costs = (Cost(epsilon=1, unit="record"), Cost(epsilon=7, unit="pixel"))
        for number in range(2):
            attempt(
                f"charge {number}",
                lambda n=number: ledger.charge(costs, what="release", key=f"release {n}"),
            )
        attempt("close", ledger.close)

    def check(self, folder: Path, done: set[str], tried: set[str]) -> None:
        costs = (Cost(epsilon=1, unit="record"), Cost(epsilon=7, unit="pixel"))
        with Ledger(folder / "ledger.db", dataset="ward-7") as ledger:
            ledger.verify()
            keys = [entry.key for entry in ledger.entries() if entry.kind == "charge"]
            for number in range(2):
                assert keys.count(f"release {number}") in (0, 2)
                assert f"release {number}" in keys or f"charge {number}" not in done, (
                    "an acknowledged charge is lost"
                )
                ledger.charge(costs, what="release", key=f"release {number}")
            assert (
                ledger.balance("record").spent.epsilon == 2
                and ledger.balance("pixel").spent.epsilon == 14
            )
            ledger.verify()


class VaultScenario:
    """Records and released codes: what was noted stays as it was, and the key is never half a
    key.
    """

    def prepare(self, folder: Path) -> None:
        pass

    def work(self, folder: Path, attempt) -> None:
        vault = attempt("open", lambda: Vault.open_or_create(folder / "v"))
        if vault is None:
            return
        attempt(f"number {vault.number}", lambda: True)
        attempt("photos", lambda: vault.keep_photos([Photo("a.jpg", "1"), Photo("b.jpg", "2")]))
        codes = np.arange(8, dtype=np.uint8).reshape(2, 4)
        attempt("codes", lambda: vault.keep_codes("r", ["1", "2"], codes))
        attempt("other codes", lambda: vault.keep_codes("r", ["1", "2"], codes + 1))
        attempt("gone", lambda: vault.keep_photos([], gone=["a.jpg"]))

    def check(self, folder: Path, done: set[str], tried: set[str]) -> None:
        vault = Vault.open_or_create(folder / "v")
        number = next((name.split()[1] for name in done if name.startswith("number")), vault.number)
        assert vault.number == number, "the key was replaced"
        photos, codes = vault.photos(), vault.codes("r")
        assert len(photos) in (0, 1, 2) and ("photos" not in done or "b.jpg" in photos)
        assert len(codes) in (0, 2) and not ("codes" in done and not codes)
        if "codes" in done:
            assert codes == {"1": bytes(range(4)), "2": bytes(range(4, 8))}
        assert not ("gone" in done and "a.jpg" in photos)
        vault.note(still="works")


class FileScenario:
    """A whole file: the old one or the new one."""

    def prepare(self, folder: Path) -> None:
        storage.write_atomically(folder / "f", b"old" * 1000)

    def work(self, folder: Path, attempt) -> None:
        attempt("write", lambda: storage.write_atomically(folder / "f", b"new" * 2000))
        attempt("again", lambda: storage.write_atomically(folder / "f", b"newest" * 500))

    def check(self, folder: Path, done: set[str], tried: set[str]) -> None:
        content = (folder / "f").read_bytes()
        assert content in {b"old" * 1000, b"new" * 2000, b"newest" * 500}
        assert content != b"old" * 1000 or not done
        assert content == b"newest" * 500 or "again" not in done


SCENARIOS: dict[str, Any] = {
    "journal": JournalScenario,
    "compaction": CompactionScenario,
    "spool": SpoolScenario,
    "ledger": LedgerScenario,
    "vault": VaultScenario,
    "file": FileScenario,
}


def child(scenario: Any, folder: Path, arm: tuple[int, int, int]) -> tuple[set[str], set[str], int]:
    """Run the work with one fault in a process of its own: what was acknowledged, what was tried,
    how many calls.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        say = lambda *words: os.write(writer, (json.dumps(words) + "\n").encode())  # noqa: E731

        def attempt(name: str, action: Any) -> Any:
            say("tried", name)
            try:
                result = action()
            except Exception as error:
                if os.environ.get("FAULTS_SHOW"):
                    print(name, repr(error)[:200], file=sys.stderr)
                return None
            say("done", name)
            return True if result is None else result

        SHIM.faults_arm(*arm, str(folder).encode())
        try:
            scenario.work(folder, attempt)
        except BaseException:
            traceback.print_exc()
        say("count", SHIM.faults_count())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        said = [json.loads(line) for line in lines]
    os.waitpid(pid, 0)
    words = {
        kind: {word for said_kind, word in said if said_kind == kind} for kind in ("done", "tried")
    }
    count = next((word for kind, word in said if kind == "count"), 0)
    return words["done"], words["tried"], count


def _rehearse(scenario: Any, base: Path) -> None:
    """Work and check once without a fault, in a folder of its own: what is computed once per
    process, such as the text of SQL statements, need not be computed by every child anew.
    """
    done: set[str] = set()

    def attempt(name: str, action: Any) -> Any:
        result = action()
        done.add(name)
        return True if result is None else result

    folder = base / "rehearsal"
    shutil.copytree(base / "start", folder)
    scenario.work(folder, attempt)
    scenario.check(folder, done, done)
    shutil.rmtree(folder)


def run(name: str, base: Path) -> int:
    scenario, failed = SCENARIOS[name](), 0
    (base / "start").mkdir()
    scenario.prepare(base / "start")
    _rehearse(scenario, base)
    gc.disable()  # a child ends before anything would be worth collecting
    for kind, (what, sticky) in KINDS.items():
        at = 0
        while True:
            at += 1
            folder = base / "work"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(base / "start", folder)
            done, tried, count = child(scenario, folder, (at, what, sticky))
            try:
                checker = os.fork()  # a process of its own, as after a restart
                if checker == 0:
                    code = 1
                    try:
                        scenario.check(folder, done, tried)
                        code = 0
                    except BaseException:
                        traceback.print_exc()
                    os._exit(code)
                assert os.waitpid(checker, 0)[1] == 0
            except AssertionError:
                print(
                    f"{name}: operation {at}, {kind}: acknowledged {sorted(done)}", file=sys.stderr
                )
                raise
            if count and at >= count:
                break
            failed += 1
    return failed


if __name__ == "__main__":
    print(run(sys.argv[1], Path(sys.argv[2])))
