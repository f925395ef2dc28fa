"""`CodebookIndex`: released cells under ids, kept in inverted lists and searched by cell.

The index uses the same file as `HammingIndex` and survives a crash in the same way. In memory:

    cells   the released cell of every row, 4 bytes; a removed or replaced row is marked as dead
    order   rows sorted by cell, within a cell in a fixed random order; rows that were added later
            are sorted separately until there are enough of them to merge

Nothing is copied when a record is added, replaced or removed; dead rows are dropped when they are a
quarter of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks import Codebook, Reading
from blindsight.core import checks
from blindsight.core.codes import cell_bits, from_codes, scrambled, to_codes
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.index.base import Hits
from blindsight.index.hamming import HammingIndex, Snapshot
from blindsight.index.index_file import IndexHeader, fresh_file
from blindsight.privacy import Guarantee

__all__ = [
    "Best",
    "CellLists",
    "CodebookIndex",
    "cells_of",
    "hits_of",
]

_DEAD = np.uint32(0xFFFFFFFF)
_LEAST_TAIL = 4096
Array = NDArray[Any]


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
        keys = (cells.astype(np.uint64) << np.uint64(32)) | scrambled(rows)
        order = np.argsort(keys).astype(np.int32)
        # The dead sort behind all cells.
        starts = np.searchsorted(cells[order], np.arange(k + 1, dtype=np.uint32)).astype(np.int64)
        return cls(order + np.int32(first), starts)

    def rows(self, cell: int) -> NDArray[np.int32]:
        return self.order[self.starts[cell] : self.starts[cell + 1]]


class CellLists:
    """Ids and cells of an index, with the methods of `CodeArray` and `best`."""

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
        """A number that changes whenever the lists do."""
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
        """Add rows; a row whose id is stored already is replaced. `fresh` states that no id is."""
        if not fresh and self._live:
            rows = self.rows()
            self._bury([rows[key] for key in ids.tolist() if key in rows])
        self._append(ids, from_codes(codes))
        self._generation += 1

    def take(self, ids: Array) -> int:
        """Remove rows and return how many there were; unknown ids are ignored."""
        rows = self.rows()
        gone = [rows.pop(key) for key in ids.tolist() if key in rows]
        self._bury(gone)
        self._generation += 1
        if self._count - self._live > max(_LEAST_TAIL, self._count // 4):
            self._drop_dead()
        return len(gone)

    def replace_all(self, ids: Array, codes: NDArray[np.uint8]) -> None:
        """Replace all rows by these."""
        self._bury(list(self.rows().values()))
        self._drop_dead()
        self.put(ids, codes, fresh=True)

    def best(self, scores: Array, n: int) -> Best:
        """The n records in the cells with the largest scores (k,)."""
        filled = np.flatnonzero(self.counts)
        value = scores[filled]
        if len(filled) > n:
            # Every filled cell holds a record, so the n best cells are enough; ties at the border
            # come along.
            least = np.partition(value, len(value) - n)[len(value) - n]
            filled, value = filled[value >= least], value[value >= least]
        ranked = filled[np.lexsort((scrambled(filled.astype(np.uint64)), -value))]
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
        rows = np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)
        at = np.array(cells, dtype=np.int64)
        return Best(self._ids[rows], at, self.counts[at])

    def _living(self, cell: int, tail: _Sorted, n: int) -> Array:
        """Return up to n rows of a cell that were not removed."""
        rows, late = self._base.rows(cell), tail.rows(cell)
        step = max(64, 2 * n)
        parts: list[Array] = []
        count = 0
        for part in (rows, late):
            for start in range(0, len(part), step):
                alive = part[start : start + step]
                alive = alive[self._cells[alive] == cell][: n - count]
                parts.append(alive)
                count += len(alive)
                if count >= n:
                    return np.concatenate(parts)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

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


class CodebookIndex(HammingIndex):
    """An index of released cells: a query ranks cells, and the records of the best cells are its
    hits.

    Parameters:
        k: how many cells.
        names: see `CodeIndex`.
        guarantee: see `CodeIndex`.

    A search reads the lists of the best cells and nothing else, so its time hardly depends on the
    number of records: a few milliseconds at ten million. Adding and removing copy nothing large.
    """

    def __init__(self, k: int, *, names: bool = False, guarantee: Guarantee | None = None) -> None:
        super().__init__(cell_bits(checks.whole("k", k, least=2)), names=names, guarantee=guarantee)
        self.k = k
        self._lists = CellLists(k, names=self.names)
        self._codes_array = self._lists  # type: ignore[assignment]  # the same methods
        # (generation, codebook, how to read the index): computed again when the index has changed
        self._read: tuple[int, Codebook, Reading] | None = None

    @classmethod
    def create(cls, path: str | PathLike[str], k: int, **facts: Any) -> Self:  # type: ignore[override]
        """A new durable index of cells in a file that must not exist yet."""
        index = cls(k, **facts)
        fresh_file(Path(path), index._header().to_fields(), iter(()), replace=False)
        return cls.open(path)

    @classmethod
    def _from_header(cls, header: IndexHeader) -> Self:
        return cls(cells_of(header), names=header.names, guarantee=header.guarantee)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many records each cell holds (k,)."""
        return self._lists.counts.copy()

    def __len__(self) -> int:
        return len(self._lists)

    def add_cells(self, cells: Any, ids: Any = None) -> NDArray[Any]:
        """Put released cells (n,) in; see `add`."""
        return self.add(to_codes(np.asarray(cells), self.k), ids)

    def cells_of(self, ids: Any) -> NDArray[np.int64]:
        """The released cells of these ids, in their order; an unknown id is refused."""
        return from_codes(self.codes_of(ids)).astype(np.int64)

    def search_codebook(self, codebook: Codebook, similarity: NDArray[Any], k: int = 12) -> Hits:
        """The best k records for queries with these similarities (m, cells), best first.

        Hits have a probability of relevance only where a labelled public folder calibrated the
        codebook; `trust` is how likely the stored cell is the true one, where the budget lets tell,
        and `tied` how many records share it.
        """
        if codebook.k != self.k:
            raise InvalidParameter(f"the codebook has {codebook.k} cells, the index {self.k}.")
        reading = self.reading(codebook)
        scores, trust = reading.scores(similarity), reading.shown_trust
        return self.best(scores, k, trust=trust, calibrated=codebook.calibrated)

    def reading(self, codebook: Codebook) -> Reading:
        """Return how to read the released cells that are stored now."""
        generation = self._lists.snapshot_number
        if self._read is None or self._read[0] != generation or self._read[1] is not codebook:
            self._read = (generation, codebook, codebook.reading(self._lists.counts))
        return self._read[2]

    def best(
        self,
        scores: NDArray[Any],
        k: int = 12,
        *,
        trust: NDArray[Any] | None = None,
        calibrated: bool = False,
    ) -> Hits:
        """The records in the cells with the largest scores (m, cells)."""
        values = np.asarray(scores)
        if values.ndim != 2 or values.shape[1] != self.k:
            raise InvalidData(f"scores must have shape (m, {self.k}), got {values.shape}.")
        best = [self._lists.best(row, checks.whole("k", k)) for row in values]
        return hits_of(best, values, names=self.names, trust=trust, calibrated=calibrated)

    def search(self, codes: Any, k: int = 10, *, min_probability: float | None = None) -> Hits:
        """Refused: cells are numbers, and the distance of their bits means nothing."""
        raise InvalidParameter("cells have no Hamming distance. Use search_codebook.")

    def within(self, codes: Any, radius: int, *, min_probability: float | None = None) -> Hits:
        """Refused: cells are numbers, and the distance of their bits means nothing."""
        raise InvalidParameter(
            "cells have no Hamming distance, so there is no radius. Ask for the best k instead."
        )

    def _keep(self, ids: NDArray[Any], codes: NDArray[np.uint8]) -> None:
        if len(codes) and int(from_codes(codes).max()) >= self.k:
            raise HostileFile(
                f"a record names a cell past the {self.k} there are. Restore the index from a copy."
            )
        super()._keep(ids, codes)

    def _put(self, ids: NDArray[Any] | None, codes: NDArray[np.uint8]) -> NDArray[Any]:
        if len(codes) and int(from_codes(codes).max()) >= self.k:
            raise InvalidData(f"cells must lie in [0, {self.k}).")
        return super()._put(ids, codes)

    def _lookup(self, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        with self._writing:
            rows = self._lists.rows()
            known = [key for key in ids.tolist() if key in rows]
            at = np.array([rows[key] for key in known], dtype=np.int64)
            stored: NDArray[Any] = np.empty(len(known), dtype=object if self.names else np.int64)
            stored[:] = known
            return stored, to_codes(self._lists.cells_at(at), self.k)

    def __repr__(self) -> str:
        where = "in memory" if self._journal is None else self._journal.path.name
        return f"CodebookIndex({self.k} cells, {len(self)} records, {where})"


def hits_of(
    best: list[Best],
    scores: NDArray[Any],
    *,
    names: bool,
    trust: NDArray[Any] | None,
    calibrated: bool,
) -> Hits:
    """The records of the best cells, for queries with these scores (m, cells)."""
    limits = np.concatenate([[0], np.cumsum([len(query_hits.ids) for query_hits in best])]).astype(
        np.int64
    )
    at = np.concatenate([np.empty(0, dtype=np.int64), *(query_hits.cells for query_hits in best)])
    ranked_by = scores[np.repeat(np.arange(len(best)), np.diff(limits)), at]
    empty: NDArray[Any] = np.empty(0, dtype=object if names else np.int64)
    return Hits(
        np.concatenate([empty, *(query_hits.ids for query_hits in best)]),
        None,
        ranked_by if calibrated else None,
        ranked_by,
        limits,
        cells=at,
        trust=None if trust is None else np.asarray(trust)[at],
        tied=np.concatenate(
            [np.empty(0, dtype=np.int64), *(query_hits.tied for query_hits in best)]
        ),
    )


def cells_of(header: IndexHeader) -> int:
    """k as the guarantee's mechanism has it; without a guarantee, all that the bits can say."""
    releases = () if header.guarantee is None else header.guarantee.releases
    k = next(
        (item.mechanism.k for item in releases if hasattr(item.mechanism, "k")), 1 << header.n_bits
    )
    if cell_bits(k) != header.n_bits:
        raise HostileFile(
            f"the index has codes of {header.n_bits} bits, which do not fit {k} cells."
        )
    return int(k)
