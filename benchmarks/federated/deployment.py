"""A run on Flower's deployment engine, with real processes and kill -9 of every kind of party.

`python -m benchmarks.federated.deployment` starts a SuperLink (TLS, authentication of SuperNodes, a
database), three SuperNodes and four key holders as processes of their own, and runs the app of
`blindsight federate new`. It kills, one after the other, a key holder, a SuperNode, a client app
while it trains, and the SuperLink with the server app in the middle of a round; starts them again,
and checks that the rounds go on from the last sum. A SuperNode whose key is not registered is shown
to be refused. Nothing is timed: every step waits for the state that the next one needs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.harness import Row, free_port
from blindsight.app.flower_example import new_federation
from blindsight.core.errors import ProtocolError
from blindsight.federated.deploy.folders import make_server_files
from blindsight.federated.flower import SumPlan, simulate_enrolment

__all__ = ["Deployment", "deployment_rows"]

_HANGING = 600.0  # seconds after which a step that does not come is given up
_SITES, _HOLDERS = 3, 4
_WEIGHTS = 650  # of the example app
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
        self.parties = root / "parties"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.marks.mkdir()
        new_federation(self.app)
        client = self.app / "secure_digits" / "client_app.py"
        text = client.read_text()
        position = text.index("    arrays = {name")
        client.write_text(text[:position] + _PAUSE.lstrip("\n") + text[position:])
        simulate_enrolment(
            self.parties,
            SumPlan(weights=_WEIGHTS, max_examples=500),
            users=_SITES,
            holders=_HOLDERS,
            address=f"127.0.0.1:{free_port()}",
        )
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

    def _call(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.app, env=self.environment, capture_output=True, text=True,
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
        """Start the SuperLink, with TLS; its database survives a kill."""
        self.start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(self.root / "ca.pem"),
            "--ssl-certfile", str(self.root / "server.pem"),
            "--ssl-keyfile", str(self.root / "server.key"),
            "--database", str(self.root / "superlink.db"), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def make_key(self, name: str) -> Path:
        """A SuperNode's key for Flower's node authentication; the public half."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        path = self.root / f"{name}.key"
        path.write_bytes(private)
        path.chmod(0o600)
        path.with_suffix(".pub").write_bytes(public)
        return path.with_suffix(".pub")

    def register(self, name: str) -> None:
        """Tell the SuperLink a SuperNode's public key."""
        public = self.make_key(name)

        def registered() -> bool:
            try:
                self._call("flwr", "supernode", "register", str(public), "here")
            except ProtocolError as error:
                return "already" in str(error)  # else the SuperLink is not there yet
            return True

        wait_for(registered, f"{name}'s key to be registered")

    def start_node(self, site: int, name: str = "") -> Path:
        """Start a SuperNode; its log. Another port is taken where the first one is not free."""
        name = name or f"node-{site}"
        log = self.root / f"{name}.log"
        log.unlink(missing_ok=True)
        folder = self.parties / f"node-{site}"
        self.start(
            name, "flower-supernode", "--root-certificates", str(self.root / "ca.pem"),
            "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()),
            "--auth-supernode-private-key", str(self.root / f"{name}.key"),
            "--node-config", f'partition-id={site} blindsight-folder="{folder}"',
        )  # fmt: skip
        return log

    def connect_node(self, site: int) -> None:
        """Start a SuperNode and wait until the SuperLink knows it."""
        log = self.start_node(site)

        def connected() -> bool:
            nonlocal log
            if self.running[f"node-{site}"].poll() is not None:
                log = self.start_node(site)
            return "SuperNode ID" in log.read_text(errors="replace")

        wait_for(connected, f"node-{site} to connect")

    def start_holder(self, number: int) -> None:
        """Start a key holder as a process of its own."""
        folder = self.parties / f"node-{_SITES + number}"
        command = (sys.executable, "-m", "blindsight", "federate", "run", str(folder))
        self.start(f"holder-{number}", *command)

    def start_run(self, rounds: int) -> str:
        """Start a run of the app; its number."""
        config = f'parties="{self.parties}" num-server-rounds={rounds}'
        return str(wait_for(lambda: self._try_run(config), "a run to start"))

    def _try_run(self, config: str) -> str:
        try:
            text = self._call("flwr", "run", ".", "here", "--run-config", config)
        except ProtocolError:
            return ""  # the SuperLink is not there yet
        number = re.search(r"run (\d+)", text)
        return number.group(1) if number else ""

    def rounds_done(self) -> int:
        """How many sums the first site has accepted, from its own state."""
        from blindsight.federated.flower.parties import Site

        site = Site(self.parties / "node-0")
        with site.locked():
            return site._user().ended if (site.path / "user.state").exists() else 0

    def kill(self, name: str) -> None:
        """End a process and all that it started, by kill -9."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all processes that are still running."""
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


def run_with_kills(root: Path, say: Callable[[str], None]) -> list[str]:
    """The whole run; the kinds of parties that were killed and did not stop it."""
    running, killed = Deployment(root), list[str]()
    try:
        running.start_link()
        for site in range(_SITES):
            running.register(f"node-{site}")
            running.connect_node(site)
        for number in range(_HOLDERS):
            running.start_holder(number)
        running.make_key("stranger")
        stranger = running.start_node(0, "stranger")
        wait_for(
            lambda: (
                running.running["stranger"].poll() is not None
                or "error" in stranger.read_text(errors="replace").lower()
            ),
            "a SuperNode without a registered key to be refused",
        )
        if "SuperNode ID" in stranger.read_text(errors="replace"):
            raise ProtocolError("a SuperNode with an unknown key was let in.")
        running.kill("stranger")
        say("a SuperNode whose key is not registered was refused")
        running.start_run(1)
        wait_for(lambda: running.rounds_done() >= 1, "the first sum")
        say(f"round 1 was summed over TLS by {_SITES} SuperNodes and {_HOLDERS} holder processes")
        running.kill("holder-0")
        running.kill("node-1")
        running.connect_node(1)
        running.start_run(1)
        wait_for(lambda: running.rounds_done() >= 2, "a sum without one of the holders")
        killed += ["key holder", "SuperNode"]
        say("a holder was killed and stayed away, a SuperNode was killed and came back: round 2")
        running.start_holder(0)
        (running.marks / "hold").touch()
        running.start_run(1)
        pids = wait_for(
            lambda: [
                int(path.read_text() or 0)
                for path in running.marks.glob("training-*")
                if path.stat().st_size
            ],
            "a client to train",
        )
        os.kill(pids[0], signal.SIGKILL)
        running.kill("link")  # with the server app, in the middle of its round
        for path in running.marks.iterdir():
            path.unlink()
        say("a client app was killed while it trained, and the SuperLink with the server app")
        running.start_link()
        running.start_run(1)
        wait_for(lambda: running.rounds_done() >= 3, "a sum after the kill of the SuperLink")
        killed += ["client app", "SuperLink", "server app"]
        say(f"it went on from the last sum: round {running.rounds_done()} of the protocol")
    finally:
        running.close()
    return killed


def deployment_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """How many kinds of parties may be killed by kill -9 on Flower's deployment engine."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        killed = run_with_kills(Path(folder), lambda text: print(text, flush=True))
    yield Row(
        id="flower.deployment_kills_survived",
        value=len(killed),
        unit="of 5 kinds of party",
        seed=seed,
        seconds=time.perf_counter() - start,
        note=f"{', '.join(killed)}; three SuperNodes, {_HOLDERS} holders as processes, TLS, "
        "authenticated nodes, rounds continued from the last sum",
    )


if __name__ == "__main__":
    for row in deployment_rows(quick=False, out=Path()):
        print(row)
