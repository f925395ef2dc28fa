"""A folder a party: its secrets, its state, and what it needs to reach the others.

    aggregator/  enrolment, plan, TLS certificate and key, the nodes' public keys; later its state
    and the model keygen/      enrolment with the private key, node key, CA certificate; or
    holder-1/ .. enrolment with the holder's key, node key, CA certificate user-1/ ...  enrolment,
    plan, node key, CA certificate

Whoever makes them knows every secret in them (line 1 of Algorithm 1): hand each folder to its party
over a protected channel, keep your own, and delete the rest. Every folder is readable by its owner
only.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.federated.enrolment import enrol
from blindsight.federated.flower.certificates import make_node_key, make_server_files
from blindsight.federated.flower.plan import Plan
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.settings import Settings

__all__ = ["Home", "make_homes", "write_secret"]

CARRIERS = ("mailbox", "flower")
ROLES = ("aggregator", "keygen", "holder", "user")


@dataclass(frozen=True)
class Home:
    """One party's folder."""

    path: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """Role, number and the aggregator's address."""
        try:
            about: dict[str, Any] = json.loads(
                (self.path / "party.json").read_text(encoding="utf-8")
            )
            about.setdefault("carrier", "mailbox")
            if (
                about["carrier"] not in CARRIERS
                or about["role"] not in ROLES
                or not isinstance(about["address"], str)
                or about["number"] < 0
            ):
                raise ValueError("fields")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HostileFile(
                f"{self.path} is no party's folder: make one with `blindsight federate keys`."
            ) from error
        return about

    def require(self, role: str) -> Home:
        """Itself, if it is that party's; else an error that says whose it is."""
        if self.about["role"] != role:
            raise InvalidParameter(
                f"{self.path} belongs to the role {self.about['role']!r}, not to {role!r}."
            )
        return self

    @property
    def name(self) -> str:
        """As the folder was called when it was made: "aggregator", "keygen", "holder-2",
        "user-7".
        """
        role = str(self.about["role"])
        return f"{role}-{self.number}" if role in ("holder", "user") else role

    @property
    def command(self) -> str:
        """What its owner runs."""
        rows = " --data rows.npz" if self.about["role"] == "user" else ""
        return f"{self.about['role']} {self.path}{rows}"

    @property
    def number(self) -> int:
        """The user's or holder's number, 0 for the others."""
        return int(self.about["number"])

    @property
    def enrolment(self) -> bytes:
        """The sealed enrolment."""
        return (self.path / "enrolment.bin").read_bytes()

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        return Plan.load(self.path / "plan.safetensors")

    @property
    def state(self) -> Path:
        """Where the party keeps its state."""
        return self.path / "state.bin"

    @property
    def model(self) -> Path:
        """Where the aggregator and each user keep the model, for `FederatedClassifier.load`."""
        return self.path / "model.safetensors"


def make_homes(
    root: str | Path,
    settings: Settings,
    key: PrivateKey | None,
    plan: Plan,
    *,
    host: str = "127.0.0.1",
    port: int = 9092,
    carrier: str = "mailbox",
) -> list[Home]:
    """Lines 1 and 2 of Algorithm 1 for runs across machines: a folder for each party.

    Key holders need no `key`.
    """
    root = Path(root)
    if len(plan.initial) != settings.dimension:
        raise InvalidData(
            f"settings are for {settings.dimension} weights, the plan has {len(plan.initial)}."
        )
    if root.exists() and any(root.iterdir()):
        raise InvalidParameter(
            f"{root} is not empty: keys are never overwritten. Choose another folder."
        )
    setup = enrol(settings, key)
    server = make_server_files(host)
    address = f"{host}:{port}"
    checks.one_of("carrier", carrier, CARRIERS)
    aggregator = _home(
        root / "aggregator",
        "aggregator",
        0,
        address,
        setup.aggregator.dump(),
        server.authority,
        plan,
    )
    write_secret(aggregator.path / "server.pem", server.certificate)
    write_secret(aggregator.path / "server.key", server.key)
    homes = [aggregator]
    if setup.keygen is not None:
        homes.append(
            _home(
                root / "keygen", "keygen", 0, address, setup.keygen.dump(), server.authority, None
            )
        )
    for held in setup.holders:
        path = root / f"holder-{held.index}"
        homes.append(
            _home(path, "holder", held.index, address, held.dump(), server.authority, None)
        )
    for enrolment in setup.users:
        path = root / f"user-{enrolment.number}"
        homes.append(
            _home(path, "user", enrolment.number, address, enrolment.dump(), server.authority, plan)
        )
    tokens: dict[str, str] = {}
    for home in homes:
        about = {**home.about, "carrier": carrier}
        write_secret(home.path / "party.json", json.dumps(about).encode())
        home.__dict__.pop("about", None)  # what was read before is out of date
    for home in homes[1:]:
        token = secrets.token_urlsafe(32)
        tokens[home.path.name] = hashlib.sha256(token.encode()).hexdigest()
        write_secret(home.path / "token", token.encode())
        node = make_node_key()
        write_secret(home.path / "node.key", node.private)
        write_secret(home.path / "node.pub", node.public)
        write_secret(aggregator.path / "nodes" / f"{home.path.name}.pub", node.public)
    write_secret(aggregator.path / "tokens.json", json.dumps(tokens).encode())
    return homes


def _home(
    path: Path,
    role: str,
    number: int,
    address: str,
    enrolment: bytes,
    authority: bytes,
    plan: Plan | None,
) -> Home:
    about = json.dumps({"role": role, "number": number, "address": address})
    write_secret(path / "party.json", about.encode())
    write_secret(path / "enrolment.bin", enrolment)
    write_secret(path / "ca.pem", authority)
    if plan is not None:
        plan.save(path / "plan.safetensors")
    return Home(path)


def write_secret(path: Path, content: bytes) -> None:
    """For its owner only: the temporary file that becomes it is made with mode 0600."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(path.parent, 0o700)
    storage.write_atomically(path, content)
