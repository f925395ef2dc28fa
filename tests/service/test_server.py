"""The server under people who mean harm: endless heads, half-sent requests, a locked ledger; and what it says first."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.service import Settings
from blindsight.service.infra.server import check_index, listening_socket, lock_state
from service.conftest import Server, busy


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def resident(server: Any) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def held(server: Any) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def healthy(server: Any, within: float) -> float:
    start = time.perf_counter()
    assert httpx.get(server.url + "/health", timeout=within * busy()).status_code == 200
    return time.perf_counter() - start


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
    talker = threading.Thread(target=flood, args=(live, start, pieces, 4.0))
    talker.start()
    slowest = max(healthy(live, 3.0) for _ in range(20))
    talker.join()
    assert slowest < 2.0 * busy()
    assert flood(live, start, pieces, 4.0) < 16 << 20  # what the kernel buffers, not a stream without end
    assert resident(live) - before < 64 << 20


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for a request for a second."""
    server = Server(tmp_path_factory.mktemp("hasty"), HEADER_SECONDS=1, BODY_SECONDS=1)
    yield server
    server.stop()


def test_requests_that_never_arrive_are_ended(hasty: Server) -> None:
    server = hasty
    head = b"POST /api/demo/audit HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n\r\n"
    for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", head + b"{"):
        with connect(server) as line:
            if sent:
                line.sendall(sent)
            start = time.monotonic()
            line.settimeout(8 * busy())
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(100) == b""
            assert 0.5 < time.monotonic() - start < 6 * busy(), sent


def test_an_answer_that_nobody_reads_is_ended(hasty: Server) -> None:
    def established(line: socket.socket) -> bool:
        ends = f":{hasty.port:04X} ", f":{line.getsockname()[1]:04X} 01 "
        rows = Path("/proc/net/tcp").read_text().splitlines()
        return any(ends[0] in row and ends[1] in row for row in rows)

    with connect(hasty) as line:
        line.sendall(HELD["no reading"] * 20)
        time.sleep(0.3)
        assert established(line)
        until = time.monotonic() + 30 * busy()
        while established(line) and time.monotonic() < until:
            time.sleep(0.1)
        assert not established(line)


def test_a_slow_trickle_does_not_move_the_deadline(hasty: Server) -> None:
    with connect(hasty) as line:
        start, longest = time.monotonic(), 6 * busy()
        with pytest.raises(OSError):
            while time.monotonic() - start < longest:
                line.sendall(b"G")
                time.sleep(0.1)


def test_a_kept_connection_serves_again_after_a_pause(hasty: Server) -> None:
    with httpx.Client(base_url=hasty.url, timeout=60) as client:
        for _ in range(2):
            assert client.get("/health").status_code == 200
            time.sleep(1.6)
        assert client.get("/api/jobs").status_code == 200


FORM = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 99\r\n\r\n"
HELD = {
    "half a head": b"GET / HTTP/1.1\r\n",
    "no body": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n" + FORM,
    "no reading": b"GET /static/swagger/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3,
}


@pytest.mark.parametrize("sent", HELD.values(), ids=list(HELD))
def test_1500_held_requests_are_bounded_and_people_come_through(serve: Callable[..., Any], sent: bytes) -> None:
    server = serve(CONNECTIONS=64)
    before = resident(server)
    lines = []
    try:
        for _ in range(1500):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            line.settimeout(5)
            line.connect(("127.0.0.1", server.port))
            line.send(sent)
            lines.append(line)
        until = time.monotonic() + 10 * busy()
        while httpx.get(server.url + "/health", timeout=60).status_code == 503:  # so much work is refused in good order
            assert time.monotonic() < until
        assert healthy(server, 5.0) < 3.0 * busy()
        while held(server) >= 2 * 64 + 60 and time.monotonic() < until:  # an answer has a file open beside its socket
            time.sleep(0.1)
        assert held(server) < 2 * 64 + 60
        assert resident(server) - before < 64 << 20
    finally:
        for line in lines:
            line.close()


def test_a_locked_ledger_holds_up_charges_and_nothing_else(serve: Callable[..., Any], state: Path) -> None:
    server = serve(RATE=10**6, BURST=10**6)
    assert httpx.post(server.url + "/api/demo/tags/ask?query=1", timeout=30 * busy()).status_code == 200
    writer = sqlite3.connect(state / "ledger.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    found: list[int] = []

    def ask() -> None:
        found.append(httpx.post(server.url + "/api/demo/tags/ask?query=1", timeout=60 * busy()).status_code)

    askers = [threading.Thread(target=ask) for _ in range(60)]
    for asker in askers:
        asker.start()
    time.sleep(0.5)
    assert max(healthy(server, 5.0) for _ in range(5)) < 2.0 * busy()
    assert httpx.get(server.url + "/api/jobs", timeout=5 * busy()).status_code == 200
    assert httpx.get(server.url + "/static/studio.css", timeout=5 * busy()).status_code == 200
    writer.execute("ROLLBACK")
    writer.close()
    for asker in askers:
        asker.join()
    assert set(found) <= {200, 429, 503}
    assert 200 in found


def test_what_is_kept_can_be_read_by_its_owner_only(live: Server) -> None:
    state = live.state
    assert httpx.post(live.url + "/api/demo/tags/ask?query=1", timeout=30 * busy()).status_code == 200
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    databases = [path for path in state.iterdir() if ".db" in path.name]
    assert {path.name for path in databases} >= {"studio.db", "ledger.db"}
    for path in databases:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


def test_a_folder_that_is_no_index_is_said_first(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="not an index of photos"):
        check_index(Settings(index=str(tmp_path)))
    command = [sys.executable, "-m", "blindsight", "serve", "--index", str(tmp_path), "--state", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "not an index of photos" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_busy_port_and_a_used_folder_are_said_in_words(tmp_path: Path) -> None:
    with listening_socket(Settings(port=0)) as taken:
        taken.listen()
        with pytest.raises(InvalidParameter, match="cannot be used"):
            listening_socket(Settings(port=taken.getsockname()[1]))
    with lock_state(Settings(state=tmp_path)), pytest.raises(InvalidParameter, match="another workbench"):
        lock_state(Settings(state=tmp_path))
