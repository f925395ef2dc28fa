"""The workbench's pace: 50 people for five minutes, and 10,000 images made to hurt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from benchmarks.workbench.hostile_images import BOMBS, mutations
from benchmarks.workbench.load import load_rows

__all__ = ["hostile_rows", "rows"]


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """People first, then hostile images."""
    step = progress or (lambda done, total: None)
    step(0, 2)
    yield from load_rows(seconds=10.0 if quick else 300.0, seed=seed)
    step(1, 2)
    yield from hostile_rows(300 if quick else 10_000, seed=seed)
    step(2, 2)


def hostile_rows(count: int, *, seed: int = 0) -> Iterator[Row]:
    """Mutated images and bombs through the workbench's decoder: how long, how much memory, how many
    workers died.
    """
    found = asyncio.run(_hurt(count, seed))
    note = (
        f"{count:,} mutated images and {len(BOMBS)} bombs: {found['read']:,} read, "
        f"{found['refused']:,} refused"
    )
    yield Row(
        id="workbench.hostile_slowest_s", value=found["slowest"], unit="s", seed=seed, note=note
    )
    yield Row(
        id="workbench.hostile_peak_mb",
        value=found["peak"] / 2**20,
        unit="MB address space",
        seed=seed,
        note=note,
    )
    yield Row(
        id="workbench.hostile_workers_ended",
        value=found["ended"],
        unit="workers",
        seed=seed,
        note=note,
    )


async def _hurt(count: int, seed: int) -> dict[str, Any]:
    from blindsight.workbench.infra.guard import Metrics
    from blindsight.workbench.infra.problems import Problem
    from blindsight.workbench.infra.settings import WorkbenchSettings
    from blindsight.workbench.infra.uploads import Decoders

    decoders, found = (
        Decoders(WorkbenchSettings(), Metrics(), workers=1),
        {"read": 0, "refused": 0, "ended": 0},
    )
    slowest, peak, before = 0.0, 0, None
    for data in (*(make() for make in BOMBS.values()), *mutations(count, seed)):
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
