"""One shape of result for all rooms, and races that are fair: both runners in one run, in turns, by
their medians.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Race",
    "Row",
    "free_port",
    "machine",
    "markdown_table",
    "put_row",
    "race",
    "read_report",
    "report",
    "versions",
]

_PACKAGES = (
    "blindsight",
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "faiss-cpu",
    "gmpy2",
    "numba",
    "dp-accounting",
    "phe",
    "pypaillier",
    "tenseal",
    "flwr",
    "usearch",
    "networkx",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured figure: what, how much, in which unit, against whom, and how it was made."""

    id: str
    value: float
    unit: str
    peer: str | None = None
    paper: float | str | None = None
    seed: int | None = None
    seconds: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Race:
    """The outcome of a race: how many times faster than the peer, and both medians in seconds."""

    ratio: float
    ours_seconds: float
    peer_seconds: float


def race(
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Race:
    """Run both in turns, `repeats` times after one warm-up, and compare the medians.

    `clock=time.process_time` counts CPU seconds instead of wall time.
    """
    ours()
    peer()
    ours_times: list[float] = []
    peer_times: list[float] = []
    for _ in range(repeats):
        for run, times in ((ours, ours_times), (peer, peer_times)):
            start = clock()
            run()
            times.append(clock() - start)
    mine, theirs = statistics.median(ours_times), statistics.median(peer_times)
    return Race(ratio=theirs / mine, ours_seconds=mine, peer_seconds=theirs)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
    }


def versions() -> dict[str, str]:
    """The versions of what computes."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def report(rows: Iterable[Row]) -> dict[str, Any]:
    """The JSON shape: rows, machine, versions."""
    return {
        "rows": [dataclasses.asdict(row) for row in rows],
        "machine": machine(),
        "versions": versions(),
    }


def read_report(path: str | Path) -> dict[str, Any]:
    """Read a report file back."""
    report: dict[str, Any] = json.loads(Path(path).read_text())
    return report


def put_row(path: Path, row: Row) -> None:
    """Put a row into a report file in place of the row with its id, or at the end; into a new file
    where there is none.
    """
    kept = read_report(path) if path.exists() else report(())
    fresh = dataclasses.asdict(row)
    ids = [entry["id"] for entry in kept["rows"]]
    if row.id in ids:
        kept["rows"][ids.index(row.id)] = fresh
    else:
        kept["rows"].append(fresh)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """A table as lines of Markdown; None is an empty cell."""
    names = list(columns)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in rows]


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
