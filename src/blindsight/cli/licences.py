"""`blindsight licences`: the licence of every package that Blindsight and its extras need, as installed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Annotated, Any, NamedTuple

import typer

from blindsight.cli.terminal import console, emit_json, table

__all__ = ["Licence", "licences", "register"]

#: extras that users install; the others are for those who work on Blindsight itself.
SHIPPED = "all"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class Licence(NamedTuple):
    """A package, its version, its licence in its own words, and whether the core needs it or only an extra."""

    package: str
    version: str
    licence: str
    needed_by: str

    @property
    def gpl(self) -> bool:
        """Whether it binds those who give Blindsight away. The lesser GPL, which allows to link, does not."""
        words = re.sub(r"lesser general public|LGPL", "", self.licence, flags=re.IGNORECASE)
        return bool(re.search(r"\bA?GPL|general public", words, flags=re.IGNORECASE))


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("licences")(show_licences)


def show_licences(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """List the licence of every package that the core and the extras need, as far as it is installed here."""
    found = licences()
    if json:
        emit_json({"packages": [{**one._asdict(), "gpl": one.gpl} for one in found]})
        return
    table("Licences", ("package", "version", "licence", "needed by"), found)
    strict = [one.package for one in found if one.gpl]
    console.print(f"Under the GPL: {', '.join(strict) or 'none'}. Blindsight itself: Apache-2.0.", markup=False)


def licences(extras: str = SHIPPED) -> list[Licence]:
    """Every installed package that the core or these extras need, directly or through others; the core's first."""
    core = _closure("blindsight", ())
    more = _closure("blindsight", (extras,))
    return [
        Licence(one.name, one.version, _licence(one), "core" if name in core else "extra")
        for name, one in sorted(more.items(), key=lambda item: (item[0] not in core, item[0]))
        if name != "blindsight"
    ]


def _closure(name: str, extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    waiting, seen = [(name, frozenset(extras))], set()
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            one = metadata.distribution(wanted[0])
        except metadata.PackageNotFoundError:
            continue  # for another platform, or of an extra that is not installed here
        found[_plain(wanted[0])] = one
        waiting += _needs(one, wanted[1])
    return found


def _needs(one: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in one.requires or ():
        asked = _EXTRA.search(line)
        named = _REQUIREMENT.match(line)
        if named is None or (asked is not None and asked[1] not in extras):
            continue
        inner = frozenset(part.strip() for part in (named[2] or "").split(",") if part.strip())
        yield _plain(named[1]), inner


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(one: metadata.Distribution) -> str:
    """The SPDX expression where there is one, else what the classifiers or the licence field say."""
    said: Any = one.metadata  # a mapping with get, which its protocol does not list
    if expression := said.get("License-Expression"):
        return str(expression)
    classes = [line.rpartition(" :: ")[2] for line in said.get_all("Classifier", []) if line.startswith("License")]
    classes = [word for word in classes if word != "OSI Approved"]
    text = str(said.get("License") or "").strip().splitlines()
    return ", ".join(classes) or (text[0][:60] if text and text[0] != "UNKNOWN" else "not stated")
