"""The server under people who mean harm: endless heads, half-sent requests, a locked ledger; and
what it says first.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blindsight.app.library.datasets import lock_state
from blindsight.core.errors import InvalidParameter
from blindsight.workbench import WorkbenchSettings
from blindsight.workbench.infra.server import listening_socket
from workbench import web
from workbench.conftest import Server

LONG = 600.0  # seconds; a busy machine is not the server's fault


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port))


def resident(server: Any) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def held(server: Any) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def healthy(server: Any) -> None:
    assert web.get(server.url + "/health").status_code == 200


def flood(server: Any, start: bytes, pieces: bytes, seconds: float) -> int:
    """How many bytes the server takes before it hangs up."""
    sent, until = 0, time.monotonic() + seconds
    with connect(server) as line:
        line.settimeout(2)
        try:
            line.sendall(start)
            while time.monotonic() < until:
                sent += line.send(pieces)
        except OSError:
            pass
    return sent


@pytest.mark.parametrize(
    ("start", "pieces"),
    [(b"GET /", b"a" * 65536), (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-A: b\r\n" * 8192)],
    ids=["an endless address", "endless headers"],
)
def test_an_endless_head_is_cut_and_holds_up_nobody(live: Any, start: bytes, pieces: bytes) -> None:
    before = resident(live)
    # Were it not cut, it would go on for longer than people are ready to wait.
    talker = threading.Thread(target=flood, args=(live, start, pieces, LONG))
    talker.start()
    for _ in range(20):
        healthy(live)
    talker.join()
    assert (
        flood(live, start, pieces, 4.0) < 16 << 20
    )  # what the kernel buffers, not a stream without end
    assert resident(live) - before < 64 << 20


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for a request for a second."""
    server = Server(tmp_path_factory.mktemp("hasty"), HEADER_SECONDS=1, BODY_SECONDS=1)
    yield server
    server.stop()


def test_requests_that_never_arrive_are_ended(hasty: Server, crowded: Server) -> None:
    head = b"POST /api/protect/new HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n\r\n"
    for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", head + b"{"):
        start = time.monotonic()
        with connect(hasty) as line, connect(crowded) as patient:
            patient.sendall(sent)
            with contextlib.suppress(ConnectionError):  # it may be ended before all was sent
                line.sendall(sent)
                assert line.recv(100) == b"", sent
            assert time.monotonic() - start > 0.5
            patient.setblocking(False)
            with pytest.raises(BlockingIOError):  # it was told to wait for an hour, and does
                patient.recv(100)


def test_an_answer_that_nobody_reads_is_ended(hasty: Server) -> None:
    def established(line: socket.socket) -> bool:
        ends = f":{line.getpeername()[1]:04X} ", f":{line.getsockname()[1]:04X} 01 "
        rows = Path("/proc/net/tcp").read_text().splitlines()
        return any(ends[0] in row and ends[1] in row for row in rows)

    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_connection(own.getsockname()) as line,
    ):
        assert established(line), "so it would be seen"
    with connect(hasty) as line:
        until = time.monotonic() + LONG
        with contextlib.suppress(OSError):  # nobody is at the other end any more
            line.sendall(HELD["no reading"] * 20)
            while established(line):
                assert time.monotonic() < until
                time.sleep(0.1)


def test_a_slow_trickle_does_not_move_the_deadline(hasty: Server) -> None:
    with connect(hasty) as line:
        until = time.monotonic() + LONG
        with pytest.raises(OSError):
            while time.monotonic() < until:
                line.sendall(b"G")
                time.sleep(0.1)


def test_a_kept_connection_serves_again_after_a_pause(hasty: Server) -> None:
    def status(line: http.client.HTTPConnection, address: str) -> int:
        line.request("GET", address)
        answer = line.getresponse()
        answer.read()
        return answer.status

    until = time.monotonic() + LONG
    while True:
        line = http.client.HTTPConnection("127.0.0.1", hasty.port, timeout=LONG)
        try:
            assert status(line, "/health") == 200
            break
        except ConnectionError:  # this process was too busy to send its first request in time
            line.close()
            assert time.monotonic() < until
    line.auto_open = 0  # no other connection in its place
    with contextlib.closing(line):
        for address in ("/health", "/api/jobs"):
            time.sleep(1.6)
            assert status(line, address) == 200


FORM = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 99\r\n\r\n"
HELD = {
    "half a head": b"GET / HTTP/1.1\r\n",
    "no body": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n" + FORM,
    "no reading": b"GET /static/swagger/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    * 3,
}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """No deadline ends a request: that some are ended for those who come later is what lets people
    through.
    """
    long = {"HEADER_SECONDS": 3600, "BODY_SECONDS": 3600}
    server = Server(tmp_path_factory.mktemp("crowded"), CONNECTIONS=64, **long)
    yield server
    server.stop()


def _refused(server: Server) -> bool:
    """Whether the server has too much to do: it says so, or hangs up while it works on twice as
    many requests as it has connections for.
    """
    try:
        return web.get(server.url + "/health").status_code == 503
    except httpx.TransportError:
        return True


@pytest.mark.parametrize("sent", HELD.values(), ids=list(HELD))
def test_600_held_requests_are_bounded_and_people_come_through(
    crowded: Server, sent: bytes
) -> None:
    server = crowded
    before = resident(server)
    lines = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if hard < 0 else min(hard, 4096), hard))
    try:
        for _ in range(600):  # more than twice as many as the server answers with 503
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            line.settimeout(LONG)
            lines.append(line)
            line.connect(("127.0.0.1", server.port))
            with contextlib.suppress(ConnectionError):  # it may be one of those that were ended
                line.send(sent)
        until = time.monotonic() + LONG
        while _refused(server):
            assert time.monotonic() < until
        healthy(server)
        while (
            held(server) >= 2 * 64 + 60 and time.monotonic() < until
        ):  # an answer has a file open beside its socket
            time.sleep(0.1)
        assert held(server) < 2 * 64 + 60
        assert resident(server) - before < 64 << 20
    finally:
        for line in lines:
            line.close()


def test_a_locked_ledger_holds_up_charges_and_nothing_else(
    serve: Callable[..., Any], stocked: Path
) -> None:
    server = serve(stocked, RATE=10**6, BURST=10**6, JOB_LIMIT=1000)
    number = next((stocked / "vaults").glob("*/about.json")).parent.name
    address = f"{server.url}/api/protect/{number}/release"
    choice = {"epsilon": 4, "sure": True}
    assert web.get(server.url + "/budget").status_code == 200
    writer = sqlite3.connect(stocked / "ledger.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    found: list[int] = []

    def ask() -> None:
        found.append(web.post(address, json=choice, timeout=LONG).status_code)

    askers = [threading.Thread(target=ask) for _ in range(30)]
    for asker in askers:
        asker.start()
    for address_of_others in ("/health", "/api/jobs", "/static/workbench.css", "/health"):
        assert web.get(server.url + address_of_others).status_code == 200
    writer.execute("ROLLBACK")
    writer.close()
    for asker in askers:
        asker.join()
    assert set(found) <= {202, 429, 503}
    assert web.post(address, json=choice).status_code == 202


def test_what_is_kept_can_be_read_by_its_owner_only(live: Server) -> None:
    state = live.state
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    databases = [path for path in state.iterdir() if ".db" in path.name]
    assert {path.name for path in databases} >= {"workbench.db", "ledger.db"}
    for path in databases:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


def test_a_connection_before_the_server_has_started_is_not_refused() -> None:
    with listening_socket(WorkbenchSettings(port=0)) as listener:
        socket.create_connection(listener.getsockname(), timeout=LONG).close()


def test_a_busy_port_and_a_used_folder_are_said_in_words(tmp_path: Path) -> None:
    with (
        listening_socket(WorkbenchSettings(port=0)) as taken,
        pytest.raises(InvalidParameter, match="cannot be used"),
    ):
        listening_socket(WorkbenchSettings(port=taken.getsockname()[1]))
    with (
        lock_state(tmp_path),
        pytest.raises(InvalidParameter, match="another workbench"),
    ):
        lock_state(tmp_path)
