"""Checks of a workbench: machine, folders, clock, database, ledger, access log and decoders."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from blindsight import __version__
from blindsight.app.library.accounts import Budgets, check_state
from blindsight.app.library.datasets import DataSets
from blindsight.core.errors import BlindsightError, LedgerTampered
from blindsight.workbench.infra.database import SCHEMA, AccessLog, Database
from blindsight.workbench.infra.guard import Metrics
from blindsight.workbench.infra.settings import WorkbenchSettings
from blindsight.workbench.infra.uploads import Decoders

__all__ = ["CheckResult", "examine"]

Level = Literal["good", "warning", "bad"]
_LEAST_FREE, _WARN_FREE = 200 << 20, 2 << 30  # bytes on the disk of the state folder
_OLDEST_YEAR = 2025  # an earlier clock was never set
_AHEAD = timedelta(minutes=5)
_EXPIRES_SOON = timedelta(days=21)
_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "authlib", "numpy", "pillow")


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Parameters:
        check: the name of the check.
        level: "good", "warning" or "bad".
        says: what was found and, unless it is good, what to do.
    """

    check: str
    level: Level
    says: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(settings: WorkbenchSettings) -> list[CheckResult]:
    """Run all checks in a fixed order; nothing is repaired, and no photo is opened.

    Parameters:
        settings: the settings of the workbench.

    Returns:
        The results, one or more per check.
    """
    checks: tuple[tuple[str, Callable[[WorkbenchSettings], Iterator[CheckResult]]], ...] = (
        ("versions", _versions),
        ("folder modes", _modes),
        ("free disk", _disk),
        ("clock", _clock),
        ("database", _database),
        ("ledger", _ledger),
        ("state", _state),
        ("access log", _access_log),
        ("decoder walls", _walls),
        ("network", _network),
    )
    findings: list[CheckResult] = []
    for name, check in checks:
        try:
            findings += check(settings)
        except (BlindsightError, OSError) as error:
            findings.append(CheckResult(name, "bad", str(error)))
    return findings


def _versions(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    packages = []
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages.append(f"{name} {metadata.version(name)}")
    words = f"Blindsight {__version__}, Python {platform.python_version()}, {', '.join(packages)}."
    yield CheckResult("versions", "good", words)
    if sys.platform != "linux":
        yield CheckResult(
            "versions",
            "warning",
            f"Decoders are confined on Linux only, and this is {sys.platform}. Run the workbench "
            "in the container.",
        )


def _modes(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    if not settings.state.is_dir():
        yield CheckResult("folder modes", "warning", f"{settings.state} does not exist yet.")
        return
    private = [settings.state, settings.state / "vault", settings.state / "vaults"]
    files = [*settings.state.glob("*.db*"), settings.state / "vault" / "key"]
    loose = [path for path in (*private, *files) if path.exists() and path.stat().st_mode & 0o077]
    # Others cannot reach anything inside a folder that they cannot open.
    if settings.state.stat().st_mode & 0o077 == 0:
        loose = []
    for path in loose:
        yield CheckResult(
            "folder modes",
            "bad",
            f"{path} can be read by others on this machine (mode {path.stat().st_mode & 0o777:o}). "
            f"Close it: chmod go= {path}",
        )
    if not loose:
        yield CheckResult("folder modes", "good", f"Only this user can open {settings.state}.")


def _disk(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    folder = settings.state if settings.state.is_dir() else settings.state.parent
    free = shutil.disk_usage(folder).free
    level: Level = "bad" if free < _LEAST_FREE else "warning" if free < _WARN_FREE else "good"
    advice = "" if level == "good" else " Free some: a full disk stops releases and the access log."
    yield CheckResult("free disk", level, f"{free / 1e9:.1f} GB are free for {folder}.{advice}")


def _clock(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    now = datetime.now(UTC)
    if now.year < _OLDEST_YEAR:
        yield CheckResult("clock", "bad", f"The clock shows {now:%Y-%m-%d}. Set it with NTP.")
        return
    last = ""
    budgets = Budgets(settings)
    try:
        for name in budgets.names():
            for entry in budgets.named(name).entries(
                after=max(0, budgets.named(name).head().sequence - 1)
            ):
                last = max(last, entry.time)
    finally:
        budgets.close()
    if last and datetime.fromisoformat(last) > now + _AHEAD:
        yield CheckResult(
            "clock",
            "bad",
            f"The ledger's last entry is of {last[:19]}, which is after the present time "
            f"{now:%Y-%m-%dT%H:%M:%S}: the clock went back. Set it with NTP.",
        )
        return
    yield CheckResult("clock", "good", f"The clock shows {now:%Y-%m-%d %H:%M:%S} UTC.")


def _database(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    start = time.perf_counter()
    database = Database(settings.database_url)
    schema = database.schema()
    database.close()
    level: Level = "good" if schema == SCHEMA else "bad"
    spent = 1000 * (time.perf_counter() - start)
    yield CheckResult("database", level, f"Schema {schema} of {SCHEMA}, opened in {spent:.0f} ms.")


def _ledger(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    budgets = Budgets(settings)
    try:
        names = budgets.names()
        if not names:
            yield CheckResult("ledger", "good", "No budget has been granted yet.")
        for name in names:
            try:
                head = budgets.named(name).verify()
            except LedgerTampered as error:
                yield CheckResult("ledger", "bad", f"{error} Restore the ledger from a backup.")
            else:
                says = f"{name}: {head.sequence} entries, head {head.hash}. Note it elsewhere."
                yield CheckResult("ledger", "good", says)
    finally:
        budgets.close()


def _state(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    datasets, budgets = DataSets(settings), Budgets(settings)
    try:
        for data_set in datasets.listed():
            ledger = budgets.named(data_set.account, create=True)
            report = check_state(datasets, data_set, ledger)
            for says in report.findings:
                yield CheckResult("state", "bad", f"{data_set.name}: {says}")
            if report.note:
                yield CheckResult("state", "warning", f"{data_set.name}: {report.note}")
            if report.may_release:
                yield CheckResult(
                    "state", "good", f"{data_set.name}: vault, ledger and releases agree."
                )
    finally:
        budgets.close()


def _access_log(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    database = Database(settings.database_url)
    try:
        head = AccessLog(database).verify()
    except LedgerTampered as error:
        yield CheckResult("access log", "bad", str(error))
    else:
        says = f"{head.sequence} records, head {head.hash}. Note it elsewhere."
        yield CheckResult("access log", "good", says)
    finally:
        database.close()


def _walls(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    async def look() -> tuple[str, ...]:
        decoders = Decoders(settings, Metrics())
        try:
            return await decoders.walls()
        finally:
            await decoders.close()

    walls = asyncio.run(look())
    if walls:
        yield CheckResult("decoder walls", "good", f"Decoders are confined by {', '.join(walls)}.")
    else:
        yield CheckResult(
            "decoder walls",
            "bad",
            "Decoders could not be started, or nothing confines them. Use Linux 5.13 or newer.",
        )


def _network(settings: WorkbenchSettings) -> Iterator[CheckResult]:
    if settings.plain_http:
        yield CheckResult(
            "network",
            "bad",
            f"plain_http is on: keys and photos cross the network of {settings.host} unencrypted.",
        )
    if settings.tls_cert is not None and settings.tls_key is not None:
        yield from _certificate(settings.tls_cert, settings.tls_key)
    elif not settings.plain_http:
        yield CheckResult(
            "network", "good", "Reached only on this machine, or through a named proxy."
        )


def _certificate(certificate: Path, key: Path) -> Iterator[CheckResult]:
    from cryptography import x509

    if key.stat().st_mode & 0o077:
        yield CheckResult(
            "network", "bad", f"{key} can be read by others. Close it: chmod go= {key}"
        )
    try:
        until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError:
        yield CheckResult("network", "bad", f"{certificate} is not a certificate in PEM format.")
        return
    remaining = until - datetime.now(UTC)
    level: Level = "warning" if remaining < _EXPIRES_SOON else "good"
    if remaining < timedelta():
        level = "bad"
    advice = "" if level == "good" else " Renew it."
    yield CheckResult(
        "network", level, f"TLS; the certificate is valid until {until:%Y-%m-%d}.{advice}"
    )
