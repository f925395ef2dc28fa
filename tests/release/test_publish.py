"""What is shared is replaced in one step: a run that is killed leaves the old folder or the new."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import warm
from blindsight import open_release, protect
from blindsight.core import durable
from blindsight.core.errors import InvalidData
from blindsight.release import contents
from blindsight.release.contents import publish
from blindsight.release.manifest import check_folder

KILLED = 9
# What changes files. Reading does not, so a kill while reading is a kill before the next of these.
OPERATIONS = [(os, name) for name in ("open", "fsync", "replace", "rename", "unlink", "chmod")]
OPERATIONS += [(durable, "_exchange"), (shutil, "rmtree")]


def photos(folder: Path, *seeds: int) -> Path:
    folder.mkdir(exist_ok=True)
    for seed in seeds:
        pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Prepared:
    """A shared folder, and the step that replaces it by one with two photos more."""

    def __init__(self, base: Path) -> None:
        self.target, self.stored = base / "release", base / "stored"
        # Of the methods this one has the smallest files.
        options = {"encoder": "pixels", "method": "phashing-lsh", "bits": 8, "page": False}
        made = partial(protect, release=self.target, **options)
        made(photos(base / "photos", 0, 1, 2))
        self.old = files(self.target)
        shutil.copytree(self.target, self.stored)
        photos(base / "photos", 3, 4)
        steps: list[Callable[[], object]] = []

        def stop(*words: object) -> None:
            steps.append(lambda: publish(*words))
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(contents, "publish", stop)
            made(base / "photos")
        (self.publish,) = steps
        self.publish()
        self.new = files(self.target)

    def restore(self) -> None:
        for path in self.target.parent.glob(".release.*"):
            shutil.rmtree(path)
        if self.target.exists():
            shutil.rmtree(self.target)
        shutil.copytree(self.stored, self.target)

    def killed_at(self, number: int, *, exchange: bool = True) -> bool:
        """Run the step in a process that dies before its operation of that number."""
        child = os.fork()
        if child == 0:
            left = [number]

            def deadly(operation: Callable[..., object], *words: object, **named: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)
                return operation(*words, **named)

            for module, name in OPERATIONS:
                setattr(module, name, partial(deadly, getattr(module, name)))
            if not exchange:
                durable._exchange = lambda first, second: False
            try:
                self.publish()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def in_small_process(check: Callable[[Prepared], None], base: Path) -> None:
    """Run a check in a process that shares nothing with this one.

    It forks for each operation, and a fork of a worker that has run many tests copies gigabytes of
    page tables each time.
    """
    code = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); "
    code += "from release import test_publish as here; "
    code += f"here.{check.__name__}(here.Prepared(Path(sys.argv[1])))"
    done = warm.run(["-c", code, base, Path(__file__).parents[1]], cwd=base, timeout=1800)
    assert done.returncode == 0, done.stderr


def kills(prepared: Prepared, **options: bool) -> Iterator[int]:
    """Kill the step at each of its operations in turn."""
    number = 0
    while True:
        prepared.restore()
        if not prepared.killed_at(number, **options):
            break
        yield number
        number += 1
    assert number > 30, "the step was killed at nearly nothing"


def leaves_the_old_folder_or_the_new_one(prepared: Prepared) -> None:
    seen = set()
    for number in kills(prepared):
        held = files(prepared.target)
        assert held in (prepared.old, prepared.new), number
        seen.add(held == prepared.new)
        check_folder(prepared.target)
        if number % 8 == 0:
            prepared.publish()
            assert files(prepared.target) == prepared.new
            assert not list(prepared.target.parent.glob(".release.*"))
    assert seen == {False, True}


def test_a_killed_run_leaves_the_old_folder_or_the_new_one_whole(tmp_path):
    in_small_process(leaves_the_old_folder_or_the_new_one, tmp_path)


def leaves_no_folder_that_looks_whole(prepared: Prepared) -> None:
    for number in kills(prepared, exchange=False):
        held = files(prepared.target)
        if held not in (prepared.old, prepared.new):
            with pytest.raises(InvalidData, match="no manifest"):
                check_folder(prepared.target)
        if number % 8 == 0:
            prepared.publish()
            assert files(prepared.target) == prepared.new


def test_where_folders_cannot_be_exchanged_a_killed_run_leaves_no_folder_that_looks_whole(tmp_path):
    in_small_process(leaves_no_folder_that_looks_whole, tmp_path)


def first_folder_appears_whole(prepared: Prepared) -> None:
    for number in range(0, 60, 7):
        prepared.restore()
        shutil.rmtree(prepared.target)
        prepared.killed_at(number)
        assert not prepared.target.exists() or files(prepared.target) == prepared.new


def test_the_first_folder_appears_whole(tmp_path):
    in_small_process(first_folder_appears_whole, tmp_path)


def test_nothing_is_written_again_where_nothing_changed(tmp_path):
    folder = photos(tmp_path / "photos", 0, 1)
    protect(folder, tmp_path / "release", encoder="pixels")
    first = (tmp_path / "release").stat().st_ino
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "release").iterdir()}
    protect(folder, tmp_path / "release", encoder="pixels")
    assert (tmp_path / "release").stat().st_ino == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "release").iterdir()} == times
    (tmp_path / "release" / "card.txt").write_text("ε = 0")
    protect(folder, tmp_path / "release", encoder="pixels")
    assert "ε = 0\n" not in (tmp_path / "release" / "card.txt").read_text()
    open_release(tmp_path / "release")


def test_a_crashed_first_run_is_no_batch_of_its_own(tmp_path, monkeypatch):
    """Nobody saw what the crashed run wrote, so random order is stated for all photos together."""
    folder = photos(tmp_path / "photos", *range(300))
    run = partial(protect, folder, tmp_path / "release", encoder="pixels", epsilon=2, page=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(contents, "publish", interrupt)
        run()
    assert not (tmp_path / "release").exists()
    run()
    assert open_release(tmp_path / "release").card["shuffled"] is not None
    photos(folder, 300)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(contents, "publish", interrupt)
        run()
    shutil.rmtree(tmp_path / "release")
    run()
    assert open_release(tmp_path / "release").card["shuffled"] is None, "300 of them were seen"


def test_a_file_that_is_not_the_releases_is_refused_before_anything_is_charged(tmp_path):
    folder = photos(tmp_path / "photos", 0, 1)
    protect(folder, tmp_path / "release", encoder="pixels", page=False)
    (tmp_path / "release" / "holiday.jpg").write_bytes(b"private")
    photos(folder, 2)
    with pytest.raises(InvalidData, match=r"holiday\.jpg.*move it elsewhere"):
        protect(folder, tmp_path / "release", encoder="pixels", page=False)
    assert (tmp_path / "release" / "holiday.jpg").read_bytes() == b"private"
    (tmp_path / "release" / "holiday.jpg").unlink()
    assert protect(folder, tmp_path / "release", encoder="pixels", page=False).counts.stored == 3


def test_codes_that_an_earlier_version_left_in_the_vault_are_deleted(tmp_path):
    folder = photos(tmp_path / "photos", 0)
    made = protect(folder, tmp_path / "release", encoder="pixels", page=False)
    left = made.vault / "journals" / made.release_id
    left.mkdir(parents=True)
    (left / "codes.index").write_bytes((made.release / "codes.index").read_bytes())
    again = protect(folder, tmp_path / "release", encoder="pixels", page=False)
    assert again.counts.known == 1 and not left.exists()
