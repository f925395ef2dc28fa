"""The engine of the audit: at the door, by replay, by a second accountant.

- `door`: `audit_door(run, data, neighbours, strangers)`, the audit of what really runs.
- `neighbours`: neighbours and strangers of any arrays, at extremes.
- `listeners`: who stands at the door: recording, replaying.
- `exits`: everything by which a run can tell, byte by byte, with entropy frozen.
- `dice`: noise against its stated law, sources of entropy.
- `accountant`: a second opinion on prices, sharing no code with the first.
"""

from __future__ import annotations

from blindsight.audit.engine.door import DoorAudit, Finding, Neighbour, Reached, audit_door
from blindsight.audit.engine.neighbours import neighbours_of, strangers_of

__all__ = [
    "DoorAudit",
    "Finding",
    "Neighbour",
    "Reached",
    "audit_door",
    "neighbours_of",
    "strangers_of",
]
