"""Storage of contributions until the round ends, and of results for late users.

In a file a contribution is one record, appended and synced when it is accepted: a restarted
aggregator reads the records of its round and computes the sum again. Memory then holds only one sum
and eight bytes for each user. When the state of a round that has ended is on the disk, the records
are erased.

    record = u64 length ‖ first 8 bytes of SHA-256(content) ‖ content
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from blindsight.core import durable
from blindsight.core.durable import DurableFile, write_file
from blindsight.core.errors import HostileFile
from blindsight.federated.sums.wire import Reader, Writer

__all__ = ["ContributionStore", "FileStore", "MemoryStore"]

_HEAD = 16


class ContributionStore(Protocol):
    """Messages of the open round by user, and the results of all rounds."""

    def add(self, user: int, message: bytes) -> None:
        """Store an accepted contribution; in a file it is on disk when this returns."""
        ...

    def get(self, user: int) -> bytes:
        """Return a contribution as it was received."""
        ...

    def end(self) -> None:
        """Forget the round's contributions; those in a file remain until `erase`.

        The state on the disk still needs them: a restart before the next one is written asks the
        holders again.
        """
        ...

    def erase(self) -> None:
        """Delete all contributions of the round."""
        ...

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield all contributions with their positions, for a restart."""
        ...

    def place(self, user: int, position: int) -> None:
        """Record the user of the contribution at a position that `messages` yielded."""
        ...

    def add_result(self, message: bytes) -> int:
        """Store a round's result and return its position."""
        ...

    def result(self, position: int) -> bytes:
        """Return the result at a position."""
        ...

    def dump(self) -> bytes:
        """Return the part of the store that belongs into a state file."""
        ...


class MemoryStore:
    """A store for simulations and tests."""

    def __init__(self, data: bytes = b"") -> None:
        self._messages: dict[int, bytes] = {}
        self._results: list[bytes] = []
        if data:
            reader = Reader(data)
            self._results = [reader.field() for _ in range(reader.number("I"))]
            count = reader.number("I")
            self._messages = {reader.number("I"): reader.field() for _ in range(count)}
            reader.end()

    def add(self, user: int, message: bytes) -> None:
        self._messages[user] = message

    def get(self, user: int) -> bytes:
        return self._messages[user]

    def end(self) -> None:
        self._messages = {}

    def erase(self) -> None:
        self._messages = {}

    def messages(self) -> Iterator[tuple[int, bytes]]:
        yield from list(self._messages.items())

    def place(self, user: int, position: int) -> None:
        """Do nothing: positions are user numbers here."""

    def add_result(self, message: bytes) -> int:
        self._results.append(message)
        return len(self._results) - 1

    def result(self, position: int) -> bytes:
        return self._results[position]

    def dump(self) -> bytes:
        writer = Writer().number("I", len(self._results))
        for result in self._results:
            writer.field(result)
        writer.number("I", len(self._messages))
        for user, message in self._messages.items():
            writer.number("I", user).field(message)
        return bytes(writer)


class FileStore:
    """A store in two files of a folder, `contributions.log` and `results.log`.

    Parameters:
        folder: where the files are.
        users: how many users contribute.
        flush: whether contributions are on the disk when `add` returns. They need not be if a
            killed aggregator abandons its round.
    """

    def __init__(self, folder: Path, users: int, *, flush: bool = True) -> None:
        self._flush = flush
        self._round = _open(folder / "contributions.log")
        self._results = _open(folder / "results.log")
        self._positions = np.full(users + 1, -1, dtype=np.int64)

    @property
    def size(self) -> int:
        """Bytes of this round's contributions."""
        return self._round.end

    def add(self, user: int, message: bytes) -> None:
        self.place(user, _append(self._round, message, flush=self._flush))

    def place(self, user: int, position: int) -> None:
        self._positions[user] = position

    def get(self, user: int) -> bytes:
        content = _record(self._round, int(self._positions[user]))
        if content is None:
            raise HostileFile("a stored contribution is damaged: its checksum does not hold.")
        return content

    def end(self) -> None:
        self._positions[:] = -1

    def erase(self) -> None:
        self._round.cut(0)
        self._positions[:] = -1

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield all complete records; an incomplete one at the end, left by a crash, is cut off."""
        at = 0
        while (content := _record(self._round, at)) is not None:
            yield at, content
            at += _HEAD + len(content)
        self._round.cut(at)

    def add_result(self, message: bytes) -> int:
        return _append(self._results, message)

    def result(self, position: int) -> bytes:
        content = _record(self._results, position)
        if content is None:
            raise HostileFile("a saved result is damaged: its checksum does not hold.")
        return content

    def dump(self) -> bytes:
        return b""


def _open(path: Path) -> DurableFile:
    if not path.exists():
        write_file(path, b"")
    return DurableFile(path)


def _append(file: DurableFile, content: bytes, *, flush: bool = True) -> int:
    position = file.end
    head = len(content).to_bytes(8, "little") + hashlib.sha256(content).digest()[:8]
    file.append(head + content, flush=flush)
    return position


def _record(file: DurableFile, at: int) -> bytes | None:
    """Return the record that begins at a position, or None if it is not complete."""
    if at < 0:
        return None
    head = durable.read_at(file.descriptor, _HEAD, at)
    size = int.from_bytes(head[:8], "little")
    if len(head) < _HEAD or at + _HEAD + size > file.size:
        return None
    content = _read(file, at + _HEAD, size)
    return content if hashlib.sha256(content).digest()[:8] == head[8:] else None


def _read(file: DurableFile, at: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = durable.read_at(file.descriptor, min(size, 1 << 24), at)
        if not part:
            raise HostileFile(f"{file.path.name} ends too early.")
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
