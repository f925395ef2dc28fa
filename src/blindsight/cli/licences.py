"""`blindsight licences`: the licence of every package that Blindsight and its extras need, as
installed here, and a bill of materials for whoever must know what is inside.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from blindsight.cli.terminal import console, emit_json, table

__all__ = ["Licence", "bill_of_materials", "closure", "licences", "register"]

#: extras that users install; the others are for those who work on Blindsight itself.
SHIPPED = "all"
#: what a wheel does not say of itself, from its project's page.
KNOWN = {"milvus-lite": "Apache-2.0"}
UNKNOWN = "not stated"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class Licence(NamedTuple):
    """A package, its version, its licence in its own words, and whether the core needs it or only
    an extra.
    """

    package: str
    version: str
    licence: str
    needed_by: str

    @property
    def gpl(self) -> bool:
        """Whether it binds those who give Blindsight away.

        The lesser GPL, which allows to link, does not.
        """
        words = re.sub(r"lesser general public|LGPL", "", self.licence, flags=re.IGNORECASE)
        return bool(re.search(r"\bA?GPL|general public", words, flags=re.IGNORECASE))


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("licences")(show_licences)


def show_licences(
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
    sbom: Annotated[
        bool, typer.Option("--sbom", help="A bill of materials instead: CycloneDX 1.6 as JSON.")
    ] = False,
) -> None:
    """List the licence of every package that the core and the extras need, as far as it is
    installed here.
    """
    if sbom:
        emit_json(bill_of_materials())
        return
    found = licences()
    if json:
        emit_json({"packages": [{**one._asdict(), "gpl": one.gpl} for one in found]})
        return
    table("Licences", ("package", "version", "licence", "needed by"), found)
    strict = [one.package for one in found if one.gpl]
    unknown = [one.package for one in found if one.licence == UNKNOWN]
    console.print(
        f"Under the GPL: {', '.join(strict) or 'none'}. Blindsight itself: Apache-2.0.",
        markup=False,
    )
    if unknown:
        console.print(
            f"Without a stated licence, so look into their files: {', '.join(unknown)}.",
            markup=False,
        )


def licences(extras: str = SHIPPED) -> list[Licence]:
    """Every installed package that the core or these extras need, directly or through others; the
    core's first.
    """
    core = closure("blindsight", ("core",))
    more = closure("blindsight", (extras,))
    return [
        Licence(one.name, one.version, _licence(one), "core" if name in core else "extra")
        for name, one in sorted(more.items(), key=lambda item: (item[0] not in core, item[0]))
        if name != "blindsight"
    ]


def bill_of_materials(extras: str = SHIPPED) -> dict[str, object]:
    """What Blindsight is made of as installed here, in the format CycloneDX 1.6.

    Everything is read from the installed packages; the same installation gives the same document.

    Parameters:
        extras: what was installed with it.

    Returns:
        The document as JSON values.
    """
    found = closure("blindsight", (extras,))
    refs = {name: f"pkg:pypi/{name}@{one.version}" for name, one in found.items()}
    digest = hashlib.sha256("\n".join(sorted(refs.values())).encode()).digest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=5)}",
        "version": 1,
        "metadata": {"component": _component("application", found["blindsight"], refs)},
        "components": [
            _component("library", one, refs)
            for name, one in sorted(found.items())
            if name != "blindsight"
        ],
        "dependencies": [
            {
                "ref": refs[name],
                "dependsOn": sorted(
                    {refs[need] for need, _ in _needs(one, frozenset((extras,))) if need in refs}
                    - {refs[name]}
                ),
            }
            for name, one in sorted(found.items())
        ],
    }


def _component(kind: str, one: metadata.Distribution, refs: Mapping[str, str]) -> dict[str, object]:
    ref = refs[_plain(one.name)]
    return {
        "type": kind,
        "bom-ref": ref,
        "name": one.name,
        "version": one.version,
        "purl": ref,
        "licenses": [{"license": {"name": _licence(one)}}],
    }


def closure(name: str, extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    """A package and all that it needs with these extras, as far as it is installed here, by plain
    name.
    """
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


def _needs(
    one: metadata.Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
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
    """The SPDX expression where there is one, else what classifiers, licence field or licence file
    say.
    """
    said: Any = one.metadata  # a mapping with get, which its protocol does not list
    if expression := said.get("License-Expression"):
        return str(expression)
    classes = [
        line.rpartition(" :: ")[2]
        for line in said.get_all("Classifier", [])
        if line.startswith("License")
    ]
    classes = [word for word in classes if word != "OSI Approved"]
    field = str(said.get("License") or "").strip()
    field = "" if field == "UNKNOWN" else field
    return (
        ", ".join(classes)
        or _title(field)
        or _title(_licence_file(one))
        or KNOWN.get(_plain(one.name), UNKNOWN)
    )


def _licence_file(one: metadata.Distribution) -> str:
    for path in one.files or ():
        named = ".dist-info" in path.parts[0] and path.name.upper().startswith(
            ("LICENSE", "LICENCE", "COPYING")
        )
        if named and Path(path.locate()).is_file():
            return path.read_text(encoding="utf-8")
    return ""


def _title(text: str) -> str:
    """A licence's first line, which is its name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:60] if lines else ""
