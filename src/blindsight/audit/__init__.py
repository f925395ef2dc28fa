"""The attacks, and the table of claimed, proven and audited.

An audit can refute a promise, never prove one: its words are "not refuted" and "REFUTED".

- `exact`: likelihood ratios from a mechanism's own distribution.
- `blackbox`: any `run(data, rng)` on two neighbours, told apart.
- `onerun`: one training with canaries.
- `replay`: the same run on a neighbour with the noise frozen.
- `target`: any fitted estimator, mechanism or file, unchanged: `audit`, `audit_file`; `evidence` makes its report.
- `bounds`: from counts to a lower bound on epsilon.
"""

from __future__ import annotations

from blindsight.audit.blackbox import distinguish
from blindsight.audit.exact import exact_epsilon, likelihood_ratio
from blindsight.audit.onerun import audit_in_one_run
from blindsight.audit.replay import refuses_nan, replay
from blindsight.audit.target import Audit, audit, audit_file

__all__ = [
    "Audit",
    "audit",
    "audit_file",
    "audit_in_one_run",
    "distinguish",
    "exact_epsilon",
    "likelihood_ratio",
    "refuses_nan",
    "replay",
]
