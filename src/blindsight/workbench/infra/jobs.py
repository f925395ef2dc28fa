"""Background jobs that survive a restart: each job is a row, each attempt is a process.

The state of a job is in the database, its files are in a folder. When the workbench stops, running
jobs go back into the queue. After a crash they are run again at the next start, and after three
attempts marked as interrupted. Several workbenches may share a database: a job belongs to the
workbench that changed its row from queued to running, as long as it renews the lease; a process
whose job was taken over writes nothing more. Work on a data set waits for the workbench that has
its photos. The event loop never waits for the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import secrets
import shutil
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from blindsight.app.hosting import write_file
from blindsight.workbench.infra.database import JOB_EVENTS, JOBS, PURPOSE, AccessLog, Database
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = ["ENDED", "Job", "JobContext", "Jobs", "end_with_parent", "start_child"]

Job = dict[str, Any]
ENDED = ("done", "failed", "stopped", "interrupted")
_log = logging.getLogger("blindsight.workbench")
#: Steps of jobs that charge a budget.
CHARGING_STEPS = ("release", "learn", "publish", "statistics")
_MOST_TRIES = 3
_FOLDERS_KEPT = 200  # rows are never deleted; the files of older jobs are
_LEASE, _RENEWAL = 60.0, 10.0
_LONGEST_NOTE = 1000


class Jobs:
    """The queue and its runner; one job runs at a time, so that pages stay fast."""

    def __init__(self, database: Database, settings: WorkbenchSettings) -> None:
        self.database, self.settings = database, settings
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._running: str | None = None
        self._stopping = False

    @functools.cached_property
    def runner(self) -> str:
        """The name of this workbench among those that share the database."""
        path = self.settings.state / "runner"
        if not path.exists():
            write_file(path, secrets.token_hex(8).encode())
        return path.read_text(encoding="ascii")

    def add(self, kind: str, arguments: dict[str, Any], asker: str, *, limited: bool = True) -> Job:
        """Put a job into the queue, with the purpose of the present request.

        Parameters:
            kind: the kind of job, such as "protect".
            arguments: what the job gets.
            asker: who requested it.
            limited: refuse the job if too many wait.

        Raises:
            Problem: "purpose_needed", if the job charges a budget and no purpose is stated; "busy",
                if too many jobs wait.
        """
        purpose = PURPOSE.get()
        charges = arguments.get("step", "learn") in CHARGING_STEPS and kind != "attack"
        if charges and self.settings.require_purpose and not purpose:
            raise Problem("purpose_needed")
        with self.database.begin(alone=True) as connection:  # no two jobs get one number
            waiting = connection.execute(
                sql.select(sql.func.count()).where(JOBS.c.state.in_(("queued", "running")))
            ).scalar_one()
            if limited and waiting >= self.settings.job_limit:
                raise Problem("busy")
            number = (connection.execute(sql.select(sql.func.max(JOBS.c.number))).scalar() or 0) + 1
            row: dict[str, Any] = {
                "id": secrets.token_hex(8),
                "number": number,
                "kind": kind,
                "arguments": json.dumps(arguments, sort_keys=True),
                "asker": asker,
                "state": "queued",
                "note": "waiting for other work to end" if waiting else "waiting",
                "made": _now(),
                "runner": self.runner if "dataset" in arguments else None,
                "purpose": purpose or None,
                "dataset": arguments.get("dataset"),
            }
            connection.execute(sql.insert(JOBS).values(row))
            connection.execute(sql.insert(JOB_EVENTS).values(_event(row["id"], 0, row)))
        self._wake_up()
        return self.get(row["id"])

    def get(self, job: str) -> Job:
        """Return a job by its number; raise `Problem("not_found")` if there is none."""
        rows = self.database.rows(sql.select(JOBS).where(JOBS.c.id == job))
        if not rows:
            raise Problem("not_found")
        return _read(rows[0])

    def listed(
        self,
        kind: str | None = None,
        *,
        state: str | None = None,
        datasets: frozenset[str] | None = None,
        before: int | None = None,
        most: int = 50,
    ) -> list[Job]:
        """Return jobs, the latest first.

        Parameters:
            kind: only jobs of this kind.
            state: only jobs in this state.
            datasets: only jobs of these data sets.
            before: only jobs with a lower number, for the next page.
            most: the largest number of jobs.
        """
        query = sql.select(JOBS).order_by(JOBS.c.number.desc()).limit(most)
        if kind is not None:
            query = query.where(JOBS.c.kind == kind)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        if datasets is not None:
            query = query.where(JOBS.c.dataset.in_(sorted(datasets)))
        if before is not None:
            query = query.where(JOBS.c.number < before)
        return [_read(row) for row in self.database.rows(query)]

    def history(self, job: str) -> list[dict[str, Any]]:
        """Return the events of a job in order: time, attempt, state and note."""
        columns = (JOB_EVENTS.c[name] for name in ("time", "attempt", "state", "note"))
        query = sql.select(*columns).where(JOB_EVENTS.c.job == job).order_by(JOB_EVENTS.c.id)
        return self.database.rows(query)

    def under_way(self, kind: str, **arguments: Any) -> Job | None:
        """Return the newest job with these arguments unless it is done, for a page to follow or to
        run again.
        """
        dataset = arguments.get("dataset")
        jobs = self.listed(kind, datasets=None if dataset is None else frozenset((dataset,)))
        matching = (job for job in jobs if arguments.items() <= job["arguments"].items())
        newest = next(matching, None)
        return None if newest is None or newest["state"] == "done" else newest

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state."""
        query = sql.select(JOBS.c.state, sql.func.count().label("n")).group_by(JOBS.c.state)
        return {row["state"]: row["n"] for row in self.database.rows(query)}

    def rerun(self, job: str) -> Job:
        """Put an ended job back into the queue."""
        fresh: dict[str, Any] = {"attempts": 0, "done": 0, "total": 0, "ended": None}
        self.get(job)  # whether there is one
        if not self._set(job, only=ENDED, state="queued", note="waiting", **fresh):
            raise Problem("conflict")
        self._wake_up()
        return self.get(job)

    async def stop_job(self, job: str) -> Job:
        """Stop a job that is queued or running."""
        await asyncio.to_thread(self.get, job)  # whether there is one
        values: dict[str, Any] = {"state": "stopped", "ended": _now()}
        values["note"] = "stopped on request"
        if not await asyncio.to_thread(self._set, job, only=("queued", "running"), **values):
            raise Problem("conflict")
        if self._running == job:
            await self._end_process()
        return await asyncio.to_thread(self.get, job)

    def folder(self, job: str) -> Path:
        """Return the folder of a job's files."""
        return self.settings.state / "jobs" / job

    async def start(self) -> None:
        """Queue interrupted jobs again, and start to work."""
        await asyncio.to_thread(self._take_up, own=True)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """End the running job, which goes back into the queue for the next start."""
        self._stopping = True
        if self._running is not None:
            note = "the workbench was stopped; waiting to go on"
            await asyncio.to_thread(
                self._set, self._running, only=("running",), state="queued", note=note
            )
        await self._end_process()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def claim(self) -> dict[str, Any] | None:
        """Claim the next job for this workbench, and return its row; None if there is none.

        If two workbenches try, only one of them changes the row.
        """
        query = sql.select(JOBS).where(JOBS.c.state == "queued")
        query = query.order_by(JOBS.c.number).limit(200)
        for row in self.database.rows(query):
            if row["runner"] not in (None, self.runner) and "dataset" in json.loads(
                row["arguments"]
            ):
                continue  # another workbench has its photos
            values = {
                "state": "running",
                "note": "starting",
                "attempts": row["attempts"] + 1,
                "runner": self.runner,
            }
            values["lease"] = time.time() + _LEASE
            if self._set(row["id"], only=("queued",), **values):
                return {**row, **values}
        return None

    def _wake_up(self) -> None:
        """Have the queue looked at; from any thread, because requests run in threads."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the job waits
                self._loop.call_soon_threadsafe(self._wake.set)

    def _take_up(self, *, own: bool = False) -> None:
        """Queue jobs again whose lease expired and, with `own`, those of this workbench."""
        lost = JOBS.c.lease.is_(None) | (JOBS.c.lease < time.time())
        lost = (JOBS.c.state == "running") & (
            lost | (JOBS.c.runner == self.runner) if own else lost
        )
        with self.database.begin() as connection:
            for tries, values in (
                (
                    JOBS.c.attempts >= _MOST_TRIES,
                    {
                        "state": "interrupted",
                        "note": "interrupted by restarts; run it again",
                        "ended": _now(),
                    },
                ),
                (
                    JOBS.c.attempts < _MOST_TRIES,
                    {
                        "state": "queued",
                        "note": "interrupted by a restart; waiting to run again",
                    },
                ),
            ):
                rows = connection.execute(
                    sql.select(JOBS.c.id, JOBS.c.attempts).where(lost, tries)
                ).all()
                for row in rows:
                    connection.execute(
                        sql.update(JOBS).where(JOBS.c.id == row.id, lost).values(**values)
                    )
                    connection.execute(
                        sql.insert(JOB_EVENTS).values(_event(row.id, row.attempts, values))
                    )

    async def _work(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await asyncio.to_thread(self._take_up)
                row = await asyncio.to_thread(self.claim)
            except sql.exc.SQLAlchemyError as error:  # the database may come back
                _log.error("the queue cannot be read: %s", type(error).__name__)
                row = None
            if row is not None:
                await self._run(row)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 5.0)

    async def _run(self, row: dict[str, Any]) -> None:
        job = row["id"]
        self._running = job
        folder = self.folder(job)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        order = {"settings": self.settings.to_fields(), "job": job, "attempt": row["attempts"]}
        process = await start_child("job_process", order, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None  # noqa: S101  (a pipe was asked for)
        self._process = process
        renewal = asyncio.create_task(self._renew(job))
        words = await process.stderr.read()
        code = await process.wait()
        renewal.cancel()
        self._process, self._running = None, None
        if code and not self._stopping:
            _log.warning("a %s job ended with exit code %d", row["kind"], code)
            (folder / "stderr.txt").write_bytes(words[-20_000:])
            last = (await asyncio.to_thread(self.get, job))["note"]
            note = unexpected_end(last, words, code, folder)
            await asyncio.to_thread(
                self._set, job, only=("running",), state="failed", note=note, ended=_now()
            )
        await asyncio.to_thread(self._forget_files)

    async def _renew(self, job: str) -> None:
        """Renew the lease; end the process if the job no longer belongs to this workbench."""
        while True:
            await asyncio.sleep(_RENEWAL)
            with contextlib.suppress(sql.exc.SQLAlchemyError):
                lease = time.time() + _LEASE
                own = functools.partial(self._set, job, only=("running",), owned=True)
                if await asyncio.to_thread(own, lease=lease):
                    continue
                if (await asyncio.to_thread(self.get, job))["state"] not in ("done", "failed"):
                    await self._end_process()  # stopped, or taken over
                return

    async def _end_process(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        for _ in range(20):
            await asyncio.sleep(0.1)
            if process.returncode is not None:
                return
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    def _forget_files(self) -> None:
        """Delete the folders of all but the latest ended jobs; rows and history stay."""
        folders = self.settings.state / "jobs"
        present = {path.name for path in folders.iterdir()} if folders.is_dir() else set()
        if len(present) <= _FOLDERS_KEPT:
            return
        query = sql.select(JOBS.c.id).where(JOBS.c.state.in_(ENDED)).order_by(JOBS.c.number.desc())
        ended = [row["id"] for row in self.database.rows(query) if row["id"] in present]
        for job in ended[_FOLDERS_KEPT:]:
            shutil.rmtree(self.folder(job), ignore_errors=True)

    def _set(
        self, job: str, *, only: tuple[str, ...] = (), owned: bool = False, **values: Any
    ) -> bool:
        """Change the row of a job, and return whether it was changed.

        Parameters:
            job: the job's number.
            only: change it only in one of these states; in any by default.
            owned: change it only if it belongs to this workbench.
            values: the new values.
        """
        statement = sql.update(JOBS).where(JOBS.c.id == job)
        if only:
            statement = statement.where(JOBS.c.state.in_(only))
        if owned:
            statement = statement.where(JOBS.c.runner == self.runner)
        with self.database.begin() as connection:
            changed = bool(connection.execute(statement.values(**values)).rowcount)
            if changed and "state" in values:
                attempt = connection.execute(
                    sql.select(JOBS.c.attempts).where(JOBS.c.id == job)
                ).scalar_one()
                connection.execute(sql.insert(JOB_EVENTS).values(_event(job, attempt, values)))
            return changed


class JobContext:
    """What a running job uses: its row, its folder, the settings, and functions to report progress.

    Parameters:
        settings: the settings of the workbench.
        job: the job's number.
        attempt: the number of the attempt that this process is.
    """

    def __init__(self, settings: WorkbenchSettings, job: str, attempt: int) -> None:
        self._attempt = attempt
        self.database = Database(settings.database_url)
        self.row = _read(self.database.rows(sql.select(JOBS).where(JOBS.c.id == job))[0])
        self.job, self.folder = job, settings.state / "jobs" / job
        self.actor = str(self.row["asker"])  # who is named in the ledger
        # The library takes the purpose of its charges from the settings.
        purpose = self.row["purpose"] or settings.purpose
        self.settings = settings.model_copy(update={"purpose": purpose})
        self._last = 0.0
        self._stage = ""
        self._plan: tuple[tuple[str, int], ...] = ()
        self._step = 0
        self._guard = threading.Lock()

    def say(self, done: int, total: int, note: str, result: Any = None) -> None:
        """Write progress, at most ten times per second unless it is complete or has a result."""
        with self._guard:
            now = time.monotonic()
            if result is None and done < total and now - self._last < 0.1:
                return
            self._last = now
        values: dict[str, Any] = {"done": done, "total": total, "note": note}
        if result is not None:
            values["result"] = json.dumps(result, allow_nan=False)
        self._write(values)

    def plan(self, *steps: tuple[str, int]) -> None:
        """Set the steps of this job in order, so that progress is a fraction of all steps.

        Parameters:
            steps: for each step how the name of its stage begins, and about how long it takes
                relative to the others.
        """
        self._plan, self._step = steps, 0

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report progress as the functions of `blindsight.app` do: within the planned steps, or as
        `done` of `total` without a plan.
        """
        if stage != self._stage:
            self._stage, self._last = stage, 0.0  # the first progress of a stage is always written
        if not self._plan:
            number = min(done + 1, max(1, total))
            self.say(done, total, f"Step {number} of {total}: {stage}" if total > 1 else stage)
            return
        later = range(self._step, len(self._plan))
        self._step = next((i for i in later if stage.startswith(self._plan[i][0])), self._step)
        counted = f", {done:,} of {total:,}" if total > 1 and done else ""
        note = f"Step {self._step + 1} of {len(self._plan)}: {stage}{counted}"
        within = min(1.0, done / total) if total else 0.0
        weights = [weight for _, weight in self._plan]
        reached = sum(weights[: self._step]) + within * weights[self._step]
        self.say(round(1000 * reached / sum(weights)), 1000, note)

    def finish(self, result: Any) -> None:
        """Mark the job as done, with its result."""
        self._record("done")
        self._write(
            {
                "state": "done",
                "note": "done",
                "result": json.dumps(result, allow_nan=False),
                "ended": _now(),
            }
        )

    def fail(self, note: str) -> None:
        """Mark the job as failed; the note says what was wrong and what to do."""
        self._record("failed")
        self._write({"state": "failed", "note": note[:_LONGEST_NOTE], "ended": _now()})

    def _record(self, outcome: str) -> None:
        """Write the end of the job into the access log."""
        arguments = self.row["arguments"]
        release = arguments.get("release")
        number = release.get("id", "") if isinstance(release, dict) else release or ""
        step = f" {arguments['step']}" if "step" in arguments else ""
        with AccessLog(self.database) as log:
            log.append(
                actor=self.actor,
                action=f"job {self.row['kind']}{step}",
                dataset=str(self.row["dataset"] or ""),
                release=str(number),
                outcome=outcome,
                purpose=self.settings.purpose,
            )

    def _write(self, values: dict[str, Any]) -> None:
        with self.database.begin() as connection:
            # Only the process of the present attempt writes: one that lost its lease was replaced.
            current = (
                (JOBS.c.id == self.job)
                & (JOBS.c.state == "running")
                & (JOBS.c.attempts == self._attempt)
            )
            changed = connection.execute(sql.update(JOBS).where(current).values(**values)).rowcount
            if changed and "state" in values:
                event = _event(self.job, self._attempt, values)
                connection.execute(sql.insert(JOB_EVENTS).values(event))


def unexpected_end(last: str, errors: bytes, code: int, folder: Path) -> str:
    """Return the note of a job whose process ended without a result.

    Parameters:
        last: the last progress that it reported, such as "reading photos: 17 of 40".
        errors: its standard error, of which only the type of the error is quoted.
        code: its exit code.
        folder: where its standard error is stored.
    """
    if code == -9:
        cause = "the operating system ended it, most often because memory ran out"
        advice = "Close other programs or use fewer photos, and run it again."
    else:
        line = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        kind = line.partition(":")[0].strip()
        cause = f"an unexpected {kind if kind.isidentifier() else 'error'} ended it"
        advice = (
            "Run it again; if it happens again, report it with "
            f"{folder / 'stderr.txt'} (look through that file first)."
        )
    return f"After “{last}”, {cause}. {advice}"[:_LONGEST_NOTE]


async def start_child(
    module: str, order: dict[str, Any], *, stderr: int = asyncio.subprocess.DEVNULL
) -> asyncio.subprocess.Process:
    """Start a process of the workbench, and write its order to its standard input.

    Standard input stays open: when the workbench ends, the process reads its end and exits, too
    (`end_with_parent`).
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"blindsight.workbench.infra.{module}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101  (a pipe was asked for)
    process.stdin.write(json.dumps(order).encode() + b"\n")
    with contextlib.suppress(ConnectionError):
        await process.stdin.drain()
    return process


def end_with_parent() -> None:
    """Exit when standard input ends, because the workbench has ended."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held here, would keep the interpreter from exiting.
        while os.read(0, 4096):
            pass
        os._exit(75)

    threading.Thread(target=watch, daemon=True).start()


def _read(row: dict[str, Any]) -> Job:
    return {
        **row,
        "arguments": json.loads(row["arguments"]),
        "result": json.loads(row["result"]) if row["result"] else None,
    }


def _event(job: str, attempt: int, values: dict[str, Any]) -> dict[str, Any]:
    return {
        "job": job,
        "time": _now(),
        "attempt": attempt,
        "state": values["state"],
        "note": str(values.get("note", "")),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
