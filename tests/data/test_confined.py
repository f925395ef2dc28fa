"""Files are decoded in a confined process: whatever a file does there, the run goes on and the file
is named.
"""

from __future__ import annotations

import io
import os
import signal
import struct
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.core.errors import HostileFile, MissingDependency
from blindsight.data import Limits, decode_image, read_image
from blindsight.data import confined as module
from blindsight.data.confined import DECODED, REFUSED, ConfinedReader
from blindsight.data.reading import RAW_SUFFIXES, decode_here, raw_preview

Y, X = np.mgrid[0:48, 0:64]
GRADIENT = np.stack([X * 4, Y * 5, (X + Y) * 2], axis=-1).astype(np.uint8)
HEIC = Path(__file__).parent / "files" / "gradient.heic"
LOSSLESS = ("PNG", "BMP", "TIFF", "PPM")
LOSSY = ("JPEG", "WEBP", "GIF", "AVIF", "JPEG2000")


def encoded(kind: str, pixels: np.ndarray = GRADIENT, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def reader() -> Iterator[ConfinedReader]:
    with ConfinedReader() as reader:
        yield reader


@pytest.mark.parametrize("kind", [*LOSSLESS, *LOSSY])
def test_every_format_is_read_as_without_walls(reader: ConfinedReader, kind: str) -> None:
    data = encoded(kind)
    pixels = reader.decode(data)
    np.testing.assert_array_equal(pixels, decode_here(data))
    if kind in LOSSLESS:
        np.testing.assert_array_equal(pixels, GRADIENT)
    else:
        assert np.abs(pixels.astype(int) - GRADIENT).mean() < 12


def test_heic_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pi_heif", reason="the extra heic is not installed")
    pixels = read_image(HEIC)
    assert pixels.shape == GRADIENT.shape
    assert np.abs(pixels.astype(int) - GRADIENT).mean() < 8


def test_heic_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pi_heif", None)
    with pytest.raises(MissingDependency, match=r"blindsight\[heic\]"):
        read_image(HEIC)


def test_the_process_is_confined_and_has_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BLINDSIGHT_SECRET", "an-address-with-a-password")
    with ConfinedReader() as reader:
        reader.start()
        assert "limits" in reader.walls
        assert b"BLINDSIGHT_SECRET" not in Path(f"/proc/{reader.process}/environ").read_bytes()


class Crashing(ConfinedReader):
    """A reader whose process dies of the first requests, as if a decoder had crashed."""

    def __init__(self, deaths: int) -> None:
        super().__init__()
        self.deaths = deaths

    def _ready(self, limits: Limits) -> tuple[int, int]:
        ends = super()._ready(limits)
        if self.deaths:
            self.deaths -= 1
            assert self._process is not None
            # Stopped before the request comes, so that it cannot be answered before the end.
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return ends


def test_a_file_that_ends_its_process_is_named_and_the_next_one_is_read() -> None:
    with Crashing(deaths=2) as reader:
        with pytest.raises(HostileFile, match=r"bad\.dcm is damaged: it ended the process"):
            reader.decode(encoded("PNG"), name="bad.dcm")
        np.testing.assert_array_equal(reader.decode(encoded("PNG")), GRADIENT)


def test_a_file_is_not_blamed_for_one_death() -> None:
    with Crashing(deaths=1) as reader:
        np.testing.assert_array_equal(reader.decode(encoded("PNG")), GRADIENT)


def test_a_file_that_takes_too_long_is_refused_and_its_process_ended() -> None:
    with ConfinedReader(seconds=0.3) as slow:
        slow.start()
        assert slow.process is not None
        os.kill(slow.process, signal.SIGSTOP)
        with pytest.raises(HostileFile, match=r"slow\.png took longer than 0\.3 seconds"):
            slow.decode(encoded("PNG"), name="slow.png")
        slow.seconds = 120.0
        np.testing.assert_array_equal(slow.decode(encoded("PNG")), GRADIENT)


def test_threads_share_the_readers() -> None:
    files = [encoded("PNG", GRADIENT[:height]) for height in range(1, 25)]
    with ThreadPoolExecutor(6) as pool:
        shapes = [pixels.shape[0] for pixels in pool.map(decode_image, files)]
    assert shapes == list(range(1, 25))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_with_a_process_of_its_own() -> None:
    decode_image(encoded("PNG"))
    with warnings.catch_warnings():  # threads that other tests left in this process
        warnings.filterwarnings("ignore", ".*is multi-threaded", DeprecationWarning)
        child = os.fork()
    if child == 0:
        fine = np.array_equal(decode_image(encoded("PNG")), GRADIENT)
        for reader in module._READERS.values():
            reader.close()
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(decode_image(encoded("PNG")), GRADIENT)


def test_answers_that_a_taken_over_process_could_send_are_refused(
    reader: ConfinedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape in ((0, 5, 3), (1 << 20, 1 << 20, 3), (4, 4, 7)):
        reader.start()
        monkeypatch.setattr(reader, "_answer", lambda *_, shape=shape: (DECODED, shape, ""))
        with pytest.raises(HostileFile, match="could not be decoded"):
            reader._exchange(encoded("PNG"), "x.png", Limits(), None)
        monkeypatch.undo()
    reader.start()
    monkeypatch.setattr(
        reader, "_answer", lambda *_: (REFUSED, (0, 0, 0), "{name}\x1b[2J\x00 is bad")
    )
    with pytest.raises(HostileFile, match=r"^x\.png\[2J is bad$"):
        reader._exchange(encoded("PNG"), "x.png", Limits(), None)
    monkeypatch.undo()
    reader.close()
    np.testing.assert_array_equal(reader.decode(encoded("PNG")), GRADIENT)


@pytest.mark.parametrize("kind", [*LOSSLESS, *LOSSY])
def test_mutated_files_end_no_run(reader: ConfinedReader, kind: str) -> None:
    """110 files of each format with some bytes changed, cut out or cut off; fixed by a seed."""
    rng = np.random.default_rng(len(kind))
    for _ in range(110):
        data = mutated(encoded(kind), rng)
        try:
            assert reader.decode(data, limits=Limits(pixels=10**6)).dtype == np.uint8
        except HostileFile as error:
            assert str(error).endswith(".")


@pytest.mark.parametrize("suffix", sorted(RAW_SUFFIXES))
def test_mutated_raw_files_end_no_run(reader: ConfinedReader, suffix: str) -> None:
    magic = {".orf": 0x4F52, ".rw2": 0x55}.get(suffix, 42)
    good = raw_file([encoded("JPEG", GRADIENT[:8, :8]), encoded("JPEG")], magic=magic)
    rng = np.random.default_rng(len(suffix))
    for number in range(20):
        name = f"camera {number}{suffix}"
        try:
            reader.decode(mutated(good, rng), name=name, limits=Limits(pixels=10**6))
        except HostileFile as error:
            assert name in str(error)


def test_mutated_heic_files_end_no_run() -> None:
    pytest.importorskip("pi_heif", reason="the extra heic is not installed")
    rng = np.random.default_rng(0)
    refused = 0
    with ConfinedReader("heif") as heif:
        for number in range(60):
            name = f"phone {number}.heic"
            data = mutated(HEIC.read_bytes(), rng)
            try:
                heif.decode(data, name=name, limits=Limits(pixels=10**6))
            except HostileFile as error:
                refused += 1
                assert name in str(error)
        np.testing.assert_array_equal(heif.decode(HEIC.read_bytes()).shape, GRADIENT.shape)
    assert refused


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(len(changed)))
        changed[at] = int(rng.integers(256))
    if rng.random() < 0.2:
        del changed[int(rng.integers(len(changed))) :]
    return bytes(changed)


def test_a_large_jpeg_is_decoded_at_a_reduced_scale() -> None:
    data = encoded("JPEG", np.zeros((1200, 1600, 3), np.uint8))
    assert decode_image(data, limits=Limits(pixels=500_000)).shape == (600, 800, 3)
    assert decode_image(data, limits=Limits(pixels=2_000_000)).shape == (1200, 1600, 3)
    with pytest.raises(HostileFile, match="1600 x 1200 pixels"):
        decode_image(data, limits=Limits(pixels=1000))


def test_a_photo_of_108_megapixels_is_read() -> None:
    data = encoded("JPEG", np.zeros((9000, 12000), np.uint8), quality=10)
    assert decode_image(data).shape == (4500, 6000)


def test_deep_and_many_paged_tiffs_are_read_by_their_first_page() -> None:
    deep = np.linspace(0, 60_000, 48 * 64).reshape(48, 64).astype(np.uint16)
    first, second = Image.fromarray(deep), Image.fromarray(deep[::-1])
    file = io.BytesIO()
    first.save(file, "TIFF", save_all=True, append_images=[second])
    pixels = decode_image(file.getvalue())
    assert pixels.shape == (48, 64)
    assert (np.diff(pixels.astype(int).ravel()) >= 0).all(), "the first page rises"


def raw_file(previews: list[bytes], *, order: str = "<", turn: int = 1, magic: int = 42) -> bytes:
    """A TIFF container as cameras write them: a chain of directories, a preview in each."""
    mark = b"II" if order == "<" else b"MM"
    body = bytearray(mark + struct.pack(order + "HI", magic, 8))
    for number, preview in enumerate(previews):
        start = len(body)
        end = start + 2 + 3 * 12 + 4
        last = number == len(previews) - 1
        body += struct.pack(order + "H", 3)
        body += struct.pack(order + "HHIHH", 0x0112, 3, 1, turn, 0)
        body += struct.pack(order + "HHII", 0x0201, 4, 1, end)
        body += struct.pack(order + "HHII", 0x0202, 4, 1, len(preview))
        body += struct.pack(order + "I", 0 if last else end + len(preview))
        body += preview
    return bytes(body)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("suffix", sorted(RAW_SUFFIXES))
def test_a_raw_file_shows_its_largest_preview(order: str, suffix: str, tmp_path: Path) -> None:
    magic = {".orf": 0x4F52, ".rw2": 0x55}.get(suffix, 42)
    small = encoded("JPEG", GRADIENT[:8, :8])
    data = raw_file([small, encoded("JPEG"), small], order=order, magic=magic)
    path = tmp_path / f"photo{suffix.upper()}"
    path.write_bytes(data)
    assert read_image(path).shape == GRADIENT.shape


def test_a_raw_file_is_turned_as_its_container_says() -> None:
    data = raw_file([encoded("JPEG")], turn=6)
    assert decode_image(data, name="turned.nef").shape == (64, 48, 3)


def test_raw_files_without_a_preview_or_in_a_circle_are_refused() -> None:
    lossless = encoded("JPEG").replace(b"\xff\xc0", b"\xff\xc3", 1)
    circle = bytearray(raw_file([lossless]))
    circle[8 + 2 + 36 : 8 + 2 + 40] = struct.pack("<I", 8)
    for data in (raw_file([lossless]), bytes(circle), b"II*\0", b"nothing of the kind"):
        with pytest.raises(HostileFile):
            decode_image(data, name="x.dng")
    with pytest.raises(ValueError, match="no preview"):
        raw_preview(bytes(circle))


def test_mutated_dicom_files_end_no_run() -> None:
    pydicom = pytest.importorskip("pydicom", reason="the extra dicom is not installed")
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    names = ("SC_rgb_jpeg_gdcm.dcm", "JPEG2000.dcm", "MR_small_RLE.dcm", "CT_small.dcm")
    files = [path.read_bytes() for path in (folder / name for name in names) if path.exists()]
    assert files, "pydicom ships files of its own"
    rng = np.random.default_rng(0)
    with ConfinedReader("dicom") as reader:
        for data in files:
            for _ in range(40):
                try:
                    reader.decode(mutated(data, rng), limits=Limits(pixels=10**6))
                except HostileFile as error:
                    assert str(error).endswith(".")
