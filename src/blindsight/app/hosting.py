"""What a program around the jobs needs of its machine: threads, files and packages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.core import threads

if TYPE_CHECKING:
    from blindsight.privacy.ledger.place import Place

__all__ = ["database_place", "limit_threads", "require_package", "write_file"]


def limit_threads() -> None:
    """Let the numeric libraries use one thread each, unless the user has set their variables.

    Call it before numpy or torch is imported.
    """
    threads.limit()


def require_package(name: str, *, extra: str) -> None:
    """Raise `MissingDependency`, with how to install it, where an optional package is missing."""
    from blindsight.core.checks import optional_module

    optional_module(name, extra=extra)


def write_file(path: str | Path, content: bytes) -> None:
    """Write a file in one piece: after a crash there is the old content or the new.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_file(path, b"text")
        >>> path.read_bytes()
        b'text'
    """
    from blindsight.core.storage import write_atomically

    write_atomically(Path(path), content)


def database_place(address: str | Path) -> Place:
    """Return where a database is: a SQLite file, or a PostgreSQL server; printing hides passwords.

    Raises:
        InvalidParameter: if the address is neither.
    """
    from blindsight.privacy.ledger.place import Place

    return Place(address)
