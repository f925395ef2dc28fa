"""Exact scans over packed codes: nearest and within a radius by faiss' kernels, weighted bits by
byte tables.

faiss' counting kernel works on our own array, so an index needs no second copy of its codes; at 1
million 64-bit codes it is a fifth faster than the heap that `IndexBinaryFlat` uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import core_module
from blindsight.index.index_file import HNSW, IVF, Structure

__all__ = ["best_rows", "build_structure", "nearest_rows", "rows_within"]

# The counting kernel keeps (bits + 1) * k row numbers per query; queries go in batches that stay
# near 64 MB.
_COUNTER_BYTES = 1 << 26
_SCAN_ROWS = 1 << 16
# faiss asks for 39 training points a centre; below that the exact scan is fast anyway.
_POINTS_PER_CELL = 39


def nearest_rows(
    queries: NDArray[np.uint8], codes: NDArray[np.uint8], k: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Distances and rows (q, k) of the k nearest codes, nearest first; k is at most the number of
    codes.
    """
    faiss: Any = core_module("faiss")  # late: it takes a quarter of a second
    step = max(1, _COUNTER_BYTES // (8 * k * (8 * codes.shape[1] + 1)))
    if len(queries) <= step:
        distances, rows = faiss.knn_hamming(queries, codes, k, variant="mc")
        return distances, rows
    parts = [
        faiss.knn_hamming(queries[start : start + step], codes, k, variant="mc")
        for start in range(0, len(queries), step)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def rows_within(
    queries: NDArray[np.uint8], codes: NDArray[np.uint8], radius: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Distances, rows and limits (q + 1,) of all codes within the radius, nearest first in each
    query.
    """
    faiss: Any = core_module("faiss")  # late: it takes a quarter of a second
    result = faiss.RangeSearchResult(len(queries))
    # faiss' radius is exclusive.
    faiss.hamming_range_search(
        faiss.swig_ptr(queries),
        faiss.swig_ptr(codes),
        len(queries),
        len(codes),
        radius + 1,
        codes.shape[1],
        result,
    )
    limits = faiss.rev_swig_ptr(result.lims, len(queries) + 1).astype(np.int64)
    total = int(limits[-1])
    distances = (
        faiss.rev_swig_ptr(result.distances, total).astype(np.int32)
        if total
        else np.empty(0, np.int32)
    )
    rows = (
        faiss.rev_swig_ptr(result.labels, total).astype(np.int64)
        if total
        else np.empty(0, np.int64)
    )
    query = np.repeat(np.arange(len(queries)), np.diff(limits))
    order = np.lexsort((rows, distances, query))
    return distances[order], rows[order], limits


def best_rows(
    codes: NDArray[np.uint8], weights: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows and scores of the k codes with the largest weighted sum of signs, best first, earlier
    rows first in ties.
    """
    scores = weighted_sums(codes, weights)
    k = min(k, len(scores))
    rows = _largest(scores, k) if k < len(scores) else np.arange(len(scores))
    rows = rows[np.lexsort((rows, -scores[rows]))]
    return rows, scores[rows].astype(np.float64)


def weighted_sums(codes: NDArray[np.uint8], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum over bits of w_j s_j for every code, a table look-up a byte: 256 sums serve all codes."""
    tables = _byte_tables(weights, codes.shape[1])
    scores = np.zeros(len(codes), dtype=np.float32)
    for start in range(0, len(codes), _SCAN_ROWS):
        block, part = codes[start : start + _SCAN_ROWS], scores[start : start + _SCAN_ROWS]
        for byte, table in enumerate(tables):
            part += table[block[:, byte]]
    return scores


def _byte_tables(weights: NDArray[np.float32], width: int) -> Any:
    """T[b, v] = the weighted signs of byte b when it has value v; padding bits have weight 0."""
    padded = np.zeros(8 * width, dtype=np.float32)
    padded[: len(weights)] = weights
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return padded.reshape(width, 8) @ (2.0 * bits.T - 1).astype(np.float32)


def _largest(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Positions of the k largest in their order; of those level with the last, the earlier ones."""
    cut = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > cut)
    level = np.flatnonzero(scores == cut)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))


def build_structure(structure: Structure, codes: NDArray[np.uint8]) -> Any | None:
    """A faiss index over the codes, or None where the exact scan serves (flat, or too few codes to
    train).
    """
    faiss: Any = core_module("faiss")
    n_bits = 8 * codes.shape[1]
    if isinstance(structure, IVF):
        if len(codes) < _POINTS_PER_CELL * structure.cells:
            return None
        quantizer = faiss.IndexBinaryFlat(n_bits)
        index = faiss.IndexBinaryIVF(quantizer, n_bits, structure.cells)
        index.own_fields = True
        quantizer.this.disown()
        index.nprobe = min(structure.probes, structure.cells)
        index.train(codes[:: max(1, len(codes) // (256 * structure.cells))])
        index.add(codes)
        return index
    if isinstance(structure, HNSW) and len(codes):
        index = faiss.IndexBinaryHNSW(n_bits, structure.links)
        index.hnsw.efSearch = structure.effort
        index.add(codes)
        return index
    return None
