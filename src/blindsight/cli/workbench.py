"""`blindsight workbench`: run a workbench for several people: rights, log, backup, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from blindsight.cli.serve import Config, Json, State, Url, open_keys, read_settings
from blindsight.cli.terminal import console, emit_json, errors, table
from blindsight.core.errors import InvalidParameter, LedgerTampered

if TYPE_CHECKING:
    from blindsight.workbench.infra.identity import Keys

__all__ = ["register"]

Group = Annotated[bool, typer.Option("--group", help="The name is a group of the provider.")]
DataSetOption = Annotated[str, typer.Option("--dataset", help="Number of a data set; * for all.")]
LedgerOption = Annotated[str | None, typer.Option(help="The ledger's file or URL.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verbs = typer.Typer(
        help="Run a workbench for several people: rights, access log, backup, restore, doctor.",
        no_args_is_help=True,
    )
    verbs.command("doctor")(doctor)
    verbs.command("backup")(backup)
    verbs.command("restore")(restore)
    verbs.command("migrate")(migrate)
    verbs.command("people")(people)
    verbs.command("grant")(grant)
    verbs.command("withdraw")(withdraw)
    verbs.command("log")(log)
    app.add_typer(verbs, name="workbench")


def doctor(
    config: Config = None,
    state: State = None,
    database: Url = None,
    ledger: LedgerOption = None,
    json: Json = False,
) -> None:
    """Look the workbench over: folders, disk, clock, versions, ledger, access log, decoders."""
    from blindsight.workbench.infra.doctor import examine

    findings = examine(read_settings(config, state, database, ledger))
    bad = any(finding.level == "bad" for finding in findings)
    if json:
        emit_json({"healthy": not bad, "findings": [finding.to_dict() for finding in findings]})
    else:
        for finding in findings:
            console.print(
                f"{finding.level:8}{finding.check}: {finding.says}", markup=False, soft_wrap=True
            )
    if bad:
        raise typer.Exit(1)


def backup(
    target: Annotated[Path, typer.Argument(help="A new file, such as workbench-2026-11-17.tar.")],
    config: Config = None,
    state: State = None,
    database: Url = None,
    ledger: LedgerOption = None,
    json: Json = False,
) -> None:
    """Copy vault, ledger, releases, jobs and rights into one file; the workbench may run."""
    from blindsight.workbench.infra.backup import make_backup

    made = make_backup(read_settings(config, state, database, ledger), target)
    if json:
        emit_json(
            {"file": str(target), "moment": made.moment, "files": made.files, "heads": made.heads}
        )
        return
    console.print(
        f"{target}: {made.files:,} files, {made.size / 1e6:,.1f} MB.", markup=False, soft_wrap=True
    )
    errors.print(
        "It holds the vault's key and pictures of the photos: keep it like the photos themselves.",
        markup=False,
    )


def restore(
    source: Annotated[Path, typer.Argument(help="A file that `workbench backup` made.")],
    releases: Annotated[
        Path | None,
        typer.Option(help="A folder with release folders that were made after the backup."),
    ] = None,
    config: Config = None,
    state: State = None,
    database: Url = None,
    ledger: LedgerOption = None,
    json: Json = False,
) -> None:
    """Put a backup into an empty state folder; releases wait for each owner's decision."""
    from blindsight.workbench.infra.backup import restore_backup

    done = restore_backup(read_settings(config, state, database, ledger), source, releases=releases)
    if json:
        emit_json(
            {
                "moment": done.moment,
                "files": done.files,
                "ledger": done.ledger,
                "database": done.database,
                "findings": {
                    report.data_set.name: [*report.findings, *filter(None, [report.note])]
                    for report in done.reports
                },
            }
        )
        return
    console.print(f"Restored {done.files:,} files of {done.moment}.", markup=False)
    for used, what in ((done.ledger, "ledger"), (done.database, "database")):
        if not used:
            console.print(
                f"The {what} has entries already: it was left as it is, because a backup never "
                "replaces newer entries.",
                markup=False,
                soft_wrap=True,
            )
    for report in done.reports:
        for says in (*report.findings, report.note):
            if says:
                console.print(f"{report.data_set.name}: {says}", markup=False, soft_wrap=True)
    console.print("Decide about each data set on the page History.", markup=False)


def migrate(
    config: Config = None, state: State = None, database: Url = None, json: Json = False
) -> None:
    """Bring the database to this version's schema; starting the workbench does the same."""
    from blindsight.workbench.infra.database import Database

    opened = Database(read_settings(config, state, database).database_url)
    found = opened.schema()
    opened.close()
    if json:
        emit_json({"schema": found})
        return
    console.print(f"schema {found}", markup=False)


def people(
    config: Config = None, state: State = None, database: Url = None, json: Json = False
) -> None:
    """Who has signed in with the identity provider, and all rights in data sets."""
    keys = open_keys(config, state, database)
    if json:
        emit_json({"people": keys.people(), "grants": keys.grants()})
        return
    rows = [
        (row["name"], row["label"], ", ".join(row["groups"]), row["seen"], row["revoked"] or "")
        for row in keys.people()
    ]
    table("people", ("name", "called", "groups", "last signed in", "barred"), rows)
    names = ("subject", "kind", "role", "dataset", "release")
    table("rights", names, [tuple(row[name] for name in names) for row in keys.grants()])


def grant(
    name: Annotated[str, typer.Argument(help="A person, a key, or (--group) a group.")],
    role: Annotated[
        Literal["owner", "searcher", "auditor", "keeper"],
        typer.Option(help="owner, searcher, auditor or keeper (of the budget)."),
    ],
    dataset: DataSetOption,
    release: Annotated[
        str, typer.Option(help="The release that a searcher may search; all by default.")
    ] = "",
    group: Group = False,
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """Give somebody a role in a data set."""
    keys = open_keys(config, state, database)
    keys.grant(name, role, dataset, release=release, group=group, actor="command line")
    _record(keys, f"grant {role} to {name}", dataset, release)
    if json:
        emit_json({"name": name, "role": role, "dataset": dataset, "release": release})
        return
    console.print(f"{name}: {role} of {dataset}", markup=False)


def withdraw(
    name: Annotated[str, typer.Argument(help="A person, a key, or (--group) a group.")],
    dataset: DataSetOption,
    role: Annotated[str | None, typer.Option(help="Only this role; all by default.")] = None,
    group: Group = False,
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """Take back somebody's rights in a data set."""
    keys = open_keys(config, state, database)
    ended = keys.withdraw(name, dataset, role=role, group=group)
    if not ended:
        raise InvalidParameter(f"{name!r} has no such right in {dataset}. See `workbench people`.")
    _record(keys, f"withdraw {role or 'every role'} from {name}", dataset)
    if json:
        emit_json({"name": name, "dataset": dataset, "withdrawn": ended})
        return
    console.print(f"{name}: {ended} rights withdrawn", markup=False)


def log(
    export: Annotated[
        Path | None, typer.Option(help="Write the whole log: .json with its proof, or .csv.")
    ] = None,
    check: Annotated[Path | None, typer.Option(help="Prove an exported log (.json).")] = None,
    last: Annotated[int, typer.Option(help="How many records to show.")] = 20,
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """Show, prove and export the access log: who did what to which data set."""
    from blindsight.app.access_log import check_export
    from blindsight.app.hosting import write_file
    from blindsight.workbench.infra.access_log import AccessLog
    from blindsight.workbench.infra.database import Database

    if check is not None:
        try:
            head = check_export(check.read_text(encoding="utf-8"))
        except LedgerTampered as error:
            errors.print(str(error), markup=False, soft_wrap=True)
            raise typer.Exit(1) from None
        console.print(f"{head.sequence} records, head {head.hash}", markup=False)
        return
    opened = Database(read_settings(config, state, database).database_url)
    try:
        access_log = AccessLog(opened)
        head = access_log.verify()
        if export is not None:
            kind = "csv" if export.suffix == ".csv" else "json"
            write_file(export, access_log.export(kind).encode())
            console.print(f"{export}: {head.sequence} records", markup=False)
            return
        records = access_log.latest(most=last)
    finally:
        opened.close()
    if json:
        emit_json({"head": head._asdict(), "records": [record.to_dict() for record in records]})
        return
    names = ("time", "actor", "action", "dataset", "outcome", "purpose")
    rows = [tuple(str(record.to_dict()[name]) for name in names) for record in records]
    table(f"access log, {head.sequence} records, proved", names, rows)


def _record(keys: Keys, action: str, dataset: str, release: str = "") -> None:
    from blindsight.workbench.infra.access_log import AccessLog

    with AccessLog(keys.database) as access_log:
        access_log.append(
            actor="command line", action=action, dataset=dataset, release=release, outcome="done"
        )
