"""`python -m benchmarks federated`: encryption against its peers, and the paper's tables and
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.federated.accuracy import accuracy_rows
from benchmarks.federated.attacks import attack_rows
from benchmarks.federated.carriers import carrier_rows
from benchmarks.federated.crypto import crypto_rows
from benchmarks.federated.flower import flower_rows
from benchmarks.federated.peers import peer_rows
from benchmarks.federated.scale import scale_rows
from benchmarks.federated.timing import timing_rows
from benchmarks.harness import Row

__all__ = ["rows"]


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Every row; quick: within a minute, on digits."""
    parts = (
        crypto_rows,
        peer_rows,
        attack_rows,
        timing_rows,
        scale_rows,
        carrier_rows,
        flower_rows,
        accuracy_rows,
    )
    for done, part in enumerate(parts):

        def inner(now: int, total: int, done: int = done) -> None:
            if progress is not None:
                progress(100 * done + 100 * now // total, 100 * len(parts))

        yield from part(quick=quick, seed=seed, out=out, progress=inner)
