"""A folder for each party: its own keys, the public roster, and the state of its roles.

    party.json     name and roles
    keys.bin       the party's own keys; the first encryption key is erased once it is in use
    request        the public request, to be sent to whoever collects requests
    roster         what everybody agreed on, with the plan; public
    user.state, holder.state, server.state    the state of each role
    model-*        the model that a user's next round must start from

`join` makes a folder, `make_roster` collects requests, `accept` adds the roster to a folder. A
party's state is on disk before an answer leaves, so a process that is killed continues.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.federated.flower.plan import Model, SumPlan
from blindsight.federated.sums import (
    Aggregator,
    Enrolment,
    KeyHolder,
    PartyKeys,
    Request,
    Role,
    Roster,
    User,
)
from blindsight.federated.sums.messages import Header
from blindsight.federated.sums.store import FileStore
from blindsight.federated.sums.wire import Reader, Writer, read_sealed, seal, unseal, write_sealed
from blindsight.privacy import Ledger
from blindsight.privacy.door import Door
from blindsight.privacy.vault import Vault

__all__ = ["Party", "Server", "Site", "accept", "join", "make_roster", "simulate_enrolment"]

_log = logging.getLogger(__name__)
_MAGIC = b"BSFL\3"
_LARGEST_ROSTER = 1 << 30
_LARGEST_REQUEST = 1 << 17
_SIMULATION = "SIMULATION"


def join(folder: str | Path, name: str, roles: Role) -> Request:
    """Make a party's folder with keys of its own.

    Parameters:
        folder: must be empty or not exist.
        name: how the others recognise the party, 1 to 60 bytes.
        roles: what the party does. Sites of a federation of up to 20 are user and holder; the
            party that runs the server app is the aggregator.

    Returns:
        The public request, which is also in the folder's file `request`.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidParameter(
            f"{folder} is not empty: keys are never overwritten. Choose another folder."
        )
    keys = PartyKeys.generate()
    request = keys.request(name, roles)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    write_sealed(folder / "keys.bin", keys.dump())
    write_sealed(folder / "request", request.encode())
    about = {"name": name, "roles": int(roles)}
    write_sealed(folder / "party.json", json.dumps(about).encode())
    return request


def make_roster(plan: SumPlan, requests: Sequence[Request], **options: Any) -> bytes:
    """Collect requests into a roster file: settings, plan and requests; public.

    Parameters:
        plan: what is summed.
        requests: one of each party. Users and holders are numbered in this order.
        options: further keywords of `Settings`, for example `bits` or `colluders`.

    Raises:
        InvalidData: the requests do not fit together, or two of them share a name or a key.
    """
    users, holders = (
        sum(role in request.roles for request in requests) for role in (Role.USER, Role.HOLDER)
    )
    settings, data = plan.settings(users, holders=holders, **options), plan.encode()
    roster = Roster(settings, hashlib.sha256(data).digest(), tuple(requests))
    return bytes(Writer().raw(_MAGIC).field(roster.encode()).field(data))


def _read_roster(data: bytes) -> tuple[Roster, SumPlan]:
    try:
        reader = Reader(data)
        if reader.raw(len(_MAGIC)) != _MAGIC:
            raise HostileFile("this is not a roster file of a Flower app.")
        roster, content = Roster.decode(reader.field()), reader.field()
        reader.end()
    except HostileFile:
        raise
    except Exception as error:
        raise HostileFile(f"this is not a roster file of a Flower app: {error}") from error
    if hashlib.sha256(content).digest() != roster.plan:
        raise HostileFile("the plan in the roster file is not the one that was agreed on.")
    plan = SumPlan.decode(content)
    agreed = roster.settings
    options = {"least_users": agreed.least_users, "colluders": agreed.colluders}
    expected = plan.settings(agreed.users, **(options if plan.epsilon is not None else {}))
    for name in ("dimension", "bound", "clip", "noise", "groups"):
        if getattr(expected, name) != getattr(roster.settings, name):
            raise HostileFile(f"the roster's setting {name} is not the one that the plan gives.")
    return roster, plan


def accept(folder: str | Path, roster: bytes) -> Roster:
    """Add a roster to a party's folder, after checking that it holds the party's own request.

    Returns:
        What was agreed on; people compare its `fingerprint` over another channel.

    Raises:
        InvalidData: the roster lacks the party's request or changes it.
        HostileFile: the bytes are not a roster file.
    """
    folder = Path(folder)
    agreed, _ = _read_roster(roster)
    path = folder / "roster"
    if path.exists() and path.read_bytes() != roster:
        raise InvalidParameter(f"{folder} has accepted another roster already.")
    request = Request.decode(read_sealed(folder / "request", largest=_LARGEST_REQUEST))
    Enrolment(PartyKeys.load(read_sealed(folder / "keys.bin")), agreed).check(request)
    write_sealed(path, roster)
    return agreed


def simulate_enrolment(
    folder: str | Path, plan: SumPlan, *, users: int, holders: int | None = None, **options: Any
) -> Path:
    """Make the folders of all parties on one machine, for Flower's simulation engine and tests.

    The folders are `node-0`, `node-1`, ... (the sites, then holders of their own if there are any)
    and `server`. All keys are on one machine, so nobody is protected from it; the roster and a
    file `SIMULATION` in each folder say so.

    Parameters:
        folder: where the folders are made; must be empty or not exist.
        plan: what is summed.
        users: how many sites contribute.
        holders: how many key holders there are besides the sites; by default up to 20 sites are
            their own holders and larger federations have five.
        options: further keywords of `Settings`.

    Returns:
        The folder.
    """
    root = Path(folder)
    if root.exists() and any(root.iterdir()):
        raise InvalidParameter(
            f"{root} is not empty: keys are never overwritten. Choose another folder."
        )
    plan = SumPlan(**{**json.loads(plan.encode()), "simulation": True})
    settings = plan.settings(users, holders=holders, **options)
    own = holders is None and settings.n_holders == users
    roles = [Role.USER | Role.HOLDER if own else Role.USER] * users
    roles += [] if own else [Role.HOLDER] * settings.n_holders
    names = [f"node-{number}" for number in range(len(roles))]
    requests = [
        join(root / name, name, role)
        for name, role in zip([*names, "server"], [*roles, Role.AGGREGATOR], strict=True)
    ]
    roster = make_roster(plan, requests, **options)
    for name in (*names, "server"):
        accept(root / name, roster)
        write_sealed(root / name / _SIMULATION, b"All keys were made on one machine.\n")
    return root


class Party:
    """A party's folder, with a roster."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        try:
            about = json.loads(read_sealed(self.path / "party.json", largest=4096))
            self.name, self.roles = str(about["name"]), Role(int(about["roles"]))
            self.roster, self.plan = _read_roster(
                read_sealed(self.path / "roster", largest=_LARGEST_ROSTER)
            )
        except FileNotFoundError as error:
            raise MissingData(
                f"{self.path} is no folder of a party with a roster: make it with join() and "
                "accept()."
            ) from error
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise HostileFile(f"{self.path / 'party.json'} is damaged.") from error

    @cached_property
    def enrolment(self) -> Enrolment:
        """The party's keys with the roster; secret."""
        return Enrolment(PartyKeys.load(read_sealed(self.path / "keys.bin")), self.roster)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; the lock goes with the process, however it ends."""
        with (self.path / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def prove(self, challenge: bytes, node: int) -> bytes:
        """A signature which shows that this party runs at that Flower node."""
        return self.enrolment.keys.identity.sign(self.proof(challenge, node))

    def proof(self, challenge: bytes, node: int) -> bytes:
        """What `prove` signs."""
        return b"blindsight flower node 1" + self.roster.agreement + challenge + b"%d" % node


class Site(Party):
    """A node of the Flower app: a user, a key holder, or both.

    Every call reads the state from disk and writes it before it returns, because Flower may run
    each message in another process.
    """

    @property
    def addresses(self) -> list[int]:
        """The party numbers under which this node receives messages."""
        own = self.enrolment.own
        wanted = [role for role in (Role.USER, Role.HOLDER) if role in own.roles]
        return [self.roster.number(role, own) for role in wanted]

    def _user(self) -> tuple[User, bytes]:
        """The user, and the digest of the model it is at; empty before it has seen one."""
        path = self.path / "user.state"
        if not path.exists():
            return User(self.enrolment), b""
        reader = unseal(b"FLWU", read_sealed(path))
        user, digest = User.load(reader.field()), reader.field()
        reader.end()
        return user, digest

    def _save_user(self, user: User, digest: bytes) -> None:
        writer = Writer().field(user.dump()).field(digest)
        write_sealed(self.path / "user.state", seal(b"FLWU", bytes(writer)))
        for path in self.path.glob("model-*"):
            if path != self._model_path(digest):
                path.unlink()

    def _model_path(self, digest: bytes) -> Path:
        return self.path / f"model-{digest.hex()}"

    def _write_model(self, model: Model, digest: bytes) -> None:
        """Save a model beside the state, before the state that names it: once, it is large."""
        path = self._model_path(digest)
        if not path.exists():
            writer = Writer().text(model.layout).field(model.vector.astype("<f8").tobytes())
            write_sealed(path, seal(b"FLWM", bytes(writer)))

    def _read_model(self, digest: bytes) -> Model:
        reader = unseal(b"FLWM", read_sealed(self._model_path(digest)))
        layout, vector = reader.text(), np.frombuffer(reader.field(), dtype="<f8")
        reader.end()
        return Model(layout, vector.astype(np.float64))

    def _holder(self) -> KeyHolder:
        path = self.path / "holder.state"
        return KeyHolder.load(read_sealed(path)) if path.exists() else KeyHolder(self.enrolment)

    def _erase_first_key(self) -> None:
        """Delete the first encryption key once every role has it in its state."""
        names = {Role.USER: "user.state", Role.HOLDER: "holder.state"}
        wanted = [name for role, name in names.items() if role in self.roles]
        keys = self.enrolment.keys
        if keys.private is not None and all((self.path / name).exists() for name in wanted):
            write_sealed(self.path / "keys.bin", keys.without_private().dump())

    def _start(self) -> None:
        if Role.USER in self.roles and not (self.path / "user.state").exists():
            self._save_user(*self._user())
        if Role.HOLDER in self.roles and not (self.path / "holder.state").exists():
            write_sealed(self.path / "holder.state", self._holder().dump())
        self._erase_first_key()

    def seeds(self) -> list[bytes]:
        """The sealed tag seeds, of user 1 before the first sum; otherwise nothing."""
        with self.locked():
            self._start()
            if Role.USER not in self.roles:
                return []
            user, _ = self._user()
            return [sent.data for sent in user.seeds()] if user.ended == 0 else []

    def receive(self, messages: Sequence[tuple[int, bytes]]) -> list[bytes]:
        """Handle messages of the protocol, each with the party number that it is for.

        Returns:
            The answers, for the aggregator.
        """
        own = self.addresses
        users = set(own) & set(self.roster.users)
        answers: list[bytes] = []
        with self.locked():
            self._start()
            to_user = [data for number, data in messages if number in users]
            to_holder = [data for number, data in messages if number in set(own) - users]
            if to_user:
                user, digest = self._user()
                for data in to_user:
                    before = user.ended
                    answers += [sent.data for sent in user.receive(data)]
                    if user.ended != before:
                        digest = self._follow(user, digest)
                self._save_user(user, digest)
            if to_holder:
                holder = self._holder()
                for data in to_holder:
                    answers += [sent.data for sent in holder.receive(data)]
                write_sealed(self.path / "holder.state", holder.dump())
        return answers

    def _follow(self, user: User, digest: bytes) -> bytes:
        """Compute the model that follows from the sum just accepted; the next round must start
        from it.
        """
        result, user.result = user.result, None  # the state need not hold the sum any longer
        if not digest or result is None or not self.plan.follows_mean:
            return b""
        following = self._read_model(digest).moved(self.plan.mean(result, user.settings))
        digest = following.digest
        self._write_model(following, digest)
        user.expect(digest)
        return digest

    def open_round(self) -> Header | None:
        """The round that waits for this site's update."""
        if Role.USER not in self.roles:
            return None
        with self.locked():
            return self._user()[0].open_round

    def charge(self, ledger: str | None, dataset: str) -> None:
        """Charge the site's ledger with what all its rounds cost, before the first, and once.

        It is charged through a vault in the party's folder, so that an older copy of the folder
        or of the ledger is noticed. Without epsilon in the plan nothing is charged.

        Parameters:
            ledger: the ledger's file; None: a warning says that nothing is charged.
            dataset: under which name the site's data are in the ledger.
        """
        if self.plan.epsilon is None:
            return
        if ledger is None:
            _log.warning("No ledger was named: the rounds are charged to nobody.")
            return
        guarantee = self.plan.guarantee(self.roster.settings)
        release = f"federation {self.roster.agreement.hex()}"
        with self.locked(), Ledger(ledger, dataset=dataset) as opened:
            vault = Vault.open_or_create(self.path / "vault")
            account = vault.account(opened, release=vault.release_of(release))
            Door(guarantee, what="updates to a federation", ledger=account)

    def contribute(
        self, header: Header, model: Model, update: NDArray[np.float64], *, examples: int | float
    ) -> list[bytes]:
        """Pad the update for a round; nothing where the round is not open any longer.

        Parameters:
            header: what `open_round` gave before the update was computed.
            model: the model that the update starts from.
            update: the change of all weights.
            examples: how many examples the site trained on.

        Returns:
            The contribution, for the aggregator; the state that repeats it is on disk.
        """
        if model.digest != header.model:
            raise InvalidData("the arrays are not those of the model that the round is bound to.")
        vector = self.plan.contribution(update, examples=examples)
        with self.locked():
            user, _ = self._user()
            if user.open_round is None or user.open_round.context != header.context:
                return []
            sent = user.contribute(vector)
            if self.plan.follows_mean:
                user.expect(header.model)
                self._write_model(model, header.model)
            self._save_user(user, header.model if self.plan.follows_mean else b"")
            return [message.data for message in sent]


class Server(Party):
    """The aggregator's folder: the protocol's state and the model of the last sum.

    A server app that is killed gives up the round that it was in and continues from the last sum.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        if Role.AGGREGATOR not in self.roles:
            raise InvalidParameter(f"{self.path} is not the folder of the aggregator.")
        self.model: Model | None = None
        store = FileStore(self.path, self.roster.settings.users)
        path = self.path / "server.state"
        if path.exists():
            reader = unseal(b"FLWS", read_sealed(path))
            self.role = Aggregator.load(reader.field(), store=store)
            layout, vector = reader.text(), np.frombuffer(reader.field(), dtype="<f8")
            reader.end()
            self.model = Model(layout, vector.astype(np.float64)) if layout else None
            if self.role.phase == "closed":  # holders may have opened the sum: count it as opened
                self.role.spoil()
        else:
            self.role = Aggregator(self.enrolment, store=store)
        self.save()

    def save(self) -> None:
        """Write the state; to be called before messages leave."""
        writer = Writer().field(self.role.dump())
        writer.text("" if self.model is None else self.model.layout)
        vector = np.zeros(0) if self.model is None else self.model.vector
        write_sealed(
            self.path / "server.state", seal(b"FLWS", bytes(writer.field(vector.tobytes())))
        )
