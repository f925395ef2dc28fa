"""What the tests of both carriers start: parties in threads, and those that are killed as
processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from blindsight.federated.flower.homes import Home
from blindsight.federated.mailbox.party import keep_party


def status(home: Home) -> dict:
    try:
        return json.loads((home.path / "status.json").read_text())
    except FileNotFoundError:
        return {"rounds": [], "users_in": 0, "waiting": ""}


class Crowd:
    """Parties of one federation, each in a thread of this process or in a process of its own; none
    is left behind.
    """

    def __init__(self, homes: dict[str, Home], data: Path) -> None:
        self.homes, self.data = homes, data
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.said: list[str] = []
        self.failed: list[BaseException] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def until(self, what: str, happened: Callable[[], object], seconds: float = 600.0) -> None:
        """Wait; a party that failed in its thread fails the test."""
        end = time.monotonic() + seconds
        while not happened():
            if self.failed:
                raise self.failed[0]
            assert time.monotonic() < end, (
                f"waited {seconds:g} s for {what}; said: {self.said[-5:]}"
            )
            time.sleep(0.05)

    def _keep(self, home: Home, **options: object) -> None:
        try:
            keep_party(home, **options)  # type: ignore[arg-type]
        except BaseException as error:
            self.failed.append(error)

    def join(self, *names: str, homes: dict[str, Home] | None = None, **options: object) -> None:
        """In threads."""
        options = {"say": self.said.append, "stop": self._over.is_set, **options}
        for name in names:
            home = (homes or self.homes)[name]
            given = {"data": self.data / f"{name}.npz", **options}
            thread = threading.Thread(target=self._keep, args=(home,), kwargs=given, daemon=True)
            self._threads.append(thread)
            thread.start()

    def start(self, name: str, *arguments: str) -> None:
        """As a process, the way `blindsight federate` starts it."""
        role = name.partition("-")[0]
        rows = ["--data", str(self.data / f"{name}.npz")] if role == "user" else []
        command = [
            sys.executable,
            "-m",
            "blindsight",
            "federate",
            role,
            str(self.homes[name].path),
            *rows,
            *arguments,
        ]
        with (self.data / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def log(self, name: str) -> str:
        return (self.data / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def children(self, name: str) -> list[int]:
        pid = self.running[name].pid
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def close(self) -> None:
        self._over.set()
        for process in self.running.values():
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(120)
