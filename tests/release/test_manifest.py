"""A shared folder is refused when any byte of it was changed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from blindsight import answer_request, hand_over, open_release, protect, search
from blindsight.app.release import log_request
from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.release.manifest import Signer, check_folder, fingerprint_of, write_manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release of five pictures, with the photos and the vault beside it."""
    base = tmp_path_factory.mktemp("shared")
    (base / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(5):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(base / "photos" / f"secret-name-{number}.png")
    return protect(base / "photos", base / "release", encoder="pixels")


@pytest.fixture
def received(made, tmp_path):
    """A receiver's own copy of the folder, and nothing else."""
    return Path(shutil.copytree(made.release, tmp_path / "received"))


def test_the_folder_holds_what_is_promised_and_colleagues_may_read_it(made):
    names = {path.name for path in made.release.iterdir()}
    assert {"README.md", "card.json", "card.txt", "search.html", "manifest.json"} <= names
    assert {"entries.parquet", "entries.csv"} & names
    for path in made.release.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path
    assert stat.S_IMODE(made.release.stat().st_mode) == 0o755


def test_no_file_names_a_photo(made):
    for path in made.release.iterdir():
        assert b"secret-name" not in path.read_bytes(), path


def test_a_received_folder_is_opened_and_searched(made, received):
    release = open_release(received, fingerprint=made.fingerprint)
    assert release.manifest.fingerprint == made.fingerprint
    assert release.guarantee == made.guarantee
    photo = made.release.parent / "photos" / "secret-name-0.png"
    hits = release.search(photo, k=5).hits
    assert [hit.hit for hit in hits] == [hit.hit for hit in search(made.release, photo, k=5).hits]
    assert sorted(release.entries["id"]) == sorted(hit.hit.id for hit in hits)
    assert "signed by" in str(release)


def test_every_changed_byte_is_refused(received):
    """Every file, at its ends and at 20 places between."""
    for path in sorted(received.iterdir()):
        whole = path.read_bytes()
        places = {0, len(whole) - 1, *np.linspace(0, len(whole) - 1, 22).astype(int).tolist()}
        for place in sorted(places):
            changed = bytearray(whole)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises((HostileFile, InvalidData)):
                open_release(received)
        path.write_bytes(whole)
    open_release(received)


@pytest.mark.parametrize("name", ["card.json", "codebook.safetensors", "codes.index", "about.json"])
def test_a_missing_file_is_named(received, name):
    (received / name).unlink()
    with pytest.raises(HostileFile, match=f"lacks.*{name}"):
        open_release(received)


def test_an_added_file_is_named_but_not_what_file_managers_leave(received):
    (received / ".DS_Store").write_bytes(b"")
    open_release(received)
    (received / "invoice.exe").write_bytes(b"MZ")
    with pytest.raises(HostileFile, match=r"did not sign.*invoice\.exe"):
        open_release(received)


def test_a_symbolic_link_in_place_of_a_file_is_refused(made, received):
    (received / "card.txt").unlink()
    (received / "card.txt").symlink_to(made.release / "card.txt")
    with pytest.raises(HostileFile, match=r"changed after signing.*card\.txt"):
        open_release(received)


def test_a_folder_signed_again_by_another_key_has_another_fingerprint(made, received):
    release = open_release(received).manifest
    write_manifest(received, Signer(bytes(32)), kind=release.kind, release=release.release)
    assert open_release(received).manifest.fingerprint != made.fingerprint
    with pytest.raises(HostileFile, match="not by the key that you were told"):
        open_release(received, fingerprint=made.fingerprint)
    with pytest.raises(InvalidParameter, match="32 hexadecimal digits"):
        open_release(received, fingerprint="785e")


def test_an_unfinished_folder_is_not_opened(received):
    (received / "manifest.sig").unlink()
    with pytest.raises(InvalidData, match="no manifest"):
        open_release(received)


@pytest.mark.parametrize(
    "files",
    [{"../photos": "0" * 64}, {"C:a": "0" * 64}, {"card.txt": "0"}, {"": "0" * 64}, [], None],
)
def test_a_hostile_manifest_is_refused_although_it_is_signed(received, files):
    signer = Signer(bytes(32))
    fields = json.loads((received / "manifest.json").read_bytes())
    fields |= {"files": files, "key": signer.public_key.hex()}
    text = json.dumps(fields).encode()
    (received / "manifest.json").write_bytes(text)
    (received / "manifest.sig").write_bytes(signer.sign(text))
    with pytest.raises(HostileFile, match="not a manifest"):
        check_folder(received)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_signature_is_an_ordinary_ed25519_signature(made, tmp_path):
    """As the documentation tells a receiver who trusts no package of ours."""
    key = bytes.fromhex(json.loads((made.release / "manifest.json").read_bytes())["key"])
    (tmp_path / "key.der").write_bytes(bytes.fromhex("302a300506032b6570032100") + key)
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "key.der"]
    words += ["-keyform", "DER", "-rawin", "-in", made.release / "manifest.json"]
    done = subprocess.run(
        [*words, "-sigfile", made.release / "manifest.sig"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert fingerprint_of(key) == made.fingerprint


def test_releases_of_one_vault_are_linked_only_on_request(made, tmp_path):
    photos, vault = made.release.parent / "photos", tmp_path / "vault"
    prints = [
        protect(photos, tmp_path / str(n), encoder="pixels", vault=vault, epsilon=n + 1, link=link)
        for n, link in enumerate((False, False, True, True))
    ]
    found = [each.fingerprint for each in prints]
    assert len({found[0], found[1], found[2]}) == 3
    assert found[2] == found[3]


def test_protecting_again_gives_the_same_bytes(made, received):
    photos = made.release.parent / "photos"
    again = protect(photos, made.release, encoder="pixels")
    assert again.fingerprint == made.fingerprint
    for path in received.iterdir():
        assert path.read_bytes() == (made.release / path.name).read_bytes(), path.name


def test_random_order_is_stated_for_one_batch_only(tmp_path):
    (tmp_path / "photos").mkdir()

    def add(first: int, count: int) -> None:
        for number in range(first, first + count):
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")

    add(0, 300)
    protect(tmp_path / "photos", tmp_path / "release", encoder="pixels", epsilon=2)
    stated = open_release(tmp_path / "release").card["shuffled"]
    assert stated["epsilon"] < stated["local_epsilon"] == 2
    add(300, 1)
    protect(tmp_path / "photos", tmp_path / "release", encoder="pixels", epsilon=2)
    assert open_release(tmp_path / "release").card["shuffled"] is None


def request_file(path: Path, **fields: object) -> Path:
    known = {"format": "blindsight request 1", "query": {}, "message": "for a study"}
    path.write_text(json.dumps(known | fields))
    return path


def test_two_requests_at_once_are_both_in_the_log(tmp_path, monkeypatch):
    append, lock, second_came = durable.DurableFile.append, durable.lock, threading.Event()

    def log_second() -> None:
        log_request(tmp_path, "second", photos=2)
        second_came.set()

    second = threading.Thread(target=log_second)

    def overtaken(file: durable.DurableFile, content: bytes, **options: Any) -> None:
        if threading.current_thread() is not second:
            second.start()
            assert second_came.wait(600)
        append(file, content, **options)

    def announced(descriptor: int, *, wait: bool = True) -> None:
        if threading.current_thread() is second:
            second_came.set()
        lock(descriptor, wait=wait)

    monkeypatch.setattr(durable.DurableFile, "append", overtaken)
    monkeypatch.setattr(durable, "lock", announced)
    log_request(tmp_path, "first", photos=1)
    second.join()
    lines = (tmp_path / "requests.log").read_text().splitlines()
    assert [json.loads(line)["release"] for line in lines] == ["first", "second"]


def test_the_owner_sees_which_photos_are_requested_and_nothing_is_sent(made, tmp_path):
    release = open_release(made.release)
    wanted = sorted(release.entries["id"])[:2]
    before = sorted(os.listdir(made.release))
    number = release.manifest.release
    path = request_file(tmp_path / "request.json", release=number, ids=[*wanted, "0" * 32])
    answer = answer_request(path, made.release)
    assert [key for key, _ in answer.photos] == wanted
    assert all("secret-name" in name for _, files in answer.photos for name in files)
    assert answer.unknown == ("0" * 32,)
    assert sorted(os.listdir(made.release)) == before
    log = (made.vault / "requests.log").read_text()
    assert '"photos": 2' in log
    assert "secret-name" not in log


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": "abc"},
        {"ids": [1]},
        {"ids": ["a"] * 1001},
        {"message": "x" * 3000},
        {"message": None},
        {"format": "blindsight request 9"},
    ],
)
def test_a_hostile_request_is_refused(made, tmp_path, fields):
    number = open_release(made.release).manifest.release
    path = request_file(tmp_path / "request.json", **({"release": number, "ids": []} | fields))
    with pytest.raises(HostileFile, match="not a request"):
        answer_request(path, made.release)


def test_a_request_about_another_release_is_refused(made, tmp_path):
    path = request_file(tmp_path / "request.json", release="0" * 32, ids=[])
    with pytest.raises(InvalidData, match="another release"):
        answer_request(path, made.release)


def test_the_log_of_requests_only_grows(made, tmp_path):
    """An earlier line stays as it is, byte for byte, and the file is never written anew."""
    release = open_release(made.release)
    path = request_file(
        tmp_path / "request.json",
        release=release.manifest.release,
        ids=sorted(release.entries["id"])[:1],
    )
    answer_request(path, made.release)
    log = made.vault / "requests.log"
    before, file = log.read_bytes(), log.stat().st_ino
    answer_request(path, made.release)
    assert log.read_bytes().startswith(before) and log.stat().st_ino == file
    assert len(log.read_bytes().splitlines()) == len(before.splitlines()) + 1


def test_the_owner_hands_over_copies_of_the_chosen_photos_only(made, tmp_path):
    release = open_release(made.release)
    wanted = sorted(release.entries["id"])[:3]
    path = request_file(tmp_path / "request.json", release=release.manifest.release, ids=wanted)
    files = dict(answer_request(path, made.release).photos)
    copies = hand_over(path, made.release, wanted[1:], tmp_path / "given")
    photos = made.release.parent / "photos"
    assert [copy.read_bytes() for copy in copies] == [
        (photos / files[key][0]).read_bytes() for key in wanted[1:]
    ]
    assert sorted(os.listdir(tmp_path / "given")) == sorted(copy.name for copy in copies)
    assert not any("secret" in copy.name for copy in copies)
    assert (
        json.loads((made.vault / "requests.log").read_text().splitlines()[-1])["handed_over"] == 2
    )
    other = sorted(release.entries["id"])[4]
    with pytest.raises(InvalidParameter, match="not asked for"):
        hand_over(path, made.release, [other], tmp_path / "more")
    with pytest.raises(InvalidParameter, match="exists"):
        hand_over(path, made.release, wanted, tmp_path / "given")
