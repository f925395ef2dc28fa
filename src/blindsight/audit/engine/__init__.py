"""The audit engine: it records and replays releases, and recomputes their cost independently.

- `door`: `audit_door(run, data, neighbours=, unrelated=)` audits the code as it runs; also makes
  extreme neighbours of any arrays, and unrelated data sets.
- `listeners`: objects attached to every door that record or replay releases or charge a ledger.
- `outputs`: every output of a run, byte by byte, with entropy frozen.
- `independent_checks`: noise against its stated distribution, sources of entropy, and a second
  accountant that shares no code with the first.
"""

from __future__ import annotations

from blindsight.audit.engine.door import (
    DoorAudit,
    DoorFinding,
    Neighbour,
    Reached,
    audit_door,
    neighbours_of,
    unrelated_datasets,
)
from blindsight.audit.engine.outputs import watch

__all__ = [
    "DoorAudit",
    "DoorFinding",
    "Neighbour",
    "Reached",
    "audit_door",
    "neighbours_of",
    "unrelated_datasets",
    "watch",
]
