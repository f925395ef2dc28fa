"""What is shared is replaced in one step: a run that is killed leaves the old folder or the new."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import open_release, protect
from blindsight.core import durable
from blindsight.core.errors import InvalidData
from blindsight.release import contents
from blindsight.release.contents import publish
from blindsight.release.manifest import check_folder

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
        shutil.copytree(self.target, self.stored / "release")
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

    def folders(self) -> list[Path]:
        """The release and the unfinished folders beside it."""
        return [*self.target.parent.glob(".release.*"), *self.target.parent.glob("release")]

    def restore(self, state: Path) -> None:
        """Put the folders of a state in place of those that are there."""
        for path in self.folders():
            shutil.rmtree(path)
        shutil.copytree(state, self.target.parent, dirs_exist_ok=True)

    def killed(self, states: Path, *, first: bool = False, exchange: bool = True) -> list[Path]:
        """Run the step, and copy what stands on the disk before each of its operations: what a
        process leaves that is killed there, because nothing of its own runs afterwards.

        Parameters:
            states: where the copies go.
            first: nothing was shared before.
            exchange: the system can exchange two folders in one step.
        """
        self.restore(self.stored)
        if first:
            shutil.rmtree(self.target)
        taken: list[Path] = []
        looking = False

        def watched(operation: Callable[..., object], *words: object, **named: object) -> object:
            nonlocal looking
            if not looking:
                looking = True
                taken.append(states / f"{len(taken):03}")
                taken[-1].mkdir(parents=True)
                for path in self.folders():
                    shutil.copytree(path, taken[-1] / path.name)
                looking = False
            return operation(*words, **named)

        with pytest.MonkeyPatch.context() as patched:
            for module, name in OPERATIONS:
                patched.setattr(module, name, partial(watched, getattr(module, name)))
            if not exchange:
                patched.setattr(durable, "_exchange", lambda first, second: False)
            self.publish()
        assert len(taken) > 30, "the step was looked at nearly nowhere"
        return taken


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("publish"))


def test_a_killed_run_leaves_the_old_folder_or_the_new_one_whole(prepared, tmp_path):
    seen = set()
    for number, state in enumerate(prepared.killed(tmp_path)):
        held = files(state / "release")
        assert held in (prepared.old, prepared.new), number
        seen.add(held == prepared.new)
        check_folder(state / "release")
        if number % 8 == 0:
            prepared.restore(state)
            prepared.publish()
            assert files(prepared.target) == prepared.new
            assert not list(prepared.target.parent.glob(".release.*"))
    assert seen == {False, True}


def test_where_folders_cannot_be_exchanged_a_killed_run_leaves_no_folder_that_looks_whole(
    prepared, tmp_path
):
    seen = set()
    for number, state in enumerate(prepared.killed(tmp_path, exchange=False)):
        held = files(state / "release")
        seen.add(held in (prepared.old, prepared.new))
        if held not in (prepared.old, prepared.new):
            with pytest.raises(InvalidData, match="no manifest"):
                check_folder(state / "release")
        if number % 8 == 0:
            prepared.restore(state)
            prepared.publish()
            assert files(prepared.target) == prepared.new
    assert seen == {False, True}


def test_the_first_folder_appears_whole(prepared, tmp_path):
    states = [state / "release" for state in prepared.killed(tmp_path, first=True)]
    assert not states[0].exists()
    assert all(not state.exists() or files(state) == prepared.new for state in states)


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
