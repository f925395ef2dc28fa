"""The workbench's jobs that release (codes of a folder, a tagger, published tags, a metric), to be
killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.privacy.kills import charges
from blindsight.app.library import photos as photo_library
from blindsight.app.library.datasets import DataSet, Release, today
from blindsight.index import encoder
from blindsight.privacy import Ledger
from blindsight.tagging import DPTraining, PrivateTagger
from blindsight.workbench import WorkbenchSettings, create_app
from blindsight.workbench.infra import job_process
from blindsight.workbench.infra.database import Database
from blindsight.workbench.infra.jobs import ENDED, Jobs
from blindsight.workbench.pages.home import open_account

__all__ = ["Workbench"]

_COLOURS = {
    "dusk": (200, 90, 60),
    "grass": (60, 150, 50),
    "night": (15, 20, 60),
    "sand": (220, 190, 130),
}
_STEPS = ("release", "learn", "publish", "compare")


class Workbench:
    """One job after the other, each of the four kinds in turn, each on a data set and an account of
    its own.
    """

    kinds = len(_STEPS)

    def __init__(self, base: Path, rng: random.Random) -> None:
        # The network is not what is tested here.
        encoder.default_features = lambda *, fast=False: "pixels"
        self._base, self.due = base, 0
        (base / "state").mkdir()
        self._settings = WorkbenchSettings(state=base / "state", keys="off", photo_budget=64.0)
        self._workbench: Any = create_app(self._settings).state.workbench
        self._sets: list[DataSet] = []
        self._job = ""

    def begin(self) -> None:
        step, datasets = _STEPS[self.due % 4], self._workbench.datasets
        # Photos of its own: those of another data set would be charged to both accounts.
        one = datasets.add(
            f"Photos {self.due}", _photos(self._base / f"photos {self.due}", self.due)
        )
        open_account(self._workbench, one)
        self._sets.append(photo_library.scan(datasets, one, lambda *_: None))
        kind, arguments = self._order(self._sets[-1], step)
        self._job = self._workbench.jobs.add(kind, arguments, "local")["id"]
        self.due += 1

    def run(self) -> None:
        """As the workbench does: claim the job, tell its process on standard input which one it
        is.
        """
        jobs = Jobs(Database(self._settings.database_url), self._settings)
        if jobs.get(self._job)["state"] in ENDED:
            jobs.rerun(self._job)
        if jobs.get(self._job)["state"] == "queued":
            jobs.claim()
        told = {
            "settings": self._settings.to_fields(),
            "job": self._job,
            "attempt": jobs.get(self._job)["attempts"],
        }
        reading, writing = os.pipe()
        os.write(writing, json.dumps(told).encode() + b"\n")
        os.dup2(reading, 0)
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115  (for as long as the process lives)
        job_process.main()
        if (state := jobs.get(self._job))["state"] != "done":
            raise AssertionError(state["note"])

    def stored(self) -> dict[str, bytes]:
        """The files of releases; an index's own file grows, so its codes are looked at in the
        vault. A hidden folder is one still being written: it is no release before it has its name,
        and the next attempt replaces it.
        """
        given = self._workbench.datasets.given
        found = {
            str(path): hashlib.sha256(path.read_bytes()).digest()
            for path in given.rglob("*")
            if path.is_file()
            and path.suffix in (".safetensors", ".csv")
            and not path.relative_to(given).parts[0].startswith(".")
        }
        database = self._settings.state / "vault" / "records.db"
        with sqlite3.connect(database) as connection:  # it may have to undo what a kill left
            rows = connection.execute("SELECT release, record, code FROM codes").fetchall()
        connection.close()
        found |= {f"{release} {record}": code for release, record, code in rows}
        return found

    def charged(self) -> int:
        count = 0
        for one in self._sets:
            with Ledger(self._settings.ledger_place, dataset=one.account) as ledger:
                count += charges(ledger)
        return count

    def _order(self, one: DataSet, step: str) -> tuple[str, dict[str, Any]]:
        datasets, number = self._workbench.datasets, secrets.token_hex(6)
        vault, photos = datasets.vault(one), datasets.photos(one)
        if step == "release":
            made = Release(
                number, "search", datasets.named(one, "search", 4.0, number), 4.0, 0, today(), False
            )
            return "protect", {"step": "release", "dataset": one.id, "release": asdict(made)}
        if step == "compare":
            pairs = [(a, b) for a in photos[:9] for b in photos if a != b]
            said = [
                [a.id, b.id, "same" if a.name[:2] == b.name[:2] else "different"] for a, b in pairs
            ]
            (vault / "pairs.json").write_text(json.dumps(said))
            return "compare", {"dataset": one.id}
        if step == "publish":
            shows = np.array(
                [[photo.name.startswith(name) for name in _COLOURS] for photo in photos], np.uint8
            )
            tagger = PrivateTagger(DPTraining(epsilon=8.0, steps=5), classes=list(_COLOURS))
            tagger.fit(photo_library.rows_of(datasets, one), shows).save(
                vault / "tagger.safetensors"
            )
        return "tags", {"dataset": one.id, "step": step}


def _photos(folder: Path, seed: int) -> Path:
    """Twenty photos of each of four colours."""
    rng = np.random.default_rng(seed)
    for kind, colour in _COLOURS.items():
        (folder / kind).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(colour + rng.normal(0, 12, (36, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder
