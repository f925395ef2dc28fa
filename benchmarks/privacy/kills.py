"""kill -9 over all work that releases: what is stored stays as it is, and each release is charged
once.

    python -m benchmarks.privacy.kills 200                # spread over hashing, sketches, tags and
    the workbench's jobs python -m benchmarks.privacy.kills 12 --of workbench     # of one kind

Each kind of work runs in children that are killed at random moments, half of them soon after a
charge was seen, and taken up again. After every kill all that was stored before must be there,
unchanged. A piece of work that is done is run once more: that changes nothing and costs nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import select
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import sklearn.cluster  # noqa: F401  (forked children need not read it again)

from benchmarks.privacy.album import Album, picture
from blindsight.core.errors import UnchargedRelease
from blindsight.core.storage import write_atomically
from blindsight.data import ImageSet
from blindsight.index.bulk import sketch_to
from blindsight.index.encoder import CodeRecipe
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault
from blindsight.sketching import FlippedBits, SketchSet
from blindsight.sketching.sketches import SketchWriter
from blindsight.tagging import CodebookAnswers, DPTraining, PrivateTagger
from blindsight.tagging.photos import publish, train_once

__all__ = ["KINDS", "Work", "charges", "survive"]

_POLL = 0.02  # seconds between two looks at a ledger, each of which verifies it


class Work(Protocol):
    """Work that releases, piece after piece, of so many `kinds` in turn; `due` is what all pieces
    so far should have been charged.
    """

    due: int
    kinds: int

    def begin(self) -> None:
        """Order the next piece."""

    def run(self) -> None:
        """Do what was ordered, or what is left of it: in a child that may be killed."""

    def stored(self) -> dict[str, bytes]:
        """What was released so far."""

    def charged(self) -> int:
        """How many charges stand in a ledger that verifies."""


class Hashing:
    """Forty photos more in a folder, and its release brought up to date."""

    kinds = 1

    def __init__(self, base: Path, rng: random.Random) -> None:
        self._album, self._photos, self.due = (
            Album(base, CodeRecipe(features="pixels", method="codebook")),
            0,
            1,
        )

    def begin(self) -> None:
        for _ in range(40):
            picture(self._album.folder / f"{self._photos}.png", self._photos)
            self._photos += 1

    def run(self) -> None:
        self._album.step()

    def stored(self) -> dict[str, bytes]:
        kept = self._album.vault.codes(self._album.number)
        given = self._album.codes() if (self._album.out / "codes.index").exists() else {}
        if not given.items() <= kept.items():
            raise AssertionError("the index holds what the vault does not")
        return kept

    def charged(self) -> int:
        return charges(self._album.ledger)


class Sketching:
    """A file of sketches."""

    kinds = 1

    def __init__(self, base: Path, rng: random.Random) -> None:
        pixels = np.random.default_rng(rng.randrange(2**32)).integers(
            0, 255, (120, 8, 8), dtype=np.uint8
        )
        self._images = ImageSet(pixels, names=np.arange(120).astype(str))
        self._base, self._flipper, self.due = base, FlippedBits(4.0).fit(pixels), 0
        self._ledger = Ledger(base / "ledger.db", dataset="sketches")
        self._ledger.grant(Cost(epsilon=10**6, unit="pixel"))

    def begin(self) -> None:
        self.due += 1

    def run(self) -> None:
        if self._target(
            self.due
        ).exists():  # killed after the end; without a vault a finished file is refused
            return
        sketch_to(self._target(self.due), self._images, self._flipper, block=6, ledger=self._ledger)

    def stored(self) -> dict[str, bytes]:
        return {
            name: block
            for number in range(1, self.due + 1)
            for name, block in self._blocks(self._target(number))
        }

    def charged(self) -> int:
        return charges(self._ledger)

    def _target(self, number: int) -> Path:
        return self._base / f"sketches {number}"

    def _blocks(self, target: Path) -> list[tuple[str, bytes]]:
        """The finished blocks of a file, which may itself be unfinished."""
        if target.exists():
            counts = SketchSet.open(target).counts
            blocks = {
                start: np.ascontiguousarray(counts[start : start + 6]).tobytes()
                for start in range(0, 120, 6)
            }
        elif target.with_name(target.name + ".part").exists():
            writer = SketchWriter.of(target, self._flipper, self._images, block=6)
            size = 6 * int(np.prod(writer._item)) * writer._dtype.itemsize
            content = writer.partial.read_bytes()[writer._counts_at :]
            blocks = {
                int(b) * 6: content[int(b) * size : int(b) * size + size]
                for b in np.flatnonzero(writer.done)
            }
        else:
            blocks = {}
        return [(f"{target.name}, {start}", block) for start, block in blocks.items()]


class Tagging:
    """A tagger that is trained, and its answers for 120 photos, forty more at a time."""

    kinds = 1

    def __init__(self, base: Path, rng: random.Random) -> None:
        self._rng, self._base, self.due = np.random.default_rng(rng.randrange(2**32)), base, 0
        self._vault, self._ledger = (
            Vault.create(base / "vault"),
            Ledger(base / "ledger.db", dataset="tags"),
        )
        self._ledger.grant(
            Cost(epsilon=10**6, delta=0.5, unit="record", neighbours="add or remove one")
        )
        self._ledger.grant(Cost(epsilon=10**6, unit="query"))

    def begin(self) -> None:
        self._rows = self._rng.normal(size=(120, 8)).astype(np.float32)
        self._labels = (self._rows @ self._rng.normal(size=(8, 4)) > 0.5).astype(np.uint8)
        self._records = [self._vault.record_of(row.tobytes()) for row in self._rows]
        self.due += 2

    def run(self) -> None:
        tagger = PrivateTagger(DPTraining(steps=3), CodebookAnswers(4.0, k=6), classes=4)
        tagger = train_once(
            tagger, self._rows, self._labels, vault=self._vault, ledger=self._ledger
        )
        for end in range(40, len(self._rows) + 1, 40):
            answers = publish(
                tagger,
                self._records[:end],
                self._rows.__getitem__,
                vault=self._vault,
                ledger=self._ledger,
            )
        given = self._base / f"answers {self.due}.npy"
        if given.exists() and not np.array_equal(np.load(given), answers.scores):
            raise AssertionError("a second answer for one photo")
        whole = io.BytesIO()
        np.save(whole, answers.scores)
        write_atomically(given, whole.getvalue())  # a kill must find all of it or nothing

    def stored(self) -> dict[str, bytes]:
        models = {
            path.name: _digest(path) for path in (self._vault.path / "models").glob("*.safetensors")
        }
        return models | self._answers()

    def charged(self) -> int:
        return charges(self._ledger)

    def _answers(self) -> dict[str, bytes]:
        return {
            f"{release.release} {record}": code
            for release in self._vault.releases()
            for record, code in self._vault.codes(release.release).items()
        }


def _workbench(base: Path, rng: random.Random) -> Work:
    from benchmarks.privacy.workbench_kills import Workbench

    return Workbench(base, rng)


KINDS: dict[str, Callable[[Path, random.Random], Work]] = {
    "hash": Hashing,
    "sketch": Sketching,
    "tag": Tagging,
    "workbench": _workbench,
}


def survive(work: Work, kills: int, rng: random.Random) -> dict[str, int]:
    """Kill the work so many times; how many came after a charge, and how much was released in the
    end.
    """
    kept: dict[str, bytes] = {}
    counts = {"kills": 0, "after the charge": 0, "pieces": 0}
    usual = 0.0  # the first piece is left alone, and says how long one takes
    while counts["kills"] < kills or counts["pieces"] <= work.kinds:
        work.begin()
        counts["pieces"] += 1
        start = time.monotonic()
        for attempt in range(rng.randrange(1, 5) if usual else 0):
            if not _killed(rng, work, usual):
                # It was quicker than the piece before: on a busy machine by much, and most of the
                # next kills would come too late.
                usual = usual if attempt else time.monotonic() - start
                break
            counts["kills"] += 1
            counts["after the charge"] += work.charged() == work.due
            kept = _unchanged(kept, work.stored())
        _end(work)
        usual = usual or time.monotonic() - start
        kept = _unchanged(kept, work.stored())
        _end(work)
        if work.stored() != kept:
            raise AssertionError("run again, a release changed")
        if work.charged() != work.due:
            raise AssertionError(f"{work.due} releases were charged {work.charged()} times")
    return counts | {"released": len(kept)}


def charges(ledger: Ledger) -> int:
    """Count the releases that a ledger was charged for, after verifying it.

    A release has one key. Entries without a cost, which only note that photos joined an account,
    are no charges.
    """
    ledger.verify()
    return len(
        {
            entry.key or entry.sequence
            for entry in ledger.entries()
            if entry.kind == "charge" and (entry.micro_epsilon, entry.pico_rho) != (0, 0)
        }
    )


def _unchanged(before: dict[str, bytes], now: dict[str, bytes]) -> dict[str, bytes]:
    if not before.items() <= now.items():
        raise AssertionError("what was released has changed")
    return now


def _started(work: Work) -> tuple[int, int]:
    """The process id of a child at work, and the end of a pipe that is closed when the child
    ends.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        work.run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _killed(rng: random.Random, work: Work, usual: float) -> bool:
    """Whether the child was killed before it ended by itself."""
    child, running = _started(work)
    soon = rng.random() < 0.5
    while soon and not _ended(running, _POLL) and work.charged() < work.due:
        pass  # the checks below say what it was
    if not _ended(running, rng.uniform(0, usual / 2 if soon else usual)):
        os.kill(child, signal.SIGKILL)
    os.close(running)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError("the work failed before it was killed")
    return os.WIFSIGNALED(status)


def _ended(running: int, seconds: float) -> bool:
    """Wait so long for a child's end; whether it came."""
    return bool(select.select([running], [], [], seconds)[0])


def _end(work: Work) -> None:
    child, running = _started(work)
    os.close(running)
    if os.waitpid(child, 0)[1]:
        raise AssertionError("the work failed")


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def main() -> None:
    """Print one line of JSON for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kills", type=int)
    parser.add_argument("--of", choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore", UnchargedRelease)
    chosen = [given.of] if given.of else list(KINDS)
    for kind in chosen:
        rng = random.Random(f"{given.seed} {kind}")
        with tempfile.TemporaryDirectory(prefix="blindsight-kills-") as folder:
            found = survive(KINDS[kind](Path(folder), rng), -(-given.kills // len(chosen)), rng)
        print(json.dumps({"of": kind} | found), flush=True)


if __name__ == "__main__":
    main()
