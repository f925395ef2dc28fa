"""What an aggregator keeps of a round until it is opened, in memory or in files that only grow.

A contribution is needed again when its group is complete (its vector), and with key holders when
the round is closed (its shares). In a file it is one record, written once: a restarted aggregator
reads the records of its round and has the sum again, and in memory there is one sum, whatever the
number of users. Results stay for users who come late.

    record  =  u64 length, 8 bytes of SHA-256, content
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from blindsight.core.durable import DurableFile, write_file
from blindsight.core.errors import HostileFile
from blindsight.federated.messages import HEADER_BYTES
from blindsight.federated.protocol.bodies import Contribution, read_list, write_list
from blindsight.federated.signatures import SIGNATURE_BYTES
from blindsight.federated.wire import Reader, Writer

__all__ = ["InFiles", "InMemory", "Kept"]

_HEAD, _MOST_KEYS = 16, 64


class Kept(Protocol):
    """Contributions of the round that is open, by user, and the results of all."""

    on_disk: bool

    def begin(self) -> None:
        """A new round: what was contributed to the last one goes."""
        ...

    def add(self, user: int, message: bytes, body: Contribution) -> None:
        """A contribution that was accepted; on the disk, where there is one, when this returns."""
        ...

    def get(self, user: int) -> Contribution:
        """It again."""
        ...

    def keys(self, user: int) -> tuple[bytes, ...]:
        """The key of it alone."""
        ...

    def summed(self, user: int, *, shares: bool) -> None:
        """Its vector is in the sum; with `shares` the key is still needed."""
        ...

    def add_result(self, message: bytes) -> int:
        """Keep a round's result; the number to get it back by."""
        ...

    def result(self, place: int) -> bytes:
        """It again."""
        ...

    def dump(self) -> bytes:
        """What a state file has to hold of it."""
        ...


class InMemory:
    """For simulations and tests."""

    on_disk = False

    def __init__(self, data: bytes = b"") -> None:
        self._bodies: dict[int, Contribution] = {}
        self._results: list[bytes] = []
        if data:
            reader = Reader(data)
            self._results = list(read_list(reader, 1 << 32))
            for item in read_list(reader, 1 << 32):
                part = Reader(item)
                user = part.number("I")
                self._bodies[user] = Contribution.decode(part.raw(part.left), most=_MOST_KEYS)
            reader.end()

    def begin(self) -> None:
        self._bodies = {}

    def add(self, user: int, message: bytes, body: Contribution) -> None:
        self._bodies[user] = body

    def get(self, user: int) -> Contribution:
        return self._bodies[user]

    def keys(self, user: int) -> tuple[bytes, ...]:
        return self._bodies[user].keys

    def summed(self, user: int, *, shares: bool) -> None:
        if shares:
            self._bodies[user] = Contribution(self._bodies[user].keys, b"")
        else:
            self._bodies.pop(user, None)

    def add_result(self, message: bytes) -> int:
        self._results.append(message)
        return len(self._results) - 1

    def result(self, place: int) -> bytes:
        return self._results[place]

    def dump(self) -> bytes:
        writer = write_list(Writer(), self._results)
        bodies = [user.to_bytes(4, "little") + body.encode() for user, body in self._bodies.items()]
        return bytes(write_list(writer, bodies))


class InFiles:
    """For aggregators: `contributions.log` and `results.log` in a folder, which only grow while a
    round goes.
    """

    on_disk = True

    def __init__(self, folder: Path) -> None:
        self._round, self._results = (
            _open(folder / name) for name in ("contributions.log", "results.log")
        )
        self._places: dict[
            int, tuple[int, int, int]
        ] = {}  # by user: where, how long, and how much of it is the key

    @property
    def size(self) -> int:
        """Bytes of this round's contributions."""
        return self._round.end

    def begin(self) -> None:
        self._round.cut(0)
        self._places = {}

    def add(self, user: int, message: bytes, body: Contribution) -> None:
        self.found(user, _append(self._round, message), message, body)

    def found(self, user: int, place: int, message: bytes, body: Contribution) -> None:
        """A contribution that is in the file already."""
        keys = len(message) - HEADER_BYTES - SIGNATURE_BYTES - len(body.padded)
        self._places[user] = (place, len(message), keys)

    def get(self, user: int) -> Contribution:
        place, size, _ = self._places[user]
        body = _read(self._round, place + HEADER_BYTES, size - HEADER_BYTES - SIGNATURE_BYTES)
        return Contribution.decode(body, most=_MOST_KEYS)

    def keys(self, user: int) -> tuple[bytes, ...]:
        place, _, size = self._places[user]
        return read_list(Reader(_read(self._round, place + HEADER_BYTES, size)), _MOST_KEYS)

    def summed(self, user: int, *, shares: bool) -> None:
        """Nothing goes: the file is what a restart begins with."""

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Every contribution in the file, as it came, and its place; a torn end, left by a crash,
        is cut off.
        """
        at = 0
        while (content := _checked(self._round, at)) is not None:
            yield at + _HEAD, content
            at += _HEAD + len(content)
        self._round.cut(at)

    def add_result(self, message: bytes) -> int:
        return _append(self._results, message) - _HEAD

    def result(self, place: int) -> bytes:
        content = _checked(self._results, place)
        if content is None:
            raise HostileFile("a saved result is damaged: its checksum does not hold.")
        return content

    def dump(self) -> bytes:
        return b""


def _open(path: Path) -> DurableFile:
    if not path.exists():
        write_file(path, b"")
    return DurableFile(path)


def _append(file: DurableFile, content: bytes) -> int:
    """Where the content is."""
    head = len(content).to_bytes(8, "little") + hashlib.sha256(content).digest()[:8]
    file.append(head + content)
    return file.end - len(content)


def _checked(file: DurableFile, at: int) -> bytes | None:
    """The record that begins there; None where there is none, or not a whole one."""
    head = os.pread(file.descriptor, _HEAD, at)
    size = int.from_bytes(head[:8], "little")
    if len(head) < _HEAD or at + _HEAD + size > file.size:
        return None
    content = _read(file, at + _HEAD, size)
    return content if hashlib.sha256(content).digest()[:8] == head[8:] else None


def _read(file: DurableFile, at: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.pread(file.descriptor, min(size, 1 << 24), at)
        if not part:
            raise HostileFile(f"{file.path.name} ends too early.")
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
