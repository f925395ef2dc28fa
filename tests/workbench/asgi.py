"""A plain client of an app in this process; all share one event loop, as in a server."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import httpx

__all__ = ["BASE", "Client", "run"]

BASE = "http://127.0.0.1"


@functools.cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def run(coroutine: Any) -> Any:
    """Run on the shared loop."""
    return _runner().run(coroutine)


class Client:
    """Synchronous requests, cookies kept."""

    def __init__(self, app: Any, **headers: str) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(
            transport=transport, base_url=BASE, headers=headers, follow_redirects=True
        )

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.cookies

    def request(self, method: str, address: str, **options: Any) -> httpx.Response:
        return run(self._client.request(method, address, **options))

    def get(self, address: str, **options: Any) -> httpx.Response:
        return self.request("GET", address, **options)

    def post(self, address: str, **options: Any) -> httpx.Response:
        return self.request("POST", address, **options)
