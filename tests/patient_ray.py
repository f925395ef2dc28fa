"""Start Ray again where the machine was too busy for it.

Ray gives each of its own processes 15 to 30 seconds to start, whatever else the machine does, and
no setting changes it ("timed out during startup", "Timed out waiting for file").

    patient_ray.start(num_cpus=2)    # as ray.init
    patient_ray.install()            # for a library that calls ray.init itself
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

__all__ = ["install", "start"]

_SECONDS = 600
# Their processes and open files would warn when they are collected, within whatever test that
# happens in: they are held until the end, by the tracebacks.
_failed_starts: list[Exception] = []


def start(*words: Any, init: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Call `ray.init`, or the function given, until it is in time, for ten minutes at most."""
    import ray

    init, latest = init or ray.init, time.monotonic() + _SECONDS
    while True:
        try:
            return init(*words, **options)
        except Exception as error:
            if "timed out" not in str(error).lower() or time.monotonic() > latest:
                raise
            _failed_starts.append(error)
            ray.shutdown()


def install() -> None:
    """Replace `ray.init` in this process."""
    import ray

    ray.init = functools.partial(start, init=ray.init)
