"""`protect` and `search`: photos to a private index and back, resumable, charged once."""

from __future__ import annotations

import dataclasses
import json
import re
import signal

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import warm
from blindsight.cli.main import app
from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter
from blindsight.index import HammingIndex
from blindsight.index.public_images import built_in_images
from blindsight.privacy import Cost, Ledger, Planned
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.vault import Vault

# Per bit and generous, so that a photo can be found again; pixels, so that nothing heavy is loaded.
CLEAR = [
    "--method",
    "phashing-lsh",
    "--unit",
    "bit",
    "--epsilon",
    "4",
    "--bits",
    "64",
    "--features",
    "pixels",
]

LEARNED = ["--method", "phashing-itq", *CLEAR[2:]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    (folder / "trips").mkdir()
    for number, pixels in enumerate(built_in_images(170, 80)[85:]):
        name = f"trips/{number:03d}.png" if number % 3 else f"{number:03d}.JPG"
        Image.fromarray(pixels).save(folder / name, "PNG" if number % 3 else "JPEG")
    (folder / "notes.txt").write_text("not a photo")
    return folder


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def by_id(index) -> dict[str, bytes]:
    loaded = HammingIndex.load(index / "codes.index")
    return {
        name: code.tobytes()
        for ids, rows in loaded.items()
        for name, code in zip(ids, rows, strict=True)
    }


def codes_of(index, *, stopped=False) -> dict[str, bytes]:
    """The codes by their names in the owner's vault; of a stopped run, those that the vault has."""
    vault = Vault(index.with_name(index.name + ".vault"))
    if stopped:
        assert not index.exists(), "nothing is shared before all is written"
        codes = vault.codes(vault.releases()[-1].release)
    else:
        codes = by_id(index)
    names = vault.names_of(codes)
    return {names.get(key, [key])[0]: code for key, code in codes.items()}


def granted(path, epsilon=100.0, unit="record") -> Ledger:
    ledger = Ledger(path, dataset="album")
    ledger.grant(Cost(epsilon=epsilon, unit=unit))
    return ledger


def charges(ledger: Ledger) -> int:
    return sum(entry.kind == "charge" for entry in ledger.entries())


def test_a_photo_is_found_again(photos, tmp_path):
    made = json.loads(
        run("protect", photos, "--out", tmp_path / "ix", *CLEAR, "--seed", 5, "--json")
    )
    assert (made["released"], made["known"], made["stored"]) == (85, 0, 85)
    assert made["guarantee"]["unit"] == "bit" and made["guarantee"]["epsilon"] <= 4
    queries = sorted(path for path in photos.rglob("*") if path.suffix in (".png", ".JPG"))[:10]
    for ranking, within in (("distance", 1), ("soft", 5)):
        answer = json.loads(
            run("search", tmp_path / "ix", *queries, "-k", 5, "--ranking", ranking, "--json")
        )
        for query, found in zip(queries, answer["queries"], strict=True):
            names = [hit["names"][0] for hit in found["hits"]]
            assert query.relative_to(photos).as_posix() in names[:within]
            scores = [hit["score"] for hit in found["hits"]]
            assert scores == sorted(scores, reverse=True)
            assert all(hit["probability"] is None for hit in found["hits"]), (
                "nothing was there to calibrate on"
            )
    assert "No number" in answer["match"]
    assert "no probabilities" in refused(
        "search", tmp_path / "ix", queries[0], "--min-probability", 0.5
    )


def test_the_default_is_proven_per_record_and_learned_from_public_data(photos, tmp_path):
    made = json.loads(
        run("protect", photos, "--out", tmp_path / "ix", "--features", "pixels", "--json")
    )
    guarantee = made["guarantee"]
    assert (guarantee["unit"], guarantee["epsilon"], guarantee["calibration"]) == (
        "record",
        8.0,
        "proven",
    )
    assert not guarantee["simulation"] and guarantee["sampler"] == "exact"
    assert "public cells" in {assumption["name"] for assumption in guarantee["assumptions"]}
    assert made["recipe"]["method"] == "codebook"
    shown = run("search", tmp_path / "ix", photos / "000.JPG", "-k", 3)
    assert "unchanged by noise" in shown and "proven ε = 8 per record" in " ".join(shown.split())


def test_the_pretrained_network_finds_the_same_picture(photos, tmp_path):
    album = tmp_path / "album"
    album.mkdir()
    for number in (1, 2, 4):
        (album / f"{number}.png").write_bytes((photos / f"trips/{number:03d}.png").read_bytes())
    # A cell per class of the network: the nearest class is the best cell.
    words = [
        "protect",
        album,
        "--out",
        tmp_path / "ix",
        "--epsilon",
        20,
        "--cells",
        1000,
        "--seed",
        1,
    ]
    run(*words, "--features", "efficientnet")
    answer = json.loads(run("search", tmp_path / "ix", album / "2.png", "-k", 3, "--json"))
    hits = answer["queries"][0]["hits"]
    assert "2.png" in [hit["names"][0] for hit in hits if hit["score"] == hits[0]["score"]]


def test_a_stopped_run_continues_and_releases_nothing_twice(photos, tmp_path, monkeypatch):
    ledger = granted(tmp_path / "ledger.db", unit="bit")
    words = ["protect", photos, "--out", tmp_path / "ix", *CLEAR]
    words += ["--ledger", tmp_path / "ledger.db", "--dataset", "album"]
    real, calls = Vault.keep_codes, []

    def keep_once(self, release, records, codes):
        if calls:
            raise KeyboardInterrupt
        calls.append(len(codes))
        return real(self, release, records, codes)

    with monkeypatch.context() as patch:
        patch.setattr(Vault, "keep_codes", keep_once)
        assert CliRunner().invoke(app, [str(word) for word in words]).exit_code != 0
    before = codes_of(tmp_path / "ix", stopped=True)
    assert len(before) == 64
    made = json.loads(run(*words, "--json"))
    assert (made["released"], made["restored"], made["known"]) == (85, 64, 0)
    after = codes_of(tmp_path / "ix")
    assert after.items() >= before.items() and len(after) == 85
    assert charges(ledger) == 1
    assert "earlier run" in made["ledger"]
    run(*words)
    assert codes_of(tmp_path / "ix") == after and charges(ledger) == 1


def test_after_kill_9_released_codes_stay_as_they_were(photos, tmp_path):
    program = (
        "import os, signal\n"
        "import blindsight.index.release_folder as p\n"
        "real = p.HammingIndex.add\n"
        "def deadly(self, codes, ids=None):\n"
        "    real(self, codes, ids)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "p.HammingIndex.add = deadly\n"
        "from blindsight.cli.main import run\n"
        "run()\n"
    )
    words = ["protect", str(photos), "--out", str(tmp_path / "ix"), *CLEAR]
    killed = warm.run(["-c", program, *words])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = codes_of(tmp_path / "ix", stopped=True)
    assert len(before) == 64
    run(*words)
    after = codes_of(tmp_path / "ix")
    assert len(after) == 85 and after.items() >= before.items()


def test_a_refused_charge_leaves_nothing_behind(photos, tmp_path):
    ledger = granted(tmp_path / "ledger.db", epsilon=7.9)
    words = ["protect", photos, "--out", tmp_path / "ix", "--features", "pixels"]
    words += ["--ledger", tmp_path / "ledger.db", "--dataset", "album"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, BudgetExceeded)
    assert not (tmp_path / "ix").exists()
    assert charges(ledger) == 0


def test_a_crash_right_after_the_charge_does_not_charge_again(photos, tmp_path, monkeypatch):
    ledger = granted(tmp_path / "ledger.db", epsilon=8)
    words = ["protect", photos, "--out", tmp_path / "ix", "--features", "pixels"]
    words += ["--ledger", tmp_path / "ledger.db", "--dataset", "album"]
    for broken in (
        "blindsight.index.release_folder.ReleaseFolder.write",
        "blindsight.privacy.vault.Vault.note",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(broken, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            assert CliRunner().invoke(app, [str(word) for word in words]).exit_code != 0
        assert charges(ledger) == 1
    run(*words)
    assert charges(ledger) == 1 and len(codes_of(tmp_path / "ix")) == 85


def test_a_second_index_is_a_second_release(photos, tmp_path):
    # At epsilon 2 about half of the cells are lies: that two releases of 85 are equal by chance is
    # below 1e-40.
    ledger = granted(tmp_path / "ledger.db", epsilon=4)
    for name in ("one", "two"):
        words = [
            "protect",
            photos,
            "--out",
            tmp_path / name,
            "--features",
            "pixels",
            "--epsilon",
            2,
        ]
        run(*words, "--ledger", tmp_path / "ledger.db", "--dataset", "album")
    assert charges(ledger) == 2
    assert float(ledger.balance("record").remaining.epsilon) == 0
    assert codes_of(tmp_path / "one") != codes_of(tmp_path / "two"), "fresh noise each time"


def test_an_index_keeps_its_recipe(photos, tmp_path):
    run("protect", photos, "--out", tmp_path / "ix", *CLEAR)
    words = ["protect", photos, "--out", tmp_path / "ix", "--epsilon", "9"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, InvalidParameter) and "made with --epsilon 4" in str(
        result.exception
    )


def test_a_seed_is_marked_as_a_simulation(photos, tmp_path):
    first, second = (
        json.loads(run("protect", photos, "--out", tmp_path / name, *CLEAR, "--seed", 3, "--json"))
        for name in "ab"
    )
    assert first["guarantee"]["simulation"] and second["guarantee"]["simulation"]
    assert codes_of(tmp_path / "a") == codes_of(tmp_path / "b")


def test_photos_that_cannot_be_read_are_left_out_and_named(tmp_path):
    album = tmp_path / "album"
    album.mkdir()
    Image.new("RGB", (40, 40), (200, 10, 10)).save(album / "good.png")
    (album / "bad.jpg").write_bytes(b"\xff\xd8\xff not a photo")
    (album / "link.png").symlink_to(album / "good.png")
    made = json.loads(run("protect", album, "--out", tmp_path / "ix", *CLEAR, "--json"))
    assert made["released"] == 1
    assert [refused["name"] for refused in made["refused"]] == ["bad.jpg"]
    again = json.loads(run("protect", album, "--out", tmp_path / "ix", "--json"))
    assert (again["released"], again["known"]) == (0, 1)


def test_public_images_of_ones_own_teach_the_hash_function(photos, tmp_path):
    public = tmp_path / "public"
    public.mkdir()
    for number, pixels in enumerate(built_in_images(240, 32)[::2]):
        Image.fromarray(pixels).save(public / f"{number}.png")
    made = json.loads(
        run("protect", photos, "--out", tmp_path / "ix", *LEARNED, "--public", public, "--json")
    )
    assert "public learning" in {
        assumption["name"] for assumption in made["guarantee"]["assumptions"]
    }


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, (InvalidData, InvalidParameter)), result.output
    return str(result.exception)


def test_protected_photos_are_not_public(photos, tmp_path):
    words = ["protect", photos, "--out", tmp_path / "ix", *LEARNED, "--public"]
    for same in (photos, photos / "trips", photos.parent):
        assert "not public" in refused(*words, same)
    copies = tmp_path / "public"
    copies.mkdir()
    for number, pixels in enumerate(built_in_images(240, 32)[::2]):
        Image.fromarray(pixels).save(copies / f"{number}.png")
    (copies / "holiday.png").write_bytes((photos / "trips/001.png").read_bytes())
    assert "copy of a photo" in refused(*words, copies)


@pytest.fixture(scope="module")
def sorted_pictures(tmp_path_factory):
    """Public pictures of three colours, one subfolder each; and an album of the same kinds."""
    rng = np.random.default_rng(0)
    public, album = tmp_path_factory.mktemp("public"), tmp_path_factory.mktemp("album")
    for colour, base in (("red", (200, 40, 40)), ("green", (40, 200, 40)), ("blue", (40, 40, 200))):
        (public / colour).mkdir()
        for number in range(50):
            noise = rng.integers(-30, 30, (24, 24, 3))
            pixels = np.clip(np.array(base) + rng.integers(-30, 30, 3) + noise, 0, 255).astype(
                np.uint8
            )
            folder = public / colour if number < 40 else album
            Image.fromarray(pixels).save(folder / f"{colour}{number}.png")
    return public, album


def test_a_labelled_folder_gives_probabilities_of_relevance(sorted_pictures, tmp_path):
    public, album = sorted_pictures
    run(
        "protect",
        album,
        "--out",
        tmp_path / "ix",
        "--features",
        "pixels",
        "--public",
        public,
        "--epsilon",
        12,
    )
    words = ["search", tmp_path / "ix", public / "red/red1.png", "-k", 10]
    answer = json.loads(run(*words, "--json"))
    assert "calibrated" in answer["match"]
    hits = answer["queries"][0]["hits"]
    assert [hit["names"][0][:3] for hit in hits].count("red") >= 9
    assert all(0 <= hit["probability"] <= 1 for hit in hits) and hits[0]["probability"] > 0.5
    kept = json.loads(run(*words, "--min-probability", 0.2, "--json"))["queries"][0]["hits"]
    assert 0 < len(kept) <= 10
    assert "relevant" in run(*words)


def test_without_labels_no_probability_of_relevance_is_shown(sorted_pictures, tmp_path):
    public, album = sorted_pictures
    flat = tmp_path / "flat"
    flat.mkdir()
    for picture in public.rglob("*.png"):
        (flat / picture.name).write_bytes(picture.read_bytes())
    run("protect", album, "--out", tmp_path / "ix", "--features", "pixels", "--public", flat)
    query = public / "red/red1.png"
    answer = json.loads(run("search", tmp_path / "ix", query, "--json"))
    hits = answer["queries"][0]["hits"]
    assert all(hit["probability"] is None and 0 <= hit["trust"] <= 1 for hit in hits)
    assert "nothing about" in answer["match"]
    assert "labelled public pictures" in refused(
        "search", tmp_path / "ix", query, "--min-probability", 0.5
    )
    assert "no --radius" in refused("search", tmp_path / "ix", query, "--radius", 3)
    assert "pretrained network" in refused("search", tmp_path / "ix", "--words", "a red square")


def test_hits_of_one_cell_are_said_to_be_tied(sorted_pictures, tmp_path):
    public, album = sorted_pictures
    run(
        "protect",
        album,
        "--out",
        tmp_path / "ix",
        "--features",
        "pixels",
        "--public",
        public,
        "--epsilon",
        20,
    )
    query = public / "red/red1.png"
    page = run("search", tmp_path / "ix", query, "-k", 5)
    assert "the release does not distinguish them" in " ".join(page.split())
    assert "1-5" in page and "with 9 others" in page, (
        "photos of one cell share a rank, and are said to"
    )
    assert "score" not in page, "what a ranking goes by is no probability, and looks like one"
    hits = json.loads(run("search", tmp_path / "ix", query, "-k", 30, "--json"))["queries"][0][
        "hits"
    ]
    for hit in hits:
        assert hit["tied"] == sum(other["cell"] == hit["cell"] for other in hits)


def test_search_by_a_stored_photo_by_folder_and_by_the_owner_s_own_images(
    sorted_pictures, tmp_path
):
    public, album = sorted_pictures
    run(
        "protect",
        album,
        "--out",
        tmp_path / "ix",
        "--features",
        "pixels",
        "--public",
        public,
        "--epsilon",
        20,
    )
    like = json.loads(run("search", tmp_path / "ix", "--like", "blue45.png", "-k", 10, "--json"))[
        "queries"
    ][0]
    assert all(hit["names"][0].startswith("blue") for hit in like["hits"])
    query = album / "green44.png"
    only = json.loads(run("search", tmp_path / "ix", query, "--in", "green4", "-k", 5, "--json"))[
        "queries"
    ][0]
    assert len(only["hits"]) == 5 and all(
        hit["names"][0].startswith("green4") for hit in only["hits"]
    )
    best = json.loads(run("search", tmp_path / "ix", query, "--rerank", 30, "-k", 1, "--json"))[
        "queries"
    ][0]
    assert best["hits"][0]["names"][0] == "green44.png" and best["hits"][0]["score"] > 0.999
    assert "one of them" in refused("search", tmp_path / "ix", query, "--like", "blue45.png")
    both = json.loads(run("search", tmp_path / "ix", album, "-k", 1, "--json"))
    assert len(both["queries"]) == 30, "a folder is many queries"


def test_mistakes_are_named(sorted_pictures, tmp_path):
    public, album = sorted_pictures
    run("protect", album, "--out", tmp_path / "ix", "--features", "pixels", "--public", public)
    assert "comes first" in refused("search", album / "red41.png", tmp_path / "ix")
    assert "is a file" in refused("search", album / "red41.png", album / "red42.png")
    assert "blindsight protect" in refused("search", album, album / "red42.png")


def test_the_contact_sheet_is_one_page_that_fetches_nothing(tmp_path):
    album = tmp_path / "album"
    album.mkdir()
    names = ["a.png", "<script>alert(1)<.png", "gone.png"]
    for shade, name in enumerate(names):
        picture = Image.new("RGB", (64, 48), (80 * shade, 90, 30))
        exif = Image.Exif()
        exif[0x010E] = "a secret place"
        picture.save(album / name, exif=exif)
    run("protect", album, "--out", tmp_path / "ix", *CLEAR)
    (album / "gone.png").unlink()
    run("search", tmp_path / "ix", album / "a.png", "--html", tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;.png" in page
    assert re.findall(r'(?:src|href)="(?!data:image/jpeg;base64,)', page) == []
    assert page.count("data:image/jpeg;base64,") == 3  # the query and two originals
    assert "original not here" in page and "a secret place" not in page
    assert "Privacy card" in page and "keep it as private" in page


def test_a_name_in_an_index_does_not_lead_out_of_the_folder(tmp_path):
    album = tmp_path / "album"
    album.mkdir()
    Image.new("RGB", (40, 40)).save(album / "a.png")
    Image.new("RGB", (40, 40)).save(tmp_path / "outside.png")
    run("protect", album, "--out", tmp_path / "ix", *CLEAR, "--names", "keep")
    with HammingIndex.open(tmp_path / "ix" / "codes.index") as index:
        index.add(index.codes_of(["a.png"]), ids=["../outside.png"])
    run("search", tmp_path / "ix", album / "a.png", "--html", tmp_path / "sheet.html")
    assert (tmp_path / "sheet.html").read_text().count("data:image/jpeg;base64,") == 2


def test_hostile_indexes_are_refused(photos, tmp_path):
    run("protect", photos, "--out", tmp_path / "ix", *CLEAR)
    about = (tmp_path / "ix" / "about.json").read_text()
    forged = [
        (tmp_path / "ix" / "about.json", b"{"),
        (tmp_path / "ix" / "about.json", b"[]"),
        (tmp_path / "ix" / "about.json", about.replace("phashing-lsh", "pickle").encode()),
        (tmp_path / "ix" / "about.json", about.replace('"bits": 64', '"bits": "x"').encode()),
        (tmp_path / "ix" / "codes.index", b"hello"),
        (tmp_path / "ix" / "hasher.safetensors", b"hello"),
    ]
    for path, content in forged:
        whole = path.read_bytes()
        path.write_bytes(content)
        verbs = [
            ["search", tmp_path / "ix", photos / "000.JPG"],
            ["protect", photos, "--out", tmp_path / "ix"],
        ]
        # To hash, the owner's own copy of the function is used.
        for words in verbs[:1] if path.name == "hasher.safetensors" else verbs:
            result = CliRunner().invoke(app, [str(word) for word in words])
            assert isinstance(result.exception, HostileFile), (path.name, content, result.exception)
        path.write_bytes(whole)


@pytest.mark.parametrize("method", ["codebook", "phashing-lsh"])
def test_codes_that_state_less_than_their_hash_function_gives_are_refused(photos, tmp_path, method):
    """The price is computed again from the mechanism, and the mechanism must be the one beside the
    codes.
    """
    bits = ["--bits", 8] if method == "phashing-lsh" else []
    run(
        "protect",
        photos,
        "--out",
        tmp_path / "ix",
        "--method",
        method,
        "--features",
        "pixels",
        *bits,
        "--epsilon",
        8,
    )
    path = tmp_path / "ix" / "codes.index"
    stored = HammingIndex.load(path)
    cheap = KaryResponse(epsilon=1.0, k=200, unit="record")
    for forged in (
        None,
        dataclasses.replace(stored.guarantee, releases=(), unproven=(), epsilon=0.0, also=()),
        dataclasses.replace(
            stored.guarantee,
            releases=(Planned(what="cell", mechanism=cheap),),
            epsilon=1.0,
            also=(),
        ),
    ):
        stored.guarantee = forged
        stored.save(path)
        assert "state another guarantee" in refused("search", tmp_path / "ix", photos / "000.JPG")


def test_only_a_folder_of_ours_is_written_to(photos, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    for words, message in (
        (["protect", photos, "--out", tmp_path / "letters"], "not an index of photos"),
        (["protect", tmp_path / "nowhere", "--out", tmp_path / "ix"], "not a folder"),
        (["search", tmp_path / "letters", photos / "000.JPG"], "make one with"),
    ):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert isinstance(result.exception, InvalidData) and message in str(result.exception)


def test_a_threshold_and_a_radius_narrow_the_hits(photos, tmp_path):
    public = tmp_path / "public"
    public.mkdir()
    for number, pixels in enumerate(built_in_images(240, 32)):
        Image.fromarray(pixels).save(public / f"{number}.png")
    run("protect", photos, "--out", tmp_path / "ix", *CLEAR, "--public", public, "--seed", 5)
    query = photos / "trips" / "001.png"
    sure = json.loads(
        run("search", tmp_path / "ix", query, "-k", 50, "--min-probability", 0.5, "--json")
    )
    assert sure["queries"][0]["hits"] and all(
        hit["probability"] >= 0.5 for hit in sure["queries"][0]["hits"]
    )
    assert "match" in run("search", tmp_path / "ix", query)
    near = json.loads(run("search", tmp_path / "ix", query, "--radius", 12, "--json"))["queries"][
        0
    ]["hits"]
    assert near and all(hit["distance"] <= 12 for hit in near)
    assert np.all(np.diff([hit["distance"] for hit in near]) >= 0)
