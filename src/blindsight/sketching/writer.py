"""Files of sketches made block by block, so that they may be larger than memory and a crash loses
one block.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable
from blindsight.core.errors import InvalidData
from blindsight.sketching.flips import Law
from blindsight.sketching.layout import header_of, parse
from blindsight.sketching.permanent import Permanent
from blindsight.sketching.sketches import SketchSet

__all__ = ["SketchWriter"]

_PIECE = 1 << 24


class SketchWriter:
    """Makes a file of sketches block by block; what is done survives a crash, and the rest is made
    on resuming.

    The file is written beside its target as NAME.part with a flag a block, and renamed when all
    blocks are there. No key or seed is stored: blocks made after resuming have fresh dice. A
    finished file is never written over: fresh sketches of the same images would be a second release
    of them.

    `source` tells one set of images from another when a job resumes. It is a digest of file names,
    which whoever guesses the names can test, so it lies behind the end of NAME.part and is cut off
    before the file gets its name. `mark` is its like for the finished file, made with a key that
    stays: with it the same job is known again as `finished`, and nothing is drawn.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n: int,
        image_shape: tuple[int, int, int],
        parameters: Law,
        labels: NDArray[np.int64] | None = None,
        classes: Sequence[str] = (),
        source: str = "",
        mark: str = "",
        block: int | None = None,
    ) -> None:
        self.target = Path(path)
        self.partial = self.target.with_name(self.target.name + ".part")
        channels, height, width = image_shape
        item = (channels, parameters.depth, 2, height, width)
        # About 32 MB a block: enough for both cores, little enough for any machine.
        self.block = block or max(1, (32 << 20) // (int(np.prod(item)) * parameters.dtype.itemsize))
        self.n = checks.whole("n", n)
        blocks = -(-self.n // self.block)
        header = header_of(
            self.n, item, parameters.dtype, parameters, labels, tuple(classes),
            extra={"mark": mark, "block": self.block}, blocks=blocks,
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
        _, shape, offset = sections["done"]
        self._done_at = start + offset
        flags = os.pread(self._file.descriptor, int(np.prod(shape)), self._done_at)
        self.done: NDArray[np.uint8] = np.frombuffer(bytearray(flags), np.uint8)
        if not self.done.all():
            self._file.overwrite(self._end, source.encode())

    @classmethod
    def of(
        cls, path: str | Path, sketcher: Any, X: Any, y: Any = None, *, block: int | None = None
    ) -> SketchWriter:
        """A file for the sketches that a fitted sketcher makes of a set of images."""
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
                # Nothing behind the end: it died before its first block, or whole, before it got
                # its name.
                if not same or file.read() not in (source, b""):
                    raise InvalidData(
                        f"{self.partial} was begun from other images or with other parameters. "
                        "Delete it to start anew."
                    )
            return
        self.target.parent.mkdir(parents=True, exist_ok=True)
        durable.write_file(
            self.partial, header, size=self._end
        )  # sparse: the disk is filled as blocks come

    def _require_same(self, header: bytes, *, known: bool) -> None:
        """Refuse a finished target unless it is just what would be made now."""
        with self.target.open("rb") as file:
            if known and file.read(len(header)) == header:
                return
        held = SketchSet.open(self.target)
        raise InvalidData(
            f"{self.target} already holds {len(held):,} finished sketches "
            f"({held.parameters.name}). To sketch the same "
            "images again is a second release of them, which tells more than one. Write to another "
            "file, or delete "
            "this one first (--force does that)."
        )

    def missing(self) -> list[slice]:
        """The blocks still to be made, as slices of the set."""
        if self.finished:
            return []
        return [
            slice(int(b) * self.block, min((int(b) + 1) * self.block, self.n))
            for b in np.flatnonzero(self.done == 0)
        ]

    def write(self, rows: slice, counts: NDArray[Any]) -> None:
        """Store a block, then mark it as done: in that order, each flushed."""
        block = np.ascontiguousarray(counts, self._dtype)
        if block.shape != (rows.stop - rows.start, *self._item):
            raise InvalidData(
                f"a block of {rows.stop - rows.start} sketches cannot have shape {block.shape}."
            )
        number = rows.start // self.block
        size = block.nbytes // max(1, len(block))
        at, flat = self._counts_at + rows.start * size, block.reshape(-1).view(np.uint8)
        for begin in range(
            0, len(flat), _PIECE
        ):  # a copy of a large photo's sketch would be as large again
            self._file.overwrite(at + begin, flat[begin : begin + _PIECE].tobytes())
        self._file.overwrite(self._done_at + number, b"\x01")
        self.done[number] = 1

    def finish(self) -> SketchSet:
        """Rename the whole file into place and open it."""
        if self.missing():
            raise InvalidData(
                f"{self.partial} is not finished: {len(self.missing())} blocks are missing."
            )
        if not self.finished:
            self._file.cut(self._end)
            self._file.close()
            durable.rename(self.partial, self.target)
        return SketchSet.open(self.target)


def _source(X: Any) -> str:
    """What tells one source of images from another when a job resumes: names and labels; "" where
    there are none.
    """
    parts = [getattr(X, part, None) for part in ("names", "labels")]
    if all(part is None for part in parts):
        return ""
    digest = hashlib.sha256(str(len(X)).encode())
    for part in parts:
        if part is not None:
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]
