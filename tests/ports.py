"""Ports that stay free until a server of the test takes them."""

from __future__ import annotations

import atexit
import socket

__all__ = ["held_port"]


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
