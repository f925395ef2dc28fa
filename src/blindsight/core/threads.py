"""How many threads the numeric libraries may use: one place, before they are imported.

On a busy machine with few cores, OpenMP threads that spin while they wait cost more than they bring
(ten times on two cores). Waiting passively and keeping BLAS at one thread is the better default;
whoever knows better sets the variables first, and they are kept.
"""

from __future__ import annotations

import os

__all__ = ["limit"]


def limit(blas: int = 1) -> None:
    """Set the usual variables, unless the user has set them.

    Call before numpy or torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(blas))
