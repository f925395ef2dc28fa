"""Where a ledger lives: a file path or a database URL, and how to name it without its password."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

if TYPE_CHECKING:
    from sqlalchemy import URL

__all__ = ["Place"]

DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}


class Place:
    """A parsed path or URL. `str` and `repr` never show a password."""

    def __init__(self, where: str | os.PathLike[str]) -> None:
        if not isinstance(where, (str, os.PathLike)) or not os.fspath(where):
            raise InvalidParameter(
                f"a ledger lives in a file path or a database URL, got {type(where).__name__}."
            )
        text = os.fspath(where)
        if not isinstance(text, str):
            raise InvalidParameter("a ledger's path must be text, got bytes.")
        self.url: URL = _url(text) if "://" in text else _file_url(text)
        self.file: Path | None = None
        if self.url.get_backend_name() == "sqlite":
            name = self.url.database
            if not name or ":memory:" in name or name.startswith("file:"):
                raise InvalidParameter(
                    "a ledger must survive the process, so it cannot live in memory: give it a "
                    "file path."
                )
            self.file = Path(name).absolute()
            self.url = self.url.set(database=str(self.file))
        else:
            checks.optional_module("psycopg", extra="cluster")

    def __str__(self) -> str:
        if self.file is not None:
            return str(self.file)
        # Query options may hold a password too, so none of them is shown.
        return self.url.set(query={}).render_as_string(hide_password=True)

    def __repr__(self) -> str:
        return f"Place({str(self)!r})"

    def redact(self, message: str) -> str:
        """A driver's message without any secret of the URL."""
        secrets = [
            self.url.password,
            self.url.query.get("password"),
            self.url.query.get("sslpassword"),
        ]
        for secret in secrets:
            if isinstance(secret, str) and secret:
                message = message.replace(secret, "***")
        return message


def _file_url(text: str) -> URL:
    from sqlalchemy import URL

    return URL.create(DRIVERS["sqlite"], database=text)


def _url(text: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # The cause is dropped because it may quote the URL, password and all.
        raise InvalidParameter(
            "the ledger's URL cannot be read. Expected a file path, sqlite:///path or "
            "postgresql://user@host/name."
        ) from None
    backend = url.get_backend_name()
    if backend not in DRIVERS:
        raise InvalidParameter(f"a ledger lives in SQLite or PostgreSQL, got a URL of {backend!r}.")
    return url.set(drivername=DRIVERS[backend])
