"""Audits of running code, of shared releases, and of the papers' claims.

An audit can refute a promise but never prove one: its verdicts are "not refuted" and "REFUTED".

- `audit`, `audit_file`: any fitted estimator, mechanism or file, unchanged (`target`).
- `audit_release`, `audit_sketches`, `audit_tags`: a shared release, compared with the owner's
  photos (`release`).
- `audit_door`: code as it runs, by replay on neighbouring data (`engine`).
- `audit_callable`, `audit_measurement`, `audit_training`: code of other libraries (`others`).
- `distinguish`, `audit_in_one_run`, `exact_epsilon`, `likelihood_ratio`: single attacks
  (`engine`).
- `methods/`: attacks, verdicts and figures of each method; `papers`: the table of all five
  papers; `report/`: verdicts and reports.
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
    # Imported on first use: an audit of a file needs no training code.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(core_module(f"{__name__}.{_HOMES[name]}"), name)
