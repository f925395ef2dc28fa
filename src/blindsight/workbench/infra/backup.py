"""Backup and restore of a whole workbench: vault, ledger, releases, private folders, jobs, rights.

A backup is one tar file with a list of its files and their SHA-256. It contains the vault's key and
thumbnails, so it must be protected like the photos themselves. Sessions are not included. A backup
can be made while the workbench runs; releases wait until it is complete.

A restore needs an empty state folder, never replaces a ledger or a database that has entries, and
blocks releases from every data set until its owner has decided.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import sqlalchemy as sql

from blindsight import __version__
from blindsight.app.library.accounts import (
    StateReport,
    copy_database,
    copy_ledger,
    hold_state,
    reports_after_restore,
    restore_ledger,
)
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.workbench.infra.database import (
    ACCESS_HEAD,
    METADATA,
    SCHEMA,
    SESSIONS,
    AccessLog,
    Database,
)
from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = ["Backup", "Restored", "make_backup", "restore_backup"]

_FORMAT = "blindsight workbench backup 1"
_MANIFEST, _LEDGER, _DATABASE = "backup.json", "ledger.db", "workbench.db"
_LARGEST_MANIFEST = 256 << 20
# Files of the state folder that are not copied: locks, logs, and databases, which have a copy of
# their own.
_LEFT_OUT = {"lock", "server.log", "ledger.db", "workbench.db", "studio.db", "restored.json"}
_UNFINISHED = re.compile(r"\..*\.part")  # files and folders that others are just writing
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Backup:
    """What a backup holds.

    Parameters:
        path: the file of the backup.
        moment: when it was made, in UTC.
        files: the number of files in it.
        size: the total size of these files in bytes.
        heads: the ledger's head of each account; note them elsewhere.
    """

    path: Path
    moment: str
    files: int
    size: int
    heads: dict[str, str]


@dataclass(frozen=True)
class Restored:
    """What a restore did.

    Parameters:
        moment: when the backup was made.
        files: the number of restored files.
        ledger: whether the ledger, if the backup has one, was restored; otherwise the present one
            was not changed.
        database: whether the database was restored; otherwise the present one was not changed.
        reports: how vault, ledger and releases of each data set compare.
    """

    moment: str
    files: int
    ledger: bool
    database: bool
    reports: list[StateReport]


def make_backup(
    settings: WorkbenchSettings, target: Path, *, actor: str = "command line"
) -> Backup:
    """Write a backup of the workbench's state.

    Parameters:
        settings: where the state, the ledger and the database are.
        target: a new tar file.
        actor: who makes it, for the access log.

    Returns:
        What the backup contains.

    Raises:
        InvalidParameter: if the file exists, or there is no state to copy.
    """
    exists = InvalidParameter(f"{target} exists already. Choose another name for the backup.")
    if target.exists():
        raise exists
    if not settings.state.is_dir():
        raise InvalidParameter(f"there is no workbench in {settings.state}. Name it with --state.")
    target.parent.mkdir(parents=True, exist_ok=True)
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    digests: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(".part", ".backup-", target.parent) as scratch:
        copies = Path(scratch)
        unfinished = copies / "backup.tar"
        descriptor = os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            with hold_state(settings):
                heads = copy_ledger(settings, copies / _LEDGER)
                _copy_tables(settings, copies / _DATABASE, actor)
                for name in (_LEDGER, _DATABASE):
                    if (copies / name).is_file():
                        _add(tar, copies / name, name, digests)
                for path in _state_files(settings.state):
                    name = path.relative_to(settings.state).as_posix()
                    try:
                        if path.suffix == ".db":
                            copy_database(path, copies / "copy")
                            _add(tar, copies / "copy", f"state/{name}", digests)
                            (copies / "copy").unlink()
                        else:
                            _add(tar, path, f"state/{name}", digests)
                    except (FileNotFoundError, sqlite3.OperationalError):
                        if path.exists():
                            raise  # else it was removed after it was listed
            hashes = {name: head.hash for name, head in heads.items()}
            fields = {
                "format": _FORMAT,
                "version": __version__,
                "schema": SCHEMA,
                "moment": moment,
                "heads": hashes,
                "files": digests,
            }
            content = json.dumps(fields, indent=1).encode()
            member = tarfile.TarInfo(_MANIFEST)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            raise exists
        unfinished.rename(target)
    size = sum(entry["size"] for entry in digests.values())
    return Backup(target, moment, len(digests), size, hashes)


def restore_backup(
    settings: WorkbenchSettings,
    source: Path,
    *,
    releases: Path | None = None,
    actor: str = "command line",
) -> Restored:
    """Restore a backup.

    Parameters:
        settings: where the state, the ledger and the database are to be.
        source: the backup.
        releases: a folder with copies of releases that were made after the backup, if there are
            any; they are added to those of the backup, so that the comparison finds what the
            backup lacks.
        actor: who restores it, for the access log.

    Returns:
        What was restored.

    Raises:
        InvalidParameter: if the state folder has files already.
        HostileFile: if the backup was changed, or is not a backup.
    """
    state = settings.state
    if state.is_dir() and any(state.iterdir()):
        raise InvalidParameter(
            f"{state} has files already, and a backup never replaces them. Move the folder aside, "
            "and do not delete it: it shows what was released since the backup."
        )
    state.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state.parent, prefix=".restore-") as scratch:
        folder = Path(scratch)
        fields = _extract(source, folder)
        (folder / "state").mkdir(exist_ok=True)
        if releases is not None:
            _add_releases(releases, folder / "state" / "releases")
        if state.is_dir():
            state.rmdir()
        (folder / "state").rename(state)
        state.chmod(0o700)
        backed_up = folder / _LEDGER  # not there where nothing was ever charged
        used_ledger = not backed_up.is_file() or restore_ledger(settings, backed_up)
        used_database = _restore_tables(settings, folder / _DATABASE)
    moment = str(fields["moment"])
    reports = reports_after_restore(settings, moment)
    database = Database(settings.database_url)
    with AccessLog(database) as log:
        log.append(actor=actor, action=f"restore of the backup of {moment}", outcome="done")
    database.close()
    return Restored(moment, len(fields["files"]), used_ledger, used_database, reports)


def _state_files(state: Path) -> Iterator[Path]:
    """Yield the files to copy, in order; others may remove files and folders meanwhile."""
    for folder, folders, names in os.walk(state):
        folders[:] = sorted(name for name in folders if not _UNFINISHED.fullmatch(name))
        for name in sorted(names):
            path = Path(folder, name)
            top = path.parent == state and (name in _LEFT_OUT or name.endswith(("-wal", "-shm")))
            database_log = name.endswith((".db-wal", ".db-shm", ".db-journal"))
            left_out = top or database_log or _UNFINISHED.fullmatch(name)
            if path.is_file() and not path.is_symlink() and not left_out:
                yield path


def _add(tar: tarfile.TarFile, path: Path, name: str, digests: dict[str, dict[str, Any]]) -> None:
    """Add the present content of a file, which others may write to meanwhile."""
    content = path.read_bytes()
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(path.stat().st_mtime)
    tar.addfile(member, io.BytesIO(content))
    digests[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _copy_tables(settings: WorkbenchSettings, target: Path, actor: str) -> None:
    source = Database(settings.database_url)
    with AccessLog(source) as log:
        log.append(actor=actor, action="backup", outcome="done")
    copy = Database(f"sqlite:///{target}")
    try:
        _copy_rows(source, copy)
    finally:
        source.close()
        copy.close()
    with copy.engine.connect() as connection:  # put everything into one file
        connection.execute(sql.text("PRAGMA wal_checkpoint(TRUNCATE)"))
        connection.execute(sql.text("PRAGMA journal_mode=DELETE"))
    copy.close()


def _copy_rows(source: Database, target: Database) -> None:
    with source.engine.connect() as reading:
        if reading.dialect.name == "postgresql":
            reading = reading.execution_options(isolation_level="REPEATABLE READ")
        with target.begin() as writing:
            writing.execute(sql.delete(ACCESS_HEAD))
            for table in METADATA.sorted_tables:
                if table is SESSIONS:
                    continue
                rows = [dict(row) for row in reading.execute(sql.select(table)).mappings()]
                for start in range(0, len(rows), 1000):
                    writing.execute(sql.insert(table), rows[start : start + 1000])


def _restore_tables(settings: WorkbenchSettings, copy: Path) -> bool:
    target = Database(settings.database_url)
    try:
        tables = [t for t in METADATA.sorted_tables if t not in (SESSIONS, ACCESS_HEAD)]
        with target.engine.connect() as connection:
            used = any(connection.execute(sql.select(t).limit(1)).first() for t in tables)
        if used:
            return False
        source = Database(f"sqlite:///{copy}")  # opening it upgrades its schema
        try:
            _copy_rows(source, target)
        finally:
            source.close()
        return True
    finally:
        target.close()


def _extract(source: Path, folder: Path) -> dict[str, Any]:
    """Unpack a backup, and check every file against the manifest."""
    wrong = HostileFile(
        f"{source} is not a backup of a workbench, or it was changed or cut off. Nothing was "
        "restored; use another copy."
    )
    digests: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(source, mode="r:") as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                plain = member.isreg() and parts and not {"..", "/", "."} & set(parts)
                if not plain or member.name in digests or manifest is not None:
                    raise wrong
                stream = tar.extractfile(member)
                if stream is None:
                    raise wrong
                if member.name == _MANIFEST:
                    if member.size > _LARGEST_MANIFEST:
                        raise wrong
                    manifest = json.loads(stream.read())
                    continue
                digests[member.name] = _unpack(stream, folder / Path(*parts))
    except (tarfile.TarError, OSError, ValueError, RecursionError) as error:
        raise wrong from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise wrong
    if manifest.get("files") != digests or not isinstance(manifest.get("moment"), str):
        raise wrong
    if str(manifest.get("schema")) > SCHEMA:
        raise InvalidParameter(
            f"the backup was made by Blindsight {manifest.get('version')}, whose database has a "
            "newer schema. Install that version, or a newer one."
        )
    return manifest


def _unpack(stream: Any, target: Path) -> dict[str, Any]:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while block := stream.read(_BLOCK):
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "size": size}


def _add_releases(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_dir() and not path.is_symlink() and not (target / path.name).exists():
            shutil.copytree(path, target / path.name, symlinks=True)
