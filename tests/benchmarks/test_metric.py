"""The bench measures what it says: the paper's graph, its protocol, its figures; and the example
runs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import Row, read_report
from benchmarks.metric.figures import mechanism_rows, parameter_rows, toy, toy_rows
from benchmarks.metric.kappa import random_graph, slow_bound
from benchmarks.metric.protocol import METHODS, make_split, measure, method
from benchmarks.metric.rows import _tables, figure_9_claims, main
from blindsight.metric import kappa


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(0)
    y = (rng.random(1500) < 0.3).astype(int)
    X = rng.random((1500, 12)) + 0.5 * y[:, None] * (np.arange(12) < 4)
    return make_split(X, y, nodes=400, rng=rng, tested=300)


def test_the_toy_graph_is_that_of_figure_7():
    X, classes, graph = toy(0)
    assert len(X) == 200 and np.abs(X).sum(axis=1).max() < 1
    assert len(graph) == 150 and kappa(graph, "bound") == 1
    ends = classes[graph.edges]
    assert (ends[:, 0] != ends[:, 1]).sum() == 50 and graph.similar.sum() == 100


def test_the_toys_figures_are_written(tmp_path):
    rows = {row.id: row.value for row in toy_rows(quick=True, seed=0, out=tmp_path)}
    assert rows["metric.toy_sensitivity_ratio"] < 1
    assert {path.name for path in tmp_path.iterdir()} == {
        "metric_figure_7.svg",
        "metric_figure_8.svg",
    }


def test_the_split_follows_the_papers_protocol(split):
    classes = split.y[np.unique(split.pairs)]
    assert (
        len(split.pairs) == 800 and split.similar.sum() == 400
    )  # |E|/|V| = 2, as many of either kind
    assert abs(classes.mean() - 0.5) < 0.05
    assert not set(split.gallery) & set(split.test)
    assert not set(split.gallery) & set(np.unique(split.test_pairs))
    assert len(np.unique(split.pairs, axis=0)) == len(split.pairs)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_figure_9_can_be_measured(name, split):
    found = measure(method(name, 1.0, split, 0), split)
    assert 0 <= found.accuracy <= 1 and 0 <= found.balanced <= 1 and 0 <= found.auc <= 1
    assert np.isfinite([found.objective, found.relative]).all()


def test_what_figure_9_claims_is_read_off_the_means():
    curves = {
        "dpp": (0.5, 0.6, 0.7),
        "dpp_s": (0.6, 0.7, 0.6),
        "node": (0.4, 0.6, 0.5),
        "input": (0.3, 0.4, 0.6),
    }
    means = {
        f"metric.t_{score}_{name}_eps{epsilon:g}": value
        for score in ("knn", "auc")
        for name, values in curves.items()
        for epsilon, value in zip((0.5, 1.0, 2.0), values, strict=True)
    }
    found = {row.id: row.note for row in figure_9_claims(means, "t", (0.5, 1.0, 2.0))}
    assert len(found) == 8
    for claim, ending in (
        ("dpp_above_node", "2 of 3"),  # equal is not above
        ("dpp_s_above_dpp", "2 of 3"),
        ("input_worst", "2 of 3"),
        ("rises", "6 of 8"),
    ):
        assert found[f"metric.figure9_{claim}_knn_t"].endswith(ending)


def test_figures_10_and_11_are_written(tmp_path, split):
    rows = [*mechanism_rows({"set": split}, seed=0, out=tmp_path, seeds=2)]
    rows += parameter_rows(split, quick=True, seed=0, out=tmp_path)
    order = next(row for row in rows if row.id == "metric.figure10_order_holds_set")
    assert 0 <= order.value <= 1 and "Lap-S" in order.note
    assert {"metric.mechanism_duchi_set", "metric.parameter_h_0.5", "metric.parameter_rho_2"} <= {
        r.id for r in rows
    }
    directions = [row.value for row in rows if row.id.endswith("_largest_direction")]
    assert len(directions) == 4 and all(1 / 12 <= share <= 1 for share in directions)
    assert {path.name for path in tmp_path.iterdir()} == {
        "metric_figure_10.svg",
        "metric_figure_11.svg",
    }


def test_a_table_that_is_not_here_leaves_a_row_that_says_so(tmp_path, monkeypatch):
    skipped = Row(id="metric.skipped.ipums-us", value=0, unit="skipped")
    monkeypatch.setattr("benchmarks.metric.rows._tables", lambda: ({}, [skipped]))
    report = tmp_path / "metric.json"
    main(["figure_9", "ipums-us", "--json", str(report), "--out", str(tmp_path / "out")])
    assert [row["id"] for row in read_report(report)["rows"]] == ["metric.skipped.ipums-us"]


def test_both_ways_to_kappa_agree_before_they_race():
    graph = random_graph(300)
    assert slow_bound(graph) == kappa(graph, "bound")


def test_private_pairs_improve_the_clusters_of_the_example(capsys):
    path = Path(__file__).parents[2] / "docs" / "examples" / "metric_clustering.py"
    spec = importlib.util.spec_from_file_location("metric_clustering", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scores = module.main()
    assert scores["epsilon 1 per pair"] > scores["no pairs"] + 0.02
    assert "PRIVACY CARD" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) < 80


def test_a_table_that_a_user_names_is_measured_too(tmp_path, monkeypatch):
    lines = [
        "height,weight,kind",
        *(f"{1 + n % 7},{2 + n % 5},{'cat' if n % 3 else 'dog'}" for n in range(90)),
    ]
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("BLINDSIGHT_METRIC_TABLES", f"{tmp_path / 'mine.csv'}:kind")
    X, y, nodes = _tables()[0]["mine"]
    assert X.shape == (90, 2) and set(y) == {0, 1} and nodes == 45
