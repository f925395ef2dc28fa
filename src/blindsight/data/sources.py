"""Where the images of a set come from: files of a folder or members of a zip, decoded one by one on
demand.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile, InvalidData
from blindsight.data.confined import decode_image
from blindsight.data.limits import (
    LIMITS,
    Limits,
    check_packing,
    read_at_most,
    read_bytes,
    regular_file,
)

__all__ = ["DecodedPhotos", "Files", "LazyImages", "ZipMembers", "find_damaged", "read_member"]

Indices = NDArray[np.int64]
_MOST_DECODED = 256 << 20


@runtime_checkable
class LazyImages(Protocol):
    """Images that are not in memory.

    `content(i)` is the encoded file, which names the image by what it is.
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
        """Keep the pixels of a file for `find`."""
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
    """Try to read every image, and say which cannot be read and why; leave those out with
    `take`.
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
    """One member of a zip file, refused if it unpacks to more than `largest` bytes whatever its
    header says.
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
