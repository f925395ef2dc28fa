"""Reading files: what the confinement costs, and how many damaged files end a run."""

from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.harness import Row
from blindsight.core.errors import HostileFile
from blindsight.data import Limits
from blindsight.data.confined import ConfinedReader
from blindsight.data.reading import decode_here

__all__ = ["mutated_files", "rows"]

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
_SIZES = ((500, 375), (1600, 1200))
_PHOTOS = 150
_REPEATED, _BLOCK = 9, 10
_HEIC = Path(__file__).parents[2] / "tests" / "data" / "files" / "gradient.heic"
_DICOM_BYTES = 60_000


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Yield the cost of the confinement at two sizes of photos, then the damaged files."""
    step = progress or (lambda done, total: None)
    total = len(_SIZES) + 2
    ratios = []
    for number, size in enumerate(_SIZES):
        step(number, total)
        ratios.append(_ratio(size, 20 if quick else _PHOTOS, seed))
        yield ratios[-1]
    yield replace(
        max(ratios, key=lambda row: row.value),
        id="files.confined_decode_cpu_ratio",
        note="the larger of the two sizes",
    )
    step(len(_SIZES), total)
    yield from _file_to_code(60 if quick else 1000, seed)
    step(len(_SIZES) + 1, total)
    yield from _damaged(900 if quick else 100_000, seed)
    step(total, total)


def _photos(size: tuple[int, int], count: int, seed: int) -> list[bytes]:
    """JPEG files with as much detail as photos have: smoothed noise at several scales."""
    rng = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        layers = [
            Image.fromarray(
                rng.integers(0, 256, (4 << level, 4 << level, 3), dtype=np.uint8)
            ).resize(size, Image.Resampling.BICUBIC)
            for level in range(5)
        ]
        pixels = np.mean([np.asarray(layer, np.float32) for layer in layers], axis=0)
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=88)
        files.append(file.getvalue())
    return files


def _ratio(size: tuple[int, int], count: int, seed: int) -> Row:
    """CPU time of decoding behind the walls, both processes, over decoding in this process."""
    files = _photos(size, count, seed)
    blocks = [files[start : start + _BLOCK] for start in range(0, count, _BLOCK)]
    ratios = []
    with ConfinedReader() as reader:
        reader.start()
        for data in blocks[0]:  # both ways are warm
            decode_here(data)
            reader.decode(data)
        for _ in range(_REPEATED):
            plain = confined = 0.0
            # In turns of a few files, so that what else the machine does slows both alike.
            for block in blocks:
                start = time.process_time()
                shapes = [decode_here(data).shape for data in block]
                plain += time.process_time() - start
                start, before = time.process_time(), _cpu(reader.process)
                same = shapes == [reader.decode(data).shape for data in block]
                confined += time.process_time() - start + _cpu(reader.process) - before
                if not same:
                    raise AssertionError("both ways must give the same pictures")
            ratios.append(confined / plain)
    kilobytes = sum(map(len, files)) / len(files) / 1000
    return Row(
        id=f"files.confined_decode_cpu_ratio_{size[0]}x{size[1]}",
        value=float(np.median(ratios)),
        unit="x the CPU time (lower is better)",
        peer="decoding in this process, same run",
        seed=seed,
        note=f"{count} JPEGs of {kilobytes:.0f} kB, median of {_REPEATED}",
    )


def _file_to_code(count: int, seed: int) -> Iterator[Row]:
    """Photos per CPU second from file to code, with the fast network, in a process of its own.

    CPU time of the program and of its readers, with the start of both and with the charge.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for number, data in enumerate(_photos((120, 120), count, seed)):
            (folder / "photos" / f"{number}.jpg").write_bytes(data)
        line = [sys.executable, "-m", "blindsight", "protect", str(folder / "photos")]
        line += ["--fast", "--out", str(folder / "release")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield Row(
        id="files.photos_per_cpu_second_file_to_code",
        value=count / used,
        unit="photos/s",
        peer="135 before photos were decoded behind walls",
        seed=seed,
        note=f"{count:,} JPEGs of 120 x 120, protect --fast with start-up, {used:.1f} CPU s",
    )


def _cpu(process: int | None) -> float:
    """Seconds of CPU that a process has used so far.

    The scheduler counts nanoseconds; the clock ticks of /proc/PID/stat are a hundredth of a second,
    too rough for files that take a thousandth.
    """
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def mutated_files(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Damaged files of all formats: bytes changed, cut out, repeated or cut off.

    Yields:
        the ending of the file's name, and its bytes.
    """
    rng = np.random.default_rng(seed)
    samples = _samples()
    for number in range(count):
        suffix, data = samples[number % len(samples)]
        changed = bytearray(data)
        # Half of the changes are near the start, where headers are.
        for _ in range(int(rng.integers(1, 12))):
            end = len(changed) if rng.random() < 0.5 else min(len(changed), 1024)
            changed[int(rng.integers(end))] = int(rng.choice([0, 255, 127, int(rng.integers(256))]))
        draw = rng.random()
        if draw < 0.15:
            del changed[int(rng.integers(1, len(changed))) :]
        elif draw < 0.3:
            at = int(rng.integers(len(changed)))
            del changed[at : at + int(rng.integers(1, 64))]
        elif draw < 0.4:
            at = int(rng.integers(len(changed)))
            changed[at:at] = changed[at : at + int(rng.integers(1, 64))]
        yield suffix, bytes(changed)


def _samples() -> list[tuple[str, bytes]]:
    """One good file or more of every format, by the ending of its name."""
    y, x = np.mgrid[0:48, 0:64]
    gradient = Image.fromarray(np.stack([x * 4, y * 5, (x + y) * 2], axis=-1).astype(np.uint8))
    deep = Image.fromarray((x * y * 20).astype(np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    samples = [(kind.lower(), _encoded(gradient, kind)) for kind in _FORMATS]
    samples += [
        ("jpg", _encoded(gradient, "JPEG", progressive=True, exif=turned)),
        ("jpg", _encoded(gradient.convert("CMYK"), "JPEG")),
        ("gif", _encoded(gradient, "GIF", save_all=True, append_images=[gradient.rotate(180)])),
        ("png", _encoded(gradient, "PNG", save_all=True, append_images=[gradient.rotate(180)])),
        ("png", _encoded(deep, "PNG")),
        ("webp", _encoded(gradient, "WEBP", lossless=True)),
        ("tif", _encoded(deep, "TIFF", save_all=True, append_images=[deep])),
        ("tif", _encoded(gradient, "TIFF", compression="tiff_lzw")),
        ("tif", _encoded(gradient, "TIFF", compression="tiff_jpeg")),
        ("nef", _raw_file(_encoded(gradient, "JPEG"))),
    ]
    if _HEIC.is_file():
        samples += [("heic", _HEIC.read_bytes())]
    return 3 * samples + _dicom_samples()  # so that half of the files are not DICOM


def _encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _raw_file(preview: bytes) -> bytes:
    """A camera's raw file: a TIFF container with an embedded preview."""
    end = 8 + 2 + 3 * 12 + 4
    directory = struct.pack("<H", 3)
    directory += struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    directory += struct.pack("<HHII", 0x0201, 4, 1, end)
    directory += struct.pack("<HHII", 0x0202, 4, 1, len(preview))
    return b"II" + struct.pack("<HI", 42, 8) + directory + struct.pack("<I", 0) + preview


def _dicom_samples() -> list[tuple[str, bytes]]:
    """The small files among those that pydicom ships: many transfer syntaxes and pixels."""
    try:
        import pydicom
    except ImportError:
        return []
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    small = [path for path in sorted(folder.glob("*.dcm")) if path.stat().st_size < _DICOM_BYTES]
    readable = []
    with ConfinedReader("dicom") as reader:
        for path in small:
            data = path.read_bytes()
            try:
                reader.decode(data)
            except HostileFile:
                continue
            readable.append(("dcm", data))
    return readable


def _damaged(count: int, seed: int) -> Iterator[Row]:
    """Decode damaged files one after another; the run must survive all of them, and name them."""
    readers = {
        "dcm": ConfinedReader("dicom", seconds=10),
        "heic": ConfinedReader("heif", seconds=10),
    }
    pictures = ConfinedReader(seconds=10)
    limits = Limits(pixels=10**6)
    read = refused = deaths = ended = unnamed = 0
    kinds = set()
    for number, (suffix, data) in enumerate(mutated_files(count, seed)):
        name = f"damaged {number}.{suffix}"
        kinds.add(suffix)
        try:
            readers.get(suffix, pictures).decode(data, name=name, limits=limits)
            read += 1
        except HostileFile as error:
            refused += 1
            unnamed += name not in str(error)
            deaths += "ended the process" in str(error)
        except Exception:  # what this row counts
            ended += 1
    for reader in (*readers.values(), pictures):
        reader.close()
    note = (
        f"{count:,} damaged files of {len(kinds)} formats ({', '.join(sorted(kinds))}): "
        f"{read:,} read, {refused:,} refused"
    )
    yield Row(id="files.mutated_runs_ended", value=ended, unit="runs", seed=seed, note=note)
    yield Row(id="files.mutated_not_named", value=unnamed, unit="files", seed=seed, note=note)
    yield Row(id="files.mutated_decoder_deaths", value=deaths, unit="files", seed=seed, note=note)
