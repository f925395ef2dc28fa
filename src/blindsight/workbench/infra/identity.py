"""Who asks: API keys with roles, stored as digests only, and the short sessions that pages use in
their place.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import sqlalchemy as sql

from blindsight.core.errors import InvalidParameter
from blindsight.workbench.infra.database import KEYS, SESSIONS, Database

__all__ = ["LOCAL", "Identity", "Keys", "Role"]

Role = Literal["owner", "analyst", "aggregator"]
SESSION_SECONDS = 12 * 3600.0
# How long the list of valid keys and sessions is believed, and so how long a key that another
# process revoked may still pass.
_FRESH_SECONDS = 2.0
# A secret that is not in the list may be a new one of another process: the list is read again, but
# not more often than this, however many unknown secrets arrive.
_UNKNOWN_SECONDS = 0.5


@dataclass(frozen=True)
class Identity:
    """A name and what it may do."""

    name: str
    role: Role

    def may(self, *roles: Role) -> bool:
        """Whether one of the roles is held; an owner may do everything."""
        return self.role == "owner" or self.role in roles


LOCAL = Identity("local", "owner")


class Keys:
    """Make, look up and revoke keys.

    A key has 256 random bits, so one SHA-256 is all the hashing it needs. All valid digests are
    held in memory and read again from the database every two seconds, so that looking up a secret
    costs no query: strangers who send made-up keys cannot keep the owner's key from being looked
    up.
    """

    def __init__(self, database: Database, *, token: str | None = None) -> None:
        self.database = database
        self._token = None if token is None else _digest(token)
        self._keys: dict[str, Identity] = {}
        self._sessions: dict[str, tuple[Identity, float]] = {}
        self._read_at = -math.inf
        self._guard = threading.Lock()

    def make(self, name: str, role: Role) -> str:
        """A new key, shown once; only its digest is kept."""
        if role not in get_args(Role):
            raise InvalidParameter(f"role must be one of {get_args(Role)}, got {role!r}.")
        if not name.isprintable() or not 1 <= len(name) <= 60 or name == LOCAL.name:
            raise InvalidParameter(
                "a key's name must be 1 to 60 printable characters, and not 'local'."
            )
        key = f"bs_{secrets.token_urlsafe(32)}"
        row = {"name": name, "role": role, "digest": _digest(key), "made": _now(), "revoked": None}
        try:
            with self.database.begin() as connection:
                connection.execute(sql.insert(KEYS).values(row))
        except sql.exc.IntegrityError:
            raise InvalidParameter(
                f"there is a key named {name!r} already. Choose another name."
            ) from None
        self._read_at = -math.inf
        return key

    def revoke(self, name: str) -> None:
        """End a key and its sessions, for good."""
        with self.database.begin() as connection:
            found = connection.execute(
                sql.update(KEYS).where(KEYS.c.name == name).values(revoked=_now())
            )
            connection.execute(sql.delete(SESSIONS).where(SESSIONS.c.name == name))
        if not found.rowcount:
            raise InvalidParameter(f"there is no key named {name!r}.")
        self._read_at = -math.inf

    def listed(self) -> list[dict[str, Any]]:
        """Names, roles and dates; never digests."""
        return self.database.rows(
            sql.select(KEYS.c.name, KEYS.c.role, KEYS.c.made, KEYS.c.revoked).order_by(KEYS.c.made)
        )

    def is_start_secret(self, secret: str) -> bool:
        """Whether this is the secret of the link that was printed at the start."""
        return self._token is not None and hmac.compare_digest(_digest(secret), self._token)

    def identify(self, key: str) -> Identity | None:
        """Whose key this is; the start-up secret is the owner's of this machine."""
        if self.is_start_secret(key):
            return LOCAL
        if self.needs_reading(known=self.known_key(key) is not None):
            self.read()
        return self.known_key(key)

    def known_key(self, key: str) -> Identity | None:
        """Whose key this is by the list in memory; this asks no database."""
        return LOCAL if self.is_start_secret(key) else self._keys.get(_digest(key))

    def known_session(self, token: str) -> Identity | None:
        """Whose session this is by the list in memory; this asks no database."""
        identity, until = self._sessions.get(_digest(token), (None, 0.0))
        return identity if until > time.time() else None

    def needs_reading(self, *, known: bool) -> bool:
        """Whether the list in memory is too old to answer for a secret that it knows or not."""
        age = time.monotonic() - self._read_at
        return age >= (_FRESH_SECONDS if known else _UNKNOWN_SECONDS)

    def read(self) -> None:
        """Read all valid keys and sessions from the database."""
        with self._guard:
            now = time.monotonic()
            rows = self.database.rows(
                sql.select(KEYS.c.digest, KEYS.c.name, KEYS.c.role).where(KEYS.c.revoked.is_(None))
            )
            roles = {row["name"]: Identity(row["name"], row["role"]) for row in rows}
            if self._token is not None:
                roles[LOCAL.name] = LOCAL
            sessions = self.database.rows(
                sql.select(SESSIONS).where(SESSIONS.c.until > time.time())
            )
            self._keys = {row["digest"]: roles[row["name"]] for row in rows}
            self._sessions = {
                row["digest"]: (roles[row["name"]], row["until"])
                for row in sessions
                if row["name"] in roles
            }
            self._read_at = now

    def open_session(self, identity: Identity) -> str:
        """A token for a page's cookie."""
        token = secrets.token_urlsafe(32)
        with self.database.begin() as connection:
            connection.execute(sql.delete(SESSIONS).where(SESSIONS.c.until < time.time()))
            row = {
                "digest": _digest(token),
                "name": identity.name,
                "until": time.time() + SESSION_SECONDS,
            }
            connection.execute(sql.insert(SESSIONS).values(row))
        self._read_at = -math.inf
        return token

    def close_session(self, token: str) -> None:
        """Log out."""
        with self.database.begin() as connection:
            connection.execute(sql.delete(SESSIONS).where(SESSIONS.c.digest == _digest(token)))
        self._read_at = -math.inf


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
