"""What only the owner can do with an index: dates, thumbnails, near-duplicates, the photos' own
order.
"""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index.contact_sheet import Thumbnails, groups_alike
from blindsight.index.public_images import built_in_images

PIXELS = ["--features", "pixels"]


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """Twelve pictures of twelve days, one of them again, compressed harder; thumbnails in the
    vault.
    """
    base = tmp_path_factory.mktemp("owner")
    photos = base / "photos"
    photos.mkdir()
    pictures = built_in_images(12, 64)
    for number, pixels in enumerate(pictures):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9003] = f"2024:03:{number + 1:02d} 10:00:00"
        Image.fromarray(pixels).save(photos / f"{number:02d}.jpg", exif=exif)
    Image.fromarray(pictures[0]).save(photos / "again.jpg", quality=50)
    run("protect", photos, "--out", base / "ix", *PIXELS, "--thumbnails", "--seed", 3)
    return base


def given_away(album, tmp_path):
    """The index as somebody has it who has no vault."""
    moved = tmp_path / "given"
    moved.mkdir()
    for part in (album / "ix").iterdir():
        (moved / part.name).write_bytes(part.read_bytes())
    return moved


def test_groups_are_what_is_connected():
    rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.28, 0.96], [-1.0, 0.0], [0.0, -1.0]])
    assert groups_alike(rows, 0.79) == [[0, 1, 2]]  # 0 and 2 through 1
    assert groups_alike(rows, 0.9) == []
    assert groups_alike(np.repeat(rows[:1], 3000, axis=0), 1 - 1e-9) == [list(range(3000))]


def test_nearly_equal_photos_are_found_and_copies_are_named(album, tmp_path):
    found = json.loads(run("index", "duplicates", album / "ix", "--alike", 0.97, "--json"))
    assert [["00.jpg"], ["again.jpg"]] in [sorted(group) for group in found["groups"]]
    assert found["copies"] == []
    moved = given_away(album, tmp_path)
    with pytest.raises(InvalidData, match="only the owner"):
        run("index", "duplicates", moved)


def test_hits_are_filtered_by_the_day_they_were_taken(album):
    ask = ["search", album / "ix", album / "photos" / "05.jpg", "-k", 20, "--json"]
    days = json.loads(run(*ask, "--since", "2024-03-03", "--until", "2024-03-06"))
    assert {hit["names"][0] for hit in days["queries"][0]["hits"]} == {
        "02.jpg",
        "03.jpg",
        "04.jpg",
        "05.jpg",
    }
    late = json.loads(run(*ask, "--since", "2024-04-01"))["queries"][0]["hits"]
    assert [hit["names"][0] for hit in late] == [
        "again.jpg"
    ]  # no word of a camera: when the file was made


def test_thumbnails_are_the_owner_s_and_outlive_the_photos(album, tmp_path):
    store = album / "ix.vault" / "thumbnails.db"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert len(Thumbnails(store.parent).records()) == 13
    page = tmp_path / "sheet.html"
    elsewhere = ["--folder", tmp_path]  # where no photo is
    run("search", album / "ix", album / "photos" / "05.jpg", "-k", 3, "--html", page, *elsewhere)
    assert page.read_text().count("data:image/jpeg") == 4
    run("search", given_away(album, tmp_path), album / "photos" / "05.jpg", "-k", 3, "--html", page)
    assert page.read_text().count("data:image/jpeg") == 1


def test_thumbnails_of_gone_photos_go_with_them(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, pixels in enumerate(built_in_images(4, 32)):
        Image.fromarray(pixels).save(photos / f"{number}.png")
    run("protect", photos, "--out", tmp_path / "ix", *PIXELS, "--thumbnails")
    store = Thumbnails(tmp_path / "ix.vault")
    before = store.of(store.records())
    (photos / "2.png").unlink()
    run("protect", photos, "--out", tmp_path / "ix", "--prune")
    (gone,) = before.keys() - store.records()
    assert before[gone] not in store.path.read_bytes()


def test_a_stored_photo_s_neighbours_can_be_ordered_by_the_photos(album, tmp_path):
    answer = json.loads(
        run("search", album / "ix", "--like", "00.jpg", "--rerank", 13, "-k", 2, "--json")
    )
    assert "in its cell" not in run(
        "search", album / "ix", "--like", "00.jpg", "--rerank", 13, "-k", 2
    )
    assert {hit["names"][0] for hit in answer["queries"][0]["hits"]} == {"00.jpg", "again.jpg"}
    with pytest.raises(InvalidParameter, match="--rerank compares"):
        run("search", album / "ix", "--like", "00.jpg", "--rerank", 13, "--folder", tmp_path)


def test_an_order_by_the_photos_shows_no_number_of_the_cells(album):
    page = run("search", album / "ix", album / "photos" / "05.jpg", "--rerank", 13, "-k", 2)
    assert "likeness" in page and "unchanged by noise" not in page
    answer = json.loads(
        run("search", album / "ix", album / "photos" / "05.jpg", "--rerank", 13, "-k", 2, "--json")
    )
    assert all(hit["trust"] is None and hit["cell"] is None for hit in answer["queries"][0]["hits"])


def test_who_has_no_vault_is_told_so_and_not_shown_an_empty_list(album, tmp_path):
    moved, query = given_away(album, tmp_path), album / "photos" / "05.jpg"
    for begins in "0123456789abcdef":  # ids begin so, and are no names
        with pytest.raises(
            InvalidData, match="names of the photos, which are in the owner's vault"
        ):
            run("search", moved, query, "--in", begins)
    with pytest.raises(InvalidParameter, match="--rerank needs the owner's photos"):
        run("search", moved, query, "--rerank", 5)
    with pytest.raises(InvalidData, match="begins with 'trips/'"):
        run("search", album / "ix", query, "--in", "trips/")


def test_what_cannot_be_meant_is_refused(album):
    ask = ["search", album / "ix", album / "photos" / "05.jpg"]
    for number in (0, -5):
        with pytest.raises(InvalidParameter, match="--rerank must be a whole number of at least 1"):
            run(*ask, "--rerank", number)
    with pytest.raises(InvalidParameter, match="is after --until"):
        run(*ask, "--since", "2024-04-01", "--until", "2024-03-01")
    empty = run(*ask, "--since", "2424-01-01")
    assert "nothing stored passes" in empty and "rank" not in empty


def test_a_stored_query_keeps_the_name_it_was_asked_by(album, tmp_path):
    page = tmp_path / "sheet.html"
    ask = ["search", album / "ix", "--like", "03.jpg", "-k", 2]
    assert json.loads(run(*ask, "--json"))["queries"][0]["query"] == "03.jpg"
    assert run(*ask, "--html", page).startswith("03.jpg: 2 hits")
    assert "<h2>03.jpg</h2>" in page.read_text() and page.read_text().count("data:image/jpeg") == 3


def test_mistakes_are_named(album):
    photo = album / "photos" / "00.jpg"
    for words, why in (
        ([photo, album / "ix"], "comes first"),
        ([album / "photos", album / "ix"], "comes first"),
        ([album / "ix.vault", photo], "vault"),
        ([photo], "is a file"),
        ([album / "photos", photo], "not an index"),
    ):
        with pytest.raises(InvalidData, match=why):
            run("search", *words)
    with pytest.raises(InvalidData, match="not a folder"):
        run("protect", photo, "--out", album / "new")
