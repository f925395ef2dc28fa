"""A real PostgreSQL server for the tests, started from the binaries on this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PASSWORD = "open-sesame-4711"


def _bin(name: str) -> str:
    found = shutil.which(name) or next(
        (
            str(path)
            for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
        ),
        None,
    )
    assert found, f"PostgreSQL's {name} is needed: apt-get install postgresql"
    return found


def _user() -> dict[str, object]:
    """PostgreSQL refuses to run as root, so root lends it another user."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError("no user to run PostgreSQL as")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a fresh server that listens on a socket in its own folder, with password login."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = _user()
    if user:
        os.chown(folder, user["user"], user["group"])
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    data = str(folder / "data")

    def run(*command: str) -> None:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            **user,
        )
        assert done.returncode == 0, done.stderr

    run(
        _bin("initdb"),
        "-D",
        data,
        "-U",
        "keeper",
        "--auth=scram-sha-256",
        f"--pwfile={secret}",
        "--data-checksums",
    )
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=100"
    run(_bin("pg_ctl"), "-D", data, "-w", "-o", options, "-l", str(folder / "log"), "start")
    try:
        yield f"postgresql://keeper:{PASSWORD}@/postgres?host={folder}"
    finally:
        run(_bin("pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)
