"""Output of all verbs: the console, progress bars, tables and JSON."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path

    from blindsight.app.result import JobResult, ResultTable
    from blindsight.data.listing import FilesRead

__all__ = [
    "BROKEN_PIPE",
    "console",
    "emit_json",
    "errors",
    "notes",
    "print_result",
    "progress_bar",
    "show_card",
    "show_files",
    "show_shared",
    "show_tables",
    "stage_bar",
    "table",
    "visible",
]

#: The exit code if the reader of the output has gone (`| head`), as shells report it; 1 would mean
#: that a claim was refuted.
BROKEN_PIPE = 141


class _Console(Console):
    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as rich does, but with `soft_wrap` wrap text at words on a terminal.

        Lines for a file or a pipe are not wrapped.
        """
        if soft_wrap:
            objects = tuple(self.fitted(text) if type(text) is str else text for text in objects)
        super().print(*objects, soft_wrap=soft_wrap, **options)

    def fitted(self, text: str) -> str:
        """Wrap text at the terminal's width; text for a file or a pipe is returned unchanged.

        Long words such as paths are not broken, so that they can be copied.
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
        disable=not errors.is_terminal,  # it would leave a blank line in a log
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
    """Print a table with numbers right-aligned and without empty columns.

    Parameters:
        title: what the rows are.
        columns: the names of the columns.
        rows: one sequence of cells per row.
        err: print to standard error instead of standard output.
    """
    grid = Table(title=visible(title), title_justify="left")
    filled = [
        i for i in range(len(columns)) if not rows or any(row[i] not in ("", None) for row in rows)
    ]
    printer = errors if err else console
    texts = [
        [visible(f"{row[i]:.4g}" if isinstance(row[i], float) else str(row[i])) for i in filled]
        for row in rows
    ]
    contents = [(columns[i], *(cells[place] for cells in texts)) for place, i in enumerate(filled)]
    # Where every word fits, columns of several words give way, and no id is broken into two lines.
    words = [max(map(cell_len, " ".join(content).split()), default=0) for content in contents]
    fits = sum(words) + 3 * len(words) + 1 <= printer.width
    for index, content in zip(filled, contents, strict=True):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        grid.add_column(
            columns[index],
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=fits and not any(" " in text for text in content),
        )
    for cells in texts:
        grid.add_row(*(Text(cell) for cell in cells))
    printer.print(grid)


def show_tables(tables: Iterable[ResultTable], *, err: bool = False) -> None:
    """Print the tables of a result, to standard error with `err`."""
    for content in tables:
        table(content.title, content.columns, content.rows, err=err)


def show_files(files: FilesRead | None, *, err: bool = False) -> None:
    """Print how many files were read, and a table of copies and skipped files if there are any.

    Parameters:
        files: what was read of a folder; None prints nothing.
        err: print to standard error instead of standard output.
    """
    from blindsight.app.result import files_table

    if files is not None and (files.copies or files.skipped):
        show_tables([files_table(files)], err=err)
    elif files is not None and files.read > 1:
        (errors if err else console).print(f"Files: {files.read:,} photos read.")


def show_shared(file: Path | None) -> None:
    """Name the folder in which a verb put a signed copy of its file for others, if there is one."""
    folder = None if file is None else file.with_name(f"{file.name}.shared")
    if folder is not None and folder.is_dir():
        console.print(
            visible(
                f"Share {folder}: the file with its card and a signature, which a receiver checks "
                f"with: blindsight open {folder.name}"
            ),
            markup=False,
            soft_wrap=True,
        )


def visible(text: str) -> str:
    """Escape control characters, so that file names and labels cannot control the terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text
    )


def show_card(card: str) -> None:
    """Print a card of "label  value" lines; the further lines of a value are indented."""
    for line in card.splitlines():
        match = re.match(r"(  \S.*?)  +(\S.*)", line)
        if match is None:
            console.print(line, markup=False)
            continue
        label, value = match.groups()
        at = match.start(2) if match.start(2) <= console.width // 3 else 6
        words = textwrap.wrap(value, max(20, console.width - at), break_on_hyphens=False)
        if at != match.start(2):
            console.print(label, markup=False)
            words.insert(0, "")
        rest = [f"{'':{at}}{part}" for part in words[1:]]
        first = [f"{label:<{at}}{words[0]}"] if words[0] else []
        console.print("\n".join([*first, *rest]), markup=False, soft_wrap=True)


def emit_json(value: Any) -> None:
    """Print a value as JSON on standard output.

    A byte of a file name that is not UTF-8 is written as the escape of a lone surrogate, so that a
    reader gets the name back with `os.fsencode`.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n"
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())


def print_result(result: JobResult, *, as_json: bool, text: str | None = None) -> None:
    """Print a result as JSON or as text.

    Parameters:
        result: what a function of `blindsight.app` returned.
        as_json: print JSON.
        text: the text to print instead of the whole result.
    """
    if as_json:
        emit_json(result.to_dict())
    else:
        console.print(str(result) if text is None else text, markup=False, soft_wrap=True)


@contextmanager
def notes() -> Iterator[None]:
    """Print warnings of the library on standard error, without Python's file and line.

    `UnchargedRelease` is ignored: verbs with --ledger report themselves that nothing was charged.
    """
    from blindsight.core.errors import UnchargedRelease

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", UnchargedRelease)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        errors.print(f"Note: {message}", markup=False, soft_wrap=True)
