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
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from benchmarks.audit.mutations import EARLY, LATE, NEW, Mutant

__all__ = ["ROOT", "Outcome", "SceneServer", "audit_scene", "outcome_of", "outcomes"]

ROOT = Path(__file__).parents[2]
_SECONDS = 1800  # ends what hangs; beside other work a scene may take many times as long as alone
# What scenes import of other people's packages; importing them takes longer than most audits.
_IMPORTED_BEFORE = (
    "PIL.Image",
    "cryptography.x509",
    "numba",
    "randomgen",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.linear_model",
    "sqlalchemy.dialects.sqlite",
    "torch",
)


@dataclass(frozen=True)
class Outcome:
    """What the audit said of one mutant: "caught", "missed" or "broken", and in which words."""

    mutant: Mutant
    word: str
    says: str


class SceneServer:
    """A process that has imported what the package needs, and forks for every scene.

    Only other people's packages are imported before the fork: each scene imports the package itself
    from the folder that it is told.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.audit.mutants", "--serve"],
            env=_environment(ROOT),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> SceneServer:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            if process.stdin is not None:
                process.stdin.close()

    def audit(self, scene: str, source: Path) -> dict[str, list[str]]:
        """The findings on one scene with the package at `source`."""
        orders, answers = self._process.stdin, self._process.stdout
        if orders is None or answers is None:
            raise RuntimeError("the server has no pipes.")
        orders.write(json.dumps([scene, str(source)]) + "\n")
        orders.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"the server ended while it audited {scene}.")
        told: dict[str, list[str]] = json.loads(answer)
        return told


def _serve() -> None:
    """Audit one scene per line of the standard input, each in a process of its own."""
    for name in _IMPORTED_BEFORE:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the children leave its pages shared
    answers = os.dup(1)
    for line in sys.stdin:
        scene, source = json.loads(line)
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(here)
            signal.alarm(_SECONDS)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.path[:0] = [source, str(ROOT / "tests"), str(ROOT)]
            try:
                told = _scene(scene, range(1))
            except BaseException as error:  # whatever a mutant raises
                told = {"notes": [f"{scene}: {type(error).__name__}: {error}"]}
            with os.fdopen(there, "w") as pipe:
                json.dump(told, pipe)
            os._exit(0)
        os.close(there)
        with os.fdopen(here) as pipe:
            answer = pipe.read()
        _, status = os.waitpid(child, 0)
        if status or not answer:
            answer = json.dumps({"notes": [f"{scene} took more than {_SECONDS} s, or was killed"]})
        os.write(answers, answer.encode() + b"\n")


def outcomes(mutants: Iterable[Mutant], *, workers: int = 1) -> Iterator[Outcome]:
    """Audit each mutant; in order."""
    servers: SimpleQueue[SceneServer] = SimpleQueue()

    def next_outcome(mutant: Mutant) -> Outcome:
        server = servers.get()
        try:
            return outcome_of(mutant, server)
        finally:
            servers.put(server)

    with ExitStack() as stack:
        for _ in range(workers):
            servers.put(stack.enter_context(SceneServer()))
        yield from stack.enter_context(ThreadPoolExecutor(workers)).map(next_outcome, mutants)


def outcome_of(mutant: Mutant, server: SceneServer) -> Outcome:
    """Write one bug into a copy of the package, and audit it."""
    with tempfile.TemporaryDirectory() as place:
        source = _mutated(mutant, Path(place))
        says = []
        for scene in mutant.scenes:
            done = server.audit(scene, source)
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


def _environment(source: Path, rolls: int | None = None) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (source, ROOT / "tests", ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "BLINDSIGHT_AUDIT_ROLLS": str(rolls or os.environ.get("BLINDSIGHT_AUDIT_ROLLS", "60000")),
    }


def _mutated(mutant: Mutant, place: Path) -> Path:
    """A copy of the package with the one replacement made; compiled files come with it."""
    source = place / "src"
    shutil.copytree(
        ROOT / "src" / "blindsight",
        source / "blindsight",
        copy_function=_link,
        # Bytecode that another process is writing has such a name until it is whole; it may be
        # gone before it is linked.
        ignore=shutil.ignore_patterns("*.pyc.*"),
    )
    path = source / "blindsight" / mutant.path
    changed = mutant.applied(path.read_text())
    path.unlink()  # the original is linked here
    path.write_text(changed)
    return source


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


def audit_scene(
    scene: str,
    source: Path = ROOT / "src",
    *,
    seed: int = 0,
    runs: int = 1,
    rolls: int | None = None,
) -> dict[str, list[str]]:
    """The findings on one scene ("hashing:TestPITQ") with the package at `source`, from a process
    of its own.

    With several `runs` the seeds count on from `seed`; `rolls` is how many numbers each mechanism
    draws again.
    """
    module = [sys.executable, "-W", "ignore", "-m", "benchmarks.audit.mutants"]
    command = [*module, "--scene", scene, "--seed", str(seed), "--runs", str(runs)]
    limit = _SECONDS * runs
    try:
        done = subprocess.run(
            command,
            env=_environment(source, rolls),
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
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
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
