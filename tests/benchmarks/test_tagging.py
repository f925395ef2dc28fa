"""The bench on a toy problem: every figure has its rows, and the headline rows are there."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.tagging import photos
from benchmarks.tagging.figures import figure_rows, rp2_rows
from benchmarks.tagging.published import paper_numbers, published_rows
from benchmarks.tagging.rows import headline_rows
from benchmarks.tagging.sets import Problem, scene_features, scenes
from blindsight.tagging import Prior

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")


@pytest.fixture(scope="module")
def toy():
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(500, 16))).astype(np.float32)
    y = ((x - x.mean(axis=0)) @ rng.normal(size=(16, 5)) > 0.5).astype(np.uint8)
    names = ("cat", "dog", "car", "bus", "tree")
    return Problem(
        "coco-toy", x[:400], y[:400], x[400:], y[400:], names, components=8, looks=(1, 2, 3, 4)
    )


def test_headline_rows_are_there_and_drawn(toy, tmp_path):
    rows = {
        row.id: row
        for row in headline_rows(toy, prefix="tagging", quick=True, seed=0, out=tmp_path)
    }
    for name in ("map_nonprivate", "map_proven_eps10", "map_laplace_eps10", "map_dpsgd_eps1"):
        assert 0 <= rows[f"tagging.{name}"].value <= 1
    assert (tmp_path / "tagging-coco-toy-dpsgd2.svg").read_text().startswith("<?xml")


LINES = """Figure 2,"MS-COCO, 80, Epsilon = 8",Epoch 10,P2-ML-GCN,0.61,0.4,0.55,0.6,0.4,0.5
Figure 2,"MS-COCO, 80, Epsilon = 8",Epoch 10,ML-GCN,0.7,0.4,0.55,0.6,0.4,0.5
Figure 3,"Voc2007, 20, Different Lambda",,0.5,0.7793,0.4,0.55,0.6,0.4,0.5
Figure 4,"Voc2007, 20",,RP2-ML-GCN,0.7793,0.4,0.55,0.6,0.4,0.5
Figure 4,"MS-COCO, 80",,RP2-ML-GCN,0.7842,0.4,0.55,0.6,0.4,0.66
Figure 5,"MS-COCO, 80, Epsilon = 0.1",,Approach [42],0.7614,0.4,0.55,0.6,0.4,0.6258
"""
SHEET = "".join(
    f"{line}{top}\n"
    for line, top in [
        ("figure,setting,epoch,row,OP,OR,OF1,CP,CR,CF1", ",OP_3,OR_3,OF1_3,CP_3,CR_3,CF1_3"),
        *((line, ",0.62,0.41,0.56,0.61,0.42,0.51") for line in LINES.splitlines()),
    ]
)


def with_sheet(folder, monkeypatch, text):
    monkeypatch.setenv("BLINDSIGHT_DATA", str(folder))
    (folder / "p2_results").mkdir()
    (folder / "p2_results" / "results.csv").write_text(text)


def test_the_authors_numbers_go_by_the_names_of_our_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINDSIGHT_DATA", str(tmp_path))
    assert paper_numbers("MS-COCO") == {}
    with_sheet(tmp_path, monkeypatch, SHEET)
    assert paper_numbers("MS-COCO").keys() == {
        "fig2.p2.eps8.epoch10", "fig2.ml-gcn.epoch10", "fig3a.lambda0.5", "fig4.rp2", "fig5.features.eps0.1"  # noqa: E501
    }  # fmt: skip
    stated = paper_numbers("Voc2007")["fig4.rp2"]
    assert len(stated) == 12
    assert (stated["OP"], stated["CF1"]) == (0.7793, 0.5)
    assert (stated["OP3passing"], stated["CR3passing"]) == (0.62, 0.42)


def test_every_figure_has_its_rows_and_the_authors_numbers(toy, tmp_path, monkeypatch):
    with_sheet(tmp_path, monkeypatch, SHEET)
    small = replace(toy, lambdas=(0.5, 0.9), bound_factors=(0.75, 1.0))
    rows = list(figure_rows(small, seeds=(0, 1), out=tmp_path, hidden=8))
    ids = {row.id for row in rows}
    for part in (
        "fig2.coco-toy.p2.SC.eps8.epoch4.OP",
        "fig2.coco-toy.p2.S1.eps30.epoch1.mAP",
        "fig3a.coco-toy.lambda0.9.OP",
        "fig3b.coco-toy.S1.sb0.75.OP",
        "fig4.coco-toy.S1.rp2-sb.OF1",
        "fig4.coco-toy.S1.rp2-sb.CF13passing",
        "fig5.coco-toy.corollary1.eps1.OP",
        "fig5.coco-toy.weights-proven.eps0.1.CF1",
    ):
        assert f"tagging.{part}" in ids
    verdicts = {row.id: row.value for row in rows if row.id.endswith("reproduces")}
    for metric, word in (("mAP", ""), ("OP", ".OP")):
        found = {row.id: row.value for row in rows}
        rises = (
            found[f"tagging.fig4.coco-toy.S1.p2.{metric}"]
            < found[f"tagging.fig4.coco-toy.S1.rp2.{metric}"]
        )
        assert verdicts[f"tagging.fig4.S1.rp2_above_p2{word}.coco-toy.reproduces"] == rises
    beside = {row.id: row.paper for row in rows if row.paper is not None}
    assert (
        beside["tagging.fig4.coco-toy.S1.rp2.CF1"]
        == beside["tagging.fig4.coco-toy.rp2.CF1"]
        == 0.66
    )
    assert beside["tagging.fig3a.coco-toy.lambda0.5.OP"] == "0.7793 (VOC2007)"
    assert "tagging.rp2_minus_p2_op.SC.coco-toy" in ids
    assert len(verdicts) == 40
    metrics = json.loads((tmp_path / "tagging-figures-coco-toy.json").read_text())
    assert {"mAP", "CP3", "OF13", "OF13passing"} <= metrics["fig4.p2"].keys()
    assert metrics["fig4.p2"]["mAP"]["within"] > 0
    assert (tmp_path / "tagging-figures-coco-toy.svg").read_text().startswith("<?xml")


def test_rows_about_photos_are_there(toy):
    rng = np.random.default_rng(2)
    prior = Prior(rng.normal(size=(5, 16)), np.zeros(5))
    known = np.ones(toy.truth.shape, dtype=bool)

    one = photos.Photos(
        "coco", toy.train, toy.labels, toy.test, toy.truth, known, prior, toy.classes
    )
    rows = {row.id: row.value for row in photos._total_rows(one, (0, 1))}
    for name in ("eps0", "eps1", "eps2", "eps8"):
        assert 0 <= rows[f"tagging.coco_map_{name}"] <= 1
    assert 0 <= rows["tagging.coco_of1_eps8"] <= 1


def test_rp2_is_compared_seed_by_seed(toy):
    rows = {row.id: row for row in rp2_rows(toy, seeds=(0, 1), hidden=8)}
    assert "mean of 2 seeds" in rows["tagging.rp2_minus_p2_map.coco-toy"].note
    assert -1 <= rows["tagging.rp2_minus_p2_op.coco-toy"].value <= 1


def test_the_authors_sheet_is_checked_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINDSIGHT_DATA", str(tmp_path))
    (row,) = published_rows()
    assert row.unit == "skipped"
    names = "row,OP,OR,OF1,CP,CR,CF1,OP_3,OR_3,OF1_3,CP_3,CR_3,CF1_3\n"
    right, wrong = ",0.5,0.5,0.5" * 4 + "\n", ",0.6,0.4,0.55" + ",0.5,0.5,0.5" * 3 + "\n"
    with_sheet(tmp_path, monkeypatch, f"{names}ML-GCN{right}P2-ML-GCN{wrong}Approach [1]{right}")
    assert [row.value for row in published_rows()] == [1.0, 0.0, 1.0, 1.0]


def test_scene_features_do_not_depend_on_where_a_digit_lies():
    digit = np.random.default_rng(0).integers(60, 256, (20, 14), dtype=np.uint8)
    one, two = np.zeros((1, 64, 64), np.uint8), np.zeros((1, 64, 64), np.uint8)
    one[0, 2:22, 3:17] = digit
    two[0, 40:60, 45:59] = digit
    np.testing.assert_allclose(scene_features(one), scene_features(two), rtol=1e-5)
    assert (scene_features(np.zeros((2, 64, 64), np.uint8)) == 0).all()


def test_scenes_keep_training_public_and_test_apart():
    made = scenes(50, seed=0)
    assert len(made.train) == 50
    assert made.public is not None
    assert len(made.public) == len(made.test) == 2000
