"""Thread limits before anything numeric is imported, and no telemetry from anyone."""

from __future__ import annotations

import os

from blindsight import threads

threads.limit()
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
