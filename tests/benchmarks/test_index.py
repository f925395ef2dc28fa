"""The race against raw faiss runs, finds the same, and grows linearly."""

from __future__ import annotations

from benchmarks.hashing.index import search_rows


def test_the_race_is_run_and_both_find_the_same():
    rows = {row.id: row for row in search_rows(quick=True)}
    found = rows["hashing.index_vs_faiss"]
    assert "distances equal" in (found.note or "") and found.value > 0
    # CPU time, the best of seven turns at each size: it is near 1 on a busy machine, too, and
    # quadratic growth is 2.
    assert rows["hashing.index_growth"].value < 1.5
