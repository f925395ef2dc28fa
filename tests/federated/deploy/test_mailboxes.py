"""Rounds over HTTPS on loopback: real sockets, TLS and tokens; real processes where something is
killed.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warm
from blindsight.app.federation import run_site
from blindsight.core import durable
from blindsight.core.errors import BlindsightError, ProtocolError
from blindsight.federated import FederatedClassifier
from blindsight.federated.deploy import running
from blindsight.federated.deploy.folders import (
    PartyFolder,
    accept,
    join,
    make_roster,
    token_digests,
)
from blindsight.federated.deploy.running import (
    Client,
    Status,
    UserService,
    enrol_by_invitation,
    enrol_sites,
    invitation_digest,
    keep_role,
    read_status,
    run_aggregator,
    run_party,
)
from blindsight.federated.deploy.server import MailboxLink, SiteEnrolment, application, serve
from blindsight.federated.sums import Outgoing, Role
from blindsight.federated.sums.messages import Header, Kind, Message, holder
from blindsight.federated.sums.sealing import Identity
from ports import held_port


@contextmanager
def sites_that_leave_by_themselves(
    folders: dict[str, PartyFolder], rows: Path
) -> Iterator[Callable[[Iterable[Status | None]], list[Status | None]]]:
    """Start five sites, which wait for an aggregator, and see that all have ended after it.

    What is yielded goes through an aggregator's run and raises what a site raises: the aggregator
    would wait for it.
    """
    failed: list[BaseException] = []

    def keep(name: str) -> None:
        try:
            run_party(folders[name], data=rows / f"{name}.npz", say=lambda text: None)
        except BaseException as error:
            failed.append(error)

    sites = [threading.Thread(target=keep, args=(f"site-{n}",), daemon=True) for n in range(1, 6)]
    for thread in sites:
        thread.start()

    def run(statuses: Iterable[Status | None]) -> list[Status | None]:
        passed = []
        for status in statuses:
            if failed:
                raise failed[0]
            passed.append(status)
        return passed

    yield run
    for thread in sites:
        thread.join(600)
    assert not failed and not any(thread.is_alive() for thread in sites)


def test_rounds_over_https_equal_the_simulation_and_everybody_hears_of_the_end(
    federation: Callable, simulated: Callable, tmp_path: Path
) -> None:
    folders = federation(port=held_port(), rounds=2, patience=600.0)
    aggregator = folders["aggregator"]
    with sites_that_leave_by_themselves(folders, tmp_path) as run:
        last = run(run_aggregator(aggregator, test=tmp_path / "test.npz", linger=600.0))[-1]
    models = {folders[f"site-{n}"].model.read_bytes() for n in range(1, 6)}
    assert models == {aggregator.model.read_bytes()}
    assert last is not None
    assert [entry["contributors"] for entry in last["rounds"]] == [[1, 2, 3, 4, 5]] * 2
    saved = FederatedClassifier.load(aggregator.model)
    np.testing.assert_array_equal(
        saved.released_["weights"].ravel(),
        simulated(aggregator.plan, aggregator.settings, [(1, 2, 3, 4, 5)] * 2),
    )
    assert last["rounds"][-1]["accuracy"] > 0.8


def test_where_one_role_of_a_site_fails_the_other_ends_too(
    federation: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, looked, ended = federation(port=held_port())["site-4"], threading.Event(), []
    keep = running.keep_role

    def kept(folder: PartyFolder, role: Role, **options: Any) -> None:
        if role is Role.USER:
            assert looked.wait(600)  # until the holder looks for its aggregator
            raise MemoryError
        stop = options.pop("stop")
        keep(folder, role, stop=lambda: looked.set() or stop(), **options)
        ended.append(role)

    monkeypatch.setattr(running, "keep_role", kept)
    with pytest.raises(MemoryError):
        run_party(site, data=tmp_path / "site-4.npz", say=lambda text: None)
    end = time.monotonic() + 600
    while not ended and time.monotonic() < end:
        time.sleep(0.02)
    assert ended == [Role.HOLDER]


def test_an_aggregator_does_not_wait_for_its_own_site_that_failed(
    federation: Callable, tmp_path: Path
) -> None:
    first = federation()["site-1"]
    both = Role.USER | Role.HOLDER
    address = f"127.0.0.1:{held_port()}"
    host = join(tmp_path / "host", "S 1", both | Role.AGGREGATOR, address=address)
    others = [join(tmp_path / f"other-{n}", f"S {n}", both) for n in range(2, 6)]
    requests = [host.request, *(other.request for other in others)]
    accept(host, make_roster(first.settings, first.plan, requests))
    host.state(Role.USER).write_bytes(b"damaged")
    with pytest.raises(BlindsightError, match="state"):
        list(run_site(host.path, data=tmp_path / "site-1.npz", say=lambda text: None))
    # Its rounds end too: a thread that is left would log, and write the state, for ever.
    assert not {"coordinator", "mailboxes"} & {thread.name for thread in threading.enumerate()}


def test_sites_enrol_by_invitation_over_https(federation: Callable, tmp_path: Path) -> None:
    """Nobody but the site itself ever has its keys; a stranger's token gets nothing."""
    plan, settings = (lambda f: (f["site-1"].plan, f["site-1"].settings))(federation())
    roles, port = Role.USER | Role.HOLDER, held_port()
    host = join(tmp_path / "h", "S 1", roles | Role.AGGREGATOR, address=f"127.0.0.1:{port}")
    tokens = {n: f"token-{n}" * 5 for n in range(2, 6)}
    guests = {n: join(tmp_path / f"g{n}", f"S {n}", roles) for n in tokens}
    ca = json.loads(host.request.extra)["ca"]

    def make(requests: dict) -> bytes:
        return make_roster(settings, plan, [host.request, *(requests[n] for n in sorted(requests))])

    over = threading.Event()
    stranger = join(tmp_path / "x", "X", roles)
    failed: list[BaseException] = []

    def intrude() -> None:
        while not over.wait(0.05):
            try:
                enrol_by_invitation(stranger, f"127.0.0.1:{port}", ca, "guessed")
            except ProtocolError as error:
                failed.append(error)
                return

    threads = [
        threading.Thread(
            target=enrol_by_invitation,
            args=(guest, f"127.0.0.1:{port}", ca, tokens[n]),
            kwargs={"stop": over.is_set},
            daemon=True,
        )
        for n, guest in guests.items()
    ]
    intruder = threading.Thread(target=intrude, daemon=True)
    for thread in (intruder, *threads[:-1]):
        thread.start()
    came: list[int] = []

    def enough(requests: dict) -> None:
        came.append(len(requests))
        if len(requests) == 3 and not threads[-1].is_alive():
            intruder.join(600)
            threads[-1].start()

    digests = {invitation_digest(token): n for n, token in tokens.items()}
    enrolment = enrol_sites(host, digests, make, came=enough)
    assert failed and not stranger.agreed and came[-1] == 4
    assert enrolment.roster is not None
    accept(host, enrolment.roster)
    tokens_ = token_digests(host.roster)
    link = MailboxLink({n for numbers in tokens_.values() for n in numbers})
    app = application(link, tokens_, largest=1000, enrolment=enrolment)
    with serve(host, app, link):
        for thread in threads:
            thread.join(600)
    over.set()
    assert all(guest.roster.fingerprint == host.roster.fingerprint for guest in guests.values())


def test_a_collector_that_is_killed_while_it_stores_a_request_enrols_the_site_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = Role.USER | Role.HOLDER
    host = join(tmp_path / "h", "S 1", roles | Role.AGGREGATOR, address="127.0.0.1:9")
    guest = join(tmp_path / "g", "S 2", roles)
    served: list[SiteEnrolment] = []

    def application(
        link: object, tokens: object, *, largest: int, enrolment: SiteEnrolment
    ) -> None:
        served.append(enrolment)

    monkeypatch.setattr(running, "application", application)
    monkeypatch.setattr(running, "serve", lambda *args, **options: nullcontext())

    def enrolled() -> SiteEnrolment:
        data = guest.request.encode()
        return enrol_sites(
            host, {"digest": 2}, lambda requests: b"", pause=lambda _: served[-1].submit(2, data)
        )

    def half(path: Path, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content[:50])
        raise KeyboardInterrupt

    def half_of(descriptor: int, content: bytes, offset: int) -> None:
        os.write(descriptor, content[:50])
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "write_bytes", half)
        killed.setattr(durable, "_write_all", half_of)
        killed.setattr(os, "unlink", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            enrolled()
    assert len(list((host.path / "requests").iterdir())) == 1  # what the kill left
    assert enrolled().roster == b""


@pytest.fixture
def box(federation: Callable) -> Iterator[tuple[dict[str, PartyFolder], MailboxLink]]:
    folders = federation(port=held_port())
    aggregator = folders["aggregator"]
    tokens = token_digests(aggregator.roster)
    link = MailboxLink({n for numbers in tokens.values() for n in numbers})
    with serve(aggregator, application(link, tokens, largest=2000), link):
        yield folders, link


@pytest.fixture
def clients() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(folder: PartyFolder, role: Role = Role.USER) -> Client:
        made.append(Client(folder, role))
        return made[-1]

    yield make
    for client in made:
        client.close()


def said(number: int, body: bytes = b"") -> bytes:
    """A message that names that party as its sender."""
    zero = bytes(32)
    header = Header(
        kind=Kind.REFUSED, agreement=zero, round=1, length=1, model=zero, parent=zero,
        parent_round=0, labels=zero, holder_keys=zero, sender=number,
    )  # fmt: skip
    return Message.make(header, body, Identity(bytes(32))).encode()


def test_messages_wait_until_they_are_acknowledged(box: tuple, clients: Callable) -> None:
    folders, link = box
    client = clients(folders["site-1"])
    link.push(
        [Outgoing(1, b"one"), Outgoing(2, b"not mine"), Outgoing(1, b"two"), Outgoing(1, b"two")]
    )
    messages = client.fetch()
    assert [message for _, message in messages] == [b"one", b"two"]
    assert client.fetch() == messages  # not handled yet
    client.answer([said(1)], messages[0][0])
    assert [message for _, message in client.fetch()] == [b"two"]
    assert link.pull() == [said(1)]
    assert clients(folders["site-1"]).fetch()[0][1] == b"two"  # a party that comes back


def test_a_message_that_is_sent_again_comes_after_what_its_party_lacked(
    box: tuple, clients: Callable
) -> None:
    """Also where the party has fetched it and not yet said so."""
    folders, link = box
    client = clients(folders["site-2"])
    link.push([Outgoing(2, b"an opening")])
    [(position, _)] = client.fetch()
    link.push([Outgoing(2, b"the tag seed"), Outgoing(2, b"an opening")])
    client.answer([said(2)], position)
    assert [message for _, message in client.fetch()] == [b"the tag seed", b"an opening"]


def test_nobody_waits_for_a_user_who_has_the_last_result(
    box: tuple, clients: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the result is sent once more after the user has gone, nor where the user was
    killed before it could say that it has the result.
    """
    folders, link = box
    rows = (np.zeros((1, 64)), np.zeros(1, np.int64))
    monkeypatch.setattr(UserService, "over", True)
    link.push([Outgoing(1, b"the last result")])
    assert link.unread() == {1}
    keep_role(folders["site-1"], Role.USER, data=rows)  # started again after a kill
    link.push([Outgoing(1, b"the last result"), Outgoing(1, b"again")])
    assert link.unread() == set()
    assert clients(folders["site-1"]).fetch() and link.unread() == {1}  # it came back


def test_the_aggregator_stays_until_a_holder_that_is_busy_has_heard_of_the_end(
    box: tuple, clients: Callable
) -> None:
    folders, link = box
    user, busy = clients(folders["site-1"]), clients(folders["site-2"], Role.HOLDER)
    link.push([Outgoing(1, b"the last result"), Outgoing(holder(2), b"a late question")])
    for client in (user, busy):
        [(position, _)] = client.fetch()
        client.answer([], position)
    link.finish()
    assert not link.told() and link.connected()
    user.done = True  # it has all that it needs
    user.close()
    assert not link.told() and not busy.over
    assert busy.fetch() == [] and busy.over
    assert link.told()


def test_a_party_that_is_connected_and_slow_to_ask_still_hears_of_the_end(
    federation: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder asks again only when the time for parties that are gone is over."""
    folders = federation(port=held_port(), rounds=1, patience=600.0)
    monkeypatch.setattr(running, "_GOODBYE", 0.0)
    monkeypatch.setattr(running, "_LONGEST_GOODBYE", 600.0)
    fetch, finish, over = Client.fetch, MailboxLink.finish, threading.Event()

    def finished(link: MailboxLink) -> None:
        finish(link)
        over.set()

    def late(client: Client) -> list[tuple[int, bytes]]:
        messages = fetch(client)
        if client._number == holder(3) and messages:  # it is asked, and answers after the end
            assert over.wait(600)
            time.sleep(0.5)
        return messages

    monkeypatch.setattr(MailboxLink, "finish", finished)
    monkeypatch.setattr(Client, "fetch", late)
    with sites_that_leave_by_themselves(folders, tmp_path) as run:
        run(run_aggregator(folders["aggregator"], linger=600.0))


def test_nobody_speaks_for_others_and_strangers_have_no_mailbox(
    box: tuple, clients: Callable
) -> None:
    folders, link = box
    client = clients(folders["site-1"])
    client.send([said(2), said(12345), said(0), b"", said(1)])
    assert link.pull() == [said(1)]
    client._number = 2  # another party's mailbox, with one's own token
    with pytest.raises(ProtocolError, match="token"):
        client.fetch()
    link.push([Outgoing(12345, b"no such party"), Outgoing(holder(2), b"to holder 2")])
    own = clients(folders["site-2"], Role.HOLDER)
    assert [message for _, message in own.fetch()] == [b"to holder 2"]


def test_what_waits_is_bounded(box: tuple, clients: Callable) -> None:
    folders, link = box
    client = clients(folders["site-1"])
    for n in range(64):
        client.send([said(1, bytes([n]))])
    with pytest.raises(ConnectionError, match="429"):
        client.send([said(1)])
    clients(folders["site-2"]).send([said(2)])  # nobody else is kept out
    assert len(link.pull()) == 65
    link._most_bytes = 2 * len(said(1))
    client.send([said(1)])
    clients(folders["site-2"]).send([said(2)])
    with pytest.raises(ConnectionError, match="429"):
        clients(folders["site-3"]).send([said(3)])
    link.pull()
    clients(folders["site-3"]).send([said(3)])
    for n in range(300):
        link.push([Outgoing(1, n.to_bytes(4, "little"))])
    assert clients(folders["site-1"]).fetch()[0][1] == (44).to_bytes(4, "little")


def get(folders: dict[str, PartyFolder], path: str, token: str = "") -> tuple[int, bytes]:
    host, _, port = folders["site-2"].address.rpartition(":")
    tls = ssl.create_default_context(cafile=str(folders["site-2"].path / "ca.pem"))
    connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=600)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def test_metrics_are_for_parties_only(box: tuple, clients: Callable) -> None:
    folders, _ = box
    clients(folders["site-1"]).send([said(1)])
    for path in ("/v1/metrics", "/v1/messages?as=1", "/v1/roster"):
        assert get(folders, path)[0] == 401
        assert get(folders, path, "guessed")[0] == 401
    status, body = get(folders, "/v1/metrics", folders["site-1"].token)
    lines = dict(line.rsplit(" ", 1) for line in body.decode().splitlines())
    assert status == 200 and lines["blindsight_federation_messages_in_total"] == "1"
    assert int(lines["blindsight_federation_waiting_bytes"]) == len(said(1))


def test_a_stranger_with_another_certificate_authority_is_not_talked_to(box: tuple) -> None:
    folders, _ = box
    host, _, port = folders["site-1"].address.rpartition(":")
    stranger = http.client.HTTPSConnection(
        host, int(port), context=ssl.create_default_context(), timeout=600
    )
    with pytest.raises(ssl.SSLError):
        stranger.request("GET", "/")
    stranger.close()


def test_oversized_and_malformed_answers_are_refused(box: tuple, clients: Callable) -> None:
    folders, link = box
    client = clients(folders["site-1"])
    for body in (bytes(3000), b"\xff" * 20, b""):
        with pytest.raises(ConnectionError):
            client._connection.request("POST", "/v1/answers?as=1", body)
    assert link.pull() == []


STOPS_AFTER_ONE_ROUND = """
import time
from blindsight.federated.deploy.coordinator import Coordinator
finish = Coordinator._finish
def stop(self, seconds):
    entry = finish(self, seconds)
    if len(self.log) == 1:
        time.sleep(600)
    return entry
Coordinator._finish = stop
"""


@pytest.mark.real
def test_a_run_survives_a_killed_site_and_a_killed_aggregator(
    federation: Callable, simulated: Callable, tmp_path: Path
) -> None:
    folders = federation(port=held_port(), rounds=3, patience=600.0)
    running: dict[str, warm.Process] = {}

    def start(name: str, first: str = "") -> None:
        rows = [] if name == "aggregator" else ["--data", str(tmp_path / f"{name}.npz")]
        command = ["-m", "blindsight", "federate", "run", folders[name].path, *rows]
        environment = {**os.environ, warm.FIRST: first}
        running[name] = warm.Process(command, env=environment, output=tmp_path / f"{name}.log")

    def kill(name: str) -> None:
        process = running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def until(happened: Callable[[], object]) -> None:
        end = time.monotonic() + 600
        while not happened():
            assert time.monotonic() < end
            time.sleep(0.05)

    def rounds() -> list[dict]:
        status = read_status(folders["aggregator"])
        return [] if status is None else status["rounds"]

    def contributed() -> int:
        status = read_status(folders["aggregator"])
        return 0 if status is None else int(status["users_in"])

    try:
        for name in ("aggregator", "site-1", "site-2", "site-3", "site-4"):
            start(name)
        until(lambda: contributed() == 4)
        kill("aggregator")
        kill("site-2")
        start("aggregator", STOPS_AFTER_ONE_ROUND)  # so that it is killed before the second
        start("site-2")
        start("site-5")
        until(lambda: len(rounds()) >= 1)
        kill("site-3")
        kill("aggregator")
        assert len(rounds()) == 1
        start("aggregator")
        start("site-3")
        until(lambda: running["aggregator"].poll() is not None)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    who = [tuple(entry["contributors"]) for entry in rounds()]
    assert who == [(1, 2, 3, 4, 5)] * 3
    aggregator = folders["aggregator"]
    saved = FederatedClassifier.load(aggregator.model)
    np.testing.assert_array_equal(
        saved.released_["weights"].ravel(), simulated(aggregator.plan, aggregator.settings, who)
    )
