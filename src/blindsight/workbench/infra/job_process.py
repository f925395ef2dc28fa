"""The process of one job: told on standard input which, it works, writes progress and result, and
ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from blindsight.core import threads

threads.limit()
os.environ.setdefault("OMP_NUM_THREADS", "1")

from blindsight.core.errors import BlindsightError, BudgetExceeded, MissingDependency  # noqa: E402
from blindsight.workbench.infra.jobs import JobContext, end_with_parent  # noqa: E402
from blindsight.workbench.infra.settings import Settings  # noqa: E402

__all__ = ["KINDS", "main"]

# A kind of job is a page's: its module has `run`.
KINDS = {
    "protect": "protect",
    "tags": "tag_learning",
    "compare": "compare",
    "send": "send",
    "attack": "budget",
}


def main() -> None:
    """Run one job."""
    order = json.loads(sys.stdin.buffer.readline())
    end_with_parent()
    os.nice(
        max(0, 10 - os.nice(0))
    )  # pages come first, but no more than that where all is nice already
    place = JobContext(Settings(**order["settings"]), order["job"], order["attempt"])
    if place.row["kind"] not in KINDS:
        place.fail("there is no such kind of job")
        return
    module = importlib.import_module(f"blindsight.workbench.pages.{KINDS[place.row['kind']]}")
    try:
        place.finish(module.run(place.row["arguments"], place))
    except BudgetExceeded:
        place.fail("the privacy budget does not cover this; nothing was released")
    except MissingDependency as error:
        place.fail(str(error))  # names a package, and how to install it
    except BlindsightError as error:
        place.fail("it could not be done with these settings")
        sys.stderr.write(f"{type(error).__name__}\n")


if __name__ == "__main__":
    main()
