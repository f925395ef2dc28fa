"""Jobs: progress, stop, run again; and what a restart or a crash interrupts is taken up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from blindsight.workbench.infra.database import JOBS
from blindsight.workbench.infra.jobs import JobContext
from workbench import web
from workbench.asgi import Client, run

TOKEN = "a-secret-of-this-start-up"
SMALL = {"users": 3, "rounds": 2, "dropout": 0.0, "encrypt": False}


def wait(url: str, job: str, *states: str) -> dict[str, Any]:
    for _ in range(3000):
        found = web.get(f"{url}/api/jobs/{job}").json()
        if found["state"] in states:
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def test_a_job_is_taken_up_after_a_stop_and_after_a_crash(serve: Callable[..., Any]) -> None:
    first = serve()
    large = {"users": 40, "rounds": 20, "encrypt": True}
    long, small = (
        web.post(f"{first.url}/api/demo/federation", json=order).json()["id"]
        for order in (large, SMALL)
    )
    wait(first.url, long, "running")
    first.kill()
    second = serve()
    found = wait(second.url, long, "running")
    assert found["note"] != ""
    assert second.stop() == 0
    third = serve()
    assert wait(third.url, long, "running", "queued")
    stopped = web.post(f"{third.url}/api/jobs/{long}/stop").json()
    assert stopped["state"] == "stopped"
    done = wait(third.url, small, "done")
    assert len(done["result"]["rounds"]) == 2
    assert done["result"]["rounds"][1]["users"] == 3
    svg = web.get(f"{third.url}/api/jobs/{small}/files/accuracy.svg")
    assert svg.headers["content-type"].startswith("image/svg")
    assert web.get(f"{third.url}/api/jobs/{small}/files/stderr.txt").status_code == 404
    again = web.post(f"{third.url}/api/jobs/{small}/rerun").json()
    assert again["state"] == "queued"
    assert wait(third.url, small, "done")["done"] == 2


def test_a_job_that_dies_again_and_again_is_marked_and_can_be_run_again(
    make: Callable[..., Any],
) -> None:
    app = make()
    jobs = app.state.studio.jobs
    job = jobs.add("demo-federation", SMALL, "local")["id"]
    with app.state.studio.database.begin() as connection:
        connection.execute(sql.update(JOBS).values(state="running", attempts=3))
    jobs._stopping = True  # look at the start only, run nothing
    run(jobs.start())
    run(jobs.close())
    assert jobs.get(job)["state"] == "interrupted"
    answer = Client(app).post(f"/api/jobs/{job}/rerun")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert Client(app).post(f"/api/jobs/{job}/rerun").status_code == 409


def test_of_many_workbenches_one_gets_a_job(make: Callable[..., Any], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    apps = [make(state=tmp_path / name, database=url) for name in "abcd"]
    jobs = [app.state.studio.jobs for app in apps]
    assert len({each.runner for each in jobs}) == 4
    made = {jobs[0].add("federation", SMALL, "local", limited=False)["id"] for _ in range(12)}
    with ThreadPoolExecutor(8) as pool:
        got = [
            row["id"]
            for row in pool.map(lambda n: jobs[n % 4].claim(), range(40))
            if row is not None
        ]
    assert sorted(got) == sorted(made)


def test_ones_own_photos_do_not_wait_for_the_demo(make: Callable[..., Any]) -> None:
    jobs = make().state.studio.jobs
    demo = jobs.add("demo-sketch", {}, "workbench", limited=False)
    own = jobs.add("protect", {"step": "scan", "dataset": "ab" * 6}, "local")
    assert own["note"] == "waiting for other work to end"
    assert [jobs.claim()["id"] for _ in range(2)] == [own["id"], demo["id"]]


def test_the_demo_is_prepared_when_somebody_opens_it_and_not_before(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    app = make(state=tmp_path / "new", prepare=True, keys="auto", token=TOKEN)
    app.state.studio.jobs._stopping = True  # queue only

    async def visit() -> None:
        async with app.router.lifespan_context(app):
            for page, who in (("/", TOKEN), ("/demo", "nobody"), ("/api/demo/search", "nobody")):
                await Client(app, Authorization=f"Bearer {who}")._client.get(page)
                await asyncio.sleep(0.3)
                assert app.state.studio.jobs.listed() == [], (page, who)
            await Client(app, Authorization=f"Bearer {TOKEN}")._client.get("/demo")
            async with asyncio.timeout(120):
                while len(app.state.studio.jobs.listed()) < 4:
                    await asyncio.sleep(0.05)

    run(visit())


def test_a_lease_that_runs_out_frees_the_job_and_its_old_process_writes_nothing(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    one, other = (make(state=tmp_path / name, database=url).state.studio for name in "ab")
    job = one.jobs.add("demo-federation", SMALL, "local")["id"]
    assert one.jobs.claim()["id"] == job
    old = JobContext(one.settings, job, 1)
    other.jobs._take_up(own=True)
    assert other.jobs.claim() is None  # the lease still runs
    with one.database.begin() as connection:
        connection.execute(sql.update(JOBS).values(lease=time.time() - 1))
    other.jobs._take_up()
    assert other.jobs.claim()["attempts"] == 2
    assert not one.jobs._set(job, only="running", owned=True, lease=time.time() + 60)
    old.finish({"late": True})
    assert one.jobs.get(job)["state"] == "running"
    assert one.jobs.get(job)["result"] is None
    JobContext(other.settings, job, 2).finish({"rounds": []})
    answer = Client(make(state=tmp_path / "a", database=url)).get(
        f"/api/jobs/{job}/files/accuracy.svg"
    )
    assert (answer.status_code, answer.json()["error"]) == (409, "elsewhere")


def test_the_queue_has_an_end(make: Callable[..., Any]) -> None:
    client = Client(make(job_limit=2))
    found = [client.post("/api/demo/federation", json=SMALL).status_code for _ in range(3)]
    assert found == [202, 202, 429]


def test_an_aggregator_does_not_see_a_users_update(make: Callable[..., Any]) -> None:
    app = make(keys="required")
    studio = app.state.studio
    key = studio.keys.make("sum", "aggregator")
    job = studio.jobs.add("demo-federation", SMALL, "sum")["id"]
    views = '{"views": {"has": "secret", "sees": "noise"}, "rounds": []}'
    with studio.database.begin() as connection:
        connection.execute(sql.update(JOBS).values(state="done", result=views))
    shown = (
        Client(app, Authorization=f"Bearer {key}").get(f"/api/jobs/{job}").json()["result"]["views"]
    )
    assert shown == {"sees": "noise"}
