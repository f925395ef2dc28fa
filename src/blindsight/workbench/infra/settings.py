"""The settings of the workbench: from a TOML file, the environment and the command line, of which
later ones take precedence.

pydantic checks them. pydantic-settings is not used, because it ignores a misspelt name of an
environment variable, and a misspelt `KEYS` must not leave the workbench open.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from blindsight.core.errors import InvalidParameter

__all__ = ["PREFIX", "WorkbenchSettings", "is_loopback"]

PREFIX = "BLINDSIGHT_WORKBENCH_"
MEGA = 1 << 20


# Up to version 0.2 the workbench was called "studio". Files under that name are still used, because
# the vault and the ledger would be lost otherwise.
_FORMER = "studio"
_FORMER_PREFIX = f"BLINDSIGHT_{_FORMER.upper()}_"
_REMOVED = ("index", "codes", "query_budget", "record_budget", "gallery_budget", "prepare")


def _default_state() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "blindsight"
    former = home / _FORMER
    return former if former.is_dir() and not (home / "workbench").exists() else home / "workbench"


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


class WorkbenchSettings(BaseModel):
    """The settings, in TOML under `[workbench]`, in the environment as BLINDSIGHT_WORKBENCH_NAME.

    Parameters:
        host: address to listen on.
        port: port to listen on.
        state: folder for databases, vault, releases and jobs.
        photos: folders whose photos may be protected from the pages; without any, by upload only.
        public: public pictures for the preview of the page Protect: a folder, or the name of a
            known set on this machine.
        database: URL for keys and jobs; a SQLite file in the state folder by default.
        ledger: URL or file of the ledger; by default the same PostgreSQL, or a file of its own
            beside SQLite.
        keys: "required", "off", or "auto", which means a printed link with a secret on loopback
            and keys elsewhere.
        token: that secret; random by default.
        hosts: further names that the Host header may carry.
        proxies: addresses of proxies whose forwarding headers are trusted; none by default.
        connections: largest number of open connections.
        header_seconds: longest time for the headers of a request to arrive.
        body_seconds: longest time for the body of a request to arrive.
        rate: requests per minute for each key, session or address without a key.
        burst: how many of these may come at once.
        body_bytes: largest body of a request that carries no image.
        upload_bytes: largest uploaded image, in bytes.
        upload_pixels: largest uploaded image, in pixels.
        upload_frames: most frames of an uploaded image.
        upload_seconds: longest time to decode an image.
        upload_memory: memory that a decoder may use.
        drop_bytes: largest zip of photos.
        drop_files: most photos in a zip or a folder.
        photo_budget: first budget of a data set, per photo.
        person_budget: first budget of a data set, per person.
        job_limit: how many jobs may wait at once.
        job_niceness: the niceness of jobs, from 0 to 19, so that pages stay fast.
        purpose: the purpose of releases whose request states none.
        require_purpose: refuse releases whose request states no purpose.
        tls_cert: file with the certificate chain (PEM), for HTTPS without a proxy.
        tls_key: file with the certificate's private key (PEM).
        plain_http: listen beyond this machine without TLS and without a proxy; keys and sessions
            can then be read on the network.
        log: "text", or "json" for one JSON object per line.
        oidc_issuer: address of the identity provider (OpenID Connect); none by default.
        oidc_client: this workbench's client id there.
        oidc_secret: its client secret; none for a public client.
        oidc_redirect: the address to which the provider sends people back; by default this
            workbench's address followed by /login/oidc/callback.
        oidc_name: the claim that names a person; "email" counts only if it is verified.
        oidc_groups: the claim that lists a person's groups.
        oidc_owners: groups whose members own the whole workbench.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)] = 8731
    state: Path = Field(default_factory=_default_state)
    photos: Folders = ()
    public: str = "caltech101"
    database: str | None = Field(default=None, repr=False)
    ledger: str | None = Field(default=None, repr=False)
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
    photo_budget: Amount = 16.0
    person_budget: Amount = 24.0
    job_limit: Count = 16
    job_niceness: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=19)] = 10
    purpose: Annotated[str, Field(min_length=1, max_length=200)] = "not stated"
    require_purpose: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    plain_http: bool = False
    log: Literal["text", "json"] = "text"
    oidc_issuer: str | None = None
    oidc_client: str | None = None
    oidc_secret: str | None = Field(default=None, repr=False)
    oidc_redirect: str | None = None
    oidc_name: str = "email"
    oidc_groups: str = "groups"
    oidc_owners: Names = ()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidParameter(_sentence(error)) from None

    @model_validator(mode="after")
    def _consistent(self) -> WorkbenchSettings:
        object.__setattr__(self, "state", self.state.expanduser().absolute())
        object.__setattr__(
            self, "photos", tuple(root.expanduser().absolute() for root in self.photos)
        )
        if self.keys == "off" and not is_loopback(self.host):
            raise ValueError(
                f"keys can be off on loopback only, and host is {self.host!r}. Listen on "
                "127.0.0.1, or require keys."
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both, or neither.")
        # A wildcard address reaches every network; a proxy on this machine does not need it.
        guarded = self.tls_cert is not None or self.proxies or self.plain_http
        if not is_loopback(self.host) and not guarded:
            raise ValueError(
                f"keys and photos would cross the network unencrypted, because host is "
                f"{self.host!r} and there is no TLS. Give --tls-cert and --tls-key, or listen on "
                "127.0.0.1 behind a proxy, or name the proxy in BLINDSIGHT_WORKBENCH_PROXIES; "
                "BLINDSIGHT_WORKBENCH_PLAIN_HTTP=true allows it."
            )
        if (self.oidc_issuer is None) != (self.oidc_client is None):
            raise ValueError("oidc_issuer and oidc_client belong together: give both, or neither.")
        if self.oidc_issuer is not None and not _is_protected(self.oidc_issuer):
            raise ValueError(
                f"oidc_issuer must be an https address (http only on this machine), got "
                f"{self.oidc_issuer!r}."
            )
        return self

    @property
    def https(self) -> bool:
        """Whether the workbench itself serves HTTPS."""
        return self.tls_cert is not None

    @property
    def open(self) -> bool:
        """Whether anyone who reaches the workbench is its owner; only allowed on loopback."""
        return self.keys == "off"

    @property
    def local(self) -> bool:
        """Whether the owner signs in with the link that was printed at the start."""
        return self.keys == "auto" and is_loopback(self.host)

    def cookie(self, name: str) -> str:
        """Return a cookie's name with the port, because browsers share cookies between ports."""
        return f"blindsight_{name}_{self.port}"

    @property
    def database_url(self) -> str:
        """The URL of the database of keys, sessions and jobs."""
        former = self.state / f"{_FORMER}.db"
        file = former if former.exists() else self.state / "workbench.db"
        return self.database or f"sqlite:///{file}"

    @property
    def ledger_place(self) -> str:
        """The ledger's file or URL."""
        if self.ledger:
            return self.ledger
        shared = self.database is not None and not self.database.startswith("sqlite")
        return str(self.database) if shared else str(self.state / "ledger.db")

    def to_fields(self) -> dict[str, Any]:
        """Return plain values, from which `WorkbenchSettings(**fields)` restores the settings."""
        return self.model_dump(mode="json")

    @classmethod
    def read(
        cls,
        file: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> WorkbenchSettings:
        """Read the settings.

        Parameters:
            file: a TOML file; by default the one that BLINDSIGHT_WORKBENCH_CONFIG names.
            environment: the environment variables; by default those of the process.
            options: settings that take precedence; None means not set.

        Raises:
            InvalidParameter: if a setting is unknown or not valid.
        """
        variables = os.environ if environment is None else environment
        for name in variables:
            if name.startswith(_FORMER_PREFIX):
                now = PREFIX + name.removeprefix(_FORMER_PREFIX)
                raise InvalidParameter(f"the environment variable {name} is now called {now}.")
        if file is None and PREFIX + "CONFIG" in variables:
            file = Path(variables[PREFIX + "CONFIG"])
        values = {} if file is None else _from_file(file)
        values |= {
            name.removeprefix(PREFIX).lower(): text
            for name, text in variables.items()
            if name.startswith(PREFIX) and name != PREFIX + "CONFIG"
        }
        return cls(**values | {name: value for name, value in options.items() if value is not None})


def _is_protected(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname is not None and is_loopback(parts.hostname)
    )


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
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
    if _FORMER in table:
        raise InvalidParameter(
            f"the configuration {path} has a table [{_FORMER}], which is now called [workbench]."
        )
    if set(table) - {"workbench"} or not isinstance(table.get("workbench", {}), dict):
        raise InvalidParameter(f"the configuration {path} must have one table, [workbench].")
    return dict(table.get("workbench", {}))


def _sentence(error: ValidationError) -> str:
    """Return a sentence about the first error; a value is quoted only if it cannot be a secret."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if name in _REMOVED:
        return f"the setting {name} was removed with the pages on handwritten digits: delete it."
    if first["type"] == "extra_forbidden":
        return f"{name!r} is not a setting. Settings: {', '.join(WorkbenchSettings.model_fields)}."
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
    if name in ("database", "ledger", "token", "oidc_secret"):
        return f"{name} is not valid."
    return (
        f"{name} is not valid: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}."
    )
