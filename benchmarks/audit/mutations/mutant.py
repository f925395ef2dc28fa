"""A planted bug: one replacement of text, and the scenes in which the audit should see it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutant", "bugs"]


@dataclass(frozen=True)
class Mutant:
    """A bug: in which file of the package, which text becomes which, and where it should show
    ("room:TestCase").
    """

    name: str
    path: str
    old: str
    new: str
    scenes: tuple[str, ...]

    @property
    def part(self) -> str:
        """The part of the package that it is in."""
        return self.path.partition("/")[0]

    @property
    def group(self) -> str:
        """When it was written: early, late (the engine was finished), last or blind (see
        docs/audit.md).
        """
        first = self.name.partition("-")[0]
        return first if first in ("late", "last", "blind") else "early"

    def applied(self, text: str) -> str:
        """The file with the bug in it; an error where the text to replace is not there exactly
        once.
        """
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: its text occurs {text.count(self.old)} times in {self.path}"
            )
        return text.replace(self.old, self.new)


def bugs(path: str, *listed: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    """Bugs in one file: name, text, what it becomes, scenes."""
    return tuple(
        Mutant(name, path, old, new, tuple(scenes.split())) for name, old, new, scenes in listed
    )
