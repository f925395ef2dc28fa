"""What is left at a proven epsilon per record: every method on one plot.

Hash functions and cells are learned from a fifth of the database taken as public; the rest is
protected and searched. Methods that learn from the protected images themselves, with noise, say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.hashing import plots
from benchmarks.hashing.privunit import PrivUnitHasher
from benchmarks.hashing.probing import multi_probe_distances
from benchmarks.hashing.protocols import Repeated, repeat
from benchmarks.hashing.sampling import BEST_PRICE, SampledPHashing
from benchmarks.hashing.sets import Collection
from blindsight.core import codes
from blindsight.evaluation import retrieval
from blindsight.hashing import ITQ, PITQ, SDH, CodebookHasher, PHashing

__all__ = ["record_rows"]

Score = Callable[[slice], NDArray[Any]]


@dataclass(frozen=True)
class _Task:
    """Public images to learn from, protected ones to search, queries."""

    public: NDArray[Any]
    public_labels: NDArray[Any]
    stored: NDArray[Any]
    stored_labels: NDArray[Any]
    queries: NDArray[Any]
    query_labels: NDArray[Any]
    books: dict[tuple[float, bool, int], CodebookHasher] = field(default_factory=dict)

    def book(self, epsilon: float, supervised: bool, seed: int) -> CodebookHasher:
        """A codebook from the public images, learned once."""
        key = (epsilon, supervised, seed)
        if key not in self.books:
            hasher = CodebookHasher(
                epsilon=epsilon, supervised=supervised, random_state=seed, learned_from="public"
            )
            self.books[key] = hasher.fit(self.public, self.public_labels if supervised else None)
        return self.books[key]

    @cached_property
    def relevant(self) -> NDArray[np.float32]:
        """1 where a query and a stored image share a label, else 0."""
        asked, searched = retrieval.label_words(self.query_labels, self.stored_labels)
        return np.stack([(row & searched).any(axis=1) for row in asked]).astype(np.float32)

    def by_cell(self, scores: NDArray[Any], cells: NDArray[np.int64]) -> float:
        """Tie-aware mAP of scores (m, k) for all that is stored under a cell: by counting, without
        sorting images.
        """
        held = np.eye(scores.shape[1], dtype=np.float32)[cells]
        order = np.argsort(-scores, axis=1)
        right = np.take_along_axis(self.relevant @ held, order, axis=1)
        counts = np.stack([held.sum(axis=0)[order], right], axis=1)
        return retrieval.average_precisions(np.rint(counts).astype(np.int64)).mean

    def precision(self, score: Score) -> float:
        """Tie-aware mAP of scores for a block of queries."""
        found = retrieval.ranked_precisions(score, self.query_labels, self.stored_labels)
        return float(np.nanmean(found))


def _task(collection: Collection, n_queries: int) -> _Task:
    public = collection.public
    stored = np.setdiff1d(np.arange(len(collection.database)), public)
    return _Task(
        collection.database[public],
        collection.database_labels[public],
        collection.database[stored],
        collection.database_labels[stored],
        collection.queries[:n_queries],
        collection.query_labels[:n_queries],
    )


def _hamming(task: _Task, hasher: Any) -> float:
    counts = retrieval.distance_counts(
        hasher.query(task.queries),
        hasher.transform(task.stored),
        task.query_labels,
        task.stored_labels,
    )
    return retrieval.average_precisions(counts).mean


def _soft(task: _Task, base: Any, epsilon: float, seed: int) -> float:
    hasher = PHashing(base, epsilon=epsilon, random_state=seed, learned_from="public").fit(
        task.public, task.public_labels
    )
    stored, z = hasher.transform(task.stored), hasher.decision_function(task.queries)
    return task.precision(
        lambda rows: codes.asymmetric_scores(z[rows], stored, hasher.mechanism_.beta)
    )


def _best_bits(epsilon: float) -> int:
    return max(2, round(epsilon / BEST_PRICE))


def flipped(task: _Task, epsilon: float, seed: int) -> float:
    """PHashing (ITQ), 32 bits, Hamming distance."""
    return _hamming(
        task,
        PHashing(
            ITQ(32, random_state=seed), epsilon=epsilon, random_state=seed, learned_from="public"
        ).fit(task.public),
    )


def few_bits(task: _Task, epsilon: float, seed: int) -> float:
    """As few flipped ITQ bits as the budget buys well, soft decoding."""
    return _soft(task, ITQ(_best_bits(epsilon), random_state=seed), epsilon, seed)


def few_supervised_bits(task: _Task, epsilon: float, seed: int) -> float:
    """The same with SDH."""
    return _soft(task, SDH(_best_bits(epsilon), random_state=seed), epsilon, seed)


def sampled(task: _Task, epsilon: float, seed: int) -> float:
    """A few of 32 ITQ bits, drawn for each image."""
    hasher = SampledPHashing(
        ITQ(32, random_state=seed), epsilon=epsilon, random_state=seed, learned_from="public"
    ).fit(task.public)
    released = hasher.transform(task.stored)
    return task.precision(lambda rows: hasher.scores(task.queries[rows], released))


def multi_probe(task: _Task, epsilon: float, seed: int) -> float:
    """As few flipped ITQ bits as the budget buys well, eight probes a query."""
    hasher = PHashing(
        ITQ(_best_bits(epsilon), random_state=seed),
        epsilon=epsilon,
        random_state=seed,
        learned_from="public",
    ).fit(task.public)
    released, z = hasher.transform(task.stored), hasher.decision_function(task.queries)
    return task.precision(lambda rows: -multi_probe_distances(z[rows], released, 8))


def priv_unit(task: _Task, epsilon: float, seed: int) -> float:
    """PrivUnit on principal components."""
    hasher = PrivUnitHasher(epsilon=epsilon, random_state=seed, learned_from="public").fit(
        task.public
    )
    released = hasher.transform(task.stored)
    return task.precision(lambda rows: hasher.scores(task.queries[rows], released))


def pitq(task: _Task, epsilon: float, seed: int) -> float:
    """PITQ, proven, learned from the protected images with noise; few bits, Hamming distance."""
    hasher = PITQ(_best_bits(0.75 * epsilon), epsilon=epsilon, random_state=seed)
    return _hamming(task, hasher.fit(task.stored))


def _codebook(task: _Task, hasher: CodebookHasher, *, noise: bool = True) -> float:
    """By the released cells; without noise, by the true ones."""
    similarity, alone = hasher.similarity(task.queries), np.eye(hasher.n_cells_, dtype=np.uint8)
    if not noise:
        return task.by_cell(similarity, hasher.assign(task.stored))
    released = hasher.transform(task.stored)
    if hasher.mechanism == "k-ary":
        cells = codes.unpack(released, hasher.n_cells_).argmax(axis=1)
        return task.by_cell(similarity @ hasher.posterior(codes.pack(alone)).T, cells)
    posterior = hasher.posterior(released)
    return task.precision(lambda rows: similarity[rows] @ posterior.T)


def codebook(task: _Task, epsilon: float, seed: int) -> float:
    """Codebook, k-ary response, public cells."""
    return _codebook(task, task.book(epsilon, False, seed))


def subset(task: _Task, epsilon: float, seed: int) -> float:
    """Codebook, subset selection, the same number of public cells."""
    hasher = CodebookHasher(
        epsilon=epsilon,
        n_cells=task.book(epsilon, False, seed).n_cells_,
        mechanism="subset",
        random_state=seed,
        learned_from="public",
    )
    return _codebook(task, hasher.fit(task.public))


def supervised(task: _Task, epsilon: float, seed: int) -> float:
    """Codebook, supervised, public cells."""
    return _codebook(task, task.book(epsilon, True, seed))


def private_cells(task: _Task, epsilon: float, seed: int) -> float:
    """Codebook, cells learned from the protected images with noise."""
    hasher = CodebookHasher(epsilon=epsilon, learned_from="private", random_state=seed)
    return _codebook(task, hasher.fit(task.stored))


METHODS: dict[str, tuple[str, Callable[[_Task, float, int], float]]] = {
    "codebook_supervised": ("codebook, supervised", supervised),
    "codebook": ("codebook, k-ary response", codebook),
    "codebook_subset": ("codebook, subset selection", subset),
    "codebook_private": ("codebook, private cells", private_cells),
    "privunit": ("PrivUnit", priv_unit),
    "few_bits_sdh": ("few flipped SDH bits, soft decoding", few_supervised_bits),
    "few_bits_itq": ("few flipped ITQ bits, soft decoding", few_bits),
    "multi_probe": ("few flipped ITQ bits, multi-probe", multi_probe),
    "sampled_bits": ("sampled ITQ bits", sampled),
    "pitq": ("PITQ, proven", pitq),
    "flip": ("flipped ITQ-32, Hamming", flipped),
}


def record_rows(
    collection: Collection, out: Path, *, epsilons: tuple[float, ...], n_queries: int, main: bool
) -> Iterator[Row]:
    """Every method at every epsilon, the plot, and the shares kept at 4 and 8; `main` also under
    the plain ids.
    """
    task = _task(collection, n_queries)
    lines: dict[str, dict[float, float]] = {}
    for key, (title, method) in METHODS.items():
        for epsilon in epsilons:
            found = Repeated(tuple(method(task, epsilon, seed) for seed in collection.seeds[:3]))
            lines.setdefault(title, {})[epsilon] = found.mean
            yield Row(
                id=f"hashing.{collection.name}.record.{key}.eps{epsilon:g}",
                value=found.mean,
                unit="mAP",
                note=f"± {found.deviation:.4f} over {len(found.values)} seeds; {title}; "
                f"{n_queries} queries",
            )
    cosine = _cosine(task)
    levels = {"without privacy: cosine of the features": cosine, "chance": collection.chance}
    plots.by_epsilon(
        lines,
        levels,
        out / f"record-{collection.name}.svg",
        f"{collection.name}: retrieval at record level",
    )
    yield Row(
        id=f"hashing.{collection.name}.record.cosine",
        value=cosine,
        unit="mAP",
        note="no privacy, no hashing",
    )
    yield from _kept(collection, task, main)


def _cosine(task: _Task) -> float:
    mean = task.public.mean(axis=0)
    query, stored = (rows - mean for rows in (task.queries, task.stored))
    query, stored = (
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        for rows in (query, stored)
    )
    return task.precision(lambda rows: query[rows] @ stored.T)


def _kept(collection: Collection, task: _Task, main: bool) -> Iterator[Row]:
    """The share of the excess over chance that noise leaves, against the same method without
    noise.
    """

    def cells(epsilon: float, with_labels: bool) -> tuple[Repeated, Repeated, list[int]]:
        noisy, plain, chosen = [], [], []
        for seed in collection.seeds:
            hasher = task.book(epsilon, with_labels, seed)
            noisy.append(_codebook(task, hasher))
            plain.append(_codebook(task, hasher, noise=False))
            chosen.append(hasher.n_cells_)
        return Repeated(tuple(noisy)), Repeated(tuple(plain)), chosen

    for epsilon in (8.0, 4.0):
        for with_labels, suffix in ((False, ""), (True, ".supervised")):
            noisy, plain, chosen = cells(epsilon, with_labels)
            note = (
                f"mAP {noisy.mean:.3f} ± {noisy.deviation:.3f} against {plain.mean:.3f}, {chosen} "
                "cells"
            )
            yield from _share(
                collection,
                f"codebook_kept_at_record_eps{epsilon:g}",
                suffix,
                noisy,
                plain,
                note,
                main,
            )
    noisy, plain = _flip_pair(collection, task, 8.0)
    note = f"mAP {noisy.mean:.3f} ± {noisy.deviation:.3f} against {plain.mean:.3f}, ITQ, 32 bits"
    yield from _share(collection, "flip_kept_at_record_eps8", "", noisy, plain, note, main)


def _flip_pair(collection: Collection, task: _Task, epsilon: float) -> tuple[Repeated, Repeated]:
    def plain(seed: int) -> float:
        hasher = ITQ(32, random_state=seed).fit(task.public)
        query, stored = hasher.transform(task.queries), hasher.transform(task.stored)
        return retrieval.mean_average_precision(
            query, stored, task.query_labels, task.stored_labels
        )

    return repeat(lambda seed: flipped(task, epsilon, seed), collection.seeds), repeat(
        plain, collection.seeds
    )


def _share(
    collection: Collection,
    name: str,
    suffix: str,
    noisy: Repeated,
    plain: Repeated,
    note: str,
    main: bool,
) -> Iterator[Row]:
    kept = (noisy.mean - collection.chance) / max(plain.mean - collection.chance, 1e-9)
    row = Row(
        id=f"hashing.{name}.{collection.name}{suffix}",
        value=kept,
        unit="share of the excess over chance",
        peer="the same method without noise",
        note=f"{collection.name}: {note}; chance {collection.chance:.3f}",
    )
    if main:
        yield Row(
            id=f"hashing.{name}{suffix}",
            value=row.value,
            unit=row.unit,
            peer=row.peer,
            note=row.note,
        )
    else:
        yield row
