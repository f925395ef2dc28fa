"""The real parts that tests use: PostgreSQL, Milvus Lite, Ray, Chromium and the files for words.

Each fixture starts its part, waits until it serves, fails with a sentence that says what is missing
where it cannot, and ends what it started. `tests/conftest.py` makes them available to all tests and
runs the tests of one part in one worker, so that each part is started once.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import patient_ray

__all__ = [
    "PART_OF",
    "RAY_SETTINGS",
    "browser",
    "end_ray",
    "fresh_database",
    "milvus",
    "postgresql",
    "ray_cluster",
    "words",
]

# The part that each fixture needs.
PART_OF = {
    "browser": "chromium",
    "fresh_database": "postgresql",
    "milvus": "milvus",
    "postgresql": "postgresql",
    "ray_cluster": "ray",
}
_SECONDS = 600  # within which a part must start: the machine may be busy
# What every Ray of the tests runs under, also one that a test's own process starts.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # or it kills workers where others take the memory
    "RAY_worker_niceness": "0",  # 15 by default: beside a busy machine's other work they starve
    "RAY_worker_register_timeout_seconds": str(_SECONDS),  # 60 by default, and then it starts anew
}
_PASSWORD = "open-sesame-4711"
_numbers = itertools.count(1)


def _program(name: str, package: str, *folders: Path) -> str:
    path = shutil.which(name) or next(
        (str(folder / name) for folder in folders if (folder / name).exists()), None
    )
    if path is None:
        pytest.fail(f"{name} is not on this machine: make apt, or apt-get install {package}.")
    return path


def _postgresql_program(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return _program(name, "postgresql", *folders)


def _postgresql_user() -> dict[str, Any]:
    """The user to run PostgreSQL as: it refuses to run as root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.fail("PostgreSQL does not run as root, and there is no user postgres or nobody.")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a fresh server that listens on a socket in its own folder, with password login.

    Its tests share it: they use data sets of their own, or `fresh_database`.
    """
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = _postgresql_user()
    if user:
        os.chown(folder, user["user"], user["group"])
    secret = folder / "password"
    secret.write_text(_PASSWORD)
    secret.chmod(0o644)
    data, log = str(folder / "data"), folder / "log"

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_postgresql_program(program), *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_SECONDS,
            **user,
        )
        if done.returncode != 0:
            told = log.read_text(errors="replace") if log.exists() else ""
            pytest.fail(f"PostgreSQL's {program} failed: {done.stderr} {told[-2000:]}")

    try:
        # Without waiting for the disk: no test here is about a server that loses its power.
        login = ("-U", "keeper", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync")
        run("initdb", "-D", data, *login, "--data-checksums")
        options = (
            f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=100"
        )
        options += " -c fsync=off"
        wait = ("-w", "-t", str(_SECONDS))  # until the server takes connections
        run("pg_ctl", "-D", data, *wait, "-o", options, "-l", str(log), "start")
        try:
            yield f"postgresql://keeper:{_PASSWORD}@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", *wait, "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def words() -> bool:
    """Whether the files for words are on this machine; they are fetched if they can be, so that no
    test depends on another one that did so.
    """
    from blindsight.core.errors import MissingData
    from blindsight.encoders.words import fetch_words

    try:
        fetch_words()
    except MissingData:
        return False
    return True


@pytest.fixture
def fresh_database(postgresql: str) -> str:
    """The URL of an empty database on the shared PostgreSQL server."""
    import psycopg

    name = f"fresh_{next(_numbers)}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgresql.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The path of a Milvus Lite file that is served until the last test: use collections of your
    own in it.
    """
    from blindsight.index import MilvusIndex

    path = tmp_path_factory.mktemp("milvus") / "lite.db"
    index = MilvusIndex(path, 8, collection="kept_open")  # waits until it serves, or says why not
    yield path
    index.close()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Two local workers for all tests: Ray takes seconds to start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray leaves /dev/null open while it starts
        import ray

        patient_ray.start(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        gc.collect()  # what else warns, while warnings are ignored
    yield ray
    end_ray()


def end_ray() -> None:
    """End Ray where it runs in this process: its threads write to standard error at any time, which
    tests of what is printed would take for the output of what they run.
    """
    if "ray" not in sys.modules:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules["ray"].shutdown()
        gc.collect()


def _patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with pages that wait as long as a busy machine may need, not half a minute."""

    def made(**options: Any) -> Any:
        opened = make(**options)
        opened.set_default_timeout(_SECONDS * 1000.0)
        return opened

    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium that asks nobody for updates, and whose pages are patient.

    It ends with the module: Playwright keeps an event loop running in this thread, in which other
    modules could not run one of their own.
    """
    from playwright.sync_api import sync_playwright

    path = _program("chromium", "chromium")
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ]
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=path, args=flags, timeout=_SECONDS * 1000.0
        )
        chromium.new_page = _patient(chromium.new_page)
        chromium.new_context = _patient(chromium.new_context)
        page = chromium.new_page()
        assert page.evaluate("1 + 1") == 2, "Chromium started and runs no scripts."
        page.close()
        yield chromium
        chromium.close()
