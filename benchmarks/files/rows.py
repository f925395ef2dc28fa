"""Reading files: what the confinement costs, and how many damaged files end a run."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
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


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Yield the cost of the confinement at two sizes of photos, then the damaged files."""
    step = progress or (lambda done, total: None)
    total = len(_SIZES) + 1
    for number, size in enumerate(_SIZES):
        step(number, total)
        yield _ratio(size, 20 if quick else _PHOTOS, seed)
    step(len(_SIZES), total)
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
    ratios = []
    with ConfinedReader() as reader:
        reader.start()
        for _ in range(3):
            start = time.process_time()
            plain = [decode_here(data).shape for data in files]
            here = time.process_time() - start
            start, before = time.process_time(), _cpu(reader.process)
            confined = [reader.decode(data).shape for data in files]
            ratios.append((time.process_time() - start + _cpu(reader.process) - before) / here)
            if plain != confined:
                raise AssertionError("both ways must give the same pictures")
    kilobytes = sum(map(len, files)) / len(files) / 1000
    return Row(
        id=f"files.confined_decode_cpu_ratio_{size[0]}x{size[1]}",
        value=float(np.median(ratios)),
        unit="x",
        peer="decoding in this process, same run",
        seed=seed,
        note=f"{count} JPEGs of {kilobytes:.0f} kB, median of 3",
    )


def _cpu(process: int | None) -> float:
    """Seconds of CPU that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def mutated_files(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Damaged files of all formats: bytes changed, cut out, repeated or cut off."""
    rng = np.random.default_rng(seed)
    samples: list[tuple[str, bytes]] = []
    y, x = np.mgrid[0:48, 0:64]
    gradient = np.stack([x * 4, y * 5, (x + y) * 2], axis=-1).astype(np.uint8)
    for kind in _FORMATS:
        file = io.BytesIO()
        Image.fromarray(gradient).save(file, kind)
        samples.append((kind.lower(), file.getvalue()))
    samples += _dicom_samples()
    for number in range(count):
        kind, data = samples[number % len(samples)]
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 12))):
            at = int(rng.integers(len(changed)))
            changed[at] = int(rng.choice([0, 255, 127, int(rng.integers(256))]))
        draw = rng.random()
        if draw < 0.15:
            del changed[int(rng.integers(1, len(changed))) :]
        elif draw < 0.3:
            at = int(rng.integers(len(changed)))
            del changed[at : at + int(rng.integers(1, 64))]
        elif draw < 0.4:
            at = int(rng.integers(len(changed)))
            changed[at:at] = changed[at : at + int(rng.integers(1, 64))]
        yield kind, bytes(changed)


def _dicom_samples() -> list[tuple[str, bytes]]:
    try:
        import pydicom
    except ImportError:
        return []
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    names = ("CT_small.dcm", "MR_small_RLE.dcm", "JPEG2000.dcm", "SC_rgb_jpeg_gdcm.dcm")
    paths = [folder / name for name in names if (folder / name).is_file()]
    return [("dicom", path.read_bytes()) for path in paths if path.stat().st_size < 200_000]


def _damaged(count: int, seed: int) -> Iterator[Row]:
    """Decode damaged files one after another; the run must survive all of them."""
    readers = {"dicom": ConfinedReader("dicom", seconds=10)}
    pictures = ConfinedReader(seconds=10)
    limits = Limits(pixels=10**6)
    read = refused = deaths = ended = 0
    for kind, data in mutated_files(count, seed):
        reader = readers.get(kind, pictures)
        try:
            reader.decode(data, name=f"damaged.{kind}", limits=limits)
            read += 1
        except HostileFile as error:
            refused += 1
            deaths += "ended the process" in str(error)
        except Exception:  # what this row counts
            ended += 1
    for reader in (*readers.values(), pictures):
        reader.close()
    note = f"{count:,} damaged files: {read:,} read, {refused:,} refused by name"
    yield Row(id="files.mutated_runs_ended", value=ended, unit="runs", seed=seed, note=note)
    yield Row(id="files.mutated_decoder_deaths", value=deaths, unit="files", seed=seed, note=note)
