"""Files of models and other small states: safetensors with JSON in the header, never pickle.

A file from outside is hostile until its header has been checked; what fails a check is refused with
the reason. The header holds a SHA-256 of the kind, the fields and every array with its name, type
and shape, so that damage is found on loading; it shows damage, not who wrote the file. Files of the
first version have no digest: they are read, with a warning (`UncheckedFile`), because refusing them
would make old releases unreadable while protecting nobody from a file that was made to deceive.
Writing is atomic: a reader finds the old file or the new one, never half of either.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import durable
from blindsight.core.errors import (
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
    UncheckedFile,
)

__all__ = [
    "digest",
    "load",
    "load_any",
    "open_json",
    "save",
    "seal_json",
    "to_bytes",
    "write_atomically",
]

_VERSION = 2
_UNCHECKED_VERSION = 1  # without a digest
# Sketches are written block by block, by several machines, so their header cannot hold a digest. A
# section of theirs does; `SketchSet.open`, their only reader, checks it.
_STREAMED = frozenset({"sketches"})
_LARGEST_HEADER = 64 * 2**20


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename over it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write_file(target, content)


def digest(kind: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of named arrays, which does not depend on the file that held them."""
    hashed = hashlib.sha256(kind.encode())
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        hashed.update(f"{name} {value.dtype.str} {value.shape}".encode() + value.tobytes())
    return hashed.hexdigest()


def save(
    path: str | Path, *, kind: str, arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Any]
) -> None:
    """Write arrays and JSON-able fields as one file of the given kind."""
    write_atomically(path, to_bytes(kind=kind, arrays=arrays, fields=fields))


def to_bytes(*, kind: str, arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Any]) -> bytes:
    """The content of a file that `load` reads.

    Parameters:
        kind: what the file holds, which `load` compares.
        arrays: arrays of numbers by name.
        fields: plain JSON values.

    Raises:
        InvalidParameter: if a field is not a plain JSON value.
        InvalidData: if an array does not hold numbers.
    """
    from safetensors.numpy import save as pack

    try:
        plain_fields = json.loads(json.dumps(dict(fields), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"fields must be plain JSON values: {error}.") from error
    plain = {}
    for name, array in arrays.items():
        value = np.asarray(array)
        if value.dtype.kind not in "biuf":
            raise InvalidData(f"array {name!r} must hold numbers, got dtype {value.dtype}.")
        plain[name] = np.ascontiguousarray(value)
    header = {"kind": kind, "version": _VERSION, "fields": plain_fields}
    header["sha256"] = _content_digest(kind, plain, plain_fields)
    return bytes(pack(plain, metadata={"blindsight": json.dumps(header)}))


def seal_json(fields: Mapping[str, Any]) -> bytes:
    """The content of a JSON file that holds the digest of its own fields; see `open_json`.

    Raises:
        InvalidParameter: if the fields are not plain JSON values, or name a "sha256" themselves.

    Examples:
        >>> open_json(seal_json({"format": "example 1", "name": "holidays"}), "example.json")
        {'format': 'example 1', 'name': 'holidays'}
    """
    try:
        plain = json.loads(json.dumps(dict(fields), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"fields must be plain JSON values: {error}.") from error
    if "sha256" in plain:
        raise InvalidParameter("fields must not hold sha256: it is the file's own digest.")
    sealed = {**plain, "sha256": _content_digest("json", {}, plain)}
    return json.dumps(sealed, indent=2, ensure_ascii=False).encode() + b"\n"


def open_json(
    content: bytes, path: str | Path, *, earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Check and read the content of a JSON file that `seal_json` made.

    Parameters:
        content: the file's bytes.
        path: its path, for messages.
        earlier: fields that mark a file of an earlier version, which has no digest. Such a file is
            read, with a warning (`UncheckedFile`).

    Returns:
        The fields, without the digest.

    Raises:
        HostileFile: if the file is not such a file, or is damaged.
    """
    try:
        fields = json.loads(content, parse_int=_whole)
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        stated = fields.pop("sha256", None)
        if stated is None and earlier and earlier.items() <= fields.items():
            warnings.warn(
                f"{path} was written by an earlier version without a digest, so damage to it "
                "cannot be seen.",
                UncheckedFile,
                stacklevel=3,
            )
            return fields
        intact = hmac.compare_digest(
            str(stated).encode(), _content_digest("json", {}, fields).encode()
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise HostileFile(
            f"{path} is not what it should be, or is damaged. Restore it from a copy."
        ) from error
    if not intact:
        raise HostileFile(
            f"{path} is damaged or was changed: its content does not match its digest. Restore it "
            "from a copy."
        )
    return fields


def _content_digest(kind: str, arrays: Mapping[str, NDArray[Any]], fields: Any) -> str:
    """Return the SHA-256 of everything that a file holds."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{digest(kind, arrays)} {text}".encode()).hexdigest()


def load(path: str | Path, *, kind: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `save` wrote, as (arrays, fields), or raise `HostileFile` with the reason."""
    stored_kind, arrays, fields = load_any(path)
    if stored_kind != kind:
        raise HostileFile(f"{path} holds a {stored_kind!r}, expected a {kind!r}.")
    return arrays, fields


def _whole(digits: str) -> int:
    """Parse a whole number that a float can hold: a longer one would later overflow."""
    if len(digits) > 300:
        raise ValueError("a whole number of at most 300 digits")
    return int(digits)


def load_any(path: str | Path) -> tuple[str, dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a file of any kind: (kind, arrays, fields).

    The digests of sketches are not checked here, but by `SketchSet.open`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as unpack

    source = Path(path)
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        raise MissingData(f"{path} does not exist. Check the path.") from None
    except OSError as error:
        raise HostileFile(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        header_size = int.from_bytes(content[:8], "little")
        if len(content) < 8 or not 2 <= header_size <= min(_LARGEST_HEADER, len(content) - 8):
            raise HostileFile(f"{path} is not a Blindsight file: its header does not fit its size.")
        metadata = json.loads(content[8 : 8 + header_size])["__metadata__"]
        described = json.loads(metadata["blindsight"], parse_int=_whole)
        kind, version, fields = described["kind"], described["version"], described["fields"]
        arrays = unpack(content)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        if isinstance(error, HostileFile):
            raise
        raise HostileFile(
            f"{path} is not a Blindsight file, or is damaged ({type(error).__name__})."
        ) from error
    if version not in (_VERSION, _UNCHECKED_VERSION):
        raise HostileFile(
            f"{path} has format version {version!r}; this release reads versions "
            f"{_UNCHECKED_VERSION} and {_VERSION}."
        )
    if not isinstance(kind, str) or not isinstance(fields, dict):
        raise HostileFile(f"{path} has a malformed header.")
    if kind in _STREAMED:
        return kind, arrays, fields
    if version == _UNCHECKED_VERSION:
        if "sha256" in described:
            raise HostileFile(f"{path} has a malformed header.")
        warnings.warn(
            f"{path} was written by an earlier version without a digest, so damage to it cannot be "
            "seen. Load it and save it again.",
            UncheckedFile,
            stacklevel=3,
        )
    elif not hmac.compare_digest(
        str(described.get("sha256")).encode(), _content_digest(kind, arrays, fields).encode()
    ):
        raise HostileFile(
            f"{path} is damaged or was changed: its content does not match the digest in its "
            "header. Restore it from a copy."
        )
    return kind, arrays, fields
