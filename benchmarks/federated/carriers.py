"""Seconds of a round across processes, over HTTPS: on the machine as it is, and with every core
kept busy.

Five sites, each user and key holder, and the aggregator, each a process as `blindsight federate
run` starts it, on loopback with TLS and authentication: digits, 650 weights, three rounds. The
first round waits for everybody to start and is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federated import sets
from benchmarks.harness import Row, free_port
from blindsight.core.errors import ProtocolError
from blindsight.federated.deploy.folders import accept, join, make_roster
from blindsight.federated.deploy.plan import Plan
from blindsight.federated.learning import initial_weights
from blindsight.federated.sums import Role, Settings

__all__ = ["carrier_rows"]

_USERS, _ROUNDS, _PATIENCE = 5, 3, 600.0


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _run(*, loops: int, limit: float) -> dict[str, Any]:
    """The aggregator's last status."""
    X, y = sets.digits()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = Plan(
            initial=initial_weights(X[:100] / 255, y[:100], classes=10),
            scale=np.vstack([np.zeros(64), np.full(64, 255.0)]),
            classes=10,
            rounds=_ROUNDS,
            patience=_PATIENCE,
        )
        settings = Settings(
            dimension=len(plan.initial), users=_USERS, bound=4.0, least_users=_USERS
        )
        address = f"127.0.0.1:{free_port()}"
        parties = [join(folder / "aggregator", "aggregator", Role.AGGREGATOR, address=address)]
        for n in range(1, _USERS + 1):
            parties.append(join(folder / f"site-{n}", f"site-{n}", Role.USER | Role.HOLDER))
        roster = make_roster(settings, plan, [party.request for party in parties])
        running = []
        with _busy(loops):
            try:
                for number, party in enumerate(parties):
                    accept(party, roster)
                    rows = folder / f"{party.name}.npz"
                    np.savez(rows, X=X[100 + number :: _USERS], y=y[100 + number :: _USERS])
                    data = ["--data", str(rows)] if number else []
                    verb = [sys.executable, "-m", "blindsight", "federate", "run"]
                    command = [*verb, str(party.path), *data]
                    with (folder / f"{party.name}.log").open("wb") as log:
                        running.append(
                            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
                        )
                end = time.monotonic() + limit
                while running[0].poll() is None and time.monotonic() < end:
                    time.sleep(0.2)
                if running[0].poll() != 0:
                    last = (folder / "aggregator.log").read_text(errors="replace")[-500:]
                    raise ProtocolError(f"the rounds did not end within {limit:g} s: {last}")
                return json.loads((parties[0].path / "status.json").read_text())  # type: ignore[no-any-return]
            finally:
                for process in running:
                    process.kill()
                    process.wait()


def carrier_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Seconds of a round after the first."""
    plans = ["quiet", "loaded"]
    for done, load in enumerate(plans[:1] if quick else plans, start=1):
        loops = 2 * (os.cpu_count() or 1) if load == "loaded" else 0
        before = os.getloadavg()[0]
        rounds = _run(loops=loops, limit=400)["rounds"]
        later = [entry["seconds"] for entry in rounds[1:]]
        yield Row(
            id=f"federated.round_seconds_mailbox_{load}",
            value=float(np.mean(later)),
            unit="seconds",
            seed=seed,
            seconds=float(np.mean(later)),
            note=f"wall, {len(rounds)} rounds of {_USERS} sites in processes of their own, {loops} "
            "busy loops beside "
            f"them (load {before:.1f} of {os.cpu_count()} cores when it began); the first, with "
            "everybody's start, "
            f"{rounds[0]['seconds']:.1f} s",
        )
        if progress is not None:
            progress(done, len(plans))
