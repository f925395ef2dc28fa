"""The audit measured on itself: planted bugs caught, sound mechanisms spared, cost against the number of trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audit.mutants import audit_scene, outcomes
from benchmarks.audit.mutations import EARLY, LATE
from benchmarks.audit.planted_bugs import PLANTED, SURE
from benchmarks.harness import Row
from blindsight.audit.blackbox import distinguish
from blindsight.privacy.mechanisms import BitFlip, DiscreteLaplace, KaryResponse, Laplace, NoisyTopK, Staircase

__all__ = ["rows"]

_SOUND = (
    (BitFlip.proven(2.0, n_bits=8, unit="record"), np.zeros(8, np.uint8), np.ones(8, np.uint8)),
    (Laplace.calibrate(1.0, sensitivity=1.0, unit="record"), np.zeros(1), np.ones(1)),
    (Staircase(epsilon=1.0, sensitivity=1.0, unit="record"), np.zeros(1), np.ones(1)),
    (DiscreteLaplace.calibrate(1.0, sensitivity=1.0, grid=0.125, dimensions=0, unit="query"), np.zeros(1), np.ones(1)),
    (KaryResponse(epsilon=1.0, k=8, unit="record"), np.array([0]), np.array([1])),
    (NoisyTopK(epsilon=1.0, k=2, sensitivity=1.0, unit="query"), np.array([1.0, 0, 0]), np.array([0, 1.0, 0])),
)


def rows(*, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None) -> Iterator[Row]:
    """Twelve planted bugs and their sound twins, then honest mechanisms many times over."""
    step, total = progress or (lambda done, total: None), len(PLANTED) + 1
    caught = alarms = 0
    start = time.perf_counter()
    for done, bug in enumerate(PLANTED):
        step(done, total)
        caught += bug.audited(True)
        alarms += bug.audited(False)
    yield Row(
        id="audit.planted_bugs_caught",
        value=caught,
        unit=f"of {len(PLANTED)}",
        seed=seed,
        seconds=time.perf_counter() - start,
    )
    verdicts = len(PLANTED)
    for again in range(2 if quick else 20):
        for mechanism, x, neighbour in _SOUND:
            found = distinguish(
                _releasing(mechanism),
                x,
                neighbour,
                trials=2000,
                seed=seed + again,
                confidence=SURE,
            )
            alarms += found.epsilon > mechanism.cost.epsilon
            verdicts += 1
    step(total, total)
    yield Row(
        id="audit.false_alarms",
        value=alarms,
        unit=f"of {verdicts} verdicts on sound pipelines",
        seed=seed,
        note=f"stated rate: at most {1 - SURE:.0e} a verdict",
    )
    yield from _growth(quick, seed)
    yield from _source(quick, seed)


def _source(quick: bool, seed: int) -> Iterator[Row]:
    """Bugs written into the package itself, and the sound package again and again."""
    for name, mutants in (("source_mutants_caught", EARLY), ("late_source_mutants_caught", LATE)):
        start = time.perf_counter()
        found = list(outcomes(mutants[::8] if quick else mutants, workers=2))
        left = [outcome for outcome in found if outcome.word != "caught"]
        yield Row(
            id=f"audit.{name}",
            value=len(found) - len(left),
            unit=f"of {len(found)}",
            seed=seed,
            seconds=time.perf_counter() - start,
            note="not caught: " + (", ".join(f"{outcome.mutant.name} ({outcome.word})" for outcome in left) or "none"),
        )
    scenes = sorted({scene for mutant in (*EARLY, *LATE) for scene in mutant.scenes})
    tried = [(scene, seed + again) for again in range(1 if quick else 20) for scene in scenes[:: 4 if quick else 1]]
    alarms = [scene for scene, turn in tried if audit_scene(scene, seed=turn).get("findings")]
    yield Row(
        id="audit.source_false_alarms",
        value=len(alarms),
        unit=f"of {len(tried)} audits of the sound package",
        seed=seed,
        note=", ".join(sorted(set(alarms))),
    )


def _releasing(mechanism: Any) -> Callable[[Any, np.random.Generator], Any]:
    return lambda x, rng: mechanism.release(x, rng=rng)


def _growth(quick: bool, seed: int) -> Iterator[Row]:
    """Cost against trials, and the fitted exponent."""
    noise = Laplace.calibrate(1.0, sensitivity=1.0, unit="record")
    sizes = [100, 1000, 10_000] if quick else [100, 1000, 10_000, 100_000]
    seconds = []
    for trials in sizes:
        start = time.perf_counter()
        distinguish(_releasing(noise), np.zeros(1), np.ones(1), trials=trials, seed=seed)
        seconds.append(time.perf_counter() - start)
        yield Row(id=f"audit.growth.{trials}_trials", value=seconds[-1], unit="s", seed=seed)
    # The smallest size is all set-up; the slope of the rest is the growth.
    slope = np.polyfit(np.log(sizes[1:]), np.log(seconds[1:]), 1)[0]
    yield Row(id="audit.growth_exponent", value=float(slope), unit="exponent (1 is linear)", seed=seed)
