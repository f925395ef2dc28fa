"""Flower's SuperLink as a process; telemetry, update checks and the installation of dependencies
are off.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from blindsight.core.checks import optional_module
from blindsight.core.errors import MissingDependency, ProtocolError
from blindsight.federated.flower.homes import Home

__all__ = ["end", "environment", "prepare", "reached_at", "start_superlink", "wait_for_port"]


def environment(home: Home) -> dict[str, str]:
    """The variables Flower runs under; its own home lies inside the party's."""
    return {
        "FLWR_HOME": str(home.path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def prepare(home: Home) -> None:
    """To be called before Flower is imported: it reads these variables then."""
    os.environ.update(environment(home))
    optional_module("flwr", extra="cluster")


def reached_at(home: Home, bind: str | None) -> str:
    """Where the SuperLink is reached from its own machine; every interface includes loopback."""
    address = str(home.about["address"])
    if bind is None:
        return address
    return f"{'127.0.0.1' if bind == '0.0.0.0' else bind}:{address.rpartition(':')[2]}"  # noqa: S104


def wait_for_port(
    address: str, process: subprocess.Popen[bytes], *, log: Path, seconds: float = 120.0
) -> None:
    """Until somebody listens; a process that ends before is an error at once, with the last words
    of its log.
    """
    host, _, port = address.rpartition(":")
    over = time.monotonic() + seconds
    while True:
        if process.poll() is not None:
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ProtocolError(
                f"the SuperLink ended before it listened at {address}: {''.join(words)[:300]}"
            )
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return
        except OSError as error:
            if time.monotonic() > over:
                raise ProtocolError(f"nobody listens at {address} after {seconds:g} s.") from error
            time.sleep(0.05)


def _die_with_parent() -> None:
    """Linux: the kernel kills this process when its parent dies, so that kill -9 leaves no
    SuperLink behind.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def start_superlink(
    home: Home, *, bind: str | None = None, **popen: Any
) -> subprocess.Popen[bytes]:
    """The SuperLink with TLS and node authentication, in memory; it dies with this process.

    It listens at `bind`, by default at the address the nodes were given. It starts no processes of
    its own: in that mode anybody who reaches the port may claim the server's task, whereas here
    that takes a secret.
    """
    host, _, port = home.about["address"].rpartition(":")
    command = Path(sys.executable).parent / "flower-superlink"
    if not command.exists():
        raise MissingDependency(
            "flower-superlink is not installed: pip install 'blindsight[cluster]'."
        )
    arguments = [
        *("--ssl-ca-certfile", str((home.path / "ca.pem").resolve())),
        *("--ssl-certfile", str((home.path / "server.pem").resolve())),
        *("--ssl-keyfile", str((home.path / "server.key").resolve())),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str((home.path / "superlink.secret").resolve())),
        *("--host", bind or host, "--port", port),
    ]
    before = _die_with_parent if sys.platform == "linux" else None
    variables = {**os.environ, **environment(home), "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen([str(command), *arguments], env=variables, preexec_fn=before, **popen)  # noqa: S603


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, gently first."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
