"""Sources of images, and the digests by which a picture is recognised.

Images are files of a folder or members of a zip, decoded one by one on demand. A picture is
recognised by its decoded pixels. Photo managers write ratings, words, places and corrected times
into files, tools compress files again without loss, and hospitals remove names from them. Each time
the file has other bytes and shows the same picture. So the digest is taken of what every method
here uses: the upright pixel array of `decode_image` (EXIF orientation applied, without alpha and
metadata, one frame of several, of a DICOM file what its window shows), with its size and whether it
has colour. A picture in colour whose three channels are equal counts as grey, because methods treat
both alike. Two files have the same digest if and only if their pixels are equal, whatever their
formats.

Decoders of lossy formats differ between versions and machines. A vault therefore also stores the
digest of each file's bytes, and recognises a file by it first.

Earlier versions recognised a picture by `encoded_digest`: the encoded bytes that its pixels depend
on. Their vaults still do.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.data.confined import decode_image
from blindsight.data.limits import (
    LIMITS,
    Limits,
    check_packing,
    kind_of,
    quiet,
    read_at_most,
    read_bytes,
    regular_file,
)
from blindsight.data.reading import silent_pydicom

__all__ = [
    "DecodedPhotos",
    "Files",
    "LazyImages",
    "ZipMembers",
    "content_digest",
    "encoded_digest",
    "find_damaged",
    "pixel_digest",
    "read_member",
    "recognising",
]

Indices = NDArray[np.int64]
_MOST_DECODED = 256 << 20


@runtime_checkable
class LazyImages(Protocol):
    """Images that are not in memory.

    `content(i)` is the encoded file.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> NDArray[np.uint8]: ...
    def content(self, index: int) -> bytes: ...
    def take(self, indices: Indices) -> LazyImages: ...


class DecodedPhotos:
    """Pixels of files that were decoded already, in memory, by the SHA-256 of the files' bytes.

    A job that tries every photo of a folder before it uses them decodes them once with this.

    Parameters:
        most_bytes: most bytes of pixels; photos beyond that are decoded again.
    """

    def __init__(self, most_bytes: int = _MOST_DECODED) -> None:
        self._left = most_bytes
        self._pixels: dict[bytes, NDArray[np.uint8]] = {}

    def keep(self, content: bytes, pixels: NDArray[np.uint8]) -> None:
        """Store the pixels of a file for `find`."""
        digest = hashlib.sha256(content).digest()
        if digest not in self._pixels and pixels.nbytes <= self._left:
            self._pixels[digest] = pixels
            self._left -= pixels.nbytes

    def find(self, content: bytes) -> NDArray[np.uint8] | None:
        """A copy of the pixels of a file with these bytes, or None."""
        pixels = self._pixels.get(hashlib.sha256(content).digest()) if self._pixels else None
        return None if pixels is None else pixels.copy()


class Files:
    """Images in ordinary files.

    Parameters:
        paths: the files.
        limits: bounds on each image.
        at_least: lets JPEGs be decoded at reduced scale (`decode_image`).
        decoded: pixels of files that were decoded already; they do not travel to workers.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        limits: Limits = LIMITS,
        at_least: int | None = None,
        decoded: DecodedPhotos | None = None,
    ) -> None:
        self.paths = [Path(path) for path in paths]
        self.limits = limits
        self.at_least = at_least
        self.decoded = decoded

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        content = self.content(index)
        if self.decoded is not None and (pixels := self.decoded.find(content)) is not None:
            return pixels
        pixels = decode_image(
            content, name=self.paths[index].name, limits=self.limits, at_least=self.at_least
        )
        if self.decoded is not None:
            self.decoded.keep(content, pixels)
        return pixels

    def content(self, index: int) -> bytes:
        """The encoded bytes of one image."""
        return read_bytes(self.paths[index], largest=self.limits.image_bytes)

    def take(self, indices: Indices) -> Files:
        """The chosen images, in that order; nothing is read."""
        chosen = [self.paths[i] for i in indices]
        return Files(chosen, limits=self.limits, at_least=self.at_least, decoded=self.decoded)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "decoded": None}


class ZipMembers:
    """Images inside one zip file, read without unpacking it."""

    def __init__(
        self, path: str | os.PathLike[str], members: Sequence[str], *, limits: Limits = LIMITS
    ) -> None:
        self.path = Path(path)
        self.members = list(members)
        self.limits = limits
        self._archive: zipfile.ZipFile | None = None
        self._owner = -1

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return decode_image(self.content(index), name=self.members[index], limits=self.limits)

    def content(self, index: int) -> bytes:
        """The encoded bytes of one image."""
        return read_member(self._open(), self.members[index], largest=self.limits.image_bytes)

    def take(self, indices: Indices) -> ZipMembers:
        """The chosen images, in that order; nothing is read."""
        chosen = ZipMembers(self.path, [self.members[i] for i in indices], limits=self.limits)
        chosen._archive, chosen._owner = self._archive, self._owner
        return chosen

    def _open(self) -> zipfile.ZipFile:
        # A handle inherited over a fork would share its file position with the parent: open anew
        # there.
        if self._archive is None or self._owner != os.getpid():
            regular_file(self.path, largest=self.limits.file_bytes)
            try:
                self._archive = zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, OSError) as error:
                raise HostileFile(
                    f"{self.path.name} is not a readable zip file: {error}."
                ) from error
            self._owner = os.getpid()
        return self._archive

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_archive": None, "_owner": -1}


def find_damaged(
    images: LazyImages, *, progress: Callable[[int, int], None] | None = None
) -> dict[int, str]:
    """Try to read every image and return the reasons of those that cannot be read, by index; leave
    those out with `take`.
    """
    damaged: dict[int, str] = {}
    for index in range(len(images)):
        try:
            images[index]
        except InvalidData as error:
            damaged[index] = str(error)
        if progress is not None:
            progress(index + 1, len(images))
    return damaged


def read_member(archive: zipfile.ZipFile, member: str, *, largest: int) -> bytes:
    """Read one member of a zip file; it is refused if it unpacks to more than `largest` bytes,
    whatever its header says.
    """
    try:
        info = archive.getinfo(member)
        if info.file_size > largest:
            raise HostileFile(
                f"{member} would unpack to {info.file_size:,} bytes; the limit is {largest:,}."
            )
        check_packing(info)
        with archive.open(info) as stream:
            data = read_at_most(stream, largest + 1)
    except KeyError:
        raise HostileFile(f"the zip file has no member {member}.") from None
    except HostileFile:
        raise
    except Exception as error:
        # Damaged zip files raise BadZipFile, zlib.error, EOFError, RuntimeError (encrypted) and
        # more.
        raise HostileFile(f"{member} cannot be unpacked ({type(error).__name__}).") from error
    if len(data) > largest:
        raise HostileFile(f"{member} unpacks to more than {largest:,} bytes.")
    return data


_ORIENTATION = 0x0112
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# Exif and XMP, colour profiles and further pictures, Photoshop's fields, comments; none of them
# affects the pixels.
_JPEG_SAYS = frozenset({0xE1, 0xE2, 0xED, 0xFE})
# Beside the critical chunks, whose names begin with a capital letter.
_PNG_SHOWS = frozenset({b"tRNS", b"acTL", b"fcTL", b"fdAT"})
_WEBP_SHOWS = frozenset({b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF"})
# How pixels are to be read, the same for each frame, and the pixels.
_DICOM_SHOWS = frozenset({0x0028, 0x5200, 0x7FE0})


class Recogniser(Protocol):
    """An object that knows the records of image files, such as a vault."""

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
        # The first row alone shows that most pictures have colour.
        if np.array_equal(pixels[:1, :, 1], first[:1]) and all(
            np.array_equal(pixels[:, :, channel], first) for channel in (1, 2)
        ):
            pixels = first
    plain = np.ascontiguousarray(pixels)
    kind = f"blindsight pixels 1 {plain.dtype.str} {plain.shape} ".encode()
    digest = hashlib.sha256(kind)
    digest.update(plain.data if plain.size else b"")
    return digest.digest()


def encoded_digest(content: bytes) -> bytes:
    """Return the SHA-256 of a file's encoded picture, by which earlier versions recognised it."""
    digest = hashlib.sha256()
    try:
        for part in _picture(content):
            digest.update(part)
    except BlindsightError:  # what is needed to read it is not installed
        raise
    except Exception:  # parsers fed hostile bytes raise anything
        return hashlib.sha256(content).digest()
    return digest.digest()


def _picture(content: bytes) -> Iterator[bytes | memoryview]:
    if content.startswith(_JPEG):
        return _jpeg(content)
    if content.startswith(_PNG):
        return _png(content)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp(content)
    return _dicom(content) if kind_of(content) == "dicom" else iter((content,))


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
    """Return the EXIF orientation as text, empty for an upright picture."""
    with quiet(), Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "WEBP")) as image:
        if image.width * image.height > LIMITS.pixels:  # a PNG is decoded for it
            raise ValueError("too large")
        turned = image.getexif().get(_ORIENTATION, 1)
    return b"" if turned == 1 else f"turned {turned}".encode()
