"""kill -9 in jobs that release: it goes on, what was stored stays as it was, and it is paid once."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from blindsight.privacy import Ledger
from blindsight.service.infra.datasets import Release, today
from service.photos import album, light, scanned, state  # noqa: F401

PATIENCE = 300
KINDS = ("release", "learn")


def order(app: Any, one: Any, kind: str) -> tuple[str, dict[str, Any]]:
    datasets, number = app.state.studio.datasets, secrets.token_hex(6)
    if kind == "release":
        made = Release(number, "search", datasets.new_folder(one, "search", 4.0), 4.0, 0, today(), False)
        return "protect", {"step": "release", "dataset": one.id, "release": asdict(made)}
    return "tags", {"dataset": one.id, "step": kind, "release": number}


def started(app: Any, job: str, attempt: int) -> subprocess.Popen[bytes]:
    """The job's own process, as the workbench starts it."""
    command = [sys.executable, "-m", "blindsight.service.infra.job_process"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    told = {"settings": app.state.studio.settings.to_fields(), "job": job, "attempt": attempt}
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode() + b"\n")
    process.stdin.flush()
    return process


def finished(app: Any, job: str) -> bool:
    """Run it to its end; whether it ended well."""
    with started(app, job, 1) as process:
        return process.wait(PATIENCE) == 0


def stored(app: Any) -> dict[str, str]:
    """What may have left: the files of releases. An index's own file grows; its codes are looked at in the vault."""
    given = app.state.studio.datasets.given
    files = [path for path in given.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".csv")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def codes(app: Any, one: Any) -> dict[tuple[str, str], bytes]:
    path = app.state.studio.datasets.vault(one) / "vault" / "records.db"
    with sqlite3.connect(path) as connection:  # it may have to put in order what a kill left
        found = connection.execute("SELECT release, record, code FROM codes")
        return {(release, record): code for release, record, code in found}


def charged(app: Any, one: Any) -> int:
    with Ledger(app.state.studio.settings.ledger_place, dataset=one.account) as ledger:
        ledger.verify()
        return sum(entry.kind == "charge" for entry in ledger.entries())


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_releases_is_killed_goes_on_and_is_paid_once(
    make: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    app = make(photo_budget=64.0)
    one = scanned(app, album(tmp_path / "coast"))
    name, arguments = order(app, one, kind)
    jobs = app.state.studio.jobs
    job = jobs.add(name, arguments, "local")["id"]
    assert jobs.claim()["id"] == job
    before: dict[str, str] = {}
    kept: dict[tuple[str, str], bytes] = {}
    for attempt, wait in enumerate((0.0, 0.1)):  # right after the charge, and a little later
        with started(app, job, 1) as process:
            end = time.monotonic() + PATIENCE
            while not charged(app, one) and process.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.05)
            time.sleep(wait * attempt)
            process.kill()
        assert all(stored(app).get(path, digest) == digest for path, digest in before.items())
        assert all(codes(app, one).get(key, code) == code for key, code in kept.items())
        before, kept = stored(app), codes(app, one)
    assert finished(app, job)
    assert jobs.get(job)["state"] == "done", jobs.get(job)["note"]
    assert charged(app, one) == 1
    assert all(stored(app)[path] == digest for path, digest in before.items())
    assert all(codes(app, one)[key] == code for key, code in kept.items())
    assert [release.id for release in app.state.studio.datasets.get(one.id).releases] == [number_of(arguments)]
    again = stored(app)
    jobs.rerun(job)
    jobs.claim()
    assert finished(app, job)
    assert stored(app) == again, "run again, a release changed"
    assert charged(app, one) == 1


def number_of(arguments: dict[str, Any]) -> str:
    release = arguments["release"]
    return str(release["id"] if isinstance(release, dict) else release)
