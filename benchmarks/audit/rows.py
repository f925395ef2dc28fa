"""The audit measured on itself: bugs written into copies of the package, and the sound package
again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.audit.false_alarms import (
    SEEDS,
    Log,
    audit_scenes,
    false_alarms_row,
    scene_names,
)
from benchmarks.audit.mutants import Outcome, outcomes
from benchmarks.audit.mutations import EARLY, LATE, NEW, NOT_CAUGHT
from benchmarks.harness import Row

__all__ = ["rows"]


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Mutants, all and by when they were written; then false alarms.

    A stopped run goes on with the same source.
    """
    step = progress or (lambda done, total: None)
    chosen = [
        mutant for mutants in (EARLY, LATE, NEW) for mutant in (mutants[::8] if quick else mutants)
    ]
    scenes = scene_names()[:: 4 if quick else 1]
    seeds, total, log = 1 if quick else SEEDS, len(chosen) + len(scenes), Log(out / "mutants.jsonl")
    found = [
        Outcome(mutant, *log.known[mutant.name]) for mutant in chosen if mutant.name in log.known
    ]
    for outcome in outcomes(
        [mutant for mutant in chosen if mutant.name not in log.known], workers=2
    ):
        found.append(outcome)
        log.add(outcome.mutant.name, [outcome.word, outcome.says[:300]])
        step(len(found), total)
    listed = [outcome for outcome in found if outcome.mutant.group != "new"]
    yield _row("source_mutants_caught", listed, seed)
    yield _share("new_mutants_caught", [o for o in found if o.mutant.group == "new"], seed)
    for group in ("early", "late", "last", "blind"):
        yield _row(
            f"{group}_source_mutants_caught", [o for o in found if o.mutant.group == group], seed
        )
    audited = Log(out / "scenes.jsonl")
    audit_scenes(
        scenes,
        audited,
        seed=seed,
        seeds=seeds,
        progress=lambda scene: step(len(found) + len(audited.known), total),
    )
    yield false_alarms_row(scenes, audited, seed=seed, seeds=seeds)


def _share(name: str, found: list[Outcome], seed: int) -> Row:
    """The same as a share, with how many the audit caught and how many only the tests."""
    counts = Counter("tests" if o.says.startswith("tests") else "audit" for o in found)
    missed = [o.mutant.name for o in found if o.word != "caught"]
    caught = len(found) - len(missed)
    return Row(
        id=f"audit.{name}",
        value=round(caught / max(1, len(found)), 4),
        unit=f"share of {len(found)}, caught by audit or tests",
        seed=seed,
        note=f"asked of the audit {counts['audit']}, of tests after it {counts['tests']}"
        + "".join(f"; not caught: {name}" for name in missed),
    )


def _row(name: str, found: list[Outcome], seed: int) -> Row:
    parts = Counter(outcome.mutant.part for outcome in found)
    caught = Counter(outcome.mutant.part for outcome in found if outcome.word == "caught")
    left = [outcome for outcome in found if outcome.word != "caught"]
    told = ", ".join(f"{part} {caught[part]} of {count}" for part, count in parts.items())
    why = "".join(
        f"; not caught: {o.mutant.name} ({NOT_CAUGHT.get(o.mutant.name, o.word)})" for o in left
    )
    return Row(
        id=f"audit.{name}",
        value=len(found) - len(left),
        unit=f"of {len(found)}",
        seed=seed,
        note=told + why,
    )
