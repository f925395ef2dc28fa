"""Vectors that were computed elsewhere, with an id for each: .npy, .npz or Parquet.

A file is read in pieces, so it may be larger than memory: .npy is mapped into memory, Parquet is
read by row groups. The vectors are as private as the images that they were computed from.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.core.parsing import one_parser
from blindsight.data.limits import LIMITS, check_packing, regular_file
from blindsight.encoders.base import (
    Classes,
    Encoder,
    Floats,
    Identity,
    Images,
    Source,
    identity_digest,
    unit_rows,
)
from blindsight.encoders.onnx_folder import MAX_DIMENSIONS, OnnxEncoder
from blindsight.encoders.public_pictures import public_vectors

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

    from blindsight.data import LazyImages

__all__ = [
    "Embeddings",
    "QueryVectors",
    "RowSource",
    "encode_images",
    "general_texts",
    "public_texts",
]

#: Bytes of a file that is mapped or read in pieces.
_MAX_BYTES = 1 << 42
_MAX_ROWS = 1 << 33
_MAX_ID = 1000  # characters
_PIECE = 8192  # rows
_BATCH = 16  # images that are decoded before they are encoded
_VECTOR_NAMES = ("vectors", "embeddings", "embedding", "vector", "features", "X")
_ID_NAMES = ("ids", "id", "names", "name", "path", "file")


class RowSource(Protocol):
    """Vectors in memory: an array or tensor, a table, or a sequence of vectors.

    NumPy arrays, PyTorch tensors and data sets, pandas and Arrow tables, and data sets of Hugging
    Face are recognised by their methods, so that none of these packages is needed.
    """

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class _Table:
    """Where the vectors of a file are, and how to read them in pieces."""

    rows: int
    dimensions: int


class Embeddings:
    """An encoder for a file of vectors, whose images are already encoded.

    Queries are vectors of the same model. The content of a file does not show which model made it:
    pass the model's name as `name`, which is compared whenever two files are used together.

    Parameters:
        file: .npy (rows only; ids are the row numbers), .npz (`vectors` and optionally `ids`) or
            Parquet (one column of lists, and a column of ids).
        name: The name of the model that made the vectors.
        texts: A second file in the same form whose ids are texts: names and their vectors in the
            same space, from the model's text side. Words are then looked up in it.

    Raises:
        HostileFile: The file is damaged, too large, holds Python objects, or its vectors are not
            finite.

    Examples:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "vectors.npz"
        >>> np.savez(path, vectors=np.eye(3, dtype=np.float32), ids=np.array(["a", "b", "c"]))
        >>> vectors = Embeddings(path, name="my-model")
        >>> vectors.dimensions, [ids for ids, rows in vectors.pieces()]
        (3, [['a', 'b', 'c']])
    """

    # Vectors in memory and their ids, if there is no file.
    _held: tuple[NDArray[np.generic], list[str]] | None = None

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        name: str = "embeddings",
        texts: str | os.PathLike[str] | None = None,
    ) -> None:
        self.file = Path(file)
        if not name.strip() or len(name) > 200:
            raise InvalidParameter("name must be the model's name, 1 to 200 characters.")
        self._name = name
        regular_file(self.file, largest=_MAX_BYTES)
        self._table = self._open()
        if not 1 <= self._table.dimensions <= MAX_DIMENSIONS or self._table.rows > _MAX_ROWS:
            raise HostileFile(
                f"{self.file.name} holds {self._table.rows:,} vectors of "
                f"{self._table.dimensions:,} numbers; at most {MAX_DIMENSIONS:,} numbers are read."
            )
        self._texts = None if texts is None else _text_side(texts, self._table.dimensions)

    @classmethod
    def from_rows(
        cls, rows: RowSource, ids: Sequence[object] | None = None, *, name: str = "embeddings"
    ) -> Embeddings:
        """Make an encoder from vectors in memory instead of a file.

        Parameters:
            rows: A NumPy array or PyTorch tensor (n, d); a pandas or Arrow table, or a data set of
                Hugging Face, with a column of vectors (`vectors`, `embedding`, `features`, ...)
                and one of ids (`id`, `name`, `path`, ...) if there is one; or a sequence such as a
                PyTorch data set, whose items are vectors or begin with one.
            ids: One id for each row; by default the table's, or the numbers of the rows.
            name: The name of the model that made the vectors.

        Raises:
            InvalidData: The rows are not vectors of one length, or the ids do not fit them.

        Examples:
            >>> Embeddings.from_rows(np.eye(3), ["a", "b", "c"], name="my-model")
            Embeddings('my-model', rows=3, dimensions=3)
        """
        vectors, own_ids = _plain_rows(rows)
        id_list = own_ids if ids is None else list(ids)
        listed = range(len(vectors)) if id_list is None else id_list
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or len(listed) != len(vectors):
            raise InvalidData(
                "rows must be vectors of one length (n, d) with one id each, got shape "
                f"{vectors.shape}, {vectors.dtype} and {len(listed)} ids."
            )
        held = cls.__new__(cls)
        held.file, held._name, held._texts = Path(name), name, None
        held._held = vectors, _plain_ids(name, [str(each) for each in listed])
        held._table = _Table(*vectors.shape)
        return held

    @property
    def name(self) -> str:
        return self._name

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return self._table.dimensions

    def __len__(self) -> int:
        return self._table.rows

    def pieces(self, rows: int = _PIECE) -> Iterator[tuple[list[str], Floats]]:
        """(ids, unit vectors) in the file's order, at most `rows` at a time.

        Raises:
            HostileFile: An id occurs twice, or a vector is not finite.
        """
        start = 0
        for ids, vectors in self._read(rows):
            yield ids, _checked(self.file.name, vectors, start)
            start += len(vectors)

    def take(self, most: int) -> tuple[list[str], Floats]:
        """Return ids and vectors of at most `most` rows, spread evenly over the file.

        It is meant for public rows.
        """
        step = max(1, -(-len(self) // most))
        ids: list[str] = []
        parts: list[Floats] = []
        start = 0
        for names, vectors in self.pieces():
            first = -start % step
            ids += names[first::step]
            parts.append(vectors[first::step])
            start += len(names)
        empty = np.empty((0, self.dimensions), np.float32)
        return ids, np.concatenate(parts) if parts else empty

    def of(self, ids: Sequence[str]) -> Floats:
        """The vectors (n, d) of these ids, in their order.

        Raises:
            InvalidData: The file has no vector for one of them.
        """
        wanted = {name: row for row, name in enumerate(dict.fromkeys(ids))}
        rows = np.full((len(wanted), self.dimensions), np.nan, np.float32)
        for names, vectors in self.pieces():
            for name, vector in zip(names, vectors, strict=True):
                if name in wanted:
                    rows[wanted[name]] = vector
        missing = [name for name, row in wanted.items() if np.isnan(rows[row, 0])]
        if missing:
            raise InvalidData(
                f"{self.file.name} has no vector for {len(missing):,} of {len(wanted):,} images, "
                f"the first of them {missing[0][:60]!r}. Its ids must be the images' names "
                "relative to their folder."
            )
        return rows[[wanted[name] for name in ids]]

    def vectors(self, rows: NDArray[np.floating]) -> Floats:
        """Query vectors as unit rows, after their shape and values have been checked."""
        queries = np.atleast_2d(np.asarray(rows, dtype=np.float32))
        if queries.ndim != 2 or queries.shape[1] != self.dimensions:
            raise InvalidData(
                f"vectors of {self.name} have {self.dimensions} numbers, got shape {queries.shape}."
            )
        return _checked("the query", queries, 0)

    def read(self, source: Source) -> Images:
        """Raise InvalidParameter: this encoder cannot encode images."""
        raise InvalidParameter(self._no_images())

    def prepare(self, image: NDArray[np.uint8]) -> Images:
        """Raise InvalidParameter: this encoder cannot encode images."""
        raise InvalidParameter(self._no_images())

    def images(self, pixels: Images) -> Floats:
        """Raise InvalidParameter: this encoder cannot encode images."""
        raise InvalidParameter(self._no_images())

    def texts(self, texts: Sequence[str]) -> Floats | None:
        """Vectors of names that are in the text file, or None if there is no text file."""
        if self._texts is None:
            return None
        unknown = [text for text in texts if text.strip().lower() not in self._texts]
        if unknown:
            raise InvalidParameter(
                f"the file of text vectors has no entry {unknown[0][:60]!r}. Add its vector, or "
                "search with vector= or one of its names."
            )
        rows = [self._texts[text.strip().lower()] for text in texts]
        return np.stack(rows) if rows else np.empty((0, self.dimensions), np.float32)

    def text_names(self) -> tuple[str, ...]:
        """The names in the text file; empty if there is no text file."""
        return tuple(self._texts or ())

    def classes(self) -> Classes | None:
        """None: a file of vectors has no classifier."""
        return None

    def identity(self) -> Identity:
        """Name and dimensions, but nothing that depends on the vectors, which are private."""
        return {"kind": "embeddings", "name": self.name, "dimensions": self.dimensions}

    def __repr__(self) -> str:
        return f"Embeddings({self.name!r}, rows={len(self)}, dimensions={self.dimensions})"

    def _no_images(self) -> str:
        return (
            f"{self.name} is a file of vectors and cannot encode images. Encode them with the "
            "model that made the vectors, and pass vector=."
        )

    def _open(self) -> _Table:
        suffix = self.file.suffix.lower()
        if suffix == ".npy":
            return _Table(*_shape(self.file.name, self._mapped()))
        if suffix == ".npz":
            vectors, _ = self._packed()
            return _Table(*_shape(self.file.name, vectors))
        if suffix in (".parquet", ".pq"):
            return self._parquet_table()
        raise InvalidParameter(
            f"vectors come as .npy, .npz or .parquet, got {self.file.name!r}. Convert the file."
        )

    def _read(self, rows: int) -> Iterator[tuple[list[str], NDArray[np.generic]]]:
        suffix = self.file.suffix.lower()
        if self._held is not None:
            vectors, ids = self._held
            for start in range(0, len(vectors), rows):
                yield ids[start : start + rows], vectors[start : start + rows]
        elif suffix == ".npy":
            mapped = self._mapped()
            for start in range(0, len(mapped), rows):
                piece = np.array(mapped[start : start + rows])
                yield [str(number) for number in range(start, start + len(piece))], piece
        elif suffix == ".npz":
            vectors, ids = self._packed()
            for start in range(0, len(vectors), rows):
                yield ids[start : start + rows], vectors[start : start + rows]
        else:
            yield from self._parquet_pieces(rows)

    def _mapped(self) -> NDArray[np.generic]:
        try:
            with one_parser():
                mapped = np.load(self.file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError, SyntaxError) as error:
            raise HostileFile(
                f"{self.file.name} is not a .npy file of plain numbers: {str(error)[:100]}"
            ) from None
        if not isinstance(mapped, np.ndarray):
            raise HostileFile(f"{self.file.name} is not a .npy file of plain numbers.")
        return mapped

    def _packed(self) -> tuple[NDArray[np.generic], list[str]]:
        """Read the whole arrays of an .npz file, within the size limits of data files."""
        try:
            with zipfile.ZipFile(self.file) as archive:
                members = archive.infolist()
                for member in members:
                    check_packing(member)
                if sum(member.file_size for member in members) > LIMITS.unpacked_bytes:
                    raise HostileFile(
                        f"{self.file.name} unpacks to more than {LIMITS.unpacked_bytes:,} bytes. "
                        "Use .npy or Parquet, which are read in pieces."
                    )
            with one_parser(), np.load(self.file, allow_pickle=False) as packed:
                names = list(packed.keys())
                vectors = packed[_chosen(self.file.name, names, _VECTOR_NAMES, "vectors")]
                listed = [name for name in names if name in _ID_NAMES]
                ids = packed[listed[0]] if listed else np.arange(len(vectors))
        except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError) as error:
            if isinstance(error, HostileFile):
                raise
            raise HostileFile(
                f"{self.file.name} is not an .npz file of plain arrays: {str(error)[:100]}"
            ) from None
        if ids.ndim != 1 or ids.dtype.kind not in "USiu":
            raise HostileFile(f"the ids of {self.file.name} must be one row of texts or numbers.")
        if vectors.ndim == 2 and len(ids) != len(vectors):
            raise HostileFile(f"{self.file.name} holds {len(ids)} ids for {len(vectors)} vectors.")
        return vectors, _plain_ids(self.file.name, ids.tolist())

    def _parquet_table(self) -> _Table:
        parquet = self._parquet()
        schema = parquet.schema_arrow
        self._column = _chosen(self.file.name, schema.names, _VECTOR_NAMES, "vectors")
        self._id_column = next((name for name in _ID_NAMES if name in schema.names), None)
        first = next(iter(parquet.iter_batches(batch_size=1, columns=[self._column])), None)
        dimensions = 0 if first is None or not first.num_rows else len(first.column(0)[0])
        return _Table(parquet.metadata.num_rows, dimensions)

    def _parquet_pieces(self, rows: int) -> Iterator[tuple[list[str], NDArray[np.generic]]]:
        columns = [self._column, *([self._id_column] if self._id_column else [])]
        start = 0
        try:
            for batch in self._parquet().iter_batches(batch_size=rows, columns=columns):
                column = batch.column(0)
                if column.null_count:
                    raise HostileFile(f"{self.file.name} has a row without a vector.")
                flat = column.flatten()
                if len(flat) != batch.num_rows * self.dimensions or flat.null_count:
                    raise HostileFile(f"the vectors of {self.file.name} differ in length.")
                vectors = flat.to_numpy(zero_copy_only=False).reshape(-1, self.dimensions)
                ids = (
                    batch.column(1).to_pylist()
                    if self._id_column
                    else list(range(start, start + batch.num_rows))
                )
                start += batch.num_rows
                yield _plain_ids(self.file.name, ids), vectors
        except HostileFile:
            raise
        except Exception as error:  # pyarrow has a class for each kind of damage
            raise HostileFile(f"{self.file.name} cannot be read: {str(error)[:100]}") from None

    def _parquet(self) -> ParquetFile:
        module = optional_module("pyarrow.parquet", extra="tables")
        try:
            opened: ParquetFile = module.ParquetFile(self.file)
            return opened
        except Exception as error:  # pyarrow has a class for each kind of damage
            raise HostileFile(
                f"{self.file.name} is not a Parquet file: {str(error)[:100]}"
            ) from None


class QueryVectors(Embeddings):
    """Vectors to search with: a .npy file may also hold a single vector of shape (d,)."""

    def _mapped(self) -> NDArray[np.generic]:
        mapped = super()._mapped()
        return mapped[np.newaxis] if mapped.ndim == 1 else mapped


def _plain_rows(rows: RowSource) -> tuple[NDArray[np.generic], list[object] | None]:
    """The vectors as an array, and the ids if the rows are a table that has them."""
    if hasattr(rows, "detach"):  # a PyTorch tensor, on any device
        return np.asarray(rows.detach().cpu()), None
    columns = getattr(rows, "column_names", None)  # Arrow, Hugging Face
    if isinstance(columns, Mapping):
        raise InvalidData(
            f"rows must be one table, got the splits {', '.join(map(str, columns))}: choose one, "
            f"as in rows[{next(iter(columns), 'train')!r}]."
        )
    if columns is None and hasattr(rows, "iloc"):  # pandas
        columns = list(rows.columns)  # type: ignore[attr-defined]
    if columns is not None:
        named = {str(name): name for name in columns}
        if hasattr(rows, "select_dtypes") and not set(named) & set(_VECTOR_NAMES):
            # A pandas table with one column for each number.
            key = next((named[name] for name in _ID_NAMES if name in named), None)
            wide = rows.select_dtypes("number").drop(columns=[key] if key else [], errors="ignore")
            return wide.to_numpy(), list(wide.index) if key is None else _column(rows, key)
        chosen = _chosen("the table", list(named), _VECTOR_NAMES, "vectors")
        key = next((named[name] for name in _ID_NAMES if name in named), None)
        vectors = _column(rows, named[chosen])
        return np.stack([np.asarray(each) for each in vectors]), (
            None if key is None else _column(rows, key)
        )
    if hasattr(rows, "__array__"):
        return np.asarray(rows), None
    items = [rows[number] for number in range(len(rows))]  # type: ignore[index]
    firsts = [item[0] if isinstance(item, tuple) else item for item in items]
    return np.stack([np.asarray(each, dtype=np.float32) for each in firsts]), None


def _column(table: RowSource, name: object) -> list[object]:
    column = table[name]  # type: ignore[index]
    return list(column.to_pylist() if hasattr(column, "to_pylist") else column)


def encode_images(
    encoder: Encoder,
    images: NDArray[np.uint8] | LazyImages,
    names: Sequence[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Encode images as unit vectors (n, d) with any encoder. Nothing is stored on disk.

    Parameters:
        encoder: The encoder. For a file of vectors (`Embeddings`) the images are not
            decoded: their vectors are looked up by name.
        images: Decoded images, or images that are read on demand.
        names: The images' names relative to their folder, which are the ids in a file of vectors.
        progress: Called with (done, total).

    Raises:
        InvalidData: A file of vectors has no vector for an image.
        InvalidParameter: A file of vectors is given, and the images have no names.

    Examples:
        >>> from blindsight.encoders import built_in
        >>> encode_images(built_in("pixels"), np.zeros((2, 20, 30, 3), np.uint8) + 7).shape
        (2, 768)
    """
    if isinstance(encoder, Embeddings):
        if names is None:
            raise InvalidParameter(
                f"{encoder.name} is a file of vectors, and these images have no names to look "
                "them up by. Give an encoder that reads images."
            )
        return encoder.of(names)
    result = np.empty((len(images), encoder.dimensions), np.float32)
    for start in range(0, len(images), _BATCH):
        end = min(start + _BATCH, len(images))
        prepared = np.stack([encoder.prepare(images[row]) for row in range(start, end)])
        result[start:end] = encoder.images(prepared)
        if progress is not None:
            progress(end, len(images))
    return result


def general_texts(encoder: Encoder) -> Floats | None:
    """Vectors of general names: of common nouns, or of the names in a file of text vectors.

    Returns:
        None for an encoder without texts.
    """
    from blindsight.encoders.words import general_nouns

    if isinstance(encoder, Embeddings):
        names = encoder.text_names()
        return encoder.texts(names) if names else None
    return public_texts(encoder, general_nouns())


def public_texts(encoder: Encoder, texts: Sequence[str]) -> Floats | None:
    """Vectors of public texts, which are encoded once for each text tower and then stored.

    Returns:
        None for an encoder without texts.
    """
    tower = encoder.text_tower if isinstance(encoder, OnnxEncoder) else None
    if tower is None:
        return encoder.texts(texts)
    digest = identity_digest(encoder.identity())
    return public_vectors(digest, "\n".join(texts).encode(), len(texts), lambda: tower(texts))


def _shape(name: str, array: NDArray[np.generic]) -> tuple[int, int]:
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise HostileFile(
            f"{name} must hold numbers of shape (n, d), got {array.dtype} of shape {array.shape}."
        )
    return array.shape[0], array.shape[1]


def _checked(name: str, vectors: NDArray[np.generic], start: int) -> Floats:
    """Finite unit rows; a row of zeros has no direction and is refused."""
    if vectors.dtype.kind not in "fiu":
        raise HostileFile(f"{name} must hold numbers, got {vectors.dtype}.")
    rows = np.asarray(vectors, dtype=np.float64)
    norm = np.linalg.norm(rows, axis=1)
    wrong = np.flatnonzero(~np.isfinite(norm) | (norm == 0))
    if len(wrong):
        raise HostileFile(
            f"vector {start + int(wrong[0])} of {name} is zero or not finite. Remove such rows."
        )
    return unit_rows(rows)


def _plain_ids(name: str, ids: Sequence[object]) -> list[str]:
    texts = [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for value in ids
    ]
    if any(value is None for value in ids) or any(not 0 < len(text) <= _MAX_ID for text in texts):
        raise HostileFile(f"an id of {name} is empty or longer than {_MAX_ID} characters.")
    return texts


def _chosen(file: str, names: Sequence[str], wanted: Sequence[str], role: str) -> str:
    for name in wanted:
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    raise HostileFile(
        f"{file} has no {role}: expected one of {', '.join(wanted)}, found "
        f"{', '.join(map(str, names))[:100]}."
    )


def _text_side(file: str | os.PathLike[str], dimensions: int) -> dict[str, Floats]:
    side = Embeddings(file, name="texts")
    if side.dimensions != dimensions or len(side) > 1_000_000:
        raise HostileFile(
            f"the text vectors have {side.dimensions} numbers, the images' {dimensions}. Both "
            "must come from one model."
        )
    return {
        text.strip().lower(): row
        for ids, rows in side.pieces()
        for text, row in zip(ids, rows, strict=True)
    }
