"""Released cells in inverted lists: the same answers as looking at every record, through any
history.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.codebooks import from_pictures
from blindsight.core.codes import cell_bits, from_codes, to_codes
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.index import CodebookIndex, HammingIndex
from blindsight.index.cell_index import CellLists

K = 9


def best_by_looking(records: dict[int, int], scores: np.ndarray, n: int) -> list[float]:
    return sorted((float(scores[cell]) for cell in records.values()), reverse=True)[:n]


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "search"]),
        st.lists(st.integers(0, 40), max_size=12, unique=True),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 10**6))
def test_any_history_of_adding_and_removing_answers_as_looking_at_all(history, seed) -> None:
    rng = np.random.default_rng(seed)
    index, records = CodebookIndex(K), {}
    for what, ids in history:
        if what == "add":
            cells = rng.integers(0, K, len(ids))
            index.add_cells(cells, ids)
            records |= dict(zip(ids, cells.tolist(), strict=True))
        elif what == "remove":
            assert index.remove(ids) == sum(key in records for key in ids)
            records = {key: cell for key, cell in records.items() if key not in ids}
        scores = rng.normal(size=(1, K))
        hits = index.best(scores, 7)[0]
        assert [hit.score for hit in hits] == best_by_looking(records, scores[0], 7)
        assert all(records[hit.id] == hit.cell for hit in hits) and len(
            {hit.id for hit in hits}
        ) == len(hits)
        held = np.bincount(np.array(list(records.values()), dtype=int), minlength=K)
        assert len(index) == len(records) and index.counts.tolist() == held.tolist()
    assert dict(zip(index.ids.tolist(), index.cells_of(index.ids).tolist(), strict=True)) == records


def test_large_changes_are_merged_and_the_dead_are_dropped() -> None:
    rng = np.random.default_rng(0)
    index = CodebookIndex(50)
    index.add_cells(rng.integers(0, 50, 30_000))
    index.best(rng.normal(size=(1, 50)), 3)
    index.add_cells(rng.integers(0, 50, 5_000))
    index.remove(np.arange(0, 30_000, 2))
    scores = rng.normal(size=(1, 50))
    hits = index.best(scores, 900)[0]
    cells = index.cells_of([hit.id for hit in hits])
    assert all(hit.id >= 30_000 or hit.id % 2 for hit in hits)
    assert cells.tolist() == [hit.cell for hit in hits] and len(index) == 20_000
    assert len(index._lists._cells) <= 30_000  # dropped, not only marked


def test_removing_and_replacing_copy_nothing_large() -> None:
    index = CodebookIndex(50)
    index.add_cells(np.random.default_rng(0).integers(0, 50, 100_000))
    index.add_cells([3], [5])  # room is made once, by half again
    before = index._lists._cells
    index.remove([7])
    index.add_cells([3], [7])
    assert index._lists._cells is before


def test_ties_come_in_a_fixed_random_order() -> None:
    index = CodebookIndex(2)
    index.add_cells(np.zeros(1000, dtype=int))
    first = [hit.id for hit in index.best(np.array([[1.0, 0.0]]), 100)[0]]
    assert first == [hit.id for hit in index.best(np.array([[1.0, 0.0]]), 100)[0]]
    assert first != sorted(first) and abs(np.mean(first) - 500) < 150
    assert all(hit.tied == 1000 for hit in index.best(np.array([[1.0, 0.0]]), 5)[0])


def test_cells_survive_the_file_and_every_kind_of_change(tmp_path) -> None:
    path = tmp_path / "cells.index"
    with CodebookIndex.create(path, 512, names=True) as index:
        index.add_cells([7, 299, 0], ["a", "b", "c"])
        index.remove(["a"])
        index.add_cells([12], ["b"])
    loaded = CodebookIndex.load(path)
    assert dict(zip(loaded.ids.tolist(), loaded.cells_of(loaded.ids).tolist(), strict=True)) == {
        "b": 12,
        "c": 0,
    }
    with CodebookIndex.open(path) as index:
        index.compact()
        assert len(index) == 2 and "b" in index and "a" not in index
    # The file is one that other indexes read.
    assert len(HammingIndex.load(path)) == 2


def test_a_cell_past_the_last_is_refused(tmp_path) -> None:
    book = from_pictures(np.random.default_rng(0).normal(size=(120, 8)), 4, network=None)
    with pytest.raises(InvalidData, match="must lie in"):
        CodebookIndex(book.k).add_cells([book.k])
    with HammingIndex.create(
        tmp_path / "ix", cell_bits(book.k), guarantee=book.guarantee()
    ) as index:
        index.add(to_codes(np.array([book.k]), book.k))
    with pytest.raises(HostileFile, match="past the"):
        CodebookIndex.load(tmp_path / "ix")


def test_searching_by_a_codebook_ranks_by_its_scores() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 8)).astype(np.float32)
    book = from_pictures(X, 8, network=None)
    released = book.mechanism.release(book.assign(X), rng=rng)
    index = CodebookIndex(book.k)
    index.add_cells(released)
    hits = index.search_codebook(book, book.similarity(X[:3]), 20)
    expected = book.reading(np.bincount(released, minlength=book.k)).scores(book.similarity(X[:3]))[
        :, released
    ]
    for query, found in enumerate(hits):
        np.testing.assert_allclose(
            [hit.score for hit in found], np.sort(expected[query])[::-1][:20], rtol=1e-6
        )
        assert all(
            hit.probability is None and hit.distance is None and 0 <= hit.trust <= 1
            for hit in found
        )
    with pytest.raises(InvalidParameter, match="labelled"):
        hits.at_least(0.5)
    with pytest.raises(InvalidParameter, match="cells"):
        CodebookIndex(book.k + 1).search_codebook(book, book.similarity(X[:1]))


def test_cells_have_no_distance() -> None:
    index = CodebookIndex(8)
    for ask in (lambda: index.search([[1]]), lambda: index.within([[1]], 2)):
        with pytest.raises(InvalidParameter, match="Hamming"):
            ask()


@given(st.integers(2, 10**6), st.data())
@settings(max_examples=30, deadline=None)
def test_cells_and_codes_are_one(k, data) -> None:
    cells = np.array(data.draw(st.lists(st.integers(0, k - 1), max_size=5)), dtype=np.int64)
    np.testing.assert_array_equal(from_codes(to_codes(cells, k)), cells)


def test_a_record_takes_eight_bytes_beside_its_id() -> None:
    lists = CellLists(414, names=False)
    lists.put(
        np.arange(100_000),
        to_codes(np.random.default_rng(0).integers(0, 414, 100_000), 414),
        fresh=True,
    )
    lists.best(np.zeros(414), 1)
    assert (lists._cells.nbytes + lists._base.order.nbytes) / 100_000 <= 8
