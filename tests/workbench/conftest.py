"""A small prepared studio, made once; apps in this process, and a real server in another."""

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
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from blindsight.audit.report.verdict import COLUMNS
from blindsight.workbench import Settings, create_app
from blindsight.workbench.infra.database import JOBS, Database
from blindsight.workbench.pages.demo import gallery, sketch, tags
from blindsight.workbench.pages.demo.papers_audit import FILES
from ports import held_port
from workbench import web


class Bench:
    """What a job has, without a job."""

    def __init__(self, state: Path) -> None:
        self.settings = Settings(state=state)
        self.prepared, self.folder = state / "prepared", state / "work"
        self.folder.mkdir(parents=True, exist_ok=True)

    def say(self, *_: Any) -> None:
        """Nobody listens."""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two budgets, a tagger, two attackers: small, and the same for all tests."""
    state = tmp_path_factory.mktemp("prepared")
    place: Any = Bench(state)
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(
            "blindsight.codebooks.making._MOST_PAIRED", 200
        )  # how well it ranks is the library's to test
        gallery.run({"epsilons": [8.0, 2.0], "trials": 20_000}, place)
    tags.run({"scenes": 600}, place)
    sketch.run({"settings": ["Q3", "Q6"], "public": 300}, place)
    return state


@pytest.fixture
def state(prepared: Path, tmp_path: Path) -> Path:
    """A copy to spend from."""
    shutil.copytree(prepared, tmp_path / "state")
    return tmp_path / "state"


@pytest.fixture
def make(state: Path) -> Iterator[Callable[..., Any]]:
    """Apps with settings of one's own."""
    made: list[Any] = []

    def build(**settings: Any) -> Any:
        # A minute for a decoder: the machine may be busy, and that slow work is ended has a test of
        # its own.
        usual = {
            "state": state,
            "prepare": False,
            "keys": "off",
            "public": "",
            "upload_seconds": 60.0,
        }
        app = create_app(Settings(**{**usual, **settings}))
        made.append(app)
        return app

    yield build
    for app in made:
        app.state.studio.budgets.close()
        app.state.studio.database.close()


class Server:
    """`blindsight serve` in a process of its own."""

    def __init__(self, state: Path, **settings: Any) -> None:
        self.port = held_port()
        self.url = f"http://127.0.0.1:{self.port}"
        given = {
            "PREPARE": "no",
            "KEYS": "off",
            "PUBLIC": "",
            "STATE": str(state),
            "PORT": str(self.port),
            **settings,
        }
        environment = {
            **os.environ,
            **{f"BLINDSIGHT_STUDIO_{name}": str(value) for name, value in given.items()},
        }
        self.state, self.log = state, state / "server.log"
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "blindsight", "serve"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._wait()

    def _wait(self) -> None:
        for _ in range(1800):
            try:
                if web.get(self.url + "/health").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def finish_audit(self) -> str:
        """End the waiting audit as if it had run its minute: a result, and a report in its
        folder.
        """
        job = web.get(self.url + "/api/jobs").json()[0]["id"]
        web.post(f"{self.url}/api/jobs/{job}/stop")
        cells = [
            "PHashing",
            "48 bits",
            "record",
            "ε = 1",
            "none",
            "ε ≥ 8",
            "likelihood ratio",
            "REFUTED",
        ]
        result = {
            "headline": "1 of 1 claims REFUTED.",
            "columns": list(COLUMNS),
            "advice": ["PHashing: use fewer bits"],
        }
        result |= {"rows": [{"room": "hashing", "refuted": True, "cells": cells}], "cards": {}}
        folder = self.state / "jobs" / job
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).write_text("one claim was refuted")
        database = Database(f"sqlite:///{self.state / 'studio.db'}")
        with database.begin() as connection:
            done = {"state": "done", "result": json.dumps(result), "ended": "2026-01-01T00:00:00"}
            connection.execute(sql.update(JOBS).where(JOBS.c.id == job).values(**done))
        database.close()
        return str(job)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


@pytest.fixture
def serve(state: Path) -> Iterator[Callable[..., Server]]:
    """Start servers on the state; they end with the test."""
    started: list[Server] = []

    def start(**settings: Any) -> Server:
        started.append(Server(state, **settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def live(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all who only look."""
    state = tmp_path_factory.mktemp("live") / "state"
    shutil.copytree(prepared, state)
    server = Server(state, RATE=100_000, BURST=100_000, QUERY_BUDGET=100_000)
    yield server
    assert server.stop() == 0
