"""One file for each party: its folder, sealed, to be handed over on a protected channel and opened
with `join`.
"""

from __future__ import annotations

from pathlib import Path

from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.federated.flower.homes import Home, write_secret
from blindsight.federated.wire import Writer, read_sealed, seal, unseal, write_sealed

__all__ = ["invite", "join"]

_NAMES = frozenset(
    {
        "party.json",
        "enrolment.bin",
        "ca.pem",
        "plan.safetensors",
        "server.pem",
        "server.key",
        "node.key",
        "node.pub",
        "token",
        "tokens.json",
    }
)
_MOST_FILES = 1 << 17
_LARGEST = 1 << 33


def invite(home: Home, path: str | Path) -> Path:
    """Write a party's folder, as `make_homes` made it, to one file that only its owner may read."""
    files = sorted(file for file in home.path.rglob("*") if file.is_file())
    writer = Writer().number("I", len(files))
    for file in files:
        writer.text(file.relative_to(home.path).as_posix()).field(file.read_bytes())
    path = Path(path)
    write_sealed(path, seal(b"INVT", bytes(writer)))
    return path


def join(invitation: str | Path, folder: str | Path) -> Home:
    """Make a party's folder from its invitation; names that no folder has are refused, and nothing
    is overwritten.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidParameter(
            f"{folder} is not empty: a party's folder is never overwritten. Choose another."
        )
    reader = unseal(b"INVT", read_sealed(Path(invitation), largest=_LARGEST))
    count = reader.number("I")
    if count > _MOST_FILES:
        raise HostileFile("an invitation names too many files.")
    files = {reader.text(): reader.field() for _ in range(count)}
    reader.end()
    for name in files:
        parts = name.split("/")
        node = (
            len(parts) == 2
            and parts[0] == "nodes"
            and parts[1].endswith(".pub")
            and parts[1][:1].isalpha()
        )
        if name not in _NAMES and not (node and "\\" not in name and "\0" not in name):
            raise HostileFile("an invitation holds a file that no party's folder has.")
    for name, content in files.items():
        write_secret(folder / name, content)
    home = Home(folder)
    _ = home.about
    return home
