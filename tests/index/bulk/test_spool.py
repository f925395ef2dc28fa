from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest

from blindsight.core.errors import HostileFile, InvalidData
from blindsight.index.bulk import Spool

CODES = {"codes": np.arange(6, dtype=np.uint8).reshape(3, 2)}


def test_only_the_first_of_two_writers_leaves_a_shard(tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    assert spool.publish("a", CODES, {"names": []})
    assert not spool.publish("a", {"codes": CODES["codes"] + 1}, {"names": []})
    assert (spool.read("a")[0]["codes"] == CODES["codes"]).all()
    assert sorted(path.name for path in spool.path.iterdir()) == ["a.shard", "job.json"]


def test_a_shard_taken_in_cannot_be_made_again_by_a_straggler(tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    spool.publish("a", CODES, {})
    spool.taken("a")
    assert list(spool.finished()) == []
    assert spool.has("a")
    assert not spool.publish("a", CODES, {})


def test_a_straggler_of_an_earlier_run_may_not_write(tmp_path):
    before = Spool.begin(tmp_path / "s", "job")
    before.publish("a", CODES, {})
    (tmp_path / "s" / ".b.half").write_bytes(b"half a shard")
    now = Spool.begin(tmp_path / "s", "job")
    assert now.number == before.number
    assert list(now.finished()) == ["a"]
    assert not (tmp_path / "s" / ".b.half").exists()
    with pytest.raises(InvalidData, match="taken it over"):
        before.publish("b", CODES, {})
    assert sorted(path.name for path in now.path.iterdir()) == ["a.shard", "job.json"]


def test_a_folder_is_removed_although_a_straggler_makes_and_deletes_a_file(tmp_path, monkeypatch):
    spool = Spool.begin(tmp_path / "s", "job")
    spool.publish("a", CODES, {})
    spool.taken("a")
    rmdir, unlink, late = os.rmdir, os.unlink, iter(["make", "delete"])

    def rmdir_late(path, **options):
        if next(late, None) == "make":
            (tmp_path / "s" / ".b.0123456789abcdef").touch()
        rmdir(path, **options)

    def unlink_late(path, **options):
        unlink(path, **options)
        if str(path).startswith(".b") and next(late, None) == "delete":
            raise FileNotFoundError(errno.ENOENT, "deleted by the straggler", str(path))

    monkeypatch.setattr(os, "rmdir", rmdir_late)
    monkeypatch.setattr(os, "unlink", unlink_late)
    spool.close()
    assert next(late, None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_straggler_does_not_make_a_removed_folder_anew(tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    spool.close()
    with pytest.raises(InvalidData, match="does not see the run's folder"):
        spool.publish("a", CODES, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "left", [".job.json.0123456789abcdef.part", ".a.0123456789abcdef", "a.shard"]
)
def test_a_run_killed_as_it_began_or_as_it_ended_is_taken_up(tmp_path, left):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / left).touch()
    spool = Spool.begin(tmp_path / "s", "job")
    assert [path.name for path in spool.path.iterdir()] == ["job.json"]
    assert spool.publish("a", CODES, {})


def test_a_worker_that_does_not_see_the_folder_is_told(tmp_path):
    spool = Spool.begin(tmp_path / "s", "job")
    (tmp_path / "s" / "job.json").unlink()
    with pytest.raises(InvalidData, match="all workers share"):
        spool.has("a")


def test_a_folder_of_something_else_is_refused(tmp_path):
    Spool.begin(tmp_path / "s", "these images")
    with pytest.raises(InvalidData, match="other images"):
        Spool.begin(tmp_path / "s", "those images")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(InvalidData, match="not a folder of shards"):
        Spool.begin(tmp_path / "mine", "job")
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps({"about": "job"}).encode()])
def test_a_damaged_job_file_is_refused(tmp_path, content):
    Spool.begin(tmp_path / "s", "job")
    (tmp_path / "s" / "job.json").write_bytes(content)
    with pytest.raises(HostileFile):
        Spool.begin(tmp_path / "s", "job")
