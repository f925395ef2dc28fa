"""Files: what was saved comes back; what was tampered with is refused, never run and never
half-written.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core import durable, storage
from blindsight.core.errors import BlindsightError, HostileFile, MissingData, UncheckedFile

ARRAYS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bits": np.array([True, False]),
    "n": np.array(3),
}
FIELDS = {"epsilon": 1.0, "name": "ward-7", "list": [1, 2]}


def test_arrays_and_fields_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    storage.save(path, kind="test", arrays=ARRAYS, fields=FIELDS)
    arrays, fields = storage.load(path, kind="test")
    assert fields == FIELDS
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert [entry.name for entry in path.parent.iterdir()] == ["model.safetensors"]


def test_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    storage.save(tmp_path / "m", kind="hasher", arrays=ARRAYS, fields=FIELDS)
    with pytest.raises(HostileFile, match=r"'hasher'.*expected a 'tagger'"):
        storage.load(tmp_path / "m", kind="tagger")


class _Bomb:
    def __reduce__(self) -> tuple:
        return (pytest.fail, ("a pickle was run",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 64,
        pickle.dumps(_Bomb()),
        (2**40).to_bytes(8, "little") + b"{}",
        b"\2\0\0\0\0\0\0\0{}",
    ],
    ids=["empty", "short", "ones", "pickle", "huge header", "no metadata"],
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(HostileFile):
        storage.load(tmp_path / "m", kind="test")


@settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_mutated_files_are_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m"
    storage.save(path, kind="test", arrays=ARRAYS, fields=FIELDS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        arrays, fields = storage.load(path, kind="test")
    except (HostileFile, UncheckedFile):  # two changed bytes may make it a file without a digest
        return
    assert fields == FIELDS and arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_every_flipped_bit_of_the_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    storage.save(path, kind="test", arrays=ARRAYS, fields=FIELDS)
    content = path.read_bytes()
    begins = 8 + int.from_bytes(content[:8], "little")
    assert len(content) > begins
    for place in range(begins, len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(HostileFile, match="does not match the digest"):
            storage.load(path, kind="test")


def test_a_file_without_a_digest_is_read_with_a_warning(tmp_path: Path) -> None:
    from safetensors.numpy import save

    header = json.dumps({"kind": "test", "version": 1, "fields": FIELDS})
    (tmp_path / "m").write_bytes(save(dict(ARRAYS), metadata={"blindsight": header}))
    with pytest.warns(UncheckedFile, match="without a digest"):
        assert storage.load(tmp_path / "m", kind="test")[1] == FIELDS


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="does not exist"):
        storage.load(tmp_path / "none", kind="test")


def test_what_is_not_plain_is_not_written(tmp_path: Path) -> None:
    for arrays, fields in (
        ({"o": np.array([object()])}, {}),
        ({}, {"x": object()}),
        ({}, {"x": float("nan")}),
    ):
        with pytest.raises(BlindsightError):
            storage.save(tmp_path / "m", kind="test", arrays=arrays, fields=fields)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_filled_is_not_deleted_by_another_who_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, waits, lock = tmp_path / "release", threading.Event(), durable.lock

    def replace(text: str) -> None:
        with durable.staging_folder(target) as staging:
            (staging / "text").write_text(text)
            durable.replace_folder(staging, target, last="text")

    def announced(descriptor: int, *, wait: bool = True) -> None:
        waits.set()
        lock(descriptor, wait=wait)

    second = threading.Thread(target=replace, args=("second",))
    with durable.staging_folder(target) as staging:
        monkeypatch.setattr(durable, "lock", announced)
        second.start()
        assert waits.wait(600)
        (staging / "text").write_text("first")
        durable.replace_folder(staging, target, last="text")
        assert (target / "text").read_text() == "first"
    second.join()
    assert (target / "text").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["release"]


def test_a_folder_that_was_not_finished_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(KeyError), durable.staging_folder(tmp_path / "release") as staging:
        (staging / "half").touch()
        raise KeyError
    (tmp_path / f".release.{'0' * 16}.part").mkdir()  # a killed process left it
    with durable.staging_folder(tmp_path / "release") as staging:
        assert list(tmp_path.iterdir()) == [staging]
    assert not list(tmp_path.iterdir())


def test_one_writer_holds_each_lock_of_a_folder(tmp_path: Path) -> None:
    with durable.only_writer(tmp_path, "holder.lock"):
        with (
            pytest.raises(BlockingIOError),
            durable.only_writer(tmp_path, "holder.lock", wait=False),
        ):
            pass
        with durable.only_writer(tmp_path, "user.lock", wait=False), durable.only_writer(tmp_path):
            pass
    with durable.only_writer(tmp_path, "holder.lock", wait=False):
        pass


@pytest.mark.parametrize(
    "end",
    ["os.close(file.descriptor)", "durable.os = None"],
    ids=["the descriptor is closed", "the module is torn down"],
)
def test_an_open_file_says_nothing_when_the_interpreter_exits(tmp_path: Path, end: str) -> None:
    (tmp_path / "log").touch()
    program = (
        "import os, sys; from pathlib import Path; from blindsight.core import durable; "
        f"file = durable.DurableFile(Path(sys.argv[1])); {end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
