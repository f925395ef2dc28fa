"""A picture is known again whatever was written about it, and only then."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from blindsight.core.bare import bare

PICTURE = Image.fromarray(np.arange(32 * 24 * 3, dtype=np.uint8).reshape(24, 32, 3))
OTHER = Image.fromarray(255 - np.arange(32 * 24 * 3, dtype=np.uint8).reshape(24, 32, 3))


def jpeg(picture: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    return file.getvalue()


def png(picture: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def _exif() -> bytes:
    exif = Image.Exif()
    exif[0x010E], exif[0x9003] = "Mueller, Anna", "2026:11:17 02:17:00"
    return exif.tobytes()


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_the_same_picture_with_another_date_place_or_comment(progressive: bool) -> None:
    plain = jpeg(PICTURE, progressive=progressive)
    for told in (
        jpeg(PICTURE, progressive=progressive, exif=_exif()),
        jpeg(PICTURE, progressive=progressive, comment=b"ward 7"),
        jpeg(PICTURE, progressive=progressive, dpi=(300, 300)),
        jpeg(PICTURE, progressive=progressive, icc_profile=b"\0" * 200),
    ):
        assert told != plain and bare(told) == bare(plain)
        assert np.array_equal(Image.open(io.BytesIO(bare(told))), Image.open(io.BytesIO(plain))), "still the picture"
    assert bare(jpeg(OTHER, progressive=progressive)) != bare(plain)
    assert bare(jpeg(PICTURE, quality=40)) != bare(plain), "coded anew it is another file"


def test_a_png_is_the_same_picture_with_other_text() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("Patient", "Mueller, Anna")
    told = png(PICTURE, pnginfo=text, dpi=(72, 72), exif=_exif())
    assert told != png(PICTURE) and bare(told) == bare(png(PICTURE)) != bare(png(OTHER))
    palette = PICTURE.quantize(4)
    assert bare(png(palette, transparency=0)) != bare(png(palette)), "what is transparent is part of the picture"


def test_how_colours_are_coded_is_part_of_the_picture() -> None:
    plain = jpeg(PICTURE)
    adobe = b"\xff\xee" + struct.pack(">H", 14) + b"Adobe\0\x64\0\0\0\0\0"
    assert bare(plain[:2] + adobe + plain[2:]) != bare(plain)


@given(st.binary(max_size=60), st.sampled_from([b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"", jpeg(PICTURE)[:150]]))
def test_what_is_not_built_as_it_should_be_is_taken_whole(rest: bytes, start: bytes) -> None:
    content = start + rest
    if b"\xff\xda" not in content and b"IEND" not in content:
        assert bare(content) == content


def test_two_files_with_one_picture_never_hide_a_second_one() -> None:
    """What is dropped is dropped whole: bytes cannot move between the picture and what is said about it."""
    chunk = b"tEXtComment\0IEND"
    inside = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    told = png(PICTURE)
    assert bare(told[:33] + inside + told[33:]) == bare(told)
