"""The engine of the audit: at the door, by replay, by a second accountant.

- `door`: `audit_door(run, data, neighbours=, unrelated=)`, the audit of what really runs.
- `neighbours`: neighbours of any arrays, at extremes, and unrelated data sets.
- `listeners`: who stands at the door: recording, replaying, charging a ledger, nobody.
- `outputs`: every output of a run, byte by byte, with entropy frozen.
- `noise_tests`: noise against its stated distribution, and sources of entropy.
- `accountant`: a second opinion on prices, sharing no code with the first.
"""

from __future__ import annotations

from blindsight.audit.engine.door import DoorAudit, Finding, Neighbour, Reached, audit_door
from blindsight.audit.engine.neighbours import neighbours_of, unrelated_datasets
from blindsight.audit.engine.outputs import watch

__all__ = [
    "DoorAudit",
    "Finding",
    "Neighbour",
    "Reached",
    "audit_door",
    "neighbours_of",
    "unrelated_datasets",
    "watch",
]
