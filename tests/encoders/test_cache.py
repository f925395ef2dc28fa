from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import warm
from blindsight.encoders import FeatureCache, built_in, public_pictures
from blindsight.encoders.public_pictures import built_in_images, built_in_vectors, public_vectors

KEYS = [bytes([i]) * 20 for i in range(6)]
VECTORS = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    kept = FeatureCache(tmp_path / "deep" / "f.sqlite", 8)
    kept.put(KEYS, VECTORS)
    return kept


def change(cache: FeatureCache, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute(statement, values)
    connection.close()


def test_what_is_put_comes_back_bit_for_bit(cache: FeatureCache) -> None:
    found = cache.get([*KEYS, b"unknown"])
    assert set(found) == set(KEYS)
    np.testing.assert_array_equal(np.stack([found[key] for key in KEYS]), VECTORS)


def test_an_absent_cache_is_empty_and_is_not_made_by_looking(tmp_path: Path) -> None:
    assert FeatureCache(tmp_path / "f.sqlite", 8).get(KEYS) == {}
    assert not (tmp_path / "f.sqlite").exists()


@pytest.mark.parametrize("damage", [b"", b"short", bytes(32), VECTORS[1].tobytes()])
def test_a_damaged_entry_counts_as_absent_and_is_replaced(
    damage: bytes, cache: FeatureCache
) -> None:
    change(cache, "UPDATE features SET vector = ? WHERE key = ?", damage, KEYS[0])
    assert set(cache.get(KEYS)) == set(KEYS[1:])
    cache.put(KEYS[:1], VECTORS[:1])
    assert set(cache.get(KEYS)) == set(KEYS)


def test_an_entry_moved_to_another_key_is_noticed(cache: FeatureCache) -> None:
    change(cache, "DELETE FROM features WHERE key = ?", KEYS[1])
    change(cache, "UPDATE features SET key = ? WHERE key = ?", KEYS[1], KEYS[0])
    assert KEYS[1] not in cache.get(KEYS)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + bytes(4000)])
def test_a_file_that_is_no_database_is_replaced(content: bytes, cache: FeatureCache) -> None:
    cache.path.write_bytes(content)
    assert cache.get(KEYS) == {}
    cache.put(KEYS, VECTORS)
    cache.put(KEYS, VECTORS)
    assert set(cache.get(KEYS)) == set(KEYS)


def test_every_flipped_byte_is_noticed_or_harmless(cache: FeatureCache) -> None:
    whole = cache.path.read_bytes()
    rng = np.random.default_rng(1)
    for where in rng.choice(len(whole), 150, replace=False):
        damaged = bytearray(whole)
        damaged[where] ^= 1 << rng.integers(8)
        cache.path.write_bytes(damaged)
        for key, vector in cache.get(KEYS).items():
            np.testing.assert_array_equal(vector, VECTORS[KEYS.index(key)])


def test_a_place_that_cannot_be_written_is_simply_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    blocked = FeatureCache(tmp_path / "file" / "f.sqlite", 8)
    blocked.put(KEYS, VECTORS)
    assert blocked.get(KEYS) == {}


WRITER = """
import sys
import numpy as np
from pathlib import Path
from blindsight.encoders import FeatureCache
cache = FeatureCache(Path(sys.argv[1]), 8)
for i in range(100):
    cache.put([b"%s %d" % (sys.argv[2].encode(), i)], np.full((1, 8), i, np.float32))
    cache.get([b"0 %d" % i, b"1 %d" % i])
"""


def test_several_processes_may_write_at_once(memory_path: Path) -> None:
    # In memory: on a disk that takes seconds for a commit, one writer may keep the other out for
    # the minute that it waits, and a batch that cannot be stored is not.
    path = memory_path / "f.sqlite"
    log = memory_path / "log"
    writers = [warm.Process(["-c", WRITER, path, str(w)], output=log) for w in range(2)]
    assert [writer.wait(600) for writer in writers] == [0, 0], log.read_text()
    found = FeatureCache(path, 8).get([f"{w} {i}".encode() for w in range(2) for i in range(100)])
    assert len(found) == 200 and found[b"1 42"].tolist() == [42.0] * 8


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache folder, and the encoders for which vectors had to be computed."""
    monkeypatch.setenv("BLINDSIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(public_pictures, "_public", type(public_pictures._public)())
    return []


def ask(asked: list[str], encoder: str = "a", content: bytes = b"names") -> np.ndarray:
    def compute() -> np.ndarray:
        asked.append(encoder)
        return VECTORS + len(encoder)

    return public_vectors(encoder, content, len(VECTORS), compute)


def test_public_vectors_are_computed_once_for_each_encoder_and_content(asked: list[str]) -> None:
    first = ask(asked)
    assert ask(asked) is first and not first.flags.writeable
    public_pictures._public.clear()  # as in another process
    np.testing.assert_array_equal(ask(asked), first)
    assert asked == ["a"]
    assert ask(asked, "bb")[0, 0] == VECTORS[0, 0] + 2
    ask(asked, content=b"other names")
    assert asked == ["a", "bb", "a"]


@pytest.mark.parametrize("damage", ["cut", "flip", "other rows"])
def test_damaged_public_vectors_are_computed_again(
    asked: list[str], tmp_path: Path, damage: str
) -> None:
    ask(asked)
    (file,) = (tmp_path / "features").iterdir()
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-5])
    elif damage == "flip":
        file.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    public_pictures._public.clear()
    if damage == "other rows":
        made = public_vectors("a", b"names", 2, lambda: VECTORS[:2])
        assert made.shape == (2, 8)
        return
    ask(asked)
    assert asked == ["a", "a"] and file.read_bytes() == whole


def test_public_vectors_need_no_place_on_disk(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BLINDSIGHT_CACHE", str(tmp_path / "file"))
    np.testing.assert_array_equal(ask(asked), VECTORS + 1)


def test_vectors_of_the_built_in_pictures_are_the_encoders_own(asked: list[str]) -> None:
    encoder = built_in("lite0")
    pictures = np.stack([encoder.prepare(picture) for picture in built_in_images(4, 64)])
    expected = encoder.images(pictures)
    np.testing.assert_array_equal(built_in_vectors(encoder, 4, 64), expected)
    public_pictures._public.clear()
    np.testing.assert_array_equal(built_in_vectors(encoder, 4, 64), expected)
