"""Every file of a folder is a photo, or is counted and named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from blindsight.core.errors import InvalidData
from blindsight.data.listing import list_photos, shown_name
from blindsight.data.reading import SUFFIXES


def kinds(folder: Path) -> dict[str, int]:
    return {skipped.kind: skipped.count for skipped in list_photos(folder).skipped}


def test_every_ending_is_a_photo_whatever_its_case(tmp_path: Path) -> None:
    for number, suffix in enumerate(sorted(SUFFIXES)):
        (tmp_path / f"{number}{suffix.upper() if number % 2 else suffix}").touch()
    listed = list_photos(tmp_path)
    assert len(listed.photos) == len(SUFFIXES)
    assert listed.skipped == ()


def test_what_is_not_read_is_counted_and_named(tmp_path: Path) -> None:
    for name in ("a.jpg", "clip.MOV", "clip.mp4", "plan.svg", "raw.CR3", "labels.csv", "odd.xyz"):
        (tmp_path / name).touch()
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "link.jpg").symlink_to("a.jpg")
    (tmp_path / "broken.jpg").symlink_to("nothing.jpg")
    (tmp_path / "elsewhere").symlink_to("/")
    os.mkfifo(tmp_path / "pipe.jpg")
    listed = list_photos(tmp_path)
    assert listed.photos == ("a.jpg",)
    assert kinds(tmp_path) == {
        "videos": 2,
        "drawings and documents": 1,
        "raw files without a known preview": 1,
        "tables and sidecar files": 1,
        "other files": 1,
        "files of the operating system": 1,
        "links": 1,
        "links that lead nowhere": 1,
        "links to folders": 1,
        "devices and pipes": 1,
    }
    assert listed.skipped_count == 11
    [videos] = [skipped for skipped in listed.skipped if skipped.kind == "videos"]
    assert str(videos) == "2 videos (clip.MOV, clip.mp4): only still pictures are read"


def test_a_format_whose_reader_is_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "IMG_0001.HEIC").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [heic] = list_photos(tmp_path).skipped
    assert heic.count == 1
    assert "pip install 'blindsight[heic]'" in str(heic)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every folder")
def test_a_folder_that_cannot_be_opened_is_counted(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    assert kinds(tmp_path) == {"folders that cannot be opened": 1}


def test_an_error_of_the_operating_system_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    [skipped] = list_photos(tmp_path).skipped
    assert str(skipped) == "1 folders that cannot be opened (closed): Permission denied"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf8_are_listed_and_shown_safely(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).touch()
    (tmp_path / "line\nbreak\x1b[2J.jpg").touch()
    names = list_photos(tmp_path).photos
    assert len(names) == 2
    assert [shown_name(name) for name in names] == ["caf\\xe9.jpg", "line\\nbreak\\x1b[2J.jpg"]
    assert os.fsencode(names[0]) == b"caf\xe9.jpg"


def test_folders_that_are_left_out_are_not_counted(tmp_path: Path) -> None:
    for folder in ("index", "photos"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jpg").touch()
    assert list_photos(tmp_path, leave_out=[tmp_path / "index"]).photos == ("photos/a.jpg",)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="is not a folder"):
        list_photos(tmp_path / "none")
