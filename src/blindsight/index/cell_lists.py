"""Released cells in inverted lists: the records of each cell together, found without looking at the
others.

    cells   the released cell of every row, 4 bytes; a row that was removed or replaced is marked
    there order   rows by cell, 4 bytes, within a cell in a fixed random order; it covers the rows
    up to some point,
            and the few that came later are sorted by themselves until they are worth merging
Nothing is copied when a record is added, replaced or removed; when a quarter of the rows are dead,
they are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blindsight.core.codes import n_bytes
from blindsight.index.shelf import Snapshot

__all__ = ["Best", "CellLists", "cell_bits", "from_codes", "to_codes"]

_DEAD = np.uint32(0xFFFFFFFF)
_LEAST_TAIL = 4096
Array = NDArray[Any]


def cell_bits(k: int) -> int:
    """Bits that hold one of k cells."""
    return max(1, (k - 1).bit_length())


def to_codes(cells: Array, k: int) -> NDArray[np.uint8]:
    """Cell numbers (n,) as packed codes of `cell_bits(k)` bits."""
    width = n_bytes(cell_bits(k))
    return np.ascontiguousarray(
        np.asarray(cells).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]
    )


def from_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Packed codes back to cell numbers."""
    padded = np.zeros((len(codes), 4), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view("<u4").ravel().astype(np.uint32)


class Best(NamedTuple):
    """The best records of one query: rows, their cells, and how many records share each one's
    cell.
    """

    ids: Array
    cells: NDArray[np.int64]
    tied: NDArray[np.int64]


@dataclass(frozen=True)
class _Sorted:
    """Rows of a stretch of the index by cell: those of cell c are order[starts[c]:starts[c +
    1]].
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, cells: NDArray[np.uint32], first: int, k: int) -> _Sorted:
        rows = np.arange(first, first + len(cells), dtype=np.uint64)
        # Cell first, then a fixed scrambling of the row's number: ties come in an order that means
        # nothing.
        keys = (cells.astype(np.uint64) << np.uint64(32)) | _scrambled(rows)
        order = np.argsort(keys).astype(np.int32)
        # The dead sort behind all cells.
        starts = np.searchsorted(cells[order], np.arange(k + 1, dtype=np.uint32)).astype(np.int64)
        return cls(order + np.int32(first), starts)

    def rows(self, cell: int) -> NDArray[np.int32]:
        return self.order[self.starts[cell] : self.starts[cell + 1]]


class CellLists:
    """Ids and cells of an index, in the place of a `Shelf`: the same few methods, and `best`."""

    def __init__(self, k: int, *, names: bool) -> None:
        self.k = k
        self._ids: Array = np.empty(0, dtype=object if names else np.int64)
        self._cells = np.empty(0, dtype=np.uint32)
        self._count = 0
        self._live = 0
        self._rows: dict[int | str, int] | None = None
        self._generation = 0
        self.counts = np.zeros(k, dtype=np.int64)
        self._base = _Sorted.of(self._cells, 0, k)
        self._covered = 0
        self._tail: tuple[int, _Sorted] | None = None

    def __len__(self) -> int:
        return self._live

    @property
    def snapshot(self) -> Snapshot:
        """Ids and codes as they stand: a copy, for whoever walks through all of them."""
        alive = self._cells[: self._count] != _DEAD
        ids, cells = self._ids[: self._count][alive], self._cells[: self._count][alive]
        return Snapshot(ids, to_codes(cells, self.k), self._generation)

    @property
    def snapshot_number(self) -> int:
        """It changes whenever the lists do."""
        return self._generation

    def rows(self) -> dict[int | str, int]:
        """The row of each id."""
        if self._rows is None:
            alive = np.flatnonzero(self._cells[: self._count] != _DEAD)
            self._rows = dict(zip(self._ids[alive].tolist(), alive.tolist(), strict=True))
        return self._rows

    def cells_at(self, rows: Array) -> NDArray[np.uint32]:
        """The cells of these rows."""
        return self._cells[rows]

    def put(self, ids: Array, codes: NDArray[np.uint8], *, fresh: bool = False) -> None:
        """Add rows; a row whose id is here already is replaced. `fresh` promises that none is."""
        if not fresh and self._live:
            rows = self.rows()
            self._bury([rows[key] for key in ids.tolist() if key in rows])
        self._append(ids, from_codes(codes))
        self._generation += 1

    def take(self, ids: Array) -> int:
        """Remove rows; ids that are not here are passed over. Returns how many went."""
        rows = self.rows()
        gone = [rows.pop(key) for key in ids.tolist() if key in rows]
        self._bury(gone)
        self._generation += 1
        if self._count - self._live > max(_LEAST_TAIL, self._count // 4):
            self._drop_dead()
        return len(gone)

    def best(self, scores: Array, n: int) -> Best:
        """The n records in the cells with the largest scores (k,)."""
        filled = np.flatnonzero(self.counts)
        value = scores[filled]
        if len(filled) > n:
            # Every filled cell holds a record, so the n best cells are enough; ties at the border
            # come along.
            least = np.partition(value, len(value) - n)[len(value) - n]
            filled, value = filled[value >= least], value[value >= least]
        ranked = filled[np.lexsort((_scrambled(filled.astype(np.uint64)), -value))]
        tail = self._sorted_tail()
        chosen: list[Array] = []
        cells: list[int] = []
        left = n
        for cell in ranked.tolist():
            rows = self._living(cell, tail, left)
            chosen.append(rows)
            cells += [cell] * len(rows)
            left -= len(rows)
            if left <= 0:
                break
        found = np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)
        at = np.array(cells, dtype=np.int64)
        return Best(self._ids[found], at, self.counts[at])

    def _living(self, cell: int, tail: _Sorted, n: int) -> Array:
        """Up to n rows of a cell that are still there."""
        rows, late = self._base.rows(cell), tail.rows(cell)
        step = max(64, 2 * n)
        kept: list[Array] = []
        found = 0
        for part in (rows, late):
            for start in range(0, len(part), step):
                alive = part[start : start + step]
                alive = alive[self._cells[alive] == cell][: n - found]
                kept.append(alive)
                found += len(alive)
                if found >= n:
                    return np.concatenate(kept)
        return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)

    def _sorted_tail(self) -> _Sorted:
        """Rows since the base was sorted; merged into it when they are many."""
        late = self._count - self._covered
        if late > max(_LEAST_TAIL, self._covered // 8):
            self._base, self._covered = (
                _Sorted.of(self._cells[: self._count], 0, self.k),
                self._count,
            )
        if self._tail is None or self._tail[0] != self._count:
            sorted_late = _Sorted.of(
                self._cells[self._covered : self._count], self._covered, self.k
            )
            self._tail = (self._count, sorted_late)
        return self._tail[1]

    def _append(self, ids: Array, cells: NDArray[np.uint32]) -> None:
        end = self._count + len(ids)
        if end > len(self._ids):
            capacity = max(end, len(self._ids) * 3 // 2, 64)
            grown_ids, grown_cells = (
                np.empty(capacity, dtype=self._ids.dtype),
                np.full(capacity, _DEAD),
            )
            grown_ids[: self._count], grown_cells[: self._count] = (
                self._ids[: self._count],
                self._cells[: self._count],
            )
            self._ids, self._cells = grown_ids, grown_cells
        self._ids[self._count : end] = ids
        self._cells[self._count : end] = cells
        if self._rows is not None:
            self._rows.update(zip(ids.tolist(), range(self._count, end), strict=True))
        self._count, self._live = end, self._live + len(ids)
        self.counts += np.bincount(cells, minlength=self.k)

    def _bury(self, rows: list[int]) -> None:
        if rows:
            at = np.array(rows, dtype=np.int64)
            self.counts -= np.bincount(self._cells[at], minlength=self.k)
            self._cells[at] = _DEAD
            self._live -= len(rows)

    def _drop_dead(self) -> None:
        alive = self._cells[: self._count] != _DEAD
        self._ids, self._cells = self._ids[: self._count][alive], self._cells[: self._count][alive]
        self._count, self._covered, self._rows, self._tail = len(self._ids), 0, None, None
        self._base = _Sorted.of(self._cells[:0], 0, self.k)


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """32 well-mixed bits of each number (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = numbers + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(32)
