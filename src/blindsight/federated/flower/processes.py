"""Starting the roles as processes: Flower's SuperLink for the aggregator, a SuperNode for everybody else.

Telemetry, update checks and the installation of dependencies at run time are off.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blindsight.core import storage
from blindsight.core.checks import optional_module
from blindsight.core.errors import InvalidParameter, MissingDependency, ProtocolError
from blindsight.federated.flower.homes import Home

__all__ = [
    "environment",
    "free_port",
    "node_command",
    "register_and_start",
    "start_aggregator",
    "start_node",
    "wait_for_port",
]

_APP = """\
[project]
name = "blindsight-federation"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "blindsight"

[tool.flwr.app.components]
serverapp = "blindsight.federated.flower.server_app:app"
clientapp = "blindsight.federated.flower.client_app:app"

[tool.flwr.app.config]
home = ""
test = ""
"""


def environment(home: Home) -> dict[str, str]:
    """The variables Flower's processes run under; its own home lies inside the party's."""
    return {
        **os.environ,
        "FLWR_HOME": str(home.path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1"),
        "OMP_WAIT_POLICY": "PASSIVE",
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def _command(name: str) -> str:
    found = Path(sys.executable).parent / name
    if not found.exists():
        raise MissingDependency(f"{name} is not installed. Install it with: pip install 'blindsight[cluster]'.")
    return str(found)


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(address: str, *, seconds: float = 60.0) -> None:
    """Until somebody listens."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return
        except OSError as error:
            if time.monotonic() > end:
                raise ProtocolError(f"nobody listens at {address} after {seconds:g} s.") from error
            time.sleep(0.1)


def _die_with_parent() -> None:
    """Linux: the kernel kills this process when its parent dies, so that kill -9 leaves no SuperLink behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def start_aggregator(home: Home, *, bind: str | None = None, **popen: Any) -> subprocess.Popen[bytes]:
    """The SuperLink, with TLS and node authentication; its database lies in the folder. It dies with this process.

    It listens at `bind`, by default at the address the nodes were given.
    """
    home.require("aggregator")
    host, _, port = home.about["address"].rpartition(":")
    command = [
        _command("flower-superlink"),
        *("--ssl-ca-certfile", str((home.path / "ca.pem").resolve())),
        *("--ssl-certfile", str((home.path / "server.pem").resolve())),
        *("--ssl-keyfile", str((home.path / "server.key").resolve())),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--database", str((home.path / "superlink.db").resolve())),
        *("--host", bind or host, "--port", port),
    ]
    return _start(home, command, **popen)


def node_command(home: Home, *, data: str | Path | None = None, port: int | None = None) -> list[str]:
    """A SuperNode's command line: a user with its rows, or the key generator."""
    config = {"home": str(home.path.resolve())}
    if home.about["role"] == "user":
        if data is None:
            raise InvalidParameter("a user needs its rows: an .npz file with X and y.")
        config["data"] = str(Path(data).resolve())
    return [
        _command("flower-supernode"),
        *("--superlink", home.about["address"]),
        *("--root-certificates", str((home.path / "ca.pem").resolve())),
        *("--auth-supernode-private-key", str((home.path / "node.key").resolve())),
        *("--port", str(free_port() if port is None else port)),
        *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())),
    ]


def start_node(
    home: Home, *, data: str | Path | None = None, port: int | None = None, **popen: Any
) -> subprocess.Popen[bytes]:
    """A SuperNode that dies with this process."""
    return _start(home, node_command(home, data=data, port=port), **popen)


def _start(home: Home, command: list[str], **popen: Any) -> subprocess.Popen[bytes]:
    before = _die_with_parent if sys.platform == "linux" else None
    return subprocess.Popen(command, env=environment(home), preexec_fn=before, **popen)  # noqa: S603


def register_and_start(home: Home, *, test: str | Path | None = None, address: str | None = None) -> int:
    """Register the nodes' public keys with the SuperLink, once, and start the run; its number."""
    home.require("aggregator")
    os.environ.update({k: v for k, v in environment(home).items() if k.startswith("FLWR_")})
    control = optional_module("flwr.proto.control_pb2", extra="cluster")
    with contextlib.redirect_stdout(sys.stderr):  # Flower says hello on standard output
        client = _client(home, address or home.about["address"])
    try:
        nodes = _registered(home, client, control)
        storage.write_atomically(home.path / "nodes.json", json.dumps(nodes).encode())
        config = {"home": str(home.path.resolve()), "test": "" if test is None else str(Path(test).resolve())}
        return _submit(home, client, control, config)
    finally:
        client.close()


def _client(home: Home, address: str) -> Any:
    utils = optional_module("flwr.cli.utils", extra="cluster")
    typing = optional_module("flwr.cli.typing", extra="cluster")
    authority = str((home.path / "ca.pem").resolve())
    connection = typing.SuperLinkConnection(
        name="blindsight", address=address, root_certificates=authority, insecure=False
    )
    return utils.init_http_client_from_connection(connection)


def _registered(home: Home, client: Any, control: Any) -> dict[str, int]:
    """Node ids by party; those of an earlier run are kept, because the SuperLink's database survives, too."""
    known = home.path / "nodes.json"
    nodes: dict[str, int] = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    load = optional_module("flwr.cli.supernode.register", extra="cluster").try_load_public_key
    for path in sorted((home.path / "nodes").glob("*.pub")):
        if path.stem not in nodes:
            request = control.RegisterNodeRequest(public_key=load(path), name=path.stem)
            nodes[path.stem] = int(client.RegisterNode(request=request).node_id)
    return nodes


def _submit(home: Home, client: Any, control: Any, config: Mapping[str, str]) -> int:
    folder = home.path / "app"
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(_APP, encoding="utf-8")
    (folder / "README.md").write_text("The app is installed with Blindsight; this folder only names it.\n")
    build = optional_module("flwr.cli.build", extra="cluster").build_fab_from_disk
    serde = optional_module("flwr.common.serde", extra="cluster")
    make_fab = optional_module("flwr.supercore.fab", extra="cluster").Fab
    content = build(folder)
    fab = make_fab(hashlib.sha256(content).hexdigest(), content, {})
    request = control.StartRunRequest(
        fab=serde.fab_to_proto(fab), override_config=serde.user_config_to_proto(dict(config)), federation=""
    )
    return int(client.StartRun(request).run_id)
