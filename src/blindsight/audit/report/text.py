"""The report in plain text: lines that fit a terminal, and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from blindsight.audit.report.verdict import COLUMNS, Verdict

__all__ = ["NOT_REFUTED", "columns", "lines_of", "markdown", "verdict_lines", "wrapped"]

Rows = Sequence[Mapping[str, Any]]
#: said once in every report.
NOT_REFUTED = (
    "REFUTED: an attack measured more than is promised. Not refuted: it did not, which is no "
    "proof; audited numbers "
    "are lower bounds, and more trials can only raise them."
)


def wrapped(words: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """A paragraph in lines of at most `width`; words are never cut."""
    return textwrap.wrap(
        words,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(rows: Rows, width: int) -> list[str]:
    """A table whose first column takes the room that is left and wraps; where that is too little,
    one line per cell.
    """
    names = _names(rows)
    texts = [[str(row.get(name, "")) for name in names] for row in rows]
    sizes = [max(len(name), *(len(line[i]) for line in texts)) for i, name in enumerate(names)]
    room = width - sum(size + 2 for size in sizes[1:])
    if room < min(sizes[0], 16):
        return [
            f"{name}: {cell}"
            for line in texts
            for name, cell in zip(names, line, strict=True)
            if cell
        ]
    sizes[0] = min(sizes[0], room)
    lines = []
    for line in [names, *texts]:
        parts = wrapped(line[0], sizes[0]) or [""]
        for number, part in enumerate(parts):
            cells = line[1:] if number == len(parts) - 1 else [""] * (len(names) - 1)
            ends = (f"  {cell:>{size}}" for cell, size in zip(cells, sizes[1:], strict=True))
            lines.append((f"{part:<{sizes[0]}}" + "".join(ends)).rstrip())
    return lines


def verdict_lines(verdict: Verdict, width: int) -> list[str]:
    """One verdict: the word and the method, then its three numbers."""
    method, setting, unit, claimed, proven, audited, attack, word = verdict.cells()
    numbers = (
        f"claimed {claimed}, proven {proven}, audited {audited or 'nothing'}, per {unit}; by "
        f"{attack}"
    )
    return [
        *wrapped(f"{word}: {method}, {setting}", width, rest="  "),
        *wrapped(numbers, width, first="  ", rest="  "),
    ]


def lines_of(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The table of verdicts as rows."""
    return [dict(zip(("part", *COLUMNS), (v.room, *v.cells()), strict=True)) for v in verdicts]


def markdown(rows: Rows) -> list[str]:
    """Rows as a Markdown table."""
    names = _names(rows)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + [
        "| " + " | ".join(str(row.get(name, "")).replace("|", "\\|") for name in names) + " |"
        for row in rows
    ]


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
