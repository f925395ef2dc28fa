"""A set of sketches: all that leaves the owner. Counts, labels and the public parameters; never
pixels or records.

On disk and on the wire a set is one safetensors file with JSON in its header. Files can be larger
than memory: they are made block by block (`writer.SketchWriter`, which resumes after a crash) and
opened as a memory map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import (
    BlindsightError,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
)
from blindsight.sketching.estimation import bit_posteriors, pixel_means
from blindsight.sketching.flips import Law, law_from_dict
from blindsight.sketching.layout import LARGEST_HEADER, header_of, parse

__all__ = ["SketchSet"]


@dataclass(frozen=True, eq=False)
class SketchSet:
    """Sketches (n, channels, L, 2, height, width) with the parameters they were made with, and
    labels if any.
    """

    counts: NDArray[Any] = field(repr=False)
    parameters: Law
    labels: NDArray[np.int64] | None = field(default=None, repr=False)
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

    def __getitem__(self, rows: Any) -> SketchSet:
        if isinstance(rows, (int, np.integer)):
            rows = slice(rows, rows + 1 or None)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, counts=self.counts[rows], labels=labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the images behind the sketches."""
        return self.counts.shape[1], self.counts.shape[4], self.counts.shape[5]

    def batches(self, size: int) -> Iterator[SketchSet]:
        """The set in order, in sets of at most `size`."""
        for start in range(0, len(self), checks.whole("size", size)):
            yield self[start : start + size]

    def means(self, *, n_jobs: int | None = None) -> NDArray[np.float32]:
        """Posterior means of the pixels, (n, channels, height, width), in 0..2^L - 1."""
        return pixel_means(self.counts, self.parameters, n_jobs=n_jobs)

    def posteriors(self, *, n_jobs: int | None = None) -> NDArray[np.float32]:
        """Posteriors of the bits as channels, (n, channels L, height, width)."""
        channels, height, width = self.image_shape
        planes = bit_posteriors(self.counts, self.parameters, n_jobs=n_jobs)
        return planes.reshape(len(self), channels * self.parameters.depth, height, width)

    def pictures(self) -> NDArray[np.float32]:
        """`means` as images (n, h, w) or (n, h, w, channels): what the paper's attacker sees."""
        means = self.means()
        return means[:, 0] if means.shape[1] == 1 else np.moveaxis(means, 1, -1)

    @classmethod
    def concatenate(cls, sets: Sequence[SketchSet]) -> SketchSet:
        """The sketches of several owners as one set; all must share parameters and shape."""
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

    def require(self, parameters: Law, image_shape: tuple[int, ...]) -> None:
        """Refuse if these sketches were made with other parameters, or from images of another
        shape.
        """
        if self.parameters.fingerprint != parameters.fingerprint:
            raise InvalidData(
                f"sketches must be made with the parameters {parameters.name} "
                f"({parameters.fingerprint}), "
                f"got {self.parameters.name} ({self.parameters.fingerprint}). Sketch the images "
                "again with those."
            )
        if tuple(self.image_shape) != tuple(image_shape):
            raise InvalidData(
                f"sketches must be of images of shape {tuple(image_shape)}, got {self.image_shape}."
            )

    def to_bytes(self) -> bytes:
        """The message that crosses from owner to server."""
        arrays = [np.ascontiguousarray(self.counts)]
        if self.labels is not None:
            arrays.append(self.labels)
        header = header_of(
            len(self),
            self.counts.shape[1:],
            self.counts.dtype,
            self.parameters,
            self.labels,
            self.classes,
        )
        return b"".join([header, *(array.tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, message: bytes) -> SketchSet:
        """Read a message from outside; anything malformed is refused."""
        sections, fields, start = parse(message[: LARGEST_HEADER + 8], len(message), "the message")
        return _assemble(
            {
                name: np.frombuffer(
                    message, dtype, count=int(np.prod(shape)), offset=start + offset
                ).reshape(shape)
                for name, (dtype, shape, offset) in sections.items()
            },
            fields,
            "the message",
        )

    def save(self, path: str | Path) -> None:
        """Write the set, atomically."""
        from blindsight.core.storage import write_atomically

        write_atomically(path, self.to_bytes())

    @classmethod
    def open(cls, path: str | Path) -> SketchSet:
        """Open a file of sketches as a memory map: only what is looked at is read."""
        source = Path(path)
        try:
            size = source.stat().st_size
            with source.open("rb") as file:
                sections, fields, start = parse(file.read(LARGEST_HEADER + 8), size, str(path))
        except FileNotFoundError:
            raise MissingData(f"{path} does not exist. Check the path.") from None
        except OSError as error:
            raise HostileFile(f"{path} cannot be read: {error.strerror or error}.") from error
        maps: dict[str, NDArray[Any]] = {
            name: np.memmap(source, dtype, "r", offset=start + offset, shape=shape)
            for name, (dtype, shape, offset) in sections.items()
        }
        return _assemble(maps, fields, str(path))


def _assemble(arrays: dict[str, NDArray[Any]], fields: dict[str, Any], where: str) -> SketchSet:
    if "done" in arrays and not arrays["done"].all():
        raise InvalidData(f"{where} is not finished: run the same sketching again to resume it.")
    labels = arrays.get("labels")
    try:
        classes = tuple(str(name) for name in fields.get("classes", ()))
        parameters = law_from_dict(fields["parameters"])
        return SketchSet(
            arrays["counts"], parameters, None if labels is None else np.array(labels), classes
        )
    except (KeyError, TypeError, BlindsightError) as error:
        raise HostileFile(f"{where} does not hold sketches: {error}") from error
