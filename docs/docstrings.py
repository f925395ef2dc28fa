"""Docstrings as the site shows them: sections as lists, doctests as code. A Griffe extension, see mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["PlainDocstrings", "as_markdown"]

_ENTRY = re.compile(r"^([\w*][\w*, ]*): (.*)")


def as_markdown(text: str) -> str:
    """Underlined sections in bold, their `name: what` entries as a list, `>>>` examples fenced."""
    shown: list[str] = []
    lines, section, fenced = text.splitlines(), False, False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith(">>> ") and not fenced:
            shown += ["", "```pycon"]
            fenced = True
        elif fenced and not line.strip():
            shown.append("```")
            fenced = False
        if re.fullmatch(r"-{3,}", line):
            continue
        if re.fullmatch(r"-{3,}", following) and line.strip():
            section = True
            shown += [f"**{line.strip()}**", ""]
        elif section and (entry := _ENTRY.match(line)):
            names = ", ".join(f"`{name.strip()}`" for name in entry[1].split(","))
            shown.append(f"- {names}: {entry[2]}")
        else:
            shown.append(line)
    return "\n".join([*shown, "```"] if fenced else shown)


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring once, when it is collected."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by Griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
