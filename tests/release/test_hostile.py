"""A sender who signs nonsense: the page and the package refuse it with a sentence."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import open_release, protect
from blindsight.core import storage
from blindsight.core.errors import BlindsightError
from blindsight.release.contents import amend_release
from blindsight.release.manifest import Signer
from blindsight.release.page import _seal

BLOCK = re.compile(r'(<script type="text/plain" id="(\w+)">)([^<]*)(</script>)')
SIGNER = Signer(bytes(range(32)))


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 20, 20, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "photos" / f"{number}.png")
    protect(folder / "photos", folder / "release", encoder="pixels")
    return folder / "release"


def _opened(text: str) -> tuple[dict, bytearray]:
    data = gzip.decompress(base64.b64decode(text))
    length = int.from_bytes(data[:4], "little")
    return json.loads(data[4 : 4 + length]), bytearray(data[4 + length :])


def _packed(head: object, body: bytes, *, length: int | None = None) -> str:
    text = json.dumps(head).encode()
    text += b" " * (-(len(text) + 4) % 8)
    stated = len(text) if length is None else length
    return base64.b64encode(gzip.compress(stated.to_bytes(4, "little") + text + body, 1)).decode()


def _signed(page: str, name: str, text: str) -> str:
    """The page with one block replaced, signed as a sender would sign it."""
    blocks = {found[2]: found[3] for found in BLOCK.finditer(page) if found[2] != "seal"}
    blocks |= {name: text}
    page = BLOCK.sub(lambda found: found[1] + blocks.get(found[2], "") + found[4], page)
    seal = json.dumps(_seal("release", blocks, SIGNER)).replace("<", "\\u003c")
    return re.sub(r'(id="seal"[^>]*>)[^<]*', lambda found: found[1] + seal, page)


def _in_about(**changes: object) -> tuple[str, Callable[[str], str]]:
    def change(text: str) -> str:
        about = json.loads(text)
        for path, value in changes.items():
            *places, last = path.split("__")
            inside = about
            for place in places:
                inside = inside[place]
            inside[last] = value
        return json.dumps(about).replace("<", "\\u003c")

    return "about", change


def _in_head(block: str, array: str, **fields: object) -> tuple[str, Callable[[str], str]]:
    def change(text: str) -> str:
        head, body = _opened(text)
        head[array] |= fields
        return _packed(head, bytes(body))

    return block, change


def _values(block: str, array: str, values: bytes) -> tuple[str, Callable[[str], str]]:
    def change(text: str) -> str:
        head, body = _opened(text)
        at = head[array]["start"]
        body[at : at + len(values)] = values
        return _packed(head, bytes(body))

    return block, change


def _without(block: str, array: str) -> tuple[str, Callable[[str], str]]:
    def change(text: str) -> str:
        head, body = _opened(text)
        del head[array]
        return _packed(head, bytes(body))

    return block, change


def _ids(ids: list) -> tuple[str, Callable[[str], str]]:
    def change(text: str) -> str:
        data = json.dumps(ids).encode()
        cells = bytes(2 * len(ids))
        head = {
            "cells": {"shape": [len(ids)], "type": "uint16", "start": 0, "bytes": len(cells)},
            "ids": {"shape": [], "type": "json", "start": len(cells), "bytes": len(data)},
        }
        return _packed(head, cells + data)

    return "codes", change


HOSTILE = {
    "a value that is no number": _values("book", "axes", b"\xff\x7e" * 2),
    "an infinite value": _values("book", "axes", b"\x00\x7c"),
    "a centre that is no number": _values("book", "centre", b"\x00\x00\xc0\x7f"),
    "a group that does not exist": _values("book", "group", b"\xff\xff"),
    "an array of another size": _in_head("book", "axes", shape=[3, 3]),
    "a giant array": _in_head("book", "axes", shape=[10**9, 10**9]),
    "a negative size": _in_head("book", "axes", shape=[-1, -4]),
    "sizes that are no numbers": _in_head("book", "axes", shape="many"),
    "an array beyond the end": _in_head("book", "centre", start=10**7),
    "an unknown type": _in_head("book", "axes", type="pickle"),
    "a missing array": _without("book", "atoms"),
    "missing axes": _without("book", "axes"),
    "a head beyond the end": ("book", lambda text: _packed(*_opened(text), length=2**31)),
    "a head that is no object": ("book", lambda text: _packed([None], b"")),
    "a bomb": ("book", lambda text: _packed({}, bytes(130_000_000))),
    "no gzip": ("book", lambda text: "AAAA"),
    "an entry of no group": _values("codes", "cells", b"\xff\xff"),
    "more entries than a page takes": _ids(["a"] * 200_001),
    "ids that are no texts": _ids([{"a": 1}] * 5),
    "ids that are too long": _ids(["a" * 100_000]),
    "a giant number of groups": _in_about(book__k=10**9),
    "one group more": _in_about(book__k=151),
    "no group": _in_about(book__k=0),
    "half a group": _in_about(book__k=2.5),
    "no width": _in_about(book__width=0),
    "a negative epsilon": _in_about(book__epsilon=-1),
    "an unknown kind": _in_about(book__kind="__proto__"),
    "labels that are no lists": _in_about(labels={"length": 10**9}),
    "giant pictures": _in_about(size=10**9),
    "a network without weights": _in_about(
        networks=[{"prefix": "", "size": 16, "layers": [{"side": 3, "stride": 1, "pad": 1}]}]
    ),
    "about that is no object": ("about", lambda text: "null"),
}


@pytest.fixture(scope="module")
def tab(browser):
    page = browser.new_page()
    yield page
    page.close()


def test_a_page_that_is_packed_again_opens(release: Path, tab, tmp_path: Path) -> None:
    page = (release / "search.html").read_text()
    same = _in_head("book", "axes")
    blocks = {found[2]: found[3] for found in BLOCK.finditer(page)}
    path = tmp_path / "search.html"
    path.write_text(_signed(page, same[0], same[1](blocks[same[0]])))
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    assert SIGNER.fingerprint in tab.text_content("#signature")


@pytest.mark.parametrize("what", HOSTILE)
def test_the_page_refuses_what_is_signed_and_wrong(what, release: Path, tab, tmp_path: Path):
    page = (release / "search.html").read_text()
    name, change = HOSTILE[what]
    blocks = {found[2]: found[3] for found in BLOCK.finditer(page)}
    path = tmp_path / "search.html"
    path.write_text(_signed(page, name, change(blocks[name])))
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready], #results h2")
    assert SIGNER.fingerprint in tab.text_content("#signature"), "it is signed"
    assert "This page is damaged" in tab.inner_text("#results")
    assert tab.is_disabled("#search")


def _arrays(**changes: object) -> Callable[[dict], dict]:
    return lambda arrays: {
        name: changes[name](array) if name in changes else array for name, array in arrays.items()
    }


def _with(place: object, value: object) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[place] = value
        return array

    return change


ARRAYS = {
    "a value that is no number": _arrays(axes=_with((0, 0), np.nan)),
    "an infinite value": _arrays(atoms=_with((0, 0), np.inf)),
    "a group that does not exist": _arrays(group=_with(0, 10**6)),
    "a negative group": _arrays(group=_with(0, -1)),
    "axes of another size": _arrays(axes=lambda array: array[:, :3]),
    "rows of another size": _arrays(axes=lambda array: array[:5]),
    "no atoms": _arrays(atoms=lambda array: array[:0], group=lambda array: array[:0]),
    "a flat array": _arrays(axes=np.ravel),
    "texts": _arrays(axes=lambda array: array.view(np.uint8)),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_the_package_refuses_a_codebook_that_is_signed_and_wrong(
    what, release: Path, tmp_path: Path
) -> None:
    _share(release, tmp_path / "release", what)
    query = release.parent / "photos" / "0.png"
    with pytest.raises(BlindsightError):
        open_release(tmp_path / "release", fingerprint=SIGNER.fingerprint).search(query)


def _share(release: Path, target: Path, what: str) -> None:
    shutil.copytree(release, target)
    codebook = target / "codebook.safetensors"
    arrays, fields = storage.load(codebook, kind="codebook")
    storage.save(codebook, kind="codebook", arrays=ARRAYS[what](dict(arrays)), fields=fields)
    content = codebook.read_bytes()
    shutil.copy(release / "codebook.safetensors", codebook)
    amend_release(target, {"codebook.safetensors": content}, SIGNER)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("card.json", b"[]"),
        ("card.json", b'{"entries": -1, "guarantee": {}}'),
        ("card.json", b"[" * 200_000),
        ("card.json", b" " * (2 << 20)),
        ("about.json", b"{}"),
        ("about.json", b"[" * 200_000),
    ],
    ids=["no object", "no guarantee", "deep", "long", "nothing stated", "deep about"],
)
def test_the_package_refuses_a_card_that_is_signed_and_wrong(
    file: str, content: bytes, release: Path, tmp_path: Path
) -> None:
    shutil.copytree(release, tmp_path / "release")
    amend_release(tmp_path / "release", {file: content}, SIGNER)
    with pytest.raises(BlindsightError):
        open_release(tmp_path / "release")


def test_the_package_refuses_codes_that_are_signed_and_wrong(release: Path, tmp_path: Path) -> None:
    content = bytearray((release / "codes.index").read_bytes())
    for place in range(0, len(content), 97):
        changed = (
            bytes(content[:place]) + bytes([content[place] ^ 255]) + bytes(content[place + 1 :])
        )
        target = tmp_path / f"release{place}"
        shutil.copytree(release, target)
        amend_release(target, {"codes.index": bytes(changed)}, SIGNER)
        with pytest.raises(BlindsightError):
            opened = open_release(target)
            assert len(opened.entries["id"]) == 5
            opened.search(release.parent / "photos" / "0.png")
