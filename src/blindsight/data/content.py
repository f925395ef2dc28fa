"""What a photo is known by: its decoded pixels.

Photo managers write ratings, words, places and corrected times into files, tools compress them
again without loss, and hospitals take names out of them. Each time the file has other bytes and
shows the same picture. So a picture is known by what every method here is given of it: the upright
pixel array of `decode_image` (EXIF orientation applied, alpha and metadata left behind, of several
frames the one that is read, of a DICOM file what its window shows), with its size and whether it
has colour. A picture in colour whose three channels are equal is grey, for all methods see the same
in both. Two files have one digest if and only if their pixels are equal, whatever their formats.

Decoders of lossy formats differ between versions and machines. A vault therefore also keeps the
digest of each file's bytes, and takes a file that it has seen for what it was.

`encoded_digest` is how earlier versions knew a picture: by the encoded bytes that its pixels depend
on. Vaults of theirs still know photos by it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from blindsight.core.errors import BlindsightError
from blindsight.data.confined import decode_image
from blindsight.data.formats.dicom import silent_pydicom
from blindsight.data.limits import LIMITS, Limits, is_dicom, quiet

__all__ = ["content_digest", "encoded_digest", "pixel_digest", "recognising"]

_ORIENTATION = 0x0112
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# Exif and XMP, colour profiles and further pictures, Photoshop's fields, comments: none of them is
# decoded.
_JPEG_SAYS = frozenset({0xE1, 0xE2, 0xED, 0xFE})
_PNG_SHOWS = frozenset(
    {b"tRNS", b"acTL", b"fcTL", b"fdAT"}
)  # beside the critical chunks, which begin with a capital
_WEBP_SHOWS = frozenset({b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF"})
_DICOM_SHOWS = frozenset(
    {0x0028, 0x5200, 0x7FE0}
)  # how pixels are to be read, for each frame, and the pixels


class Recogniser(Protocol):
    """What knows the records of image files: a vault."""

    def recognising(
        self, pixels: Callable[[bytes, str], bytes], encoded: Callable[[bytes], bytes]
    ) -> AbstractContextManager[Callable[[bytes, str], str]]: ...


def recognising(
    vault: Recogniser,
    limits: Limits = LIMITS,
    *,
    decoded: Callable[[bytes, NDArray[np.uint8]], None] | None = None,
    find: Callable[[bytes], NDArray[np.uint8] | None] | None = None,
) -> AbstractContextManager[Callable[[bytes, str], str]]:
    """A function from the bytes and the name of an image file to its record in a vault.

    Files that the vault has seen are not decoded again. Use it for many files at once:
    `with recognising(vault) as recognise: record = recognise(content, name)`.

    Parameters:
        vault: what knows the records.
        limits: bounds on each image.
        decoded: called with the bytes and the pixels of every file that had to be decoded, so that
            nobody needs to decode it again.
        find: the pixels of a file with these bytes, where they were decoded before, or None.
    """

    def digest(content: bytes, name: str) -> bytes:
        pixels = None if find is None else find(content)
        if pixels is None:
            pixels = decode_image(
                content, name=name.rpartition("/")[2] or "the image", limits=limits
            )
        if decoded is not None:
            decoded(content, pixels)
        return pixel_digest(pixels)

    return vault.recognising(digest, encoded_digest)


def content_digest(content: bytes, limits: Limits = LIMITS, *, name: str = "") -> bytes:
    """The SHA-256 of the decoded pixels of an image file, before a vault's key makes it a secret.

    Parameters:
        content: the bytes of the file.
        limits: bounds on the image.
        name: the file's name, by whose ending a camera's raw file is recognised.

    Raises:
        HostileFile: the file is not an image that can be read.
    """
    return pixel_digest(
        decode_image(content, name=name.rpartition("/")[2] or "the image", limits=limits)
    )


def pixel_digest(pixels: NDArray[Any]) -> bytes:
    """The SHA-256 of a pixel array (h, w) or (h, w, channels), its size and its kind.

    Examples:
        >>> grey = np.zeros((4, 6), np.uint8)
        >>> pixel_digest(grey) == pixel_digest(np.stack([grey] * 3, axis=2))
        True
        >>> pixel_digest(grey) == pixel_digest(grey.T)
        False
    """
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    elif pixels.ndim == 3 and pixels.shape[2] == 3:
        first = pixels[:, :, 0]
        # One row first: pictures in colour are told by it, mostly.
        if np.array_equal(pixels[:1, :, 1], first[:1]) and all(
            np.array_equal(pixels[:, :, other], first) for other in (1, 2)
        ):
            pixels = first
    plain = np.ascontiguousarray(pixels)
    kind = f"blindsight pixels 1 {plain.dtype.str} {plain.shape} ".encode()
    digest = hashlib.sha256(kind)
    digest.update(plain.data if plain.size else b"")
    return digest.digest()


def encoded_digest(content: bytes) -> bytes:
    """The SHA-256 of a file's encoded picture, by which earlier versions knew a photo."""
    found = hashlib.sha256()
    try:
        for part in _picture(content):
            found.update(part)
    except BlindsightError:  # what is needed to read it is not installed
        raise
    except Exception:  # parsers fed hostile bytes raise anything
        return hashlib.sha256(content).digest()
    return found.digest()


def _picture(content: bytes) -> Iterator[bytes | memoryview]:
    if content.startswith(_JPEG):
        return _jpeg(content)
    if content.startswith(_PNG):
        return _png(content)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp(content)
    return _dicom(content) if is_dicom(content) else iter((content,))


def _jpeg(content: bytes) -> Iterator[bytes | memoryview]:
    view, at, says = memoryview(content), 2, False
    while content[at + 1] != 0xDA:  # from the first scan on there are only pixels
        size = 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if content[at] != 0xFF or size < 4:
            raise ValueError("no marker")
        if content[at + 1] in _JPEG_SAYS:
            says = True
        else:
            yield view[at : at + size]
        at += size
    yield view[at:]
    yield _orientation(content) if says else b""


def _png(content: bytes) -> Iterator[bytes | memoryview]:
    view, at, kind, says = memoryview(content), len(_PNG), b"", False
    while kind != b"IEND":
        size, kind = 12 + int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        if at + size > len(content):
            raise ValueError("a chunk is cut off")
        if kind[:1].isupper() or kind in _PNG_SHOWS:
            yield view[at : at + size]
        says = says or kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
        at += size
    yield _orientation(content) if says else b""


def _webp(content: bytes) -> Iterator[bytes | memoryview]:
    view, at, says = memoryview(content), 12, False
    while at < len(content):
        kind, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        if at + 8 + size > len(content):
            raise ValueError("a chunk is cut off")
        if kind in _WEBP_SHOWS:
            yield view[at : at + 8 + size]
        says = says or kind in (b"EXIF", b"XMP ")
        at += 8 + size + size % 2
    yield _orientation(content) if says else b""


def _dicom(content: bytes) -> Iterator[bytes]:
    module = silent_pydicom()
    with quiet():
        dataset = module.dcmread(io.BytesIO(content))
    yield str(dataset.file_meta.TransferSyntaxUID).encode()
    for tag in sorted(dataset.keys()):
        if tag.group in _DICOM_SHOWS:
            element = dataset.get_item(tag)
            if not isinstance(element.value, bytes):
                raise ValueError("a sequence")
            yield f"{tag} {element.VR} {len(element.value)} ".encode() + element.value


def _orientation(content: bytes) -> bytes:
    """How the picture is to be turned, where it is: as it would be read."""
    with quiet(), Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "WEBP")) as image:
        if image.width * image.height > LIMITS.pixels:  # a PNG is decoded for it
            raise ValueError("too large")
        turned = image.getexif().get(_ORIENTATION, 1)
    return b"" if turned == 1 else f"turned {turned}".encode()
