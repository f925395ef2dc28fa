"""Cells on Milvus: the same answers as the inverted lists, by a filter."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.codebooks import from_pictures
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index import CodebookIndex, MilvusIndex
from blindsight.index.milvus import MilvusCodebookIndex

pytestmark = pytest.mark.real

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(240, 12)).astype(np.float32)
BOOK = from_pictures(ROWS[:120], 6.0, network=None, n_cells=16)


@pytest.fixture
def uri(milvus):
    return milvus


def filled(tmp_path):
    """An index of 240 released cells under names, and its file."""
    index = CodebookIndex(BOOK.k, names=True, guarantee=BOOK.guarantee("seed"))
    released = BOOK.mechanism.release(BOOK.assign(ROWS), rng=np.random.default_rng(1))
    index.add_cells(released, ids=[f"photo {i}" for i in range(240)])
    index.save(tmp_path / "x.index")
    return index


def test_both_engines_find_the_same_records(uri, tmp_path):
    here = filled(tmp_path)
    there = MilvusCodebookIndex.load(tmp_path / "x.index", uri, collection="cells")
    np.testing.assert_array_equal(there.counts, here.counts)
    similarity = BOOK.similarity(ROWS[:5])
    for k in (1, 12, 500):
        ours, theirs = (
            here.search_codebook(BOOK, similarity, k),
            there.search_codebook(BOOK, similarity, k),
        )
        np.testing.assert_allclose(theirs.scores, ours.scores)
        np.testing.assert_array_equal(theirs.cells, ours.cells)
        np.testing.assert_array_equal(theirs.tied, ours.tied)
        np.testing.assert_allclose(theirs.trust, ours.trust)
        assert theirs.probabilities is None  # nothing to calibrate on: no number rather than 0
        # All records of a cell that is taken whole are the same; of the last one, some are.
        whole = ours.cells != ours.cells[-1]
        assert k < 500 or set(ours.ids[whole]) == set(theirs.ids[whole])
    there.remove(["photo 3"])
    assert there.counts.sum() == 239
    there.drop()
    there.close()


def test_a_collection_without_cells_is_refused(uri, tmp_path):
    filled(tmp_path)
    plain = MilvusIndex.load(tmp_path / "x.index", uri, collection="plain")
    plain.close()
    with pytest.raises(InvalidData, match="without cells"):
        MilvusCodebookIndex(uri, collection="plain")
    again = MilvusIndex(uri, collection="plain")
    again.drop()
    again.close()


def test_a_codebook_of_another_size_is_refused(uri, tmp_path):
    filled(tmp_path)
    index = MilvusCodebookIndex.load(tmp_path / "x.index", uri, collection="sized")
    other = from_pictures(ROWS[:120], 6.0, network=None, n_cells=8)
    with pytest.raises(InvalidParameter, match="cells"):
        index.search_codebook(other, other.similarity(ROWS[:1]))
    index.drop()
    index.close()
