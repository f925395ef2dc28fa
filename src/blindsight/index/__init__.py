"""Search over released codes: the embedded `HammingIndex` and `CodebookIndex`, `MilvusIndex` for
clusters.
"""

from __future__ import annotations

from typing import Any

from blindsight.index.hamming import HammingIndex
from blindsight.index.hits import Hit, Hits
from blindsight.index.interface import CodeIndex
from blindsight.index.structure import HNSW, IVF, Flat

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
    if name == "MilvusIndex":
        from blindsight.index.milvus import MilvusIndex

        return MilvusIndex
    if name == "MilvusCodebookIndex":
        from blindsight.index.milvus_cells import MilvusCodebookIndex

        return MilvusCodebookIndex
    if name == "CodebookIndex":
        from blindsight.index.codebook import CodebookIndex

        return CodebookIndex
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
