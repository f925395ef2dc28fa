"""Sketches: the paper's Tables 2 to 5 and Figures 3 to 6, what attackers recover, and the races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from benchmarks.sketching.attacks import attack_rows
from benchmarks.sketching.curve import curve_rows
from benchmarks.sketching.peer import peer_rows, table_4_rows
from benchmarks.sketching.photos import photo_rows
from benchmarks.sketching.residual import residual_rows
from benchmarks.sketching.speed import epoch_rows, speed_rows
from benchmarks.sketching.tables import table_rows
from benchmarks.sketching.training import cifar_rows, fashion_rows, mnist_rows, records_rows
from blindsight.core.errors import MissingDependency

__all__ = ["rows"]

Progress = Callable[[int, int], None]


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Progress | None = None
) -> Iterator[Row]:
    """All rows of the room; figures go to `out` as SVG.

    The quick run leaves out CIFAR-10, DP-SGD and the curve.
    """
    out.mkdir(parents=True, exist_ok=True)
    parts: list[Callable[[], Iterator[Row]]] = [
        lambda: speed_rows(quick=quick, seed=seed, out=out),
        lambda: table_rows(quick=quick, seed=seed, out=out),
        lambda: _needing_torch(epoch_rows, quick=quick, seed=seed),
        lambda: _needing_torch(mnist_rows, quick=quick, seed=seed, out=out),
        lambda: _needing_torch(attack_rows, quick=quick, seed=seed, out=out),
        lambda: photo_rows(quick=quick, seed=seed, out=out),
    ]
    if not quick:
        parts += [
            lambda: _needing_torch(records_rows, seed=seed, out=out),
            lambda: _needing_torch(fashion_rows, seed=seed),
            lambda: _needing_torch(curve_rows, seed=seed, out=out),
            lambda: _needing_torch(table_4_rows, seed=seed),
            lambda: _needing_torch(peer_rows, seed=seed),
            lambda: _needing_torch(cifar_rows, seed=seed, out=out),
            lambda: _needing_torch(residual_rows, seed=seed, folder=out / "residual"),
        ]
    for number, part in enumerate(parts):
        yield from part()
        if progress is not None:
            progress(number + 1, len(parts))


def _needing_torch(make: Callable[..., Iterator[Row]], **options: Any) -> Iterator[Row]:
    try:
        yield from make(**options)
    except MissingDependency as error:
        yield Row(id=f"sketching.skipped.{make.__name__}", value=0, unit="skipped", note=str(error))
