"""What the workbench is told before it starts: by a TOML file, by the environment, by the command
line; the last wins.

Checked by pydantic. Its companion for reading environments is not used: it passes over a misspelt
name in silence, and a misspelt `KEYS` must not leave a door open.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from blindsight.core.errors import InvalidParameter

__all__ = ["PREFIX", "Settings", "is_loopback"]

PREFIX = "BLINDSIGHT_STUDIO_"
MEGA = 1 << 20


def _default_state() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "blindsight" / "studio"


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("is a number, not true or false")
    return value


def _listed(value: Any) -> Any:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Amount = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Folders = Annotated[tuple[Path, ...], BeforeValidator(_listed)]


class Settings(BaseModel):
    """Everything that can be set. In TOML under `[studio]`, in the environment as
    BLINDSIGHT_STUDIO_NAME.

    Parameters:
        host: where to listen. port: where to listen. state: the folder for databases, vaults,
        releases, prepared models and results. photos: folders whose photos may be protected from
        the pages; none means by upload only. database: URL for keys and jobs (SQLite in the state
        folder by default); ledger: URL or file of the ledger (by
            default the same PostgreSQL, or a file of its own beside SQLite).
        index: "mnist5k" (built in), or a folder made by `blindsight hash`, for the demo's search;
        codes: a Milvus URI
            that holds its codes.
        keys: "required", "off", or "auto": on loopback a link with a secret, printed at the start,
        elsewhere keys. public: public pictures for Protect's preview, where they are on this
        machine: a folder, or a known set's name. token: that secret, where it is to be a known one.
        hosts: further names that the Host header may carry. proxies: addresses of proxies whose
        forwarding headers are
            believed; none by default.
        connections: how many may be open at once; header_seconds, body_seconds: how long a request
        may take to arrive. rate: requests a minute for each key or address, and how many may come
        at once. burst: requests a minute for each key or address, and how many may come at once.
        upload_*: what an uploaded image may be at most, and what its decoder may use; drop_*: what
        a zip may be. query_budget: what a key may spend on the demo's answers, and see of its
        codes. record_budget: what a key may spend on the demo's answers, and see of its codes.
        photo_budget: the first budgets of a data set, per photo and per person. person_budget: the
        first budgets of a data set, per photo and per person. gallery_budget: of the demo's
        gallery. job_limit: how many jobs may wait at once. prepare: get the demo's models ready
        when it is first opened.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)] = 8731
    state: Path = Field(default_factory=_default_state)
    photos: Folders = ()
    public: str = "caltech101"
    database: str | None = Field(default=None, repr=False)
    ledger: str | None = Field(default=None, repr=False)
    index: str = "mnist5k"
    codes: str | None = None
    keys: Literal["auto", "required", "off"] = "auto"
    token: str | None = Field(default=None, repr=False, min_length=16)
    hosts: Names = ()
    proxies: Names = ()
    connections: Count = 256
    header_seconds: Amount = 10.0
    body_seconds: Amount = 20.0
    rate: Count = 1200
    burst: Count = 240
    body_bytes: Count = 64 * 1024
    upload_bytes: Count = 16 * MEGA
    upload_pixels: Count = 24_000_000
    upload_frames: Count = 64
    upload_seconds: Amount = 5.0
    upload_memory: Count = 512 * MEGA
    drop_bytes: Count = 512 * MEGA
    drop_files: Count = 20_000
    query_budget: Amount = 1000.0
    record_budget: Amount = 64.0
    photo_budget: Amount = 16.0
    person_budget: Amount = 24.0
    gallery_budget: Amount = 64.0
    job_limit: Count = 16
    prepare: bool = True

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidParameter(_sentence(error)) from None

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        object.__setattr__(self, "state", self.state.expanduser().absolute())
        object.__setattr__(
            self, "photos", tuple(root.expanduser().absolute() for root in self.photos)
        )
        if self.keys == "off" and not is_loopback(self.host):
            raise ValueError(
                f"keys can be off on loopback only, and host is {self.host!r}. Listen on "
                "127.0.0.1, or require keys."
            )
        return self

    @property
    def open(self) -> bool:
        """Whether anyone who reaches the workbench is its owner: by choice, on loopback only."""
        return self.keys == "off"

    @property
    def local(self) -> bool:
        """Whether the owner comes by the link that was printed at the start."""
        return self.keys == "auto" and is_loopback(self.host)

    def cookie(self, name: str) -> str:
        """A cookie's full name: browsers keep one jar for all ports of a machine, and two
        workbenches must not mix.
        """
        return f"blindsight_{name}_{self.port}"

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
        """Plain values; `Settings(**fields)` reads them back."""
        return self.model_dump(mode="json")

    @classmethod
    def read(
        cls, file: Path | None = None, *, environment: Mapping[str, str] | None = None, **given: Any
    ) -> Settings:
        """File, then environment, then what was given (None means not given)."""
        found = os.environ if environment is None else environment
        named = file or (Path(found[PREFIX + "CONFIG"]) if PREFIX + "CONFIG" in found else None)
        values = _from_file(named) if named is not None else {}
        values |= {
            name.removeprefix(PREFIX).lower(): text
            for name, text in found.items()
            if name.startswith(PREFIX) and name != PREFIX + "CONFIG"
        }
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
        raise InvalidParameter(
            f"the configuration {path} cannot be read as TOML ({type(error).__name__})."
        ) from error
    if set(table) - {"studio"} or not isinstance(table.get("studio", {}), dict):
        raise InvalidParameter(f"the configuration {path} must have one table, [studio].")
    return dict(table.get("studio", {}))


def _sentence(error: ValidationError) -> str:
    """The first mistake in our words; a value is quoted only where it cannot be a secret."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"{name!r} is no setting. Known: {', '.join(Settings.model_fields)}."
    if first["type"] in ("less_than_equal", "greater_than_equal"):
        word, limit = next(iter(first["ctx"].items()))
        return (
            f"{name} must be at {'most' if word == 'le' else 'least'} {limit}, got "
            f"{first['input']}."
        )
    if first["type"] == "literal_error":
        return f"{name} must be {first['ctx']['expected']}, got {first['input']!r}."
    if first["type"] == "value_error":
        return f"{name} {first['ctx']['error']}".strip()
    if name in ("database", "ledger", "token"):
        return f"{name} is not what it should be."
    return (
        f"{name} does not fit: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}."
    )
