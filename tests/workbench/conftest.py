"""State folders, apps in this process, and a real server in another process."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import warm
from blindsight import protect
from blindsight.app.library.accounts import set_spending_limit
from blindsight.workbench import WorkbenchSettings, create_app
from blindsight.workbench.infra.database import Database
from ports import held_port
from workbench import web
from workbench.photos import album, released, scanned


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """An empty state folder."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with one data set and its search index, made once for all tests."""
    base = tmp_path_factory.mktemp("stock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blindsight.index.encoder.default_features", lambda **_: "pixels")
        app = create_app(WorkbenchSettings(state=base / "state", keys="off", public=""))
        dataset = scanned(app, album(base / "coast", each=6))
        released(app, dataset)
    app.state.workbench.budgets.close()
    app.state.workbench.database.close()
    return base / "state"


@pytest.fixture
def stocked(stock: Path, tmp_path: Path) -> Path:
    """A copy of that state folder to change and to spend from."""
    shutil.copytree(stock, tmp_path / "stocked")
    return tmp_path / "stocked"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a new workbench: its tables, made once, and no rows."""
    path = tmp_path_factory.mktemp("database") / "workbench.db"
    Database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def make(state: Path, empty_database: Path) -> Iterator[Callable[..., Any]]:
    """Apps with settings of one's own."""
    made: list[Any] = []

    def build(**settings: Any) -> Any:
        # A minute for a decoder: the machine may be busy, and that slow work is ended has a test of
        # its own.
        usual = {
            "state": state,
            "keys": "off",
            "public": "",
            "upload_seconds": 60.0,
            "job_niceness": 0,  # other tests run beside it
        }
        given = WorkbenchSettings(**{**usual, **settings})
        if given.database_url == f"sqlite:///{state / empty_database.name}" and not any(
            state.iterdir()
        ):
            shutil.copy(empty_database, state)
        app = create_app(given)
        made.append(app)
        return app

    yield build
    for app in made:
        app.state.workbench.budgets.close()
        app.state.workbench.database.close()


class Server:
    """`blindsight serve` in a process of its own."""

    def __init__(self, state: Path, **settings: Any) -> None:
        self.port = held_port()
        self.url = f"{'https' if 'TLS_CERT' in settings else 'http'}://127.0.0.1:{self.port}"
        given = {
            "KEYS": "off",
            "PUBLIC": "",
            "JOB_NICENESS": "0",
            "STATE": str(state),
            "PORT": str(self.port),
            **settings,
        }
        environment = {
            **os.environ,
            **{f"BLINDSIGHT_WORKBENCH_{name}": str(value) for name, value in given.items()},
        }
        self.state, self.log = state, state / "server.log"
        command = ["-m", "blindsight", "serve"]
        self.process = warm.Process(command, env=environment, output=self.log)
        self._wait()

    def _wait(self) -> None:
        for _ in range(12_000):
            try:
                # Whether the certificate is right is not what is waited for.
                if web.get(self.url + "/health", verify=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(600)


@pytest.fixture
def serve(state: Path) -> Iterator[Callable[..., Server]]:
    """Start servers, on the empty state folder by default; they end with the test."""
    started: list[Server] = []

    def start(at: Path = state, **settings: Any) -> Server:
        started.append(Server(at, **settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def live(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all who only look: with people and a received release."""
    base = tmp_path_factory.mktemp("live")
    state, inbox = base / "state", base / "inbox"
    shutil.copytree(stock, state)
    app = create_app(WorkbenchSettings(state=state, keys="off", public=""))
    workbench = app.state.workbench
    (data_set,) = workbench.datasets.listed()
    for name, role in (("jonas", "owner"), ("sam", "searcher")):
        workbench.keys.make(name, "analyst")
        workbench.keys.set_roles(name, {data_set.id: role}, actor="local")
    set_spending_limit(workbench.settings, "jonas", 4.0)
    workbench.budgets.close()
    workbench.database.close()
    protect(
        album(base / "theirs", each=6),
        inbox / "harbour",
        encoder="pixels",
        public=album(base / "known", each=14, first=50),
    )
    server = Server(state, PHOTOS=str(inbox), RATE=100_000, BURST=100_000)
    yield server
    assert server.stop() == 0
