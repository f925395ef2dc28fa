"""What ships for running a server: unit, container, compose, metrics and dashboard, logs.

Where a container engine works the image's file is checked by it; elsewhere the steps of the files
are run as a script, against a real PostgreSQL.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from blindsight.workbench.infra.server import JsonLines, start_logging
from blindsight.workbench.infra.settings import PREFIX, WorkbenchSettings
from workbench import web
from workbench.asgi import Client
from workbench.conftest import Server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def _container_steps() -> list[tuple[str, str]]:
    """The instructions of the container file, with their continued lines joined."""
    text = "\n".join(
        line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line[:1] != "#"
    ).replace("\\\n", " ")
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in text.splitlines())
        if word
    ]


def _container_environment() -> dict[str, str]:
    words = shlex.split(next(rest for word, rest in _container_steps() if word == "ENV"))
    return dict(word.split("=", 1) for word in words)


def test_everything_that_the_image_copies_and_installs_is_there() -> None:
    copied = [rest.split()[:-1] for word, rest in _container_steps() if word == "COPY"]
    names = [name for names in copied for name in names]
    assert all((ROOT / name).exists() for name in names), names
    [install] = [rest for word, rest in _container_steps() if "pip install" in rest]
    assert "--require-hashes" in install, "every package by its hash"
    pinned = (ROOT / "requirements-all.txt").read_text().lower()
    for package in ("alembic==", "authlib==", "fastapi==", "psycopg==", "uvicorn=="):
        assert package in pinned, package
    users = [rest for word, rest in _container_steps() if word == "USER"]
    assert users == ["blindsight"], "it does not run as root"


def test_settings_in_the_deployment_files_are_settings() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    given = _container_environment() | compose["services"]["workbench"]["environment"]
    unit = (DEPLOY / "blindsight.service").read_text()
    given |= dict(re.findall(r"^Environment=([A-Z_]+)=(.*)$", unit, re.MULTILINE))
    known = {PREFIX + name.upper() for name in WorkbenchSettings.model_fields}
    named = {name for name in given if name.startswith(PREFIX)}
    assert named
    assert named <= known
    WorkbenchSettings.read(
        environment={name: value for name, value in given.items() if name in named}
    )


@pytest.mark.real
def test_the_steps_of_image_and_compose_file_run_as_a_script(
    serve: Callable[..., Server], state: Path, fresh_database: str, tmp_path: Path
) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["workbench"]
    given = {
        name.removeprefix(PREFIX): value
        for name, value in (_container_environment() | service["environment"]).items()
        if name.startswith(PREFIX)
    }
    # What a container changes: the address of the database, the folder, and who can reach it.
    given |= {"DATABASE": fresh_database, "STATE": str(state), "HOST": "127.0.0.1"}
    given |= {"HOSTS": "127.0.0.1"}
    server = serve(state, **given)
    log = server.log.read_text()
    assert "owner key, shown once" in log
    ready = web.get(server.url + "/health/ready")
    assert ready.json() == {
        "ready": True,
        "parts": {"database": True, "ledger": True, "access log": True, "disk": True},
    }
    # The image's own health check, as it stands, at this server's port.
    check = next(rest for word, rest in _container_steps() if word == "HEALTHCHECK")
    words = ast.literal_eval(check[check.index("[") :])
    program = words[-1].replace("8731", str(server.port))
    assert "timeout=4)" in program
    program = program.replace("timeout=4)", "timeout=600)")  # the machine may be busy
    assert subprocess.run(["python3", "-c", program], check=False).returncode == 0
    server.stop()
    assert subprocess.run(
        ["python3", "-c", program], check=False, capture_output=True
    ).returncode, "a server that is gone is not healthy"
    # The command by which the container hands the password's file to libpq.
    secret = tmp_path / "secret"
    secret.write_text("open sesame")
    script = (
        service["command"][0]
        .replace("$$", "$")
        .replace("/run/secrets/database-password", str(secret))
    )
    script = script.replace("/state", str(tmp_path)).replace("exec blindsight serve", "true")
    subprocess.run([*service["entrypoint"], script], check=True)
    assert (tmp_path / "pgpass").read_text() == "database:*:*:workbench:open sesame\n"
    assert (tmp_path / "pgpass").stat().st_mode & 0o077 == 0


def test_a_container_engine_reads_the_files_where_there_is_one() -> None:
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("no container engine on this machine.")
    if subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("the container engine's client is here, but no engine answers.")
    command = [docker, "build", "--check", "-f", str(DEPLOY / "Containerfile"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_systemd_accepts_the_unit_and_its_sandbox(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on this machine: apt-get install systemd.")
    # It checks that the program exists; the unit names where an installation puts it.
    text = (DEPLOY / "blindsight.service").read_text()
    unit = tmp_path / "blindsight.service"
    unit.write_text(text.replace("/opt/blindsight/bin/blindsight", "/bin/true"))
    done = subprocess.run(
        [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "blindsight.service" in line]
    assert not complaints, done.stderr
    options = dict(re.findall(r"^([A-Za-z]+)=(.*)$", text, re.MULTILINE))
    for name, value in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
        "PrivateDevices": "yes",
        "UMask": "0077",
    }.items():
        assert options[name] == value, name


def test_the_dashboard_shows_counts_that_the_workbench_has(
    make: Callable[..., Any], stocked: Path
) -> None:
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    wanted = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"blindsight_[a-z_]+", target["expr"])
    }
    app = make(state=stocked, keys="required")
    keys = app.state.workbench.keys
    owner = Client(app, Authorization=f"Bearer {keys.make('ann', 'owner')}")
    monitor = Client(app, Authorization=f"Bearer {keys.make('watch', 'monitor')}")
    owner.get("/budget")
    text = monitor.get("/metrics").text
    present = set(re.findall(r"^(blindsight_[a-z_]+)", text, re.MULTILINE))
    assert wanted <= present, wanted - present
    assert len(wanted) >= 15
    spent = re.search(r"^blindsight_ledger_spent_epsilon (\S+)", text, re.MULTILINE)
    assert spent is not None
    assert float(spent[1]) > 0
    data_set = app.state.workbench.datasets.listed()[0]
    assert data_set.name not in text
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["metrics_path"] == "/metrics"


def test_readiness_names_the_part_that_is_not_ready(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make()
    assert Client(app).get("/health/ready").json()["ready"]
    usage = shutil.disk_usage(app.state.workbench.settings.state)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    answer = Client(app).get("/health/ready")
    assert (answer.status_code, answer.json()["parts"]["disk"]) == (503, False)
    for address in ("/health", "/health/live", "/health/ready"):
        assert Client(app).request("HEAD", address).status_code in (200, 503)
    assert Client(app).get("/health/live").status_code == 200


def test_log_lines_are_json_with_the_fields_of_a_request(capsys: Any) -> None:
    # Not capfd: other parts of this process (Ray) write to the descriptor at any time.
    logger = logging.getLogger("blindsight.workbench")
    before = (logger.level, logging.root.handlers[:], logging.root.level)
    try:
        start_logging("json")
        fields = {"method": "GET", "route": "/search", "status": 200, "milliseconds": 1.5}
        logger.info("GET /search 200", extra=fields)
        try:
            raise ValueError("pixels of Ann")
        except ValueError:
            logger.exception("it failed")
    finally:
        logger.setLevel(before[0])
        logging.root.handlers[:] = before[1]
        logging.root.setLevel(before[2])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert fields.items() <= lines[0].items()
    assert lines[1]["error"] == "ValueError"
    assert "Ann" not in json.dumps(lines)
    assert (
        JsonLines().format(logging.LogRecord("x", 20, "", 0, "a\nb", None, None)).count("\n") == 0
    )


def test_no_secret_stands_in_the_deployment_files() -> None:
    for path in DEPLOY.iterdir():
        text = path.read_text()
        assert not re.search(r"(password|secret|key)\s*[:=]\s*['\"]?[A-Za-z0-9]{12,}", text), path
        assert os.access(path, os.R_OK)
