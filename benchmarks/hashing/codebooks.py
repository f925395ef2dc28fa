"""Codebook search on photos: what is kept of unprotected search, what the numbers beside hits are
worth, and words.

Caltech-101 is halved by class: the even classes of the alphabet (A) were for choosing settings,
together with CIFAR-10 and COCO; the odd ones (B) are for reporting, and these rows report on them.
"Kept" is the share of the unprotected features' mean average precision above chance. 5 images per
class ask, the others are stored; public pictures are taken out of the stored ones, which then have
a baseline of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from blindsight import data, encoders
from blindsight.codebooks import Codebook, from_classes, from_head, from_pictures
from blindsight.core.errors import MissingData, MissingDependency
from blindsight.evaluation import retrieval
from blindsight.index import CodebookIndex

__all__ = ["Photos", "codebook_rows", "deep_rows", "kept", "lists_rows", "words_rows"]

Array = NDArray[Any]
_SIZE = encoders.feature_recipe("efficientnet").size
_SEEDS = 3
_FEW = 6  # photos of a class in a small folder
_MADE_FROM = {
    "": "public weights only",
    "_first_page": "public weights only",
    "_public_folder_of_100": "100 public pictures, taken at random",
    "_public_folder": "250 public pictures, 5 of each class, their classes not told",
    "_labelled_folder": "250 public pictures, 5 of each class, with their classes",
}


@dataclass(frozen=True)
class Photos:
    """Features and classes of queries and of stored photos."""

    queries: Array
    query_classes: Array
    stored: Array
    stored_classes: Array

    @property
    def relevant(self) -> NDArray[np.bool_]:
        """Whether a query and a stored photo share their class."""
        return np.asarray(self.query_classes[:, None] == self.stored_classes)

    def without(self, rows: Array) -> Photos:
        """The same with these stored photos taken out."""
        keep = np.setdiff1d(np.arange(len(self.stored)), rows)
        return Photos(
            self.queries, self.query_classes, self.stored[keep], self.stored_classes[keep]
        )

    def unprotected(self) -> tuple[float, float]:
        """Mean average precision and precision at 10 of the features themselves, by cosine."""
        q, x = (
            rows / np.linalg.norm(rows, axis=1, keepdims=True)
            for rows in (self.queries, self.stored)
        )
        return _precision(q @ x.T, self.relevant)


def kept(photos: Photos, book: Codebook, *, seed: int) -> tuple[float, float, float]:
    """(share kept, precision at 10, error of the number beside the first ten hits) over noise
    seeds.
    """
    base, _ = photos.unprotected()
    relevant, chance = photos.relevant, float(photos.relevant.mean())
    true, fit = book.assign(photos.stored), book.similarity(photos.queries)
    shares, tens, errors = [], [], []
    for number in range(_SEEDS):
        released = book.mechanism.release(true, rng=np.random.default_rng([seed, number]))
        reading = book.reading(np.bincount(released, minlength=book.k))
        scores = reading.scores(fit)[:, released]
        found, ten = _precision(scores, relevant)
        shares.append((found - chance) / (base - chance))
        tens.append(ten)
        trust, same = (
            np.broadcast_to(row, scores.shape)
            for row in (reading.trust[released], released == true)
        )
        shown, right = (scores, relevant) if book.calibrated else (trust, same)
        errors.append(_calibration(scores, shown, right, seed))
    return float(np.mean(shares)), float(np.mean(tens)), float(np.mean(errors))


def codebook_rows(*, quick: bool, seed: int = 0) -> Iterator[Row]:
    """Rows `hashing.kept_of_unprotected_caltechB_*`, with the error of every number that is shown
    beside hits.
    """
    try:
        photos = _caltech_b(seed)
    except (MissingData, MissingDependency) as error:
        yield Row(id="hashing.skipped.caltechB", value=0, unit="skipped", note=str(error))
        return
    base, ten = photos.unprotected()
    rng = np.random.default_rng(seed)
    some = rng.choice(len(photos.stored), 100, replace=False)
    five = np.concatenate(
        [
            rng.choice(np.flatnonzero(photos.stored_classes == c), 5, replace=False)
            for c in np.unique(photos.query_classes)
        ]
    )
    ways: dict[str, tuple[Photos, Callable[[float], Codebook]]] = {
        "": (photos, lambda e: from_head("lite0", e)),
        "_first_page": (photos, lambda e: from_head("lite0", e, first_page=True)),
        "_public_folder_of_100": (
            photos.without(some),
            lambda e: from_pictures(photos.stored[some], e, network="lite0"),
        ),
        "_public_folder": (
            photos.without(five),
            lambda e: from_pictures(photos.stored[five], e, network="lite0"),
        ),
        "_labelled_folder": (
            photos.without(five),
            lambda e: from_classes(
                photos.stored[five], photos.stored_classes[five], e, network="lite0"
            ),
        ),
    }
    for way, (some_photos, make) in ways.items():
        for epsilon in (8.0,) if quick or way == "_first_page" else (2.0, 4.0, 8.0, 16.0):
            start = time.process_time()
            book = make(epsilon)
            share, first, gap = kept(some_photos, book, seed=seed)
            shown = "relevance" if book.calibrated else "trust in the stored cell"
            even = np.bincount(np.arange(len(some_photos.stored)) % book.k, minlength=book.k)
            hidden = not book.calibrated and book.reading(even).shown_trust is None
            shown = f"{shown} (which is not shown)" if hidden else shown
            yield Row(
                id=f"hashing.kept_of_unprotected_caltechB{way}_eps{epsilon:g}",
                value=share,
                unit="share of mAP above chance",
                seed=seed,
                seconds=time.process_time() - start,
                note=f"{_MADE_FROM[way]}; {book.k:,} cells, P@10 {first:.3f} "
                f"(unprotected mAP {base:.3f}, P@10 {ten:.3f}); calibration error of the {shown} "
                f"{gap:.3f}; "
                f"{_SEEDS} noise seeds",
            )
    yield from _rerank_rows(photos, seed)
    yield from _nothing_rows(photos, seed)


def _nothing_rows(photos: Photos, seed: int) -> Iterator[Row]:
    """`hashing.nothing_here_*`: of queries whose class is not stored, how many are told so; and of
    the others.
    """
    gone = np.unique(photos.stored_classes)[::3]
    whole = photos.without(np.flatnonzero(np.isin(photos.stored_classes, gone)))
    few = whole.without(np.flatnonzero(_place_in_class(whole.stored_classes) >= _FEW))
    absent = np.isin(photos.query_classes, gone)
    for left, epsilon in [(whole, 4.0), (whole, 8.0), (whole, 16.0), (few, 8.0), (few, 16.0)]:
        book = from_head("lite0", epsilon)
        true, fit = book.assign(left.stored), book.similarity(left.queries)
        caught, wrong = [], []
        for number in range(_SEEDS):
            released = book.mechanism.release(true, rng=np.random.default_rng([seed, number]))
            counts = np.bincount(released, minlength=book.k)
            nothing = ~book.reading(counts).present(fit, counts)
            caught.append(nothing[absent].mean())
            wrong.append(nothing[~absent].mean())
        yield Row(
            id=f"hashing.nothing_here_caught_caltechB{'_few' if left is few else ''}_eps{epsilon:g}",  # noqa: E501
            value=float(np.mean(caught)),
            unit="share of queries of a class that is not stored",
            seed=seed,
            note=f"said wrongly to {np.mean(wrong):.3f} of the others; {len(gone)} of 50 classes "
            "left out, "
            f"{len(left.stored):,} photos stored",
        )


def _place_in_class(classes: Array) -> Array:
    """0 for the first photo of a class, 1 for its second, and so on."""
    place = np.zeros(len(classes), dtype=np.int64)
    for one in np.unique(classes):
        place[classes == one] = np.arange((classes == one).sum())
    return place


def _rerank_rows(photos: Photos, seed: int) -> Iterator[Row]:
    """The owner's re-ranking: 200 candidates by the cells, ordered by the features themselves."""
    book = from_head("lite0", 8.0)
    released = book.mechanism.release(
        book.assign(photos.stored), rng=np.random.default_rng([seed, 0])
    )
    index = CodebookIndex(book.k)
    index.add_cells(released)
    hits = index.search_codebook(book, book.similarity(photos.queries), 200)
    q, x = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (photos.queries, photos.stored)
    )
    right = []
    for row, found in enumerate(hits):
        ids = np.array([hit.id for hit in found])
        best = ids[np.argsort(-(x[ids] @ q[row]))[:10]]
        right.append((photos.stored_classes[best] == photos.query_classes[row]).mean())
    yield Row(
        id="hashing.rerank200_p10_caltechB_eps8",
        value=float(np.mean(right)),
        unit="precision at 10",
        seed=seed,
        note=f"200 of {len(photos.stored):,} candidates; unprotected {photos.unprotected()[1]:.3f}",
    )


def words_rows(*, seed: int = 0) -> Iterator[Row]:
    """`hashing.words_p10_*`: the 80 names of COCO as queries; many are ImageNet's too, which
    flatters the figures.
    """
    from blindsight.codebooks.cells import head_space, unit_rows
    from blindsight.encoders.words import class_weights, words_available

    try:
        coco = data.load("coco-subset")
        if not words_available():
            raise MissingData(
                "class names and sentence vectors are not on this machine: run a search by --words "
                "once."
            )
        X = encoders.EfficientNet(size=_SIZE, cache=True).transform(coco)
    except (MissingData, MissingDependency) as error:
        yield Row(id="hashing.skipped.words", value=0, unit="skipped", note=str(error))
        return
    _, classes = head_space("lite0")
    points = unit_rows(np.stack([class_weights(name) for name in coco.classes]) @ classes)
    relevant = np.asarray(coco.labels).T.astype(bool)
    chance = float(relevant.mean())
    open_book = from_head("lite0", 8.0)
    found = {"unprotected": _precision(points @ open_book.embedding(X).T, relevant)[1]}
    for epsilon in (8.0, 16.0):
        book = from_head("lite0", epsilon)
        released = book.mechanism.release(book.assign(X), rng=np.random.default_rng(seed))
        reading = book.reading(np.bincount(released, minlength=book.k))
        scores = reading.scores(book.cells.similarity(points))[:, released]
        found[f"private_eps{epsilon:g}"] = _precision(scores, relevant)[1]
    for key, value in found.items():
        yield Row(
            id=f"hashing.words_p10_{key}",
            value=value,
            unit="precision at 10",
            seed=seed,
            note=f"80 COCO names as words, {len(X):,} images, chance {chance:.3f}",
        )


def deep_rows(*, seed: int = 0) -> Iterator[Row]:
    """`hashing.dsh_map_48`, `hashing.dpsh_map_48`: raw features, one global scale; whitening halves
    both.
    """
    from blindsight.hashing import DPSH, DSH

    try:
        train, test = data.load("cifar10", "train")[:10_000], data.load("cifar10", "test")[:1_000]
        network = encoders.EfficientNet(size=96, cache=True)
        X, Q = network.transform(train), network.transform(test)
        for name, base in (("dsh", DSH), ("dpsh", DPSH)):
            start = time.process_time()
            hasher = base(48, random_state=seed).fit(X, train.labels)
            found = retrieval.mean_average_precision(
                hasher.transform(Q), hasher.transform(X), test.labels, train.labels
            )
            yield Row(
                id=f"hashing.{name}_map_48",
                value=found,
                unit="mAP",
                seed=seed,
                seconds=time.process_time() - start,
                note="CIFAR-10, 10,000 images learned from and searched, 1,000 queries, 1,280 raw "
                "features",
            )
    except (MissingData, MissingDependency) as error:
        yield Row(id="hashing.skipped.deep", value=0, unit="skipped", note=str(error))


def lists_rows(*, quick: bool, seed: int = 0) -> Iterator[Row]:
    """`index.codebook_search_*`: inverted lists against scoring every record from its posterior
    over the cells (how it was done before), and their own time and size.
    """
    rng = np.random.default_rng(seed)
    for k, epsilon in ((414, 8),) if quick else ((414, 8), (5_962, 12)):
        scores = rng.random((1, k)).astype(np.float32)
        for n in (1_000_000,) if quick or epsilon == 12 else (1_000_000, 10_000_000):
            cells = rng.integers(0, k, n)
            index = CodebookIndex(k)
            start = time.process_time()
            index.add_cells(cells)
            index.best(scores, 12)
            built = time.process_time() - start

            def lists(index: CodebookIndex = index, scores: Array = scores) -> None:
                for _ in range(20):
                    index.best(scores, 12)

            start = time.process_time()
            _scan(cells, scores[0], float(epsilon))
            scanned = time.process_time() - start
            start = time.process_time()
            lists()
            searched = (time.process_time() - start) / 20
            size = "1m" if n == 1_000_000 else "10m"
            yield Row(
                id=f"index.codebook_search_{size}_vs_scan"
                + ("" if epsilon == 8 else f"_eps{epsilon}"),
                value=scanned / searched,
                unit="times as fast (CPU)",
                peer="numpy, n x k scores",
                seed=seed,
                seconds=searched,
                note=f"{k:,} cells, {n:,} records, top 12 in {1000 * searched:.2f} ms; the scan "
                f"{1000 * scanned:.0f} ms; built in {built:.2f} s; 8 bytes per record beside ids",
            )


def _scan(cells: Array, scores: Array, epsilon: float, block: int = 2048) -> Array:
    """The expected score of every record under its posterior over all cells, then the best
    twelve.
    """
    found = np.empty(len(cells), dtype=np.float32)
    for start in range(0, len(cells), block):
        part = cells[start : start + block]
        posterior = np.full((len(part), len(scores)), np.exp(-epsilon), dtype=np.float32)
        posterior[np.arange(len(part)), part] = 1
        found[start : start + block] = posterior @ scores / posterior.sum(axis=1)
    return np.argpartition(-found, 12)[:12]


def _caltech_b(seed: int) -> Photos:
    images = data.load("caltech101")
    rank = {name: place for place, name in enumerate(sorted(images.classes))}
    labels = np.asarray(images.labels)
    odd = np.array([rank[images.classes[label]] % 2 == 1 for label in labels])
    X = encoders.EfficientNet(size=_SIZE, cache=True).transform(images[np.flatnonzero(odd)])
    y = labels[odd]
    rng = np.random.default_rng(seed)
    asks = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        asks[rng.choice(np.flatnonzero(y == label), 5, replace=False)] = True
    return Photos(X[asks], y[asks], X[~asks], y[~asks])


def _precision(scores: Array, relevant: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean average precision and precision at 10, both exact expectations over the order of
    ties.
    """
    found = float(np.nanmean(retrieval.score_precisions(scores, relevant)))
    return found, float(
        np.mean([_first_ten(row, wanted) for row, wanted in zip(scores, relevant, strict=True)])
    )


def _first_ten(scores: Array, relevant: NDArray[np.bool_]) -> float:
    tenth = np.partition(scores, len(scores) - 10)[len(scores) - 10]
    above, tied = scores > tenth, scores == tenth
    return float(relevant[above].sum() + (10 - above.sum()) * relevant[tied].mean()) / 10


def _calibration(scores: Array, shown: Array, right: Array, seed: int) -> float:
    """Of the first ten hits: the mean gap between the shown probability and what comes true, in ten
    bins.
    """
    rng = np.random.default_rng(seed)
    top = np.argsort(-(scores + 1e-9 * rng.random(scores.shape)), axis=1)[:, :10]
    return _expected_error(
        np.take_along_axis(shown, top, 1).ravel(), np.take_along_axis(right, top, 1).ravel()
    )


def _expected_error(shown: Array, right: Array) -> float:
    place = np.minimum((10 * shown).astype(int), 9)
    gaps = [
        abs(shown[place == b].mean() - right[place == b].mean()) * (place == b).mean()
        for b in np.unique(place)
    ]
    return float(np.sum(gaps))
