"""The bugs that are planted, by part of the package."""

from __future__ import annotations

from benchmarks.audit.mutations import federated, hashing, metric, privacy, sketching, tagging
from benchmarks.audit.mutations.mutant import Mutant
from benchmarks.audit.mutations.outputs_and_state import NEW

__all__ = ["EARLY", "LATE", "NEW", "NOT_CAUGHT", "Mutant"]

_PARTS = (privacy, hashing, metric, tagging, sketching, federated)
EARLY: tuple[Mutant, ...] = tuple(mutant for part in _PARTS for mutant in part.EARLY)
LATE: tuple[Mutant, ...] = tuple(mutant for part in _PARTS for mutant in part.LATE)

#: why, as far as it is known.
NOT_CAUGHT = {
    "late-pitq-cross-sensitivity": "no bug: the door clips every row to what the plan states, and "
    "adds noise for that",
    "late-tagging-spread-unclipped": "no bug: the door clips every row to what the plan states",
    "last-bulk-one-name-per-shard": "no bug any more: the door releases a name that stands several "
    "times once",
}
