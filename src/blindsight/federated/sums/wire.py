"""Reading and writing bytes: little-endian numbers and length-prefixed fields, with every length
checked.

Also the sealed form in which roles store their state: magic, version, body, SHA-256. Pickle is not
used.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from blindsight.core import durable
from blindsight.core.errors import HostileFile, ProtocolError

__all__ = [
    "CHECKSUM_BYTES",
    "Reader",
    "Writer",
    "read_checksum",
    "read_sealed",
    "seal",
    "unseal",
    "write_sealed",
]

CHECKSUM_BYTES = 32  # of SHA-256, at the end of a state
_SEAL_VERSION = 2


class Writer:
    """Collects fields; `bytes(writer)` is what was written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, code: str, value: int | float) -> Writer:
        """Write one number, by its `struct` letter."""
        self._parts.append(struct.pack("<" + code, value))
        return self

    def raw(self, data: bytes) -> Writer:
        """Write bytes whose length the reader knows."""
        self._parts.append(bytes(data))
        return self

    def field(self, data: bytes) -> Writer:
        """Bytes with their length before them."""
        return self.number("Q", len(data)).raw(data)

    def text(self, value: str) -> Writer:
        """UTF-8 with its length before it."""
        return self.field(value.encode())

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Reads fields in the order in which they were written; raises `ProtocolError` at the end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._data) - self._at

    def raw(self, length: int) -> bytes:
        """Return the next `length` bytes; fewer are an error."""
        if not 0 <= length <= self.left:
            raise ProtocolError(
                f"a message ends too early: {length} bytes were expected, {self.left} are left."
            )
        self._at += length
        return bytes(self._data[self._at - length : self._at])

    def number(self, code: str) -> int:
        """Read one whole number, by its `struct` letter."""
        return int(struct.unpack("<" + code, self.raw(struct.calcsize("<" + code)))[0])

    def real(self) -> float:
        """Read one little-endian number in double precision."""
        return float(struct.unpack("<d", self.raw(8))[0])

    def field(self) -> bytes:
        """Bytes with their length before them."""
        return self.raw(self.number("Q"))

    def text(self) -> str:
        """UTF-8 with its length before it."""
        try:
            return self.field().decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a text field must be UTF-8.") from error

    def end(self) -> None:
        """Refuse anything after the last field."""
        if self.left:
            raise ProtocolError(f"a message has {self.left} bytes too many.")


def seal(kind: bytes, body: bytes) -> bytes:
    """Return a state as bytes: 'BSST', version, 4 letters of kind, body, SHA-256 of all these."""
    if len(kind) != 4:
        raise AssertionError("a state's kind is four letters")
    head = b"BSST" + bytes([_SEAL_VERSION]) + kind
    checksum = hashlib.sha256(head)
    checksum.update(body)
    return b"".join((head, body, checksum.digest()))


def unseal(kind: bytes, data: bytes) -> Reader:
    """Return a reader over the body of a state that `seal` wrote; anything else is refused."""
    data = bytes(data)
    if len(data) < 41 or data[:4] != b"BSST" or data[4] != _SEAL_VERSION or data[5:9] != kind:
        raise HostileFile(
            f"not a saved state of kind {kind.decode()!r} and version {_SEAL_VERSION}."
        )
    view = memoryview(data)
    if hashlib.sha256(view[:-32]).digest() != data[-32:]:
        raise HostileFile("a saved state's checksum does not hold: the file is damaged.")
    return Reader(view[9:-32])


def write_sealed(path: Path, data: bytes) -> None:
    """Replace a state file atomically; only its owner can read it.

    A kill at any moment leaves the old state or the new one.
    """
    durable.write_file(path, data)


def read_sealed(path: Path, *, largest: int = 1 << 32) -> bytes:
    """Read a state file; one larger than `largest` bytes is refused before it is read."""
    path = Path(path)
    if path.stat().st_size > largest:
        raise HostileFile(f"a state file must have at most {largest} bytes, {path.name} has more.")
    return path.read_bytes()


def read_checksum(path: Path) -> bytes:
    """Return the checksum at the end of a state file, or empty bytes if there is no file."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - CHECKSUM_BYTES))
            return file.read(CHECKSUM_BYTES)
    except FileNotFoundError:
        return b""
