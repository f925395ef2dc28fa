"""`blindsight federate`: requests, rosters, refusals, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import BlindsightError, HostileFile, InvalidParameter
from blindsight.federated import Settings, noised_update
from blindsight.federated.deploy.coordinator import Coordinator
from blindsight.federated.deploy.plan import Plan
from blindsight.federated.noise import GaussianShares
from blindsight.privacy import Cost, Ledger

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
    assert "blindsight federate update" in str(done.exception)
    with pytest.raises(InvalidParameter, match="noised_update"):
        Settings(dimension=5, users=2)


def test_two_sites_each_send_their_own_noised_update(tmp_path: Path, rows: dict) -> None:
    """Each site's update is charged, differs from the plain one by noise, and they make a model."""
    for name in ("public", "site-1", "site-2", "test"):
        np.savez(tmp_path / f"{name}.npz", X=rows[name][0], y=rows[name][1])
    public = ("--public", tmp_path / "public.npz")
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for n, file in enumerate(files, start=1):
        with Ledger(tmp_path / f"{n}.db", dataset=f"site-{n}") as ledger:
            ledger.grant(Cost(epsilon=50_001, delta=1e-4, unit="user", neighbours="replace one"))
        done = federate(
            "update", tmp_path / f"site-{n}.npz", file, *public,
            "--epsilon", 50_000, "--allow-large-epsilon", "--clip", 4,
            "--ledger", tmp_path / f"{n}.db", "--json",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["epsilon"] <= 50_000
        with Ledger(tmp_path / f"{n}.db", dataset=f"site-{n}") as ledger:
            assert ledger.balance("user").spent.epsilon == pytest.approx(50_000, rel=0.01)
    done = federate(
        "merge", tmp_path / "model", *files, *public, "--test", tmp_path / "test.npz", "--json"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["accuracy"] > 0.7
    again = federate("update", tmp_path / "site-1.npz", files[0], *public, "--epsilon", 1)
    assert "never overwritten" in str(again.exception)
    other = federate("merge", tmp_path / "m", *files, "--public", tmp_path / "site-1.npz")
    assert "another model" in str(other.exception)
    damaged = bytearray(files[0].read_bytes())
    damaged[-3] ^= 1
    files[0].write_bytes(damaged)
    refused = federate("merge", tmp_path / "m", *files, *public)
    assert isinstance(refused.exception, HostileFile)


def test_a_noised_update_carries_the_noise_that_its_epsilon_asks_for(rows: dict) -> None:
    """Mean squared noise within 6 standard errors of sigma squared: fails by chance below 1e-8."""
    X, y = rows["public"]
    scale = np.vstack([np.zeros(64), np.full(64, 16.0)])
    plan = Plan(initial=np.zeros(650), scale=scale, classes=10)
    noise = GaussianShares.calibrate(4.0, delta=1e-5, clip=1.0, dimension=650, shares=1)
    plain = noise.clipped(plan.trainer(X, y, user=1)(plan.initial, 1)) * noise.step
    with pytest.warns(UserWarning):
        noised = noised_update(plan, X, y, epsilon=4.0).values
    assert ((noised - plain) ** 2).mean() == pytest.approx(noise.sigma**2, rel=6 * np.sqrt(2 / 650))


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
