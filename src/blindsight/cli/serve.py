"""`blindsight serve`: the workbench's pages and API; `blindsight serve key` makes, lists and
revokes API keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, errors, table

if TYPE_CHECKING:
    from blindsight.workbench.infra.identity import Keys
    from blindsight.workbench.infra.settings import Settings

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
    """Add the verb."""
    verbs = typer.Typer(
        help="Start the workbench: pages and API, on this machine and with no set-up."
    )
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
        typer.Option(help="A folder whose photos may be protected from the pages; repeat it."),
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
    from blindsight.workbench.infra.settings import Settings

    for folder in photos or ():
        if not folder.expanduser().is_dir():
            raise InvalidData(f"{folder} is not a folder. Check the path.")
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "state": state,
        "database": database,
        "ledger": ledger,
    }
    _run(
        Settings.read(
            config,
            **given,
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
        str, typer.Argument(help="Whose key; also the name of its budget in the ledger.")
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
    """Make a key and show it once; only its digest is kept."""
    key = open_keys(config, state, database).make(name, role)  # type: ignore[arg-type]  # it checks
    if json:
        emit_json({"name": name, "role": role, "key": key})
        return
    console.print(f"{name} ({role}): {key}", markup=False, soft_wrap=True)
    errors.print("Keep it now: it is not shown again.", markup=False)


def list_keys(
    config: Config = None, state: State = None, database: Url = None, json: Json = False
) -> None:
    """Names, roles and dates."""
    found = open_keys(config, state, database).listed()
    if json:
        emit_json({"keys": found})
        return
    rows = [(row["name"], row["role"], row["made"], row["revoked"] or "") for row in found]
    table("keys", ("name", "role", "made", "revoked"), rows)


def revoke_key(
    name: Annotated[str, typer.Argument(help="Whose key.")],
    config: Config = None,
    state: State = None,
    database: Url = None,
    json: Json = False,
) -> None:
    """End a key for good, and its sessions."""
    open_keys(config, state, database).revoke(name)
    if json:
        emit_json({"name": name, "revoked": True})
        return
    console.print(f"{name}: revoked", markup=False)


def read_settings(
    config: Path | None, state: Path | None, database: str | None, ledger: str | None = None
) -> Settings:
    """The workbench's settings, after checking that what it needs is installed."""
    from blindsight.app.hosting import require_package

    for package in ("fastapi", "alembic"):
        require_package(package, extra="workbench")
    from blindsight.workbench.infra.settings import Settings

    given: dict[str, Any] = {"state": state, "database": database, "ledger": ledger}
    return Settings.read(config, **given)


def open_keys(config: Path | None, state: Path | None, database: str | None) -> Keys:
    """The workbench's keys, people and rights."""
    settings = read_settings(config, state, database)
    from blindsight.workbench.infra.database import Database
    from blindsight.workbench.infra.identity import Keys

    return Keys(Database(settings.database_url))


def _run(settings: Any) -> None:
    import os
    import secrets
    import signal
    import sys

    from blindsight.workbench.app import create_app
    from blindsight.workbench.infra.server import (
        bound_memory,
        check_certificate,
        listening_socket,
        lock_state,
        serve,
        start_logging,
    )

    start_logging(settings.log)
    check_certificate(settings)
    # A port that is in use is reported first, before folders and databases are made.
    listener = listening_socket(settings)
    bound_memory()
    os.umask(0o077)
    lock = lock_state(settings)
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
    # uvicorn stops in good order and then raises the signal again: that is an end as wished, not a
    # failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    serve(app, settings, listener)
    lock.close()
