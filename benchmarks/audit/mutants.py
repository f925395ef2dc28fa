"""Privacy bugs written into a copy of the package, each audited in a process of its own: which ones
are caught?

    python -m benchmarks.audit.mutants                 # all of them; --new for the newest
    python -m benchmarks.audit.mutants door-no-clip    # some, by name

A mutant is one replacement of text in one file. It is caught when the audit at the door refutes one
of its scenes (the replay contracts of `tests/contracts`), or else when one of the tests that it
names fails; an import that fails or a scene that raises is a broken mutant, not a catch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.audit.mutations import EARLY, LATE, NEW, Mutant

__all__ = ["ROOT", "Outcome", "audit_scene", "outcomes"]

ROOT = Path(__file__).parents[2]
_SECONDS = 300


@dataclass(frozen=True)
class Outcome:
    """What the audit said of one mutant: "caught", "missed" or "broken", and in which words."""

    mutant: Mutant
    word: str
    says: str


def outcomes(mutants: Iterable[Mutant], *, workers: int = 1) -> Iterator[Outcome]:
    """Audit each mutant; in order."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(_outcome, mutants)


def _outcome(mutant: Mutant) -> Outcome:
    with tempfile.TemporaryDirectory() as place:
        source = _mutated(mutant, Path(place))
        says = []
        for scene in mutant.scenes:
            done = audit_scene(scene, source)
            if done.get("findings"):
                return Outcome(mutant, "caught", "; ".join(done["findings"]))
            says += done.get("notes", [])
        if mutant.tests and not says:
            word, what = _tested(mutant.tests, source)
            return Outcome(mutant, word, what)
    return Outcome(mutant, "broken" if says else "missed", "; ".join(says))


def _tested(tests: Sequence[str], source: Path) -> tuple[str, str]:
    """Whether one of the tests fails with the package at `source`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            env=_environment(source),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "broken", f"tests took more than {_SECONDS} s"
    last = (done.stdout.strip().splitlines() or ["no word"])[-1]
    return {0: "missed", 1: "caught"}.get(done.returncode, "broken"), f"tests: {last}"


def _environment(source: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (source, ROOT / "tests", ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "BLINDSIGHT_AUDIT_ROLLS": os.environ.get("BLINDSIGHT_AUDIT_ROLLS", "60000"),
    }


def _mutated(mutant: Mutant, place: Path) -> Path:
    """A copy of the package with the one replacement made."""
    source = place / "src"
    shutil.copytree(
        ROOT / "src" / "blindsight",
        source / "blindsight",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    path = source / "blindsight" / mutant.path
    path.write_text(mutant.applied(path.read_text()))
    return source


def audit_scene(
    scene: str, source: Path = ROOT / "src", *, seed: int = 0, runs: int = 1
) -> dict[str, list[str]]:
    """The findings on one scene ("hashing:TestPITQ") with the package at `source`, from a process
    of its own.

    With several `runs` the seeds count on from `seed`.
    """
    module = [sys.executable, "-W", "ignore", "-m", "benchmarks.audit.mutants"]
    command = [*module, "--scene", scene, "--seed", str(seed), "--runs", str(runs)]
    limit = _SECONDS * runs
    try:
        done = subprocess.run(
            command,
            env=_environment(source),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return {"notes": [f"{scene} took more than {limit} s"]}
    if done.returncode:
        return {"notes": [f"{scene}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"]}
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _scene(name: str, seeds: range) -> dict[str, list[str]]:
    room, case = name.split(":")
    module = importlib.import_module(
        f"contracts.test_replay{'' if room == 'privacy' else '_' + room}"
    )
    findings: list[str] = []
    notes: list[str] = []
    for seed in seeds:
        found = getattr(module, case)().audit(seed)
        broken = [note for note in found.notes if "raised" in note]
        notes += broken
        findings += [] if broken else [str(finding) for finding in found.findings]
    return {"findings": findings, "notes": notes}


def main() -> None:
    """Print one line for each mutant, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--scene")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args()
    if given.scene:
        print(json.dumps(_scene(given.scene, range(given.seed, given.seed + given.runs))))
        return
    chosen = NEW if given.new else LATE if given.late else (*EARLY, *LATE, *NEW)
    chosen = tuple(mutant for mutant in chosen if not given.names or mutant.name in given.names)
    counts: dict[str, int] = {}
    for outcome in outcomes(chosen, workers=given.workers):
        counts[outcome.word] = counts.get(outcome.word, 0) + 1
        print(f"{outcome.word:7} {outcome.mutant.name:34} {outcome.says[:150]}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))


if __name__ == "__main__":
    main()
