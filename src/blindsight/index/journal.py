"""The file of an index: a checked header, then an append-only run of checksummed records.

A record is acknowledged when `append` returns, and by then it is on the disk (fsync). After a crash
in the middle of an append the file ends in a piece of a record; the piece is dropped on the next
open, so the index holds exactly what was acknowledged (at most one more record: written whole, but
the process died before it could say so). Anything else that does not fit (a wrong checksum, a
length past the limits, a header that is not ours) is `HostileFile`: nothing of such a file is used,
and none of its bytes reach a native library unchecked.

    file    MAGIC, u32 header length, sha256 of the header, header (JSON)
    record  u8 kind, 3 zero bytes, u32 count, u64 length, u32 crc of these; payload; sha256 trailer

The trailer hashes the previous trailer too: a record that was cut out, doubled or moved breaks the
chain.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidData

__all__ = ["ADD", "REMOVE", "Journal", "Record", "fresh_file", "reading"]

MAGIC = b"BSIGHTIX\x01\x00\x00\x00"
ADD, REMOVE = 1, 2
_HEAD = struct.Struct("<B3xIQ")
_HEAD_BYTES = _HEAD.size + 4
_DIGEST = 32
_MAX_HEADER = 1 << 20
# One record is read at once; larger batches are split on writing.
MAX_PAYLOAD = 1 << 28


class Record(NamedTuple):
    """One acknowledged change: what kind, how many entries, and their bytes."""

    kind: int
    entries: int
    payload: bytes


class Journal:
    """A durable index file open for appending. One writer at a time: a second one is refused."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = durable.DurableFile(path, lock=True)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise _missing(path) from error
        try:
            with _existing(path) as file:
                self.header = _header(file)
                self._start = file.tell()
            self._chain = _seed(self.header)
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def move_to(self, path: Path) -> None:
        """Give the file another name, in place of what had it; the lock stays held all the
        while.
        """
        self._file.move_to(path)

    def replay(self) -> Iterator[Record]:
        """All acknowledged records in order; afterwards a torn tail is cut off and the file is
        ready to append.
        """
        with _existing(self.path) as file:
            file.seek(self._start)
            end = self._start
            for record, chain, position in _records(file, self._chain, self.path.name):
                self._chain, end = chain, position
                yield record
        self._file.cut(end)

    def append(self, kind: int, count: int, payload: bytes) -> None:
        """Write one record and return when it is on the disk.

        A failed write leaves the file as it was.
        """
        record, chain = _encode(kind, count, payload, self._chain)
        self._file.append(record)
        self._chain = chain

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._file.end

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._file.close()


def fresh_file(
    path: Path, header: dict[str, Any], records: Iterator[Record], *, replace: bool
) -> None:
    """Write a whole index file and put it in place in one step: either the old file or the new one
    is there.
    """
    text = json.dumps(header, sort_keys=True, allow_nan=False).encode()
    if len(text) > _MAX_HEADER:
        raise InvalidData(f"the index's header has {len(text)} bytes, more than {_MAX_HEADER}.")
    try:
        durable.write_file(path, _pieces(header, text, records), mode=0o644, replace=replace)
    except FileExistsError as error:
        raise InvalidData(
            f"{path.name} exists already. Open it instead, or choose another name."
        ) from error


def _pieces(header: dict[str, Any], text: bytes, records: Iterator[Record]) -> Iterator[bytes]:
    yield MAGIC + struct.pack("<I", len(text)) + hashlib.sha256(text).digest() + text
    chain = _seed(header)
    for kind, count, payload in records:
        record, chain = _encode(kind, count, payload, chain)
        yield record


@contextmanager
def reading(path: Path) -> Iterator[tuple[dict[str, Any], Iterator[Record]]]:
    """The checked header and the records of a file, read only (no lock, no repair)."""
    with _existing(path) as file:
        header = _header(file)
        yield header, (record for record, _, _ in _records(file, _seed(header), path.name))


def _existing(path: Path) -> BinaryIO:
    try:
        return cast(BinaryIO, open(path, "rb"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise _missing(path) from error


def _missing(path: Path) -> InvalidData:
    return InvalidData(f"there is no index file {path}. Check the path, or make one first.")


def _header(file: BinaryIO) -> dict[str, Any]:
    name = Path(file.name).name
    start = file.read(len(MAGIC) + 4 + _DIGEST)
    if len(start) < len(MAGIC) + 4 + _DIGEST or not start.startswith(MAGIC):
        raise HostileFile(f"{name} is not a Blindsight index.")
    (length,) = struct.unpack_from("<I", start, len(MAGIC))
    if length > _MAX_HEADER:
        raise HostileFile(f"{name} has a header of {length} bytes, more than {_MAX_HEADER}.")
    text = file.read(length)
    if len(text) != length or hashlib.sha256(text).digest() != start[-_DIGEST:]:
        raise HostileFile(
            f"{name}: the header does not fit its checksum. Restore the file from a copy."
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HostileFile(f"{name}: the header is not JSON.") from error
    if not isinstance(header, dict):
        raise HostileFile(f"{name}: the header must be a JSON object.")
    return header


def _records(file: BinaryIO, chain: bytes, name: str) -> Iterator[tuple[Record, bytes, int]]:
    """Yield (record, its trailer, the position after it); stop before a torn tail, raise on
    anything else.
    """
    size = os.fstat(file.fileno()).st_size
    position = file.tell()
    while position < size:
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES or not any(head):
            # A piece of a head, or the zeros a file system leaves behind when power fails.
            if len(head) == _HEAD_BYTES and _anything_left(file):
                raise HostileFile(
                    f"{name}: a record is missing at byte {position}. Restore the file from a copy."
                )
            return
        kind, count, length = _HEAD.unpack_from(head)
        if zlib.crc32(head[: _HEAD.size]) != int.from_bytes(head[_HEAD.size :], "little"):
            raise HostileFile(
                f"{name}: a record's head is damaged at byte {position}. Restore from a copy."
            )
        if kind not in (ADD, REMOVE) or length > MAX_PAYLOAD:
            raise HostileFile(f"{name}: a record at byte {position} is not one of ours.")
        end = position + _HEAD_BYTES + length + _DIGEST
        if end > size:
            return
        payload, trailer = file.read(length), file.read(_DIGEST)
        expected = _trailer(chain, head, payload)
        if trailer != expected:
            if end == size and not any(trailer):
                return
            raise HostileFile(
                f"{name}: a record's checksum is wrong at byte {position}. Restore from a copy."
            )
        chain, position = expected, end
        yield Record(kind, count, payload), chain, position


def _anything_left(file: BinaryIO) -> bool:
    while block := file.read(1 << 20):
        if any(block):
            return True
    return False


def _encode(kind: int, count: int, payload: bytes, chain: bytes) -> tuple[bytes, bytes]:
    if len(payload) > MAX_PAYLOAD:
        raise InvalidData(
            f"one record holds at most {MAX_PAYLOAD} bytes, got {len(payload)}. Add in batches."
        )
    head = _HEAD.pack(kind, count, len(payload))
    head += zlib.crc32(head).to_bytes(4, "little")
    trailer = _trailer(chain, head, payload)
    return head + payload + trailer, trailer


def _trailer(chain: bytes, head: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(chain)
    digest.update(head)
    digest.update(payload)
    return digest.digest()


def _seed(header: dict[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).digest()
