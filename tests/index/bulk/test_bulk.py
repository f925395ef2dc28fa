"""The same output here and on workers, whoever dies; Ray's workers are real processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindsight import data
from blindsight.cli.main import app
from blindsight.core import storage
from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter
from blindsight.data import ImageSet
from blindsight.data.sources import pixel_digest
from blindsight.hashing import LSH, CodebookHasher, PHashing
from blindsight.index import HammingIndex
from blindsight.index.bulk import (
    HERE,
    Here,
    OnRay,
    Spool,
    _make,
    hash_to,
    reach,
    records_of,
    release_named,
    sketch_to,
)
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.entropy import part_state
from blindsight.privacy.vault import Vault
from blindsight.sketching import FlippedBits, NegativeSketcher, SketchSet

DIGITS = data.load("digits")[:200]
PIXELS = DIGITS.array()
RAY = OnRay(shard=23)


def _hasher(seed=None, epsilon=6.0):
    hasher = PHashing(
        LSH(16, center=False, random_state=0),
        epsilon=epsilon,
        random_state=seed,
        learned_from="public",
    )
    return hasher.fit(PIXELS.reshape(len(PIXELS), -1) / 16.0)


def _release(hasher, names, images, source):
    return release_named(hasher, names, images.reshape(len(images), -1) / 16.0, source)


def _hashed(tmp_path, seed, pool, hasher=None, vault=None):
    index = HammingIndex(16, names=True)
    vault = vault or Vault.create(tmp_path / secrets.token_hex(4))
    release = functools.partial(_release, hasher or _hasher(seed))
    options = {"number": "1", "spool": tmp_path / "s", "pool": pool, "keyed": seed is None}
    done = hash_to(index, DIGITS, release, vault, **options)
    records = records_of(DIGITS, vault)
    assert (done.released, done.known, done.refused) == (len(set(records)), 0, ())
    assert not (tmp_path / "s").exists()
    return index.codes_of(list(dict.fromkeys(records)))


def _sketched(path, pool, *, seed=5, **options):
    sketcher = NegativeSketcher("Q6", random_state=seed).fit(PIXELS)
    sketch_to(path, DIGITS, sketcher, block=30, pool=pool, **options)
    assert sorted(left.name for left in path.parent.iterdir()) == [path.name]
    return path.read_bytes()


def test_workers_make_the_codes_that_are_made_here(ray_cluster, tmp_path):
    assert (_hashed(tmp_path, 7, OnRay(workers=2, shard=23)) == _hashed(tmp_path, 7, HERE)).all()


def test_workers_make_the_sketches_that_are_made_here(ray_cluster, tmp_path):
    for place in "ab":
        (tmp_path / place).mkdir()
    assert _sketched(tmp_path / "a" / "s", OnRay(workers=1)) == _sketched(
        tmp_path / "b" / "s", HERE
    )


def test_codes_do_not_hang_on_the_size_of_a_shard(tmp_path):
    hasher = CodebookHasher(epsilon=4.0, n_cells=16, random_state=1, learned_from="public").fit(
        PIXELS.reshape(len(PIXELS), -1) / 16.0
    )
    assert (
        _hashed(tmp_path, 1, Here(shard=7), hasher) == _hashed(tmp_path, 1, Here(shard=200), hasher)
    ).all()


def test_flipped_bits_have_other_dice_in_every_block(tmp_path):
    same = np.repeat(PIXELS[:1], 90, axis=0)
    flipper = FlippedBits(8.0, depth=8, random_state=0).fit(same)
    counts = sketch_to(tmp_path / "s", same, flipper, block=30).counts
    assert (counts[:30] != counts[30:60]).any()


def test_workers_make_the_codes_of_the_vault(ray_cluster, tmp_path):
    vault, other = Vault.create(tmp_path / "v"), Vault.create(tmp_path / "w")
    hasher = _hasher()
    here = _hashed(tmp_path, None, HERE, hasher, vault)
    again = Vault(tmp_path / "v")
    with closing(sqlite3.connect(tmp_path / "v" / "records.db")) as connection, connection:
        connection.execute("DELETE FROM codes")  # the key alone must be enough
    connection.close()
    assert (_hashed(tmp_path, None, RAY, hasher, again) == here).all()
    assert (_hashed(tmp_path, None, RAY, hasher, other) != here).any()


def test_copies_share_a_code_and_different_images_do_not_share_noise(tmp_path):
    vault = Vault.create(tmp_path / "v")
    images = ImageSet(np.repeat(PIXELS[:1], 60, axis=0))
    index = HammingIndex(16, names=True)
    release = functools.partial(_release, _hasher())
    hash_to(index, images, release, vault, number="1", spool=tmp_path / "s")
    assert len(index) == 1
    flat = PIXELS[:1].repeat(60, axis=0)
    flat[:, 0, 0] = np.arange(60)  # hardly different, and yet other records
    hash_to(index, ImageSet(flat), release, vault, number="1", spool=tmp_path / "s")
    codes = np.concatenate([rows for _, rows in index.items()])
    assert len(index) >= 60 and len(np.unique(codes, axis=0)) > 20


class Dies:
    """Work that writes down what it draws, and kills its worker at the first draw of one part."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.folder, self.at = folder, at

    def __call__(self, part):
        with (self.folder / "draws").open("a") as file:
            file.write(f"{part}\n")
        if part == self.at and self._first(part):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"noise": np.frombuffer(os.urandom(16), np.uint8)}, {"part": part}

    def _first(self, part) -> bool:
        try:
            (self.folder / f"died-{part}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class DiesAfterWriting(Spool):
    """A spool whose worker is killed right after shard 1 is in its place, before anyone hears of
    it.
    """

    def publish(self, key, arrays, fields):
        super().publish(key, arrays, fields)
        if key == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def _draws(tmp_path):
    return sorted(int(line) for line in (tmp_path / "draws").read_text().split())


def test_a_worker_killed_before_writing_loses_nothing(ray_cluster, tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    made = [
        fields["part"]
        for _, fields in RAY.run(Dies(tmp_path, 1), [(f"{i}", i) for i in range(4)], spool)
    ]
    assert sorted(made) == [0, 1, 2, 3]
    assert _draws(tmp_path) == [0, 1, 1, 2, 3]  # the first draw of 1 died with its worker, unseen
    assert all((tmp_path / "s" / f"{i}.shard").stat().st_size == 0 for i in range(4))


def test_a_worker_killed_after_writing_is_not_followed_by_a_second_draw(ray_cluster, tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    deadly = DiesAfterWriting(spool.path, spool.subject, spool.number, spool.run)
    made = [
        fields["part"]
        for _, fields in RAY.run(Dies(tmp_path, None), [(f"{i}", i) for i in range(4)], deadly)
    ]
    assert sorted(made) == [0, 1, 2, 3]
    assert _draws(tmp_path) == [0, 1, 2, 3]


class WaitsToBeKilled:
    """Reads a block's images; whoever reads first says which process it is and waits for its
    end.
    """

    def __init__(self, note: Path) -> None:
        self.note = note

    def __call__(self, images):
        with contextlib.suppress(FileExistsError), self.note.open("x") as file:
            print(os.getpid(), file=file, flush=True)
            time.sleep(600)
        return images.array()


def test_a_worker_killed_from_outside_changes_nothing(ray_cluster, tmp_path):
    note = tmp_path / "worker"

    def kill():
        while not note.exists() or not note.read_text().endswith("\n"):
            time.sleep(0.01)
        os.kill(int(note.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sketcher = NegativeSketcher("Q6", random_state=5).fit(PIXELS)
    made = sketch_to(
        tmp_path / "a" / "s", DIGITS, sketcher, block=50, pool=RAY, prepare=WaitsToBeKilled(note)
    )
    killer.join()
    here = sketch_to(tmp_path / "b" / "s", DIGITS, sketcher, block=50)
    assert (made.counts == here.counts).all()
    assert (made.labels == DIGITS.labels).all()


def test_a_shard_that_always_kills_its_worker_is_given_up_with_a_reason(ray_cluster, tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    with pytest.raises(Exception, match="run the same command again"):
        list(OnRay(retries=0).run(Dies(tmp_path, 0), [("0", 0)], spool))


def test_a_workers_own_error_comes_through(ray_cluster, tmp_path):
    images = ImageSet(np.zeros((40, 3, 3), np.uint8))
    sketcher = NegativeSketcher("Q6").fit(PIXELS)
    with pytest.raises(InvalidData, match="as in fit"):
        sketch_to(tmp_path / "s", images, sketcher, pool=RAY)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "there", "127.0.0.1:99999"]
)
def test_an_address_where_nothing_listens_is_refused_at_once(address):
    with pytest.raises(InvalidParameter, match=r"ray start --head|HOST:6379"):
        reach(address)


class Stop(Exception):
    pass


def _stop(done, total):
    if done >= 90:
        raise Stop


@pytest.mark.parametrize("seed", [5, None])
def test_a_stopped_job_goes_on_and_draws_nothing_twice(ray_cluster, tmp_path, seed):
    flipper = FlippedBits(8.0, random_state=seed).fit(PIXELS)
    with Ledger(tmp_path / "ledger.sqlite", dataset="digits") as ledger:
        ledger.grant(Cost(epsilon=10.0, unit="pixel"))
        with pytest.raises(Stop):
            sketch_to(
                tmp_path / "s", DIGITS, flipper, block=30, ledger=ledger, pool=RAY, progress=_stop
            )
        left = {path.name: path.read_bytes() for path in (tmp_path / "s.shards").glob("*.shard")}
        made = sketch_to(tmp_path / "s", DIGITS, flipper, block=30, ledger=ledger)
        charges = [entry for entry in ledger.entries() if entry.kind == "charge"]
    assert len(charges) == 1  # and 10 would not have paid for two
    for name, content in left.items():
        if content:  # finished before the stop and not yet taken in
            shard = Path(name).stem
            (tmp_path / f"{shard}.copy").write_bytes(content)
            arrays, fields = storage.load(tmp_path / f"{shard}.copy", kind="shard")
            assert (made.counts[fields["start"] : fields["start"] + 30] == arrays["counts"]).all()
    if seed is not None:
        assert (made.counts == sketch_to(tmp_path / "t", DIGITS, flipper, block=30).counts).all()


def test_a_job_that_cannot_be_paid_for_leaves_nothing(tmp_path):
    flipper = FlippedBits(8.0).fit(PIXELS)
    with Ledger(tmp_path / "ledger.sqlite", dataset="digits") as ledger:
        ledger.grant(Cost(epsilon=7.0, unit="pixel"))
        with pytest.raises(BudgetExceeded):
            sketch_to(tmp_path / "out" / "s", DIGITS, flipper, ledger=ledger)
    assert list((tmp_path / "out").iterdir()) == []


def test_finished_shards_of_a_dead_run_are_taken_in_not_redrawn(tmp_path):
    vault = Vault.create(tmp_path / "v")
    records = records_of(DIGITS, vault)
    spool = Spool.begin(tmp_path / "s", "1")
    old = np.full((2, 2), 9, np.uint8)
    digests = [pixel_digest(image).hex() for image in PIXELS]
    fields = {
        "names": ["0", "3"],
        "records": [records[0], records[3]],
        "digests": [digests[0], digests[3]],
    }
    spool.publish("000", {"codes": old}, {**fields, "refused": []})
    spool.publish(
        "001",
        {"codes": old[:1]},
        {"names": ["5"], "records": [records[5]], "digests": digests[:1], "refused": []},
    )
    index = HammingIndex(16, names=True)
    done = hash_to(
        index,
        DIGITS,
        functools.partial(_release, _hasher()),
        vault,
        number="1",
        spool=tmp_path / "s",
    )
    assert (index.codes_of([records[0], records[3]]) == old).all()
    assert [name for name, _ in done.refused] == ["5"], (
        "noise of one image on another's content does not leave"
    )
    assert len(index) == len(set(records))


def test_a_shared_generator_is_refused(tmp_path):
    sketcher = NegativeSketcher("Q6", random_state=np.random.default_rng(0)).fit(PIXELS)
    with pytest.raises(InvalidParameter, match="seed"):
        sketch_to(tmp_path / "s", DIGITS, sketcher)


def test_the_task_of_a_worker_leaves_a_finished_shard_alone(tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    _make(Dies(tmp_path, None), "a", 1, spool)
    before = spool.read("a")[0]["noise"]
    _make(Dies(tmp_path, None), "a", 1, spool)
    assert (spool.read("a")[0]["noise"] == before).all()
    assert _draws(tmp_path) == [1]


def test_parts_of_a_seed_are_apart_and_none_stays_none():
    draws = {np.random.default_rng(part_state(3, part)).integers(2**62) for part in range(50)}
    assert len(draws) == 50
    assert part_state(None, 4) is None


def test_the_verbs_take_workers(ray_cluster, tmp_path):
    from PIL import Image

    photos = tmp_path / "photos"
    photos.mkdir()
    for i, pixels in enumerate(PIXELS[:40]):
        Image.fromarray(pixels * 15).resize((24, 24)).save(photos / f"{i}.png")
    (photos / "broken.png").write_bytes(b"no picture")
    run = CliRunner()
    stored, sketched = [], []
    for options in ([], ["--ray", "local"]):
        out = tmp_path / f"index{len(options)}"
        done = run.invoke(
            app,
            [
                "protect",
                str(photos),
                "--out",
                str(out),
                "--features",
                "pixels",
                "--seed",
                "3",
                "--names",
                "keep",
                "--json",
                *options,
            ],
        )
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert (report["released"], len(report["refused"])) == (40, 1)
        index = HammingIndex.load(out / "codes.index")
        stored.append(index.codes_of([f"{i}.png" for i in range(40)]))
        (photos / "broken.png").unlink()
        target = tmp_path / f"sketches{len(options)}"
        done = run.invoke(
            app, ["sketch", str(photos), str(target), "--seed", "3", "--grey", "--json", *options]
        )
        assert done.exit_code == 0, done.output
        sketched.append(SketchSet.open(target).counts)
        (photos / "broken.png").write_bytes(b"no picture")
    assert (stored[0] == stored[1]).all()
    assert (sketched[0] == sketched[1]).all()
