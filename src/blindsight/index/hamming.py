"""`HammingIndex`: codes in memory, searched by faiss, kept in an append-only file that survives a
crash.

`CodeArray` holds codes and their ids as rows of one contiguous array that faiss scans in place.
Readers take a `snapshot` and need no lock: rows that a snapshot covers are never written again
(appending writes past its end; replacing and removing work on a copy).

Exact scans over packed codes: nearest and within a radius by faiss' kernels, weighted bits by
byte tables.

faiss' counting kernel works on our own array, so an index needs no second copy of its codes; at 1
million 64-bit codes it is a fifth faster than the heap that `IndexBinaryFlat` uses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import durable
from blindsight.core.checks import core_module
from blindsight.core.codes import MatchModel, hamming, pack
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index.base import CodeIndex, RawHits
from blindsight.index.index_file import (
    HNSW,
    IVF,
    Flat,
    IndexHeader,
    Journal,
    Record,
    Structure,
    add_record,
    decode_record,
    fresh_file,
    reading,
    remove_record,
    snapshot_records,
)
from blindsight.privacy import Guarantee

__all__ = [
    "CodeArray",
    "HammingIndex",
    "Snapshot",
    "best_rows",
    "build_structure",
    "nearest_rows",
    "rows_within",
]

# The counting kernel keeps (bits + 1) * k row numbers per query; queries go in batches that stay
# near 64 MB.
_COUNTER_BYTES = 1 << 26
_SCAN_ROWS = 1 << 16
# faiss asks for 39 training points a centre; below that the exact scan is fast anyway.
_POINTS_PER_CELL = 39


def nearest_rows(
    queries: NDArray[np.uint8], codes: NDArray[np.uint8], k: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Distances and rows (q, k) of the k nearest codes, nearest first; k is at most the number of
    codes.
    """
    faiss: Any = core_module("faiss")  # late: it takes a quarter of a second
    step = max(1, _COUNTER_BYTES // (8 * k * (8 * codes.shape[1] + 1)))
    if len(queries) <= step:
        distances, rows = faiss.knn_hamming(queries, codes, k, variant="mc")
        return distances, rows
    parts = [
        faiss.knn_hamming(queries[start : start + step], codes, k, variant="mc")
        for start in range(0, len(queries), step)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def rows_within(
    queries: NDArray[np.uint8], codes: NDArray[np.uint8], radius: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Distances, rows and limits (q + 1,) of all codes within the radius, nearest first in each
    query.
    """
    faiss: Any = core_module("faiss")  # late: it takes a quarter of a second
    result = faiss.RangeSearchResult(len(queries))
    # faiss' radius is exclusive.
    faiss.hamming_range_search(
        faiss.swig_ptr(queries),
        faiss.swig_ptr(codes),
        len(queries),
        len(codes),
        radius + 1,
        codes.shape[1],
        result,
    )
    limits = faiss.rev_swig_ptr(result.lims, len(queries) + 1).astype(np.int64)
    total = int(limits[-1])
    distances = (
        faiss.rev_swig_ptr(result.distances, total).astype(np.int32)
        if total
        else np.empty(0, np.int32)
    )
    rows = (
        faiss.rev_swig_ptr(result.labels, total).astype(np.int64)
        if total
        else np.empty(0, np.int64)
    )
    query = np.repeat(np.arange(len(queries)), np.diff(limits))
    order = np.lexsort((rows, distances, query))
    return distances[order], rows[order], limits


def best_rows(
    codes: NDArray[np.uint8], weights: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows and scores of the k codes with the largest weighted sum of signs, best first, earlier
    rows first in ties.
    """
    scores = weighted_sums(codes, weights)
    k = min(k, len(scores))
    rows = _largest(scores, k) if k < len(scores) else np.arange(len(scores))
    rows = rows[np.lexsort((rows, -scores[rows]))]
    return rows, scores[rows].astype(np.float64)


def weighted_sums(codes: NDArray[np.uint8], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum over bits of w_j s_j for every code, a table look-up a byte: 256 sums serve all codes."""
    tables = _byte_tables(weights, codes.shape[1])
    scores = np.zeros(len(codes), dtype=np.float32)
    for start in range(0, len(codes), _SCAN_ROWS):
        block, part = codes[start : start + _SCAN_ROWS], scores[start : start + _SCAN_ROWS]
        for byte, table in enumerate(tables):
            part += table[block[:, byte]]
    return scores


def _byte_tables(weights: NDArray[np.float32], width: int) -> Any:
    """T[b, v] = the weighted signs of byte b when it has value v; padding bits have weight 0."""
    padded = np.zeros(8 * width, dtype=np.float32)
    padded[: len(weights)] = weights
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return padded.reshape(width, 8) @ (2.0 * bits.T - 1).astype(np.float32)


def _largest(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the positions of the k largest scores in order; among ties for the last, the earlier
    ones.
    """
    cut = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > cut)
    level = np.flatnonzero(scores == cut)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))


def build_structure(structure: Structure, codes: NDArray[np.uint8]) -> Any | None:
    """Build a faiss index over the codes; return None where the exact scan is used (flat, or too
    few codes to train).
    """
    faiss: Any = core_module("faiss")
    n_bits = 8 * codes.shape[1]
    if isinstance(structure, IVF):
        if len(codes) < _POINTS_PER_CELL * structure.cells:
            return None
        quantizer = faiss.IndexBinaryFlat(n_bits)
        index = faiss.IndexBinaryIVF(quantizer, n_bits, structure.cells)
        index.own_fields = True
        quantizer.this.disown()
        index.nprobe = min(structure.probes, structure.cells)
        index.train(codes[:: max(1, len(codes) // (256 * structure.cells))])
        index.add(codes)
        return index
    if isinstance(structure, HNSW) and len(codes):
        index = faiss.IndexBinaryHNSW(n_bits, structure.links)
        index.hnsw.efSearch = structure.effort
        index.add(codes)
        return index
    return None


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
        # The present state, safe to read while others write.
        self.snapshot = Snapshot(self._ids, self._codes, 0)

    def __len__(self) -> int:
        return self._count

    def rows(self) -> dict[int | str, int]:
        """The row of each id."""
        if self._rows is None:
            self._rows = dict(
                zip(self._ids[: self._count].tolist(), range(self._count), strict=True)
            )
        return self._rows

    def put(self, ids: NDArray[Any], codes: NDArray[np.uint8], *, fresh: bool = False) -> None:
        """Add rows; a row whose id is stored already is replaced. `fresh` states that no id is."""
        if not fresh and self._count:
            rows = self.rows()
            at = np.array([rows.get(key, -1) for key in ids.tolist()], dtype=np.int64)
            known = at >= 0
            if known.any():
                self._own()
                self._codes[at[known]] = codes[known]
                ids, codes = ids[~known], codes[~known]
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
        self._publish()

    def take(self, ids: NDArray[Any]) -> int:
        """Remove rows and return how many there were; unknown ids are ignored."""
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

    def replace_all(self, ids: NDArray[Any], codes: NDArray[np.uint8]) -> None:
        """Replace all rows by these."""
        self._ids, self._codes, self._count, self._rows = ids, codes, len(ids), None
        self._generation += 1
        self._publish()

    def _own(self) -> None:
        """Continue on a copy, because snapshots hold the present arrays."""
        self._ids, self._codes = self._ids.copy(), self._codes.copy()
        self._generation += 1

    def _publish(self) -> None:
        self.snapshot = Snapshot(
            self._ids[: self._count], self._codes[: self._count], self._generation
        )


class HammingIndex(CodeIndex):
    """An embedded index of codes on faiss. `HammingIndex(64)` lives in memory, `create` and `open`
    on disk.

    Parameters:
        n_bits: the length of a code; codes come packed, as `blindsight.core.codes.pack` makes them.
        names: whether ids are names (text) rather than 64-bit integers.
        guarantee: what was promised when the codes were released; None for plain codes.
        decoding: how released codes are read as probabilities of a match; None for plain codes.
        structure: `Flat()` (exact, the default), `IVF(cells, probes)` or `HNSW(links, effort)`.

    Examples:
        >>> from blindsight.core.codes import pack
        >>> index = HammingIndex(4)
        >>> index.add(pack([[0, 0, 0, 0], [1, 1, 1, 0]]), ids=[7, 9]).tolist()
        [7, 9]
        >>> index.search(pack([[1, 1, 1, 1]]), k=1)[0][0].id
        9

    On disk every `add` and `remove` is on the drive (fsync) before it returns; after kill -9 the
    index holds what was acknowledged. Searches may run in other threads while one thread writes.
    One process writes at a time.
    """

    def __init__(
        self,
        n_bits: int,
        *,
        names: bool = False,
        structure: Structure | None = None,
        guarantee: Guarantee | None = None,
        decoding: MatchModel | None = None,
    ) -> None:
        super().__init__(n_bits, names=names, guarantee=guarantee, decoding=decoding)
        self.structure = Flat() if structure is None else structure
        if not isinstance(self.structure, (Flat, IVF, HNSW)):
            raise InvalidParameter(f"structure must be Flat(), IVF() or HNSW(), got {structure!r}.")
        self._codes_array = CodeArray(self.width, names=self.names)
        self._journal: Journal | None = None
        self._closed = False
        self._next_id = 0
        self._writing = threading.RLock()
        self._building = threading.Lock()
        # (generation, rows, faiss index) of an approximate structure
        self._built: tuple[int, int, Any] | None = None

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        n_bits: int,
        *,
        names: bool = False,
        structure: Structure | None = None,
        guarantee: Guarantee | None = None,
        decoding: MatchModel | None = None,
    ) -> Self:
        """A new durable index in a file that must not exist yet."""
        index = cls(
            n_bits, names=names, structure=structure, guarantee=guarantee, decoding=decoding
        )
        fresh_file(Path(path), index._header().to_fields(), iter(()), replace=False)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """A durable index from its file, for reading and writing.

        A piece that a crash left is cut off.
        """
        journal = Journal(Path(path))
        try:
            index = cls._from_header(IndexHeader.from_fields(journal.header))
            index._replay(journal.replay())
        except BaseException:
            journal.close()
            raise
        index._journal = journal
        return index

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """A copy of a file's index in memory; the file is only read, and checked before use."""
        with reading(Path(path)) as (fields, records):
            index = cls._from_header(IndexHeader.from_fields(fields))
            index._replay(records)
        return index

    @classmethod
    def _from_header(cls, header: IndexHeader) -> Self:
        return cls(
            header.n_bits,
            names=header.names,
            structure=header.structure,
            guarantee=header.guarantee,
            decoding=header.decoding,
        )

    @property
    def path(self) -> Path | None:
        """The file of a durable index, or None."""
        return None if self._journal is None else self._journal.path

    @property
    def ids(self) -> NDArray[Any]:
        """All ids: (n,) int64, or names as an object array."""
        return self._codes_array.snapshot.ids.copy()

    def __len__(self) -> int:
        return len(self._codes_array.snapshot.ids)

    def items(self) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
        """All ids and codes as they stood when the walk began."""
        snapshot = self._codes_array.snapshot
        if len(snapshot.ids):
            yield snapshot.ids, snapshot.codes

    def compact(self, *, without: Iterable[Any] = ()) -> None:
        """Put the codes in the order of their ids, and rewrite the file with the present ones only:
        what was removed or replaced leaves the disk, too.

        `without` are ids to remove in the same step: a crash leaves them in or out, never out and
        still on the disk.
        """
        with self._writing:
            self._check_open()
            # In the order of their ids: where a code stands says nothing of when it came.
            snapshot, gone = self._codes_array.snapshot, set(without)
            order = np.argsort(snapshot.ids, kind="stable")
            order = order[[key not in gone for key in snapshot.ids[order].tolist()]]
            if self._journal is None:
                self._codes_array.replace_all(snapshot.ids[order], snapshot.codes[order])
                return
            path = self._journal.path
            aside = path.with_name(f".{path.name}.compact")
            records = snapshot_records(snapshot.ids[order], snapshot.codes[order])
            fresh_file(aside, self._header().to_fields(), records, replace=True)
            compacted = Journal(
                aside
            )  # locked before it takes the name: no other writer can slip in
            try:
                for _ in compacted.replay():
                    pass
                compacted.take_place_of(self._journal)
            except BaseException:
                if compacted.path != path:
                    compacted.close()
                    durable.remove(aside)
                    raise
                # It took the name, only the folder could not be flushed: appending to the old file
                # would be lost.
                self._take_over(compacted, gone)
                raise
            self._take_over(compacted, gone)

    def _take_over(self, compacted: Journal, gone: set[Any]) -> None:
        """Continue with the compacted file and close the old one, which has no name any more."""
        self._journal, old = compacted, self._journal
        if old is not None:
            old.close()
        self._codes_array.take(np.array(sorted(gone), dtype=self._codes_array.snapshot.ids.dtype))

    def close(self) -> None:
        """Close the file. A closed index can still be searched, but not changed."""
        with self._writing:
            if self._journal is not None:
                self._journal.close()
                self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidData("this index is closed. Open it again to change it.")

    def _replay(self, records: Iterator[Record]) -> None:
        for record in records:
            ids, codes = decode_record(record, names=self.names, n_bits=self.n_bits)
            if codes is None:
                self._codes_array.take(ids)
            else:
                self._keep(ids, codes)

    def _keep(self, ids: NDArray[Any], codes: NDArray[np.uint8]) -> None:
        """Store codes in memory; integer ids above all earlier ones are known to be new without a
        look-up.
        """
        fresh = False
        if not self.names and len(ids):
            fresh = int(ids.min()) >= self._next_id
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        self._codes_array.put(ids, codes, fresh=fresh)

    def _put(self, ids: NDArray[Any] | None, codes: NDArray[np.uint8]) -> NDArray[Any]:
        with self._writing:
            self._check_open()
            if ids is None:
                if self._next_id + len(codes) > np.iinfo(np.int64).max:
                    raise InvalidData("there are no larger ids left to count on to. Give ids.")
                ids = np.arange(self._next_id, self._next_id + len(codes), dtype=np.int64)
            if len(ids):
                if self._journal is not None:
                    self._journal.append(*add_record(ids, codes))
                self._keep(ids, codes)
            return ids

    def _take(self, ids: NDArray[Any]) -> int:
        with self._writing:
            self._check_open()
            rows = self._codes_array.rows()
            known = np.array([key in rows for key in ids.tolist()], dtype=bool)
            if not known.any():
                return 0
            if self._journal is not None:
                self._journal.append(*remove_record(ids[known]))
            return self._codes_array.take(ids[known])

    def _nearest(self, queries: NDArray[np.uint8], k: int) -> RawHits:
        snapshot = self._codes_array.snapshot
        k = min(k, len(snapshot.ids))
        if not k or not len(queries):
            return self._nothing(len(queries))
        if not isinstance(self.structure, Flat):
            approximate = self._approximate(queries, k)
            if approximate is not None:
                return approximate
        distances, rows = nearest_rows(queries, snapshot.codes, k)
        limits = np.arange(0, k * len(queries) + 1, k, dtype=np.int64)
        return RawHits(snapshot.ids[rows.ravel()], distances.ravel(), limits)

    def _approximate(self, queries: NDArray[np.uint8], k: int) -> RawHits | None:
        """Search by IVF or HNSW, one search at a time (faiss must not add while it searches); None
        with too few codes.
        """
        with self._building:
            engine = self._engine()
            if engine is None:
                return None
            built, snapshot = engine
            distances, rows = built.search(queries, min(k, len(snapshot.ids)))
        valid = rows >= 0  # it may find fewer than k
        limits = np.concatenate([[0], np.cumsum(valid.sum(axis=1))]).astype(np.int64)
        return RawHits(snapshot.ids[rows[valid]], distances[valid].astype(np.int32), limits)

    def _within(self, queries: NDArray[np.uint8], radius: int) -> RawHits:
        snapshot = self._codes_array.snapshot
        if not len(queries) or not len(snapshot.ids):
            return self._nothing(len(queries))
        distances, rows, limits = rows_within(queries, snapshot.codes, radius)
        return RawHits(snapshot.ids[rows], distances, limits)

    def _best(self, weights: NDArray[np.float32], k: int) -> tuple[RawHits, NDArray[np.float64]]:
        snapshot = self._codes_array.snapshot
        k = min(k, len(snapshot.ids))
        if not k or not len(weights):
            return self._nothing(len(weights)), np.empty(0)
        ranked = [best_rows(snapshot.codes, row, k) for row in weights]
        signs = pack(weights > 0)
        distances = [
            hamming(signs[i : i + 1], snapshot.codes[rows])[0] for i, (rows, _) in enumerate(ranked)
        ]
        rows = np.concatenate([rows for rows, _ in ranked])
        limits = np.arange(0, k * len(weights) + 1, k, dtype=np.int64)
        scores = np.concatenate([scores for _, scores in ranked])
        return RawHits(snapshot.ids[rows], np.concatenate(distances), limits), scores

    def _lookup(self, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        with self._writing:
            rows = self._codes_array.rows()
            at = np.array([rows[key] for key in ids.tolist() if key in rows], dtype=np.int64)
            snapshot = self._codes_array.snapshot
            return snapshot.ids[at], snapshot.codes[at]

    def _engine(self) -> tuple[Any, Snapshot] | None:
        """The approximate faiss index and the snapshot it covers, brought up to date; None for an
        exact scan.
        """
        snapshot = self._codes_array.snapshot
        if self._built is not None and self._built[0] == snapshot.generation:
            _, rows, built = self._built
            if len(snapshot.ids) > rows:
                built.add(snapshot.codes[rows:])
        else:
            built = build_structure(self.structure, snapshot.codes)
        if built is None:
            return None
        self._built = (snapshot.generation, len(snapshot.ids), built)
        return built, snapshot

    def _nothing(self, queries: int) -> RawHits:
        ids: NDArray[Any] = np.empty(0, dtype=object if self.names else np.int64)
        return RawHits(ids, np.empty(0, np.int32), np.zeros(queries + 1, dtype=np.int64))

    def __repr__(self) -> str:
        where = "in memory" if self._journal is None else self._journal.path.name
        return f"HammingIndex({self.n_bits} bits, {len(self)} codes, {where})"
