"""`blindsight federate`: requests, rosters, refusals, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import BlindsightError
from blindsight.federated.deploy.coordinator import Coordinator

run = CliRunner()


def federate(*arguments: object):
    return run.invoke(app, ["federate", *map(str, arguments)])


def requests(folder: Path, sites: int = 3) -> list[Path]:
    """Requests of that many sites, the first of which runs the aggregator."""
    made = []
    for n in range(1, sites + 1):
        extra = ["--address", "127.0.0.1:9"] if n == 1 else []
        done = federate("join", folder / f"s{n}", "--name", f"Site {n}", *extra, "--json")
        assert done.exit_code == 0, done.output
        made.append(Path(json.loads(done.stdout)["request"]))
    return made


def test_sites_join_a_roster_is_made_and_accepted(tmp_path: Path, rows) -> None:
    X, y = rows["public"]
    np.savez(tmp_path / "public.npz", X=X, y=y)
    files = requests(tmp_path)
    done = federate(
        "keys", tmp_path / "roster", *files, "--public", tmp_path / "public.npz", "--json"
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["guarantee"]["epsilon"] == "inf"
    prints = set()
    for n in (1, 2, 3):
        shown = federate("accept", tmp_path / f"s{n}", tmp_path / "roster")
        assert shown.exit_code == 0, shown.output
        assert "Site 3" in shown.stdout and "key holders" in shown.stdout
        again = federate("accept", tmp_path / f"s{n}", tmp_path / "roster", "--json")
        prints.add(json.loads(again.stdout)["fingerprint"])
    assert prints == {told["fingerprint"]}
    assert "never overwritten" in str(federate("keys", tmp_path / "roster", *files).exception)
    assert "not empty" in str(federate("join", tmp_path / "s1", "--name", "Again").exception)


def test_keys_needs_to_know_the_models_shape(tmp_path: Path) -> None:
    done = federate("keys", tmp_path / "roster", *requests(tmp_path))
    assert isinstance(done.exception, BlindsightError)
    assert "--features" in str(done.exception)


def test_two_sites_are_refused_with_the_reason(tmp_path: Path) -> None:
    files = requests(tmp_path, sites=2)
    done = federate("keys", tmp_path / "roster", *files, "--features", 5, "--classes", 3)
    assert "subtracting its own" in str(done.exception)


def test_keys_with_noise_states_the_guarantee(tmp_path: Path) -> None:
    done = federate(
        "keys", tmp_path / "roster", *requests(tmp_path, 4), "--features", 5, "--classes", 3,
        "--rounds", 1, "--epsilon", 2, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["guarantee"]["epsilon"] <= 2


def test_a_user_with_bad_rows_is_told_at_once(federation: Callable, tmp_path: Path) -> None:
    folders = federation()
    np.savez(tmp_path / "bad.npz", X=np.zeros((4, 3)), y=np.zeros(4, dtype=int))
    done = federate("run", folders["site-1"].path, "--data", tmp_path / "bad.npz")
    assert "64 features" in str(done.exception)
    assert "--data" in str(federate("run", folders["site-1"].path).exception)
    assert "role" in str(federate("watch", folders["site-1"].path).exception)


@pytest.mark.parametrize("json_wanted", [False, True])
def test_watch_shows_where_the_run_is(federation: Callable, json_wanted: bool) -> None:
    folders = federation()
    Coordinator(folders["aggregator"])
    wanted = ["--json"] if json_wanted else []
    done = federate("watch", folders["aggregator"].path, "--once", *wanted)
    assert done.exit_code == 0
    if json_wanted:
        assert json.loads(done.stdout)["planned"] == 2
    else:
        assert "0 of 2 rounds" in done.stdout
        assert "users in" in done.stdout


def test_simulate_logs_every_round(tmp_path: Path) -> None:
    done = federate(
        "simulate", "--no-encrypt", "--rounds", 2, "--json", "--out", tmp_path / "m.safetensors"
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [entry["round"] for entry in told["rounds"]] == [1, 2]
    assert told["rounds"][-1]["accuracy"] > 0.85
    assert (tmp_path / "m.safetensors").exists()
