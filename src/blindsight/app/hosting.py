"""Files, packages and threads for jobs, and a decoder of untrusted images in confined processes."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.core.errors import HostileFile, MissingDependency

if TYPE_CHECKING:
    from blindsight.core.arrays import Bytes
    from blindsight.data import DecodedPhotos
    from blindsight.data.confined import ConfinedReader
    from blindsight.privacy import Guarantee
    from blindsight.privacy.ledger.location import Location
    from blindsight.privacy.vault import Vault

__all__ = [
    "ImageDecoder",
    "database_place",
    "file_kind",
    "limit_threads",
    "records_of",
    "require_package",
    "share_file",
    "unpack_entry",
    "write_file",
]

_LEAST_MEMORY = 256 << 20  # bytes of address space of a confined process


def share_file(
    file: Path,
    kind: str,
    guarantee: Guarantee | None,
    vault: Vault | None = None,
    *,
    card: str = "",
    save: Callable[[Path], object] | None = None,
) -> Path:
    """Write a signed folder beside a file, with a copy and its card, and return it.

    Parameters:
        file: the file to share.
        kind: what the file is, for its card.
        guarantee: its guarantee, if it has one.
        vault: the vault from which the signing key is derived; without it the key is used once.
        card: the text of the card, if there is no guarantee.
        save: writes the file to a path, if it is not written yet.
    """
    from blindsight.release.manifest import bundle_folder, write_bundle

    write_bundle(file, kind, guarantee=guarantee, card=card, vault=vault, save=save)
    return bundle_folder(file)


def records_of(
    vault: Vault, files: Iterable[Path], decoded: DecodedPhotos | None = None
) -> list[str]:
    """Return the record ids in a vault of image files, in the order of the files.

    Parameters:
        vault: the vault.
        files: the image files.
        decoded: the pixels of files that are decoded already.
    """
    from blindsight.data import LIMITS
    from blindsight.data.limits import read_bytes
    from blindsight.data.sources import recognising

    with recognising(vault, find=None if decoded is None else decoded.find) as recognise:
        return [
            recognise(read_bytes(file, largest=LIMITS.image_bytes), file.name) for file in files
        ]


def limit_threads() -> None:
    """Let the numeric libraries use one thread each, unless the user has set their variables.

    Call it before numpy or torch is imported. On a busy machine with few cores, OpenMP threads that
    spin while they wait slow the program down (tenfold on two cores), so they wait passively.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def require_package(name: str, *, extra: str) -> None:
    """Raise `MissingDependency`, with how to install it, where an optional package is missing."""
    from blindsight.core.checks import optional_module

    optional_module(name, extra=extra)


def write_file(path: str | Path, content: bytes) -> None:
    """Replace a file atomically: after a crash there is the old content or the new.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_file(path, b"text")
        >>> path.read_bytes()
        b'text'
    """
    from blindsight.core.storage import write_atomically

    write_atomically(Path(path), content)


def database_place(address: str | Path) -> Location:
    """Parse the address of a SQLite file or a PostgreSQL server; printing it hides passwords.

    Raises:
        InvalidParameter: if the address is neither.
    """
    from blindsight.privacy.ledger.location import Location

    return Location(address)


class ImageDecoder:
    """Decode untrusted images in confined processes, one for each kind of file.

    Parameters:
        seconds: the time after which a process is ended.
        pixels: the largest number of pixels of an image.
        image_bytes: the largest size of a file.
        frames: the largest number of frames of an animation.
        memory: the memory limit of a process in bytes, with the pixels.
        side: the longest side of a decoded image; larger ones are resized.
    """

    def __init__(
        self,
        *,
        seconds: float,
        pixels: int,
        image_bytes: int,
        frames: int,
        memory: int,
        side: int,
    ) -> None:
        from blindsight.data.limits import Limits

        self._limits = Limits(pixels=pixels, image_bytes=image_bytes, frames=frames)
        self._seconds, self._side = seconds, side
        self._memory = max(memory - 3 * pixels, _LEAST_MEMORY)
        self._readers: dict[str, ConfinedReader] = {}

    def decode(self, data: bytes) -> tuple[Bytes | None, bool]:
        """Return the pixels (None if it is not an image), and whether a process had to be ended."""
        import numpy as np
        from PIL import Image

        reader = self._reader(file_kind(data))
        try:
            pixels = reader.decode(data, limits=self._limits, at_least=self._side)
        except (HostileFile, MissingDependency):
            return None, reader.process is None
        small = Image.fromarray(pixels)
        small.thumbnail((self._side, self._side))
        return np.ascontiguousarray(small), False

    def start(self) -> tuple[str, ...]:
        """Start the process for common images, and return its confinements."""
        reader = self._reader("pictures")
        reader.start(self._limits)
        return reader.walls

    @property
    def walls(self) -> tuple[str, ...]:
        """The confinements of the processes; empty before one is started."""
        return next((reader.walls for reader in self._readers.values() if reader.walls), ())

    @property
    def processes(self) -> list[int]:
        """The ids of the running processes."""
        return [each.process for each in self._readers.values() if each.process is not None]

    def close(self) -> None:
        """End all processes that decode images."""
        for reader in self._readers.values():
            reader.close()

    def _reader(self, kind: str) -> ConfinedReader:
        from blindsight.data.confined import ConfinedReader

        if kind not in self._readers:
            self._readers[kind] = ConfinedReader(kind, address_space=self._memory)
            self._readers[kind].seconds = self._seconds
        return self._readers[kind]


def file_kind(data: bytes) -> str:
    r"""Return the kind of confined reader that decodes a file, by its first bytes.

    Examples:
        >>> file_kind(b"\x89PNG")
        'pictures'
    """
    from blindsight.data.limits import kind_of

    return kind_of(data)


def unpack_entry(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes | None:
    """Return a file of a zip archive; None if encrypted, damaged or larger than `most` bytes."""
    from blindsight.data.limits import check_packing

    try:
        check_packing(entry)
        with packed.open(entry) as stream:
            data = stream.read(most + 1)
        return data if len(data) <= most else None
    except (
        HostileFile,
        zipfile.BadZipFile,
        RuntimeError,  # NotImplementedError is one
        OSError,
        ValueError,
        EOFError,
        zlib.error,
    ):
        return None
