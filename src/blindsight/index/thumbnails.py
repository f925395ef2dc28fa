"""Thumbnails of one's own photos, kept in the vault: for contact sheets where the photos are not at
hand.
"""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from blindsight.core.errors import HostileFile

__all__ = ["Thumbnails", "thumbnail"]

_SIDE, _QUALITY = 320, 82
_LARGEST = 1 << 20
_TABLE = (
    "CREATE TABLE IF NOT EXISTS thumbnails (record TEXT NOT NULL PRIMARY KEY, jpeg BLOB NOT NULL) "
    "STRICT"
)


def thumbnail(pixels: NDArray[Any]) -> bytes:
    """A picture as a small JPEG."""
    from PIL import Image

    picture = Image.fromarray(pixels).convert("RGB")
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


class Thumbnails:
    """The thumbnails in a vault, by record.

    Only the owner may read the file; no verb copies it anywhere.
    """

    def __init__(self, vault: Path) -> None:
        self.path = vault / "thumbnails.db"

    def of(self, records: Iterable[str]) -> dict[str, bytes]:
        """The thumbnails that are here."""
        if not self.path.is_file():
            return {}
        with self._connected() as connection:
            query = "SELECT jpeg FROM thumbnails WHERE record = ? AND length(jpeg) <= ?"
            rows = (
                (record, connection.execute(query, (record, _LARGEST)).fetchone())
                for record in records
            )
            return {record: bytes(row[0]) for record, row in rows if row is not None}

    def records(self) -> set[str]:
        """Whose thumbnails are here."""
        if not self.path.is_file():
            return set()
        with self._connected() as connection:
            return {row[0] for row in connection.execute("SELECT record FROM thumbnails")}

    def keep(self, pictures: Iterable[tuple[str, bytes]]) -> None:
        """Put thumbnails in, all or none."""
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with self._connected() as connection, connection:
            connection.execute(_TABLE)
            connection.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", pictures)

    def forget(self, records: Iterable[str]) -> None:
        """Take thumbnails out, from the file's bytes too."""
        gone = [(record,) for record in records]
        if gone and self.path.is_file():
            with self._connected() as connection:
                with connection:
                    connection.executemany("DELETE FROM thumbnails WHERE record = ?", gone)
                connection.execute("VACUUM")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                yield connection
        except sqlite3.DatabaseError as error:
            raise HostileFile(
                f"{self.path} cannot be used ({error}). Delete it: they can be made again."
            ) from None
