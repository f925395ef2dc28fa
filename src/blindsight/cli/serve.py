"""`blindsight serve` and `blindsight workbench`: start and administer the web application."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from blindsight.cli.terminal import console, emit_json, errors, table
from blindsight.core.errors import InvalidParameter, LedgerTampered

if TYPE_CHECKING:
    from blindsight.workbench.infra.identity import Keys
    from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = ["open_keys", "read_settings", "register"]

Config = Annotated[
    Path | None, typer.Option("--config", help=r"A TOML file with a table \[workbench].")
]
State = Annotated[Path | None, typer.Option(help="Folder for databases, models and results.")]
Url = Annotated[
    str | None, typer.Option("--database", help="Database URL for keys, jobs and the ledger.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of `serve` and `workbench` to the command line."""
    verbs = typer.Typer(help="Start the workbench: pages and API, on this machine, without set-up.")
    verbs.callback(invoke_without_command=True)(serve)
    keys = typer.Typer(
        help="API keys, with the roles owner, analyst, aggregator and monitor.",
        no_args_is_help=True,
    )
    keys.command("add")(add_key)
    keys.command("list")(list_keys)
    keys.command("revoke")(revoke_key)
    verbs.add_typer(keys, name="key")
    app.add_typer(verbs, name="serve")
    verbs = typer.Typer(
        help="Run a workbench for several people: rights, access log, backup, restore, doctor.",
        no_args_is_help=True,
    )
    for verb in (doctor, backup, restore, migrate, people, grant, withdraw, log):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="workbench")


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port (8731).")] = None,
    config: Config = None,
    state: State = None,
    database: Url = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger's file or URL.")] = None,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder whose photos may be protected from the pages; may be repeated."
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="Public pictures for Protect's preview: a folder, or a known set (caltech101, if "
            "it is there)."
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(help="auto (a secret link on loopback, keys elsewhere), required or off."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Certificate chain (PEM), for HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The certificate's private key (PEM).")
    ] = None,
    log: Annotated[str | None, typer.Option(help="Log lines as text or json.")] = None,
) -> None:
    """Start the workbench and print its address. Ctrl-C stops it; jobs go on at the next start."""
    if context.invoked_subcommand is not None:
        return
    from blindsight.app.hosting import require_package

    require_package("fastapi", extra="workbench")
    require_package("uvicorn", extra="workbench")
    from blindsight.core.errors import InvalidData
    from blindsight.workbench.infra.settings import WorkbenchSettings

    for folder in photos or ():
        if not folder.expanduser().is_dir():
            raise InvalidData(f"{folder} is not a folder. Check the path.")
    _run(
        WorkbenchSettings.read(
            config,
            host=host,
            port=port,
            state=state,
            database=database,
            ledger=ledger,
            photos=photos or None,
            public=public,
            keys=keys,
            tls_cert=tls_cert,
            tls_key=tls_key,
            log=log,
        )
    )


def add_key(
    name: Annotated[
        str, typer.Argument(help="The key's name; also the name of its budget in the ledger.")
    ],
    role: Annotated[
        str,
        typer.Option(
            help="owner (everything), analyst (what is granted), aggregator or monitor (metrics)."
        ),
    ] = "analyst",
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """Make a key and print it once; only its digest is stored."""
    key = open_keys(config, state, database).make(name, role)  # type: ignore[arg-type]  # it checks
    if json:
        emit_json({"name": name, "role": role, "key": key})
        return
    console.print(f"{name} ({role}): {key}", markup=False, soft_wrap=True)
    errors.print("Save it now: it is not shown again.", markup=False)


def list_keys(
    config: Config = None, state: State = None, database: Url = None, json: Json = False
) -> None:
    """List the names, roles and dates of all keys."""
    keys = open_keys(config, state, database).listed()
    if json:
        emit_json({"keys": keys})
        return
    rows = [(row["name"], row["role"], row["made"], row["revoked"] or "") for row in keys]
    table("keys", ("name", "role", "made", "revoked"), rows)


def revoke_key(
    name: Annotated[str, typer.Argument(help="The key's name.")],
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """Revoke a key for good, and end its sessions."""
    open_keys(config, state, database).revoke(name)
    if json:
        emit_json({"name": name, "revoked": True})
        return
    console.print(f"{name}: revoked", markup=False)


def read_settings(
    config: Path | None, state: Path | None, database: str | None, ledger: str | None = None
) -> WorkbenchSettings:
    """Read the workbench's settings, after checking that its packages are installed."""
    from blindsight.app.hosting import require_package

    for package in ("fastapi", "alembic"):
        require_package(package, extra="workbench")
    from blindsight.workbench.infra.settings import WorkbenchSettings

    return WorkbenchSettings.read(config, state=state, database=database, ledger=ledger)


def open_keys(config: Path | None, state: Path | None, database: str | None) -> Keys:
    """Open the workbench's keys, people and rights."""
    settings = read_settings(config, state, database)
    from blindsight.workbench.infra.database import Database
    from blindsight.workbench.infra.identity import Keys

    return Keys(Database(settings.database_url))


def _run(settings: Any) -> None:
    import os
    import secrets
    import signal
    import sys

    from blindsight.app.library.datasets import lock_state
    from blindsight.workbench.app import create_app
    from blindsight.workbench.infra.server import (
        bound_memory,
        check_certificate,
        listening_socket,
        serve,
        start_logging,
    )

    start_logging(settings.log)
    check_certificate(settings)
    # A port that is in use is reported first, before folders and databases are made.
    listener = listening_socket(settings)
    bound_memory()
    os.umask(0o077)
    lock = lock_state(settings.state)
    if settings.local and settings.token is None:
        settings = settings.model_copy(update={"token": secrets.token_urlsafe(24)})
    app = create_app(settings)
    keys = app.state.workbench.keys
    owners = any(row["revoked"] is None and row["role"] == "owner" for row in keys.listed())
    if not (settings.open or settings.local or owners):
        errors.print(f"owner key, shown once: {keys.make_owner()}", markup=False, soft_wrap=True)
    if settings.open:
        errors.print("Keys are off: anyone on this machine is the owner.", markup=False)
    host, port = (
        f"[{settings.host}]" if ":" in settings.host else settings.host,
        listener.getsockname()[1],
    )
    link = f"/?token={settings.token}" if settings.local else ""
    scheme = "https" if settings.https else "http"
    errors.print(
        f"Blindsight workbench: {scheme}://{host}:{port}{link}", markup=False, soft_wrap=True
    )
    # uvicorn shuts down and then raises the signal again, which is not a failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    serve(app, settings, listener)
    lock.close()


Group = Annotated[bool, typer.Option("--group", help="The name is a group of the provider.")]
DataSetOption = Annotated[str, typer.Option("--dataset", help="Number of a data set; * for all.")]
LedgerOption = Annotated[str | None, typer.Option(help="The ledger's file or URL.")]


def doctor(
    config: Config = None,
    state: State = None,
    database: Url = None,
    ledger: LedgerOption = None,
    json: Json = False,
) -> None:
    """Check the workbench: folders, disk, clock, versions, ledger, access log, decoders."""
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
    """Copy vault, ledger, releases, jobs and rights into one file while the workbench may run."""
    from blindsight.workbench.infra.backup import make_backup

    written = make_backup(read_settings(config, state, database, ledger), target)
    if json:
        emit_json(
            {
                "file": str(target),
                "moment": written.moment,
                "files": written.files,
                "heads": written.heads,
            }
        )
        return
    console.print(
        f"{target}: {written.files:,} files, {written.size / 1e6:,.1f} MB.",
        markup=False,
        soft_wrap=True,
    )
    errors.print(
        "It holds the vault's key and thumbnails: protect it like the photos themselves.",
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
    """Restore a backup into an empty state folder; each owner then decides about releases."""
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
    for used, name in ((done.ledger, "ledger"), (done.database, "database")):
        if not used:
            console.print(
                f"The {name} has entries already: it was left as it is, because a backup never "
                "replaces newer entries.",
                markup=False,
                soft_wrap=True,
            )
    for report in done.reports:
        for says in (*report.findings, report.note):
            if says:
                console.print(f"{report.data_set.name}: {says}", markup=False, soft_wrap=True)
    if done.reports:
        console.print("Decide about each data set on the page History.", markup=False)


def migrate(
    config: Config = None, state: State = None, database: Url = None, json: Json = False
) -> None:
    """Bring the database to this version's schema; starting the workbench does the same."""
    from blindsight.workbench.infra.database import Database

    opened = Database(read_settings(config, state, database).database_url)
    schema = opened.schema()
    opened.close()
    if json:
        emit_json({"schema": schema})
        return
    console.print(f"schema {schema}", markup=False)


def people(
    config: Config = None, state: State = None, database: Url = None, json: Json = False
) -> None:
    """List who has signed in with the identity provider, and all rights in data sets."""
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
    """Grant a role in a data set."""
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
    """Withdraw rights in a data set."""
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
        Path | None,
        typer.Option(help="Write the whole log: .json, which can be verified, or .csv."),
    ] = None,
    check: Annotated[Path | None, typer.Option(help="Verify an exported log (.json).")] = None,
    last: Annotated[int, typer.Option(help="How many records to show.")] = 20,
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """Show, verify and export the access log: who did what to which data set."""
    from blindsight.app.access_log import check_export
    from blindsight.app.hosting import write_file
    from blindsight.workbench.infra.database import AccessLog, Database

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
    table(f"access log, {head.sequence} records, verified", names, rows)


def _record(keys: Keys, action: str, dataset: str, release: str = "") -> None:
    from blindsight.workbench.infra.database import AccessLog

    with AccessLog(keys.database) as access_log:
        access_log.append(
            actor="command line", action=action, dataset=dataset, release=release, outcome="done"
        )
