"""The location of a ledger, and the names of its data sets.

A location is a file path or a database URL, shown without its password. A data set's name is
brought into one normal form, because two names that look alike would be two budgets for the same
photos.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

if TYPE_CHECKING:
    from sqlalchemy import URL

__all__ = ["Location", "dataset_name", "refuse_look_alike"]

DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
# Letters of other scripts that look like Latin ones (from Unicode's table of confusables).
LOOK_ALIKES = str.maketrans(
    "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u04cf"
    "\u03bf\u03b1\u03bd\u03c1\u03b9\u03ba\u03c5\u03c7\u0131",
    "aceopxyijshdqwloavpikuxi",
)
SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "GEORGIAN")


def dataset_name(raw: str) -> str:
    """A data set's name in its normal form.

    Width and composition variants are unified (NFKC), and spaces are stripped and collapsed.

    Raises:
        InvalidParameter: the name mixes letters of scripts that look alike, is written in another
            script throughout with letters that all look Latin, or holds invisible characters.

    Examples:
        >>> dataset_name(" ward  7 ")
        'ward 7'
    """
    name = " ".join(unicodedata.normalize("NFKC", raw).split())
    if any(unicodedata.category(letter) in ("Cf", "Mn", "Me", "Co", "Cn") for letter in name):
        raise InvalidParameter(
            f"the data set's name {name!r} holds invisible or combining characters. Use plain "
            "letters, so that one data set has one budget."
        )
    scripts = {_script(letter) for letter in name if letter.isalpha()} - {""}
    letters = {letter for letter in name.casefold() if letter.isalpha()}
    alike = scripts - {"LATIN"} and all(
        letter.translate(LOOK_ALIKES) != letter for letter in letters
    )
    if len(scripts) > 1 or alike:
        raise InvalidParameter(
            f"the data set's name {name!r} uses {' and '.join(sorted(scripts)).title()} letters "
            "that look like those of another script, and would be another budget than the name it "
            "looks like. Write it in one script."
        )
    return name


def refuse_look_alike(name: str, existing: Iterable[str]) -> None:
    """Refuse to start a data set whose name can be taken for one that is there already."""
    for candidate in existing:
        if candidate != name and _skeleton(candidate) == _skeleton(name):
            raise InvalidParameter(
                f"a new data set cannot be called {name!r}: the ledger has one called "
                f"{candidate!r}, "
                "and one data set has one budget. Use that name, or one that is not mistaken for "
                "it."
            )


def _skeleton(name: str) -> str:
    """What two names that look alike have in common."""
    plain = unicodedata.normalize("NFKC", name).casefold().translate(LOOK_ALIKES)
    return "".join(letter for letter in plain if letter.isalnum())


def _script(letter: str) -> str:
    word = unicodedata.name(letter, "").partition(" ")[0]
    return word if word in SCRIPTS else ""


class Location:
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
        return f"Location({str(self)!r})"

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
