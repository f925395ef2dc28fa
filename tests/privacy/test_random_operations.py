"""Random operations on photos, a vault and a ledger, against a model of a few lines.

The model knows which pictures have been given away by which release, whatever the files are called
and however they are compressed, and what each account was granted. After every operation no picture
may have cost more than the budget of any data set that holds it.
"""

from __future__ import annotations

import io
import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.core.errors import BudgetExceeded, RolledBack
from blindsight.data import sources
from blindsight.privacy.cost import Cost
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.reconcile import ReleaseOnDisk, reconcile, resolve
from blindsight.privacy.vault import Vault

# In all; `BLINDSIGHT_OPERATIONS=10000` takes a few minutes.
OPERATIONS = int(os.environ.get("BLINDSIGHT_OPERATIONS", "400"))
BUDGET = {"holidays": 30, "album": 20}


@pytest.fixture
def decoded_here(monkeypatch):
    """Our own pictures need no confined process."""
    from blindsight.data.reading import decode_here

    monkeypatch.setattr(sources, "decode_image", decode_here)


class World:
    """Files, a vault, a ledger, a backup of both, and what outsiders have been given."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.random, self.folder = random.Random(seed), folder
        self.files: dict[str, dict[str, bytes]] = {name: {} for name in BUDGET}
        self.shown: dict[bytes, int] = {}  # the picture of each file's bytes: the model's truth
        self.given: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.price: dict[str, int] = {}
        self.held: dict[str, set[int]] = {name: set() for name in BUDGET}
        self.on_disk: dict[str, ReleaseOnDisk] = {}
        self.rolled_back, self.named, self.refused, self.paid = 0, 0, 0, 0
        Vault.create(folder / "vault")
        for name, budget in BUDGET.items():
            with self.ledger(name) as ledger:
                ledger.grant(Cost(epsilon=budget, unit="record"))
        self.back_up()

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.folder / "ledger.db", dataset=name)

    def name(self) -> str:
        return self.random.choice(list(BUDGET))

    def encoded(self, picture: int) -> bytes:
        pixels = np.random.default_rng(picture).integers(0, 255, (6, 6, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        kind = self.random.choice(["PNG", "BMP", "TIFF"])
        options = {"compress_level": self.random.randrange(10)} if kind == "PNG" else {}
        Image.fromarray(pixels).save(buffer, kind, **options)
        self.shown[buffer.getvalue()] = picture
        return buffer.getvalue()

    # Operations

    def add(self) -> None:
        files = self.files[self.name()]
        files[f"{self.random.randrange(10**6)}"] = self.encoded(self.random.randrange(12))

    def copy(self) -> None:
        source, target = self.files[self.name()], self.files[self.name()]
        if source:
            target[f"copy {self.random.randrange(10**6)}"] = self.random.choice([*source.values()])

    def rename(self) -> None:
        files = self.files[self.name()]
        if files:
            old = self.random.choice([*files])
            files[f"renamed {self.random.randrange(10**6)}"] = files.pop(old)

    def encode_again(self) -> None:
        files = self.files[self.name()]
        if files:
            chosen = self.random.choice([*files])
            files[chosen] = self.encoded(self.shown[files[chosen]])

    def remove(self) -> None:
        files = self.files[self.name()]
        if files:
            del files[self.random.choice([*files])]

    def back_up(self) -> None:
        for name in ("vault.copy", "ledger.copy"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(self.folder / "vault", self.folder / "vault.copy")
        shutil.copy(self.folder / "ledger.db", self.folder / "ledger.copy.db")

    def restore_vault(self) -> None:
        shutil.rmtree(self.folder / "vault")
        shutil.copytree(self.folder / "vault.copy", self.folder / "vault")

    def restore_ledger(self) -> None:
        for left in self.folder.glob("ledger.db*"):
            left.unlink()
        shutil.copy(self.folder / "ledger.copy.db", self.folder / "ledger.db")

    def restore_both(self) -> None:
        self.restore_vault()
        self.restore_ledger()

    def release(self) -> None:
        """Release codes of a data set's pictures, as the product does; resolve what is named."""
        name, law = self.name(), f"law {self.random.randrange(30)}"
        if not self.files[name]:
            return
        vault, cost = Vault(self.folder / "vault"), 1 + int(law[-1]) % 2
        with self.ledger(name) as ledger:
            shown = list(self.on_disk.values())
            if not reconcile(vault, ledger, shown).agrees:
                self.named += 1
                try:
                    assert resolve(vault, ledger, "take over", releases=shown).agrees
                except BudgetExceeded:
                    resolve(vault, ledger, "close", releases=shown)
            with sources.recognising(vault) as recognise:
                records = {
                    recognise(file, name): self.shown[file] for file in self.files[name].values()
                }
            release = vault.release_of(law)
            try:
                vault.charge(
                    ledger,
                    Cost(epsilon=cost, unit="record"),
                    release=release,
                    what=law,
                    records=records,
                    releases=shown,
                )
            except BudgetExceeded:
                self.refused += 1
                return
            except RolledBack:
                self.rolled_back += 1
                return
            self.paid += 1
            ids = sorted(records)
            source = vault.source(ids, about=release)
            noise = b"".join(source.stream(f"{record}/law").bytes(8) for record in ids)
            kept = vault.keep_codes(release, ids, np.frombuffer(noise, np.uint8).reshape(-1, 8))
            self.on_disk[release] = ReleaseOnDisk(
                release, vault.number, release, (Cost(epsilon=cost, unit="record"),)
            )
        self.held[name] |= set(records.values())
        self.price[release] = cost
        for record, code in zip(ids, kept, strict=True):
            picture = records[record]
            before = self.given[release].setdefault(picture, code.tobytes())
            assert before == code.tobytes(), "a picture was released twice under one charge"

    def check(self) -> None:
        """No picture has cost more than the budget of a data set that it is released from."""
        for picture in range(12):
            cost = sum(self.price[r] for r, codes in self.given.items() if picture in codes)
            for name, budget in BUDGET.items():
                if picture in self.held[name]:
                    assert cost <= budget, f"picture {picture} has cost {cost} of {budget}"


@pytest.mark.parametrize("seed", range(2))
def test_no_picture_goes_beyond_its_grant(tmp_path, decoded_here, seed):
    worlds = []
    for number in range(max(1, OPERATIONS // 400)):
        worlds.append(World(tmp_path / f"{number}", 1000 * seed + number))
        _live(worlds[-1])
    for happened in ("paid", "refused", "named"):
        assert sum(getattr(world, happened) for world in worlds) > 0, happened


def _live(world: World) -> None:
    quiet = [world.add, world.copy, world.rename, world.encode_again, world.remove, world.back_up]
    loud = [world.restore_vault, world.restore_ledger, world.restore_both]
    for _ in range(200):
        world.random.choices(
            [*quiet, *loud, world.release], [10, 4, 4, 4, 4, 1, 0.4, 0.4, 0.2, 10]
        )[0]()
        world.check()
