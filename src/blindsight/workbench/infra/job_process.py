"""The process of one job, or of this site's part in one run of training together.

It reads from standard input what to do, writes progress and result, and ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from blindsight.app.hosting import limit_threads

limit_threads()
os.environ.setdefault("OMP_NUM_THREADS", "1")

from blindsight.core.errors import (  # noqa: E402
    BlindsightError,
    BudgetExceeded,
)
from blindsight.workbench.infra.jobs import JobContext, end_with_parent  # noqa: E402
from blindsight.workbench.infra.settings import WorkbenchSettings  # noqa: E402

__all__ = ["KINDS", "main"]

# The module of the page that runs each kind of job by its function `run`.
KINDS = {
    "protect": "protect",
    "tags": "tags",
    "compare": "compare",
    "send": "send",
    "attack": "budget",
}


def main() -> None:
    """Run the job, or this site's part in a run, that standard input names."""
    order = json.loads(sys.stdin.buffer.readline())
    end_with_parent()
    # Jobs yield to pages; the niceness that the process already has counts.
    niceness = order["niceness"] if "folder" in order else order["settings"]["job_niceness"]
    os.nice(max(0, niceness - os.nice(0)))
    if "folder" in order:
        from blindsight.app.federation_site import take_part

        take_part(Path(order["folder"]), order["bind"])
        os._exit(0)  # threads may still wait for a message that is not needed
    job = JobContext(WorkbenchSettings(**order["settings"]), order["job"], order["attempt"])
    if (job.row["state"], job.row["attempts"]) != ("running", order["attempt"]):
        return  # stopped, or taken over, before this process had started
    if job.row["kind"] not in KINDS:
        job.fail("there is no such kind of job")
        return
    module = importlib.import_module(f"blindsight.workbench.pages.{KINDS[job.row['kind']]}")
    try:
        job.finish(module.run(job.row["arguments"], job))
    except BudgetExceeded as error:
        job.fail(f"The privacy budget does not cover this; nothing was released. {error}")
    except BlindsightError as error:
        # These errors say what was expected, what was found (which photo, which setting) and what
        # to do. Jobs are shown to the owner of the data set, who may know all that.
        job.fail(str(error))
        sys.stderr.write(f"{type(error).__name__}\n")
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else "a file"
        job.fail(
            f"{name} could not be read or written ({error.strerror or type(error).__name__}). "
            "Check that it is there, that its rights allow it and that the disk is not full; then "
            "run the job again."
        )
        sys.stderr.write(f"{type(error).__name__}\n")


if __name__ == "__main__":
    main()
