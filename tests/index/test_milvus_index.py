"""The same contract on Milvus Lite, and what only Milvus has."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blindsight.core.codes import hamming
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.index import HammingIndex, MilvusIndex
from index.index_contract import GUARANTEE, IndexContract, random_codes

pytestmark = pytest.mark.real


@pytest.fixture
def uri(milvus):
    return milvus


@pytest.fixture
def make(uri):
    made = []

    def build(n_bits, *, source=None, **options):
        name = f"test_{len(made)}"
        if source:
            index = MilvusIndex.load(source, uri, collection=name)
        else:
            index = MilvusIndex(uri, n_bits, collection=name, **options)
        made.append(index)
        return index

    yield build
    for index in made:
        index.drop()
        index.close()


class TestMilvus(IndexContract):
    """The contract as it stands."""


def test_a_collection_found_again_knows_its_guarantee(make, uri):
    index = make(24, names=True, guarantee=GUARANTEE)
    index.add(random_codes(3, 24), ids=["a", "b", "c"])
    again = MilvusIndex(uri, collection=index.collection)
    assert (again.n_bits, again.names, again.guarantee, len(again)) == (24, True, GUARANTEE, 3)
    again.close()


def test_ids_added_again_and_again_are_counted_once(make):
    """Milvus Lite's own count is wrong in about one of three cases: 40 in a row would not pass."""
    index = make(24)
    for _ in range(40):
        index.add(random_codes(2, 24), ids=[5, 6])
        index.add(random_codes(2, 24), ids=[6, 5])
        assert len(index) == 2
        assert index.remove([5]) == 1
        assert len(index) == 1


def test_a_change_is_seen_by_the_next_reader(make):
    """Milvus Lite shows a change to readers of the next millisecond: 40 in a row would not pass."""
    index = make(24)
    rng = np.random.default_rng(0)
    for _ in range(40):
        codes = rng.integers(0, 256, (2, 3), dtype=np.uint8)
        index.add(codes, ids=[5, 6])
        np.testing.assert_array_equal(index.codes_of([6, 5]), codes[::-1])
        index.remove([5])
        assert [hit.id for hit in index.search(codes[:1], k=2)[0]] == [6]
        index.remove([6])
        assert index.search(codes[:1], k=2)[0] == []


def test_a_server_that_answers_before_it_is_ready_is_waited_for(make, uri, monkeypatch):
    import pymilvus

    begin, said = pymilvus.MilvusClient.create_collection, ["Mmap manager has not been init."] * 2

    def create(client, name, **options):
        begin(client, name, **options)
        if said:  # half of it was done
            raise pymilvus.MilvusException(message=said.pop(0))

    monkeypatch.setattr(pymilvus.MilvusClient, "create_collection", create)
    index, codes = make(24), random_codes(3, 24)
    index.add(codes)
    assert len(index) == 3
    assert not said
    said.append("the disk is full")
    with pytest.raises(pymilvus.MilvusException, match="disk is full"):
        MilvusIndex(uri, 24, collection="elsewhere")
    index._client.drop_collection("elsewhere")


def milvus_program(folder, monkeypatch, script):
    """Let Milvus Lite run this shell script in place of its own program."""
    real = Path(importlib.util.find_spec("milvus_lite").origin).parent / "lib"
    folder.mkdir()
    program = folder / "milvus"
    program.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("BIN_PATH", str(folder))


def gated_milvus_program(folder, monkeypatch, script, *, after):
    """The same, but it runs the script only after so many attempts to connect have failed; returns
    the failures.
    """
    import pymilvus

    from blindsight.index import milvus

    gate, failures, connect = folder.with_name("gate"), [], pymilvus.MilvusClient
    milvus_program(folder, monkeypatch, f"until [ -e {gate} ]; do sleep 0.05; done; {script}")

    def attempt(*args, **options):
        try:
            return connect(*args, **options)
        except pymilvus.MilvusException as error:
            failures.append(error)
            if len(failures) == after:
                gate.touch()
            raise

    monkeypatch.setattr(pymilvus, "MilvusClient", attempt)
    monkeypatch.setattr(milvus, "_ATTEMPT_SECONDS", 0.1)
    return failures


def test_a_milvus_that_is_slow_to_start_is_waited_for(tmp_path, monkeypatch):
    script = 'LD_LIBRARY_PATH=$REAL exec $REAL/milvus "$@"'
    failures = gated_milvus_program(tmp_path / "bin", monkeypatch, script, after=2)
    index = MilvusIndex(tmp_path / "slow.db", 8)
    assert len(failures) >= 2
    index.add(random_codes(3, 8))
    assert len(index) == 3
    index.close()


def test_a_milvus_that_never_serves_is_named_after_the_stated_time(tmp_path, monkeypatch):
    from blindsight.index import milvus

    milvus_program(tmp_path / "bin", monkeypatch, "exec sleep 600")
    monkeypatch.setattr(milvus, "_START_SECONDS", 0.3)
    monkeypatch.setattr(milvus, "_ATTEMPT_SECONDS", 0.1)
    with pytest.raises(InvalidData, match=r"never\.db did not answer within 0\.3 s"):
        MilvusIndex(tmp_path / "never.db", 8)
    monkeypatch.undo()
    MilvusIndex(tmp_path / "never.db", 8).close()  # nothing of the first attempt is in the way


def test_a_milvus_that_dies_while_it_starts_is_named(tmp_path, monkeypatch):
    gated_milvus_program(tmp_path / "bin", monkeypatch, "exit 7", after=1)
    with pytest.raises(InvalidData, match="ended with exit code 7 before it answered"):
        MilvusIndex(tmp_path / "dies.db", 8)
    milvus_program(tmp_path / "at once", monkeypatch, "exit 7")
    wait = subprocess.Popen.wait

    def patient(process, timeout=None):  # half a second is not enough where the machine is busy
        return wait(process, None if timeout == 0.5 else timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", patient)
    with pytest.raises(InvalidData, match="cannot open"):
        MilvusIndex(tmp_path / "dies.db", 8)
    with pytest.raises(InvalidData, match="does not exist"):
        MilvusIndex(tmp_path / "nowhere" / "dies.db", 8)


def test_a_milvus_that_is_slow_to_end_is_waited_for(tmp_path, monkeypatch):
    index, wait, given = MilvusIndex(tmp_path / "slow.db", 8), subprocess.Popen.wait, []

    def slow(process, timeout=None):  # it neither ends by itself nor as soon as it is killed
        given.append(timeout)
        if len(given) <= 2:
            raise subprocess.TimeoutExpired("milvus", timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", slow)
    index.close()
    assert given[:2] == [2, 3]
    assert not (tmp_path / ".slow.db.lock").exists()


OPENS = """
import sys
from blindsight.index import MilvusIndex
for _ in sys.stdin:
    try:
        print("entries", len(MilvusIndex(sys.argv[1])), flush=True)
    except ValueError as error:
        print(error, flush=True)
"""


def test_a_closed_index_leaves_its_file_to_other_processes(tmp_path):
    index, second = (MilvusIndex(tmp_path / "lite.db", 8) for _ in range(2))
    index.add(random_codes(3, 8))
    index.close()
    index.close()
    assert len(second) == 3  # the file is still in use here
    command = [sys.executable, "-W", "ignore", "-c", OPENS, tmp_path / "lite.db"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as other:
        other.stdin.write("open\n")
        assert "another process has it open" in other.stdout.readline()
        assert (tmp_path / ".lite.db.lock").exists()  # and stays locked by this one
        second.close()
        other.stdin.write("open\n")
        assert other.stdout.readline() == "entries 3\n"
        other.stdin.close()


def test_a_collection_of_another_length_is_refused(make, uri):
    index = make(24)
    with pytest.raises(InvalidParameter, match="24-bit"):
        MilvusIndex(uri, 32, collection=index.collection)
    with pytest.raises(InvalidParameter, match="give n_bits"):
        MilvusIndex(uri, collection="nowhere")
    with pytest.raises(InvalidParameter, match="letters"):
        MilvusIndex(uri, 8, collection="a; drop b")


def test_radius_answers_larger_than_milvus_gives_are_whole(make, monkeypatch):
    from blindsight.index import milvus

    monkeypatch.setattr(milvus, "_LARGEST_ANSWER", 20)
    codes, query = random_codes(100, 16), random_codes(1, 16, seed=1)
    index = make(16)
    index.add(codes)
    found = index.within(query, 8)[0]
    assert {hit.id for hit in found} == set(np.flatnonzero(hamming(query, codes)[0] <= 8).tolist())
    assert len(found) > 20
    with pytest.raises(InvalidParameter, match="at most 20"):
        index.search(query, k=21)


def test_a_hostile_file_never_reaches_milvus(uri, tmp_path):
    path = tmp_path / "x.index"
    embedded = HammingIndex.create(path, 8)
    embedded.add(random_codes(4, 8))
    embedded.close()
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(HostileFile):
        MilvusIndex.load(path, uri, collection="hostile")


def test_loading_does_not_mix_with_what_is_there(make, uri, tmp_path):
    index = make(8)
    index.add(random_codes(4, 8))
    index.save(tmp_path / "x.index")
    with pytest.raises(InvalidData, match="not empty"):
        MilvusIndex.load(tmp_path / "x.index", uri, collection=index.collection)


def test_both_engines_find_the_same_in_the_same_files(make, tmp_path):
    codes, queries = random_codes(500, 48), random_codes(10, 48, seed=2)
    embedded = HammingIndex(48)
    embedded.add(codes)
    embedded.remove([5, 6])
    embedded.save(tmp_path / "x.index")
    cluster = make(48, source=tmp_path / "x.index")
    ours, theirs = embedded.search(queries, k=15), cluster.search(queries, k=15)
    np.testing.assert_array_equal(ours.distances, theirs.distances)
    for mine, other in zip(embedded.within(queries, 17), cluster.within(queries, 17), strict=True):
        assert {(hit.id, hit.distance) for hit in mine} == {(hit.id, hit.distance) for hit in other}
