"""A photo is known by its picture: what is written into the file about it changes nothing, another
pixel does.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from blindsight.core.errors import HostileFile
from blindsight.data import decode_image
from blindsight.data.sources import (
    content_digest,
    encoded_digest,
    pixel_digest,
    recognising,
)
from blindsight.privacy.vault import Vault

PIXELS = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)


def encoded(kind: str, pixels: np.ndarray = PIXELS, **said) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(
        buffer, kind, **({"lossless": True} if kind == "WEBP" else {}), **said
    )
    return buffer.getvalue()


def words(orientation: int = 1, text: str = "Anna") -> dict:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = orientation, text
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", text)
    return {"exif": exif.tobytes(), "pnginfo": info}


def said(kind: str, **options) -> dict:
    found = words(**options)
    return found if kind == "PNG" else {"exif": found["exif"]}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_words_do_not_count_and_pixels_do(kind):
    plain = encoded(kind)
    assert content_digest(encoded(kind, **said(kind))) == content_digest(plain)
    assert content_digest(encoded(kind, **said(kind, text="Berta" * 50))) == content_digest(plain)
    other = PIXELS.copy()
    other[:8, :8] = 255 - other[:8, :8]
    assert content_digest(encoded(kind, other)) != content_digest(plain)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_picture_that_is_shown_turned_is_another(kind):
    turned = encoded(kind, **said(kind, orientation=6))
    assert decode_image(turned).shape == (30, 20, 3)
    assert content_digest(turned) != content_digest(encoded(kind))
    assert content_digest(turned) == content_digest(
        encoded(kind, **said(kind, orientation=6, text="Berta"))
    )


def test_more_of_a_jpeg_is_said_than_exif():
    plain = encoded("JPEG")
    for marker in (b"\xff\xed", b"\xff\xfe", b"\xff\xe2"):
        assert content_digest(plain[:2] + marker + b"\x00\x06Anna" + plain[2:]) == content_digest(
            plain
        )


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "PPM"])
def test_equal_pixels_are_one_picture_in_whichever_format(kind):
    assert content_digest(encoded(kind)) == pixel_digest(PIXELS)


def test_compressing_a_picture_again_makes_no_new_one():
    """Eleven ways to compress one picture, which were eleven records."""
    levels = [{"compress_level": level} for level in range(10)] + [{"optimize": True}]
    files = [encoded("PNG", **options) for options in levels]
    assert len(set(files)) >= 4
    assert {content_digest(file) for file in files} == {pixel_digest(PIXELS)}
    assert content_digest(encoded("JPEG") + b"\0") == content_digest(encoded("JPEG"))


def test_a_turned_file_is_the_picture_that_it_shows():
    turned = encoded("PNG", **said("PNG", orientation=6))
    assert content_digest(turned) == pixel_digest(np.rot90(PIXELS, -1))


def test_a_grey_picture_is_one_in_colour_or_without():
    grey = PIXELS[:, :, 0]
    assert content_digest(encoded("PNG", grey)) == content_digest(
        encoded("PNG", np.stack([grey] * 3, axis=2))
    )


def test_a_file_that_is_no_image_is_refused():
    with pytest.raises(HostileFile):
        content_digest(b"photo")


def test_a_vault_decodes_a_file_once(tmp_path, monkeypatch):
    vault, content = Vault.create(tmp_path / "v"), encoded("PNG")
    with recognising(vault) as recognise:
        first = recognise(content, "a.png")
        assert recognise(encoded("PNG", compress_level=1), "b.png") == first
    monkeypatch.setattr("blindsight.data.sources.decode_image", None)
    with recognising(Vault(tmp_path / "v")) as recognise:
        assert recognise(content, "a.png") == first
    digests = [hashlib.sha256(bytes_).digest() for bytes_ in (content, content + b"x")]
    assert vault.shows(digests, [first, first]) == [True, False]


def test_a_dicom_file_without_its_names_is_the_same_picture():
    pydicom = pytest.importorskip("pydicom", reason="the dicom extra is not installed")
    examples = pytest.importorskip("pydicom.examples")
    dataset = examples.ct

    def written() -> bytes:
        buffer = io.BytesIO()
        dataset.save_as(buffer)
        return buffer.getvalue()

    dataset.PatientName, dataset.StudyDate = "Mueller^Anna", "20240101"
    dataset.WindowCenter, dataset.WindowWidth = 40, 400
    named = written()
    dataset.PatientName, dataset.StudyDate = "", ""
    assert content_digest(written()) == content_digest(named)
    assert pydicom.dcmread(io.BytesIO(named)).PatientName == "Mueller^Anna"
    dataset.RescaleIntercept = int(dataset.RescaleIntercept) + 7
    assert content_digest(written()) != content_digest(named), "other values are shown"


@given(st.data())
def test_files_of_one_digest_show_the_same_pixels(data):
    """Whatever a byte of the file is changed to."""
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP"]))
    content = encoded(kind, **said(kind, orientation=data.draw(st.sampled_from([1, 6]))))
    changed = bytearray(content)
    changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    if encoded_digest(bytes(changed)) == encoded_digest(content):
        try:
            shown = decode_image(bytes(changed))
        except HostileFile:
            return
        assert np.array_equal(shown, decode_image(content))
