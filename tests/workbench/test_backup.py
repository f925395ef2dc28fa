"""Backup, restore and the look-over: the drill that an operator runs, and what must be refused."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindsight.app.library import accounts
from blindsight.app.library.accounts import decide, require_agreement
from blindsight.app.library.datasets import DataSets
from blindsight.cli.main import app as command
from blindsight.core.durable import only_writer
from blindsight.core.errors import BlindsightError, HostileFile, InvalidParameter, RolledBack
from blindsight.privacy import Ledger
from blindsight.workbench import WorkbenchSettings
from blindsight.workbench.infra import backup
from blindsight.workbench.infra.backup import make_backup, restore_backup
from blindsight.workbench.infra.database import AccessLog, Database
from blindsight.workbench.infra.doctor import examine
from blindsight.workbench.infra.identity import Keys
from workbench.asgi import Client
from workbench.photos import released

Drill = tuple[WorkbenchSettings, Path, str]


@pytest.fixture(scope="module")
def drill(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """A workbench with a data set, a release, a key and a right; its backup; and the key."""
    base = tmp_path_factory.mktemp("drill")
    shutil.copytree(stock, base / "state")
    settings = WorkbenchSettings(state=base / "state", keys="required", public="")
    database = Database(settings.database_url)
    keys = Keys(database)
    key = keys.make("ann", "owner")
    keys.make("ben", "analyst")
    keys.grant("ben", "auditor", DataSets(settings).listed()[0].id)
    database.close()
    make_backup(settings, base / "copy.tar")
    yield settings, base / "copy.tar", key


def _contents(folder: Path) -> dict[str, bytes]:
    """Files by name; databases are compared by what they hold."""
    left_out = ("lock", "server.log", "restored.json")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".db" not in path.name and path.name not in left_out
    }


def _ledger(settings: WorkbenchSettings) -> list[tuple[int, str]]:
    data_set = DataSets(settings).listed()[0]
    with Ledger(settings.ledger_place, dataset=data_set.account, create=False) as ledger:
        ledger.verify()
        return [(entry.sequence, entry.hash) for entry in ledger.entries()]


def test_a_restored_workbench_has_everything_and_asks_before_it_releases(
    drill: Drill, tmp_path: Path, make: Callable[..., Any]
) -> None:
    settings, copy, key = drill
    assert copy.stat().st_mode & 0o077 == 0, "it holds the vault's key"
    there = settings.model_copy(update={"state": tmp_path / "new"})
    done = restore_backup(there, copy)
    assert (done.ledger, done.database) == (True, True)
    assert _contents(there.state) == _contents(settings.state)
    assert _ledger(there) == _ledger(settings)
    assert there.state.stat().st_mode & 0o077 == 0
    [report] = done.reports
    assert "restored from a backup" in report.findings[0]
    app = make(state=there.state, keys="required")
    owner = Client(app, Authorization=f"Bearer {key}")
    data_set = report.data_set
    photo = app.state.workbench.datasets.photos(data_set)[0].id
    assert owner.post(f"/api/search/{data_set.id}/photo/{photo}").status_code == 200
    order = {"epsilon": 1.0, "sure": True}
    refused = owner.post(f"/api/protect/{data_set.id}/release", json=order)
    assert (refused.status_code, refused.json()["error"]) == (409, "rolled_back")
    assert "restored from a backup" in owner.get("/budget").text
    decision = {"decision": "take over"}
    answer = owner.post(f"/api/budget/{data_set.id}/decide", json=decision)
    assert answer.json()["agrees"]
    assert owner.post(f"/api/protect/{data_set.id}/release", json=order).status_code == 202
    rights = owner.get("/api/rights").json()
    assert [(line["subject"], line["role"]) for line in rights] == [("ben", "auditor")]
    actions = [record.action for record in app.state.workbench.access_log.records()]
    assert "backup" in actions
    assert any(action.startswith("restore of the backup") for action in actions)
    assert app.state.workbench.access_log.verify().sequence == len(actions)


def test_closing_after_a_restore_ends_the_budget(drill: Drill, tmp_path: Path) -> None:
    settings, copy, _ = drill
    there = settings.model_copy(update={"state": tmp_path / "new"})
    [report] = restore_backup(there, copy).reports
    with Ledger(there.ledger_place, dataset=report.data_set.account) as ledger:
        decide(DataSets(there), report.data_set, ledger, "close", actor="ann")
        assert all(balance.closed for balance in ledger.balances())


def test_two_decisions_after_a_restore_do_not_undo_each_other(
    drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, copy, _ = drill
    there = settings.model_copy(update={"state": tmp_path / "new"})
    [report] = restore_backup(there, copy).reports
    datasets, locked = DataSets(there), []

    def written(datasets: DataSets, moments: dict[str, str]) -> None:
        with pytest.raises(BlockingIOError), only_writer(there.state, wait=False):
            pass  # another decision would be lost
        locked.append(moments)

    monkeypatch.setattr(accounts, "mark_restored", written)
    with Ledger(there.ledger_place, dataset=report.data_set.account) as ledger:
        decide(datasets, report.data_set, ledger, "take over", actor="ann")
    assert locked == [{}]


def test_a_release_made_after_the_backup_is_named_by_its_folder(
    drill: Drill, tmp_path: Path, make: Callable[..., Any]
) -> None:
    settings, copy, _ = drill
    shutil.copytree(settings.state, tmp_path / "later")
    app = make(state=tmp_path / "later", keys="off")
    newest = released(app, app.state.workbench.datasets.listed()[0], 2.0, "cd" * 6)
    app.state.workbench.budgets.close()
    there = settings.model_copy(update={"state": tmp_path / "new"})
    [report] = restore_backup(there, copy, releases=tmp_path / "later" / "releases").reports
    assert any(newest.folder in finding for finding in report.findings), report.findings
    with (
        Ledger(there.ledger_place, dataset=report.data_set.account) as ledger,
        pytest.raises(RolledBack),
    ):
        require_agreement(DataSets(there), report.data_set, ledger)


def test_a_newer_ledger_is_never_replaced_by_the_backups(
    drill: Drill, tmp_path: Path, make: Callable[..., Any]
) -> None:
    settings, copy, _ = drill
    shutil.copytree(settings.state, tmp_path / "later")
    app = make(state=tmp_path / "later", keys="off")
    released(app, app.state.workbench.datasets.listed()[0], 2.0, "cd" * 6)
    app.state.workbench.budgets.close()
    (tmp_path / "elsewhere").mkdir()
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "later" / "ledger.db")) as reading,
        contextlib.closing(sqlite3.connect(tmp_path / "elsewhere" / "ledger.db")) as writing,
    ):
        reading.backup(writing)
    ledger = str(tmp_path / "elsewhere" / "ledger.db")
    there = settings.model_copy(update={"state": tmp_path / "new", "ledger": ledger})
    before = _ledger(there.model_copy(update={"state": tmp_path / "later"}))
    done = restore_backup(there, copy)
    assert not done.ledger
    assert _ledger(there) == before
    assert any("vault" in finding for finding in done.reports[0].findings), done.reports[0].findings


@pytest.mark.real
def test_a_backup_of_sqlite_is_restored_into_postgresql_and_back(
    drill: Drill, tmp_path: Path, fresh_database: str
) -> None:
    settings, copy, key = drill
    server = settings.model_copy(update={"state": tmp_path / "pg", "database": fresh_database})
    assert restore_backup(server, copy).database
    assert _ledger(server) == _ledger(settings)
    again = tmp_path / "again.tar"
    make_backup(server, again)
    back = settings.model_copy(update={"state": tmp_path / "back"})
    restore_backup(back, again)
    assert _ledger(back) == _ledger(settings)
    database = Database(back.database_url)
    assert Keys(database).identify(key) is not None
    assert AccessLog(database).verify().sequence >= 3
    database.close()


def test_a_file_that_is_replaced_or_removed_during_a_backup_does_not_end_it(
    drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs and pages write files under temporary names, and remove folders of earlier jobs."""
    shutil.copytree(drill[0].state, tmp_path / "state")
    settings = drill[0].model_copy(update={"state": tmp_path / "state"})
    (settings.state / "jobs" / "1").mkdir(parents=True)
    (settings.state / "jobs" / "1" / "stderr.txt").touch()
    (settings.state / "releases" / f".half.{'0' * 16}.part").mkdir()
    for folder in (settings.state, settings.state / "releases" / f".half.{'0' * 16}.part"):
        (folder / f".about.json.{'0' * 16}.part").touch()
    listed = backup._state_files

    def overtaken(state: Path) -> list[Path]:
        files = list(listed(state))
        shutil.rmtree(state / "jobs")
        return files

    monkeypatch.setattr(backup, "_state_files", overtaken)
    made = make_backup(settings, tmp_path / "copy.tar")
    there = settings.model_copy(update={"state": tmp_path / "new"})
    assert restore_backup(there, made.path).files == made.files
    assert not list(there.state.rglob("*.part")) and not (there.state / "jobs").exists()


def test_two_backups_to_one_file_at_once_do_not_mix(
    drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, target, add = drill[0], tmp_path / "copy.tar", backup._add

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(backup, "_add", add)
        make_backup(settings, target)
        add(*arguments)

    monkeypatch.setattr(backup, "_add", overtaken)
    with pytest.raises(InvalidParameter, match="exists already"):
        make_backup(settings, target)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.tar"]
    restore_backup(settings.model_copy(update={"state": tmp_path / "new"}), target)


def test_a_backup_goes_into_an_empty_folder_only(drill: Drill, tmp_path: Path) -> None:
    settings, copy, _ = drill
    with pytest.raises(InvalidParameter, match="Move the folder aside"):
        restore_backup(settings, copy)
    with pytest.raises(InvalidParameter, match="exists already"):
        make_backup(settings, copy)
    with pytest.raises(InvalidParameter, match="no workbench"):
        make_backup(settings.model_copy(update={"state": tmp_path / "none"}), tmp_path / "x.tar")


def _tampered(copy: Path, target: Path, change: str) -> None:
    """A backup with one thing changed."""
    with tarfile.open(copy) as source, tarfile.open(target, "w") as out:
        members = [(member, source.extractfile(member).read()) for member in source]  # type: ignore[union-attr]
        for number, (member, content) in enumerate(members):
            if change == "byte" and member.name == "ledger.db":
                content = content[:-1] + bytes([content[-1] ^ 1])
            if change == "missing" and member.name.endswith("vault/key"):
                continue
            if change == "outside" and number == 0:
                member.name = "../outside"
            if change == "absolute" and number == 0:
                member.name = "/tmp/outside"
            if change == "link" and number == 0:
                member.type, member.linkname, member.size, content = tarfile.SYMTYPE, "/", 0, b""
            if change == "newer" and member.name == "backup.json":
                content = json.dumps({**json.loads(content), "schema": "9999"}).encode()
                member.size = len(content)
            out.addfile(member, io.BytesIO(content))
        if change == "more":
            out.addfile(tarfile.TarInfo("state/more"))


@pytest.mark.parametrize(
    "change", ["byte", "missing", "outside", "absolute", "link", "more", "newer", "cut", "text"]
)
def test_a_changed_backup_restores_nothing(drill: Drill, tmp_path: Path, change: str) -> None:
    settings, copy, _ = drill
    forged = tmp_path / "forged.tar"
    if change == "cut":
        forged.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    elif change == "text":
        forged.write_text("no backup")
    else:
        _tampered(copy, forged, change)
    there = settings.model_copy(update={"state": tmp_path / "new"})
    with pytest.raises((HostileFile, InvalidParameter)) as refused:
        restore_backup(there, forged)
    assert isinstance(refused.value, BlindsightError)
    assert not there.state.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"forged.tar"}


def test_the_doctor_finds_a_healthy_workbench_healthy(drill: Drill) -> None:
    findings = examine(drill[0])
    assert {finding.level for finding in findings} <= {"good", "warning"}, findings
    checks = {finding.check for finding in findings}
    assert checks >= {"versions", "folder modes", "free disk", "clock", "ledger", "decoder walls"}
    head = next(finding for finding in findings if finding.check == "ledger")
    assert _ledger(drill[0])[-1][1] in head.says


def test_the_doctor_names_what_is_wrong_and_what_to_do(
    drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, copy, _ = drill
    there = settings.model_copy(update={"state": tmp_path / "new"})
    restore_backup(there, copy)
    there.state.chmod(0o755)
    database = Database(there.database_url)
    with database.begin() as change:
        change.exec_driver_sql("DROP TRIGGER blindsight_workbench_access_no_update")
        change.exec_driver_sql("UPDATE blindsight_workbench_access SET actor = 'eve'")
    database.close()
    with contextlib.closing(sqlite3.connect(there.state / "ledger.db")) as ledger:
        ledger.execute("UPDATE blindsight_ledger3_entries SET what = 'nothing'")
        ledger.commit()
    usage = shutil.disk_usage(there.state)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    bad = {finding.check: finding.says for finding in examine(there) if finding.level == "bad"}
    assert {"folder modes", "free disk", "ledger", "access log"} <= set(bad), bad
    assert "chmod" in bad["folder modes"]


def test_the_commands_run_the_drill(drill: Drill, tmp_path: Path) -> None:
    settings, _, _ = drill
    runner, where = CliRunner(), ["--state", str(settings.state)]
    made = runner.invoke(
        command, ["workbench", "backup", str(tmp_path / "b.tar"), "--json", *where]
    )
    assert made.exit_code == 0, made.output
    new = ["--state", str(tmp_path / "new")]
    restored = runner.invoke(
        command, ["workbench", "restore", str(tmp_path / "b.tar"), "--json", *new]
    )
    assert "restored from a backup" in restored.stdout
    doctor = runner.invoke(command, ["workbench", "doctor", "--json", *new])
    assert doctor.exit_code == 1, "the restored data set waits for a decision"
    assert not json.loads(doctor.stdout)["healthy"]
    assert runner.invoke(command, ["workbench", "migrate", *new]).stdout.startswith("schema")
    grant = ["workbench", "grant", "ben", "--role", "keeper", "--dataset", "*", *new]
    assert runner.invoke(command, grant).exit_code == 0
    people = runner.invoke(command, ["workbench", "people", "--json", *new])
    roles = {line["role"] for line in json.loads(people.stdout)["grants"]}
    assert roles == {"auditor", "keeper"}
    away = ["workbench", "withdraw", "ben", "--dataset", "*", *new]
    assert runner.invoke(command, away).exit_code == 0
    exported = tmp_path / "log.json"
    log = runner.invoke(command, ["workbench", "log", "--export", str(exported), *new])
    assert log.exit_code == 0, log.output
    proved = runner.invoke(command, ["workbench", "log", "--check", str(exported)])
    assert proved.exit_code == 0
    exported.write_text(exported.read_text().replace("keeper", "reader"))
    assert runner.invoke(command, ["workbench", "log", "--check", str(exported)]).exit_code == 1
    assert (
        "grant keeper to ben" in runner.invoke(command, ["workbench", "log", "--json", *new]).stdout
    )


def test_a_backup_without_a_ledger_is_restored_without_talk_of_one(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy.tar"
    settings = WorkbenchSettings(state=state, keys="required", public="")
    database = Database(settings.database_url)
    Keys(database).make("ann", "owner")
    database.close()
    make_backup(settings, copy)
    done = CliRunner().invoke(
        command, ["workbench", "restore", str(copy), "--state", str(tmp_path / "new")]
    )
    assert done.exit_code == 0 and done.output.startswith("Restored ")
    assert "ledger" not in done.output and "History" not in done.output
