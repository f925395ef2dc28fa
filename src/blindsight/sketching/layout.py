"""The layout of a file of sketches: one safetensors file, its header checked before anything is
believed.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import HostileFile
from blindsight.sketching.flips import Law

__all__ = ["LARGEST_HEADER", "Section", "header_of", "parse"]

KIND = "sketches"
LARGEST_HEADER = 1 << 20
DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "U16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Section = tuple[np.dtype[Any], tuple[int, ...], int]


def header_of(
    n: int,
    item: tuple[int, ...],
    dtype: np.dtype[Any],
    parameters: Law,
    labels: NDArray[Any] | None,
    classes: tuple[str, ...],
    *,
    extra: dict[str, Any] | None = None,
    blocks: int = 0,
) -> bytes:
    """The header of a set of n sketches, each of shape `item`."""
    fields = {"parameters": parameters.to_dict(), "classes": list(classes), **(extra or {})}
    described = json.dumps({"kind": KIND, "version": 1, "fields": fields})
    sections: dict[str, Any] = {"__metadata__": {"blindsight": described}}
    offset = 0
    rows: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = [
        ("counts", np.dtype(dtype), (n, *item))
    ]
    rows += [("labels", DTYPES["I64"], (n,))] if labels is not None else []
    rows += [("done", DTYPES["U8"], (blocks,))] if blocks else []
    for name, kind, shape in rows:
        size = kind.itemsize * int(np.prod(shape))
        sections[name] = {
            "dtype": NAMES[kind],
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(sections).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def parse(
    head: bytes, size: int | None, where: str
) -> tuple[dict[str, Section], dict[str, Any], int]:
    """Sections {name: (dtype, shape, offset)}, the fields, and where the data start; checked
    against the size.
    """
    try:
        length = struct.unpack("<Q", head[:8])[0]
        if not 2 <= length <= min(LARGEST_HEADER, len(head) - 8):
            raise HostileFile(f"{where} does not hold sketches: its header does not fit.")
        header = json.loads(head[8 : 8 + length])
        described = json.loads(header.pop("__metadata__")["blindsight"])
        if (described["kind"], described["version"]) != (KIND, 1):
            raise HostileFile(
                f"{where} holds {described['kind']!r}, expected sketches of version 1."
            )
        sections: dict[str, Section] = {}
        for name, entry in header.items():
            dtype, shape = (
                DTYPES[entry["dtype"]],
                tuple(checks.whole("size", s, least=0) for s in entry["shape"]),
            )
            begin, end = (checks.whole("offset", o, least=0) for o in entry["data_offsets"])
            if end - begin != dtype.itemsize * int(np.prod(shape, dtype=object)):
                raise HostileFile(f"{where} is damaged: {name} does not have the size it says.")
            if size is not None and 8 + length + end > size:
                raise HostileFile(f"{where} is truncated: {name} lies beyond its end.")
            sections[name] = (dtype, shape, begin)
        if not {"counts"} <= sections.keys() <= {"counts", "labels", "done"}:
            raise HostileFile(f"{where} does not hold sketches.")
        return sections, dict(described["fields"]), 8 + length
    except HostileFile:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise HostileFile(
            f"{where} does not hold sketches, or is damaged: make it with blindsight sketch."
        ) from error
