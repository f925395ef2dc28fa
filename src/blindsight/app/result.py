"""Results of the functions of `blindsight.app`: frozen values that print, render and serialise."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from blindsight.data.listing import FilesRead, valid_text
from blindsight.privacy.guarantee import Guarantee

__all__ = [
    "JobResult",
    "Progress",
    "ResultTable",
    "counted",
    "files_table",
    "framed",
    "to_plain",
    "tqdm_progress",
]

#: Called with (stage, done, total) while a job runs; `total` is 0 where it is not known.
Progress = Callable[[str, int, int], None]

#: The width of results as text: the default width of a terminal.
_TEXT_WIDTH = 80


def counted(number: int, word: str, plural: str = "") -> str:
    """Return a number with its noun.

    Parameters:
        number: the number.
        word: the noun in the singular.
        plural: the noun in the plural; by default the word with an s.

    Examples:
        >>> counted(1, "photo"), counted(2000, "photo"), counted(0, "entry", "entries")
        ('1 photo', '2,000 photos', '0 entries')
    """
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


class _Bar(Protocol):
    """The methods of a tqdm bar that are used."""

    n: float

    def update(self, n: float) -> object: ...
    def close(self) -> object: ...


def tqdm_progress(tqdm: Callable[..., _Bar]) -> Progress:
    """Show progress by bars of tqdm, or of another class with the same interface.

    Parameters:
        tqdm: the class, for example `tqdm.auto.tqdm`; each stage has its own bar, or a line of text
            if it has no count.

    Returns:
        The value for `progress=` of every function in `blindsight.app`.

    Examples:
        >>> import io
        >>> from tqdm import tqdm
        >>> from functools import partial
        >>> progress = tqdm_progress(partial(tqdm, file=io.StringIO()))
        >>> progress("releasing codes", 1, 2)
        >>> progress("releasing codes", 2, 2)
    """
    bars: dict[str, _Bar] = {}

    def show(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            bars.clear()
            # A stage without a count is a line of text.
            bars[stage] = tqdm(
                desc=stage, total=total or None, bar_format=None if total else "{desc}"
            )
        bars[stage].update(done - bars[stage].n)
        if total and done >= total:
            bars.pop(stage).close()

    return show


@dataclass(frozen=True)
class ResultTable:
    """A table inside a result.

    Parameters:
        title: the title of the table.
        columns: the names of the columns.
        rows: one sequence of texts per row, as long as `columns`.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def files_table(files: FilesRead) -> ResultTable:
    """Return the table of files that were read and files that were not, by kind."""
    return ResultTable("Files", ("files", "count", "first names", "what to do"), files.rows())


class JobResult(ABC):
    """Base class of the values that `blindsight.app` functions return.

    A subclass is a frozen dataclass that defines `title`, `facts` and optionally `tables`, which
    printing, rendering in a notebook and conversion to JSON values use.

    Examples:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Count(JobResult):
        ...     photos: int
        ...     @property
        ...     def title(self) -> str:
        ...         return "Photos counted"
        ...     def facts(self) -> list[tuple[str, str]]:
        ...         return [("photos", f"{self.photos:,}")]
        >>> print(Count(1200))
        Photos counted
          photos  1,200
        >>> Count(1200).to_dict()
        {'photos': 1200}
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """One line that states the result."""

    @abstractmethod
    def facts(self) -> Sequence[tuple[str, str]]:
        """Pairs of a label and a text, in the order in which they are shown."""

    def tables(self) -> Sequence[ResultTable]:
        """Tables that are shown below the facts."""
        return ()

    def to_dict(self) -> dict[str, object]:
        """Return the fields as values that `json.dumps` accepts."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        return {field.name: to_plain(getattr(self, field.name)) for field in fields}

    def __str__(self) -> str:
        facts = list(self.facts())
        width = max((len(label) for label, _ in facts), default=0)
        lines = _wrapped(self.title, _TEXT_WIDTH)
        for label, value in facts:
            wrapped = _wrapped(value, _TEXT_WIDTH - width - 4)
            lines.append(f"  {label:<{width}}  {wrapped[0]}".rstrip())
            lines += [f"  {'':<{width}}  {line}" for line in wrapped[1:]]
        for table in self.tables():
            lines += ["", *_text_table(table)]
        return valid_text("\n".join(lines))

    def _repr_html_(self) -> str:
        pairs = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for label, value in self.facts()
        )
        parts = [f"<p><strong>{html.escape(self.title)}</strong></p>", f"<table>{pairs}</table>"]
        return valid_text("".join([*parts, *(_html_table(table) for table in self.tables())]))


def framed(page: str) -> str:
    """Return an HTML page in a frame, so that its style does not change the notebook."""
    text = page.replace("&", "&amp;").replace('"', "&quot;")
    return f'<iframe srcdoc="{text}" style="width:100%;height:640px;border:0" sandbox></iframe>'


def to_plain(value: object) -> object:
    """Convert a value to what `json.dumps` accepts.

    Parameters:
        value: a JSON value, path, `Guarantee`, array, dataclass, named tuple, or a mapping or
            sequence of these. Numbers that JSON lacks (NaN, infinity) become None.

    Raises:
        TypeError: if the value is none of these.

    Examples:
        >>> to_plain({"folder": Path("photos"), "scores": (0.5, float("nan"))})
        {'folder': 'photos', 'scores': [0.5, None]}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Guarantee):
        return json.loads(value.to_json())
    if isinstance(value, (np.ndarray, np.generic)):
        return to_plain(value.tolist())
    if isinstance(value, JobResult):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, (Sequence, frozenset, set)) and not isinstance(value, bytes):
        parts = sorted(value, key=str) if isinstance(value, (frozenset, set)) else value
        return [to_plain(part) for part in parts]
    raise TypeError(f"{type(value).__name__} has no form as JSON values.")


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; long words such as paths are not split, to be copied."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _text_table(table: ResultTable) -> list[str]:
    """Return the lines of a table, with the widest columns wrapped to the width of results."""
    rows = [tuple(table.columns), *(tuple(row) for row in table.rows)]
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    share = _TEXT_WIDTH // len(widths) - 2  # a longer word exceeds its column
    words = [
        min(width, share, max(len(word) for cell in cells for word in cell.split() or [""]))
        for width, cells in zip(widths, columns, strict=True)
    ]
    while sum(widths) + 2 * len(widths) > _TEXT_WIDTH and widths != words:
        wide = [width if width > word else 0 for width, word in zip(widths, words, strict=True)]
        widths[wide.index(max(wide))] -= 1
    lines = [table.title]
    for row in rows:
        parts = (_wrapped(cell, width) for cell, width in zip(row, widths, strict=True))
        for cells in itertools.zip_longest(*parts, fillvalue=""):
            padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
    return lines


def _html_table(table: ResultTable) -> str:
    head = "".join(
        f"<th style='text-align:left'>{html.escape(name)}</th>" for name in table.columns
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in table.rows
    )
    return (
        f"<table><caption style='text-align:left'>{html.escape(table.title)}</caption>"
        f"<tr>{head}</tr>{body}</table>"
    )
