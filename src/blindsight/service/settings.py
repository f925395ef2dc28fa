"""What the studio is told before it starts: by a TOML file, by the environment, by the command line; the last wins."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blindsight.core.errors import InvalidParameter

__all__ = ["PREFIX", "Settings", "is_loopback"]

PREFIX = "BLINDSIGHT_STUDIO_"
MEGA = 1 << 20


def _default_state() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "blindsight" / "studio"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set. In TOML under `[studio]`, in the environment as BLINDSIGHT_STUDIO_NAME.

    Parameters
    ----------
    host, port: where to listen.
    state: the folder for databases, prepared models and results.
    database: URL for keys and jobs (SQLite in the state folder by default); ledger: URL or file of the ledger (by
        default the same PostgreSQL, or a file of its own beside SQLite).
    index: "mnist5k" (built in), or a folder made by `blindsight hash`; codes: a Milvus URI that holds its codes.
    keys: "required", "off", or "auto" (off on loopback only, with a banner).
    hosts: further names that the Host header may carry.
    rate, burst: requests a minute for each key or address, and how many may come at once.
    upload_*: what an uploaded image may be at most, and what its decoder may use.
    query_budget, record_budget: what a key may spend on answers, and see of released codes.
    gallery_budget: what all released codes of the built-in gallery may cost a picture.
    job_limit: how many jobs may wait at once. prepare: get models ready in the background at start.
    """

    host: str = "127.0.0.1"
    port: int = 8731
    state: Path = field(default_factory=_default_state)
    database: str | None = field(default=None, repr=False)
    ledger: str | None = field(default=None, repr=False)
    index: str = "mnist5k"
    codes: str | None = None
    keys: str = "auto"
    hosts: tuple[str, ...] = ()
    rate: int = 1200
    burst: int = 240
    body_bytes: int = 64 * 1024
    upload_bytes: int = 16 * MEGA
    upload_pixels: int = 24_000_000
    upload_frames: int = 64
    upload_seconds: float = 5.0
    upload_memory: int = 512 * MEGA
    query_budget: float = 1000.0
    record_budget: float = 64.0
    gallery_budget: float = 64.0
    job_limit: int = 16
    prepare: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", Path(self.state).expanduser().absolute())
        object.__setattr__(self, "hosts", tuple(self.hosts))
        if self.keys not in ("auto", "required", "off"):
            raise InvalidParameter(f"keys must be 'auto', 'required' or 'off', got {self.keys!r}.")
        if self.keys == "off" and not is_loopback(self.host):
            raise InvalidParameter(
                f"keys can be off on loopback only, and host is {self.host!r}. Listen on 127.0.0.1, or require keys."
            )
        if self.port > 65535:
            raise InvalidParameter(f"port must be at most 65535, got {self.port}.")
        for name in ("port", "rate", "burst", "body_bytes", "upload_bytes", "upload_pixels", "upload_frames"):
            if getattr(self, name) < (0 if name == "port" else 1):
                raise InvalidParameter(f"{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def open(self) -> bool:
        """Whether anyone who reaches the studio is its owner: on loopback only."""
        return self.keys == "off" or (self.keys == "auto" and is_loopback(self.host))

    @property
    def database_url(self) -> str:
        """Keys, sessions and jobs."""
        return self.database or f"sqlite:///{self.state / 'studio.db'}"

    @property
    def ledger_place(self) -> str:
        """The ledger's file or URL."""
        if self.ledger:
            return self.ledger
        shared = self.database is not None and not self.database.startswith("sqlite")
        return str(self.database) if shared else str(self.state / "ledger.db")

    def to_fields(self) -> dict[str, Any]:
        """Plain values; `from_mapping` reads them back."""
        return {**dataclasses.asdict(self), "state": str(self.state), "hosts": list(self.hosts)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, source: str) -> Settings:
        """Checked settings from a file's or the command line's values."""
        return cls(**_typed(values, source))

    @classmethod
    def read(
        cls,
        file: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **given: Any,
    ) -> Settings:
        """File, then environment, then what was given (None means not given)."""
        found = os.environ if environment is None else environment
        named = file or (Path(found[PREFIX + "CONFIG"]) if PREFIX + "CONFIG" in found else None)
        values = _from_file(named) if named is not None else {}
        from_environment = {
            name.removeprefix(PREFIX).lower(): text
            for name, text in found.items()
            if name.startswith(PREFIX) and name != PREFIX + "CONFIG"
        }
        values |= _typed(from_environment, "the environment")
        return cls(**values | {name: value for name, value in given.items() if value is not None})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameter(f"the configuration {path} cannot be read as TOML ({type(error).__name__}).") from error
    if set(table) - {"studio"} or not isinstance(table.get("studio", {}), dict):
        raise InvalidParameter(f"the configuration {path} must have one table, [studio].")
    return _typed(table.get("studio", {}), str(path))


def _typed(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    known = {f.name: f for f in dataclasses.fields(Settings)}
    typed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidParameter(f"{source} sets {name!r}, which is no setting. Known: {', '.join(known)}.")
        try:
            typed[name] = _value(str(known[name].type), value)
        except (KeyError, TypeError, ValueError):
            raise InvalidParameter(f"{name} in {source} must be {known[name].type}.") from None
    return typed


def _value(kind: str, value: Any) -> Any:
    if kind == "bool":
        if isinstance(value, bool):
            return value
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[str(value).lower()]
    if kind.startswith("tuple"):
        return tuple(value.split(",")) if isinstance(value, str) else tuple(str(part) for part in value)
    if isinstance(value, bool):
        raise TypeError
    if value is None and "None" in kind:
        return None
    return {"int": int, "float": float, "Path": Path}.get(kind, str)(value)
