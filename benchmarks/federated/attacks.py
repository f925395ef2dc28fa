"""How many of the audit's attacks by cheating parties are stopped by the real roles, and by
what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row
from blindsight.audit.methods.federated_cheats import stopped_by

__all__ = ["attack_rows"]


def attack_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """How many attacks are stopped."""
    found = stopped_by()
    yield Row(
        id="federated.attacks_stopped",
        value=sum(map(bool, found.values())),
        unit=f"of {len(found)}",
        seed=seed,
        note="; ".join(f"{name}: {code or 'NOT STOPPED'}" for name, code in found.items()),
    )
    if progress is not None:
        progress(1, 1)
