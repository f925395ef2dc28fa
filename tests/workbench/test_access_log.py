"""The access log: append-only, chained like the ledger, without photo content, never skipped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from blindsight.app.access_log import AccessRecord, Head, check_export
from blindsight.core.errors import InvalidData, LedgerTampered
from blindsight.workbench.infra.database import ACCESS, ACCESS_HEAD, AccessLog, Database
from blindsight.workbench.pages.people import log_entries
from workbench.asgi import Client


@pytest.fixture
def log(tmp_path: Path) -> Any:
    database = Database(f"sqlite:///{tmp_path / 'log.db'}")
    with AccessLog(database) as opened:
        for n in range(5):
            opened.append(
                actor=f"person {n}", action="GET /search", dataset="ab" * 6, outcome="done"
            )
        yield opened
    database.close()


def test_records_are_chained_and_proved(log: AccessLog) -> None:
    head = log.verify()
    assert head.sequence == 5
    log.append(actor="ann", action="sign in", outcome="done")
    assert log.verify(known=head).sequence == 6
    assert check_export(log.export("json")) == log.head()
    assert log.export("csv").splitlines()[1].split(",")[2:4] == ["person 0", "GET /search"]


@pytest.mark.parametrize("verb", ["UPDATE {0} SET actor = 'eve'", "DELETE FROM {0}"])
def test_the_database_refuses_to_change_or_delete_a_record(log: AccessLog, verb: str) -> None:
    with pytest.raises(sql.exc.DatabaseError, match="append-only"), log.database.begin() as change:
        change.execute(sql.text(verb.format(ACCESS.name)))
    assert log.verify().sequence == 5


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE {0} SET actor = 'eve' WHERE sequence = 3",
        "UPDATE {0} SET outcome = 'refused' WHERE sequence = 5",
        "DELETE FROM {0} WHERE sequence = 3",
        "DELETE FROM {0} WHERE sequence = 5",
        "UPDATE {0} SET sequence = 9 WHERE sequence = 5",
    ],
)
def test_whoever_removes_the_triggers_first_is_found_out(log: AccessLog, forgery: str) -> None:
    with log.database.begin() as change:
        for verb in ("update", "delete"):
            change.execute(sql.text(f"DROP TRIGGER blindsight_workbench_access_no_{verb}"))
        change.execute(sql.text(forgery.format(ACCESS.name)))
    with pytest.raises(LedgerTampered):
        log.verify()


def test_a_log_that_was_cut_with_its_head_shows_against_a_head_that_was_noted(
    log: AccessLog,
) -> None:
    noted = log.head()
    with log.database.begin() as change:
        change.execute(sql.text("DROP TRIGGER blindsight_workbench_access_no_delete"))
        last = change.execute(sql.select(ACCESS.c.previous).where(ACCESS.c.sequence == 5)).scalar()
        change.execute(sql.delete(ACCESS).where(ACCESS.c.sequence == 5))
        change.execute(sql.update(ACCESS_HEAD).values(sequence=4, hash=last))
    assert log.verify().sequence == 4
    with pytest.raises(LedgerTampered, match="stored earlier"):
        log.verify(known=noted)


def test_an_export_with_a_changed_word_is_refused(log: AccessLog) -> None:
    text = log.export("json")
    with pytest.raises(LedgerTampered):
        check_export(text.replace("person 2", "person 3"))
    with pytest.raises(InvalidData):
        check_export("{}")
    document = json.loads(text)
    document["records"][0]["more"] = 1
    with pytest.raises(LedgerTampered):
        check_export(json.dumps(document))


def test_many_writers_of_one_database_make_one_chain(log: AccessLog) -> None:
    others = [AccessLog(Database(str(log.database.engine.url))) for _ in range(3)]

    def write(n: int) -> None:
        others[n % 3].append(actor=f"writer {n}", action="sign in", outcome="done")

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(write, range(60)))
    assert log.verify().sequence == 65
    assert {record.actor for record in log.records(after=5)} == {f"writer {n}" for n in range(60)}
    for other in others:
        other.close()
        other.database.close()


@pytest.mark.real
def test_postgresql_refuses_changes_and_several_writers_make_one_chain(
    fresh_database: str,
) -> None:
    logs = [AccessLog(Database(fresh_database)) for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        list(
            pool.map(
                lambda n: logs[n % 3].append(actor=f"{n}", action="sign in", outcome="done"),
                range(30),
            )
        )
    assert logs[0].verify().sequence == 30
    for verb in ("UPDATE {0} SET actor = 'eve'", "DELETE FROM {0}", "TRUNCATE {0}"):
        with pytest.raises(sql.exc.DatabaseError), logs[0].database.begin() as change:
            change.execute(sql.text(verb.format(ACCESS.name)))
    assert logs[0].verify().sequence == 30
    for log in logs:
        log.close()
        log.database.close()


def test_who_did_what_to_which_data_set_is_recorded_and_nothing_of_a_photo(
    make: Callable[..., Any], stock: Path, tmp_path: Path
) -> None:
    shutil.copytree(stock, tmp_path / "copy")
    app = make(state=tmp_path / "copy", keys="required")
    workbench = app.state.workbench
    owner = Client(app, Authorization=f"Bearer {workbench.keys.make('ann', 'owner')}")
    stranger = Client(app, Authorization=f"Bearer {workbench.keys.make('ben', 'analyst')}")
    data_set = workbench.datasets.listed()[0]
    photo = workbench.datasets.photos(data_set)[0]
    purpose = {"X-Purpose": "ward%20round"}
    assert owner.get(f"/api/datasets/{data_set.id}/photos/{photo.id}").status_code == 200
    owner.post(f"/api/search/{data_set.id}/photo/{photo.id}", headers=purpose)
    owner.post(f"/api/search/{data_set.id}/words", json={"words": "secret words"})
    assert stranger.get(f"/api/tags/{data_set.id}").status_code == 403
    owner.get("/api/jobs")  # asked by pages every second
    assert Client(app).get("/api/jobs").status_code == 401
    records = list(workbench.access_log.records())
    lines = [(r.actor, r.action, r.dataset, r.outcome, r.purpose) for r in records]
    seen = ("ann", "GET /api/datasets/{dataset}/photos/{photo}", data_set.id, "done", "")
    assert seen in lines
    asked = ("ann", "POST /api/search/{dataset}/photo/{photo}", data_set.id, "done", "ward round")
    assert asked in lines
    assert ("ben", "GET /api/tags/{dataset}", data_set.id, "refused", "") in lines
    assert not any("/api/jobs" in line[1] for line in lines)
    exported = owner.get("/api/access/export.json").text
    assert check_export(exported).sequence == len(records)
    for hidden in (photo.id, photo.name, "secret words"):
        assert hidden not in exported
    assert stranger.get("/api/access").status_code == 403
    assert owner.post("/api/access/verify").json()["holds"]


def test_nothing_is_answered_that_cannot_be_recorded(
    make: Callable[..., Any], stocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make(state=stocked)
    workbench = app.state.workbench
    data_set = workbench.datasets.listed()[0]
    photo = workbench.datasets.photos(data_set)[0].id

    def full(_batch: Any) -> None:
        raise sql.exc.OperationalError("insert", {}, OSError("disk full"))

    monkeypatch.setattr(workbench.access_log, "_store", full)
    answer = Client(app).get(f"/api/datasets/{data_set.id}/photos/{photo}")
    assert (answer.status_code, answer.json()["error"]) == (503, "access_log")
    assert Client(app).get("/health").status_code == 200
    monkeypatch.undo()
    assert Client(app).get(f"/api/datasets/{data_set.id}/photos/{photo}").status_code == 200


def test_a_record_read_from_outside_must_have_exactly_its_fields() -> None:
    with pytest.raises(LedgerTampered):
        AccessRecord.from_dict({"sequence": "1"})


def test_the_page_tells_the_log_in_words_and_can_be_filtered() -> None:
    def record(minute: int, action: str, outcome: str = "done", actor: str = "sam") -> AccessRecord:
        time = f"2026-11-18T10:{minute:02}:30.000"
        return AccessRecord.after(
            Head(0, ""), time=time, actor=actor, action=action, outcome=outcome, dataset="ab" * 6
        )

    photo = "GET /api/datasets/{dataset}/photos/{photo}"
    records = [
        record(9, "job protect release"),
        *[record(8, photo), record(8, "GET /compare")] * 19,
        *[record(7, photo, "refused", "ann")] * 16,
        record(6, "POST /api/something/new"),
    ]
    names = {"ab" * 6: "Coast archive"}
    told = [(e.time[-5:], e.actor, e.sentence(names), e.kind) for e in log_entries(records)]
    assert told == [
        ("10:09", "sam", "made a search index: Coast archive", "shared"),
        ("10:08", "sam", "saw 19 photos: Coast archive", "saw photos"),
        ("10:08", "sam", "opened pages 19 times: Coast archive", "read"),
        ("10:07", "ann", "asked to see 16 photos: Coast archive (refused)", "refused"),
        ("10:06", "sam", "POST /api/something/new: Coast archive", "changed"),
    ]
    for show, kind in (("photos", "saw photos"), ("shared", "shared"), ("refused", "refused")):
        assert {entry.kind for entry in log_entries(records, show)} == {kind}
