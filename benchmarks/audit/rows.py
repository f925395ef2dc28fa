"""The audit measured on itself: bugs written into copies of the package, and the sound package
again and again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.audit.mutants import ROOT, Outcome, audit_scene, outcomes
from benchmarks.audit.mutations import EARLY, LATE, NEW, NOT_CAUGHT
from benchmarks.harness import Row

__all__ = ["rows"]

_RUNS = 20


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
    scenes = _scenes()[:: 4 if quick else 1]
    runs, total, log = 1 if quick else _RUNS, len(chosen) + len(scenes), _Log(out / "mutants.jsonl")
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
    names = {scene: f"{scene}, seeds {seed} to {seed + runs - 1}" for scene in scenes}
    left = [scene for scene, name in names.items() if name not in log.known]
    with ThreadPoolExecutor(2) as pool:
        for scene, told in zip(
            left, pool.map(lambda one: audit_scene(one, seed=seed, runs=runs), left), strict=True
        ):
            log.add(names[scene], [*told.get("findings", ()), *told.get("notes", ())])
            step(len(log.known), total)
    alarms = [f"{scene}: {words}" for scene, name in names.items() for words in log.known[name]]
    yield Row(
        id="audit.false_alarms",
        value=len(alarms),
        unit=f"in {runs * len(scenes)} audits of the sound package",
        seed=seed,
        note=f"{len(scenes)} scenes, {runs} seeds each"
        + "".join(f"; {alarm}" for alarm in alarms[:5]),
    )


def _scenes() -> list[str]:
    """Every replay contract, also those in which no mutant is looked for."""
    found = []
    for path in (ROOT / "tests" / "contracts").glob("test_replay*.py"):
        part = path.stem.removeprefix("test_replay").lstrip("_") or "privacy"
        found += [
            f"{part}:{name}"
            for name in re.findall(r"^class (Test\w+)\(", path.read_text(), re.MULTILINE)
        ]
    return sorted(found)


class _Log:
    """What was found out already about this very source, one line each."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, dict[str, list[str]]()
        self._source = _digest()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            source, name, words = json.loads(line)
            if source == self._source:
                self.known[name] = words

    def add(self, name: str, words: list[str]) -> None:
        self.known[name] = words
        with open(self.path, "a", encoding="utf-8") as log:
            log.write(json.dumps([self._source, name, words]) + "\n")


def _digest() -> str:
    """Tells this source from any other: the package, the contracts and the mutants."""
    found = hashlib.sha256()
    for folder in ("src/blindsight", "tests/contracts", "benchmarks/audit"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


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
