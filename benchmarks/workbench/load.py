"""Fifty people at the workbench for five minutes, with three roles: owners search photos, open
pages, upload and compare; searchers search a named release; auditors read history and access log.
"""

from __future__ import annotations

import asyncio
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, free_port

__all__ = ["load_rows"]

USERS, PHOTOS, EPSILON = 50, 1000, 8.0
PATIENCE = 10.0  # seconds after which a person has gone: a time-out
PAGES = ("", "protect", "search", "tags", "compare", "together", "send", "budget")
# What people of each role do, and how often of a hundred times.
HABITS = {
    "owner": {
        "search": 38,
        "rerank": 15,
        "page": 20,
        "thumbnail": 15,
        "compare": 7,
        "words": 3,
        "upload": 2,
    },
    "searcher": {"words": 30, "search page": 50, "card": 15, "upload": 5},
    "auditor": {"history": 40, "entries": 30, "log": 20, "card": 10},
}
RELEASE = "ab" * 6
# Of five people two own the data set, two search the release, and one audits.
ROLES = ("owner", "searcher", "owner", "searcher", "auditor")


def load_rows(*, seconds: float, seed: int = 0) -> Iterator[Row]:
    """A real server on loopback with one protected folder; every person pauses for about a second
    between two acts.
    """
    with tempfile.TemporaryDirectory(prefix="blindsight-load-") as folder:
        state = Path(folder)
        number, words = _album(state, seed)
        with _Server(state, _people(state, number)) as server:
            asyncio.run(_Crowd(server, number, words, seed).work(users=5, seconds=5.0))
            crowd = _Crowd(server, number, words, seed)
            asyncio.run(crowd.work(users=USERS, seconds=seconds))
    total = sum(map(len, crowd.took.values()))
    busy = (
        f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores, the users' own work "
        "among it"
    )
    about = (
        f"{USERS} users with three roles for {seconds:g} s, {PHOTOS:,} photos, "
        f"{total / seconds:.0f} requests a second, each in the access log; {busy}"
    )
    by = {
        "search": ("search", "rerank", "words"),
        "upload": ("upload",),
        "page": ("page", "search page", "history"),
        "pair": ("compare",),
    }
    for what, kinds in by.items():
        times = [each for kind in kinds for each in crowd.took[kind]]
        note = (
            f"p95 of {len(times):,}; median {statistics.median(times):.0f} ms, slowest "
            f"{max(times):.0f} ms; {about}"
        )
        yield Row(
            id=f"workbench.load_{what}_p95_ms",
            value=_p95(times),
            unit="ms",
            seed=seed,
            seconds=seconds,
            note=note,
        )
    yield Row(
        id="workbench.load_errors",
        value=float(len(crowd.errors)),
        unit="requests",
        seed=seed,
        note=_errors(crowd),
    )
    for what, unit, values in (
        ("memory", "MB", crowd.memory),
        ("descriptors", "descriptors", crowd.descriptors),
    ):
        early, late = _halves(values)
        note = (
            f"{unit} of the server, median of the second fifth {early:.0f}, of the last fifth "
            f"{late:.0f}; {about}"
        )
        yield Row(
            id=f"workbench.load_{what}_grown", value=late - early, unit=unit, seed=seed, note=note
        )


class _Crowd:
    """What everybody did, how long it took, and what went wrong."""

    def __init__(self, server: _Server, dataset: str, words: bool, seed: int) -> None:
        self.server, self.dataset, self.words, self.seed = server, dataset, words, seed
        self.took: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self.memory: list[float] = []
        self.descriptors: list[float] = []
        self.picture = _camera_photo(seed)

    async def work(self, *, users: int, seconds: float) -> None:
        import httpx

        until = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=users + 5)
        async with httpx.AsyncClient(
            base_url=self.server.url, timeout=PATIENCE, limits=limits
        ) as client:
            owner = {"Authorization": f"Bearer {self.server.keys['owner']}"}
            answer = await client.get(f"/api/tags/{self.dataset}", headers=owner)
            photos = [photo["id"] for photo in answer.json()["photos"]]
            watch = asyncio.create_task(self._watch())
            await asyncio.gather(
                *(self._person(client, user, users, photos, until) for user in range(users))
            )
            watch.cancel()

    async def _person(
        self, client: Any, user: int, users: int, photos: list[str], until: float
    ) -> None:
        import httpx

        rng = np.random.default_rng([self.seed, user])
        role = ROLES[user % len(ROLES)]
        habits = HABITS[role]
        kinds, weights = list(habits), np.array(list(habits.values())) / sum(habits.values())
        query, key = None, {"Authorization": f"Bearer {self.server.keys[role]}"}
        await asyncio.sleep(user / users)
        while time.monotonic() < until:
            kind = str(rng.choice(kinds, p=weights))
            begin = time.perf_counter()
            try:
                answer = await self._act(client, kind, str(rng.choice(photos)), query, rng, key)
                self.took[kind].append(1000 * (time.perf_counter() - begin))
                if answer.status_code != 200:
                    self.errors.append(f"{kind}: {answer.status_code}")
                elif kind in ("search", "upload", "words"):
                    query = answer.json()["query"]
            except httpx.HTTPError as error:
                self.errors.append(f"{kind}: {type(error).__name__}")
            await asyncio.sleep(float(rng.exponential(1.0)))

    async def _act(
        self,
        client: Any,
        kind: str,
        photo: str,
        query: str | None,
        rng: np.random.Generator,
        key: dict[str, str],
    ) -> Any:
        base = f"/api/search/{self.dataset}"
        pages = {
            "page": f"/{rng.choice(PAGES)}",
            "thumbnail": f"/api/datasets/{self.dataset}/photos/{photo}",
            "compare": f"/api/compare/{self.dataset}",
            "search page": "/search",
            "card": f"/api/releases/{self.dataset}/{RELEASE}/card.txt",
            "history": "/budget",
            "entries": "/api/ledger/entries",
            "log": "/api/access?most=20",
        }
        if kind == "words" and not self.words:
            kind = "upload"
        if kind == "upload":
            headers = {"content-type": "image/jpeg", **key}
            return await client.post(f"{base}/upload", content=self.picture, headers=headers)
        if kind == "words":
            words = {"words": str(rng.choice(["boat", "dog", "a field"]))}
            return await client.post(f"{base}/words", json=words, headers=key)
        if kind in pages:
            return await client.get(pages[kind], headers=key)
        if kind == "rerank" and query is not None:
            # Of the last 64 questions; one that was forgotten since is asked anew, as the page
            # does.
            answer = await client.post(f"{base}/again/{query}?rerank=true", headers=key)
            if answer.status_code != 404:
                return answer
        return await client.post(
            f"{base}/photo/{photo}?rerank={'true' if kind == 'rerank' else 'false'}", headers=key
        )

    async def _watch(self) -> None:
        while True:
            self.memory.append(self.server.memory() / 2**20)
            self.descriptors.append(float(self.server.open_files()))
            await asyncio.sleep(1.0)


class _Server:
    """`blindsight serve` in its own process."""

    def __init__(self, state: Path, keys: dict[str, str]) -> None:
        self.keys, self.log = keys, state / "server.log"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        given = {
            "KEYS": "required",
            "STATE": state,
            "PORT": port,
            "RATE": 10**8,
            "BURST": 10**8,
        }
        self.environment = {
            **os.environ,
            **{f"BLINDSIGHT_WORKBENCH_{name}": str(value) for name, value in given.items()},
        }

    def __enter__(self) -> _Server:
        import httpx

        command = [sys.executable, "-m", "blindsight", "serve"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        for _ in range(3000):
            if self.process.poll() is not None:
                break
            try:
                httpx.get(self.url + "/health", timeout=5)
                return self
            except httpx.HTTPError:
                time.sleep(0.1)
        self.process.kill()
        raise RuntimeError(f"the workbench did not start: {self.log.read_text()}")

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGESIZE"
        )

    def open_files(self) -> int:
        """How many files and connections the server has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)


def _album(state: Path, seed: int) -> tuple[str, bool]:
    """A folder of made photos, read and protected by the workbench's own code; its number, and
    whether words work.
    """
    from blindsight.app.library.datasets import DataSets, Release, today
    from blindsight.app.library.photos import release_photos, scan
    from blindsight.encoders.words import words_available
    from blindsight.index.public_images import built_in_images
    from blindsight.privacy import Cost, Ledger
    from blindsight.workbench.infra.settings import WorkbenchSettings

    settings = WorkbenchSettings(state=state)
    datasets, folder = DataSets(settings), state / "album"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for n, pixels in enumerate(built_in_images(PHOTOS, 96)):
        kind = ("coast", "fields", "streets")[int(rng.integers(3))]
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / f"IMG_{n:04}.jpg").write_bytes(_jpeg(pixels))
    one = scan(datasets, datasets.add("Album", folder), lambda *_: None)
    release = Release(
        RELEASE,
        "search",
        datasets.named(one, "search", EPSILON, RELEASE),
        EPSILON,
        0,
        today(),
        False,
    )
    with Ledger(settings.ledger_place, dataset=one.account) as ledger:
        ledger.grant(Cost(epsilon=16.0, delta=1e-3, unit="record"), what="budget")
    release_photos(datasets, one, release)
    return one.id, words_available() and one.features != "pixels"


def _people(state: Path, dataset: str) -> dict[str, str]:
    """A key for each role, with its rights in the data set."""
    from blindsight.workbench.infra.database import Database
    from blindsight.workbench.infra.identity import Keys
    from blindsight.workbench.infra.settings import WorkbenchSettings

    database = Database(WorkbenchSettings(state=state).database_url)
    keys = Keys(database)
    made = {role: keys.make(f"ward {role}", "analyst") for role in HABITS}
    keys.grant("ward owner", "owner", dataset)
    keys.grant("ward searcher", "searcher", dataset, release=RELEASE)
    keys.grant("ward auditor", "auditor", dataset)
    database.close()
    return made


def _camera_photo(seed: int) -> bytes:
    """Twelve megapixels, as a camera makes them; what it shows does not matter here."""
    from PIL import Image

    rough = np.random.default_rng(seed).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    return _jpeg(np.asarray(Image.fromarray(rough).resize((4000, 3000))))


def _jpeg(pixels: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[94]


def _halves(values: list[float]) -> tuple[float, float]:
    """The level once everything is warm, and at the end."""
    fifth = max(1, len(values) // 5)
    return statistics.median(values[fifth : 2 * fifth] or values), statistics.median(
        values[-fifth:]
    )


def _errors(crowd: _Crowd) -> str:
    found = ", ".join(sorted(set(crowd.errors))) or "none"
    return (
        f"time-outs after {PATIENCE:g} s and answers other than 200, of "
        f"{sum(map(len, crowd.took.values())):,}: {found}"
    )
