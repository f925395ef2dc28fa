"""`MilvusIndex`: the same index on Milvus, for collections that outgrow one machine.

A URI like http://host:19530 is a cluster; a path ending in .db is Milvus Lite, embedded. Two
collections hold an index: NAME has the codes, NAME_about the header (length, guarantee, decoding).
The primary key of a name is its SHA-256, so that no name can be read as part of a filter
expression.

What Milvus does differently: a large `add` goes in batches, each acknowledged by Milvus but not all
at once; `search_soft` and `rank` re-rank the nearest `candidates` instead of scanning everything;
and at most 16,384 hits a query come from Milvus itself (a wider radius is scanned from here). A
Milvus Lite file is Milvus' own: do not open one from a stranger; exchange indexes with `save` and
`load`, which check every byte.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks import Codebook, Reading
from blindsight.core import checks
from blindsight.core.codes import MatchModel, from_codes, hamming, pack
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.index.base import CodeIndex, Hits, RawHits
from blindsight.index.cell_index import Best, cells_of, hits_of
from blindsight.index.hamming import best_rows
from blindsight.index.index_file import ADD, IndexHeader, decode_record, reading
from blindsight.privacy import Guarantee

__all__ = ["MilvusCodebookIndex", "MilvusIndex"]

_LARGEST_ANSWER = 16_384
_BATCH = 5_000
_TEXT = 60_000
_START_SECONDS = 120.0  # within which a Milvus Lite that was started must serve
_STAMP_SECONDS = 0.002  # more than the unit of Milvus Lite's time stamps
_ATTEMPT_SECONDS = 5.0  # after each, the state of its process is looked at
_lite_users: Counter[str] = Counter()  # how many open indexes of this process use a Milvus Lite
_lite_lock = threading.Lock()


class MilvusIndex(CodeIndex):
    """An index of codes in a Milvus collection: made if it is not there, opened if it is.

    Parameters:
        uri: a cluster's address, or a path ending in .db for the embedded Milvus Lite.
        n_bits: the length of a code; may be left out for a collection that exists, which keeps its
            own. The same holds for `names`, `guarantee` and `decoding`.
        names: whether records have names as ids, rather than numbers.
        guarantee: what is promised for each stored code; None for plain codes.
        decoding: how distances of flipped codes are read as probabilities; None for cells.
        collection: the collection's name (letters, digits, underscores).
        token: "user:password" or an API key, where the cluster asks for one.
        candidates: how many nearest codes a soft ranking re-ranks.

    Examples:
        >>> import tempfile
        >>> with MilvusIndex(f"{tempfile.mkdtemp()}/codes.db", n_bits=8) as index:
        ...     ids = index.add(np.array([[0b00000000], [0b11111111]], np.uint8))
        ...     hits = index.search(np.array([[0b00000001]], np.uint8), k=1)
        >>> int(hits[0][0].id), int(hits[0][0].distance)
        (0, 1)
    """

    # Whole numbers kept beside a code, to filter by.
    _scalars: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        uri: str | PathLike[str],
        n_bits: int | None = None,
        *,
        collection: str = "blindsight",
        names: bool = False,
        guarantee: Guarantee | None = None,
        decoding: MatchModel | None = None,
        token: str = "",
        candidates: int = 1000,
    ) -> None:
        if not collection.isidentifier() or not collection.isascii():
            raise InvalidParameter(
                f"collection must be letters, digits and underscores, got {collection!r}."
            )
        self.uri, self.collection = str(uri), collection
        self._lite = _is_lite(self.uri)
        self.candidates = checks.whole("candidates", candidates)
        self._closed = False
        self._client = _connect(self.uri, token)
        try:
            header = self._read_header()
            if header is None:
                if n_bits is None:
                    raise InvalidParameter(
                        f"there is no collection {collection!r} yet: give n_bits to make it."
                    )
                header = IndexHeader(
                    n_bits=n_bits, names=names, guarantee=guarantee, decoding=decoding
                )
            elif n_bits not in (None, header.n_bits):
                raise InvalidParameter(
                    f"the collection holds {header.n_bits}-bit codes, not {n_bits}."
                )
            super().__init__(
                header.n_bits,
                names=header.names,
                guarantee=header.guarantee,
                decoding=header.decoding,
            )
            self._make()
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        uri: str | PathLike[str],
        *,
        collection: str = "blindsight",
        token: str = "",
    ) -> Self:
        """Put a saved index file, checked before use, into a collection that must not exist yet."""
        with reading(Path(path)) as (fields, records):
            header = IndexHeader.from_fields(fields)
            index = cls(
                uri,
                header.n_bits,
                collection=collection,
                token=token,
                names=header.names,
                guarantee=header.guarantee,
                decoding=header.decoding,
            )
            try:
                if len(index):
                    raise InvalidData(
                        f"the collection {collection!r} is not empty. Choose another name."
                    )
                for record in records:
                    ids, codes = decode_record(record, names=header.names, n_bits=header.n_bits)
                    if record.kind == ADD and codes is not None:
                        index.add(codes, ids=ids)
                    else:
                        index.remove(ids)
            except BaseException:
                index.close()
                raise
        return index

    def __len__(self) -> int:
        if self._lite:
            # Milvus Lite's own count is wrong after an upsert in about one case of three: it counts
            # replaced rows twice, or not at all. The rows that it returns are right.
            return sum(len(rows) for rows in self._batches_of("id"))
        rows = self._client.query(self.collection, filter="", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def items(self) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
        """All ids and codes, in batches."""
        for rows in self._batches_of(*self._fields("code")):
            yield self._ids_of(rows), self._codes_of_rows(rows)

    def _batches_of(self, *fields: str) -> Iterator[list[dict[str, Any]]]:
        """These fields of all rows, in batches from Milvus' iterator."""
        iterator = self._client.query_iterator(
            self.collection, batch_size=_BATCH, filter="", output_fields=list(fields)
        )
        try:
            while rows := iterator.next():
                yield rows
        finally:
            iterator.close()

    def close(self) -> None:
        """Close the connection; the last index on a Milvus Lite file of this process ends it, so
        that another process can open the file.
        """
        if not self._closed:
            self._closed = True
            self._client.close()
            if self._lite:
                _release_lite(self.uri)

    def drop(self) -> None:
        """Delete the collection with all its codes."""
        self._client.drop_collection(self.collection)
        self._client.drop_collection(self._about)

    @property
    def _about(self) -> str:
        return f"{self.collection}_about"

    def _read_header(self) -> IndexHeader | None:
        if not self._client.has_collection(self._about):
            return None
        rows = self._client.query(self._about, filter="part >= 0", output_fields=["part", "text"])
        text = "".join(row["text"] for row in sorted(rows, key=lambda row: row["part"]))
        if not text and not self._client.has_collection(self.collection):
            return None  # interrupted while it was being made
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise HostileFile(
                f"the collection {self._about} does not describe an index."
            ) from error
        return IndexHeader.from_fields(fields)

    def _make(self) -> None:
        """Create what is missing, the description last: an index that is described is whole."""
        from pymilvus import DataType

        client = self._client
        if not client.has_collection(self.collection):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            if self.names:
                schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
                schema.add_field("name", DataType.VARCHAR, max_length=4 * 4096)
            else:
                schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * self.width)
            for name in self._scalars:
                schema.add_field(name, DataType.INT64)
            self._create(self.collection, schema, "code", self._scalars)
        if not client.has_collection(self._about):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("part", DataType.INT64, is_primary=True)
            schema.add_field("text", DataType.VARCHAR, max_length=65_535)
            schema.add_field(
                "unused", DataType.BINARY_VECTOR, dim=8
            )  # Milvus wants a vector in every collection
            self._create(self._about, schema, "unused")
            text = json.dumps(self._header().to_fields(), allow_nan=False)
            parts = [text[start : start + _TEXT] for start in range(0, len(text), _TEXT)]
            client.upsert(
                self._about,
                [
                    {"part": part, "text": piece, "unused": b"\0"}
                    for part, piece in enumerate(parts)
                ],
            )
            time.sleep(_STAMP_SECONDS)  # as in _wait_until_visible, for whoever opens it next

    def _create(self, name: str, schema: Any, vector: str, scalars: tuple[str, ...] = ()) -> None:
        params = self._client.prepare_index_params()
        params.add_index(vector, index_type="BIN_FLAT", metric_type="HAMMING")
        if not self._lite:  # Milvus Lite filters without
            for scalar in scalars:
                params.add_index(scalar, index_type="INVERTED")
        self._begin(name, schema)
        # Without sync, or the client sleeps half a second to see a finished index over nothing.
        self._client.create_index(name, params, sync=False)
        self._client.load_collection(name)

    def _begin(self, name: str, schema: Any) -> None:
        """An empty collection. On a busy machine Milvus Lite takes requests before its storage has
        begun.
        """
        over = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._client.create_collection(name, schema=schema, consistency_level="Strong")
                return
            except Exception as error:
                if "has not been init" not in str(error) or time.monotonic() >= over:
                    raise
            time.sleep(0.05)
            if self._client.has_collection(name):  # half of one
                self._client.drop_collection(name)

    def _put(self, ids: NDArray[Any] | None, codes: NDArray[np.uint8]) -> NDArray[Any]:
        if ids is None:
            first = self._largest_id() + 1
            ids = np.arange(first, first + len(codes), dtype=np.int64)
        for start in range(0, len(ids), _BATCH):
            part = slice(start, start + _BATCH)
            rows = [
                self._row(key, code)
                for key, code in zip(ids[part].tolist(), codes[part], strict=True)
            ]
            self._client.upsert(self.collection, rows)
            self._wait_until_visible(rows[-1]["id"], rows[-1]["code"])
        return ids

    def _take(self, ids: NDArray[Any]) -> int:
        there, _ = self._lookup(ids)
        for start in range(0, len(there), _BATCH):
            keys = [self._key(key)["id"] for key in there[start : start + _BATCH].tolist()]
            self._client.delete(self.collection, ids=keys)
            self._wait_until_visible(keys[-1], None)
        return len(there)

    def _wait_until_visible(self, key: int | str, code: bytes | None) -> None:
        """Wait until readers see a change: the code of this key, or, for None, its absence.

        Milvus Lite stamps writes and reads with milliseconds, and a reader does not see what was
        written within its own. All rows of one request have the same stamp.
        """
        if not self._lite:
            return
        deadline = time.monotonic() + _START_SECONDS
        while True:
            time.sleep(_STAMP_SECONDS)
            rows = self._client.get(self.collection, ids=[key], output_fields=["id", "code"])
            seen = self._codes_of_rows(rows).tobytes() if rows else None
            if seen == code:
                return
            if time.monotonic() >= deadline:
                raise InvalidData(
                    f"Milvus Lite did not show a change of {self.uri} within {_START_SECONDS:g} s. "
                    "Has somebody else changed the same record? Add the records again."
                )

    def _nearest(self, queries: NDArray[np.uint8], k: int) -> RawHits:
        if k > _LARGEST_ANSWER:
            raise InvalidParameter(
                f"Milvus returns at most {_LARGEST_ANSWER} hits a query, got k = {k}."
            )
        return self._found([row for batch in _batches(queries) for row in self._ask(batch, k, {})])

    def _within(self, queries: NDArray[np.uint8], radius: int) -> RawHits:
        # Milvus' radius is exclusive, its range_filter inclusive.
        params = {"radius": radius + 1, "range_filter": 0}
        answers = [
            row for batch in _batches(queries) for row in self._ask(batch, _LARGEST_ANSWER, params)
        ]
        for query, rows in enumerate(answers):
            if len(rows) == _LARGEST_ANSWER:
                answers[query] = self._scan(queries[query], radius)
        return self._found(answers)

    def _best(self, weights: NDArray[np.float32], k: int) -> tuple[RawHits, NDArray[np.float64]]:
        near = self._nearest(pack(weights > 0), min(max(k, self.candidates), _LARGEST_ANSWER))
        answers, scores = [], []
        for query, row in enumerate(weights):
            ids = near.ids[near.limits[query] : near.limits[query + 1]]
            stored, codes = self._lookup(ids)
            at, values = best_rows(codes, row, k)
            distances = (
                hamming(pack((row > 0)[None]), codes[at])[0] if len(at) else np.empty(0, np.int32)
            )
            answers.append(list(zip(stored[at].tolist(), distances.tolist(), strict=True)))
            scores.append(values)
        return self._found(answers), np.concatenate([np.empty(0), *scores])

    def _lookup(self, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        rows = []
        for start in range(0, len(ids), _BATCH):
            keys = [self._key(key)["id"] for key in ids[start : start + _BATCH].tolist()]
            rows += self._client.get(self.collection, ids=keys, output_fields=self._fields("code"))
        return self._ids_of(rows), self._codes_of_rows(rows)

    def _ask(
        self, queries: NDArray[np.uint8], limit: int, params: dict[str, int]
    ) -> list[list[tuple[int | str, int]]]:
        """(id, distance) rows of each query from Milvus, nearest first."""
        answer = self._client.search(
            self.collection,
            data=[query.tobytes() for query in queries],
            anns_field="code",
            limit=limit,
            search_params={"metric_type": "HAMMING", "params": params},
            output_fields=["name"] if self.names else [],
        )
        return [
            [
                (hit["entity"]["name"] if self.names else hit["id"], round(hit["distance"]))
                for hit in hits
            ]
            for hits in answer
        ]

    def _scan(self, query: NDArray[np.uint8], radius: int) -> list[tuple[int | str, int]]:
        """All codes within the radius by walking through the collection: for answers larger than
        Milvus gives.
        """
        hits: list[tuple[int | str, int]] = []
        for ids, codes in self.items():
            distances = hamming(query[None], codes)[0]
            near = np.flatnonzero(distances <= radius)
            hits += zip(ids[near].tolist(), distances[near].tolist(), strict=True)
        return sorted(hits, key=lambda row: row[1])

    def _found(self, answers: list[list[tuple[int | str, int]]]) -> RawHits:
        limits = np.concatenate([[0], np.cumsum([len(rows) for rows in answers])]).astype(np.int64)
        ids: NDArray[Any] = np.empty(int(limits[-1]), dtype=object if self.names else np.int64)
        ids[:] = [key for rows in answers for key, _ in rows]
        distances = np.array([distance for rows in answers for _, distance in rows], dtype=np.int32)
        return RawHits(ids, distances, limits)

    def _largest_id(self) -> int:
        largest = -1
        for ids, _ in self.items():
            largest = max(largest, int(ids.max()))
        return largest

    def _key(self, key: int | str) -> dict[str, Any]:
        if isinstance(key, str):
            return {"id": hashlib.sha256(key.encode()).hexdigest(), "name": key}
        return {"id": key}

    def _row(self, key: int | str, code: NDArray[np.uint8]) -> dict[str, Any]:
        return {**self._key(key), "code": code.tobytes()}

    def _fields(self, *others: str) -> list[str]:
        return ["name" if self.names else "id", *others]

    def _ids_of(self, rows: list[dict[str, Any]]) -> NDArray[Any]:
        ids: NDArray[Any] = np.empty(len(rows), dtype=object if self.names else np.int64)
        ids[:] = [row["name" if self.names else "id"] for row in rows]
        return ids

    def _codes_of_rows(self, rows: list[dict[str, Any]]) -> NDArray[np.uint8]:
        raw = b"".join(
            row["code"][0] if isinstance(row["code"], list) else row["code"] for row in rows
        )
        return np.frombuffer(raw, dtype=np.uint8).reshape(len(rows), self.width)

    def __repr__(self) -> str:
        return f"MilvusIndex({self.n_bits} bits, collection {self.collection!r})"


def _batches(queries: NDArray[np.uint8], size: int = 100) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(queries), size):
        yield queries[start : start + size]


def _is_lite(uri: str) -> bool:
    return uri.endswith(".db")


def _connect(uri: str, token: str) -> Any:
    with warnings.catch_warnings():
        # Milvus Lite imports pkg_resources, which says at every import that it is old.
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        pymilvus = checks.optional_module("pymilvus", extra="cluster")
        if _is_lite(uri):
            checks.optional_module("milvus_lite", extra="cluster")
            # It has no server's clock, of which the client warns at every search.
            logging.getLogger("pymilvus").setLevel(logging.ERROR)
            return _connect_lite(pymilvus, uri)
        try:
            return pymilvus.MilvusClient(uri, token=token, dedicated=True)
        except pymilvus.MilvusException as error:
            raise InvalidData(
                f"no Milvus answers at {uri}. Check the address and the token."
            ) from error


def _connect_lite(pymilvus: Any, uri: str) -> Any:
    """Start a Milvus Lite for the file unless this process runs one already, and wait until it
    answers: on a busy machine that takes longer than the ten seconds that the client allows.
    """
    from milvus_lite.server_manager import server_manager_instance as servers

    path = Path(uri).resolve()
    if not path.parent.is_dir():
        raise InvalidData(f"the folder {path.parent} does not exist. Create it first.")
    with _lite_lock:
        # Refused here, because Milvus Lite deletes the other process's lock when it fails.
        taken = str(path) not in servers._servers and _locked_elsewhere(path)
        address = None if taken else servers.start_and_get_uri(str(path))
        if address is None:
            raise InvalidData(
                f"Milvus Lite cannot open {uri}: another process has it open, or its folder cannot "
                "be written. Close the other process, or choose another file."
            )
        _lite_users[str(path)] += 1
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return pymilvus.MilvusClient(address, timeout=_ATTEMPT_SECONDS, dedicated=True)
        except pymilvus.MilvusException as error:
            code = servers._servers[str(path)]._p.poll()  # milvus-lite has no public way to ask
            if code is None and time.monotonic() < deadline:
                continue
            _release_lite(uri)
            if code is not None:
                raise InvalidData(
                    f"the Milvus Lite process of {uri} ended with exit code {code} before it "
                    "answered. What it printed on standard error says why."
                ) from error
            raise InvalidData(
                f"the Milvus Lite process of {uri} did not answer within {_START_SECONDS:g} s. "
                "Try again when the machine is less busy."
            ) from error
        except BaseException:
            _release_lite(uri)
            raise


def _locked_elsewhere(path: Path) -> bool:
    lock = path.with_name(f".{path.name}.lock")  # Milvus Lite's own
    if not lock.exists():
        return False
    import fcntl  # Milvus Lite runs nowhere without it

    with lock.open("ab") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _release_lite(uri: str) -> None:
    """End the file's Milvus Lite when no open index of this process uses it any more."""
    from milvus_lite.server_manager import server_manager_instance as servers

    path = str(Path(uri).resolve())
    with _lite_lock:
        _lite_users[path] -= 1
        if _lite_users[path] <= 0:
            del _lite_users[path]
            deadline = time.monotonic() + _START_SECONDS
            while True:
                try:
                    servers.release_server(path)
                    return
                except subprocess.TimeoutExpired:
                    # It gives a process that it killed three seconds, however busy the machine is.
                    if time.monotonic() >= deadline:
                        raise


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
            counts = np.zeros(self.k, dtype=np.int64)
            for rows in self._batches_of("cell"):
                counts += np.bincount([row["cell"] for row in rows], minlength=self.k)
            self._counts = counts
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
        best = [self._records(row, k) for row in scores]
        trust, calibrated = reading.shown_trust, codebook.calibrated
        return hits_of(best, scores, names=self.names, trust=trust, calibrated=calibrated)

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
        rank_of = {cell: rank for rank, cell in enumerate(order.tolist())}
        # Within a cell an order that means nothing, and stays: that of the ids' digests.
        rows.sort(key=lambda row: (rank_of[row["cell"]], _digest(row)))
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
