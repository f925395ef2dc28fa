"""Races are fair, reports have one shape, the results page holds what was measured and nothing
else.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.__main__ import ROOMS
from benchmarks.harness import Row, put_row, race, report
from benchmarks.papers import glance, losses, races
from benchmarks.results import collect, write_results

ROOT = Path(__file__).parents[2]


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_race_takes_turns_and_compares_medians() -> None:
    clock, order = _Clock(), []
    ours_times, peer_times = iter([0, 1, 100, 1]), iter([0, 3, 3, 300])

    def run(name, times):
        def go():
            order.append(name)
            clock.now += next(times)

        return go

    outcome = race(run("ours", ours_times), run("peer", peer_times), repeats=3, clock=clock)
    assert order == ["ours", "peer"] * 4
    assert outcome.ratio == 3.0
    assert (outcome.ours_seconds, outcome.peer_seconds) == (1, 3)


def test_a_row_takes_the_place_of_the_one_with_its_id(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    path.write_text(json.dumps(report([Row(id=name, value=1.0, unit="s") for name in "ab"])))
    put_row(path, Row(id="a", value=2.0, unit="s"))
    put_row(path, Row(id="c", value=3.0, unit="s"))
    rows = json.loads(path.read_text())["rows"]
    assert [(row["id"], row["value"]) for row in rows] == [("a", 2.0), ("b", 1.0), ("c", 3.0)]
    put_row(tmp_path / "new.json", Row(id="a", value=2.0, unit="s"))
    assert [row["id"] for row in json.loads((tmp_path / "new.json").read_text())["rows"]] == ["a"]


def test_a_report_has_rows_machine_and_versions() -> None:
    made = json.loads(
        json.dumps(report([Row(id="x.y", value=1.0, unit="s", peer="numpy", paper=2.0)]))
    )
    assert set(made) == {"rows", "machine", "versions"}
    assert set(made["rows"][0]) == {field.name for field in dataclasses.fields(Row)}
    assert made["machine"]["cores"] >= 1
    assert "numpy" in made["versions"]


def test_the_results_page_is_made_of_the_reports(tmp_path: Path) -> None:
    rows = [
        Row(id="toy.table.a", value=0.25, unit="mAP", paper=0.3, note="a | b"),
        Row(id="toy.table.b", value=2, unit="s"),
    ]
    (tmp_path / "bench" / "toy").mkdir(parents=True)
    (tmp_path / "bench" / "toy" / "curve.svg").write_text("<svg/>")
    (tmp_path / "bench" / "toy.json").write_text(json.dumps(report(rows)))
    docs = tmp_path / "docs"
    assert collect(tmp_path / "bench", docs / "results") == ["toy"]
    (docs / "results" / "strange.json").write_text("[1, 2")
    assert write_results(docs / "RESULTS.md") == ["toy"]
    assert "(results/toy.md): 2 rows, 1 picture." in (docs / "RESULTS.md").read_text()
    behind = (docs / "results" / "toy.md").read_text()
    assert "| `toy.table.a` | 0.25 mAP | 0.3 |" in behind
    assert "a | b" in (docs / "results" / "toy.csv").read_text()
    assert "(toy-curve.svg)" in behind
    assert json.loads((docs / "results" / "toy.json").read_text())["rows"][1]["value"] == 2
    before = (docs / "RESULTS.md").read_bytes()
    write_results(docs / "RESULTS.md")
    assert (docs / "RESULTS.md").read_bytes() == before


def test_the_page_of_results_is_read_in_one_sitting() -> None:
    assert len((ROOT / "docs" / "RESULTS.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_can_be_measured(room: str) -> None:
    measure = importlib.import_module(f"benchmarks.{room}.rows").rows
    assert {"quick", "seed", "out", "progress"} <= set(inspect.signature(measure).parameters)


def test_a_stopped_run_leaves_the_rows_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(**_: object) -> Iterator[Row]:
        yield Row(id="toy.first", value=1, unit="x")
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.privacy.rows.rows", rows)
    target = tmp_path / "toy.json"
    with pytest.raises(KeyboardInterrupt):
        command._measure("privacy", quick=True, out=tmp_path, seed=0, quiet=True, target=target)
    assert [row["id"] for row in json.loads(target.read_text())["rows"]] == ["toy.first"]
    assert not command._done(target, quick=True, seed=0)  # so that `all` measures it again


def test_the_glance_shows_only_what_was_measured() -> None:
    faithful = {"id": "sketching.psnr_q3", "value": 7.471, "paper": 7.27}
    lines = glance(
        {
            "sketching.psnr_q3": faithful,
            "sketching.curve.codebook.eps8": {"value": 1.0, "paper": None},
        }
    )
    assert [line for line in lines if "7.471" in line] == [
        "| Table 3, MNIST, Q3 (PSNR, dB) | 7.27 | 7.471 |  |  |"
    ]
    assert not any("Figure 3" in line or "DPHE" in line for line in lines)


def test_races_are_ratios_against_peers() -> None:
    row = {"id": "a.b", "value": 2.0, "unit": "x", "peer": "them | us", "note": None}
    assert any("them \\| us" in line for line in races([row, {**row, "peer": None, "id": "c"}]))
    assert races([{**row, "peer": None}]) == []


def test_what_others_do_better_is_listed_and_nothing_else() -> None:
    ours, lda = "metric.auc_proven_eps1", "metric.auc_lda"
    row = {"paper": None, "peer": None, "unit": "pair AUC"}
    assert any(
        "0.97" in line
        for line in losses({ours: {**row, "value": 0.92}, lda: {**row, "value": 0.97}})
    )
    assert losses({ours: {**row, "value": 0.98}, lda: {**row, "value": 0.97}}) == []


def test_an_unknown_room_is_refused_with_the_list() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "kitchen"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "privacy" in done.stderr
