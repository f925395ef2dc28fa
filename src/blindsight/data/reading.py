"""Decoding image files to pixels: size limits, orientation, no metadata.

`read_image` is for callers; it decodes in a confined process. `decode_here` is what that process
runs.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile
from blindsight.data.formats.dicom import decode_dicom
from blindsight.data.formats.raw import raw_preview
from blindsight.data.limits import LIMITS, Limits, is_dicom, is_heif, quiet, read_bytes

__all__ = [
    "DICOM_SUFFIXES",
    "FORMATS",
    "HEIF_SUFFIXES",
    "RAW_SUFFIXES",
    "SUFFIXES",
    "decode_here",
    "missing_extra",
    "prepare_heif",
    "prepare_pillow",
    "read_image",
    "require_decoder",
    "to_rgb",
]

# Formats whose decoders only decode: no EPS (runs an interpreter), no rarely tested exotics.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF", "AVIF", "JPEG2000")
_HEIF = "HEIF"
_ORIENTATION = 0x0112
_PLUGINS = ("Bmp", "Gif", "Jpeg2K", "Jpeg", "Png", "Ppm", "Tiff", "WebP")
# The package that reads a kind of files, and the extra that brings it.
_PACKAGES = {"heif": ("pi_heif", "heic"), "dicom": ("pydicom", "dicom")}
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
    if is_dicom(data):
        return decode_dicom(data, name=name, limits=limits)
    formats: tuple[str, ...] = (_HEIF,) if is_heif(data) else FORMATS
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
    package, extra = _PACKAGES.get(kind, ("PIL", ""))
    absent = sys.modules.get(package, package) is None or importlib.util.find_spec(package) is None
    return extra if absent else None


def require_decoder(kind: str) -> None:
    """Raise `MissingDependency` where the files of a kind cannot be read on this machine."""
    extra = missing_extra(kind)
    if extra is not None:
        optional_module(_PACKAGES[kind][0], extra=extra)


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
    """Apply an EXIF orientation that stands outside the image itself."""
    image.getexif()[_ORIENTATION] = turn
    return ImageOps.exif_transpose(image)


def _plain(upright: Image.Image) -> NDArray[np.uint8]:
    """Grey or RGB bytes, whatever the file's own way to write colours."""
    if upright.mode.startswith(("I", "F")):
        return _deep_grey(np.asarray(upright))
    mode = "L" if upright.mode in ("1", "L", "LA", "La") else "RGB"
    # No copy more than needed: a large picture has to fit into the reader's memory.
    return np.asarray(upright if upright.mode == mode else upright.convert(mode), dtype=np.uint8)


def _deep_grey(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey of more than eight bits: the eight that are seen. (Pillow's own conversion clips at
    255.)

    Whole numbers are divided by the power of two that brings the brightest below 256, so that the
    12 bits of a scanner in a 16-bit file are not lost in the dark; floating point is spread from
    its least to its largest value.
    """
    if values.dtype.kind == "f":
        finite = np.nan_to_num(values.astype(np.float64))
        low, high = float(finite.min()), float(finite.max())
        return np.rint((finite - low) * (255.0 / (high - low) if high > low else 0.0)).astype(
            np.uint8
        )
    whole = np.maximum(values.astype(np.int64), 0)
    return (whole >> max(0, int(whole.max(initial=0)).bit_length() - 8)).astype(np.uint8)


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
