"""Thread limits before anything numeric is imported, and examples that do not depend on the machine's mood."""

from __future__ import annotations

import os

from hypothesis import settings

from blindsight.core import threads

threads.limit()
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# No deadline: two busy cores are not a bug. In CI the same examples every time.
settings.register_profile("blindsight", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("blindsight")
