"""`blindsight licences`: the licence of every installed package that Blindsight needs, and a bill
of materials.
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

#: The extra that users install; the other extras are for the development of Blindsight.
SHIPPED = "all"
#: Licences that a wheel does not state, from the page of its project.
KNOWN = {"milvus-lite": "Apache-2.0"}
UNKNOWN = "not stated"
LIST = "none: only a list of packages"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class Licence(NamedTuple):
    """A package, its version, the licence that it states, and whether the core or an extra needs
    it.
    """

    package: str
    version: str
    licence: str
    needed_by: str

    @property
    def gpl(self) -> bool:
        """Whether the licence is the GPL or the AGPL; the LGPL, which allows linking, is not."""
        words = re.sub(r"lesser general public|LGPL", "", self.licence, flags=re.IGNORECASE)
        return bool(re.search(r"\bA?GPL|general public", words, flags=re.IGNORECASE))


def register(app: typer.Typer) -> None:
    """Add `licences` to the command line."""
    app.command("licences")(show_licences)


def show_licences(
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
    sbom: Annotated[
        bool,
        typer.Option("--sbom", help="Print a bill of materials instead: CycloneDX 1.6 as JSON."),
    ] = False,
) -> None:
    """List the licence of every installed package that the core and the extras need."""
    if sbom:
        emit_json(bill_of_materials())
        return
    packages = licences()
    if json:
        emit_json({"packages": [{**package._asdict(), "gpl": package.gpl} for package in packages]})
        return
    table("Licences", ("package", "version", "licence", "needed by"), packages)
    strict = [package.package for package in packages if package.gpl]
    unknown = [package.package for package in packages if package.licence == UNKNOWN]
    console.print(
        f"Under the GPL: {', '.join(strict) or 'none'}. Blindsight itself: Apache-2.0.",
        markup=False,
    )
    if unknown:
        console.print(
            f"These state no licence, so look into their files: {', '.join(unknown)}.",
            markup=False,
        )


def licences(extras: str = SHIPPED) -> list[Licence]:
    """Return the licence of every installed package that the core or these extras need, directly or
    indirectly; those of the core come first.
    """
    core = closure("blindsight", ("core",))
    more = closure("blindsight", (extras,))
    return [
        Licence(
            distribution.name,
            distribution.version,
            _licence(distribution),
            "core" if name in core else "extra",
        )
        for name, distribution in sorted(
            more.items(), key=lambda item: (item[0] not in core, item[0])
        )
        if name != "blindsight"
    ]


def bill_of_materials(extras: str = SHIPPED) -> dict[str, object]:
    """Return the bill of materials of this installation, in the format CycloneDX 1.6.

    The same installation gives the same document.

    Parameters:
        extras: the extra that was installed.

    Returns:
        The document as JSON values.
    """
    packages = closure("blindsight", (extras,))
    refs = {
        name: f"pkg:pypi/{name}@{distribution.version}" for name, distribution in packages.items()
    }
    digest = hashlib.sha256("\n".join(sorted(refs.values())).encode()).digest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=5)}",
        "version": 1,
        "metadata": {"component": _component("application", packages["blindsight"], refs)},
        "components": [
            _component("library", distribution, refs)
            for name, distribution in sorted(packages.items())
            if name != "blindsight"
        ],
        "dependencies": [
            {
                "ref": refs[name],
                "dependsOn": sorted(
                    {
                        refs[need]
                        for need, _ in _needs(distribution, frozenset((extras,)))
                        if need in refs
                    }
                    - {refs[name]}
                ),
            }
            for name, distribution in sorted(packages.items())
        ],
    }


def _component(
    kind: str, distribution: metadata.Distribution, refs: Mapping[str, str]
) -> dict[str, object]:
    ref = refs[_plain(distribution.name)]
    return {
        "type": kind,
        "bom-ref": ref,
        "name": distribution.name,
        "version": distribution.version,
        "purl": ref,
        "licenses": [{"license": {"name": _licence(distribution)}}],
    }


def closure(name: str, extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the installed packages, by normalised name, that a package needs with these extras,
    and the package itself.
    """
    packages: dict[str, metadata.Distribution] = {}
    waiting, visited = [(name, frozenset(extras))], set()
    while waiting:
        wanted = waiting.pop()
        if wanted in visited:
            continue
        visited.add(wanted)
        try:
            distribution = metadata.distribution(wanted[0])
        except metadata.PackageNotFoundError:
            continue  # for another platform, or of an extra that is not installed here
        packages[_plain(wanted[0])] = distribution
        waiting += _needs(distribution, wanted[1])
    return packages


def _needs(
    distribution: metadata.Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for line in distribution.requires or ():
        extra = _EXTRA.search(line)
        named = _REQUIREMENT.match(line)
        if named is None or (extra is not None and extra[1] not in extras):
            continue
        inner = frozenset(part.strip() for part in (named[2] or "").split(",") if part.strip())
        yield _plain(named[1]), inner


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(distribution: metadata.Distribution) -> str:
    """Return the SPDX expression if there is one, else what the classifiers, the licence field or
    the licence file state.
    """
    fields: Any = distribution.metadata  # a mapping with get, which its protocol does not list
    if expression := fields.get("License-Expression"):
        return str(expression)
    classes = [
        line.rpartition(" :: ")[2]
        for line in fields.get_all("Classifier", [])
        if line.startswith("License")
    ]
    classes = [word for word in classes if word != "OSI Approved"]
    field = str(fields.get("License") or "").strip()
    field = "" if field == "UNKNOWN" else field
    return (
        ", ".join(classes)
        or _title(field)
        or _title(_licence_file(distribution))
        or KNOWN.get(_plain(distribution.name))
        or (LIST if _only_lists(distribution) else UNKNOWN)
    )


def _only_lists(distribution: metadata.Distribution) -> bool:
    """Whether the package contains nothing but the names of other packages, as CUDA's does."""
    return bool(distribution.files) and all(
        path.parts[0].endswith(".dist-info") for path in distribution.files or ()
    )


def _licence_file(distribution: metadata.Distribution) -> str:
    for path in distribution.files or ():
        named = ".dist-info" in path.parts[0] and path.name.upper().startswith(
            ("LICENSE", "LICENCE", "COPYING")
        )
        if named and Path(path.locate()).is_file():
            return path.read_text(encoding="utf-8")
    return ""


def _title(text: str) -> str:
    """Return the first line of a licence, which is its name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:60] if lines else ""
