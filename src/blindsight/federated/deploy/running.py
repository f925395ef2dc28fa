"""The programs that run on each machine.

They are users and key holders, which write their state to disk before they send an answer; the
clients of the mailboxes (fetch, answer, acknowledge); enrolment by invitation; and the aggregator,
with the status of a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from blindsight.core.durable import only_writer
from blindsight.core.errors import BlindsightError, InvalidParameter, ProtocolError
from blindsight.federated.agreement import Agreement
from blindsight.federated.deploy.coordinator import Coordinator
from blindsight.federated.deploy.folders import PartyFolder, accept, write_secret
from blindsight.federated.deploy.plan import read_rows
from blindsight.federated.deploy.server import (
    MailboxLink,
    SiteEnrolment,
    application,
    mailboxes,
    serve,
)
from blindsight.federated.learning import model_digest
from blindsight.federated.noise import RecordShares
from blindsight.federated.sums import (
    Durable,
    GroupMeans,
    KeyHolder,
    Outgoing,
    Request,
    Role,
    User,
)
from blindsight.federated.sums.messages import Kind
from blindsight.federated.sums.wire import Reader, Writer, read_sealed, seal, unseal, write_sealed
from blindsight.privacy import Guarantee, Ledger

__all__ = [
    "BATCH_BYTES",
    "Client",
    "Connection",
    "HolderService",
    "Service",
    "SiteRows",
    "UserService",
    "alone",
    "charge",
    "enrol_by_invitation",
    "enrol_sites",
    "invitation_digest",
    "keep_role",
    "read_status",
    "run_aggregator",
    "run_party",
    "watch",
]

_log = logging.getLogger(__name__)
SiteRows = str | Path | tuple[NDArray[np.float64], NDArray[np.int64]]
Status = dict[str, Any]
_PATIENCE = 40.0  # seconds for one request; the server answers after 20
_SAY = 5.0
_POLL = 0.3
BATCH_BYTES = 1 << 22  # bytes of answers that are sent in one request, unless one alone is longer
# Seconds for parties to learn that the federation is over: if none is connected, and if some are,
# but are slow to ask.
_GOODBYE, _LONGEST_GOODBYE = 5.0, 60.0


def alone(folder: PartyFolder, role: Role) -> AbstractContextManager[None]:
    """Lock a role for one process; the lock is released when the process ends, however it ends."""
    return only_writer(folder.path, f"{str(role.name).lower()}.lock")


class Service(Protocol):
    """A role that answers messages."""

    @property
    def over(self) -> bool:
        """Whether all rounds are done, so that no further messages are expected."""
        ...

    def start(self) -> list[Outgoing]:
        """Return the messages to send before any message arrives."""
        ...

    def handle(self, message: bytes) -> list[Outgoing]: ...


def charge(folder: PartyFolder, ledger: Ledger) -> Guarantee:
    """Charge a user's own ledger with the cost of all its rounds; see `PartyFolder.charge`."""
    settings = folder.require(Role.USER).settings
    # A record is either trained on or held out, so it is in at most `rounds` sums.
    per_record = isinstance(settings.noise, RecordShares)
    rounds = folder.plan.rounds if per_record else settings.rounds
    guarantee = Agreement(settings).guarantee(rounds)
    folder.charge(guarantee, ledger)
    return guarantee


class UserService:
    """User n on its own machine: trains on its own rows, contributes, and computes the model.

    Protocol state and model are one file, which is written before an answer is sent. A process that
    is killed at any moment continues from the old or the new state; asked again about a round that
    it has answered, it sends the same bytes.

    Parameters:
        folder: the party's folder, with a roster.
        data: the user's rows, an .npz file with X and y, or the rows and their class numbers. They
            stay here.
    """

    def __init__(self, folder: PartyFolder, data: SiteRows) -> None:
        self.folder, self.plan = folder.require(Role.USER), folder.plan
        rows = data if isinstance(data, tuple) else read_rows(data, self.plan.names)
        self.task = self.plan.task(*rows, user=folder.number(Role.USER))
        self.weights, self.turn = self.plan.initial.copy(), 1
        self._update: NDArray[np.float64] | None = None
        self._means = GroupMeans(folder.settings)
        self._path = folder.state(Role.USER)
        if self._path.exists():
            reader = unseal(b"USRV", read_sealed(self._path))
            self.user, self.turn = User.load(reader.field()), reader.number("Q")
            self.weights = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
            update = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
            self._update = update if update.size else None
            self._means = GroupMeans.load(folder.settings, reader.field())
            reader.end()
        else:
            self.user = User(folder.enrolment)
            self.user.expect(model_digest(self.weights))
            self._save()
        folder.erase_first_key()

    @property
    def over(self) -> bool:
        """Whether the model includes the last round's sum."""
        return self.turn > self.plan.total_rounds

    def start(self) -> list[Outgoing]:
        """Return the sealed tag seeds, which user 1 sends until the first round is over."""
        return self.user.seeds() if self.user.ended == 0 else []

    def handle(self, message: bytes) -> list[Outgoing]:
        """Answer an opening with a contribution, and update the model from a result."""
        before = self.user.ended
        answers = self.user.receive(message)
        if self.user.ended != before:
            self._learn()
        if self.user.waiting:
            if self._update is None:
                self._update = self.task.vector(self.weights, self.turn, self.user.settings)
            answers = self.user.contribute(self._update)
        if message[5:6] == bytes([Kind.OPEN]) and self.user.ended == 0:
            answers = [*self.user.seeds(), *answers]
        self._save()
        return answers

    def _learn(self) -> None:
        """Compute the model after a checked sum."""
        opened = self.user.result
        if opened is None:
            return
        mean = self._means.add(opened)
        if mean is None:  # other groups' sums of this model are still to come
            return
        users = len(self._means.contributors)
        self.weights = self.plan.advanced(self.weights, mean, users=users, turn=self.turn)
        self.turn, self._update = self.turn + 1, None
        self.user.expect(model_digest(self.weights))
        if self.over:  # until then the weights are in the state
            model = self.plan.learned(self.weights, self.user.settings)
            if model is not None:
                model.save(self.folder.model)

    def _save(self) -> None:
        update = np.zeros(0) if self._update is None else self._update
        writer = Writer().field(self.user.dump()).number("Q", self.turn)
        writer.field(self.weights.astype("<f8").tobytes()).field(update.astype("<f8").tobytes())
        writer.field(self._means.dump())
        write_sealed(self._path, seal(b"USRV", bytes(writer)))


class HolderService:
    """A key holder on its own machine; it never changes an answer, even if it is killed."""

    over = False

    def __init__(self, folder: PartyFolder) -> None:
        path = folder.require(Role.HOLDER).state(Role.HOLDER)
        role = KeyHolder.load(read_sealed(path)) if path.exists() else KeyHolder(folder.enrolment)
        self._durable = Durable(role, path)
        folder.erase_first_key()

    def start(self) -> list[Outgoing]:
        """No messages, because holders only answer."""
        return []

    def handle(self, message: bytes) -> list[Outgoing]:
        """Answer with a part of the summed key."""
        return self._durable.receive(message)


class Connection:
    """HTTPS to the aggregator, by one token; kept open between requests."""

    def __init__(self, address: str, ca: str, token: str, *, largest: int = 1 << 31) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._token, self._largest = token, largest
        self._connection: http.client.HTTPSConnection | None = None
        self._tls = ssl.create_default_context(cadata=ca)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one request, and return the status (200 or 204) and the answer."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    self._host, int(self._port), timeout=_PATIENCE, context=self._tls
                )
            headers = {"Authorization": f"Bearer {self._token}"}
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            data = answer.read(self._largest + 1)
        except BaseException:
            self.forget()
            raise
        if answer.status == 401:
            raise ProtocolError(
                "the aggregator does not know this party's token: is this its roster?"
            )
        if answer.status not in (200, 204) or len(data) > self._largest:
            self.forget()
            raise ConnectionError(f"the aggregator answered {answer.status}.")
        return answer.status, data

    def forget(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None


class Client:
    """One role's connection to its mailbox."""

    def __init__(self, folder: PartyFolder, role: Role) -> None:
        ca = (folder.path / "ca.pem").read_text(encoding="ascii")
        self._connection = Connection(folder.address, ca, folder.token)
        self._number = folder.number(role)
        self._boot, self._after = "", 0
        self.over = False
        self.done = False  # whether this role needs nothing more from the aggregator

    def fetch(self) -> list[tuple[int, bytes]]:
        """Return the mailbox's messages with their positions, and acknowledge earlier ones."""
        where = f"as={self._number}&boot={quote(self._boot)}&after={self._after}"
        reader = Reader(self._connection.request("GET", f"/v1/messages?{where}")[1])
        boot, over, count = reader.text(), reader.number("B"), reader.number("I")
        if boot != self._boot:
            self._boot, self._after = boot, 0
        self.over = bool(over)
        messages = [(reader.number("Q"), reader.field()) for _ in range(count)]
        reader.end()
        return messages

    def send(self, answers: list[bytes]) -> None:
        """Send messages to the aggregator, in batches."""
        while answers:
            batch, size = [answers[0]], len(answers[0])
            for data in answers[1 : _most_in(answers)]:
                if size + len(data) > BATCH_BYTES:
                    break
                batch.append(data)
                size += len(data)
            writer = Writer().number("I", len(batch))
            for data in batch:
                writer.field(data)
            self._connection.request("POST", f"/v1/answers?as={self._number}", bytes(writer))
            answers = answers[len(batch) :]

    def answer(self, answers: list[bytes], position: int) -> None:
        """Send answers, and then mark the message at `position` as handled."""
        self.send(answers)
        self._after = position

    def close(self) -> None:
        """Acknowledge the handled messages, so that nobody waits for this party, and disconnect."""
        if self._after or self.done:
            where = f"as={self._number}&boot={quote(self._boot)}&after={self._after}"
            where += "&leave=done" if self.done else "&leave=1"
            with contextlib.suppress(OSError, http.client.HTTPException, ProtocolError):
                self._connection.request("GET", f"/v1/messages?{where}")
        self._connection.forget()


def _most_in(answers: list[bytes]) -> int:
    return min(len(answers), 4096)


def keep_role(
    folder: PartyFolder,
    role: Role,
    *,
    data: SiteRows | None = None,
    say: Callable[[str], None] = _log.warning,
    stop: Callable[[], bool] = lambda: False,
    after: Callable[[Service, int], None] | None = None,
) -> None:
    """Serve one role until it is stopped or the federation is over.

    If the aggregator cannot be reached, the role waits for it and reports this from time to time.

    Parameters:
        folder: the party's folder, with a roster.
        role: USER or HOLDER.
        data: a user's rows: a file, or arrays.
        say: called with messages for people.
        stop: polled; True ends the service.
        after: called after every handled message with the service and the number of bytes in its
            answers.
    """
    if role is Role.USER and data is None:
        raise InvalidParameter("a user needs its rows: data=.")
    with alone(folder, role), contextlib.closing(Client(folder, role)) as client:
        service: Service = UserService(folder, data) if data is not None else HolderService(folder)
        reported, wait, started = -_SAY, 0.1, False
        while not (stop() or service.over or client.over):
            try:
                if not started:
                    client.send([out.data for out in service.start()])
                    started = True
                for position, message in client.fetch():
                    answers = _handled(service, message)
                    client.answer(answers, position)
                    if after is not None:
                        after(service, sum(map(len, answers)))
                wait = 0.1
            except (OSError, http.client.HTTPException) as error:
                now = time.monotonic()
                if now - reported >= _SAY:
                    reported = now
                    say(
                        f"{folder.name}: the aggregator at {folder.address} is away ({error}); "
                        "trying again"
                    )
                time.sleep(wait)
                wait = min(2.0, 2 * wait)
        client.done = service.over  # also if an earlier process was killed before it said so


def _handled(service: Service, message: bytes) -> list[bytes]:
    """Return the answers; an invalid message is logged and gets none."""
    try:
        return [out.data for out in service.handle(message)]
    except BlindsightError as error:
        _log.warning("a message of the aggregator was refused: %s", error)
        return []


def enrol_by_invitation(
    folder: PartyFolder,
    address: str,
    ca: str,
    token: str,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Send the party's request to the aggregator, and accept the roster when it is there.

    Parameters:
        folder: the party's folder, as `join` made it.
        address: the host and port at which the aggregator listens.
        ca: the certificate of the authority that signed the aggregator's certificate.
        token: the invitation's token.
        stop: polled; True ends the wait.
    """
    connection, wait, sent = Connection(address, ca, token), 0.1, False
    try:
        while not stop() and not folder.agreed:
            try:
                if not sent:
                    connection.request(
                        "POST", "/v1/requests", (folder.path / "request").read_bytes()
                    )
                    sent = True
                status, data = connection.request("GET", "/v1/roster")
                if status == 200:
                    accept(folder, data)
                    return
                wait = _POLL
            except (OSError, http.client.HTTPException):
                wait = min(2.0, 2 * wait)
            time.sleep(wait)
    finally:
        connection.forget()


def read_status(folder: PartyFolder) -> Status | None:
    """Return the latest status that the aggregator wrote, or None before the first."""
    try:
        status: Status = json.loads((folder.path / "status.json").read_text(encoding="utf-8"))
        return status
    except FileNotFoundError:
        return None


def watch(
    folder: PartyFolder, *, every: float = 0.5, pause: Callable[[float], None] = time.sleep
) -> Iterator[Status | None]:
    """Yield the status repeatedly until the run is over."""
    while True:
        status = read_status(folder)
        yield status
        if status is not None and len(status["rounds"]) >= status["planned"]:
            return
        pause(every)


def _status(folder: PartyFolder, link: MailboxLink, coordinator: Coordinator) -> Status | None:
    status = read_status(folder)
    if status is None:
        return None
    return {**status, "seen": sorted(link.seen), "late": coordinator.late(link)}


def run_aggregator(
    folder: PartyFolder,
    *,
    test: str | Path | None = None,
    bind: str | None = None,
    linger: float = 3.0,
    enrolment: SiteEnrolment | None = None,
) -> Generator[Status | None, None, None]:
    """Run the remaining rounds, and yield the status until the last one is done.

    In the status, `seen` are the addresses that have been in contact since the start, and `late`
    those of users who have not fetched the last result. After a kill, a new call continues with the
    interrupted round.

    Parameters:
        folder: the aggregator's folder, with a roster.
        test: an .npz file with labelled rows on which each round's accuracy is measured.
        bind: the host to listen at; by default that of the aggregator's address.
        linger: the largest number of seconds to wait for late users at the end.
        enrolment: the enrolment that `enrol_sites` returned, if sites were invited.
    """
    with alone(folder, Role.AGGREGATOR):
        coordinator = Coordinator(
            folder, test=None if test is None else read_rows(test, folder.plan.names)
        )
        failed: list[BaseException] = []
        largest = max(coordinator.role.largest_message + 65_536, 2 * BATCH_BYTES)
        with mailboxes(folder, largest=largest, bind=bind, enrolment=enrolment) as link:

            def work() -> None:
                try:
                    coordinator.run(link, linger)
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=work, name="coordinator", daemon=True)
            thread.start()
            try:
                while thread.is_alive():
                    yield _status(folder, link, coordinator)
                    thread.join(0.5)
            except BaseException:  # the caller stopped: the rounds must not go on without it
                link.close()
                thread.join()
                raise
            if failed:
                raise failed[0]
            yield _status(folder, link, coordinator)
            link.finish()
            start = time.monotonic()
            while not link.told():
                most = _LONGEST_GOODBYE if link.connected() else _GOODBYE
                if time.monotonic() - start >= most:
                    break
                time.sleep(0.05)


def run_party(
    folder: PartyFolder,
    *,
    data: SiteRows | None = None,
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Serve the user and the holder of a folder, each in a thread, until the federation is over.

    If one of them fails, the other one is stopped too.
    """
    roles = [role for role in (Role.USER, Role.HOLDER) if role in folder.roles]
    failed: list[BaseException] = []

    def keep(role: Role) -> None:
        try:
            rows = data if role is Role.USER else None
            keep_role(folder, role, data=rows, say=say, stop=lambda: bool(failed) or stop())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=keep, args=(role,), daemon=True) for role in roles]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failed:
        threads[0].join(0.2)
        time.sleep(0.05)
    if failed:
        raise failed[0]


def enrol_sites(
    folder: PartyFolder,
    invitations: Mapping[str, int],
    make: Callable[[dict[int, Request]], bytes],
    *,
    bind: str | None = None,
    came: Callable[[dict[int, Request]], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> SiteEnrolment:
    """Serve until every invited site has sent its request, then make the roster.

    Parameters:
        folder: the aggregator's folder.
        invitations: site numbers by the digest of their invitation's token.
        make: makes the roster file from the requests by site number.
        bind: the host to listen at; by default that of the aggregator's address.
        came: called with all requests whenever there is a new one.
        pause: waits for a number of seconds.

    Returns:
        The enrolment with the roster, which `run_aggregator` distributes.
    """
    requests: dict[int, Request] = {}
    received = folder.path / "requests"
    received.mkdir(exist_ok=True, mode=0o700)

    def submit(site: int, data: bytes) -> None:
        request = Request.decode(data)
        earlier = requests.get(site)
        if earlier is not None and earlier.encode() != data:
            raise ProtocolError("another request of this site came before.")
        if earlier is None:
            write_secret(received / f"{site}", data)
            requests[site] = request

    for path in received.iterdir():
        if path.name.isdecimal():  # and no unfinished file of a process that was killed
            requests[int(path.name)] = Request.decode(path.read_bytes())
    enrolment = SiteEnrolment(invitations, submit)
    wanted = set(invitations.values())
    link = MailboxLink(())
    app = application(link, {}, largest=1 << 17, enrolment=enrolment)
    with serve(folder, app, link, bind=bind):
        before = -1
        while set(requests) < wanted:
            if came is not None and len(requests) != before:
                before = len(requests)
                came(dict(requests))
            pause(0.1)
    if came is not None:
        came(dict(requests))
    enrolment.roster = make(requests)
    return enrolment


def invitation_digest(token: str) -> str:
    """Return the digest by which the server recognises an invitation's token."""
    return hashlib.sha256(token.encode()).hexdigest()
