"""Who asks: API keys with roles, stored as digests only, and the short sessions that pages use in
their place.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import sqlalchemy as sql

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.workbench.infra.database import KEYS, SESSIONS, Database

__all__ = ["LOCAL", "Identity", "Keys", "Role"]

Role = Literal["owner", "analyst", "aggregator"]
SESSION_SECONDS = 12 * 3600.0
_FRESH_SECONDS = (
    2.0  # how long a looked-up key is believed, and so how long a revoked one may still pass
)
_CACHE = 4096


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

    A key has 256 random bits, so one SHA-256 is all the hashing it needs.
    """

    def __init__(self, database: Database, *, token: str | None = None) -> None:
        self.database = database
        self._token = None if token is None else _digest(token)
        self._seen: dict[str, tuple[float, Identity | None]] = {}
        self._guard = threading.Lock()

    def make(self, name: str, role: Role) -> str:
        """A new key, shown once; only its digest is kept."""
        checks.one_of("role", role, get_args(Role))
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
        with self._guard:
            self._seen.clear()

    def listed(self) -> list[dict[str, Any]]:
        """Names, roles and dates; never digests."""
        return self.database.rows(
            sql.select(KEYS.c.name, KEYS.c.role, KEYS.c.made, KEYS.c.revoked).order_by(KEYS.c.made)
        )

    def identify(self, key: str) -> Identity | None:
        """Whose key this is; the start-up secret is the owner's of this machine."""
        digest = _digest(key)
        if self._token is not None and hmac.compare_digest(digest, self._token):
            return LOCAL
        query = sql.select(KEYS.c.name, KEYS.c.role).where(
            KEYS.c.digest == digest, KEYS.c.revoked.is_(None)
        )
        return self._believed("key " + digest, query)

    def remembered(self, secret: str) -> tuple[bool, Identity | None]:
        """Whether a key or a session was looked up a moment ago, and whose it is: this asks no
        database.
        """
        digest = _digest(secret)
        if self._token is not None and hmac.compare_digest(digest, self._token):
            return True, LOCAL
        for kind in ("key ", "session "):
            known = self._seen.get(kind + digest)
            if known is not None and time.monotonic() - known[0] < _FRESH_SECONDS:
                return True, known[1]
        return False, None

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
        return token

    def resume(self, token: str) -> Identity | None:
        """Whose session this is."""
        digest = _digest(token)
        joined = SESSIONS.outerjoin(KEYS, SESSIONS.c.name == KEYS.c.name)
        valid = KEYS.c.role.is_not(None) & KEYS.c.revoked.is_(None)
        if self._token is not None:
            valid |= SESSIONS.c.name == LOCAL.name
        query = (
            sql.select(SESSIONS.c.name, KEYS.c.role)
            .select_from(joined)
            .where(SESSIONS.c.digest == digest, SESSIONS.c.until > time.time(), valid)
        )
        return self._believed("session " + digest, query)

    def close_session(self, token: str) -> None:
        """Log out."""
        with self.database.begin() as connection:
            connection.execute(sql.delete(SESSIONS).where(SESSIONS.c.digest == _digest(token)))
        with self._guard:
            self._seen.clear()

    def _believed(self, what: str, query: Any) -> Identity | None:
        now = time.monotonic()
        known = self._seen.get(what)
        if known is not None and now - known[0] < _FRESH_SECONDS:
            return known[1]
        rows = self.database.rows(query)
        found = Identity(rows[0]["name"], rows[0]["role"] or LOCAL.role) if rows else None
        with self._guard:
            if len(self._seen) >= _CACHE:
                self._seen.clear()
            self._seen[what] = (now, found)
        return found


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
