"""Attackers on sketches: what anyone who holds them gets back of the images. All are run; the best
one counts.

| attacker | knows |
|---|---|
| posterior mean | the parameters: the paper's attacker |
| smoothing | that neighbours are alike |
| denoising, second reading | that few cosines make up a patch of a photo |
| network | public images of the same kind |
"""

from __future__ import annotations

from blindsight.sketching.attackers.suite import (
    ATTACKS,
    Recovered,
    Suite,
    measure,
    measured_verdict,
)

__all__ = ["ATTACKS", "Recovered", "Suite", "measure", "measured_verdict"]
