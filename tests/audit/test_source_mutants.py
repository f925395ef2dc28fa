"""Bugs written into copies of the package are caught: some of them here, all in
`benchmarks.audit.mutants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.audit.mutants import SceneServer, outcome_of
from benchmarks.audit.mutations import EARLY, LATE, NEW

SOME = {
    "door-no-clip",
    "entropy-32-bits",
    "flip-per-bit-for-per-record",
    "kary-truth-at-twice-epsilon",
    "phashing-first-code-bare",
    "metric-exact-distances",
    "tagging-exact-counts",
    "federated-one-share",
    "late-sketching-low-bits-bare",
    "last-each-one-stream",
    "last-each-first-bare",
    "last-each-function-forgotten",
    "last-federated-share-cut-off",
    "last-each-value-forgotten",
    "new-door-bare-when-nobody-listens",
    "new-thumbnails-in-the-release",
}
ALL = (*EARLY, *LATE, *NEW)
SOURCE = Path(__file__).parents[2] / "src" / "blindsight"


@pytest.fixture(scope="module")
def server() -> Iterator[SceneServer]:
    with SceneServer() as started:
        yield started


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_mutant_can_still_be_written(mutant) -> None:
    text = (SOURCE / mutant.path).read_text()
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.path, "exec")


@pytest.mark.parametrize(
    "mutant", [m for m in ALL if m.name in SOME], ids=lambda mutant: mutant.name
)
def test_a_bug_in_the_source_is_caught(mutant, server: SceneServer) -> None:
    outcome = outcome_of(mutant, server)
    assert outcome.word == "caught", f"{outcome.word}: {outcome.says}"


def test_mutants_have_names_of_their_own_and_a_third_came_late() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 60
    assert len(LATE) >= len(ALL) * 0.2
    assert len(NEW) >= 50
    assert all(mutant.scenes or mutant.tests for mutant in ALL)
