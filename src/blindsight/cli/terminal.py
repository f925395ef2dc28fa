"""What every verb prints with: one console, one progress bar, one table, one JSON writer."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["console", "emit_json", "errors", "notes", "progress_bar", "table"]

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; yields a function to call with (done, total)."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,  # nothing but a blank line would be left in a log
    )
    with bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; numbers are set to the right, columns with nothing in them are left out."""
    shown = Table(title=title, title_justify="left")
    kept = [i for i in range(len(columns)) if not rows or any(row[i] not in ("", None) for row in rows)]
    for index in kept:
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        shown.add_column(columns[index], justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(f"{row[i]:.4g}" if isinstance(row[i], float) else str(row[i]) for i in kept))
    console.print(shown)


def emit_json(value: Any) -> None:
    """JSON on standard output, and nothing else there."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")


@contextmanager
def notes() -> Iterator[None]:
    """Warnings of the library as lines on standard error, without Python's file and line.

    That nothing was charged is left out: verbs with a --ledger say so themselves.
    """
    from blindsight.core.errors import UnchargedRelease

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", UnchargedRelease)
        yield
    for told in dict.fromkeys(str(one.message) for one in caught):
        errors.print(f"Note: {told}", markup=False, soft_wrap=True)
