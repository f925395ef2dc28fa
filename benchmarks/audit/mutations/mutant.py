"""A planted bug: one replacement of text, and the scenes in which the audit should see it."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Mutant", "bugs"]


@dataclass(frozen=True)
class Mutant:
    """A bug: in which file of the package, which text becomes which, and where it should show: in
    scenes of the audit ("part:TestCase"), or in tests (paths for pytest).
    """

    name: str
    path: str
    old: str
    new: str
    scenes: tuple[str, ...]
    tests: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The part of the package that it is in."""
        return self.path.partition("/")[0]

    @property
    def group(self) -> str:
        """When it was written: early, late (the engine was finished), last, blind or new (see
        docs/audit.md).
        """
        first = self.name.partition("-")[0]
        return first if first in ("late", "last", "blind", "new") else "early"

    def applied(self, text: str) -> str:
        """The file with the bug in it; an error where the text to replace is not there exactly
        once.
        """
        places = list(_pattern(self.old).finditer(text))
        if len(places) != 1:
            raise ValueError(f"{self.name}: its text occurs {len(places)} times in {self.path}")
        start, end = places[0].span()
        return text[:start] + self.new + text[end:]


def _pattern(code: str) -> re.Pattern[str]:
    """Matches the code however it is broken into lines, with or without trailing commas."""
    tokens = re.findall(r"\w+|[^\w\s]", code)
    parts = [re.escape(code[: len(code) - len(code.lstrip())])]
    for before, word in zip(["", *tokens], tokens, strict=False):
        between = r"\s+" if before[-1:].isalnum() and word[0].isalnum() else r"\s*"
        comma = r"(?:,\s*)?" if word in ")]}" else ""
        parts.append((between if before else "") + comma + re.escape(word))
    return re.compile("".join(parts))


def bugs(path: str, *listed: tuple[str, ...]) -> tuple[Mutant, ...]:
    """Bugs in one file: name, text, what it becomes, scenes and, where there are any, tests."""
    return tuple(
        Mutant(name, path, old, new, tuple(scenes.split()), tuple(" ".join(tests).split()))
        for name, old, new, scenes, *tests in listed
    )
