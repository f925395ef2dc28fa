"""`CodebookIndex`: released cells under ids, searched by cell; the same file as other indexes, and
as crash-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks import Codebook, Reading
from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.index.cell_lists import Best, CellLists, cell_bits, from_codes, to_codes
from blindsight.index.hamming import HammingIndex
from blindsight.index.header import Header
from blindsight.index.hits import Hits
from blindsight.index.journal import fresh_file
from blindsight.privacy import Guarantee

__all__ = ["CodebookIndex", "cells_of", "hits_of"]


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
        self._shelf = self._lists  # type: ignore[assignment]  # the same methods
        # (generation, codebook, how to read the index): computed again when the index has changed
        self._read: tuple[int, Codebook, Reading] | None = None

    @classmethod
    def create(cls, path: str | PathLike[str], k: int, **facts: Any) -> CodebookIndex:  # type: ignore[override]
        """A new durable index of cells in a file that must not exist yet."""
        index = cls(k, **facts)
        fresh_file(Path(path), index._header().to_fields(), iter(()), replace=False)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> CodebookIndex:
        """A durable index from its file, for reading and writing."""
        return super().open(path)  # type: ignore[return-value]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> CodebookIndex:
        """A copy of a file's index in memory; the file is only read, and checked before use."""
        return super().load(path)  # type: ignore[return-value]

    @classmethod
    def _from_header(cls, header: Header) -> CodebookIndex:
        return cls(cells_of(header), names=header.names, guarantee=header.guarantee)

    @property
    def ids(self) -> NDArray[Any]:
        """All ids: (n,) int64, or names as an object array."""
        return self._lists.snapshot.ids

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
        """How to read the released cells as they stand."""
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
        found = [self._lists.best(row, checks.whole("k", k)) for row in values]
        return hits_of(found, values, names=self.names, trust=trust, calibrated=calibrated)

    def items(self) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
        """All ids and codes as they stood when the walk began."""
        snapshot = self._lists.snapshot
        if len(snapshot.ids):
            yield snapshot.ids, snapshot.codes

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
            kept: NDArray[Any] = np.empty(len(known), dtype=object if self.names else np.int64)
            kept[:] = known
            return kept, to_codes(self._lists.cells_at(at), self.k)

    def __repr__(self) -> str:
        where = "in memory" if self._journal is None else self._journal.path.name
        return f"CodebookIndex({self.k} cells, {len(self)} records, {where})"


def hits_of(
    found: list[Best],
    scores: NDArray[Any],
    *,
    names: bool,
    trust: NDArray[Any] | None,
    calibrated: bool,
) -> Hits:
    """The records of the best cells, for queries with these scores (m, cells)."""
    limits = np.concatenate([[0], np.cumsum([len(one.ids) for one in found])]).astype(np.int64)
    at = np.concatenate([np.empty(0, dtype=np.int64), *(one.cells for one in found)])
    ranked_by = scores[np.repeat(np.arange(len(found)), np.diff(limits)), at]
    empty: NDArray[Any] = np.empty(0, dtype=object if names else np.int64)
    return Hits(
        np.concatenate([empty, *(one.ids for one in found)]),
        None,
        ranked_by if calibrated else None,
        ranked_by,
        limits,
        cells=at,
        trust=None if trust is None else np.asarray(trust)[at],
        tied=np.concatenate([np.empty(0, dtype=np.int64), *(one.tied for one in found)]),
    )


def cells_of(header: Header) -> int:
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
