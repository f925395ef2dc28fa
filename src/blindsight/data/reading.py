"""Decoding image files to pixels: size limits, orientation, no metadata.

`read_image` is for callers; it decodes in a confined process. `decode_here` is what that process
runs.

From a DICOM file the picture is read as a doctor sees it, and separately the patient's id; no other
field is used. Only the fields in `_PICTURE` are read, so that no name, date or place can get into a
message or a log; pydicom's own warnings and log are silenced, because they quote fields. Stored
values become measured ones (rescale slope and intercept), then grey levels by the file's window, or
by the picture's range if there is no window; MONOCHROME1 is inverted. Of several frames only the
middle one is decoded.

From a camera's raw file the largest embedded JPEG preview is read. Most raw
formats (CR2, DNG, NEF, ARW, ORF, RW2, PEF) are TIFF containers. The raw sensor values are not
developed; the preview is the picture that the camera itself showed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile
from blindsight.data.limits import LIMITS, Limits, kind_of, quiet, read_bytes

__all__ = [
    "DICOM_SUFFIXES",
    "FORMATS",
    "HEIF_SUFFIXES",
    "PACKAGES",
    "RAW_SUFFIXES",
    "SUFFIXES",
    "decode_dicom",
    "decode_here",
    "missing_extra",
    "patient_of",
    "prepare_dicom",
    "prepare_heif",
    "prepare_pillow",
    "raw_preview",
    "read_image",
    "silent_pydicom",
    "to_rgb",
    "unnamed_dicom",
]

_MOST_FRAMES = 10_000
_COLOURS = ("Red", "Green", "Blue")
_PICTURE = [
    *(
        "Rows",
        "Columns",
        "NumberOfFrames",
        "SamplesPerPixel",
        "PhotometricInterpretation",
        "PlanarConfiguration",
    ),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelAspectRatio"),
    *(
        "PixelData",
        "FloatPixelData",
        "DoubleFloatPixelData",
        "ExtendedOffsetTable",
        "ExtendedOffsetTableLengths",
    ),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *(
        f"{colour}PaletteColorLookupTable{part}"
        for colour in _COLOURS
        for part in ("Descriptor", "Data")
    ),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in _COLOURS),
]


def unnamed_dicom(path: Path) -> bool:
    """Whether a file without a DICOM suffix is DICOM: scanners write names such as IM0001, or
    numbers with points.
    """
    ending = path.suffix[1:]
    if ending and not ending.isdigit():
        return False
    try:
        with path.open("rb") as file:
            return kind_of(file.read(132)) == "dicom"
    except OSError:
        return False


def decode_dicom(
    data: bytes, *, name: str = "the image", limits: Limits = LIMITS
) -> NDArray[np.uint8]:
    """The picture as uint8, (h, w) if grey and (h, w, 3) if it has colour; metadata stay behind."""
    module = silent_pydicom()
    compression = ""
    try:
        with quiet():
            dataset = module.dcmread(io.BytesIO(data), specific_tags=_PICTURE)
            syntax = dataset.file_meta.get("TransferSyntaxUID")
            if syntax in module.uid.AllTransferSyntaxes and syntax.is_encapsulated:
                compression = f"; it is compressed as {syntax.name}"
            frames = _checked_frames(dataset, name, limits)
            _check_decoder(dataset, name)
            pixels: Any = optional_module("pydicom.pixels", extra="dicom")
            return _shown(pixels.pixel_array(dataset, index=frames // 2), dataset)
    except HostileFile:
        raise
    except Exception as error:
        # Decoders raise any exception for hostile bytes, and its message quotes them.
        raise HostileFile(
            f"{name} is no DICOM picture that can be read ({type(error).__name__}{compression})."
        ) from None


def patient_of(source: bytes | Path) -> str | None:
    """The SHA-256 of the patient's id, or None where the file names none."""
    module = silent_pydicom()
    try:
        with quiet():
            file = source if isinstance(source, Path) else io.BytesIO(source)
            dataset = module.dcmread(file, specific_tags=["PatientID"], stop_before_pixels=True)
            patient = str(dataset.get("PatientID", "") or "").strip()
    except Exception as error:
        raise HostileFile(f"not a DICOM file that can be read ({type(error).__name__}).") from None
    return hashlib.sha256(patient.encode()).hexdigest() if patient else None


def silent_pydicom() -> Any:
    """pydicom, with its log off: it quotes the fields of files."""
    module = optional_module("pydicom", extra="dicom")
    logging.getLogger("pydicom").disabled = True
    return module


def prepare_dicom() -> None:
    """Import everything that decoding a DICOM file needs: a confined process can import nothing."""
    module = silent_pydicom()
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    for syntax in module.uid.AllTransferSyntaxes:
        if syntax.is_encapsulated and not syntax.is_deflated:
            with contextlib.suppress(NotImplementedError):
                assert pixels.get_decoder(syntax).is_available in (True, False)  # noqa: S101
    meta = module.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = module.uid.ExplicitVRLittleEndian
    sample = module.dataset.Dataset()
    sample.file_meta = meta
    sample.Rows = sample.Columns = 2
    sample.SamplesPerPixel, sample.PhotometricInterpretation = 1, "MONOCHROME2"
    sample.BitsAllocated = sample.BitsStored = 8
    sample.HighBit, sample.PixelRepresentation = 7, 0
    sample.PixelData = bytes(range(4))
    file = io.BytesIO()
    sample.SOPClassUID = module.uid.SecondaryCaptureImageStorage
    sample.SOPInstanceUID = "1.2.3"
    module.dcmwrite(file, sample, enforce_file_format=True)
    decode_dicom(file.getvalue())


def _checked_frames(dataset: Any, name: str, limits: Limits) -> int:
    """Return the number of frames; refuse a size beyond the limits before anything is decoded."""
    rows, columns = int(dataset.get("Rows", 0) or 0), int(dataset.get("Columns", 0) or 0)
    frames = int(dataset.get("NumberOfFrames", 1) or 1)
    if rows < 1 or columns < 1:
        raise HostileFile(f"{name} is a DICOM file without a picture.")
    if not 0 < frames <= _MOST_FRAMES:
        raise HostileFile(
            f"{name} says it has {frames:,} frames; from 1 to {_MOST_FRAMES:,} are read."
        )
    if rows * columns > limits.pixels:
        raise HostileFile(
            f"{name} says it has {rows} x {columns} pixels, more than the limit of "
            f"{limits.pixels:,}."
        )
    return frames


def _check_decoder(dataset: Any, name: str) -> None:
    """Refuse a compression that no installed decoder reads, with the reason."""
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    syntax = dataset.file_meta.TransferSyntaxUID
    compressed = syntax.is_compressed and syntax.is_encapsulated
    if compressed and not pixels.get_decoder(syntax).is_available:
        raise HostileFile(
            f"{name} is compressed as {syntax.name}, which needs a decoder: pip install "
            "'blindsight[dicom]' installs those that exist."
        )


def _shown(frame: NDArray[Any], dataset: Any) -> NDArray[np.uint8]:
    """The frame as bytes; pydicom has turned YBR colours into RGB."""
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    kind = str(dataset.get("PhotometricInterpretation", "MONOCHROME2"))
    if kind == "PALETTE COLOR":
        return _bytes(pixels.apply_color_lut(frame, dataset))
    if frame.ndim == 3:
        return _bytes(frame)
    measured = pixels.apply_modality_lut(frame, dataset)
    windowed = np.asarray(pixels.apply_voi_lut(measured, dataset), np.float64)
    low, high = _range(windowed, dataset)
    scaled = (
        np.clip((windowed - low) * (255.0 / (high - low)), 0, 255)
        if high > low
        else np.zeros_like(windowed)
    )
    return np.rint(255 - scaled if kind == "MONOCHROME1" else scaled).astype(np.uint8)


def _range(windowed: NDArray[np.float64], dataset: Any) -> tuple[float, float]:
    """Return the values of black and white: the ends of the window, or else of the picture's own
    range.
    """
    if "WindowWidth" in dataset and "VOILUTSequence" not in dataset:
        pixels: Any = optional_module("pydicom.pixels", extra="dicom")
        far = np.array([[-1e12, 1e12]])
        low, high = pixels.apply_windowing(far, dataset)[0]
        return float(low), float(high)
    return float(windowed.min()), float(windowed.max())


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Colours of 16 or 32 bits keep their first eight."""
    if values.dtype.itemsize > 1:
        values = values >> (8 * (values.dtype.itemsize - 1))
    return np.asarray(values, np.uint8)


# TIFF itself, and the variants of Olympus and Panasonic.
_MAGIC = frozenset({42, 0x4F52, 0x5352, 0x55})
_SUB_IFDS, _EXIF = 0x014A, 0x8769
_JPEG_START, _JPEG_LENGTH = 0x0201, 0x0202
_STRIP_STARTS, _STRIP_LENGTHS = 0x0111, 0x0117
_PANASONIC_PREVIEW = 0x002E
_MOST_DIRECTORIES, _MOST_ENTRIES = 64, 4096
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 7: 1, 13: 4}
# Baseline, extended and progressive frames; what a lossless frame (SOF3) holds is sensor values.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})


def raw_preview(data: bytes) -> tuple[bytes, int]:
    """Find the largest JPEG preview in a raw file.

    Parameters:
        data: the raw file. It may be hostile: every offset is checked.

    Returns:
        The JPEG file. The EXIF orientation of the whole file, 1 where it has none or the preview
        has its own.

    Raises:
        ValueError: The file is not a TIFF container, or holds no preview.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or struct.unpack_from(order + "H", data, 2)[0] not in _MAGIC:
        raise ValueError("not a raw file that holds a preview")
    best, turn = b"", 1
    for tags in _directories(data, order):
        if turn == 1 and _ORIENTATION in tags:
            turn = tags[_ORIENTATION][0]
        for start, length in _places(tags):
            preview = data[start : start + length]
            if len(preview) > len(best) and _is_picture(preview):
                best = preview
    if not best:
        raise ValueError("no preview")
    return best, turn if 1 <= turn <= 8 and b"Exif\x00\x00" not in best[:4096] else 1


def _directories(data: bytes, order: str) -> Iterator[dict[int, tuple[int, ...]]]:
    """Every image file directory, each once: a hostile file may link them in a circle."""
    waiting = [struct.unpack_from(order + "I", data, 4)[0]]
    visited: set[int] = set()
    while waiting and len(visited) < _MOST_DIRECTORIES:
        offset = waiting.pop()
        if offset in visited or not 8 <= offset <= len(data) - 2:
            continue
        visited.add(offset)
        count = struct.unpack_from(order + "H", data, offset)[0]
        end = offset + 2 + 12 * count
        if count > _MOST_ENTRIES or end > len(data):
            continue
        tags = {}
        for position in range(offset + 2, end, 12):
            tag, values = _entry(data, order, position)
            tags[tag] = values
        for link in (_SUB_IFDS, _EXIF):
            waiting.extend(tags.get(link, ())[:_MOST_DIRECTORIES])
        if end + 4 <= len(data):
            waiting.append(struct.unpack_from(order + "I", data, end)[0])
        yield tags


def _entry(data: bytes, order: str, position: int) -> tuple[int, tuple[int, ...]]:
    """A tag and its values, as far as they are whole numbers in the file."""
    tag, kind, count = struct.unpack_from(order + "HHI", data, position)
    size = _SIZES.get(kind, 0)
    if not size or not count > 0:
        return tag, ()
    if tag == _PANASONIC_PREVIEW and kind == 7 and count > 4:
        return tag, (struct.unpack_from(order + "I", data, position + 8)[0], count)
    if count > _MOST_ENTRIES:
        return tag, ()
    start = position + 8
    if size * count > 4:
        start = struct.unpack_from(order + "I", data, position + 8)[0]
    if start + size * count > len(data):
        return tag, ()
    letter = {1: "B", 2: "H", 4: "I"}[size]
    return tag, struct.unpack_from(f"{order}{count}{letter}", data, start)


def _places(tags: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Where a directory says that a JPEG may be: start and length."""
    for start, length in ((_JPEG_START, _JPEG_LENGTH), (_STRIP_STARTS, _STRIP_LENGTHS)):
        if len(tags.get(start, ())) == len(tags.get(length, ())) == 1:
            yield tags[start][0], tags[length][0]
    if len(tags.get(_PANASONIC_PREVIEW, ())) == 2:
        yield tags[_PANASONIC_PREVIEW][0], tags[_PANASONIC_PREVIEW][1]


def _is_picture(data: bytes) -> bool:
    """Whether the bytes are a JPEG file with a frame that shows a picture."""
    at = 2
    if data[:3] != b"\xff\xd8\xff":
        return False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            return True
        if marker in (0xC3, 0xDA):
            return False
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


# Formats whose decoders only decode: no EPS (runs an interpreter), no rarely tested exotics.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF", "AVIF", "JPEG2000")
_HEIF = "HEIF"
_ORIENTATION = 0x0112
_PLUGINS = ("Bmp", "Gif", "Jpeg2K", "Jpeg", "Png", "Ppm", "Tiff", "WebP")
#: For each kind of file that needs one: the package that reads it, and the extra that installs it.
PACKAGES = {"heif": ("pi_heif", "heic"), "dicom": ("pydicom", "dicom")}
#: camera files whose embedded JPEG preview is read
RAW_SUFFIXES = frozenset({".arw", ".cr2", ".dng", ".nef", ".nrw", ".orf", ".pef", ".rw2", ".sr2"})
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})
SUFFIXES = (
    frozenset(
        {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".pbm"}
    )
    | frozenset({".tif", ".tiff", ".avif", ".jp2", ".j2k", ".jpf", ".jpx"})
    | RAW_SUFFIXES
    | HEIF_SUFFIXES
    | DICOM_SUFFIXES
)


def read_image(
    source: str | os.PathLike[str] | bytes, *, limits: Limits = LIMITS, at_least: int | None = None
) -> NDArray[np.uint8]:
    """Read one image as uint8 pixels: (h, w) if it is grey, (h, w, 3) if it has colour.

    The file is decoded in a confined process (`data.confined`). The orientation that EXIF asks for
    is applied; all other metadata (EXIF, GPS, comments, colour profiles) are dropped, because only
    pixels are returned. Alpha is dropped. Of an animation or a file of several pages the first
    frame is read, of a DICOM series the middle one, of a camera's raw file the embedded preview.

    Parameters:
        source: A path, or the bytes of an encoded image.
        limits: bounds on bytes and pixels, checked before decoding. A JPEG with more pixels is
            decoded at a reduced scale.
        at_least: decode a JPEG at reduced scale, with at least this many pixels on each side.

    Returns:
        ndarray

    Raises:
        HostileFile: The file is damaged, truncated, too large or not an image.
        MissingDependency: The format needs a package that is not installed.
    """
    from blindsight.data.confined import decode_image

    if isinstance(source, (bytes, bytearray, memoryview)):
        return decode_image(bytes(source), limits=limits, at_least=at_least)
    data = read_bytes(source, largest=limits.image_bytes)
    return decode_image(
        data, name=os.path.basename(os.fspath(source)), limits=limits, at_least=at_least
    )


def decode_here(
    data: bytes,
    *,
    name: str = "the image",
    limits: Limits = LIMITS,
    at_least: int | None = None,
    raw: bool = False,
) -> NDArray[np.uint8]:
    """Decode one image file in this process; `blindsight.data.decode_image` does it in a confined
    one.

    Parameters are those of `decode_image`; with `raw` the bytes are a camera's raw file, of which
    the embedded preview is decoded.
    """
    if len(data) > limits.image_bytes:
        raise HostileFile(
            f"{name} has {len(data):,} bytes, more than the limit of {limits.image_bytes:,}."
        )
    if not data:
        raise HostileFile(f"{name} is empty: it has no bytes.")
    if kind_of(data) == "dicom":
        return decode_dicom(data, name=name, limits=limits)
    formats: tuple[str, ...] = (_HEIF,) if kind_of(data) == "heif" else FORMATS
    turn = 1
    try:
        if raw:
            data, turn = raw_preview(data)
            formats = ("JPEG",)
        with quiet(Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=formats)
        with image:
            if limits.frames and _has_frame(data, formats, limits.frames):
                raise HostileFile(f"{name} has more than {limits.frames:,} frames.")
            return _pixels(image, name, limits, at_least, turn)
    except HostileFile:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise HostileFile(f"{name} has more pixels than the limit of {limits.pixels:,}.") from None
    except UnidentifiedImageError:
        raise HostileFile(
            f"{name} is not an image in a known format ({', '.join(FORMATS)}, DICOM, HEIC, or the "
            "preview of a camera's raw file)."
        ) from None
    except Exception as error:
        # A decoder fed hostile bytes raises anything (OSError, SyntaxError, struct.error, ...).
        raise HostileFile(f"{name} is corrupt or truncated ({type(error).__name__}).") from error


def prepare_pillow() -> None:
    """Make Pillow ready for confinement: decoders are imported, and none of them starts threads.

    Pillow's own bound on pixels is lifted in this process, because `Limits.pixels` takes its place
    and a large JPEG may be decoded at a reduced scale.
    """
    from PIL import AvifImagePlugin

    for plugin in _PLUGINS:
        importlib.import_module(f"PIL.{plugin}ImagePlugin")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.MAX_IMAGE_PIXELS = None


def prepare_heif() -> None:
    """Import the decoder of HEIC files, which must not start threads either."""
    module = optional_module("pi_heif", extra="heic")
    module.options.DECODE_THREADS = 1
    module.register_heif_opener(thumbnails=False)


def missing_extra(kind: str) -> str | None:
    """The extra whose package reads files of this kind, where the package is not installed.

    Parameters:
        kind: "pictures", "dicom" or "heif".
    """
    package, extra = PACKAGES.get(kind, ("PIL", ""))
    absent = sys.modules.get(package, package) is None or importlib.util.find_spec(package) is None
    return extra if absent else None


def _pixels(
    image: Image.Image, name: str, limits: Limits, at_least: int | None, turn: int
) -> NDArray[np.uint8]:
    width, height = image.size
    if width < 1 or height < 1:
        raise HostileFile(f"{name} has no pixels ({width} x {height}).")
    if at_least is not None and image.format == "JPEG" and image.mode in ("L", "RGB"):
        image.draft(image.mode, (at_least, at_least))
    if width * height > limits.pixels and image.format in ("JPEG", "MPO"):
        _reduce(image, limits.pixels)
    if image.width * image.height > limits.pixels:
        raise HostileFile(
            f"{name} says it has {width} x {height} pixels, more than the limit of "
            f"{limits.pixels:,}."
        )
    image.load()  # the long part, outside the lock
    with quiet(Image.DecompressionBombWarning):
        ImageOps.exif_transpose(image, in_place=True)
        upright = image
        if turn != 1:
            upright = _turned(upright, turn)
        return _plain(upright)


def _has_frame(data: bytes, formats: tuple[str, ...], number: int) -> bool:
    """Whether an animation has a frame of this number, counted from zero."""
    with quiet(Image.DecompressionBombWarning):
        image = Image.open(io.BytesIO(data), formats=formats)
    with image:
        if not getattr(image, "is_animated", False):
            return False
        try:
            image.seek(number)
        except EOFError:
            return False
        return True


def _reduce(image: Image.Image, most: int) -> None:
    """Have a JPEG decoded at the largest scale of 1/2, 1/4 and 1/8 that fits the limit."""
    width, height = image.size
    for scale in (2, 4, 8):
        if -(-width // scale) * -(-height // scale) <= most:
            image.draft(None, (width // scale, height // scale))
            return


def _turned(image: Image.Image, turn: int) -> Image.Image:
    """Apply an EXIF orientation that is not stored in the image itself."""
    image.getexif()[_ORIENTATION] = turn
    return ImageOps.exif_transpose(image)


def _plain(upright: Image.Image) -> NDArray[np.uint8]:
    """Convert to grey or RGB bytes from any colour mode."""
    if upright.mode.startswith(("I", "F")):
        return _deep_grey(np.asarray(upright))
    mode = "L" if upright.mode in ("1", "L", "LA", "La") else "RGB"
    # No copy more than needed: a large picture has to fit into the reader's memory.
    return np.asarray(upright if upright.mode == mode else upright.convert(mode), dtype=np.uint8)


def _deep_grey(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Reduce grey of more than eight bits to eight. (Pillow's own conversion clips at 255.)

    Whole numbers are divided by the power of two that brings the brightest below 256, so that the
    12 bits of a scanner in a 16-bit file do not become nearly black; floating point is scaled from
    its least to its largest value.
    """
    if values.dtype.kind == "f":
        finite = np.nan_to_num(values.astype(np.float64))
        low, high = float(finite.min()), float(finite.max())
        return np.rint((finite - low) * (255.0 / (high - low) if high > low else 0.0)).astype(
            np.uint8
        )
    levels = np.maximum(values.astype(np.int64), 0)
    return (levels >> max(0, int(levels.max(initial=0)).bit_length() - 8)).astype(np.uint8)


def to_rgb(image: NDArray[Any], size: int | None = None) -> NDArray[np.uint8]:
    """An image as (h, w, 3), resized to `size` x `size` if a size is given (aspect ratio not kept).

    The whole picture is squeezed into the square rather than cropped, so that no labelled object is
    lost.
    """
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim == 2:
        image = np.repeat(image[:, :, None], 3, axis=2)
    if size is None or image.shape[:2] == (size, size):
        return np.ascontiguousarray(image)
    return np.asarray(
        Image.fromarray(np.ascontiguousarray(image)).resize((size, size), Image.Resampling.BICUBIC)
    )
