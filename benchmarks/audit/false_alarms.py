"""Audits of the sound package, which must find nothing: every scene with many seeds, in slices.

    python -m benchmarks.audit.false_alarms --seconds 900   # goes on where the last slice ended

What was audited is kept, with a digest of the source, in `out/bench/audit/scenes.jsonl`. The row is
printed once every scene was audited with every seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.audit.mutants import ROOT, audit_scene
from benchmarks.harness import Row

__all__ = ["ROLLS", "SEEDS", "Log", "audit_scenes", "false_alarms_row", "scene_names"]

SEEDS = 20
# How many numbers each mechanism draws again. The share of false alarms of a test does not depend
# on it; the tests' power does, and mutants are looked for with 60,000.
ROLLS = 10_000


def scene_names() -> list[str]:
    """Every replay contract, also those in which no mutant is looked for."""
    names = []
    for path in (ROOT / "tests" / "contracts").glob("test_replay*.py"):
        part = path.stem.removeprefix("test_replay").lstrip("_") or "privacy"
        names += [
            f"{part}:{name}"
            for name in re.findall(r"^class (Test\w+)\(", path.read_text(), re.MULTILINE)
        ]
    return sorted(names)


class Log:
    """What was found out about this very source, one line of JSON each."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, dict[str, list[str]]()
        self.source = _digest_of_the_source()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            source, name, words = json.loads(line)
            if source == self.source:
                self.known[name] = words

    def add(self, name: str, words: list[str]) -> None:
        """Keep what was found about `name`."""
        self.known[name] = words
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as log:
            log.write(json.dumps([self.source, name, words]) + "\n")


def _digest_of_the_source() -> str:
    """Tells this source from any other: the package, the contracts and the mutants."""
    digest = hashlib.sha256()
    for folder in ("src/blindsight", "tests/contracts", "benchmarks/audit"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _key(scene: str, seed: int, seeds: int, rolls: int) -> str:
    return f"{scene}, seeds {seed} to {seed + seeds - 1}, {rolls} rolls"


def audit_scenes(
    scenes: Sequence[str],
    log: Log,
    *,
    seed: int = 0,
    seeds: int = SEEDS,
    rolls: int = ROLLS,
    seconds: float = float("inf"),
    progress: Callable[[str], None] = lambda scene: None,
) -> bool:
    """Audit the scenes that the log does not have; returns whether all are done.

    No scene is begun after `seconds`.
    """
    start = time.monotonic()
    for scene in scenes:
        if _key(scene, seed, seeds, rolls) in log.known:
            continue
        if time.monotonic() - start > seconds:
            return False
        told = audit_scene(scene, seed=seed, runs=seeds, rolls=rolls)
        log.add(
            _key(scene, seed, seeds, rolls), [*told.get("findings", ()), *told.get("notes", ())]
        )
        progress(scene)
    return True


def false_alarms_row(
    scenes: Sequence[str], log: Log, *, seed: int = 0, seeds: int = SEEDS, rolls: int = ROLLS
) -> Row:
    """The row of audits that `audit_scenes` has finished."""
    alarms = [
        f"{scene}: {words}"
        for scene in scenes
        for words in log.known[_key(scene, seed, seeds, rolls)]
    ]
    return Row(
        id="audit.false_alarms",
        value=len(alarms),
        unit=f"in {seeds * len(scenes)} audits of the sound package",
        seed=seed,
        note=f"{len(scenes)} scenes, {seeds} seeds each, {rolls} rolls"
        + "".join(f"; {alarm}" for alarm in alarms[:5]),
    )


def main() -> None:
    """Audit for some time, and print the row once all scenes are done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenes", nargs="*", help='such as "hashing:TestPITQ"; by default all')
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rolls", type=int, default=ROLLS)
    parser.add_argument("--log", type=Path, default=Path("out/bench/audit/scenes.jsonl"))
    given = parser.parse_args()
    scenes, log = given.scenes or scene_names(), Log(given.log)
    options = {"seeds": given.seeds, "rolls": given.rolls}

    def show(scene: str) -> None:
        print(scene, *log.known[_key(scene, 0, given.seeds, given.rolls)], flush=True)

    done = audit_scenes(scenes, log, seconds=given.seconds, progress=show, **options)
    if done:
        print(json.dumps(dataclasses.asdict(false_alarms_row(scenes, log, **options))))
    else:
        print(f"{len(log.known)} of {len(scenes)} scenes are done; run it again to go on.")


if __name__ == "__main__":
    main()
