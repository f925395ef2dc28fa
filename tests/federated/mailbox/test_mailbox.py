"""Rounds over HTTPS on loopback: real sockets, TLS and tokens; real processes where something is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from blindsight.core import storage
from blindsight.core.errors import ProtocolError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.processes import free_port
from blindsight.federated.mailbox.party import Client, keep_party
from blindsight.federated.mailbox.running import run_aggregator
from blindsight.federated.mailbox.server import MailboxLink, read_tokens, serve
from blindsight.federated.messages import Outgoing
from blindsight.federated.settings import Settings


@pytest.mark.parametrize("agreed", [{}, {"holders": (3, 5)}, {"mode": "paper"}], ids=["pad", "holders", "paper"])
def test_rounds_over_https_equal_the_simulation(federation, simulated, tmp_path: Path, agreed: dict) -> None:
    homes = federation(port=free_port(), agreed=agreed, rounds=2, patience=60.0)
    over = threading.Event()
    parties = [
        threading.Thread(
            target=keep_party,
            args=(home,),
            kwargs={"data": tmp_path / f"{name}.npz", "say": lambda text: None, "stop": over.is_set},
            daemon=True,
        )
        for name, home in homes.items()
        if name != "aggregator"
    ]
    for thread in parties:
        thread.start()  # before there is an aggregator: they wait for it
    *_, last = run_aggregator(homes["aggregator"], test=tmp_path / "test.npz")
    over.set()
    for thread in parties:
        thread.join(30)
    assert [entry["contributors"] for entry in last["rounds"]] == [[1, 2, 3, 4, 5]] * 2
    saved, _ = storage.load(homes["aggregator"].path / "model.safetensors", kind="federated weights")
    settings = Settings(**{"dimension": 650, "users": 5, "bound": 4.0, "group": 1, **agreed})
    np.testing.assert_array_equal(
        saved["weights"], simulated(homes["aggregator"].plan, settings, [(1, 2, 3, 4, 5)] * 2)
    )
    assert last["rounds"][-1]["accuracy"] > 0.8


@pytest.fixture
def box(federation) -> Iterator[tuple[dict[str, Home], MailboxLink]]:
    homes = federation(port=free_port())
    link = MailboxLink(read_tokens(homes["aggregator"]).values())
    with serve(homes["aggregator"], link, largest=1000):
        yield homes, link


@pytest.fixture
def clients() -> Iterator[Callable[[Home], Client]]:
    made: list[Client] = []

    def make(home: Home) -> Client:
        made.append(Client(home))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_messages_wait_until_they_are_acknowledged(box, clients) -> None:
    homes, link = box
    client = clients(homes["user-1"])
    link.push([Outgoing(1, b"one"), Outgoing(2, b"not mine"), Outgoing(1, b"two"), Outgoing(1, b"one")], b"news")
    found = client.fetch()
    assert [(message, news) for _, message, news in found] == [(b"one", b"news"), (b"two", b"news")]
    assert client.fetch() == found  # not handled yet
    client.answer([b"answer"], found[0][0])
    assert [message for _, message, _ in client.fetch()] == [b"two"]
    assert link.pull() == [b"answer"]
    assert clients(homes["user-1"]).fetch()[0][1] == b"two"  # a party that comes back


def test_a_box_is_its_owners_only(box, clients) -> None:
    homes, _ = box
    (homes["user-1"].path / "token").write_text("guessed")
    with pytest.raises(ProtocolError, match="token"):
        clients(homes["user-1"]).fetch()
    host, _, port = homes["aggregator"].about["address"].rpartition(":")
    tls = ssl.create_default_context(cafile=str(homes["user-2"].path / "ca.pem"))
    connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=10)
    for method, path in (("GET", "/v1/messages"), ("POST", "/v1/answers")):
        connection.request(method, path, b"" if method == "POST" else None)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401
    connection.close()
    stranger = http.client.HTTPSConnection(host, int(port), context=ssl.create_default_context(), timeout=10)
    with pytest.raises(ssl.SSLError):
        stranger.request("GET", "/")
    stranger.close()


def test_oversized_and_malformed_answers_are_refused(box, clients) -> None:
    homes, link = box
    client = clients(homes["user-1"])
    for body in (bytes(2000), b"\xff" * 20, b""):
        with pytest.raises(ConnectionError):
            client._request("POST", "/v1/answers", body)
    assert link.pull() == []


def until(what: str, happened: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def status(home: Home) -> dict:
    try:
        return json.loads((home.path / "status.json").read_text())
    except FileNotFoundError:
        return {"rounds": [], "users_in": 0}


@pytest.mark.real
def test_a_run_survives_a_killed_user_and_a_killed_aggregator(federation, simulated, tmp_path: Path) -> None:
    homes = federation(port=free_port(), agreed={"least_users": 4}, rounds=3, patience=40.0)
    aggregator = homes["aggregator"]
    running: dict[str, subprocess.Popen] = {}

    def start(name: str) -> None:
        role, _, number = name.partition("-")
        rows = ["--data", str(tmp_path / f"{name}.npz")] if number else []
        command = [sys.executable, "-m", "blindsight", "federate", role, str(homes[name].path), *rows]
        with (tmp_path / f"{name}.log").open("ab") as log:
            running[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def kill(name: str) -> None:
        running[name].send_signal(signal.SIGKILL)
        running.pop(name).wait(20)

    try:
        for name in homes:
            if name != "user-5":
                start(name)
        until("four users to be in", lambda: status(aggregator)["users_in"] == 4)
        until("it to say who is missing", lambda: "user-5" in status(aggregator).get("waiting", ""), 30)
        kill("aggregator")
        start("aggregator")
        until("round 1 to end", lambda: len(status(aggregator)["rounds"]) == 1)
        start("user-5")  # late: it gets the result that it lacks
        until("round 2 to end", lambda: len(status(aggregator)["rounds"]) == 2)
        kill("user-2")
        start("user-2")
        until("the aggregator to end", lambda: running["aggregator"].poll() is not None)
    finally:
        for process in running.values():
            process.kill()
            process.wait(20)
    who = [tuple(entry["contributors"]) for entry in status(aggregator)["rounds"]]
    assert who[0] == (1, 2, 3, 4)
    assert 5 in who[1]
    settings = Settings(dimension=650, users=5, bound=4.0, least_users=4, group=1)
    saved, _ = storage.load(aggregator.path / "model.safetensors", kind="federated weights")
    np.testing.assert_array_equal(saved["weights"], simulated(aggregator.plan, settings, who))
