"""Rounds over HTTPS on loopback: real sockets, TLS and tokens; real processes where something is
killed.
"""

from __future__ import annotations

import dataclasses
import functools
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from blindsight.core.errors import ProtocolError
from blindsight.federated import FederatedClassifier
from blindsight.federated.flower import running
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import UserService, open_service
from blindsight.federated.mailbox.party import Client, keep_party
from blindsight.federated.mailbox.server import MailboxLink, read_tokens, serve
from blindsight.federated.messages import Header, Kind, Message, Outgoing
from blindsight.federated.settings import Settings
from blindsight.federated.signatures import Identity
from federated.parties import Crowd, status
from ports import held_port


@pytest.mark.parametrize(
    "agreed", [{}, {"holders": (3, 5)}, {"mode": "paper"}], ids=["pad", "holders", "paper"]
)
def test_rounds_over_https_equal_the_simulation(
    federation, simulated, tmp_path: Path, agreed: dict
) -> None:
    homes = federation(port=held_port(), agreed=agreed, rounds=2, patience=600.0)
    over = threading.Event()
    parties = [
        threading.Thread(
            target=keep_party,
            args=(home,),
            kwargs={
                "data": tmp_path / f"{name}.npz",
                "say": lambda text: None,
                "stop": over.is_set,
            },
            daemon=True,
        )
        for name, home in homes.items()
        if name != "aggregator"
    ]
    for thread in parties:
        thread.start()  # before there is an aggregator: they wait for it
    *_, last = running.run_aggregator(homes["aggregator"], test=tmp_path / "test.npz", linger=600.0)
    if (
        "mode" not in agreed
    ):  # users who learned the last round leave by themselves, each with the model
        for thread in parties[-5:]:
            thread.join(120)
        assert not any(thread.is_alive() for thread in parties[-5:])
        models = {homes[f"user-{n}"].model.read_bytes() for n in range(1, 6)}
        assert models == {homes["aggregator"].model.read_bytes()}
    over.set()
    for thread in parties:
        thread.join(120)
    assert [entry["contributors"] for entry in last["rounds"]] == [[1, 2, 3, 4, 5]] * 2
    saved = FederatedClassifier.load(homes["aggregator"].model)
    settings = Settings(**{"dimension": 650, "users": 5, "bound": 4.0, "group": 1, **agreed})
    np.testing.assert_array_equal(
        saved.released_["weights"].ravel(),
        simulated(homes["aggregator"].plan, settings, [(1, 2, 3, 4, 5)] * 2),
    )
    assert last["rounds"][-1]["accuracy"] > 0.8


def test_a_user_who_was_away_at_the_end_gets_the_last_result_from_an_aggregator_that_was_started_again(  # noqa: E501
    federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = federation(port=held_port(), agreed={"least_users": 4}, rounds=2, patience=0.3)
    told, ahead = homes["aggregator"].path / "told.json", [0.0]
    clock = functools.partial(running.Coordinator, clock=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(running, "Coordinator", clock)
    crowd = Crowd(homes, tmp_path)
    try:
        crowd.join("keygen", "user-1", "user-2", "user-3", "user-4")
        for found in running.run_aggregator(homes["aggregator"], linger=600.0):
            last = found
            if told.exists() and json.loads(told.read_text()) == [1, 2, 3, 4]:
                ahead[0] = 600.0  # long enough for the one who does not come
        assert last["late"] == [5]
    finally:
        crowd.close()
    late = Crowd(homes, tmp_path)
    try:
        late.join("user-5")
        start = time.monotonic()
        *_, last = running.run_aggregator(homes["aggregator"], linger=600.0)
        assert last["late"] == []
        assert time.monotonic() - start < 500, "nobody who has the result is waited for"
    finally:
        late.close()
    service = open_service(homes["user-5"], tmp_path / "user-5.npz")
    saved = FederatedClassifier.load(homes["aggregator"].model)
    np.testing.assert_array_equal(service.weights, saved.released_["weights"].ravel())


@pytest.fixture
def box(federation) -> Iterator[tuple[dict[str, Home], MailboxLink]]:
    homes = federation(port=held_port())
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


def said(number: int, body: bytes = b"") -> bytes:
    """A message that says it is of that party."""
    header = Header(kind=Kind.CONFIRM, agreement=bytes(32), round=1, model=bytes(32), sender=number)
    return Message.make(header, body, Identity(bytes(32))).encode()


def test_messages_wait_until_they_are_acknowledged(box, clients) -> None:
    homes, link = box
    client = clients(homes["user-1"])
    link.push(
        [Outgoing(1, b"one"), Outgoing(2, b"not mine"), Outgoing(1, b"two"), Outgoing(1, b"one")],
        b"news",
    )
    found = client.fetch()
    assert [(message, news) for _, message, news in found] == [(b"one", b"news"), (b"two", b"news")]
    assert client.fetch() == found  # not handled yet
    client.answer([said(1)], found[0][0])
    assert [message for _, message, _ in client.fetch()] == [b"two"]
    assert link.pull() == [said(1)]
    assert clients(homes["user-1"]).fetch()[0][1] == b"two"  # a party that comes back


def test_nobody_speaks_for_others_and_strangers_have_no_box(box, clients) -> None:
    """A refusal goes to whom the message said it was of: to a party's box it must not be sent by
    another's word.
    """
    homes, link = box
    client = clients(homes["user-1"])
    client.answer([said(2), said(12345), said(0), b"", said(1)], 1)
    assert link.pull() == [said(1)]
    link.push(
        [Outgoing(12345, b"no such party"), Outgoing(0, b"nor this"), Outgoing(2, b"to user 2")],
        b"",
    )
    assert [message for _, message, _ in clients(homes["user-2"]).fetch()] == [b"to user 2"]


def test_what_waits_is_bounded(box, clients) -> None:
    homes, link = box
    client = clients(homes["user-1"])
    for n in range(64):
        client.answer([said(1, bytes([n]))], 1)
    with pytest.raises(ConnectionError, match="429"):
        client.answer([said(1)], 1)
    clients(homes["user-2"]).answer([said(2)], 1)  # nobody else is kept out
    assert len(link.pull()) == 65
    client.answer([said(1)], 1)
    for n in range(300):
        link.push([Outgoing(1, n.to_bytes(4, "little")), Outgoing(2, b"one for both")], b"")
    found = [message for _, message, _ in clients(homes["user-1"]).fetch()]
    assert found[0] == (44).to_bytes(4, "little")


def test_a_box_is_its_owners_only(box, clients) -> None:
    homes, _ = box
    (homes["user-1"].path / "token").write_text("guessed")
    with pytest.raises(ProtocolError, match="token"):
        clients(homes["user-1"]).fetch()
    host, _, port = homes["aggregator"].about["address"].rpartition(":")
    tls = ssl.create_default_context(cafile=str(homes["user-2"].path / "ca.pem"))
    connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=60)
    for method, path in (("GET", "/v1/messages"), ("POST", "/v1/answers")):
        connection.request(method, path, b"" if method == "POST" else None)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401
    connection.close()
    stranger = http.client.HTTPSConnection(
        host, int(port), context=ssl.create_default_context(), timeout=60
    )
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


@pytest.mark.real
def test_a_run_survives_a_killed_user_and_a_killed_aggregator(
    federation, simulated, tmp_path: Path
) -> None:
    # Nobody's patience ends a round before the kill; afterwards the aggregator, whose own it is,
    # has less of it.
    homes = federation(port=held_port(), agreed={"least_users": 4}, rounds=3, patience=600.0)
    aggregator = homes["aggregator"]
    crowd, second = Crowd(homes, tmp_path), threading.Event()

    def rest(service: UserService, _: int) -> None:
        if (
            service.turn == 2
        ):  # so that the next round cannot end before the second kill, however late that comes
            second.wait()

    try:
        crowd.start("aggregator")
        crowd.join("keygen")
        crowd.join("user-1", "user-3", "user-4", after=rest)
        crowd.start("user-2")
        crowd.until(
            "it to say who is missing", lambda: status(aggregator)["waiting"].endswith("of user-5")
        )
        crowd.kill("aggregator")
        dataclasses.replace(aggregator.plan, patience=0.3).save(
            aggregator.path / "plan.safetensors"
        )
        crowd.start("aggregator")
        crowd.until("round 1 to end", lambda: len(status(aggregator)["rounds"]) == 1)
        crowd.kill("aggregator")
        aggregator.plan.save(aggregator.path / "plan.safetensors")
        crowd.kill("user-2")
        crowd.start("aggregator")
        crowd.start("user-2")
        second.set()
        crowd.join("user-5")  # late: it gets the result that it lacks
        crowd.until("the aggregator to end", lambda: crowd.running["aggregator"].poll() is not None)
    finally:
        second.set()
        crowd.close()
    who = [tuple(entry["contributors"]) for entry in status(aggregator)["rounds"]]
    assert who[0] == (1, 2, 3, 4)
    assert who[2] == (1, 2, 3, 4, 5)
    settings = Settings(dimension=650, users=5, bound=4.0, least_users=4, group=1)
    saved = FederatedClassifier.load(aggregator.model)
    np.testing.assert_array_equal(
        saved.released_["weights"].ravel(), simulated(aggregator.plan, settings, who)
    )
