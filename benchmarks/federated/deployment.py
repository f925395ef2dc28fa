"""A run on Flower's deployment engine, with real processes and kill -9 of every kind of party.

`python -m benchmarks.federated.deployment` starts a SuperLink (TLS) and three SuperNodes, each a
user and a key holder, and runs the app of `blindsight federate new`. It kills, one after the other,
a SuperNode, the SuperLink, a client app while it trains and the server app in the middle of a
round, starts them again, and checks that the rounds go on from the last sum. Nothing is timed:
every step waits for the state that the next one needs.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import free_port
from blindsight.app.flower_example import new_federation
from blindsight.core.errors import ProtocolError
from blindsight.federated.deploy.certificates import make_server_files

__all__ = ["Deployment", "main"]

_HANGING = 1800.0  # seconds after which a step that does not come is given up
_SITES = 3
_PAUSE = """
    import os, time
    from pathlib import Path
    marks = Path(os.environ["BLINDSIGHT_MARKS"])
    if (marks / "hold").exists():
        (marks / f"training-{context.node_config['partition-id']}").write_text(str(os.getpid()))
        while (marks / "hold").exists():
            time.sleep(0.05)
"""


class Deployment:
    """The processes of one federation on this machine.

    Parameters:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.app, self.marks = root, root / "app", root / "marks"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.marks.mkdir()
        new_federation(self.app)
        client = self.app / "secure_digits" / "client_app.py"
        text = client.read_text()
        place = text.index("    arrays = {name")
        client.write_text(text[:place] + _PAUSE.lstrip("\n") + text[place:])
        self.port = free_port()
        files = make_server_files("127.0.0.1")
        for name, content in (
            ("ca.pem", files.authority),
            ("server.pem", files.certificate),
            ("server.key", files.key),
        ):
            (root / name).write_bytes(content)
        home = root / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{root / "ca.pem"}"\n'
        )
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "BLINDSIGHT_MARKS": str(self.marks),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._call("python", "make_parties.py")

    def _call(self, *command: str) -> str:
        given = [sys.executable if part == "python" else part for part in command]
        done = subprocess.run(
            given, cwd=self.app, env=self.environment, capture_output=True, text=True,
            timeout=_HANGING, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ProtocolError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a process that stays."""
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.app, env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def start_link(self) -> None:
        """Start the SuperLink, with TLS."""
        self.start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(self.root / "ca.pem"),
            "--ssl-certfile", str(self.root / "server.pem"),
            "--ssl-keyfile", str(self.root / "server.key"),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def start_node(self, site: int) -> None:
        """Start a SuperNode, a user and a key holder, and wait until the SuperLink knows it.

        Another process may take a free port first: the SuperNode then ends and gets another one.
        """
        folder, name = self.app / "parties" / f"node-{site}", f"node-{site}"
        log = self.root / f"{name}.log"
        log.unlink(missing_ok=True)

        def connected() -> bool:
            process = self.running.get(name)
            if process is None or process.poll() is not None:
                self.start(
                    name, "flower-supernode", "--root-certificates", str(self.root / "ca.pem"),
                    "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()),
                    "--node-config", f'partition-id={site} blindsight-folder="{folder}"',
                )  # fmt: skip
            return log.exists() and "SuperNode ID" in log.read_text(errors="replace")

        wait_for(connected, f"{name} to connect")

    def start_run(self, rounds: int) -> str:
        """Start a run of the app; its number."""
        config = f'parties="{self.app / "parties"}" num-server-rounds={rounds}'
        return str(wait_for(lambda: self._try_run(config), "a run to start"))

    def _try_run(self, config: str) -> str:
        try:
            text = self._call("flwr", "run", ".", "here", "--run-config", config)
        except ProtocolError:
            return ""  # the SuperLink is not there yet
        found = re.search(r"run (\d+)", text)
        return found.group(1) if found else ""

    def rounds_done(self) -> int:
        """How many sums the first site has accepted, from its own state."""
        from blindsight.federated.flower.parties import Site

        site = Site(self.app / "parties" / "node-0")
        return int(site._user()[0].ended) if (site.path / "user.state").exists() else 0

    def kill(self, name: str) -> None:
        """End a process and all that it started, by kill -9."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End everything."""
        for name in list(self.running):
            self.kill(name)


def wait_for(state: Callable[[], Any], what: str) -> Any:
    """What `state` returns, as soon as it is true."""
    end = time.monotonic() + _HANGING
    while time.monotonic() < end:
        reached = state()
        if reached:
            return reached
        time.sleep(0.2)
    raise ProtocolError(f"waited in vain for {what}.")


def main() -> dict[str, Any]:
    """The whole run; prints what happened."""
    log: list[str] = []

    def say(text: str) -> None:
        line = f"{datetime.datetime.now():%H:%M:%S} {text}"
        log.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        running = Deployment(Path(folder))
        try:
            running.start_link()
            for site in range(_SITES):
                running.start_node(site)
            running.start_run(1)
            wait_for(lambda: running.rounds_done() >= 1, "the first sum")
            first = running.rounds_done()
            say(f"round 1 is summed over TLS by {_SITES} SuperNodes that hold the keys themselves")
            running.kill("node-1")
            running.start_node(1)
            running.kill("link")
            running.start_link()
            say("a SuperNode (user and key holder) and the SuperLink were killed and started again")
            (running.marks / "hold").touch()
            running.start_run(1)
            pid = wait_for(
                lambda: [int(path.read_text() or 0) for path in running.marks.glob("training-*")],
                "a client to train",
            )[0]
            os.kill(pid, signal.SIGKILL)
            say("a client app was killed while it trained")
            running.kill("link")  # with the server app, in the middle of its round
            for path in running.marks.iterdir():
                path.unlink()
            say("the SuperLink and the server app were killed in the middle of a round")
            running.start_link()
            running.start_run(1)
            wait_for(lambda: running.rounds_done() > first, "the next sum")
            say(f"the next sum is round {running.rounds_done()} of the protocol: it went on")
        finally:
            running.close()
    return {"log": log}


if __name__ == "__main__":
    main()
    print(json.dumps({"done": True}))
