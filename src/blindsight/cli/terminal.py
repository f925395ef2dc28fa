"""What every verb prints with: one console, one progress bar, one table, one JSON writer."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead

__all__ = [
    "BROKEN_PIPE",
    "console",
    "emit_json",
    "errors",
    "notes",
    "progress_bar",
    "show_card",
    "show_files",
    "stage_bar",
    "table",
    "visible",
]

# : what a shell says of a program whose reader has gone (`| head`); 1 would say that a claim was
# refuted.
BROKEN_PIPE = 141


class _Console(Console):
    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as rich does; a text with `soft_wrap` is wrapped at words on a terminal, and in a
        file or a pipe its lines stay whole.
        """
        if soft_wrap:
            objects = tuple(self.fitted(text) if type(text) is str else text for text in objects)
        super().print(*objects, soft_wrap=soft_wrap, **options)

    def fitted(self, text: str) -> str:
        """Text whose lines fit the terminal; a path or another long word stays whole, so that it
        can be copied. Text for a file or a pipe is returned as it is.
        """
        if not self.is_terminal:
            return text
        return "\n".join(
            part
            for line in text.split("\n")
            for part in textwrap.wrap(
                line,
                self.width,
                subsequent_indent=" " * (len(line) - len(line.lstrip())),
                break_long_words=False,
                break_on_hyphens=False,
            )
            or [""]
        )

    def on_broken_pipe(self) -> None:
        """Stop writing, quietly."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(BROKEN_PIPE) from None


console = _Console(highlight=False)
errors = _Console(stderr=True, highlight=False)


@contextmanager
def stage_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on standard error; yield a function to call with (stage, done, total)."""
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
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield show


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for one stage; yield a function to call with (done, total)."""
    with stage_bar() as show:
        show(description, 0, 0)
        yield lambda done, total: show(description, done, total)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    err: bool = False,
) -> None:
    """Print a table; numbers are set to the right, columns with nothing in them are left out.

    Parameters:
        title: what the rows are.
        columns: the names of the columns.
        rows: one sequence of cells per row.
        err: print to standard error instead of standard output.
    """
    shown = Table(title=visible(title), title_justify="left")
    kept = [
        i for i in range(len(columns)) if not rows or any(row[i] not in ("", None) for row in rows)
    ]
    for index in kept:
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        shown.add_column(columns[index], justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = (f"{row[i]:.4g}" if isinstance(row[i], float) else str(row[i]) for i in kept)
        shown.add_row(*(Text(visible(cell)) for cell in cells))
    (errors if err else console).print(shown)


def show_files(files: FilesRead | None, *, err: bool = False) -> None:
    """Print what became of the files, with which every verb ends that reads photos: a table, or a
    line where all of them were read.

    Parameters:
        files: what became of the files; nothing is printed where no folder was read.
        err: print to standard error, where standard output is for data.
    """
    from blindsight.app.result import files_table

    if files is not None and (files.copies or files.skipped):
        shown = files_table(files)
        table(shown.title, shown.columns, shown.rows, err=err)
    elif files is not None and files.read > 1:
        (errors if err else console).print(f"Files: {files.read:,} photos read.")


def visible(text: str) -> str:
    """Text with control characters spelled out: the names of other people's files and labels
    command no terminal.
    """
    return "".join(
        char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text
    )


def show_card(card: str) -> None:
    """A card of "label  value" lines in the terminal's width: a value's further lines stand under
    its first.
    """
    for line in card.splitlines():
        found = re.match(r"(  \S.*?)  +(\S.*)", line)
        if found is None:
            console.print(line, markup=False)
            continue
        label, value = found.groups()
        at = found.start(2) if found.start(2) <= console.width // 3 else 6
        words = textwrap.wrap(value, max(20, console.width - at), break_on_hyphens=False)
        if at != found.start(2):
            console.print(label, markup=False)
            words.insert(0, "")
        rest = [f"{'':{at}}{part}" for part in words[1:]]
        first = [f"{label:<{at}}{words[0]}"] if words[0] else []
        console.print("\n".join([*first, *rest]), markup=False, soft_wrap=True)


def emit_json(value: Any) -> None:
    """JSON on standard output, and nothing else there.

    A byte of a file's name that is not UTF-8 is written as the escape of a lone surrogate, so that
    a reader gets the name back with `os.fsencode`.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n"
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())


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
