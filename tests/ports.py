"""Ports that stay free until a server of the test takes them, and one that notices connections."""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
from collections.abc import Iterator

__all__ = ["held_port", "listening"]


def held_port() -> int:
    """A port of the loopback interface that nobody else is given while this process lives.

    It stays bound, and nobody listens on it: a server that sets SO_REUSEADDR, as all of ours do,
    can still take it, again after each kill; the kernel gives it to no other who asks for any port,
    nor to a connection on its way out.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)
    return int(held.getsockname()[1])


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, list[object]]]:
    """A port of the loopback interface, and who connected to it, complete when the block ends."""
    arrived: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        stop = threading.Event()

        def listen() -> None:
            while not stop.is_set():
                try:
                    arrived.append(server.accept()[1])
                except TimeoutError:
                    continue

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield int(server.getsockname()[1]), arrived
        finally:
            stop.set()
            listener.join()
            server.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # who came while the thread was busy
                while True:
                    arrived.append(server.accept()[1])
