"""A folder for each party: its own secrets, its state, and the public roster.

    party.json   name and roles; for the aggregator also its address
    keys.bin     the party's own keys; the first encryption key is erased once it is in use
    request      the public request, to be sent to whoever collects requests
    token        the secret by which the party reads its mailbox; the request has its digest
    server.*     for the aggregator: its TLS certificate and key
    roster       what everybody agreed on, with the plan; public
    *.state      the state of each role

`join` makes a folder, `make_roster` collects requests, `accept` adds the roster to a folder. No
machine ever holds two parties' secrets. Every folder is readable by its owner only.

The aggregator's folder also gets a TLS certificate, signed by a certificate authority for this
federation only.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from blindsight.core import storage
from blindsight.core.errors import (
    HostileFile,
    InvalidParameter,
    MissingData,
    ProtocolError,
)
from blindsight.federated.deploy.plan import Plan
from blindsight.federated.sums.enrolment import Enrolment, PartyKeys, Request, Role, Roster
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.wire import Reader, Writer
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.door import Door
from blindsight.privacy.vault import Vault

__all__ = [
    "PartyFolder",
    "ServerFiles",
    "accept",
    "accept_roster",
    "join",
    "make_roster",
    "make_server_files",
    "pack_roster",
    "read_request",
    "read_roster",
    "token_digests",
    "write_secret",
]

_YEARS = 2


@dataclass(frozen=True)
class ServerFiles:
    """PEM bytes: the authority's and the server's certificates, and the server's private key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "ServerFiles(secret)"


def make_server_files(host: str) -> ServerFiles:
    """Make a certificate for `host` and loopback, signed by a new authority that is not kept."""
    authority = ec.generate_private_key(ec.SECP384R1())
    root = _name("Blindsight federation")
    ca = _certificate(root, root, authority.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(signs_certificates=True), critical=True)
    ca = ca.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
    )
    signed_ca = ca.sign(authority, hashes.SHA384())
    server = ec.generate_private_key(ec.SECP384R1())
    names = [_alternative(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    leaf = _certificate(_name(host), root, server.public_key())
    leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(_usage(signs_certificates=False), critical=True)
    leaf = leaf.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
    )
    leaf = leaf.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        critical=False,
    )
    pem = serialization.Encoding.PEM
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ServerFiles(
        signed_ca.public_bytes(pem), leaf.sign(authority, hashes.SHA384()).public_bytes(pem), key
    )


def _name(common: str) -> Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(subject: Any, issuer: Any, public: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
    )


def _usage(*, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


_MAGIC = b"BSRF\3"
_LARGEST_ROSTER = 1 << 33
_LARGEST_REQUEST = 1 << 17
_STATES = {Role.USER: "user.state", Role.HOLDER: "holder.state", Role.AGGREGATOR: "rounds.state"}


@dataclass(frozen=True)
class PartyFolder:
    """The folder with one party's keys, roster and state."""

    path: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """The name, the roles and, for the aggregator, its address."""
        try:
            fields: dict[str, Any] = json.loads(
                (self.path / "party.json").read_text(encoding="utf-8")
            )
            if not isinstance(fields["name"], str) or not 0 < int(fields["roles"]) <= 7:
                raise ValueError("fields")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HostileFile(
                f"{self.path} is no party's folder: make one with `blindsight federate join`."
            ) from error
        return fields

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def roles(self) -> Role:
        """The roles of the party: user, holder, aggregator."""
        return Role(int(self.about["roles"]))

    def require(self, role: Role) -> PartyFolder:
        """Return the folder itself if the party has the role.

        Raises:
            InvalidParameter: the party does not have the role.
        """
        if role not in self.roles:
            raise InvalidParameter(f"{self.name!r} does not have the role {role.name}.")
        return self

    @property
    def request(self) -> Request:
        """The party's own public request, from its file."""
        return read_request(self.path / "request")

    @cached_property
    def _agreed(self) -> tuple[Roster, bytes]:
        try:
            return read_roster((self.path / "roster").read_bytes())
        except FileNotFoundError:
            raise MissingData(
                f"{self.path} has no roster yet: run `blindsight federate accept` with it."
            ) from None

    @property
    def agreed(self) -> bool:
        """Whether the party has accepted a roster."""
        return (self.path / "roster").exists()

    @property
    def roster(self) -> Roster:
        """The roster that the party accepted."""
        return self._agreed[0]

    @cached_property
    def plan(self) -> Plan:
        """The plan, checked against the roster's digest."""
        path = self.path / "plan.safetensors"
        if self.agreed and not path.exists():
            raise MissingData(
                f"{self.path} belongs to a Flower app, which has no plan of its own: only its key "
                "holders run as processes of their own."
            )
        if hashlib.sha256(path.read_bytes()).digest() != self.roster.plan:
            raise HostileFile(f"{path} is not the plan that was agreed on.")
        return Plan.load(path)

    @property
    def settings(self) -> Settings:
        """The settings of the secure sum."""
        return self.roster.settings

    @property
    def keys(self) -> PartyKeys:
        """The party's own keys; secret."""
        return PartyKeys.load((self.path / "keys.bin").read_bytes())

    @property
    def enrolment(self) -> Enrolment:
        """The party's keys with the roster; secret."""
        return Enrolment(self.keys, self.roster)

    def number(self, role: Role) -> int:
        """Return the party's address in a role."""
        return self.roster.number(role, self.request)

    @property
    def address(self) -> str:
        """The host and port at which the aggregator listens."""
        address = _extra(self.roster.aggregator).get("address")
        if address is None:
            raise InvalidParameter(
                f"the aggregator {self.roster.aggregator.name!r} joined without an address, so its "
                "parties run as nodes of Flower. For processes of their own enrol it anew with one."
            )
        return address

    @property
    def token(self) -> str:
        """The secret by which the party reads its mailbox."""
        return (self.path / "token").read_text(encoding="ascii").strip()

    def state(self, role: Role) -> Path:
        """Return the path of a role's state file."""
        return self.path / _STATES[role]

    def erase_first_key(self) -> None:
        """Delete the first encryption key once every role that needs it has it in its state."""
        wanted = [role for role in (Role.USER, Role.HOLDER) if role in self.roles]
        if all(self.state(role).exists() for role in wanted):
            keys = self.keys
            if keys.private is not None:
                write_secret(self.path / "keys.bin", keys.without_private().dump())

    def charge(self, guarantee: Guarantee, ledger: Ledger) -> None:
        """Charge the party's own ledger once with the cost of all its rounds, before the first.

        It is charged through a vault in the folder, so that an older copy of the vault or of the
        ledger is noticed. `updates.release.json` beside the vault names what was charged: it shows
        that both are older copies where vault and ledger were restored together.

        Raises:
            RolledBack: if the vault or the ledger is an older copy, or both; nothing is charged.
        """
        vault = Vault.open_or_create(self.path / "vault")
        release = vault.release_of(f"federation {self.roster.agreement.hex()}")
        account = vault.account(ledger, release=release, out=self.path / "updates")
        Door(guarantee, what="updates to a federation", ledger=account)

    @property
    def model(self) -> Path:
        """The path of the model file."""
        return self.path / "model.safetensors"


def join(folder: str | Path, name: str, roles: Role, *, address: str | None = None) -> PartyFolder:
    """Make a party's folder: its own keys, its token, and the public request in `request`.

    Parameters:
        folder: must be empty or not exist.
        name: how the others recognise the party.
        roles: what the party does; a site of a small federation is user and holder.
        address: "host:port" at which the aggregator will listen; for the aggregator only. A
            Flower app needs none, unless key holders run as processes of their own.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidParameter(
            f"{folder} is not empty: keys are never overwritten. Choose another folder."
        )
    if address is not None and Role.AGGREGATOR not in roles:
        raise InvalidParameter("address= is for the aggregator only.")
    keys, token = PartyKeys.generate(), secrets.token_urlsafe(32)
    extra: dict[str, str] = {"token": hashlib.sha256(token.encode()).hexdigest()}
    fields: dict[str, Any] = {"name": name, "roles": int(roles)}
    if address is not None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidParameter(f"address must be host:port, got {address!r}.")
        server = make_server_files(host)
        write_secret(folder / "server.pem", server.certificate)
        write_secret(folder / "server.key", server.key)
        extra |= {"address": address, "ca": server.authority.decode()}
        fields["address"] = address
    request = keys.request(name, roles, json.dumps(extra).encode())
    write_secret(folder / "keys.bin", keys.dump())
    write_secret(folder / "token", token.encode())
    write_secret(folder / "request", request.encode())
    write_secret(folder / "party.json", json.dumps(fields).encode())
    return PartyFolder(folder)


def read_request(path: str | Path) -> Request:
    """Read an untrusted request file."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST_REQUEST:
            raise HostileFile(f"{path} is too large for a request.")
        request = Request.decode(path.read_bytes())
        _extra(request)
    except FileNotFoundError:
        raise MissingData(f"{path} does not exist. Check the path.") from None
    except (ProtocolError, ValueError) as error:
        raise HostileFile(f"{path} is not a request: {error}") from error
    return request


def _extra(request: Request) -> dict[str, str]:
    """Return the fields of a request that the transport uses."""
    try:
        extra: dict[str, str] = json.loads(request.extra)
        allowed = [{"token"}]
        if Role.AGGREGATOR in request.roles:
            allowed.append({"token", "address", "ca"})
        if set(extra) not in allowed or not all(isinstance(v, str) for v in extra.values()):
            raise ValueError("fields")
    except (ValueError, TypeError, RecursionError) as error:
        raise HostileFile(f"the request of {request.name!r} is not made for HTTPS.") from error
    return extra


def token_digests(roster: Roster) -> dict[str, set[int]]:
    """Return the addresses that each token may act for, by the token's digest."""
    tokens: dict[str, set[int]] = {}
    for request in roster.requests:
        numbers = {
            roster.number(role, request)
            for role in (Role.USER, Role.HOLDER)
            if role in request.roles
        }
        if numbers:
            tokens[_extra(request)["token"]] = numbers
    return tokens


def make_roster(settings: Settings, plan: Plan, requests: Sequence[Request]) -> bytes:
    """Collect requests into a roster file: settings, plan and requests; public.

    Raises:
        InvalidData: the requests do not fit the settings, or two of them share a name or a key.
    """
    plan.check(settings)
    data = pack_roster(settings, plan.dump(), requests)
    if "address" not in _extra(read_roster(data)[0].aggregator):
        raise InvalidParameter("the aggregator must join with the address at which it listens.")
    return data


def pack_roster(settings: Settings, plan: bytes, requests: Sequence[Request]) -> bytes:
    """Return the roster file of an encoded plan; see `make_roster`."""
    for request in requests:
        _extra(request)
    roster = Roster(settings, hashlib.sha256(plan).digest(), tuple(requests))
    return bytes(Writer().raw(_MAGIC).field(roster.encode()).field(plan))


@lru_cache(maxsize=4)  # a party reads the same roster at each message
def read_roster(data: bytes) -> tuple[Roster, bytes]:
    """Read the roster and the plan's bytes from an untrusted roster file."""
    if len(data) > _LARGEST_ROSTER:
        raise HostileFile("a roster file is too large.")
    try:
        reader = Reader(data)
        if reader.raw(5) != _MAGIC:
            raise HostileFile("this is not a roster file.")
        roster, plan = Roster.decode(reader.field()), reader.field()
        reader.end()
    except (ProtocolError, ValueError) as error:
        raise HostileFile(f"this is not a roster file: {error}") from error
    if hashlib.sha256(plan).digest() != roster.plan:
        raise HostileFile("the plan in the roster file is not the one that was agreed on.")
    for request in roster.requests:
        _extra(request)
    return roster, plan


def accept(folder: PartyFolder, data: bytes) -> Roster:
    """Add a roster to a party's folder, after checking that it holds the party's own request.

    Returns:
        The roster; people compare its `fingerprint` over another channel.
    """
    roster, plan = read_roster(data)
    if folder.agreed:
        if folder.roster.agreement != roster.agreement:
            raise InvalidParameter(f"{folder.path} has accepted another roster already.")
        return roster
    if "address" not in _extra(roster.aggregator):
        raise HostileFile(
            "the roster names no address of the aggregator, so no party could reach it. Ask for a "
            "roster with one."
        )
    return accept_roster(folder, roster, data, plan=plan)


def accept_roster(
    folder: PartyFolder, roster: Roster, data: bytes, *, plan: bytes | None = None
) -> Roster:
    """Write a roster, after checking that it holds the party's own request; see `accept`.

    Parameters:
        folder: the party's folder.
        roster: the decoded roster.
        data: the roster file.
        plan: the plan of a federation without Flower.
    """
    Enrolment(folder.keys, roster).check(folder.request)
    authority = _extra(roster.aggregator).get("ca")
    if authority is not None:
        write_secret(folder.path / "ca.pem", authority.encode())
    if plan is not None:
        write_secret(folder.path / "plan.safetensors", plan)
        Plan.load(folder.path / "plan.safetensors").check(roster.settings)
    write_secret(folder.path / "roster", data)
    return roster


def write_secret(path: Path, content: bytes) -> None:
    """Write a file for its owner only; the temporary file has mode 0600 from the start."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(path.parent, 0o700)
    storage.write_atomically(path, content)
