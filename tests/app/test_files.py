"""Every job that reads a folder says what became of every file in it."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.app.protect import protect
from blindsight.app.result import files_table
from blindsight.app.search import search
from blindsight.app.send import learn_from_statistics, send_statistics
from blindsight.app.sketch import recover_sketches, sketch
from blindsight.app.train_together import read_labelled, train_together
from blindsight.cli import main, terminal
from blindsight.core.errors import InvalidData
from blindsight.data.listing import FilesRead, list_photos, read_folder
from blindsight.encoders import open_encoder
from blindsight.metric.files import read_image_folder
from blindsight.tagging.labels import read_labels
from blindsight.tagging.photos import image_files

HEIC = Path(__file__).parents[1] / "data" / "files" / "gradient.heic"


def picture(number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    return small.resize((48, 48), Image.Resampling.BICUBIC)


def encoded(kind: str, number: int = 0) -> bytes:
    file = io.BytesIO()
    picture(number).save(file, kind)
    return file.getvalue()


def raw_file(preview: bytes) -> bytes:
    end = 8 + 2 + 3 * 12 + 4
    entries = struct.pack("<HHIHH", 0x0112, 3, 1, 1, 0)
    entries += struct.pack("<HHII", 0x0201, 4, 1, end)
    entries += struct.pack("<HHII", 0x0202, 4, 1, len(preview))
    return b"II" + struct.pack("<HIH", 42, 8, 3) + entries + struct.pack("<I", 0) + preview


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photos, a copy, three equal files that cannot be read, a video and a link."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.png").write_bytes(encoded("PNG", 1))
    (photos / "b.png").write_bytes(encoded("PNG", 2))
    (photos / "copy.bmp").write_bytes(encoded("BMP", 1))
    for name in ("bad1.jpg", "bad2.jpg", "bad3.jpg"):
        (photos / name).write_bytes(b"\xff\xd8\xff nothing of a photo")
    (photos / "clip.mov").touch()
    (photos / "link.png").symlink_to("a.png")
    return photos


def counted(files: FilesRead) -> dict[str, int]:
    return {kind.kind: kind.count for kind in files.skipped}


def test_copies_are_files_that_could_be_read(folder: Path, tmp_path: Path) -> None:
    made = protect(folder, tmp_path / "release", encoder="pixels")
    assert made.counts.copies == 1, "three equal files that nobody can read are no copies"
    assert (made.files.read, made.files.copies) == (2, 1)
    assert counted(made.files) == {"videos": 1, "links": 1, "photos that cannot be read": 3}
    assert made.tables()[-1] == files_table(made.files)
    assert made.to_dict()["files"]


def test_every_job_gives_the_same_counts(folder: Path, tmp_path: Path) -> None:
    wanted = {"videos": 1, "links": 1, "photos that cannot be read": 3}
    assert counted(image_files([folder]).files) == wanted
    assert image_files([folder]).files.read == 2
    made = sketch(folder, tmp_path / "out.sketches", size=16, random_state=0)
    assert made.files is not None and counted(made.files) == wanted
    assert made.n_sketches == made.files.read == 3, "a sketch is made of every file"
    back = recover_sketches(made.file, originals=folder, size=16, count=2)
    assert back.files is not None and counted(back.files) == wanted
    assert back.tables()[-1] == files_table(back.files)
    records = read_image_folder(folder, encoder=open_encoder("pixels"))
    assert records.files is not None and counted(records.files) == wanted
    protect(folder, tmp_path / "release", encoder="pixels", seed=1)
    hits = search(tmp_path / "release", folder, k=1)
    assert hits.files is not None and (hits.files.read, counted(hits.files)) == (3, wanted)
    assert len(hits) == 3 and hits.tables()[-1] == files_table(hits.files)
    (tmp_path / "labels.csv").write_text("image,labels\na.png,dog\nb.png,\nbad1.jpg,dog\n")
    labelled = read_labels(tmp_path / "labels.csv", folder)
    assert labelled.files is not None
    assert counted(labelled.files) == {
        "videos": 1,
        "links": 1,
        "photos that cannot be read": 1,
        "photos without labels": 3,
    }


def test_the_command_line_ends_with_the_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.console, "width", 200)
    release = str(tmp_path / "release")
    line = ["protect", str(folder), "--out", release, "--encoder", "pixels"]
    done = CliRunner().invoke(main.app, line)
    assert done.exit_code == 0, done.output
    last = done.output[done.output.rindex("Files") :]
    for words in ("photos read", "copies of another photo", "skipped: videos", "clip.mov"):
        assert words in last
    again = CliRunner().invoke(main.app, [*line, "--json"])
    files = json.loads(again.stdout)["files"]
    assert files["read"] == 2 and {kind["kind"] for kind in files["skipped"]} >= {"videos"}


def test_labelled_folders_that_are_sent_or_learned_from_together_are_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.console, "width", 200)
    for kind in ("dog", "cat"):
        (folder / kind).mkdir()
        for number in range(30):
            path = folder / kind / f"{number}.png"
            path.write_bytes(encoded("PNG", number + (100 if kind == "dog" else 200)))
    (folder / "dog" / "bad.png").write_bytes(b"no picture")
    wanted = {"videos": 1, "links": 1, "photos that cannot be read": 4}
    out = tmp_path / "sent.safetensors"
    sent = send_statistics(folder, out, epsilon=8, encoder="pixels")
    assert sent.files is not None
    assert (sent.files.read, sent.files.copies, counted(sent.files)) == (62, 1, wanted)
    assert sent.tables()[-1] == files_table(sent.files) and sent.to_dict()["files"]
    learned = learn_from_statistics(out, test=folder)
    assert learned.test_files == sent.files
    learning = {"videos": 1, "links": 1, "photos that cannot be read": 1}
    learning["photos without exactly one label"] = 6
    rows = read_labelled(folder, encoder="pixels")
    assert rows.files is not None and (rows.files.read, counted(rows.files)) == (60, learning)
    made = train_together(folder, sites=3, encoder="pixels", encrypt=False, rounds=1)
    assert made.files == rows.files and made.tables()[-1] == files_table(rows.files)
    line = ["send", str(folder), str(tmp_path / "again.safetensors"), "--epsilon", "8"]
    done = CliRunner().invoke(main.app, [*line, "--encoder", "pixels"])
    assert done.exit_code == 0, done.output
    assert "clip.mov" in done.output[done.output.rindex("Files") :]


def test_a_folder_with_every_format_and_every_kind_of_broken_file_is_counted_whole(
    tmp_path: Path,
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    kinds = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
    suffixes = ("png", "jpg", "webp", "gif", "bmp", "tif", "ppm", "avif", "jp2")
    good = dict(zip(suffixes, (encoded(kind, n) for n, kind in enumerate(kinds)), strict=True))
    for suffix, data in good.items():
        (photos / f"good.{suffix}").write_bytes(data)
        (photos / f"cut.{suffix}").write_bytes(data[:20])
        (photos / f"empty.{suffix}").touch()
    for number, suffix in enumerate(("cr2", "dng", "nef")):
        (photos / f"camera.{suffix}").write_bytes(raw_file(encoded("JPEG", 20 + number)))
    expected = len(good) + 3
    if list_photos(HEIC.parent).photos:
        (photos / "phone.HEIC").write_bytes(HEIC.read_bytes())
        expected += 1
    (photos / "new\nline.png").write_bytes(encoded("PNG", 30))
    (photos / "cafe\u0301.png").write_bytes(encoded("PNG", 31))
    expected += 2
    if sys.platform == "linux":
        (photos / os.fsdecode(b"caf\xe9.png")).write_bytes(encoded("PNG", 32))
        expected += 1
    for name in ("clip.mov", "drawing.svg", "raw.cr3", "labels.csv", "odd.xyz", ".hidden.jpg"):
        (photos / name).touch()
    (photos / "nowhere.jpg").symlink_to("gone.jpg")
    deep = _deep_photo(photos)
    images, files = read_folder(photos)
    assert len(images) == files.read == expected
    assert files.skipped_count == 2 * len(good) + 6 + 1 + deep
    assert sum(kind.count for kind in files.skipped if "cannot be read" in kind.kind) == 18
    assert sum(kind.count for kind in files.skipped if "is empty" in kind.advice) == len(good)
    for row in files.rows():
        assert all(cell.isprintable() for cell in row)


def _deep_photo(folder: Path) -> int:
    """A photo below a path that is longer than the system allows to name; 1 if it could be made."""
    here = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(25):
            os.mkdir("n" * 200, dir_fd=here)
            below = os.open("n" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("deep.png", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    except OSError:
        return 0
    finally:
        os.close(here)
    return 1


def test_a_folder_without_photos_says_what_it_holds(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "clip.mov").touch()
    with pytest.raises(InvalidData, match=r"1 videos \(clip\.mov\): only still pictures"):
        protect(photos, tmp_path / "release", encoder="pixels")
    with pytest.raises(InvalidData, match="it is empty"):
        protect(HEIC.parent, tmp_path / "release", encoder="pixels", files=[])


def test_symlinked_photos_are_treated_alike_by_training_and_tagging(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "labels.csv").write_text("image,labels\na.png,dog\nlink.png,cat\n")
    labelled = read_labels(tmp_path / "labels.csv", folder)
    assert labelled.missing == ("link.png",)
    assert not any(path.name == "link.png" for path in image_files([folder]).digests)
    assert set(image_files([folder / "link.png"]).digests) == {folder / "link.png"}, "by its name"


def test_labels_without_a_single_label_are_refused_before_anything_is_charged(
    folder: Path, tmp_path: Path
) -> None:
    for text, words in (
        ("image,labels\na.png,\nb.png,\n", None),
        ("image,labels\na.png,cat\nb.png,\n", {"dog": ()}),
        ("image,labels\nbad1.jpg,dog\na.png,\n", None),
    ):
        (tmp_path / "labels.csv").write_text(text)
        with pytest.raises(InvalidData, match="nothing to learn from"):
            read_labels(tmp_path / "labels.csv", folder, words)


def test_two_folders_are_counted_together() -> None:
    first = list_photos(HEIC.parent).files_read(read=1, damaged=[("a.png", "a.png is damaged.")])
    second = list_photos(HEIC.parent).files_read(read=2, damaged=[("b.png", "b.png is damaged.")])
    both = first + second
    assert both.read == 3
    [damaged] = [kind for kind in both.skipped if "cannot be read" in kind.kind]
    assert (damaged.count, damaged.first, damaged.advice) == (2, ("a.png", "b.png"), "is damaged")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_utf8_is_protected_searched_and_audited(tmp_path: Path) -> None:
    from blindsight.app.audit import audit_release

    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(12):
        (photos / os.fsdecode(f"caf{number}".encode() + b"\xe9.png")).write_bytes(
            encoded("PNG", number)
        )
    release = tmp_path / "release"
    made = protect(photos, release, encoder="pixels")
    assert made.counts.released == 12
    again = protect(photos, release, encoder="pixels")
    assert (again.counts.released, again.counts.known) == (0, 12)
    hits = search(release, photos / os.fsdecode(b"caf3\xe9.png"), k=3)
    assert str(hits).isprintable() or "\n" in str(hits)
    str(hits).encode()
    json.dumps(hits.to_dict())
    report = audit_release(release)
    str(report).encode()
    for line in (
        ["protect", str(photos), "--out", str(release), "--json"],
        ["protect", str(photos), "--out", str(release)],
        ["search", str(release), str(photos / os.fsdecode(b"caf3\xe9.png"))],
        ["audit", str(release), "--json"],
    ):
        done = CliRunner().invoke(main.app, line)
        assert done.exit_code == 0, done.output


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one of the two forms")
def test_composed_and_decomposed_names_are_one_name(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    composed, decomposed = photos / "caf\u00e9.png", photos / "cafe\u0301.png"
    composed.write_bytes(encoded("PNG", 1))
    made = protect(photos, tmp_path / "release", encoder="pixels")
    composed.rename(decomposed)
    again = protect(photos, tmp_path / "release", encoder="pixels", names=None)
    assert (again.counts.known, again.counts.vanished) == (1, 0)
    assert made.counts.stored == again.counts.stored == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_kept_are_text_and_of_one_form(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / os.fsdecode(b"odd\xe9.png")).write_bytes(encoded("PNG", 1))
    (photos / "cafe\u0301.png").write_bytes(encoded("PNG", 2))
    release = tmp_path / "release"
    assert protect(photos, release, encoder="pixels", names="keep").counts.stored == 2
    (photos / "cafe\u0301.png").rename(photos / "caf\u00e9.png")
    again = protect(photos, release, encoder="pixels", names="keep")
    assert (again.counts.stored, again.counts.vanished) == (2, 0)
    (photos / "cafe\u0301.png").write_bytes(encoded("PNG", 3))
    assert protect(photos, release, encoder="pixels", names="keep").counts.stored == 3
    assert search(release, photos / "caf\u00e9.png", k=3)


def test_a_vault_with_names_as_text_is_carried_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blindsight.privacy import vault_store
    from blindsight.privacy.vault import Photo, Vault

    def text_row(photo: Photo) -> tuple[str, str, str, str, int, int]:
        return "", photo.name, photo.record, photo.person, photo.size, photo.changed

    photo = Photo("trip/a.png", "0" * 32, "", 10, 20)
    with monkeypatch.context() as earlier:
        earlier.setattr(vault_store, "SCHEMA", vault_store.TEXT_NAMES_SCHEMA)
        vault = Vault.create(tmp_path / "vault")
        with vault._store.writing() as connection:
            vault._store.insert(connection, "photos", [text_row(photo)])
    opened = Vault(tmp_path / "vault")
    assert opened.photos() == {"trip/a.png": photo}
    opened.verify()
    opened.keep_photos([], gone=["trip/a.png"])
    assert opened.photos() == {}
