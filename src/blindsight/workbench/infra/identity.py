"""Identities and their rights: people, keys, sessions, and roles per data set.

A person signs in with an API key, with the link that was printed at the start, or with an identity
provider (OpenID Connect). A role in the workbench holds everywhere; a grant gives a person, or a
group of the identity provider, one role in one data set.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import math
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import sqlalchemy as sql

from blindsight.core.errors import InvalidParameter
from blindsight.workbench.infra.database import GRANTS, KEYS, PEOPLE, SESSIONS, Database

__all__ = ["EVERY", "LOCAL", "DataSetRole", "Grant", "Keys", "RequestIdentity", "Right", "Role"]

Role = Literal["owner", "analyst", "aggregator", "monitor"]
DataSetRole = Literal["owner", "searcher", "auditor", "keeper"]
Right = Literal["own", "search", "card", "history", "attack", "budget"]
# What each role may do in a data set. Only "own" shows photos and their names.
RIGHTS: dict[DataSetRole, frozenset[Right]] = {
    "owner": frozenset(get_args(Right)),
    "searcher": frozenset(("search", "card")),
    "auditor": frozenset(("card", "history", "attack")),
    "keeper": frozenset(("card", "history", "budget")),
}
EVERY = "*"  # a grant on every data set, also on future ones
SESSION_SECONDS = 12 * 3600.0
# How long the list of valid keys and sessions is used before it is read again: so long a key that
# another process revoked may still pass.
_FRESH_SECONDS = 2.0
# A secret that is not in the list may be a new one of another process. The list is then read again,
# but not more often than this, however many unknown secrets arrive.
_UNKNOWN_SECONDS = 0.5
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Grant:
    """A role in a data set.

    Parameters:
        role: "owner", "searcher", "auditor" or "keeper".
        dataset: number of the data set, or "*" for every one.
        release: number of the release that a searcher may search; "" for every release.
    """

    role: DataSetRole
    dataset: str
    release: str = ""

    def gives(self, right: Right, dataset: str, release: str = "") -> bool:
        """Whether it includes a right on a data set and, if it names one, on this release."""
        return (
            right in RIGHTS[self.role]
            and self.dataset in (EVERY, dataset)
            and (self.release == "" or self.release == release)
        )


@dataclass(frozen=True)
class RequestIdentity:
    """A name, its role in the workbench, and its rights in data sets.

    Parameters:
        name: unique among keys and people.
        role: role in the whole workbench; an "analyst" has only the rights that were granted.
        grants: roles in data sets, of the person and of the person's groups.
        groups: groups of the identity provider, as of the last sign-in.
    """

    name: str
    role: Role
    grants: frozenset[Grant] = field(default=frozenset())
    groups: tuple[str, ...] = ()

    def may(self, *roles: Role) -> bool:
        """Whether one of the roles is held; an owner may do everything."""
        return self.role == "owner" or self.role in roles

    def can(self, right: Right, dataset: str, release: str = "") -> bool:
        """Whether a right is held on a data set; for a searcher, on this release of it."""
        return self.role == "owner" or any(
            grant.gives(right, dataset, release) for grant in self.grants
        )

    def can_somewhere(self, right: Right) -> bool:
        """Whether a right is held on some data set."""
        return self.role == "owner" or any(right in RIGHTS[grant.role] for grant in self.grants)


LOCAL = RequestIdentity("local", "owner")


class Keys:
    """Make, look up and revoke keys; open and close sessions; grant and revoke rights.

    A key has 256 random bits, so that one SHA-256 is enough. All valid digests are held in memory
    and read again from the database every two seconds, so that looking up a secret costs no query,
    and strangers who send invalid keys cannot slow down valid ones.

    Parameters:
        database: the database of the workbench.
        token: the secret of the link that was printed at the start.
        owner_groups: groups of the identity provider whose members own the workbench.
    """

    def __init__(
        self, database: Database, *, token: str | None = None, owner_groups: Iterable[str] = ()
    ) -> None:
        self.database = database
        self._token = None if token is None else _digest(token)
        self._owner_groups = frozenset(owner_groups)
        self._keys: dict[str, RequestIdentity] = {}
        self._sessions: dict[str, tuple[RequestIdentity, float]] = {}
        self._read_at = -math.inf
        self._changes = 0
        self._guard = threading.Lock()

    def make(self, name: str, role: Role) -> str:
        """Make a key; only its digest is stored.

        Returns:
            The key, which cannot be read again.

        Raises:
            InvalidParameter: if the name or the role is not valid, or the name is taken.
        """
        _check_role(role, get_args(Role))
        name = _check_name("a key's name", name)
        key = f"bs_{secrets.token_urlsafe(32)}"
        row = {"name": name, "role": role, "digest": _digest(key), "made": _now(), "revoked": None}
        refusal = f"there is a key or a person named {name!r} already. Choose another name."
        if self.database.rows(sql.select(PEOPLE.c.name).where(PEOPLE.c.name == name)):
            raise InvalidParameter(refusal)
        try:
            with self.database.begin() as connection:
                connection.execute(sql.insert(KEYS).values(row))
        except sql.exc.IntegrityError:
            raise InvalidParameter(refusal) from None
        self._changed()
        return key

    def revoke(self, name: str) -> None:
        """Revoke a key, or bar a person of the identity provider, and end their sessions."""
        with self.database.begin() as connection:
            keys = connection.execute(
                sql.update(KEYS).where(KEYS.c.name == name).values(revoked=_now())
            )
            people = connection.execute(
                sql.update(PEOPLE).where(PEOPLE.c.name == name).values(revoked=_now())
            )
            connection.execute(sql.delete(SESSIONS).where(SESSIONS.c.name == name))
        if not keys.rowcount + people.rowcount:
            raise InvalidParameter(f"there is no key and no person named {name!r}.")
        self._changed()

    def make_owner(self) -> str:
        """Make an owner's key under a name that no person and no key, also no revoked one, has."""
        used = {row["name"] for row in (*self.listed(), *self.people())}
        names = itertools.chain(["owner"], (f"owner-{number}" for number in itertools.count(2)))
        return self.make(next(name for name in names if name not in used), "owner")

    def listed(self) -> list[dict[str, Any]]:
        """Return the names, roles and dates of all keys, without digests."""
        return self.database.rows(
            sql.select(KEYS.c.name, KEYS.c.role, KEYS.c.made, KEYS.c.revoked).order_by(KEYS.c.made)
        )

    def people(self) -> list[dict[str, Any]]:
        """Return everybody who has signed in with the identity provider."""
        columns = (PEOPLE.c.name, PEOPLE.c.label, PEOPLE.c.groups, PEOPLE.c.seen, PEOPLE.c.revoked)
        rows = self.database.rows(sql.select(*columns).order_by(PEOPLE.c.name))
        return [{**row, "groups": json.loads(row["groups"])} for row in rows]

    def person(
        self, issuer: str, subject: str, name: str, label: str, groups: tuple[str, ...]
    ) -> RequestIdentity | None:
        """Store a person whom the identity provider has authenticated.

        A name belongs to the first account that has it. For another account with the same name, or
        if a key has the name, a number of the account is appended. Rights that were granted to a
        name therefore never pass to another account.

        Returns:
            The identity, or None if the person was barred.
        """
        try:
            return self._person(issuer, subject, name, label, groups)
        except sql.exc.IntegrityError:  # another sign-in was stored meanwhile, and is found now
            return self._person(issuer, subject, name, label, groups)

    def _person(
        self, issuer: str, subject: str, name: str, label: str, groups: tuple[str, ...]
    ) -> RequestIdentity | None:
        account = (PEOPLE.c.issuer == issuer) & (PEOPLE.c.subject == subject)
        values = {"label": label, "groups": json.dumps(list(groups)), "seen": _now()}
        with self.database.begin() as connection:
            stored = connection.execute(
                sql.select(PEOPLE.c.name, PEOPLE.c.revoked).where(account)
            ).first()
            if stored is not None:
                if stored.revoked is not None:
                    return None
                connection.execute(sql.update(PEOPLE).where(account).values(**values))
                name = stored.name
            else:
                own = f"{name[: _LONGEST_NAME - 20]} {_digest(issuer + ' ' + subject)[:12]}"
                used = connection.execute(
                    sql.select(PEOPLE.c.name)
                    .where(PEOPLE.c.name == name)
                    .union(sql.select(KEYS.c.name).where(KEYS.c.name == name))
                ).first()
                name = own if used is not None or name == LOCAL.name else name
                connection.execute(
                    sql.insert(PEOPLE).values(name=name, issuer=issuer, subject=subject, **values)
                )
        return RequestIdentity(name, self._role(groups), groups=groups)

    def grant(
        self,
        subject: str,
        role: DataSetRole,
        dataset: str,
        *,
        release: str = "",
        group: bool = False,
        actor: str = "",
    ) -> None:
        """Give a person or key, or a group of the identity provider, a role in a data set.

        Parameters:
            subject: name of the person, key or group.
            role: "owner", "searcher", "auditor" or "keeper".
            dataset: number of the data set, or "*" for every one.
            release: the release that a searcher may search; "" for every release.
            group: whether the subject is a group.
            actor: who grants it.
        """
        _check_role(role, get_args(DataSetRole))
        if release and role != "searcher":
            raise InvalidParameter(
                f"a release is named for a searcher only, got role {role!r}. Leave the release out."
            )
        name = _check_name("a group's name" if group else "a person's name", subject)
        if not group:
            self.require_known(name)
        row = {
            "subject": name,
            "kind": "group" if group else "person",
            "role": role,
            "dataset": dataset,
            "release": release,
        }
        same = [GRANTS.c[column] == value for column, value in row.items()]
        with self.database.begin(alone=True) as connection:
            if connection.execute(sql.select(GRANTS.c.subject).where(*same)).first() is None:
                connection.execute(sql.insert(GRANTS).values(**row, made=_now(), actor=actor))
        self._changed()

    def withdraw(
        self, subject: str, dataset: str, *, role: str | None = None, group: bool = False
    ) -> int:
        """Delete the grants of a person or group in a data set, and return how many there were."""
        kind = "group" if group else "person"
        where = [
            GRANTS.c.subject == subject,
            GRANTS.c.kind == kind,
            GRANTS.c.dataset == dataset,
        ]
        if role is not None:
            where.append(GRANTS.c.role == role)
        with self.database.begin() as connection:
            ended = connection.execute(sql.delete(GRANTS).where(*where)).rowcount
        self._changed()
        return int(ended)

    def set_roles(self, subject: str, roles: Mapping[str, str], *, actor: str = "") -> None:
        """Set the role of a person or key in several data sets, in one transaction.

        An existing grant of the same role is not changed, with the release that it names.

        Parameters:
            subject: name of the person or key.
            roles: the role by the number of the data set; "" for no access.
            actor: who changes it.
        """
        for role in roles.values():
            _check_role(role, ("", *get_args(DataSetRole)))
        self.require_known(subject)
        with self.database.begin(alone=True) as connection:
            for dataset, role in roles.items():
                of_subject = (
                    (GRANTS.c.subject == subject)
                    & (GRANTS.c.kind == "person")
                    & (GRANTS.c.dataset == dataset)
                )
                connection.execute(sql.delete(GRANTS).where(of_subject & (GRANTS.c.role != role)))
                held = connection.execute(sql.select(GRANTS.c.role).where(of_subject)).first()
                if role and held is None:
                    row = {"subject": subject, "kind": "person", "role": role, "dataset": dataset}
                    connection.execute(
                        sql.insert(GRANTS).values(**row, release="", made=_now(), actor=actor)
                    )
        self._changed()

    def require_known(self, name: str) -> None:
        """Raise `InvalidParameter` if no key and no person has the name."""
        if name not in {row["name"] for row in (*self.listed(), *self.people())}:
            raise InvalidParameter(
                f"there is no key and no person named {name!r}. People of the identity provider "
                "are known once they have signed in; a key is made with `blindsight serve key add`."
            )

    def grants(self) -> list[dict[str, Any]]:
        """Return all grants with subject, kind, role, data set, release, date and actor."""
        return self.database.rows(sql.select(GRANTS).order_by(GRANTS.c.made, GRANTS.c.subject))

    def is_start_secret(self, secret: str) -> bool:
        """Whether this is the secret of the link that was printed at the start."""
        return self._token is not None and hmac.compare_digest(_digest(secret), self._token)

    def identify(self, key: str) -> RequestIdentity | None:
        """Return the identity of a key; the secret of the start-up link is the local owner's."""
        if self.is_start_secret(key):
            return LOCAL
        if self.needs_reading(known=self.known_key(key) is not None):
            self.read()
        return self.known_key(key)

    def known_key(self, key: str) -> RequestIdentity | None:
        """Return the identity of a key by the list in memory, without a query."""
        return LOCAL if self.is_start_secret(key) else self._keys.get(_digest(key))

    def known_session(self, token: str) -> RequestIdentity | None:
        """Return the identity of a session by the list in memory, without a query."""
        identity, until = self._sessions.get(_digest(token), (None, 0.0))
        return identity if until > time.time() else None

    def needs_reading(self, *, known: bool) -> bool:
        """Whether the list in memory is too old, for a secret that it contains (`known`) or not."""
        age = time.monotonic() - self._read_at
        return age >= (_FRESH_SECONDS if known else _UNKNOWN_SECONDS)

    def read(self) -> None:
        """Read all valid keys, sessions and rights from the database."""
        with self._guard:
            now, changes = time.monotonic(), self._changes
            granted: dict[tuple[str, str], set[Grant]] = {}
            for row in self.database.rows(sql.select(GRANTS)):
                grant = Grant(row["role"], row["dataset"], row["release"])
                granted.setdefault((row["kind"], row["subject"]), set()).add(grant)
            keys = self.database.rows(
                sql.select(KEYS.c.digest, KEYS.c.name, KEYS.c.role).where(KEYS.c.revoked.is_(None))
            )
            identities = {
                row["name"]: RequestIdentity(
                    row["name"], row["role"], frozenset(granted.get(("person", row["name"]), ()))
                )
                for row in keys
            }
            for row in self.database.rows(sql.select(PEOPLE).where(PEOPLE.c.revoked.is_(None))):
                groups = tuple(json.loads(row["groups"]))
                own = granted.get(("person", row["name"]), set()).union(
                    *(granted.get(("group", group), set()) for group in groups)
                )
                identities[row["name"]] = RequestIdentity(
                    row["name"], self._role(groups), frozenset(own), groups
                )
            if self._token is not None:
                identities[LOCAL.name] = LOCAL
            sessions = self.database.rows(
                sql.select(SESSIONS).where(SESSIONS.c.until > time.time())
            )
            self._keys = {row["digest"]: identities[row["name"]] for row in keys}
            self._sessions = {
                row["digest"]: (identities[row["name"]], row["until"])
                for row in sessions
                if row["name"] in identities
            }
            self._read_at = now
            if changes != self._changes:  # what changed meanwhile may be missing
                self._read_at = -math.inf

    def _changed(self) -> None:
        """Have the list read again, after a change in the database."""
        self._changes += 1
        self._read_at = -math.inf

    def open_sessions(self) -> int:
        """Return the number of open sessions, by the list in memory."""
        now = time.time()
        return sum(until > now for _, until in self._sessions.values())

    def _role(self, groups: Iterable[str]) -> Role:
        return "analyst" if self._owner_groups.isdisjoint(groups) else "owner"

    def open_session(self, identity: RequestIdentity, *, id_token: str = "") -> str:
        """Open a session, and return the token for its cookie.

        Parameters:
            identity: the identity of the session.
            id_token: the token that the identity provider expects at sign-out.
        """
        token = secrets.token_urlsafe(32)
        with self.database.begin() as connection:
            connection.execute(sql.delete(SESSIONS).where(SESSIONS.c.until < time.time()))
            row = {
                "digest": _digest(token),
                "name": identity.name,
                "until": time.time() + SESSION_SECONDS,
                "id_token": id_token,
            }
            connection.execute(sql.insert(SESSIONS).values(row))
        self._changed()
        return token

    def close_session(self, token: str) -> str:
        """End a session, and return the token that the identity provider expects, or ""."""
        session = SESSIONS.c.digest == _digest(token)
        with self.database.begin() as connection:
            row = connection.execute(sql.select(SESSIONS.c.id_token).where(session)).first()
            connection.execute(sql.delete(SESSIONS).where(session))
        self._changed()
        return "" if row is None else str(row.id_token or "")


def _check_role(role: str, roles: tuple[str, ...]) -> None:
    if role not in roles:
        raise InvalidParameter(f"role must be one of {roles}, got {role!r}.")


def _check_name(subject: str, name: str) -> str:
    if not name.isprintable() or not 1 <= len(name) <= _LONGEST_NAME or name == LOCAL.name:
        raise InvalidParameter(
            f"{subject} must be 1 to {_LONGEST_NAME} printable characters, and not 'local'."
        )
    return name


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
