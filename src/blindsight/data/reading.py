"""One image file to pixels: bombs refused, orientation applied, EXIF and GPS left behind."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from blindsight.core.errors import HostileFile
from blindsight.data.formats.dicom import decode_dicom
from blindsight.data.limits import LIMITS, Limits, is_dicom, quiet, read_bytes

__all__ = ["FORMATS", "SUFFIXES", "decode_image", "read_image", "to_rgb"]

# Formats whose decoders only decode: no EPS (runs an interpreter), no rarely tested exotics.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
SUFFIXES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".ppm",
        ".pgm",
        ".pbm",
        ".tif",
        ".tiff",
        ".dcm",
        ".dicom",
    }
)


def read_image(
    source: str | os.PathLike[str] | bytes, *, limits: Limits = LIMITS, at_least: int | None = None
) -> NDArray[np.uint8]:
    """Read one image as uint8 pixels, (h, w) if it is grey and (h, w, 3) if it has colour.

    The orientation that EXIF asks for is applied; then all metadata (EXIF, GPS, comments, colour
    profiles) stay behind, for only pixels are returned. Alpha is dropped; of an animation, the
    first frame.

    Args:
        source: A path, or the bytes of an encoded image. limits: Bounds on bytes and pixels,
        checked before decoding. at_least: Decode a JPEG at reduced scale, with at least this many
        pixels a side; see `decode_image`.

    Raises:
        HostileFile: The file is corrupt, truncated, too large or not an image.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return decode_image(bytes(source), limits=limits, at_least=at_least)
    data = read_bytes(source, largest=limits.image_bytes)
    return decode_image(
        data, name=os.path.basename(os.fspath(source)), limits=limits, at_least=at_least
    )


def decode_image(
    data: bytes, *, name: str = "the image", limits: Limits = LIMITS, at_least: int | None = None
) -> NDArray[np.uint8]:
    """Decode the bytes of one image file; see `read_image`.

    `at_least` lets a JPEG be decoded at a half, a quarter or an eighth of its size, as long as both
    sides keep that many pixels: about ten times faster for camera photos that will be squeezed
    anyway, and not the same pixels.
    """
    if len(data) > limits.image_bytes:
        raise HostileFile(
            f"{name} has {len(data):,} bytes, more than the limit of {limits.image_bytes:,}."
        )
    if is_dicom(data):
        return decode_dicom(data, name=name, limits=limits)
    try:
        with quiet(Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        with image:
            return _pixels(image, name, limits, at_least)
    except HostileFile:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise HostileFile(f"{name} has more pixels than the limit of {limits.pixels:,}.") from None
    except UnidentifiedImageError:
        raise HostileFile(
            f"{name} is not an image in a known format ({', '.join(FORMATS)})."
        ) from None
    except Exception as error:
        # A decoder fed hostile bytes raises anything (OSError, SyntaxError, struct.error, ...).
        raise HostileFile(f"{name} is corrupt or truncated ({type(error).__name__}).") from error


def _pixels(
    image: Image.Image, name: str, limits: Limits, at_least: int | None
) -> NDArray[np.uint8]:
    width, height = image.size
    if width < 1 or height < 1:
        raise HostileFile(f"{name} has no pixels ({width} x {height}).")
    if width * height > limits.pixels:
        raise HostileFile(
            f"{name} says it has {width} x {height} pixels, more than the limit of "
            f"{limits.pixels:,}."
        )
    if at_least is not None and image.format == "JPEG" and image.mode in ("L", "RGB"):
        image.draft(image.mode, (at_least, at_least))
    image.load()  # the long part, outside the lock
    with quiet(Image.DecompressionBombWarning):
        return _plain(ImageOps.exif_transpose(image))


def _plain(upright: Image.Image) -> NDArray[np.uint8]:
    """Grey or RGB bytes, whatever the file's own way to write colours."""
    if upright.mode.startswith(("I", "F")):
        return _deep_grey(np.asarray(upright))
    grey = upright.mode in ("1", "L", "LA", "La")
    return np.array(upright.convert("L" if grey else "RGB"), dtype=np.uint8)


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
