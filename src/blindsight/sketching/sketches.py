"""Sets of sketches and their files: counts, labels and public parameters, never pixels or records.

On disk and on the wire a set is one safetensors file with JSON in its header, which is checked
before any of it is used. Files can be larger than memory: `SketchWriter` writes them block by block
and resumes after a crash, and `SketchSet.open` maps them into memory. The section `digests` holds
the SHA-256 of the header with the labels, and of every block of sketches; all are checked when a
set is opened.

Permanent noise: two sketches of an image with independent noise reveal more than one. With a
vault's key the noise is a function of the content of the image, the parameters and the shape. An
image that is moved, renamed, copied or sent again has the same sketch, and where a guarantee is
charged (flipped bits), it is charged once.
"""

from __future__ import annotations

import hashlib
import json
import struct
import warnings
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks, durable
from blindsight.core.arrays import Array, Bytes, Floats32, Ints
from blindsight.core.errors import (
    BlindsightError,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
    UncheckedFile,
)
from blindsight.privacy.entropy import EntropyName, RandomState, part_state
from blindsight.privacy.vault import RecordStream, Vault
from blindsight.sketching.leak import bit_posteriors, pixel_means
from blindsight.sketching.parameters import SketchParameters, parameters_from_dict

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = [
    "LARGEST_HEADER",
    "Permanent",
    "Section",
    "SketchSet",
    "SketchWriter",
    "header_of",
    "parse",
    "state_of",
]


@dataclass(frozen=True)
class Permanent:
    """A vault as a sketcher's `random_state`. The key is not copied and not sent to workers.

    Parameters:
        vault: the owner's vault.
        records: ids in the vault of the photos of the images; every account whose data set contains
            one of them is charged.
        out: the path to which the sketches will be written (`Vault.charge`).
    """

    vault: Vault
    records: tuple[str, ...] = ()
    out: Path | None = None
    name: ClassVar[EntropyName] = "keyed"

    def names(self, images: Array) -> list[str]:
        """Return the record id of each image (n, channels, h, w), which follows from its pixels."""
        head = f"{images.shape[1:]} {images.dtype.str}/".encode()
        return [
            self.vault.record_of(
                hashlib.sha256(head + np.ascontiguousarray(image).tobytes()).digest()
            )
            for image in images
        ]

    def stream(self, label: str, *, exact: bool = True) -> RecordStream:
        """Return the random stream of a label: a record's id, a slash, and its purpose."""
        record = label.partition("/")[0]
        return self.vault.source([record], about="sketch").stream(label, exact=exact)

    def key(self, inputs: str) -> str:
        """Return the name of the release of these inputs, which only this vault can compute."""
        return f"sketches {self.vault.release_of(inputs)}"

    def account(self, ledger: Ledger, inputs: str) -> Ledger:
        """Return an account that charges the release of these inputs once, through the vault."""
        return self.vault.account(
            ledger, release=self.vault.release_of(inputs), records=self.records, out=self.out
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Permanent:
        return self


def state_of(random_state: RandomState | Permanent, part: int) -> Any:
    """Return the random state of one block of a job; permanent noise is independent of blocks."""
    return random_state if isinstance(random_state, Permanent) else part_state(random_state, part)


KIND = "sketches"
VERSION = 2  # version 1 had no digests
LARGEST_HEADER = 1 << 20
DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "U16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_DIGEST = 32
_BLOCK_BYTES = 32 << 20  # large enough to use several cores, small enough for any machine

Section = tuple[np.dtype[Any], tuple[int, ...], int]


def header_of(
    n: int,
    item: tuple[int, ...],
    dtype: np.dtype[Any],
    parameters: SketchParameters,
    labels: Array | None,
    classes: tuple[str, ...],
    *,
    block: int,
    extra: dict[str, Any] | None = None,
    flags: bool = False,
) -> bytes:
    """Return the header of a set of n sketches, each of shape `item`.

    Each block of `block` sketches has a digest, and with `flags` a byte that says whether it is
    written.
    """
    fields = {
        "parameters": parameters.to_dict(),
        "classes": list(classes),
        **(extra or {}),
        "block": block,
    }
    blocks = -(-n // block)
    described = json.dumps({"kind": KIND, "version": VERSION, "fields": fields})
    sections: dict[str, Any] = {"__metadata__": {"blindsight": described}}
    offset = 0
    rows: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = [
        ("counts", np.dtype(dtype), (n, *item))
    ]
    rows += [("labels", DTYPES["I64"], (n,))] if labels is not None else []
    rows += [("done", DTYPES["U8"], (blocks,))] if flags else []
    rows += [("digests", DTYPES["U8"], (1 + blocks, _DIGEST))]
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
    """Read a header and check it against the size of the file.

    Returns:
        The sections {name: (dtype, shape, offset)}, the fields, and the offset of the data.
    """
    try:
        length = struct.unpack("<Q", head[:8])[0]
        if not 2 <= length <= min(LARGEST_HEADER, len(head) - 8):
            raise HostileFile(f"{where} does not hold sketches: its header does not fit.")
        header = json.loads(head[8 : 8 + length])
        described = json.loads(header.pop("__metadata__")["blindsight"])
        if described["kind"] != KIND or described["version"] not in (1, VERSION):
            raise HostileFile(
                f"{where} holds {described['kind']!r}, expected sketches of version {VERSION}."
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
        if not {"counts"} <= sections.keys() <= {"counts", "labels", "done", "digests"}:
            raise HostileFile(f"{where} does not hold sketches.")
        if ("digests" in sections) != (described["version"] == VERSION):
            raise HostileFile(f"{where} is damaged: its digests are missing.")
        return sections, dict(described["fields"]), 8 + length
    except HostileFile:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise HostileFile(
            f"{where} does not hold sketches, or is damaged: make it with blindsight sketch."
        ) from error


@dataclass(frozen=True, eq=False)
class SketchSet:
    """A set of sketches.

    Parameters:
        counts: (n, channels, L, 2, height, width), uint8 or uint16.
        parameters: the parameters with which the sketches were drawn.
        labels: (n,) class numbers, if there are any.
        classes: the names of the classes, if there are any.
    """

    counts: Array = field(repr=False)
    parameters: SketchParameters
    labels: Ints | None = field(default=None, repr=False)
    classes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        shape, depth = self.counts.shape, self.parameters.depth
        if len(shape) != 6 or shape[2:4] != (depth, 2) or 0 in shape[1:]:
            raise InvalidData(
                f"sketches at depth {depth} must have shape (n, channels, {depth}, 2, height, "
                f"width), got {shape}."
            )
        if self.counts.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
            raise InvalidData(
                f"a sketch's counts must be uint8 or uint16, got {self.counts.dtype}."
            )
        if self.labels is not None:
            labels = np.asarray(self.labels)
            if labels.dtype.kind not in "iu" or labels.shape != (len(self),):
                raise InvalidData(
                    f"labels must be one whole number a sketch ({len(self)}), got {labels.shape}."
                )
            if labels.size and labels.min() < 0:
                raise InvalidData("labels must be at least 0.")
            object.__setattr__(self, "labels", labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, rows: slice | Array) -> SketchSet:
        if isinstance(rows, (int, np.integer)):
            rows = slice(rows, rows + 1 or None)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, counts=self.counts[rows], labels=labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape (channels, height, width) of the sketched images."""
        return self.counts.shape[1], self.counts.shape[4], self.counts.shape[5]

    def batches(self, size: int) -> Iterator[SketchSet]:
        """Yield the set, in order, in sets of at most `size` sketches."""
        for start in range(0, len(self), checks.whole("size", size)):
            yield self[start : start + size]

    def means(self, *, n_jobs: int | None = None) -> Floats32:
        """Return posterior means of the pixels (n, channels, height, width), from 0 to 2^L - 1."""
        return pixel_means(self.counts, self.parameters, n_jobs=n_jobs)

    def posteriors(self, *, n_jobs: int | None = None) -> Floats32:
        """Return the posteriors of the bits as channels (n, channels L, height, width)."""
        channels, height, width = self.image_shape
        planes = bit_posteriors(self.counts, self.parameters, n_jobs=n_jobs)
        return planes.reshape(len(self), channels * self.parameters.depth, height, width)

    def pictures(self) -> Floats32:
        """Return `means` as images (n, h, w) or (n, h, w, channels): the paper's attacker."""
        means = self.means()
        return means[:, 0] if means.shape[1] == 1 else np.moveaxis(means, 1, -1)

    @classmethod
    def concatenate(cls, sets: Sequence[SketchSet]) -> SketchSet:
        """Join the sketches of several owners, which must have the same parameters and shape."""
        if not sets:
            raise InvalidParameter("concatenate needs at least one set of sketches.")
        first = sets[0]
        for other in sets[1:]:
            other.require(first.parameters, first.image_shape)
        labelled = all(s.labels is not None for s in sets)
        labels = np.concatenate([s.labels for s in sets]) if labelled else None
        return cls(
            np.concatenate([s.counts for s in sets]), first.parameters, labels, first.classes
        )

    def require(self, parameters: SketchParameters, image_shape: tuple[int, ...]) -> None:
        """Raise `InvalidData` if the sketches have other parameters or are of another shape."""
        if self.parameters.fingerprint != parameters.fingerprint:
            raise InvalidData(
                f"sketches must be made with the parameters {parameters.name} "
                f"({parameters.fingerprint}), got {self.parameters.name} "
                f"({self.parameters.fingerprint}). Sketch the images again with those."
            )
        if tuple(self.image_shape) != tuple(image_shape):
            raise InvalidData(
                f"sketches must be of images of shape {tuple(image_shape)}, got {self.image_shape}."
            )

    def to_bytes(self) -> bytes:
        """Return the message that the owner sends to the server."""
        arrays = [np.ascontiguousarray(self.counts)]
        if self.labels is not None:
            arrays.append(self.labels)
        block = _block_of(self.counts.shape[1:], self.counts.dtype)
        header = header_of(
            len(self),
            self.counts.shape[1:],
            self.counts.dtype,
            self.parameters,
            self.labels,
            self.classes,
            block=block,
        )
        digests = [_head_digest(header, self.labels), *_block_digests(arrays[0], block)]
        return b"".join([header, *(array.tobytes() for array in arrays), *digests])

    @classmethod
    def from_bytes(cls, message: bytes) -> SketchSet:
        """Read an untrusted message; raise `HostileFile` if it is malformed."""
        sections, fields, start = parse(message[: LARGEST_HEADER + 8], len(message), "the message")
        arrays: dict[str, Array] = {
            name: np.frombuffer(
                message, dtype, count=int(np.prod(shape)), offset=start + offset
            ).reshape(shape)
            for name, (dtype, shape, offset) in sections.items()
        }
        _check_digests(arrays, fields, message[:start], "the message")
        return _assemble(arrays, fields, "the message")

    def save(self, path: str | Path) -> None:
        from blindsight.core.storage import write_atomically

        write_atomically(path, self.to_bytes())

    @classmethod
    def open(cls, path: str | Path) -> SketchSet:
        """Open a file of sketches as a memory map; its digests are checked once, here.

        Raises:
            HostileFile: the file is damaged, was changed, or holds something else.
            InvalidData: the file is not finished.
        """
        source = Path(path)
        try:
            size = source.stat().st_size
            with source.open("rb") as file:
                head = file.read(LARGEST_HEADER + 8)
            sections, fields, start = parse(head, size, str(path))
        except FileNotFoundError:
            raise MissingData(f"{path} does not exist. Check the path.") from None
        except OSError as error:
            raise HostileFile(f"{path} cannot be read: {error.strerror or error}.") from error
        maps: dict[str, Array] = {
            name: np.memmap(source, dtype, "r", offset=start + offset, shape=shape)
            for name, (dtype, shape, offset) in sections.items()
        }
        _require_finished(maps, str(path))
        _check_digests(maps, fields, head[:start], str(path))
        return _assemble(maps, fields, str(path))


def _block_of(item: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the number of sketches in a block of about 32 MB."""
    return max(1, _BLOCK_BYTES // (int(np.prod(item)) * dtype.itemsize))


def _head_digest(header: bytes, labels: Array | None) -> bytes:
    digest = hashlib.sha256(header)
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, "<i8").tobytes())
    return digest.digest()


def _block_digests(counts: Array, block: int) -> Iterator[bytes]:
    for start in range(0, len(counts), block):
        yield hashlib.sha256(np.ascontiguousarray(counts[start : start + block]).data).digest()


def _check_digests(
    arrays: dict[str, Array], fields: dict[str, Any], header: bytes, where: str
) -> None:
    """Raise `HostileFile` if a bit of a set was changed; version 1 had no digests to compare."""
    digests = arrays.get("digests")
    if digests is None:
        warnings.warn(
            f"{where} was written by an earlier version, without digests: damage cannot be seen. "
            "Sketch the images again, or trust the file.",
            UncheckedFile,
            stacklevel=3,
        )
        return
    block, counts = checks.whole("block", fields.get("block")), arrays["counts"]
    if digests.shape != (1 + -(-len(counts) // block), _DIGEST):
        raise HostileFile(f"{where} is damaged: the number of its digests does not fit.")
    expected = (row.tobytes() for row in digests)
    if next(expected) != _head_digest(header, arrays.get("labels")) or any(
        digest != stated
        for digest, stated in zip(_block_digests(counts, block), expected, strict=True)
    ):
        raise HostileFile(f"{where} is damaged, or was changed: its digests do not fit.")


def _require_finished(arrays: dict[str, Array], where: str) -> None:
    if "done" in arrays and not (arrays["done"] == 1).all():
        raise InvalidData(f"{where} is not finished: run the same sketching again to resume it.")


def _assemble(arrays: dict[str, Array], fields: dict[str, Any], where: str) -> SketchSet:
    _require_finished(arrays, where)
    labels = arrays.get("labels")
    try:
        classes = tuple(str(name) for name in fields.get("classes", ()))
        parameters = parameters_from_dict(fields["parameters"])
        return SketchSet(
            arrays["counts"], parameters, None if labels is None else np.array(labels), classes
        )
    except (KeyError, TypeError, BlindsightError) as error:
        raise HostileFile(f"{where} does not hold sketches: {error}") from error


_PIECE = 1 << 24


class SketchWriter:
    """Writes a file of sketches block by block.

    Written blocks survive a crash, and the job can be resumed. The file is written beside its
    target as NAME.part with a flag for each block, and renamed when all blocks are written. No key
    or seed is stored: blocks drawn after resuming have fresh randomness. A finished file is never
    overwritten, because new sketches of the same images would be a second release of them.

    `source` identifies the set of images when a job resumes. It is a digest of file names, which
    anyone who guesses the names can verify, so it is stored after the end of NAME.part and removed
    before the file is renamed. `mark` identifies the images of the finished file and is computed
    with the vault's key: with it the same job is recognised as `finished`, and nothing is drawn.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n: int,
        image_shape: tuple[int, int, int],
        parameters: SketchParameters,
        labels: Ints | None = None,
        classes: Sequence[str] = (),
        source: str = "",
        mark: str = "",
        block: int | None = None,
    ) -> None:
        self.target = Path(path)
        self.partial = self.target.with_name(self.target.name + ".part")
        channels, height, width = image_shape
        item = (channels, parameters.depth, 2, height, width)
        self.block = block or _block_of(item, parameters.dtype)
        self.n = checks.whole("n", n)
        header = header_of(
            self.n, item, parameters.dtype, parameters, labels, tuple(classes),
            block=self.block, extra={"mark": mark}, flags=True,
        )  # fmt: skip
        self.fingerprint = hashlib.sha256(header + source.encode()).hexdigest()[:16]
        sections, _, start = parse(header, None, str(path))
        self.finished = not self.partial.exists() and self.target.exists()
        if self.finished:
            self._require_same(header, known=bool(mark))
            return
        self._end = start + max(
            offset + dtype.itemsize * int(np.prod(shape))
            for dtype, shape, offset in sections.values()
        )
        self._prepare(header, source.encode())
        self._file = durable.DurableFile(self.partial)
        if labels is not None:
            self._file.overwrite(start + sections["labels"][2], np.asarray(labels, "<i8").tobytes())
        self._dtype, (_, *item_shape), offset = sections["counts"]
        self._item, self._counts_at = tuple(item_shape), start + offset
        self._digests_at = start + sections["digests"][2]
        self._file.overwrite(self._digests_at, _head_digest(header, labels))
        _, shape, offset = sections["done"]
        self._done_at = start + offset
        flags = durable.read_at(self._file.descriptor, int(np.prod(shape)), self._done_at)
        self.done: Bytes = np.frombuffer(bytearray(flags), np.uint8)
        if not self.done.all():
            self._file.overwrite(self._end, source.encode())

    @classmethod
    def of(
        cls,
        path: str | Path,
        sketcher: Any,
        X: Sized,
        y: ArrayLike | None = None,
        *,
        block: int | None = None,
    ) -> SketchWriter:
        """Make a writer for the sketches of a set of images by a fitted sketcher."""
        state, source = sketcher.random_state, _source(X)
        return cls(
            path,
            n=len(X),
            image_shape=sketcher.image_shape_,
            parameters=sketcher.parameters_,
            labels=getattr(X, "labels", None) if y is None else np.asarray(y),
            classes=getattr(X, "classes", ()),
            source=source,
            mark=state.key(source) if source and isinstance(state, Permanent) else "",
            block=block,
        )

    def _prepare(self, header: bytes, source: bytes) -> None:
        if self.partial.exists():
            with self.partial.open("rb") as file:
                same = file.read(len(header)) == header
                file.seek(self._end)
                # Nothing is stored after the end if the job stopped before its first block, or
                # after the last one but before the file was renamed.
                if not same or file.read() not in (source, b""):
                    raise InvalidData(
                        f"{self.partial} was begun from other images or with other parameters. "
                        "Delete it to start again."
                    )
            return
        self.target.parent.mkdir(parents=True, exist_ok=True)
        # A sparse file: disk space is used as blocks are written.
        durable.write_file(self.partial, header, size=self._end)

    def _require_same(self, header: bytes, *, known: bool) -> None:
        """Raise `InvalidData` unless the finished target is what this job would write."""
        with self.target.open("rb") as file:
            if known and file.read(len(header)) == header:
                return
        held = SketchSet.open(self.target)
        raise InvalidData(
            f"{self.target} already holds {len(held):,} finished sketches "
            f"({held.parameters.name}). To sketch the same images again is a second release of "
            "them, which reveals more than one. Write to another file, or delete this one first "
            "(--force does that)."
        )

    def missing(self) -> list[slice]:
        """Return the blocks that are not written yet, as slices of the set."""
        if self.finished:
            return []
        return [
            slice(int(b) * self.block, min((int(b) + 1) * self.block, self.n))
            for b in np.flatnonzero(self.done == 0)
        ]

    def write(self, rows: slice, counts: Array) -> None:
        """Write a block, its digest and its flag, in this order, and flush each."""
        block = np.ascontiguousarray(counts, self._dtype)
        if block.shape != (rows.stop - rows.start, *self._item):
            raise InvalidData(
                f"a block of {rows.stop - rows.start} sketches cannot have shape {block.shape}."
            )
        number = rows.start // self.block
        size = block.nbytes // max(1, len(block))
        at, flat = self._counts_at + rows.start * size, block.reshape(-1).view(np.uint8)
        # In pieces, because a copy of a large photo's sketch would double the memory.
        for begin in range(0, len(flat), _PIECE):
            self._file.overwrite(at + begin, flat[begin : begin + _PIECE].tobytes())
        self._file.overwrite(
            self._digests_at + (1 + number) * _DIGEST, next(_block_digests(block, len(block)))
        )
        self._file.overwrite(self._done_at + number, b"\x01")
        self.done[number] = 1

    def finish(self) -> SketchSet:
        """Rename the complete file to its target and open it."""
        if self.missing():
            raise InvalidData(
                f"{self.partial} is not finished: {len(self.missing())} blocks are missing."
            )
        if not self.finished:
            self._file.cut(self._end)
            self._file.close()
            durable.rename(self.partial, self.target)
        return SketchSet.open(self.target)


def _source(X: Sized) -> str:
    """Return a digest of the names and labels of a set of images, or "" if it has neither."""
    parts = [getattr(X, part, None) for part in ("names", "labels")]
    if all(part is None for part in parts):
        return ""
    digest = hashlib.sha256(str(len(X)).encode())
    for part in parts:
        if part is not None:
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]
