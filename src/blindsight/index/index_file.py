"""The file of an index: a checked header, then an append-only run of checksummed records.

A record is acknowledged when `append` returns, and by then it is on the disk (fsync). After a crash
in the middle of an append the file ends in a piece of a record; the piece is dropped on the next
open, so the index holds exactly what was acknowledged (at most one more record: written whole, but
the process died before it could say so). Anything else that does not fit (a wrong checksum, a
length past the limits, a header that is not ours) is `HostileFile`: nothing of such a file is used,
and none of its bytes reach a native library unchecked.

    file    MAGIC, u32 header length, sha256 of the header, header (JSON)
    record  u8 kind, 3 zero bytes, u32 count, u64 length, u32 crc of these; payload; sha256 trailer

The trailer hashes the previous trailer too: a record that was cut out, doubled or moved breaks the
chain.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable
from blindsight.core.codes import MatchModel, check_codes, n_bytes
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.privacy import Guarantee

__all__ = [
    "ADD",
    "HNSW",
    "IVF",
    "REMOVE",
    "Flat",
    "IndexHeader",
    "Journal",
    "Record",
    "Structure",
    "add_record",
    "check_ids",
    "decode_record",
    "fresh_file",
    "is_index",
    "reading",
    "remove_record",
    "snapshot_records",
]

MAGIC = b"BSIGHTIX\x01\x00\x00\x00"
ADD, REMOVE = 1, 2
_HEAD = struct.Struct("<B3xIQ")
_HEAD_BYTES = _HEAD.size + 4
_DIGEST = 32
_MAX_HEADER = 1 << 20
# One record is read at once; larger batches are split on writing.
MAX_PAYLOAD = 1 << 28


class Record(NamedTuple):
    """One acknowledged change: what kind, how many entries, and their bytes."""

    kind: int
    entries: int
    payload: bytes


class Journal:
    """A durable index file open for appending. One writer at a time: a second one is refused."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = durable.DurableFile(path, lock=True)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise _missing(path) from error
        try:
            with _existing(path) as file:
                self.header, self._chain = _read_header(file)
                self._start = file.tell()
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        return self._file.path

    def take_place_of(self, old: Journal) -> None:
        """Take the other file's name, in its place; the lock stays held all the while."""
        self._file.move_to(old.path, over=old._file)

    def replay(self) -> Iterator[Record]:
        """All acknowledged records in order; afterwards a torn tail is cut off and the file is
        ready to append.
        """
        with _existing(self.path) as file:
            file.seek(self._start)
            end = self._start
            for record, chain, position in _records(file, self._chain, self.path.name):
                self._chain, end = chain, position
                yield record
        self._file.cut(end)

    def append(self, kind: int, count: int, payload: bytes) -> None:
        """Write one record and return when it is on the disk.

        A failed write leaves the file as it was.
        """
        record, chain = _encode(kind, count, payload, self._chain)
        self._file.append(record)
        self._chain = chain

    @property
    def size(self) -> int:
        return self._file.end

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._file.close()


def fresh_file(
    path: Path, header: dict[str, Any], records: Iterator[Record], *, replace: bool
) -> None:
    """Write a whole index file and put it in place in one step: either the old file or the new one
    is there.
    """
    text = json.dumps(header, sort_keys=True, allow_nan=False).encode()
    if len(text) > _MAX_HEADER:
        raise InvalidData(f"the index's header has {len(text)} bytes, more than {_MAX_HEADER}.")
    try:
        durable.write_file(path, _pieces(text, records), mode=0o644, replace=replace)
    except FileExistsError as error:
        raise InvalidData(
            f"{path.name} exists already. Open it instead, or choose another name."
        ) from error


def _pieces(header: bytes, records: Iterator[Record]) -> Iterator[bytes]:
    chain = hashlib.sha256(header).digest()
    yield MAGIC + struct.pack("<I", len(header)) + chain + header
    for kind, count, payload in records:
        record, chain = _encode(kind, count, payload, chain)
        yield record


@contextmanager
def reading(path: Path) -> Iterator[tuple[dict[str, Any], Iterator[Record]]]:
    """The checked header and the records of a file, read only (no lock, no repair)."""
    with _existing(path) as file:
        header, chain = _read_header(file)
        yield header, (record for record, _, _ in _records(file, chain, path.name))


def is_index(path: Path) -> bool:
    """Whether a file begins as an index does; nothing else of it is checked."""
    with _existing(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def _existing(path: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", open(path, "rb"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise _missing(path) from error


def _missing(path: Path) -> InvalidData:
    return InvalidData(f"there is no index file {path}. Check the path, or make one first.")


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """The header and its digest, with which the chain of the records begins."""
    name = Path(file.name).name
    start = file.read(len(MAGIC) + 4 + _DIGEST)
    if len(start) < len(MAGIC) + 4 + _DIGEST or not start.startswith(MAGIC):
        raise HostileFile(f"{name} is not a Blindsight index.")
    (length,) = struct.unpack_from("<I", start, len(MAGIC))
    if length > _MAX_HEADER:
        raise HostileFile(f"{name} has a header of {length} bytes, more than {_MAX_HEADER}.")
    text = file.read(length)
    if len(text) != length or hashlib.sha256(text).digest() != start[-_DIGEST:]:
        raise HostileFile(
            f"{name}: the header does not fit its checksum. Restore the file from a copy."
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HostileFile(f"{name}: the header is not JSON.") from error
    if not isinstance(header, dict):
        raise HostileFile(f"{name}: the header must be a JSON object.")
    return header, start[-_DIGEST:]


def _records(file: BinaryIO, chain: bytes, name: str) -> Iterator[tuple[Record, bytes, int]]:
    """Yield (record, its trailer, the position after it); stop before a torn tail, raise on
    anything else.
    """
    size = os.fstat(file.fileno()).st_size
    position = file.tell()
    while position < size:
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES or not any(head):
            # A piece of a head, or the zeros a file system leaves behind when power fails.
            if len(head) == _HEAD_BYTES and _anything_left(file):
                raise HostileFile(
                    f"{name}: a record is missing at byte {position}. Restore the file from a copy."
                )
            return
        kind, count, length = _HEAD.unpack_from(head)
        if zlib.crc32(head[: _HEAD.size]) != int.from_bytes(head[_HEAD.size :], "little"):
            raise HostileFile(
                f"{name}: a record's head is damaged at byte {position}. Restore from a copy."
            )
        if kind not in (ADD, REMOVE) or length > MAX_PAYLOAD:
            raise HostileFile(f"{name}: a record at byte {position} is not one of ours.")
        end = position + _HEAD_BYTES + length + _DIGEST
        if end > size:
            return
        payload, trailer = file.read(length), file.read(_DIGEST)
        expected = _trailer(chain, head, payload)
        if trailer != expected:
            if end == size and not any(trailer):
                return
            raise HostileFile(
                f"{name}: a record's checksum is wrong at byte {position}. Restore from a copy."
            )
        chain, position = expected, end
        yield Record(kind, count, payload), chain, position


def _anything_left(file: BinaryIO) -> bool:
    while block := file.read(1 << 20):
        if any(block):
            return True
    return False


def _encode(kind: int, count: int, payload: bytes, chain: bytes) -> tuple[bytes, bytes]:
    if len(payload) > MAX_PAYLOAD:
        raise InvalidData(
            f"one record holds at most {MAX_PAYLOAD} bytes, got {len(payload)}. Add in batches."
        )
    head = _HEAD.pack(kind, count, len(payload))
    head += zlib.crc32(head).to_bytes(4, "little")
    trailer = _trailer(chain, head, payload)
    return head + payload + trailer, trailer


def _trailer(chain: bytes, head: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(chain)
    digest.update(head)
    digest.update(payload)
    return digest.digest()


_MAX_BITS = 1 << 16


@dataclass(frozen=True)
class Flat:
    """Compare with every code: exact, linear in the number of codes, nothing to build."""


@dataclass(frozen=True)
class IVF:
    """Cells around trained centres; a search visits the `probes` nearest (1 million codes: 8x at
    recall 0.98).
    """

    cells: int = 1024
    probes: int = 128

    def __post_init__(self) -> None:
        checks.whole("cells", self.cells)
        checks.whole("probes", self.probes)


@dataclass(frozen=True)
class HNSW:
    """A navigable graph with `links` a node: fast search, slow to build, rebuilt after a
    removal.
    """

    links: int = 16
    effort: int = 64

    def __post_init__(self) -> None:
        checks.whole("links", self.links, least=2)
        checks.whole("effort", self.effort)


Structure = Flat | IVF | HNSW
_BY_NAME = {"flat": Flat, "ivf": IVF, "hnsw": HNSW}


def _structure(fields: object) -> Structure:
    """The structure that a header names; anything else is refused."""
    if not isinstance(fields, dict) or fields.get("name") not in _BY_NAME:
        raise InvalidData("the structure must be flat, ivf or hnsw.")
    try:
        made: Structure = _BY_NAME[fields["name"]](
            **{key: value for key, value in fields.items() if key != "name"}
        )
        return made
    except TypeError as error:
        raise InvalidData(
            f"the structure {fields['name']} has other parameters: {error}."
        ) from error


@dataclass(frozen=True, kw_only=True)
class IndexHeader:
    """The facts of an index that do not change; JSON in the file's head."""

    n_bits: int
    names: bool = False
    guarantee: Guarantee | None = None
    decoding: MatchModel | None = None
    structure: Structure = field(default_factory=Flat)

    def to_fields(self) -> dict[str, Any]:
        model = self.decoding
        return {
            "format": "blindsight index 1",
            "n_bits": self.n_bits,
            "names": self.names,
            "structure": {
                "name": type(self.structure).__name__.lower(),
                **asdict(self.structure),
            },
            "guarantee": None if self.guarantee is None else json.loads(self.guarantee.to_json()),
            "decoding": None
            if model is None
            else {
                "beta": model.beta,
                "prior": model.prior,
                "match": model.match.tolist(),
                "other": model.other.tolist(),
            },
        }

    @classmethod
    def of(cls, path: str | PathLike[str]) -> IndexHeader:
        """The header of a file, without reading its codes."""
        with reading(Path(path)) as (fields, _):
            return cls.from_fields(fields)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> IndexHeader:
        """Read back what `to_fields` wrote; `HostileFile` on anything else."""
        try:
            if fields.get("format") != "blindsight index 1":
                raise InvalidData("the format is not one this version reads")
            n_bits, names = fields["n_bits"], fields["names"]
            if type(n_bits) is not int or not 1 <= n_bits <= _MAX_BITS or type(names) is not bool:
                raise InvalidData("n_bits or names is not what it should be")
            n_bytes(n_bits)
            guarantee, model = fields["guarantee"], fields["decoding"]
            return cls(
                n_bits=n_bits,
                names=names,
                guarantee=None if guarantee is None else Guarantee.from_json(json.dumps(guarantee)),
                decoding=None if model is None else MatchModel(n_bits=n_bits, **model),
                structure=_structure(fields["structure"]),
            )
        except (BlindsightError, KeyError, TypeError, ValueError) as error:
            raise HostileFile(
                f"the header of the index is not what it should be: {error}."
            ) from error


_MAX_NAME = 4096


def check_ids(ids: Any, *, names: bool) -> NDArray[Any]:
    """Return ids as an int64 array, or as an object array of text; refuse ids that occur twice."""
    if names:
        listed = [ids] if isinstance(ids, str) else list(ids)
        if not all(isinstance(name, str) for name in listed):
            raise InvalidData("ids must be names (text), for this index was made with names=True.")
        if any(len(name) > _MAX_NAME or "\x00" in name for name in listed):
            raise InvalidData(
                f"a name must have at most {_MAX_NAME} characters and no zero character."
            )
        try:
            "".join(listed).encode()
        except UnicodeEncodeError as error:
            raise InvalidData("a name is not valid Unicode text.") from error
        array: NDArray[Any] = np.empty(len(listed), dtype=object)
        array[:] = listed
        distinct = len(set(listed))
    else:
        array = np.atleast_1d(np.asarray(ids))
        if array.size == 0:
            array = array.astype(np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InvalidData(
                f"ids must be a row of whole numbers, got {array.dtype} of shape {array.shape}."
            )
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise InvalidData("ids must fit into signed 64-bit integers.")
        array = array.astype(np.int64)
        distinct = len(np.unique(array))
    if distinct != len(array):
        raise InvalidData(
            f"ids must be distinct within one call: {len(array) - distinct} are doubled."
        )
    return array


def add_record(ids: NDArray[Any], codes: NDArray[np.uint8]) -> Record:
    """One upsert as one record: after a crash all of it is there or none."""
    return Record(ADD, len(ids), _ids_to_bytes(ids) + codes.tobytes())


def remove_record(ids: NDArray[Any]) -> Record:
    """One removal as one record."""
    return Record(REMOVE, len(ids), _ids_to_bytes(ids))


def snapshot_records(ids: NDArray[Any], codes: NDArray[np.uint8]) -> Iterator[Record]:
    """A whole index as records of bounded size, for a file that is written at once."""
    step = MAX_PAYLOAD // (codes.shape[1] + (4 + 4 * _MAX_NAME if ids.dtype == object else 8))
    for start in range(0, len(ids), step):
        yield add_record(ids[start : start + step], codes[start : start + step])


def decode_record(
    record: Record, *, names: bool, n_bits: int
) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """The ids of a record, and its codes where it adds; `HostileFile` where anything does not
    fit.
    """
    count, payload = record.entries, record.payload
    try:
        if names:
            ids, position = _names_from_bytes(payload, count)
        else:
            position = 8 * count
            if position > len(payload):
                raise InvalidData("the ids are cut short")
            ids = np.frombuffer(payload, dtype="<i8", count=count).astype(np.int64)
        ids = check_ids(ids, names=names)
        width = (n_bits + 7) // 8 if record.kind == ADD else 0
        if len(payload) != position + count * width:
            raise InvalidData("the length does not fit the count")
        if record.kind == REMOVE:
            return ids, None
        codes = np.frombuffer(payload, dtype=np.uint8, offset=position).reshape(count, width)
        return ids, check_codes(codes, n_bits)
    except (InvalidData, ValueError) as error:
        raise HostileFile(f"a record of the index is not what it says it is: {error}.") from error


def _ids_to_bytes(ids: NDArray[Any]) -> bytes:
    if ids.dtype != object:
        return ids.astype("<i8").tobytes()
    texts = [name.encode() for name in ids]
    return np.array([len(text) for text in texts], dtype="<u4").tobytes() + b"".join(texts)


def _names_from_bytes(payload: bytes, count: int) -> tuple[NDArray[Any], int]:
    if 4 * count > len(payload):
        raise InvalidData("the names are cut short")
    lengths = np.frombuffer(payload, dtype="<u4", count=count).astype(np.int64)
    ends = 4 * count + np.cumsum(lengths)
    if count and ends[-1] > len(payload):
        raise InvalidData("the names are cut short")
    names: NDArray[Any] = np.empty(count, dtype=object)
    start = 4 * count
    for row, end in enumerate(ends.tolist()):
        names[row] = payload[start:end].decode("utf-8")
        start = end
    return names, start
