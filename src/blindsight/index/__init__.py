"""Search over released codes: the embedded `HammingIndex` and `CodebookIndex`, `MilvusIndex` for
clusters.
"""

from __future__ import annotations

from typing import Any

from blindsight.index.base import CodeIndex, Hit, Hits
from blindsight.index.hamming import HammingIndex
from blindsight.index.index_file import HNSW, IVF, Flat

__all__ = [
    "HNSW",
    "IVF",
    "CodeIndex",
    "CodebookIndex",
    "Flat",
    "HammingIndex",
    "Hit",
    "Hits",
    "MilvusCodebookIndex",
    "MilvusIndex",
]


def __getattr__(name: str) -> Any:
    if name in ("MilvusIndex", "MilvusCodebookIndex"):
        from blindsight.index import milvus

        return getattr(milvus, name)
    if name == "CodebookIndex":
        from blindsight.index.cell_index import CodebookIndex

        return CodebookIndex
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
