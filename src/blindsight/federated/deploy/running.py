"""An aggregator from start to end, enrolment by invitation, and what there is to see of a run."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blindsight.core.errors import ProtocolError
from blindsight.federated.deploy.client import BATCH_BYTES, keep_role
from blindsight.federated.deploy.coordinator import Coordinator
from blindsight.federated.deploy.folders import PartyFolder
from blindsight.federated.deploy.plan import read_rows
from blindsight.federated.deploy.server import (
    MailboxLink,
    SiteEnrolment,
    application,
    mailboxes,
    serve,
)
from blindsight.federated.deploy.services import SiteRows, alone
from blindsight.federated.sums.enrolment import Request, Role

__all__ = [
    "enrol_sites",
    "invitation_digest",
    "read_status",
    "run_aggregator",
    "run_party",
    "watch",
]

Status = dict[str, Any]
_GOODBYE = 5.0  # seconds for parties to hear that the federation is over


def read_status(folder: PartyFolder) -> Status | None:
    """The latest status that the aggregator wrote, or None before the first."""
    try:
        status: Status = json.loads((folder.path / "status.json").read_text(encoding="utf-8"))
        return status
    except FileNotFoundError:
        return None


def watch(
    folder: PartyFolder, *, every: float = 0.5, pause: Callable[[float], None] = time.sleep
) -> Iterator[Status | None]:
    """The status again and again, until the run is over."""
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
) -> Iterator[Status | None]:
    """Run the rounds that are left; yield the status until the last one is done.

    `seen` in the status are the addresses that have been heard of since the start, `late` those of
    users who have not fetched the last result; they are waited for, `linger` seconds at most.
    Started again after a kill, it continues with the round it was in.
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
            while thread.is_alive():
                yield _status(folder, link, coordinator)
                thread.join(0.5)
            if failed:
                raise failed[0]
            yield _status(folder, link, coordinator)
            link.finish()
            end = time.monotonic() + _GOODBYE
            while not link.told() and time.monotonic() < end:
                thread.join(0.05)
                time.sleep(0.05)


def run_party(
    folder: PartyFolder,
    *,
    data: SiteRows | None = None,
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Serve the user and the holder of a folder, each in a thread, until the federation is over."""
    roles = [role for role in (Role.USER, Role.HOLDER) if role in folder.roles]
    failed: list[BaseException] = []

    def keep(role: Role) -> None:
        try:
            keep_role(folder, role, data=data if role is Role.USER else None, say=say, stop=stop)
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
        came: told of the requests whenever there is a new one.

    Returns:
        With the roster, for `run_aggregator` to hand out.
    """
    requests: dict[int, Request] = {}
    kept = folder.path / "requests"
    kept.mkdir(exist_ok=True, mode=0o700)

    def submit(site: int, data: bytes) -> None:
        request = Request.decode(data)
        known = requests.get(site)
        if known is not None and known.encode() != data:
            raise ProtocolError("another request of this site came before.")
        if known is None:
            (kept / f"{site}").write_bytes(data)
            requests[site] = request

    for path in kept.iterdir():
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
    """By what the server knows an invitation's token."""
    return hashlib.sha256(token.encode()).hexdigest()
