"""Many users at once: no error but 429, and memory that does not grow; and kill -9 in the middle of
it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from blindsight.privacy.ledger import Ledger

ADDRESSES = (
    ("POST", "/api/demo/search/ask?query={n}&epsilon=8"),
    ("POST", "/api/demo/search/ask?query={n}&epsilon=2&threshold=0.3&beside=true"),
    ("GET", "/"),
    ("GET", "/demo/search"),
    ("GET", "/api/jobs"),
    ("POST", "/api/demo/sketch/show?query=1&setting=Q3"),
    ("GET", "/static/studio.css"),
    ("POST", "/api/demo/tags/ask?query=3"),
    ("GET", "/nothing"),
)


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


async def crowd(url: str, users: int, seconds: float) -> Counter[int]:
    found: Counter[int] = Counter()
    limits = httpx.Limits(max_connections=users, max_keepalive_connections=users)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:
        await client.get("/search")
        client.headers["X-CSRF-Token"] = client.cookies[f"blindsight_csrf_{client.base_url.port}"]
        until = time.monotonic() + seconds

        async def one(user: int) -> None:
            n = user
            while time.monotonic() < until:
                method, address = ADDRESSES[n % len(ADDRESSES)]
                answer = await client.request(method, address.format(n=n % 400))
                found[answer.status_code] += 1
                n += 1

        await asyncio.gather(*(one(user) for user in range(users)))
    return found


def test_200_users_meet_no_error_but_429_and_memory_does_not_grow(
    serve: Callable[..., Any],
) -> None:
    server = serve(RATE=30_000, BURST=1500, QUERY_BUDGET=10**6)
    first = asyncio.run(crowd(server.url, 200, 3.0))
    before = resident(server.process.pid)
    second = asyncio.run(crowd(server.url, 200, 3.0))
    grown = resident(server.process.pid) - before
    assert set(first + second) <= {200, 404, 429}, first + second
    assert (first + second)[200] > 100
    assert grown < 40 << 20, f"{grown >> 20} MB"


def test_after_kill_9_the_ledger_holds_every_answer_that_left(
    serve: Callable[..., Any], state: Path
) -> None:
    server = serve(RATE=10**6, BURST=10**6, QUERY_BUDGET=10**6)
    received: Counter[str] = Counter()

    async def load() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

            async def one(user: int) -> None:
                while True:
                    try:
                        # One scene: different ones would not add up.
                        answer = await client.post("/api/demo/tags/ask?query=1")
                    except httpx.HTTPError:
                        return
                    if answer.status_code == 200 and answer.json()["tags"] is not None:
                        received["answers"] += 1

            async def axe() -> None:
                while received["answers"] < 60:
                    await asyncio.sleep(0.02)
                server.process.kill()

            await asyncio.gather(axe(), *(one(user) for user in range(20)))

    asyncio.run(load())
    server.process.wait()
    with Ledger(state / "ledger.db", dataset="key local") as ledger:
        head = ledger.verify()
        charges = sum(
            entry.kind == "charge" and entry.unit == "query" for entry in ledger.entries()
        )
    assert head.sequence > 0
    assert charges >= received["answers"] >= 60
    assert charges - received["answers"] <= 20  # at most one a user was on its way
