"""What every index of codes can do, whichever engine holds the codes.

An engine brings six small things (add, remove, nearest, within, look up, walk through); everything
a user sees is built on them here once, so `HammingIndex` and `MilvusIndex` answer alike and read
each other's files.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.codes import MatchModel, check_codes, n_bytes
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index.index_file import (
    Flat,
    IndexHeader,
    Structure,
    check_ids,
    fresh_file,
    snapshot_records,
)
from blindsight.privacy import Guarantee

__all__ = ["CodeIndex", "Hit", "Hits", "RawHits", "by_photos"]


class RawHits(NamedTuple):
    """What an engine found, all queries one after the other: ids, distances, and where each query's
    part ends.
    """

    ids: NDArray[Any]
    distances: NDArray[np.int32]
    limits: NDArray[np.int64]


class CodeIndex(ABC):
    """Codes of `n_bits` bits under ids, searched by Hamming distance.

    Parameters:
        n_bits: the codes' length; codes come packed, as `blindsight.core.codes.pack` makes them.
        names: whether ids are names (text) rather than 64-bit integers.
        guarantee: what was promised when the codes were released; kept with the index and its
            files.
        decoding: how released codes are read (`MatchModel`); with it, every hit has a match
            probability.

    Guarantee: an index adds no noise. It is as private as the codes that are put in; `guarantee`
    says how private.
    """

    structure: Structure = Flat()  # how codes are searched in memory

    def __init__(
        self,
        n_bits: int,
        *,
        names: bool = False,
        guarantee: Guarantee | None = None,
        decoding: MatchModel | None = None,
    ) -> None:
        self.n_bits = checks.whole("n_bits", n_bits)
        self.width = n_bytes(self.n_bits)  # bytes of a code
        self.names = bool(names)
        if guarantee is not None and not isinstance(guarantee, Guarantee):
            raise InvalidParameter(
                f"guarantee must be a Guarantee or None, got {type(guarantee).__name__}."
            )
        if decoding is not None and not isinstance(decoding, MatchModel):
            raise InvalidParameter(
                f"decoding must be a MatchModel or None, got {type(decoding).__name__}."
            )
        if decoding is not None and decoding.n_bits != self.n_bits:
            raise InvalidParameter(
                f"decoding is for {decoding.n_bits} bits, the index has {self.n_bits}."
            )
        self.guarantee = guarantee
        self.decoding = decoding

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _put(self, ids: NDArray[Any] | None, codes: NDArray[np.uint8]) -> NDArray[Any]: ...

    @abstractmethod
    def _take(self, ids: NDArray[Any]) -> int: ...

    @abstractmethod
    def _nearest(self, queries: NDArray[np.uint8], k: int) -> RawHits: ...

    @abstractmethod
    def _within(self, queries: NDArray[np.uint8], radius: int) -> RawHits: ...

    @abstractmethod
    def _best(
        self, weights: NDArray[np.float32], k: int
    ) -> tuple[RawHits, NDArray[np.float64]]: ...

    @abstractmethod
    def _lookup(self, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]: ...

    @abstractmethod
    def items(self) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
        """All ids and codes, in batches: never the whole index at once where the engine can avoid
        it.
        """

    @cached_property
    def _curve(self) -> NDArray[np.float64] | None:
        """The match probability at each distance 0..c."""
        return None if self.decoding is None else self.decoding.curve()

    def __contains__(self, key: object) -> bool:
        if isinstance(key, bool) or not isinstance(key, str if self.names else (int, np.integer)):
            return False
        return len(self._lookup(check_ids([key], names=self.names))[0]) == 1

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> NDArray[Any]:
        """Put codes in and return their ids; durable when it returns, all or nothing after a crash.

        A code under an id that is here already takes its place (an upsert). Remember that a second
        released code of the same photo is a second release: whoever saw both pays both. Without
        `ids`, integers are counted on.
        """
        checked = check_codes(codes, self.n_bits)
        keys = None
        if ids is not None:
            keys = check_ids(ids, names=self.names)
            if len(keys) != len(checked):
                raise InvalidData(f"got {len(keys)} ids for {len(checked)} codes: give one each.")
        elif self.names:
            raise InvalidParameter("ids must be given: this index goes by names.")
        return self._put(keys, checked)

    def remove(self, ids: ArrayLike) -> int:
        """Remove codes and return how many there were; unknown ids are ignored."""
        return self._take(check_ids(ids, names=self.names))

    def search(
        self, codes: ArrayLike, k: int = 10, *, min_probability: float | None = None
    ) -> Hits:
        """The k nearest codes of each query, best first (fewer where the index holds fewer, or by
        threshold).
        """
        queries = check_codes(codes, self.n_bits, name="queries")
        k = checks.whole("k", k)
        return self._hits(self._nearest(queries, k), min_probability)

    def within(
        self, codes: ArrayLike, radius: int, *, min_probability: float | None = None
    ) -> Hits:
        """All codes within a Hamming radius of each query, best first. Exact in every structure."""
        queries = check_codes(codes, self.n_bits, name="queries")
        radius = checks.whole("radius", radius, least=0)
        return self._hits(self._within(queries, min(radius, self.n_bits)), min_probability)

    def search_soft(
        self, projections: ArrayLike, k: int = 10, *, min_probability: float | None = None
    ) -> Hits:
        """Rank by the query's real values (q, c) instead of their signs: the asymmetric, debiased
        inner product.

        The score is sum over bits of z_j (1 - 2 beta) s_j, the expected inner product with the true
        code: a bit that the query holds only just counts less. Distances and probabilities are
        those of the query's signs.
        """
        z = checks.finite_array("projections", projections, ndim=2)
        beta = 0.0 if self.decoding is None else self.decoding.beta
        return self.rank(z * (1 - 2 * beta), k, min_probability=min_probability)

    def rank(
        self, weights: ArrayLike, k: int = 10, *, min_probability: float | None = None
    ) -> Hits:
        """The k codes with the largest sum over bits of w_j s_j, where s_j is +1 for a set bit and
        -1 otherwise.

        This is what soft rankings come down to: real-valued queries, or bits of unequal
        reliability. Ties go to the earlier code.
        """
        w = checks.finite_array("weights", weights, ndim=2)
        if w.shape[1] != self.n_bits:
            raise InvalidData(
                f"weights must have {self.n_bits} columns, one per bit, got {w.shape[1]}."
            )
        raw, scores = self._best(w.astype(np.float32), checks.whole("k", k))
        return self._hits(raw, min_probability, scores)

    def codes_of(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The stored codes of these ids, in their order; an unknown id is refused."""
        keys = check_ids(ids, names=self.names)
        known, codes = self._lookup(keys)
        rows = {key: row for row, key in enumerate(known.tolist())}
        missing = sum(key not in rows for key in keys.tolist())
        if missing:
            raise InvalidData(f"{missing} of {len(keys)} ids are not in the index.")
        return codes[[rows[key] for key in keys.tolist()]]

    def save(self, path: str | PathLike[str]) -> None:
        """Write all codes, the guarantee and the decoding to one checked file, in place in one
        step.
        """
        records = (record for ids, codes in self.items() for record in snapshot_records(ids, codes))
        fresh_file(Path(path), self._header().to_fields(), records, replace=True)

    def _header(self) -> IndexHeader:
        return IndexHeader(
            n_bits=self.n_bits,
            names=self.names,
            guarantee=self.guarantee,
            decoding=self.decoding,
            structure=self.structure,
        )

    def _hits(
        self,
        raw: RawHits,
        min_probability: float | None,
        scores: NDArray[np.float64] | None = None,
    ) -> Hits:
        chances = None if self._curve is None else self._curve[raw.distances]
        ranked_by = -raw.distances.astype(np.float64) if scores is None else scores
        hits = Hits(raw.ids, raw.distances, chances, ranked_by, raw.limits)
        if min_probability is None:
            return hits
        return hits.at_least(checks.probability("min_probability", min_probability))

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. What was acknowledged stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Hit(NamedTuple):
    """One found record.

    `distance` (Hamming) is there for codes of bits; `cell`, `trust` (how likely the stored cell is
    the true one) and `tied` (how many records share it, so that their order means nothing) for
    cells of a codebook. `probability` is that of a match or of relevance, where it is known.
    """

    id: int | str
    distance: int | None
    probability: float | None
    score: float
    cell: int | None = None
    trust: float | None = None
    tied: int = 1


def by_photos(key: int | str, likeness: float) -> Hit:
    """Return a record as its owner ranks it: by the photos themselves, not by its code."""
    return Hit(key, None, None, likeness)


@dataclass(frozen=True, eq=False)
class Hits:
    """The hits of all queries, one query after the other; `hits[i]` is query i's list, best first.

    Parameters:
        ids: (m,) int64, or object for names.
        distances: (m,) int32 Hamming distances between the query and the stored (flipped) code.
        probabilities: (m,) posterior probability of a match, or None where the index does not know
            its flips.
        scores: (m,) what the ranking went by, larger is better: minus the distance, or the soft
            score.
        limits: (queries + 1,) query i owns the slice limits[i]:limits[i + 1].
        cells: (m,) with a codebook, the released cell of each hit; `distances` is then None.
        trust: (m,) with a codebook, the probability that noise did not change the cell.
        tied: (m,) with a codebook, how many photos have the same score.

    Examples:
        >>> from blindsight import HammingIndex
        >>> index = HammingIndex(8)
        >>> ids = index.add(np.array([[0b00000000], [0b00001111], [0b11111111]], np.uint8))
        >>> hits = index.search(np.array([[0b00000001]], np.uint8), k=2)
        >>> [(int(hit.id), int(hit.distance)) for hit in hits[0]]
        [(0, 1), (1, 3)]
    """

    ids: NDArray[Any]
    distances: NDArray[np.int32] | None
    probabilities: NDArray[np.float64] | None
    scores: NDArray[np.float64]
    limits: NDArray[np.int64]
    cells: NDArray[np.int64] | None = None
    trust: NDArray[np.float64] | None = None
    tied: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.limits) - 1

    def _repr_html_(self) -> str:
        """The hits of each query as a table, for a notebook."""
        rows = "".join(
            f"<tr><td>{query}</td><td>{rank}</td><td>{html.escape(str(hit.id))}</td>"
            f"<td>{hit.score:.4g}</td></tr>"
            for query, hits in enumerate(self)
            for rank, hit in enumerate(hits, start=1)
        )
        return f"<table><tr><th>query</th><th>rank</th><th>id</th><th>score</th></tr>{rows}</table>"

    def __getitem__(self, query: int) -> list[Hit]:
        if not -len(self) <= query < len(self):
            raise IndexError(f"query {query} of {len(self)}")
        start, stop = self.limits[query % len(self)], self.limits[query % len(self) + 1]
        rows = slice(int(start), int(stop))
        count = int(stop - start)
        columns = [
            _column(values, rows, count, default)
            for values, default in (
                (self.ids, None),
                (self.distances, None),
                (self.probabilities, None),
                (self.scores, None),
                (self.cells, None),
                (self.trust, None),
                (self.tied, 1),
            )
        ]
        return [Hit(*row) for row in zip(*columns, strict=True)]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def at_least(self, probability: float) -> Hits:
        """Only the hits whose posterior probability of a match reaches the threshold."""
        if self.probabilities is None:
            raise InvalidParameter(
                "these hits have no probabilities: a codebook needs labelled public pictures to "
                "calibrate on, "
                "an index of bits decoding=MatchModel(...) when it is made."
            )
        return self.only(self.probabilities >= probability)

    def only(self, keep: NDArray[np.bool_]) -> Hits:
        """Only the hits that are marked (m,)."""
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        columns = (
            self.distances,
            self.probabilities,
            self.scores,
            self.cells,
            self.trust,
            self.tied,
        )
        distances, probabilities, scores, cells, trust, tied = (
            None if values is None else values[keep] for values in columns
        )
        limits = kept_before[self.limits].astype(np.int64)
        return Hits(self.ids[keep], distances, probabilities, scores, limits, cells, trust, tied)  # type: ignore[arg-type]


def _column(values: NDArray[Any] | None, rows: slice, count: int, default: Any) -> list[Any]:
    return [default] * count if values is None else values[rows].tolist()
