"""What the vault costs a folder of photos, and a model that thousands of random operations must
agree with.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image, PngImagePlugin

from benchmarks.harness import Row
from blindsight.data.listing import list_photos
from blindsight.data.sources import Files, content_digest
from blindsight.index import HammingIndex, bulk
from blindsight.index import encoder as photo_encoder
from blindsight.index import release_folder as photos
from blindsight.index.encoder import (
    CodeRecipe,
    PhotoEncoder,
    load_encoder,
    make_encoder,
    release_named,
)
from blindsight.index.release_folder import sync_release
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault

__all__ = ["Album", "album_rows", "picture"]


def album_rows(*, quick: bool, seed: int = 0) -> Iterator[Row]:
    """The vault's share of hashing time, and random operations against a model."""
    with tempfile.TemporaryDirectory(prefix="blindsight-album-") as folder:
        yield _overhead(Path(folder), 64, runs=3 if quick else 15)
    with tempfile.TemporaryDirectory(prefix="blindsight-album-") as folder:
        yield _model(Path(folder), 500 if quick else 10_000, seed)
    yield _kills(16 if quick else 200, seed)


class Album:
    """A folder, its vault, its release and its ledger, as `blindsight protect` keeps them."""

    def __init__(self, base: Path, recipe: CodeRecipe) -> None:
        self.base, self.folder, self.out = base, base / "album", base / "ix"
        self.folder.mkdir()
        self.vault = Vault.create(base / "ix.vault")
        self.encoder: Any = photos.encoder_in_vault(self.vault, recipe, make_encoder, load_encoder)
        self.guarantee = photos.folder_guarantee(self.encoder.guarantee, names="random")
        self.law = photos.mechanism_id(self.encoder, self.guarantee)
        self.number = self.vault.release_of(self.law)
        self.ledger = Ledger(base / "ledger.db", dataset="album")
        self.ledger.grant(Cost(epsilon=10**6, unit="record"))

    def step(self, *, prune: bool = False) -> None:
        """Charge, and bring the release up to date."""
        names = list_photos(self.folder).photos
        found = photos.scan(self.folder, names, self.vault)
        self.vault.charge(
            self.ledger,
            self.guarantee,
            release=self.number,
            what="codes of photos, each released once",
        )
        place = photos.ReleaseFolder(
            self.out, self.encoder.recipe.to_fields(), self.vault.number, self.number
        )
        self.out.mkdir(exist_ok=True)
        place.write()
        index = HammingIndex(self.encoder.n_bits, names=True, guarantee=self.guarantee)
        if place.codes.exists():
            index = place.stored(index)
        sync_release(
            place,
            index,
            self.folder,
            found,
            self.vault,
            self.encoder,
            self.guarantee,
            self.law,
            prune=prune,
        )
        index.save(place.codes)

    def codes(self) -> dict[str, bytes]:
        """What is given away."""
        stored = HammingIndex.load(self.out / "codes.index")
        return {
            key: code.tobytes()
            for ids, rows in stored.items()
            for key, code in zip(ids, rows, strict=True)
        }


def _overhead(base: Path, count: int, *, runs: int) -> Row:
    """A first run over a folder, with the network's features where it is here: what is spent beside
    the bare work.

    Both are measured in the same run, by CPU time: on a busy machine two runs differ by more than
    what is looked for.
    """
    from blindsight.index.encoder import default_features

    album = Album(base, CodeRecipe(features=default_features()))
    for number in range(count):
        picture(album.folder / f"{number}.jpg", number, side=1024)
    shares = []
    for _ in range(runs + 1):
        shutil.rmtree(album.out, ignore_errors=True)
        (album.vault.path / "records.db").unlink(missing_ok=True)
        album.vault = Vault(album.vault.path)
        with _Stopwatch() as watch:
            album.step()
        shares.append(100 * (watch.total / watch.bare - 1))
    low, middle, high = statistics.quantiles(shares[1:], n=4)  # the first run warms up
    return Row(
        id="index.hash_overhead",
        value=middle,
        unit="% of hashing time (lower is better)",
        seconds=watch.total,
        note="vault, ledger, digests and keyed noise against reading, decoding, features, cell, "
        "fresh noise, storing; "
        f"{count} photos of 1024 x 1024, features {album.encoder.recipe.features}; CPU time, "
        f"median of {runs} "
        f"runs, half of them between {low:.2f} and {high:.2f}",
    )


class _Stopwatch:
    """CPU time of a run, and of what hashing would do without a vault: with fresh noise instead of
    keyed.
    """

    def __init__(self) -> None:
        self.total = self.bare = 0.0
        self._patched = contextlib.ExitStack()

    def __enter__(self) -> _Stopwatch:
        for owner, name in (
            (Files, "content"),
            (bulk, "decode_image"),
            (bulk, "to_rgb"),
            (PhotoEncoder, "rows"),
            (HammingIndex, "add"),
        ):
            self._patched.enter_context(
                mock.patch.object(owner, name, self._timed(getattr(owner, name)))
            )
        self._patched.enter_context(
            mock.patch.object(photo_encoder, "release_named", self._keyed(release_named))
        )
        gc.collect()
        self.total -= time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.total += time.process_time()
        self._patched.close()

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            start = time.process_time()
            found = work(*given, **named)
            self.bare += time.process_time() - start
            return found

        return timed

    def _keyed(self, release: Callable[..., Any]) -> Callable[..., Any]:
        """The keyed noise is part of the run; the fresh noise in its place is drawn beside it, for
        the bare time.
        """

        def both(hasher: Any, names: list[str], rows: Any, source: Any) -> Any:
            start = time.process_time()
            release(hasher, names, rows)
            fresh = time.process_time() - start
            self.bare += fresh
            self.total -= fresh
            return release(hasher, names, rows, source)

        return both


def _model(base: Path, operations: int, seed: int) -> Row:
    """Move, copy, rename, rate, delete, re-add, prune, crash, lose the index: one code per picture,
    and one charge.
    """
    rng = random.Random(seed)
    album = Album(base, CodeRecipe(features="pixels", method="codebook"))
    truth: dict[bytes, bytes] = {}
    crashes = 0
    shelf: list[bytes] = []
    done, start = 0, time.perf_counter()
    while done < operations:
        for _ in range(rng.randrange(1, 25)):
            _act(rng, album.folder, shelf)
            done += 1
        if rng.random() < 0.1 and album.out.exists():
            shutil.rmtree(album.out)
        prune = rng.random() < 0.5
        while rng.random() < 0.2:
            crashes += _crashed(album, rng, prune=prune)
        album.step(prune=prune)
        stored = album.codes()
        contents = {content_digest(path.read_bytes()) for path in album.folder.rglob("*.png")}
        for content in contents:
            code = stored[album.vault.record_of(content)]
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
        note=f"{len(truth):,} distinct images met, {crashes:,} crashes, one charge of {spent:g}",
    )


def _crashed(album: Album, rng: random.Random, *, prune: bool) -> bool:
    """A run that ends before or after one of the writes that it consists of; whether it came so
    far.
    """
    owner, name = rng.choice(
        [
            (Ledger, "charge"),
            (Vault, "keep_photos"),
            (Vault, "keep_codes"),
            (HammingIndex, "add"),
            (HammingIndex, "save"),
        ]
    )
    write, left, early = getattr(owner, name), rng.randrange(1, 3), rng.random() < 0.5

    def failing(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left or not early:
            found = write(*given, **named)
            if left:
                return found
        raise KeyboardInterrupt

    with mock.patch.object(owner, name, failing):
        try:
            album.step(prune=prune)
        except KeyboardInterrupt:
            return True
    return False


def _kills(kills: int, seed: int) -> Row:
    """kill -9 over hashing, sketches, tags and the workbench's jobs, in a process that has no
    threads to fork.
    """
    start = time.perf_counter()
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.privacy.kills",
        str(kills),
        "--seed",
        str(seed),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return Row(
        id="index.kills_survived",
        value=float(sum(each["kills"] for each in found)),
        unit="kill -9, nothing released twice or changed, each release charged once",
        seed=seed,
        seconds=time.perf_counter() - start,
        note="; ".join(
            f"{each['of']}: {each['kills']} kills, {each['after the charge']} of them after the "
            "charge, in "
            f"{each['pieces']} jobs, {each['released']:,} stored values"
            for each in found
        ),
    )


def _act(rng: random.Random, folder: Path, shelf: list[bytes]) -> None:
    there = sorted(folder.rglob("*.png"))
    kind = rng.choice(["move", "copy", "rate", "delete", "back", "new"])
    target = folder / rng.choice(["", "a", "b/c"]) / f"{rng.randrange(60)}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("move", "copy") and there:
        source = rng.choice(there)
        if source != target:
            (shutil.move if kind == "move" else shutil.copy)(str(source), str(target))
    elif kind == "rate" and there:
        rated = rng.choice(there)
        with Image.open(rated) as image:
            words = PngImagePlugin.PngInfo()
            words.add_text("Rating", str(rng.randrange(6)))
            image.save(rated, pnginfo=words)
    elif kind == "delete" and len(there) > 2:
        rng.choice(there).unlink()
    elif kind == "back" and shelf:
        target.write_bytes(rng.choice(shelf))
    else:
        picture(target, rng.randrange(400))
        shelf.append(target.read_bytes())


def picture(path: Path, number: int, *, side: int = 12) -> None:
    """A small picture of its own for each number, enlarged to a side."""
    small = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(small).resize((side, side)).save(path)
