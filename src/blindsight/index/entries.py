"""Ids and codes as the bytes of a journal record, and back with every length checked.

    integers  count int64 ids, then count codes
    names     count u32 lengths, then the names in UTF-8, then count codes
A removal is the same without codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.codes import check_codes
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.index.journal import ADD, MAX_PAYLOAD, REMOVE, Record

__all__ = ["add_record", "check_ids", "decode", "remove_record", "snapshot_records"]

_MAX_NAME = 4096


def check_ids(ids: Any, *, names: bool) -> NDArray[Any]:
    """Ids as an int64 array, or as an object array of text; doubles within one call are refused."""
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


def decode(
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
