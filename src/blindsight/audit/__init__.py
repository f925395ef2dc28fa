"""The audit: what really runs, what was shared, and the papers' claims.

An audit can refute a promise, never prove one: its words are "not refuted" and "REFUTED".

- `audit`, `audit_file`: any fitted estimator, mechanism or file, unchanged (`target`).
- `audit_release`, `audit_sketches`, `audit_tags`: what was shared, with the photos as the truth
  (`release`).
- `audit_door`: what really runs, at the door and by replay (`engine`).
- `audit_callable`, `audit_measurement`, `audit_training`: what others built (`others`).
- `distinguish`, `audit_in_one_run`, `exact_epsilon`, `likelihood_ratio`: the attacks by themselves
  (`engine`).
- `methods/`: attacks, verdicts and figures of each part; `papers`: the table of all five;
  `report/`: what is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.core.checks import core_module

if TYPE_CHECKING:
    from blindsight.audit.engine import audit_door, neighbours_of, unrelated_datasets
    from blindsight.audit.engine.blackbox import (
        audit_in_one_run,
        distinguish,
        exact_epsilon,
        likelihood_ratio,
    )
    from blindsight.audit.others import audit_callable, audit_measurement, audit_training
    from blindsight.audit.release import audit_release, audit_sketches, audit_tags
    from blindsight.audit.target import Audit, audit, audit_file

__all__ = [
    "Audit",
    "audit",
    "audit_callable",
    "audit_door",
    "audit_file",
    "audit_in_one_run",
    "audit_measurement",
    "audit_release",
    "audit_sketches",
    "audit_tags",
    "audit_training",
    "distinguish",
    "exact_epsilon",
    "likelihood_ratio",
    "neighbours_of",
    "unrelated_datasets",
]

_HOMES = {
    **dict.fromkeys(("audit_door", "neighbours_of", "unrelated_datasets"), "engine"),
    **dict.fromkeys(
        ("audit_in_one_run", "distinguish", "exact_epsilon", "likelihood_ratio"), "engine.blackbox"
    ),
    **dict.fromkeys(("audit_callable", "audit_measurement", "audit_training"), "others"),
    **dict.fromkeys(("audit_release", "audit_sketches", "audit_tags"), "release"),
    **dict.fromkeys(("Audit", "audit", "audit_file"), "target"),
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: an audit of a file needs no training, and the workbench only one of
    # them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(core_module(f"{__name__}.{_HOMES[name]}"), name)
