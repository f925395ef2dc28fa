"""`MilvusCodebookIndex`: released cells on Milvus, searched by cell: a scalar filter in the place
of inverted lists.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks import Codebook, Reading
from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index.cell_lists import Best, from_codes
from blindsight.index.codebook import cells_of, hits_of
from blindsight.index.hits import Hits
from blindsight.index.milvus import _BATCH, _LARGEST_ANSWER, MilvusIndex

__all__ = ["MilvusCodebookIndex"]


class MilvusCodebookIndex(MilvusIndex):
    """The cells of `CodebookIndex` in a Milvus collection, with the same answers.

    Parameters are those of `MilvusIndex`. Every record's cell is a number that Milvus filters by,
    so that a search fetches the records of the best cells and nothing else. How many records each
    cell holds is read once, and again after this index has changed; where others write to the
    collection, open it anew.
    """

    _scalars: ClassVar[tuple[str, ...]] = ("cell",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        try:
            self.k = cells_of(self._header())
            known = {
                field["name"]
                for field in self._client.describe_collection(self.collection)["fields"]
            }
            if "cell" not in known:
                raise InvalidData(
                    f"the collection {self.collection!r} was filled without cells to filter by. "
                    "Fill another one."
                )
        except BaseException:
            self.close()
            raise
        self._counts: NDArray[np.int64] | None = None

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many records each cell holds (k,)."""
        if self._counts is None:
            found = np.zeros(self.k, dtype=np.int64)
            iterator = self._client.query_iterator(
                self.collection, batch_size=_BATCH, filter="", output_fields=["cell"]
            )
            try:
                while rows := iterator.next():
                    found += np.bincount([row["cell"] for row in rows], minlength=self.k)
            finally:
                iterator.close()
            self._counts = found
        return self._counts

    def reading(self, codebook: Codebook) -> Reading:
        """How to read the released cells as they stand."""
        if codebook.k != self.k:
            raise InvalidParameter(f"the codebook has {codebook.k} cells, the index {self.k}.")
        return codebook.reading(self.counts)

    def search_codebook(self, codebook: Codebook, similarity: NDArray[Any], k: int = 12) -> Hits:
        """The best k records for queries with these similarities (m, cells), best first; see
        `CodebookIndex`.
        """
        if checks.whole("k", k) > _LARGEST_ANSWER:
            raise InvalidParameter(
                f"Milvus returns at most {_LARGEST_ANSWER} hits a query, got k = {k}."
            )
        reading = self.reading(codebook)
        scores = reading.scores(similarity)
        found = [self._records(row, k) for row in scores]
        trust, calibrated = reading.shown_trust, codebook.calibrated
        return hits_of(found, scores, names=self.names, trust=trust, calibrated=calibrated)

    def _records(self, scores: NDArray[Any], k: int) -> Best:
        """The records of the best cells, as many as are wanted; of the last cell, some."""
        counts = self.counts
        order = np.argsort(-scores, kind="stable")
        order = order[counts[order] > 0]
        before = np.cumsum(counts[order]) - counts[order]
        order, before = order[before < k], before[before < k]
        rows = []
        if len(order) > 1:
            whole = ", ".join(str(cell) for cell in order[:-1].tolist())
            rows += self._those(f"cell in [{whole}]", k)
        if len(order):
            rows += self._those(f"cell == {int(order[-1])}", k - int(before[-1]))
        place = {cell: rank for rank, cell in enumerate(order.tolist())}
        # Within a cell an order that means nothing, and stays: that of the ids' digests.
        rows.sort(key=lambda row: (place[row["cell"]], _digest(row)))
        cells = np.array([row["cell"] for row in rows], dtype=np.int64)
        return Best(self._ids_of(rows), cells, counts[cells])

    def _those(self, condition: str, limit: int) -> list[dict[str, Any]]:
        fields = ["id", *self._fields("cell")]
        rows: list[dict[str, Any]] = self._client.query(
            self.collection,
            filter=condition,
            output_fields=list(dict.fromkeys(fields)),
            limit=limit,
        )
        return rows

    def _row(self, key: int | str, code: NDArray[np.uint8]) -> dict[str, Any]:
        return {**super()._row(key, code), "cell": int(from_codes(code[None])[0])}

    def _put(self, ids: NDArray[Any] | None, codes: NDArray[np.uint8]) -> NDArray[Any]:
        if len(codes) and int(from_codes(codes).max()) >= self.k:
            raise InvalidData(f"cells must lie in [0, {self.k}).")
        self._counts = None
        return super()._put(ids, codes)

    def _take(self, ids: NDArray[Any]) -> int:
        self._counts = None
        return super()._take(ids)


def _digest(row: dict[str, Any]) -> str:
    return (
        str(row["id"])
        if isinstance(row["id"], str)
        else hashlib.sha256(str(row["id"]).encode()).hexdigest()
    )
