"""Codes and their ids in memory: rows of one contiguous array that faiss scans in place, without a
second copy.

Readers take a `snapshot` and need no lock: rows that a snapshot covers are never written again
(appending writes past its end; replacing and removing work on a copy).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CodeArray", "Snapshot"]


class Snapshot(NamedTuple):
    """What a search sees: ids (n,), codes (n, bytes), and a number that changes when rows move or
    are rewritten.
    """

    ids: NDArray[Any]
    codes: NDArray[np.uint8]
    generation: int


class CodeArray:
    """Rows of (id, code): append, replace, remove. Callers hold a lock while they change it."""

    def __init__(self, width: int, *, names: bool) -> None:
        self._ids: NDArray[Any] = np.empty(0, dtype=object if names else np.int64)
        self._codes = np.empty((0, width), dtype=np.uint8)
        self._count = 0
        # Where each id stands; built when first asked for, for a million entries take 0.2 s and 100
        # MB.
        self._rows: dict[int | str, int] | None = None
        self._generation = 0
        self._snapshot = Snapshot(self._ids, self._codes, 0)

    def __len__(self) -> int:
        return self._count

    @property
    def snapshot(self) -> Snapshot:
        """The present state, safe to read while others write."""
        return self._snapshot

    def rows(self) -> dict[int | str, int]:
        """The row of each id."""
        if self._rows is None:
            self._rows = dict(
                zip(self._ids[: self._count].tolist(), range(self._count), strict=True)
            )
        return self._rows

    def put(self, ids: NDArray[Any], codes: NDArray[np.uint8], *, fresh: bool = False) -> None:
        """Add rows; a row whose id is here already is replaced. `fresh` promises that none is."""
        if not fresh and self._count:
            rows = self.rows()
            at = np.array([rows.get(key, -1) for key in ids.tolist()], dtype=np.int64)
            known = at >= 0
            if known.any():
                self._own()
                self._codes[at[known]] = codes[known]
                ids, codes = ids[~known], codes[~known]
        self._append(ids, codes)
        self._publish()

    def take(self, ids: NDArray[Any]) -> int:
        """Remove rows; ids that are not here are passed over. Returns how many went."""
        rows = self.rows()
        gone = [key for key in ids.tolist() if key in rows]
        if not gone:
            return 0
        self._own()
        for key in gone:
            row, last = rows.pop(key), self._count - 1
            if row != last:
                self._ids[row], self._codes[row] = self._ids[last], self._codes[last]
                moved = self._ids[row]
                rows[moved if isinstance(moved, str) else int(moved)] = row
            self._count = last
        self._ids[self._count :] = None if self._ids.dtype == object else 0
        self._codes[self._count :] = 0
        self._publish()
        return len(gone)

    def _own(self) -> None:
        """Work on a copy from here on: snapshots keep the old rows."""
        self._ids, self._codes = self._ids.copy(), self._codes.copy()
        self._generation += 1

    def _append(self, ids: NDArray[Any], codes: NDArray[np.uint8]) -> None:
        end = self._count + len(ids)
        if end > len(self._ids):
            capacity = max(end, len(self._ids) * 3 // 2, 64)
            grown_ids = np.empty(capacity, dtype=self._ids.dtype)
            grown_codes = np.zeros((capacity, self._codes.shape[1]), dtype=np.uint8)
            grown_ids[: self._count] = self._ids[: self._count]
            grown_codes[: self._count] = self._codes[: self._count]
            self._ids, self._codes = grown_ids, grown_codes
        self._ids[self._count : end] = ids
        self._codes[self._count : end] = codes
        if self._rows is not None:
            self._rows.update(zip(ids.tolist(), range(self._count, end), strict=True))
        self._count = end

    def _publish(self) -> None:
        self._snapshot = Snapshot(
            self._ids[: self._count], self._codes[: self._count], self._generation
        )
