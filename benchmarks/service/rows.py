"""The studio's pace: searches over 100,000 images by 50 users, pages, and 10,000 images made to hurt."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row
from benchmarks.service.hostile_images import bombs, mutations

__all__ = ["hostile_rows", "rows", "search_rows"]

USERS, UPLOADERS = 50, 4
EPSILON = 8.0
PAGES = ("", "protect", "search", "tags", "compare", "together", "send", "budget", "demo", "demo/search", "demo/tags")


def rows(*, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None) -> Iterator[Row]:
    """Search and pages first, then hostile images."""
    step = progress or (lambda done, total: None)
    step(0, 2)
    yield from search_rows(stored=100_000, seconds=5.0 if quick else 30.0, seed=seed)
    step(1, 2)
    yield from hostile_rows(300 if quick else 10_000, seed=seed)
    step(2, 2)


def search_rows(*, stored: int, seconds: float, seed: int = 0) -> Iterator[Row]:
    """A real server on loopback; 50 users who ask about once a second, then 50 who never pause."""
    with tempfile.TemporaryDirectory(prefix="blindsight-studio-") as folder:
        state = Path(folder)
        _gallery(state, stored, seed)
        with _Server(state) as server:
            asyncio.run(_crowd(server.url, users=5, seconds=1.0, pause=0.0))
            before = server.descriptors()
            calm = asyncio.run(_crowd(server.url, users=USERS, seconds=seconds, pause=1.0))
            hurry = asyncio.run(_crowd(server.url, users=USERS, seconds=seconds / 2, pause=0.0))
            pages = asyncio.run(_pages(server.url))
            uploads = asyncio.run(_uploads(server.url, seconds=seconds / 2))
            after = server.descriptors()
    note = f"{len(calm):,} searches over {stored:,} codes, {USERS} users, one a second each, loopback"
    yield Row(id="service.search_p95_ms", value=_percentile(calm, 95), unit="ms", seed=seed, seconds=seconds, note=note)
    yield Row(id="service.search_median_ms", value=_percentile(calm, 50), unit="ms", seed=seed, note=note)
    note = f"{len(hurry) / (seconds / 2):,.0f} searches a second; the same users without a pause"
    yield Row(id="service.search_p95_ms_no_pause", value=_percentile(hurry, 95), unit="ms", seed=seed, note=note)
    yield Row(id="service.page_ms", value=_percentile(pages, 95), unit="ms", note=f"p95 over {len(PAGES)} pages")
    note = f"{len(uploads):,} uploads of a 12-megapixel JPEG to the demo's search, {UPLOADERS} users"
    yield Row(id="service.upload_p95_ms", value=_percentile(uploads, 95), unit="ms", seed=seed, note=note)
    grown = after - before
    note = f"open descriptors of the server: {before} before, {after} after {len(calm) + len(hurry):,} searches"
    yield Row(id="service.descriptors_grown", value=float(grown), unit="descriptors", seed=seed, note=note)


def hostile_rows(count: int, *, seed: int = 0) -> Iterator[Row]:
    """Mutated images and bombs through the studio's decoder: how long, how much memory, how many workers died."""
    found = asyncio.run(_hurt(count, seed))
    note = f"{count:,} mutated images and {len(bombs())} bombs: {found['read']:,} read, {found['refused']:,} refused"
    yield Row(id="service.hostile_slowest_s", value=found["slowest"], unit="s", seed=seed, note=note)
    yield Row(id="service.hostile_peak_mb", value=found["peak"] / 2**20, unit="MB address space", seed=seed, note=note)
    yield Row(id="service.hostile_workers_ended", value=found["ended"], unit="workers", seed=seed, note=note)


class _Server:
    """`blindsight serve` in its own process."""

    def __init__(self, state: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        given = {"PREPARE": "no", "KEYS": "off", "STATE": state, "PORT": port, "RATE": 10**8, "BURST": 10**8}
        self.environment = {**os.environ, **{f"BLINDSIGHT_STUDIO_{name}": str(value) for name, value in given.items()}}

    def __enter__(self) -> _Server:
        import httpx

        command = [sys.executable, "-m", "blindsight", "serve"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet)
        for _ in range(600):
            try:
                httpx.get(self.url + "/health", timeout=5)
                return self
            except httpx.HTTPError:
                time.sleep(0.1)
        raise RuntimeError("the studio did not start")

    def descriptors(self) -> int:
        """How many files and connections the server has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)


def _gallery(state: Path, stored: int, seed: int) -> None:
    """Released codes of `stored` shifted digits, in the place where the studio keeps its gallery."""
    from blindsight import data
    from blindsight.features import PixelPCA
    from blindsight.hashing import CodebookHasher
    from blindsight.index import HammingIndex
    from blindsight.service.pages.demo.gallery import parts

    digits = data.load("mnist5k")
    images, labels = digits.array(), np.asarray(digits.labels)
    public, held, _ = parts(len(images))
    folder = state / "prepared" / "search"
    target = folder / f"{EPSILON:g}"
    target.mkdir(parents=True)
    features = PixelPCA(48, random_state=0).fit(digits[public])
    features.save(folder / "features.safetensors")
    hasher = CodebookHasher(epsilon=EPSILON, supervised=True, learned_from="public").fit(
        features.transform(digits[public]), labels[public]
    )
    hasher.save(target / "hasher.safetensors")
    index = HammingIndex(hasher.n_cells_, guarantee=hasher.guarantee_)
    rng = np.random.default_rng(seed)
    for start in range(0, stored, 10_000):
        chosen = images[held[rng.integers(0, len(held), min(10_000, stored - start))]]
        moved = np.stack([np.roll(c, tuple(rng.integers(-2, 3, 2)), (0, 1)) for c in chosen])
        index.add(hasher.transform(features.transform(moved)))
    index.save(target / "codes.index")
    guarantee = json.loads(hasher.guarantee_.to_json())
    facts = {"epsilon": EPSILON, "map": None, "leak": None, "audited": None, "guarantee": guarantee}
    (target / "facts.json").write_text(json.dumps(facts))


async def _crowd(url: str, *, users: int, seconds: float, pause: float) -> list[float]:
    """Milliseconds of every search; each user has a connection of its own, as a browser has."""
    found: list[float] = []
    port = int(url.rpartition(":")[2])
    until = time.monotonic() + seconds

    async def one(user: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(pause * user / users)
        n = user
        while time.monotonic() < until:
            begin = time.perf_counter()
            address = f"/api/demo/search/ask?query={n % 400}&epsilon={EPSILON:g}&k=12"
            writer.write(f"POST {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await _read(reader)
            found.append(1000 * (time.perf_counter() - begin))
            n += users
            await asyncio.sleep(pause)
        writer.close()

    await asyncio.gather(*(one(user) for user in range(users)))
    return found


async def _read(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError("a search was not answered: " + head.split(b"\r\n", 1)[0].decode())
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))


async def _uploads(url: str, *, seconds: float) -> list[float]:
    """Milliseconds of every upload of a photo as a camera makes it; what it shows does not matter here."""
    import io

    import httpx
    from PIL import Image

    rough = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(rough).resize((4000, 3000)).save(buffer, "JPEG", quality=85)
    found: list[float] = []
    until = time.monotonic() + seconds

    async def one(client: httpx.AsyncClient) -> None:
        while time.monotonic() < until:
            begin = time.perf_counter()
            address, kind = f"/api/demo/search/upload?epsilon={EPSILON:g}", {"content-type": "image/jpeg"}
            answer = await client.post(address, content=buffer.getvalue(), headers=kind)
            if answer.status_code not in (200, 422):
                raise RuntimeError(f"an upload was answered with {answer.status_code}")
            found.append(1000 * (time.perf_counter() - begin))
            await asyncio.sleep(1.0)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await asyncio.gather(*(one(client) for _ in range(UPLOADERS)))
    return found


async def _pages(url: str) -> list[float]:
    import httpx

    found = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for _ in range(5):
            for page in PAGES:
                begin = time.perf_counter()
                (await client.get(f"/{page}")).raise_for_status()
                found.append(1000 * (time.perf_counter() - begin))
    return found


async def _hurt(count: int, seed: int) -> dict[str, Any]:
    from blindsight.service.infra.problems import Problem
    from blindsight.service.infra.settings import Settings
    from blindsight.service.infra.traffic import Metrics
    from blindsight.service.infra.uploads import Decoders

    decoders, found = Decoders(Settings(), Metrics(), workers=1), {"read": 0, "refused": 0, "ended": 0}
    slowest, peak, before = 0.0, 0, None
    for data in (*bombs().values(), *mutations(count, seed)):
        begin = time.perf_counter()
        try:
            await decoders.pixels(data)
            found["read"] += 1
        except Problem:
            found["refused"] += 1
        fresh = decoders.processes() != before
        if not fresh:  # a new worker's start is not the image's time
            slowest = max(slowest, time.perf_counter() - begin)
        before = decoders.processes()
        found["ended"] += not before
        peak = max([peak, *(_peak(process) for process in before)])
    await decoders.close()
    return {**found, "slowest": slowest, "peak": peak}


def _peak(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmPeak")).split()[1]) * 1024


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
