from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from blindsight import data
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data import Limits, decode_image, read_image

GRADIENT = np.arange(24 * 16 * 3, dtype=np.uint8).reshape(16, 24, 3)


def encoded(array: np.ndarray = GRADIENT, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind, **options)
    return stream.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims any size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_lossless_formats_give_back_the_pixels(kind: str) -> None:
    np.testing.assert_array_equal(read_image(encoded(kind=kind)), GRADIENT)


def test_grey_images_have_two_dimensions_and_alpha_is_dropped() -> None:
    grey = GRADIENT[:, :, 0]
    np.testing.assert_array_equal(read_image(encoded(grey)), grey)
    with_alpha = np.dstack([GRADIENT, np.full(GRADIENT.shape[:2], 9, np.uint8)])
    np.testing.assert_array_equal(read_image(encoded(with_alpha)), GRADIENT)


def test_sixteen_bit_grey_keeps_its_high_byte() -> None:
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).astype(np.uint16)
    np.testing.assert_array_equal(read_image(encoded(deep)), (deep >> 8).astype(np.uint8))


def test_first_frame_of_an_animation_is_read() -> None:
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (10, 200)]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    assert read_image(stream.getvalue()).mean() < 30


def test_exif_and_gps_are_dropped_and_orientation_is_applied(tmp_path: Path) -> None:
    secret = b"Rue de la Paix 7"
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    exif[0x010F] = secret.decode()
    exif.get_ifd(0x8825)[2] = (48.0, 52.0, 7.0)  # latitude
    path = tmp_path / "photo.jpg"
    path.write_bytes(encoded(kind="JPEG", exif=exif, comment=secret, quality=95))
    assert secret in path.read_bytes()
    image = read_image(path)
    assert type(image) is np.ndarray
    assert image.shape == (24, 16, 3)
    upright = np.rot90(GRADIENT, -1).astype(int)
    assert np.abs(image.astype(int) - upright).mean() < 25
    assert secret not in image.tobytes()


def test_sloppy_metadata_do_not_spoil_a_good_photo() -> None:
    whole = encoded(kind="JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 40)
    assert read_image(whole).shape == GRADIENT.shape
    palette = Image.fromarray(GRADIENT).quantize(8)
    stream = io.BytesIO()
    palette.save(stream, "PNG", transparency=bytes([0, 128, 255, 255]))
    assert read_image(stream.getvalue()).shape == GRADIENT.shape


def test_many_threads_read_at_once_and_leave_the_warnings_filters_alone() -> None:
    before = list(warnings.filters)
    images = [encoded(), encoded()[:60], png_claiming(20_000, 20_000)] * 20

    def outcome(content: bytes) -> bool:
        try:
            return read_image(content).shape == GRADIENT.shape
        except HostileFile:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(outcome, images)) == [True, False, False] * 20
    assert warnings.filters == before


@pytest.mark.parametrize("size", [(1 << 31) - 1, 100_000, 8_000])
def test_bombs_are_refused_before_they_are_decoded(size: int, little_memory) -> None:
    with little_memory(), pytest.raises(HostileFile, match="pixels"):
        read_image(png_claiming(size, size))


def test_a_limit_of_pixels_can_be_set() -> None:
    with pytest.raises(HostileFile, match="24 x 16 pixels"):
        read_image(encoded(), limits=Limits(pixels=100))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_truncated_files_are_refused(kind: str, share: float) -> None:
    whole = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8), kind)
    with pytest.raises(HostileFile):
        read_image(whole[: int(len(whole) * share)])


@pytest.mark.parametrize(
    "junk", [b"", b"\0" * 100, b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>", b"\x80\x04."]
)
def test_what_is_no_image_is_refused(junk: bytes) -> None:
    with pytest.raises(HostileFile):
        read_image(junk)


@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"]),
    st.integers(0, 10**6),
    st.binary(min_size=1, max_size=8),
)
def test_damaged_bytes_give_an_image_or_a_clear_error(kind: str, where: int, patch: bytes) -> None:
    whole = bytearray(encoded(kind=kind))
    start = where % len(whole)
    whole[start : start + len(patch)] = patch
    try:
        image = decode_image(bytes(whole), limits=Limits(pixels=10**6))
    except HostileFile:
        return
    assert image.dtype == np.uint8


def test_folders_pipes_and_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HostileFile, match="ordinary file"):
        read_image(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(HostileFile, match="ordinary file"):
        read_image(tmp_path / "pipe.png")
    sparse = tmp_path / "large.png"
    with sparse.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(HostileFile, match="limit"):
        read_image(sparse)
    with pytest.raises(MissingData):
        read_image(tmp_path / "absent.png")


def test_damaged_images_of_a_set_are_listed_not_fatal(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(encoded() if i != 2 else encoded()[:40])
    photos = data.load_folder(tmp_path)
    damaged = data.find_damaged(photos.images)
    assert list(damaged) == [2]
    whole = photos.take([i for i in range(4) if i not in damaged])
    assert whole.array().shape == (3, 16, 24, 3)
