"""The audit measured on itself: bugs written into copies of the package, and the sound package again and again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.audit.mutants import Outcome, audit_scene, outcomes
from benchmarks.audit.mutations import EARLY, LATE, NOT_CAUGHT
from benchmarks.harness import Row

__all__ = ["rows"]

_RUNS = 20


def rows(*, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None) -> Iterator[Row]:
    """Mutants early, late and all; then false alarms. What is known so far stands in mutants.jsonl."""
    step = progress or (lambda done, total: None)
    chosen = [mutant for mutants in (EARLY, LATE) for mutant in (mutants[::8] if quick else mutants)]
    scenes = sorted({scene for mutant in (*EARLY, *LATE) for scene in mutant.scenes})[:: 4 if quick else 1]
    total, start = len(chosen) + len(scenes), time.perf_counter()
    found: list[Outcome] = []
    with open(out / "mutants.jsonl", "w", encoding="utf-8") as log:
        for outcome in outcomes(chosen, workers=2):
            found.append(outcome)
            log.write(json.dumps([outcome.mutant.name, outcome.word, outcome.says[:300]]) + "\n")
            log.flush()
            step(len(found), total)
        seconds = time.perf_counter() - start
        late = {mutant.name for mutant in LATE}
        for name, some in (
            ("source_mutants_caught", found),
            ("early_source_mutants_caught", [o for o in found if o.mutant.name not in late]),
            ("late_source_mutants_caught", [o for o in found if o.mutant.name in late]),
        ):
            yield _row(name, some, seed, seconds if some is found else None)
        alarms: list[str] = []
        runs = 1 if quick else _RUNS
        for number, scene in enumerate(scenes):
            told = audit_scene(scene, seed=seed, runs=runs)
            log.write(json.dumps([scene, f"{runs} runs", told]) + "\n")
            log.flush()
            alarms += [f"{scene}: {word}" for word in (*told.get("findings", ()), *told.get("notes", ()))]
            step(len(chosen) + number + 1, total)
    yield Row(
        id="audit.source_false_alarms",
        value=len(alarms),
        unit=f"in {runs * len(scenes)} audits of the sound package",
        seed=seed,
        seconds=time.perf_counter() - start - seconds,
        note=f"{len(scenes)} scenes, {runs} seeds each" + "".join(f"; {alarm}" for alarm in alarms[:5]),
    )


def _row(name: str, found: list[Outcome], seed: int, seconds: float | None) -> Row:
    parts = Counter(outcome.mutant.part for outcome in found)
    caught = Counter(outcome.mutant.part for outcome in found if outcome.word == "caught")
    left = [outcome for outcome in found if outcome.word != "caught"]
    told = ", ".join(f"{part} {caught[part]} of {count}" for part, count in parts.items())
    why = "".join(f"; not caught: {o.mutant.name} ({NOT_CAUGHT.get(o.mutant.name, o.word)})" for o in left)
    return Row(
        id=f"audit.{name}",
        value=len(found) - len(left),
        unit=f"of {len(found)}",
        seed=seed,
        seconds=seconds,
        note=told + why,
    )
