"""Jobs: progress, stop, run again; and what a restart or a crash interrupts is taken up."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

import warm
from blindsight.workbench.infra.database import JOBS
from blindsight.workbench.infra.jobs import JobContext, start_child, unexpected_end
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.pages import protect
from workbench import web
from workbench.asgi import Client, run
from workbench.photos import album, light, scanned  # noqa: F401

SMALL = {"side": 64}
# A job of the page Send goes on until it is ended.
ENDLESS = """
import time
from blindsight.workbench.pages import send
def run(arguments, job):
    while True:
        time.sleep(1)
send.run = run
"""


def wait(url: str, job: str, *states: str) -> dict[str, Any]:
    for _ in range(12_000):
        found = web.get(f"{url}/api/jobs/{job}").json()
        if found["state"] in states:
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_a_job_is_taken_up_after_a_stop_and_after_a_crash(
    serve: Callable[..., Any], stocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(warm.FIRST, ENDLESS)
    first = serve(stocked)
    number = next((stocked / "vaults").glob("*/about.json")).parent.name
    long = web.post(f"{first.url}/api/send/{number}/try?side=128").json()["job"]
    choice = {"epsilon": 2, "sure": True}
    small = web.post(f"{first.url}/api/protect/{number}/release", json=choice).json()["job"]
    wait(first.url, long, "running")
    first.kill()
    second = serve(stocked)
    found = wait(second.url, long, "running")
    assert found["note"] != ""
    assert second.stop() == 0
    third = serve(stocked)
    assert wait(third.url, long, "running", "queued")
    stopped = web.post(f"{third.url}/api/jobs/{long}/stop").json()
    assert stopped["state"] == "stopped"
    assert wait(third.url, small, "done")["result"] == {"photos": 24}
    assert web.get(f"{third.url}/api/jobs/{small}/files/stderr.txt").status_code == 404
    before = web.get(f"{third.url}/api/jobs/{small}/history").json()
    assert web.post(f"{third.url}/api/jobs/{small}/rerun").status_code == 200
    assert wait(third.url, small, "done")["result"] == {"photos": 24}
    after = web.get(f"{third.url}/api/jobs/{small}/history").json()
    # Not read from the answer: the job begins at once, as no other one waits.
    states = [event["state"] for event in after[len(before) :]]
    assert states == ["queued", "running", "done"]


def test_a_job_has_an_interpreter_of_its_own(make: Callable[..., Any]) -> None:
    """Not forked from one that has imported everything, as the jobs of other tests are."""
    jobs = make().state.workbench.jobs
    job = jobs.add("juggle", SMALL, "local")["id"]
    run(jobs._run(jobs.claim()))
    ended = jobs.get(job)
    assert (ended["state"], ended["note"]) == ("failed", "there is no such kind of job")


def test_a_job_that_is_stopped_while_its_process_starts_releases_nothing(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=2))
    order = {"epsilon": 2, "sure": True, "accept_chance": True}
    job = Client(app).post(f"/api/protect/{one.id}/release", json=order).json()["job"]
    jobs, start = app.state.workbench.jobs, start_child

    async def overtaken(*arguments: Any, **options: Any) -> Any:
        assert (await jobs.stop_job(job))["state"] == "stopped"
        return await start(*arguments, **options)

    monkeypatch.setattr("blindsight.workbench.infra.jobs.start_child", overtaken)
    # Ten seconds later the lease is renewed, which would show that the job was stopped.
    monkeypatch.setattr("blindsight.workbench.infra.jobs._RENEWAL", 3600.0)
    monkeypatch.setattr(sys, "executable", warm.python())
    run(jobs._run(jobs.claim()))
    assert jobs.get(job)["state"] == "stopped"
    assert app.state.workbench.datasets.get(one.id).releases == ()
    spent = app.state.workbench.budgets.named(one.account).balance("record").spent.epsilon
    assert spent == 0, "nothing was charged"


def test_a_job_that_dies_again_and_again_is_marked_and_can_be_run_again(
    make: Callable[..., Any],
) -> None:
    app = make()
    jobs = app.state.workbench.jobs
    job = jobs.add("send", SMALL, "local")["id"]
    with app.state.workbench.database.begin() as connection:
        connection.execute(sql.update(JOBS).values(state="running", attempts=3))
    jobs._stopping = True  # look at the start only, run nothing
    run(jobs.start())
    run(jobs.close())
    assert jobs.get(job)["state"] == "interrupted"
    answer = Client(app).post(f"/api/jobs/{job}/rerun")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert Client(app).post(f"/api/jobs/{job}/rerun").status_code == 409


def test_a_job_is_ordered_from_any_thread_and_begun_at_once(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests run in threads, and asyncio's events may be set in the thread of their loop only."""
    jobs = make().state.workbench.jobs
    looked: list[None] = []
    threads: list[int] = []
    wake = jobs._wake.set

    def recorded() -> None:
        threads.append(threading.get_ident())
        wake()

    monkeypatch.setattr(jobs, "claim", lambda: looked.append(None))
    monkeypatch.setattr(jobs._wake, "set", recorded)

    async def order() -> None:
        await jobs.start()
        while not jobs._wake._waiters:
            await asyncio.sleep(0.01)
        before = len(looked)
        await asyncio.to_thread(jobs.add, "send", SMALL, "local")
        while len(looked) == before:
            await asyncio.sleep(0.01)
        await jobs.close()

    asyncio.run(order())
    assert threads == [threading.get_ident()]


def test_a_job_that_changes_while_it_is_stopped_or_run_again_stays_as_it_is(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make()
    jobs = app.state.workbench.jobs
    look, job = jobs.get, jobs.add("send", SMALL, "local")["id"]
    assert jobs.claim()["id"] == job
    context = JobContext(app.state.workbench.settings, job, 1)

    def overtaken(number: str, then: Callable[[], Any]) -> dict[str, Any]:
        found: dict[str, Any] = look(number)
        monkeypatch.setattr(jobs, "get", look)
        then()
        return found

    monkeypatch.setattr(jobs, "get", lambda n: overtaken(n, lambda: context.finish({"made": 1})))
    with pytest.raises(Problem) as refused:
        run(jobs.stop_job(job))
    assert (refused.value.code, look(job)["state"]) == ("conflict", "done")
    context.database.close()
    monkeypatch.setattr(jobs, "get", lambda n: overtaken(n, lambda: jobs.rerun(job)))
    with pytest.raises(Problem) as refused:
        jobs.rerun(job)
    assert refused.value.code == "conflict"
    assert [event["state"] for event in jobs.history(job)].count("queued") == 2, "run again once"


def test_jobs_that_are_ordered_at_once_have_numbers_of_their_own(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = make(job_limit=1).state.workbench.jobs
    draw, others = secrets.token_hex, []

    def overtaken(size: int) -> str:
        if not others:  # after the numbers were read, and before the job is written
            others.append(threading.Thread(target=order))
            others[0].start()
            others[0].join(1.0)  # it waits for the end of this one
        return draw(size)

    def order() -> None:
        with contextlib.suppress(Problem):
            jobs.add("send", SMALL, "ben")

    assert jobs.runner
    monkeypatch.setattr(secrets, "token_hex", overtaken)
    first = jobs.add("send", SMALL, "ann")
    others[0].join()
    assert [job["id"] for job in jobs.listed()] == [first["id"]], "the queue was full"
    jobs.settings = jobs.settings.model_copy(update={"job_limit": 3})
    others.clear()
    jobs.add("send", SMALL, "ann")
    others[0].join()
    assert [job["number"] for job in jobs.listed()] == [3, 2, 1]


def test_of_many_workbenches_one_gets_a_job(make: Callable[..., Any], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    apps = [make(state=tmp_path / name, database=url) for name in "abcd"]
    jobs = [app.state.workbench.jobs for app in apps]
    assert len({each.runner for each in jobs}) == 4
    made = {jobs[0].add("send", SMALL, "local", limited=False)["id"] for _ in range(12)}
    with ThreadPoolExecutor(8) as pool:
        got = [
            row["id"]
            for row in pool.map(lambda n: jobs[n % 4].claim(), range(40))
            if row is not None
        ]
    assert sorted(got) == sorted(made)


def test_a_lease_that_runs_out_frees_the_job_and_its_old_process_writes_nothing(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindsight.workbench.infra.jobs._LEASE", 3600.0)  # on a busy machine, too
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    one, other = (make(state=tmp_path / name, database=url).state.workbench for name in "ab")
    job = one.jobs.add("send", SMALL, "local")["id"]
    assert one.jobs.claim()["id"] == job
    old = JobContext(one.settings, job, 1)
    other.jobs._take_up(own=True)
    assert other.jobs.claim() is None  # the lease still runs
    with one.database.begin() as connection:
        connection.execute(sql.update(JOBS).values(lease=time.time() - 1))
    other.jobs._take_up()
    assert other.jobs.claim()["attempts"] == 2
    assert not one.jobs._set(job, only=("running",), owned=True, lease=time.time() + 60)
    old.finish({"late": True})
    assert one.jobs.get(job)["state"] == "running"
    assert one.jobs.get(job)["result"] is None
    new = JobContext(other.settings, job, 2)
    new.finish({"rounds": []})
    assert one.jobs.get(job)["result"] == {"rounds": []}
    for context in (old, new):
        context.database.close()


def test_the_queue_has_an_end(make: Callable[..., Any], stocked: Path) -> None:
    app = make(state=stocked, job_limit=2)
    number = app.state.workbench.datasets.listed()[0].id
    client = Client(app)
    found = [client.post(f"/api/send/{number}/try").status_code for _ in range(3)]
    assert found == [202, 202, 429]


def test_every_job_and_what_happened_to_it_stays_in_the_database(make: Callable[..., Any]) -> None:
    app = make()
    jobs, client = app.state.workbench.jobs, Client(app)
    made = [jobs.add("send", SMALL, "ann", limited=False)["id"] for _ in range(230)]
    with app.state.workbench.database.begin() as connection:
        connection.execute(sql.update(JOBS).values(state="done", ended="2026-01-01"))
    for job in made[:205]:
        jobs.folder(job).mkdir(parents=True)
    jobs._forget_files()
    assert len(list(jobs.folder("x").parent.iterdir())) == 200, "files of old jobs go"
    pages, before = [], None
    while page := client.get(
        "/api/jobs", params={"most": 100} | ({"before": before} if before else {})
    ).json():
        pages += [job["id"] for job in page]
        before = jobs.get(pages[-1])["number"]
    assert pages == made[::-1], "rows stay"
    assert client.get("/api/jobs?state=failed").json() == []
    job = made[0]
    assert client.post(f"/api/jobs/{job}/rerun").json()["state"] == "queued"
    assert jobs.claim()["id"] == job
    context = JobContext(app.state.workbench.settings, job, 1)
    context.fail("photo IMG_0007.jpg cannot be read. Replace it, and run the job again.")
    context.database.close()
    history = client.get(f"/api/jobs/{job}/history").json()
    assert [event["state"] for event in history] == ["queued", "queued", "running", "failed"]
    assert "IMG_0007.jpg" in history[-1]["note"]
    waiting = jobs.add("send", SMALL, "ann", limited=False)["id"]
    assert client.post(f"/api/jobs/{waiting}/stop").json()["state"] == "stopped"
    assert client.get(f"/api/jobs/{waiting}/history").json()[-1]["state"] == "stopped"


def test_a_job_that_dies_says_where_it_was_and_what_to_do(tmp_path: Path) -> None:
    traceback = b"Traceback (most recent call last):\n  ...\nKeyError: 'pixels of Ann'\n"
    said = unexpected_end("reading photos: 17 of 40", traceback, 1, tmp_path)
    assert "reading photos: 17 of 40" in said
    assert "KeyError" in said
    assert "Ann" not in said
    assert str(tmp_path / "stderr.txt") in said
    assert "memory" in unexpected_end("starting", b"", -9, tmp_path)


def test_charges_name_who_asked_and_for_what(make: Callable[..., Any], stocked: Path) -> None:
    app = make(state=stocked, require_purpose=True)
    workbench, client = app.state.workbench, Client(app)
    data_set = workbench.datasets.listed()[0]
    order = {"epsilon": 1.0, "sure": True}
    address = f"/api/protect/{data_set.id}/release"
    refused = client.post(address, json=order)
    assert (refused.status_code, refused.json()["error"]) == (422, "purpose_needed")
    headers = {"X-Purpose": "study%20on%20coasts"}
    job = client.post(address, json=order, headers=headers).json()["job"]
    while (row := workbench.jobs.claim()) is not None and row["id"] != job:
        pass
    context = JobContext(workbench.settings, job, 1)
    context.finish(protect.run(context.row["arguments"], context))
    context.database.close()
    ledger = workbench.budgets.named(data_set.account)
    charges = [entry for entry in ledger.entries() if entry.kind == "charge"]
    assert all(entry.actor and entry.purpose for entry in charges), charges
    assert (charges[-1].actor, charges[-1].purpose) == ("local", "study on coasts")
    last = list(workbench.access_log.records())[-1]
    assert (last.actor, last.action, last.dataset) == ("local", "job protect release", data_set.id)
    assert last.purpose == "study on coasts"


def test_progress_is_a_share_of_all_planned_steps_and_names_the_step(
    make: Callable[..., Any],
) -> None:
    app = make()
    jobs = app.state.workbench.jobs
    number = jobs.add("protect", {"step": "scan"}, "local")["id"]
    jobs.claim()
    context = JobContext(app.state.workbench.settings, number, 1)
    context.plan(("reading", 6), ("measuring", 1), ("looking", 2), ("measuring", 1))
    seen = []
    for stage, done, total in (
        ("reading photos", 20, 40),
        ("measuring at one", 0, 0),
        ("looking up", 1, 2),
        ("measuring at another", 1, 2),
        ("something else", 0, 0),
    ):
        context.progress(stage, done, total)
        row = jobs.get(number)
        seen.append((row["done"], row["total"], row["note"]))
    context.database.close()
    assert seen == [
        (300, 1000, "Step 1 of 4: reading photos, 20 of 40"),
        (600, 1000, "Step 2 of 4: measuring at one"),
        (800, 1000, "Step 3 of 4: looking up, 1 of 2"),
        (950, 1000, "Step 4 of 4: measuring at another, 1 of 2"),
        (900, 1000, "Step 4 of 4: something else"),
    ]


def test_a_page_shows_a_waiting_job_lets_it_be_cancelled_and_run_again(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=2))
    client = Client(app)
    job = client.post(f"/api/send/{one.id}/try").json()["job"]
    page = Client(app).get("/send").text
    assert "0% · waiting" in page and f'data-ask="/api/jobs/{job}/stop"' in page
    assert client.post(f"/api/jobs/{job}/stop").json()["state"] == "stopped"
    page = Client(app).get("/send").text
    assert "Try again" in page and f'data-ask="/api/jobs/{job}/rerun"' in page
    assert f"/api/jobs/{job}/stop" not in page
