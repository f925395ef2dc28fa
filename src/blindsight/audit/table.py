"""The table of claims: every paper's promise, at its own calibration and at ours, with the attack that measured it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from blindsight.audit.papers import federated, hashing, metric, sketching, tagging
from blindsight.audit.verdict import Verdict

__all__ = ["COLUMNS", "all_verdicts"]

COLUMNS = ("method", "setting", "unit", "claimed", "proven", "audited", "attack", "verdict")


def all_verdicts(
    *, deep: bool = False, seed: int = 0, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> list[Verdict]:
    """Attack all five methods on data that ship with installed packages.

    About a minute; `deep` runs ten times the trials, which raises the ceiling of what can be measured.
    """
    from blindsight import data

    trials = 50_000 if deep else 5000
    pictures = data.load("mnist5k").array()
    digits = data.load("digits").array()
    rows = digits.reshape(len(digits), -1)[:200] / 255.0
    parts: list[Iterator[Verdict]] = [
        hashing.verdicts(rows, trials=trials, seed=seed, workers=workers),
        federated.verdicts(seed=seed),
        metric.verdicts(trials=trials, seed=seed, workers=workers),
        sketching.verdicts(pictures[:: len(pictures) // 20][:20], trials=4 * trials, seed=seed),
        tagging.verdicts(trials=trials, seed=seed),
    ]
    found: list[Verdict] = []
    step: Any = progress or (lambda done, total: None)
    step(0, len(parts))
    for done, part in enumerate(parts, start=1):
        found.extend(part)
        step(done, len(parts))
    return found
