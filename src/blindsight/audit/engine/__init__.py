"""The engine of the audit: at the door, by replay, by a second accountant.

- `door`: `audit_door(run, data, neighbours=, unrelated=)`, the audit of what really runs;
  neighbours of any arrays, at extremes, and unrelated data sets.
- `listeners`: who stands at the door: recording, replaying, charging a ledger, nobody.
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
