"""The embedded index: the contract in memory and on disk, structures, threads, compaction."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from blindsight.core import durable
from blindsight.core.codes import hamming
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index import HNSW, IVF, Flat, HammingIndex
from index.index_contract import IndexContract, random_codes


class TestInMemory(IndexContract):
    @pytest.fixture
    def make(self):
        def build(n_bits, *, source=None, **options):
            return HammingIndex.load(source) if source else HammingIndex(n_bits, **options)

        return build


class TestOnDisk(IndexContract):
    @pytest.fixture
    def make(self, tmp_path):
        made = []

        def build(n_bits, *, source=None, **options):
            index = HammingIndex.open(source) if source else None
            index = index or HammingIndex.create(tmp_path / f"{len(made)}.index", n_bits, **options)
            made.append(index)
            return index

        yield build
        for index in made:
            index.close()


def recall(index: HammingIndex, queries: np.ndarray, codes: np.ndarray) -> float:
    truth = np.sort(hamming(queries, codes), axis=1)[:, 9]
    hits = index.search(queries, k=10)
    return float(
        np.mean([hit.distance <= truth[row] for row, found in enumerate(hits) for hit in found])
    )


@pytest.mark.parametrize("structure", [IVF(cells=16, probes=8), HNSW(links=16, effort=64)])
def test_an_approximate_structure_keeps_up_with_changes(structure, tmp_path):
    # Codes around 20 centres: what approximate structures are for.
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (20, 8), dtype=np.uint8)
    noise = np.packbits(rng.random((3000, 64)) < 0.1, axis=1)
    codes = centres[rng.integers(0, 20, 3000)] ^ noise
    index = HammingIndex.create(tmp_path / "x", 64, structure=structure)
    index.add(codes[:1000])
    assert recall(index, codes[:50], codes[:1000]) > 0.8
    index.add(codes[1000:])
    assert recall(index, codes[:50], codes) > 0.8
    index.remove(np.arange(500))
    assert all(hit.id >= 500 for found in index.search(codes[:20], k=10) for hit in found)
    index.close()
    back = HammingIndex.open(tmp_path / "x")
    assert back.structure == structure
    assert recall(back, codes[500:550], codes[500:]) > 0.8
    back.close()


def test_too_few_codes_to_train_are_scanned_exactly():
    index = HammingIndex(64, structure=IVF(cells=64))
    codes = random_codes(100, 64)
    index.add(codes)
    assert recall(index, codes[:10], codes) == 1.0


def test_a_structure_must_be_one_of_ours():
    with pytest.raises(InvalidParameter, match="structure"):
        HammingIndex(8, structure="flat")
    assert HammingIndex(8).structure == Flat()


def test_the_guarantee_must_be_a_guarantee_and_the_model_must_fit():
    from blindsight.core.codes import MatchModel

    with pytest.raises(InvalidParameter, match="guarantee"):
        HammingIndex(8, guarantee="epsilon 1")
    with pytest.raises(InvalidParameter, match="bits"):
        HammingIndex(8, decoding=MatchModel.independent_bits(16, 0.1, prior=0.1))


def test_searches_run_while_codes_come_and_go():
    """A reader never sees an id beside another id's code, whatever writers do meanwhile."""
    codes = random_codes(4000, 64)
    index = HammingIndex(64)
    index.add(codes[:2000])
    wrong: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            hits = index.search(codes[:50], k=5)
            truth = hamming(codes[:50], codes)
            wrong.extend(
                hit.id
                for row, found in enumerate(hits)
                for hit in found
                if truth[row, hit.id] != hit.distance
            )

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(2000, 4000, 100):
        index.add(codes[start : start + 100], ids=np.arange(start, start + 100))
        index.remove(np.arange(start - 2000, start - 2000 + 60))
        index.add(codes[start - 2000 : start - 1970], ids=np.arange(start - 2000, start - 1970))
    stop.set()
    reader.join()
    assert not wrong


def test_a_durable_index_remembers_every_change(tmp_path):
    rng = np.random.default_rng(0)
    shadow: dict[int, bytes] = {}
    path = tmp_path / "x.index"
    HammingIndex.create(path, 40).close()
    for _ in range(5):
        with HammingIndex.open(path) as index:
            for _ in range(6):
                ids = rng.choice(60, 10, replace=False)
                if rng.random() < 0.3:
                    index.remove(ids)
                    for key in ids.tolist():
                        shadow.pop(key, None)
                else:
                    codes = rng.integers(0, 256, (10, 5), dtype=np.uint8)
                    index.add(codes, ids=ids)
                    shadow.update(
                        zip(ids.tolist(), (code.tobytes() for code in codes), strict=True)
                    )
        back = HammingIndex.load(path)
        assert contents(back) == shadow


def contents(index: HammingIndex) -> dict[int, bytes]:
    return {
        key: code.tobytes()
        for ids, rows in index.items()
        for key, code in zip(ids.tolist(), rows, strict=True)
    }


def test_compaction_takes_removed_codes_off_the_disk(tmp_path):
    path = tmp_path / "x.index"
    secret = np.frombuffer(b"a-very-secret-code-of-32-bytes!!", dtype=np.uint8)[None]
    with HammingIndex.create(path, 256) as index:
        index.add(secret, ids=[1])
        index.add(random_codes(10, 256), ids=np.arange(2, 12))
        index.remove([1])
        assert secret.tobytes() in path.read_bytes()
        index.compact()
        assert secret.tobytes() not in path.read_bytes()
        index.add(random_codes(1, 256, seed=9), ids=[50])
        before = contents(index)
    assert contents(HammingIndex.load(path)) == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.index"]


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "x.index"
    with HammingIndex.create(path, 8) as index:
        with pytest.raises(InvalidData, match="open for writing elsewhere"):
            HammingIndex.open(path)
        index.compact()
        with pytest.raises(InvalidData, match="open for writing elsewhere"):
            HammingIndex.open(path)
        index.add(random_codes(2, 8))
        assert len(HammingIndex.load(path)) == 2  # readers may come
    HammingIndex.open(path).close()


def test_a_lock_on_a_file_that_was_just_replaced_is_no_lock(tmp_path, monkeypatch):
    """Between opening and locking, another writer may compact: what is appended to the old file
    would be lost.
    """
    path = tmp_path / "x.index"
    HammingIndex.create(path, 8).close()
    lock = fcntl.flock

    def late(descriptor, how):
        lock(descriptor, how)
        shutil.copy(path, tmp_path / "new")
        os.replace(tmp_path / "new", path)

    monkeypatch.setattr(durable.fcntl, "flock", late)
    with pytest.raises(InvalidData, match="being replaced"):
        HammingIndex.open(path)


def test_a_closed_index_answers_but_does_not_change(tmp_path):
    index = HammingIndex.create(tmp_path / "x", 8)
    index.add(random_codes(2, 8))
    index.close()
    assert len(index.search(random_codes(1, 8), k=2)[0]) == 2
    with pytest.raises(InvalidData, match="closed"):
        index.add(random_codes(2, 8))
    with pytest.raises(InvalidData, match="closed"):
        index.remove([0])


def test_an_existing_file_is_not_overwritten_by_create(tmp_path):
    path: Path = tmp_path / "x"
    path.write_text("a letter")
    with pytest.raises(InvalidData, match="exists"):
        HammingIndex.create(path, 8)
    assert path.read_text() == "a letter"


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    for way in (HammingIndex.open, HammingIndex.load):
        with pytest.raises(InvalidData, match="no index file"):
            way(tmp_path / "nothing")


def test_many_queries_are_searched_in_batches(monkeypatch):
    from blindsight.index import hamming

    monkeypatch.setattr(hamming, "_COUNTER_BYTES", 5000)
    codes = random_codes(100, 16)
    index = HammingIndex(16)
    index.add(codes)
    hits = index.search(codes, k=4)
    assert [found[0].distance for found in hits] == [0] * 100
    assert len(hits) == 100
