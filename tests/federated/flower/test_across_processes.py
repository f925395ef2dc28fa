"""Over Flower on loopback, with TLS and node authentication: whatever is killed, the run goes on
and is exact.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blindsight.core.errors import ProtocolError
from blindsight.federated import FederatedClassifier
from blindsight.federated.flower.certificates import make_node_key
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.processes import wait_for_port
from blindsight.federated.protocol import Settings
from federated.parties import Crowd, status
from ports import held_port

pytestmark = pytest.mark.real("flower")
HOLDERS = [f"holder-{n}" for n in range(1, 6)]


def test_a_run_survives_a_killed_superlink_a_killed_user_and_a_killed_aggregator(
    federation, simulated, tmp_path: Path
) -> None:
    agreed = {"least_users": 4, "holders": (3, 5)}
    homes = federation(port=held_port(), agreed=agreed, rounds=3, patience=600.0, carrier="flower")
    aggregator = homes["aggregator"]
    crowd = Crowd(homes, tmp_path)
    stranger = Home(shutil.copytree(homes["user-1"].path, tmp_path / "stranger"))
    (stranger.path / "node.key").write_bytes(make_node_key().private)
    try:
        crowd.start("aggregator", "--test", str(tmp_path / "test.npz"))
        crowd.join(*HOLDERS, *(f"user-{n}" for n in range(1, 5)))  # too early: they wait for it
        crowd.join("user-1", homes={"user-1": stranger})
        crowd.until(
            "the stranger to be refused", lambda: "does not know this party" in " ".join(crowd.said)
        )
        crowd.until(
            "it to say who is missing", lambda: status(aggregator)["waiting"].endswith("of user-5")
        )
        [superlink] = crowd.children("aggregator")
        os.kill(superlink, signal.SIGKILL)
        crowd.start("user-5")  # late
        crowd.until("round 1 to end", lambda: len(status(aggregator)["rounds"]) >= 1)
        crowd.kill("user-5")
        crowd.start("user-5")
        crowd.until("round 2 to end", lambda: len(status(aggregator)["rounds"]) >= 2)
        crowd.kill("aggregator")  # and with it its SuperLink
        crowd.start("aggregator", "--test", str(tmp_path / "test.npz"), "--json")
        crowd.until("the aggregator to end", lambda: crowd.running["aggregator"].poll() is not None)
        assert crowd.running["aggregator"].returncode == 0
    finally:
        crowd.close()
    assert "the SuperLink stopped" in crowd.log("aggregator")
    rounds = status(aggregator)["rounds"]
    everybody = (1, 2, 3, 4, 5)
    assert [tuple(entry["contributors"]) for entry in rounds] == [everybody] * 3
    settings = Settings(dimension=650, users=5, bound=4.0, group=1, least_users=4, holders=(3, 5))
    saved = FederatedClassifier.load(aggregator.model)
    np.testing.assert_array_equal(
        saved.released_["weights"].ravel(), simulated(aggregator.plan, settings, [everybody] * 3)
    )
    assert rounds[-1]["accuracy"] > 0.8


def test_a_superlink_whose_connection_broke_is_called_ended_only_once_it_has(
    tmp_path: Path,
) -> None:
    import httpx

    from blindsight.federated.flower.superlink import has_ended

    refused, slow = httpx.ConnectError("refused"), httpx.ReadTimeout("slow")
    # It stands for a killed process that has closed its sockets and is not reaped yet: it ends
    # when its standard input does, which here happens while it is waited for.
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert not has_ended(process, slow)
        assert not has_ended(process, refused, seconds=0.01)
        wait = process.wait

        def waits(timeout: float | None = None) -> int:
            assert process.stdin is not None
            process.stdin.close()
            return wait(600 if timeout else timeout)

        process.wait = waits  # type: ignore[method-assign]
        assert has_ended(process, refused)
        assert has_ended(process, slow)


def test_a_superlink_that_cannot_start_is_said_at_once(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "print('the port is taken')"], stdout=output
        )
    with pytest.raises(ProtocolError, match="the port is taken"):
        wait_for_port("127.0.0.1:1", process, log=log)
