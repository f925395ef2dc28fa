"""Many users at once: no error but 429, and memory that does not grow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from workbench import web

ADDRESSES = (
    ("POST", "/api/search/{dataset}/photo/{photo}"),
    ("POST", "/api/search/{dataset}/photo/{photo}?rerank=true"),
    ("GET", "/"),
    ("GET", "/search"),
    ("GET", "/api/jobs"),
    ("GET", "/api/compare/{dataset}"),
    ("GET", "/static/workbench.css"),
    ("GET", "/api/datasets/{dataset}/photos/{photo}"),
    ("GET", "/nothing"),
)


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


async def crowd(url: str, state: Path, users: int, requests: int) -> Counter[int]:
    """The answers to so many requests of each user, all users at once."""
    found: Counter[int] = Counter()
    options: dict[str, Any] = {"base_url": url, "timeout": 600, "verify": web.TLS}
    async with httpx.AsyncClient(**options) as client:
        await client.get("/search")
        dataset = next((state / "vaults").glob("*/about.json")).parent.name
        tagged = await client.get(f"/api/tags/{dataset}")
        photos = [photo["id"] for photo in tagged.json()["photos"]]
        token = client.cookies[f"blindsight_csrf_{client.base_url.port}"]
        options |= {"cookies": client.cookies, "headers": {"X-CSRF-Token": token}}

    async def one(user: int) -> None:
        # A connection of one's own: none is left alone until the server closes it.
        async with httpx.AsyncClient(**options) as own:
            for n in range(user, user + requests):
                method, address = ADDRESSES[n % len(ADDRESSES)]
                answer = await own.request(
                    method, address.format(dataset=dataset, photo=photos[n % len(photos)])
                )
                found[answer.status_code] += 1

    await asyncio.gather(*(one(user) for user in range(users)))
    return found


def test_200_users_meet_no_error_but_429_and_memory_does_not_grow(
    serve: Callable[..., Any], stocked: Path
) -> None:
    # The users share this process: where it is busy, a head may come long after its connection.
    server = serve(stocked, RATE=30_000, BURST=1500, HEADER_SECONDS=600)
    first = asyncio.run(crowd(server.url, stocked, 200, 5))
    before = resident(server.process.pid)
    second = asyncio.run(crowd(server.url, stocked, 200, 5))
    grown = resident(server.process.pid) - before
    assert set(first + second) <= {200, 404, 429}, first + second
    assert (first + second)[200] > 100
    assert grown < 40 << 20, f"{grown >> 20} MB"
