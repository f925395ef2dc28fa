"""The bench's parts: the paper's numbers are all there, and shares kept are what they say."""

from __future__ import annotations

import numpy as np

from benchmarks.hashing import paper, plots
from benchmarks.hashing.records import METHODS, record_rows
from benchmarks.hashing.sets import Collection
from benchmarks.hashing.tables import BASES, dsh_rows, figure_3, make, tables
from blindsight.hashing import DSH


def blobs() -> Collection:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    X = (rng.normal(size=(500, 12)) + 4 * np.eye(12)[labels]).astype(np.float32)
    return Collection("blobs", X[:100], X[100:], labels[:100], labels[100:], (0,))


def test_the_papers_tables_are_whole():
    for table in (paper.IMAGENET, paper.CIFAR10, paper.NUS_WIDE):
        assert set(BASES) | {"PITQ"} == set(table)
        for name in BASES:
            assert {0.0, 1.0, 2.0, 4.0} == set(table[name])
        assert {0.25, 0.5, 1.0, 4.0} == set(table["PITQ"])
    assert paper.CIFAR10["HashNet"][2.0][3] == 0.7634
    assert paper.NUS_WIDE["LSH"][0.0][0] == 0.185
    assert paper.IMAGENET["ITQ"][4.0] == (0.2684, 0.471, 0.5389, 0.6208)
    assert paper.IMAGENET["PITQ"][0.25][3] == 0.6398


def test_every_base_of_the_paper_can_be_made():
    assert [type(make(name, 12, 0, 1000)).__name__ for name in BASES] == list(BASES)


def test_tables_have_a_row_for_each_cell_and_write_their_figures(tmp_path):
    rows = list(tables(blobs(), tmp_path, bases=("ITQ", "SDH"), bits=(8,)))
    assert len(rows) == 2 * 4 + 5
    assert len({row.id for row in rows}) == len(rows)
    assert all(0 < row.value <= 1 for row in rows)
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "figure-2-blobs.svg",
        "figure-3-blobs.svg",
    }
    assert "PITQ" in (tmp_path / "figure-3-blobs.svg").read_text()  # Section 4.3 compares it there


def test_dsh_is_measured_by_another_learning_rate(monkeypatch):
    made = DSH(8, n_epochs=1, random_state=0)
    monkeypatch.setattr("benchmarks.hashing.tables.make", lambda *_: made)
    (row,) = dsh_rows(blobs(), rate=0.003, bits=(8,))
    assert row.id == "hashing.blobs.dsh_rate_0.003.8bits.plain" and 0 < row.value <= 1
    assert made.learning_rate == 0.003


def test_figure_3_is_drawn_from_rows_of_several_runs(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(plots, "by_bits", lambda lines, target, title: drawn.update(lines))
    rows = [
        ("hashing.voc.table1.ITQ.48bits.eps1", 0.5, "± 0.0100 over 5 seeds"),
        ("hashing.voc.table1.ITQ.12bits.eps1", 0.25, "paper's is NUS-WIDE; ± 0.0200 over 5 seeds"),
        ("hashing.voc.table1.ITQ.12bits.plain", 0.75, "± 0.0300 over 5 seeds"),
        ("hashing.voc.table2.PITQ.12bits.eps1", 0.7, "± 0.0400 over 5 seeds"),
        ("hashing.coco.table1.SH.12bits.eps1", 0.1, "± 0.0400 over 5 seeds"),
    ]
    figure_3("voc", rows, tmp_path)
    assert drawn == {
        "PHashing (ITQ)": {12: (0.25, 0.02), 48: (0.5, 0.01)},
        "PITQ": {12: (0.7, 0.04)},
    }
    assert list(drawn["PHashing (ITQ)"]) == [12, 48]


def test_all_methods_are_on_one_plot_and_the_codebook_keeps_more_than_flips(tmp_path):
    rows = {
        row.id: row
        for row in record_rows(blobs(), tmp_path, epsilons=(8.0,), n_queries=50, main=True)
    }
    for key in METHODS:
        assert f"hashing.blobs.record.{key}.eps8" in rows
    kept = rows["hashing.codebook_kept_at_record_eps8"].value
    assert kept > 0.8
    assert kept > rows["hashing.flip_kept_at_record_eps8"].value + 0.3
    assert "hashing.codebook_kept_at_record_eps4" in rows
    plot = (tmp_path / "record-blobs.svg").read_text()
    assert plot.startswith("<?xml")
