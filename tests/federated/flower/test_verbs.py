"""`blindsight federate`: folders, refusals, tables and JSON."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import BlindsightError, HostileFile
from blindsight.federated.flower.coordinator import Coordinator
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.invitations import invite
from blindsight.federated.wire import Writer, seal, write_sealed

run = CliRunner()


def federate(*arguments: object):
    return run.invoke(app, ["federate", *map(str, arguments)])


def test_keys_makes_a_folder_a_party_and_says_who_sees_what(tmp_path: Path, rows) -> None:
    X, y = rows["public"]
    np.savez(tmp_path / "public.npz", X=X, y=y)
    done = federate(
        "keys", tmp_path / "p", "--public", tmp_path / "public.npz", "--users", 3, "--json"
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [Path(path).name for path in told["folders"]] == [
        "aggregator",
        "keygen",
        "user-1",
        "user-2",
        "user-3",
    ]
    assert told["guarantee"]["epsilon"] == "inf"
    home = Home(tmp_path / "p" / "user-2").require("user")
    assert home.number == 2
    assert home.plan.features == 64


def test_an_invitation_becomes_a_folder_again_and_says_who_sees_what(
    federation, tmp_path: Path
) -> None:
    homes = federation(agreed={"holders": (3, 5)})
    for name in ("user-2", "holder-3", "aggregator"):
        file = invite(homes[name], tmp_path / f"{name}.invitation")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        done = federate("join", file, tmp_path / "joined" / name)
        assert done.exit_code == 0, done.output
        assert name in done.stdout
        assert "key holders" in done.stdout
        for path in homes[name].path.rglob("*"):
            copy = tmp_path / "joined" / name / path.relative_to(homes[name].path)
            assert path.is_dir() or copy.read_bytes() == path.read_bytes()
        assert "not empty" in str(federate("join", file, tmp_path / "joined" / name).exception)


@pytest.mark.parametrize(
    "name", ["../evil", "nodes/../../evil", "/etc/evil", "state.bin", "nodes/a\\b.pub"]
)
def test_an_invitation_with_strange_files_is_refused(tmp_path: Path, name: str) -> None:
    writer = Writer().number("I", 1).text(name).field(b"evil")
    write_sealed(tmp_path / "bad", seal(b"INVT", bytes(writer)))
    assert isinstance(federate("join", tmp_path / "bad", tmp_path / "new").exception, HostileFile)
    assert not (tmp_path / "new").exists()


def test_keys_needs_to_know_the_models_shape(tmp_path: Path) -> None:
    done = federate("keys", tmp_path / "p")
    assert isinstance(done.exception, BlindsightError)
    assert "--features" in str(done.exception)


def test_keys_with_noise_states_the_guarantee(tmp_path: Path) -> None:
    done = federate(
        "keys",
        tmp_path / "p",
        "--features",
        5,
        "--classes",
        3,
        "--users",
        30,
        "--rounds",
        1,
        "--epsilon",
        2,
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["guarantee"]["epsilon"] <= 2


def test_roles_refuse_each_others_folders(federation) -> None:
    homes = federation()
    for verb in ("aggregator", "watch"):
        done = federate(verb, homes["keygen"].path)
        assert "belongs to" in str(done.exception)
    assert "belongs to" in str(federate("keygen", homes["user-1"].path).exception)


def test_a_user_with_bad_rows_is_told_at_once(federation, tmp_path: Path) -> None:
    homes = federation()
    np.savez(tmp_path / "bad.npz", X=np.zeros((4, 3)), y=np.zeros(4, dtype=int))
    done = federate("user", homes["user-1"].path, "--data", tmp_path / "bad.npz")
    assert "64 features" in str(done.exception)


@pytest.mark.parametrize("json_wanted", [False, True])
def test_watch_shows_where_the_run_is(federation, json_wanted: bool) -> None:
    homes = federation()
    Coordinator(homes["aggregator"])
    done = federate(
        "watch", homes["aggregator"].path, "--once", *(["--json"] if json_wanted else [])
    )
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
