"""Real processes on loopback, as `blindsight federate` starts them: TLS and node authentication on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from blindsight.core import storage
from blindsight.federated.flower.certificates import make_node_key
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.processes import environment, free_port, node_command
from blindsight.federated.protocol import Settings

pytestmark = pytest.mark.real


class Fleet:
    """The processes of a test, each in a group of its own, none left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "blindsight", "federate", *arguments]
        self.spawn(name, command, {**os.environ, "OMP_NUM_THREADS": "1"})

    def spawn(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """kill -9, the whole group."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=20)

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=20)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(tmp_path)
    yield started
    started.stop()


def until(what: str, happened: Callable[[], object], seconds: float = 400.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def status(home: Home) -> dict:
    try:
        return json.loads((home.path / "status.json").read_text())
    except FileNotFoundError:
        return {"rounds": [], "phase": "none", "round": 0}


def test_a_run_survives_killed_users_and_a_killed_aggregator(federation, simulated, fleet, tmp_path: Path) -> None:
    homes = federation(port=free_port(), agreed={"least_users": 4}, rounds=2, patience=40.0, carrier="flower")
    aggregator = homes["aggregator"]

    def start(name: str) -> None:
        role, _, number = name.partition("-")
        data = ["--data", str(tmp_path / f"{name}.npz")] if number else []
        fleet.start(name, role, str(homes[name].path), *data)

    fleet.start("aggregator", "aggregator", str(aggregator.path), "--test", str(tmp_path / "test.npz"))
    start("user-1")  # too early: turned away, it comes again
    until("the nodes to be known", lambda: (aggregator.path / "nodes.json").exists())
    stranger = Home(shutil.copytree(homes["user-1"].path, tmp_path / "stranger"))
    (stranger.path / "node.key").write_bytes(make_node_key().private)
    command = node_command(stranger, data=tmp_path / "user-1.npz")
    fleet.spawn("stranger", command, environment(stranger))
    for name in homes:
        if name not in ("aggregator", "user-1"):
            start(name)
    until("user 5 to be in round 1", lambda: "Receiving: train message" in fleet.log("user-5"))
    fleet.kill("user-5")
    until("round 1 to end", lambda: len(status(aggregator)["rounds"]) == 1)
    start("user-5")  # not before: a message that nobody answered is sent again, and it would be back in this round
    fleet.kill("aggregator")
    assert status(aggregator)["rounds"][0]["contributors"] == [1, 2, 3, 4]
    fleet.start("aggregator", "aggregator", str(aggregator.path), "--test", str(tmp_path / "test.npz"), "--json")
    until("round 2 to end", lambda: len(status(aggregator)["rounds"]) == 2)
    until("the aggregator to end", lambda: fleet.running["aggregator"].poll() is not None, 60)
    assert fleet.running["aggregator"].returncode == 0

    assert fleet.running["stranger"].poll() not in (None, 0)
    assert "Failed to activate" in fleet.log("stranger")  # an unregistered key is refused

    contributors: list[tuple[int, ...]] = [tuple(entry["contributors"]) for entry in status(aggregator)["rounds"]]
    assert 5 in contributors[1]  # killed, restarted, and back
    settings = Settings(dimension=650, users=5, bound=4.0, least_users=4, group=1)
    saved, _ = storage.load(aggregator.path / "model.safetensors", kind="federated weights")
    np.testing.assert_array_equal(saved["weights"], simulated(aggregator.plan, settings, contributors))
    assert status(aggregator)["rounds"][1]["accuracy"] > 0.8
