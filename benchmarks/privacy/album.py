"""What the vault costs a folder of photos, and a model that thousands of random operations must agree with."""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.harness import Row
from blindsight.data import to_rgb
from blindsight.data.reading import SUFFIXES, read_image
from blindsight.index import HammingIndex, photos
from blindsight.index.album import charge, keep_in_step
from blindsight.index.bulk import sketch_to
from blindsight.index.encoder import Recipe, load_encoder, make_encoder
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault, content_digest
from blindsight.sketching import FlippedBits

__all__ = ["Album", "album_rows"]


def album_rows(*, quick: bool, seed: int = 0) -> Iterator[Row]:
    """The vault's share of hashing time, and random operations against a model."""
    with tempfile.TemporaryDirectory(prefix="blindsight-album-") as folder:
        yield _overhead(Path(folder), 64 if quick else 128, repeats=3 if quick else 11)
    with tempfile.TemporaryDirectory(prefix="blindsight-album-") as folder:
        yield _model(Path(folder), 500 if quick else 10_000, seed)
    with tempfile.TemporaryDirectory(prefix="blindsight-album-") as folder:
        yield _kills(Path(folder), 20 if quick else 200, seed)


class Album:
    """A folder, its vault, its release and its ledger, as `blindsight hash` keeps them."""

    def __init__(self, base: Path, recipe: Recipe) -> None:
        self.base, self.folder, self.out = base, base / "album", base / "ix"
        self.folder.mkdir()
        self.vault = Vault.create(base / "ix.vault")
        self.encoder: Any = photos.function_of(self.vault, recipe, make_encoder, load_encoder)
        self.guarantee = photos.stated(self.encoder.guarantee, names="random")
        self.law = photos.law_of(self.encoder, self.guarantee)
        self.number = self.vault.release_of(self.law)
        self.ledger = Ledger(base / "ledger.db", dataset="album")
        self.ledger.grant(Cost(epsilon=10**6, unit="record"))

    def step(self, *, prune: bool = False) -> None:
        """Charge, and bring the release up to date."""
        names = list(photos.photo_names(self.folder, SUFFIXES))
        found = photos.scan(self.folder, names, self.vault)
        charge(self.guarantee, self.vault, self.number, self.ledger)
        place = photos.PhotoFolder(self.out, self.encoder.recipe.to_fields(), self.vault.number, self.number)
        place.write()
        keep_in_step(place, self.folder, found, self.vault, self.encoder, self.guarantee, self.law, prune=prune)

    def codes(self) -> dict[str, bytes]:
        """What is given away."""
        stored = HammingIndex.load(self.out / "codes.index")
        return {key: code.tobytes() for ids, rows in stored.items() for key, code in zip(ids, rows, strict=True)}


def _overhead(base: Path, count: int, *, repeats: int) -> Row:
    """A whole first run against reading, encoding and drawing alone, with the network's features where it is here."""
    from blindsight.index.encoder import default_features

    album = Album(base, Recipe(features=default_features()))
    for number in range(count):
        _picture(album.folder / f"{number}.jpg", number, side=1024)
    paths = sorted(album.folder.iterdir())

    def whole() -> None:
        shutil.rmtree(album.out, ignore_errors=True)
        shutil.rmtree(album.vault.path / "shards", ignore_errors=True)
        (album.vault.path / "records.db").unlink(missing_ok=True)
        album.vault = Vault(album.vault.path)
        album.step()

    def bare() -> None:
        (base / "bare.index").unlink(missing_ok=True)
        with HammingIndex.create(base / "bare.index", album.encoder.n_bits, names=True) as index:
            for start in range(0, len(paths), 64):
                names = [path.name for path in paths[start : start + 64]]
                images = [to_rgb(read_image(path), album.encoder.recipe.size) for path in paths[start : start + 64]]
                index.add(album.encoder.release(names, np.stack(images)), ids=names)

    whole()
    bare()
    turns = [(_cpu(whole), _cpu(bare)) for _ in range(repeats)]
    # Each turn by itself: on a busy machine turns differ more than the two in one of them.
    ratio = statistics.median(ours / peer for ours, peer in turns)
    return Row(
        id="index.hash_overhead",
        value=100 * (ratio - 1),
        unit="% of hashing time (lower is better)",
        peer="reading, features, cell, fresh noise and an index under names, without vault or ledger",
        seconds=statistics.median(ours for ours, _ in turns),
        note=f"{count} photos of 1024 x 1024, features {album.encoder.recipe.features}, CPU time, {repeats} turns",
    )


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _model(base: Path, operations: int, seed: int) -> Row:
    """Move, copy, rename, delete, re-add, prune, lose the index: one code per content, and one charge."""
    rng = random.Random(seed)
    album = Album(base, Recipe(features="pixels", method="codebook"))
    truth: dict[bytes, bytes] = {}
    shelf: list[bytes] = []
    done, start = 0, time.perf_counter()
    while done < operations:
        for _ in range(rng.randrange(1, 25)):
            _act(rng, album.folder, shelf)
            done += 1
        if rng.random() < 0.1 and album.out.exists():
            shutil.rmtree(album.out)
        prune = rng.random() < 0.5
        album.step(prune=prune)
        stored = album.codes()
        contents = {path.read_bytes() for path in album.folder.rglob("*.png")}
        for content in contents:
            code = stored[album.vault.record_of(content_digest(content))]
            if truth.setdefault(content, code) != code:
                raise AssertionError("a second code of one image")
        if prune and len(stored) != len(contents):
            raise AssertionError("the index is not in step")
    spent = album.ledger.balance("record").spent.epsilon
    if spent != album.guarantee.epsilon:
        raise AssertionError(f"one release was charged {spent}")
    album.ledger.close()
    return Row(
        id="index.random_operations",
        value=float(done),
        unit="operations on a folder, all as the model says",
        seed=seed,
        seconds=time.perf_counter() - start,
        note=f"{len(truth):,} distinct images met, one charge of {spent:g}",
    )


def _kills(base: Path, kills: int, seed: int) -> Row:
    """kill -9 in the middle of hashing and of sketching: what is stored stays as it is, each job is charged once."""
    rng = random.Random(seed)
    album = Album(base, Recipe(features="pixels", method="codebook"))
    pixels = np.random.default_rng(seed).integers(0, 255, (120, 8, 8), dtype=np.uint8)
    flipper = FlippedBits(4.0).fit(pixels)
    album.ledger.grant(Cost(epsilon=10**6, unit="pixel"))
    number = job = done = 0
    codes: dict[str, bytes] = {}
    start = time.perf_counter()
    while done < kills:
        if rng.random() < 0.5:
            for _ in range(40):
                _picture(album.folder / f"{number}.png", number)
                number += 1
            done += _killed(rng, album.step)
            kept = album.vault.codes(album.number)
            if not codes.items() <= kept.items():
                raise AssertionError("a released code changed")
            codes = kept
        else:
            target = base / f"sketches {job}"
            done += _killed(rng, lambda target=target: _sketch(target, pixels, flipper, album.ledger))  # type: ignore[misc]
            if target.exists():
                job += 1
    album.step()
    if album.codes() != album.vault.codes(album.number) or len(album.codes()) != number:
        raise AssertionError("the index does not hold what was released")
    _sketch(base / f"sketches {job}", pixels, flipper, album.ledger)
    charged = [entry.key for entry in album.ledger.entries() if entry.kind == "charge"]
    jobs = {key for key in charged if key.startswith("sketches")}
    if charged.count(f"release {album.number}") != 1 or len(jobs) != job + 1:
        raise AssertionError(f"{job + 2} jobs were charged {len(charged)} times")
    album.ledger.verify()
    album.ledger.close()
    return Row(
        id="index.kills_survived",
        value=float(done),
        unit="kill -9, nothing released twice or changed, each job charged once",
        seed=seed,
        seconds=time.perf_counter() - start,
        note=f"{number:,} photos and {job + 1} files of sketches",
    )


def _sketch(target: Path, pixels: Any, flipper: Any, ledger: Ledger) -> None:
    sketch_to(target, pixels, flipper, block=6, ledger=ledger)


def _killed(rng: random.Random, work: Callable[[], object]) -> int:
    """Run the work in a child that is killed at a random moment; 1 if it was killed before it ended by itself."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    time.sleep(rng.uniform(0.0, 0.25))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError("the work failed before it was killed")
    return int(os.WIFSIGNALED(status))


def _act(rng: random.Random, folder: Path, shelf: list[bytes]) -> None:
    there = sorted(folder.rglob("*.png"))
    kind = rng.choice(["move", "copy", "delete", "back", "new"])
    target = folder / rng.choice(["", "a", "b/c"]) / f"{rng.randrange(60)}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("move", "copy") and there:
        source = rng.choice(there)
        if source != target:
            (shutil.move if kind == "move" else shutil.copy)(str(source), str(target))
    elif kind == "delete" and len(there) > 2:
        rng.choice(there).unlink()
    elif kind == "back" and shelf:
        target.write_bytes(rng.choice(shelf))
    else:
        _picture(target, rng.randrange(400))
        shelf.append(target.read_bytes())


def _picture(path: Path, number: int, *, side: int = 12) -> None:
    small = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(small).resize((side, side)).save(path)
