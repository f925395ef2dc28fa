"""Feature vectors on disk, keyed by content: the same image and settings are never computed twice.

One SQLite file per kind of extractor. A key is the BLAKE2b hash of the image's bytes; the value is
the vector with a checksum, so that a damaged entry is noticed and computed again. Features reveal
much about an image, so the file is readable by its owner only, and whoever keeps no traces passes
`cache=False` to the extractor.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["FeatureCache"]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, vector BLOB NOT NULL, checksum "
    "INTEGER NOT NULL)"
)
_ASK_AT_ONCE = 500  # below SQLite's limit of variables in one statement


class FeatureCache:
    """A durable mapping from image keys to float32 vectors of one length, safe for several
    processes.
    """

    def __init__(self, path: Path, dimensions: int) -> None:
        self.path = path
        self.dimensions = dimensions

    def get(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The vectors that are there and whole; damaged entries count as absent."""
        if not self.path.exists():
            return {}
        found: dict[bytes, NDArray[np.float32]] = {}
        try:
            with self._connect() as connection:
                for start in range(0, len(keys), _ASK_AT_ONCE):
                    some = list(keys[start : start + _ASK_AT_ONCE])
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, vector, checksum FROM features WHERE key IN ({marks})"  # noqa: S608
                    for key, vector, checksum in connection.execute(query, some):
                        if self._whole(key, vector, checksum):
                            found[key] = np.frombuffer(vector, dtype="<f4").astype(
                                np.float32, copy=False
                            )
        except sqlite3.DatabaseError as error:
            self._discard(error)
        return found

    def put(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Keep vectors. A cache that cannot be written (read-only or full disk) is simply not
        used.
        """
        rows = [
            (key, data := vector.astype("<f4").tobytes(), _checksum(key, data))
            for key, vector in zip(keys, vectors, strict=True)
        ]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._connect() as connection:
                connection.execute("PRAGMA page_size = 8192")  # of a new file
                # The lock first: SQLite waits for it, and not for one that a reader asks for later.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
        except (sqlite3.DatabaseError, OSError) as error:
            self._discard(error)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            # Owner only from its birth on: SQLite gives its side files the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        # The plain rollback journal: SQLite does not wait for others when it begins a write-ahead
        # log, and a batch that meets them then would be lost.
        with contextlib.closing(
            sqlite3.connect(self.path, timeout=60, isolation_level=None)
        ) as connection:
            yield connection

    def _whole(self, key: object, vector: object, checksum: object) -> bool:
        return (
            isinstance(key, bytes)
            and isinstance(vector, bytes)
            and len(vector) == 4 * self.dimensions
            and checksum == _checksum(key, vector)
        )

    def _discard(self, error: Exception) -> None:
        """Remove a file that is no database; leave a busy, full or read-only one alone."""
        if isinstance(error, sqlite3.OperationalError) or not isinstance(
            error, sqlite3.DatabaseError
        ):
            return
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _checksum(key: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(key))
