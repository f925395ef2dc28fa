"""How many threads the numeric libraries use. It must be set before they are imported.

On a busy machine with few cores, OpenMP threads that spin while they wait slow the program down
(tenfold on two cores). By default they wait passively, and BLAS uses one thread. Variables that the
user has set are kept.
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
