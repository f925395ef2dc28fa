"""A folder for each party: its own keys, the public roster, and the state of its roles.

    party.json     name and roles; for the aggregator also its address, if it has one
    keys.bin       the party's own keys; the first encryption key is erased once it is in use
    request        the public request, to be sent to whoever collects requests
    roster         what everybody agreed on, with the plan; public
    user.state, holder.state, server.state    the state of each role
    model-*        the model of the last sum, from which the next round starts

`join` makes a folder, `make_roster` collects requests, `accept` adds the roster to a folder. A
party's state is written to disk before an answer is sent, so that a killed process can continue.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.durable import only_writer
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.federated.deploy import folders
from blindsight.federated.deploy.folders import PartyFolder
from blindsight.federated.flower.plan import Model, SumPlan
from blindsight.federated.sums import (
    Aggregator,
    Enrolment,
    KeyHolder,
    Request,
    Role,
    Roster,
    User,
)
from blindsight.federated.sums.messages import Header
from blindsight.federated.sums.store import FileStore
from blindsight.federated.sums.wire import (
    CHECKSUM_BYTES,
    Writer,
    read_checksum,
    read_sealed,
    seal,
    unseal,
    write_sealed,
)
from blindsight.privacy import Ledger

__all__ = [
    "FlowerParty",
    "Server",
    "Site",
    "accept",
    "join",
    "make_roster",
    "simulate_enrolment",
    "site_of",
]

_log = logging.getLogger(__name__)
_LARGEST_ROSTER = 1 << 30
_SIMULATION = "SIMULATION"
_HELD_BYTES = 1 << 27  # about how much memory a process uses for sites between messages
_BYTES_PER_WEIGHT = 12  # of a site in memory: the model and what it sent
_idle: dict[Path, Site] = {}  # sites by folder, the one used last at the end; secret


def join(folder: str | Path, name: str, roles: Role, *, address: str | None = None) -> Request:
    """Make a party's folder with keys of its own.

    Parameters:
        folder: must be empty or not exist.
        name: how the others recognise the party, 1 to 60 bytes.
        roles: what the party does. Sites of a federation of up to 20 are user and holder; the
            party that runs the server app is the aggregator.
        address: for the aggregator: "host:port" at which it listens for key holders that run as
            separate processes (`blindsight federate run FOLDER`), not as nodes of Flower.

    Returns:
        The public request, which is also in the folder's file `request`.
    """
    return folders.join(folder, name, roles, address=address).request


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
    settings = plan.settings(users, holders=holders, **options)
    return folders.pack_roster(settings, plan.encode(), requests)


@lru_cache(maxsize=4)  # a party reads the same roster at each message
def _read_roster(data: bytes) -> tuple[Roster, SumPlan]:
    roster, content = folders.read_roster(data)
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
        The roster; people compare its `fingerprint` over another channel.

    Raises:
        InvalidData: the roster lacks the party's request or changes it.
        HostileFile: the bytes are not a roster file.
    """
    agreed, _ = _read_roster(roster)
    party = PartyFolder(Path(folder))
    if party.agreed and (party.path / "roster").read_bytes() != roster:
        raise InvalidParameter(f"{folder} has accepted another roster already.")
    return folders.accept_roster(party, agreed, roster)


def simulate_enrolment(
    folder: str | Path,
    plan: SumPlan,
    *,
    users: int,
    holders: int | None = None,
    address: str | None = None,
    **options: Any,
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
        address: where the server listens for holders that run as processes, see `join`.
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
    requests = [join(root / name, name, role) for name, role in zip(names, roles, strict=True)]
    requests.append(join(root / "server", "server", Role.AGGREGATOR, address=address))
    roster = make_roster(plan, requests, **options)
    for name in (*names, "server"):
        accept(root / name, roster)
        write_sealed(root / name / _SIMULATION, b"All keys were made on one machine.\n")
    return root


class FlowerParty:
    """A party's folder, with a roster."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.path = PartyFolder(Path(folder)), Path(folder)
        self.name, self.roles = self.folder.name, self.folder.roles
        if not self.folder.agreed:
            raise MissingData(
                f"{self.path} is no folder of a party with a roster: make it with join() and "
                "accept()."
            )
        self.roster, self.plan = _read_roster(
            read_sealed(self.path / "roster", largest=_LARGEST_ROSTER)
        )
        self._stored: Model | None = None  # the model in the file, once read or written
        self._tidied: bytes | None = b""  # the digest of the only model left in the folder

    @cached_property
    def enrolment(self) -> Enrolment:
        """The party's keys with the roster; secret."""
        return Enrolment(self.folder.keys, self.roster)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for one process; the lock is released when the process ends."""
        return only_writer(self.path, "lock")

    def _model_path(self, digest: bytes) -> Path:
        return self.path / f"model-{digest.hex()}"

    def _write_model(self, model: Model) -> None:
        """Save a model, once because it is large, before the state that names it."""
        if self._stored is None or self._stored.digest != model.digest:
            path, self._tidied = self._model_path(model.digest), b""
            if not path.exists():
                write_sealed(path, model.dump())
        self._stored = model

    def _read_model(self, digest: bytes) -> Model:
        if self._stored is None or self._stored.digest != digest:
            self._stored = Model.load(read_sealed(self._model_path(digest)), digest)
        return self._stored

    def _delete_other_models(self, digest: bytes | None) -> None:
        """Delete all models but the one that the state names."""
        if digest == self._tidied:
            return
        named = None if digest is None else self._model_path(digest).name
        for name in os.listdir(self.path):
            if name.startswith("model-") and name != named:
                os.unlink(self.path / name)
        self._tidied = digest
        if self._stored is not None and self._stored.digest != digest:
            self._stored = None

    def prove(self, challenge: bytes, node: int) -> bytes:
        """Return a signature that proves that this party runs at the given Flower node."""
        return self.enrolment.keys.identity.sign(self.proof(challenge, node))

    def proof(self, challenge: bytes, node: int) -> bytes:
        """Return the bytes that `prove` signs: roster, challenge and node."""
        return b"blindsight flower node 1" + self.roster.agreement + challenge + b"%d" % node


class Site(FlowerParty):
    """A node of the Flower app: a user, a key holder, or both.

    Every call writes the state to disk before it returns. The state in memory is used only while
    the state file is the one that this object wrote or read, because Flower may run each message in
    another process.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self._files = self._identities()
        self._held: User | None = None  # secret
        self._held_holder: KeyHolder | None = None  # secret
        self._checksums: dict[Role, bytes] = {}  # of the state files when last read or written

    @property
    def current(self) -> bool:
        """Whether the folder still has the roster and the keys that this object read."""
        try:
            return self._identities() == self._files
        except OSError:  # a file no longer exists
            return False

    def _identities(self) -> list[tuple[int, int, int]]:
        """Return file attributes that change when the roster or the keys are replaced."""
        files = [os.stat(self.path / name) for name in ("roster", "keys.bin")]
        return [(file.st_ino, file.st_mtime_ns, file.st_size) for file in files]

    @cached_property
    def addresses(self) -> list[int]:
        """The party numbers under which this node receives messages."""
        [own] = [request for request in self.roster.requests if request.name == self.name]
        wanted = [role for role in (Role.USER, Role.HOLDER) if role in own.roles]
        return [self.roster.number(role, own) for role in wanted]

    def _user(self) -> User:
        """Return the user; the model from which it expects the next round to start is in a file.

        The user is returned once: the caller must put it back or save it.
        """
        held, self._held = self._held, None
        path = self.folder.state(Role.USER)
        checksum = read_checksum(path)
        if held is not None and checksum == self._checksums.get(Role.USER):
            return held
        self._stored, self._tidied = None, b""  # another process may have changed them
        if not checksum:
            return User(self.enrolment)
        data = read_sealed(path)
        self._checksums[Role.USER] = data[-CHECKSUM_BYTES:]
        return User.load(data)

    def _save_user(self, user: User) -> None:
        self._write_state(Role.USER, user.dump())
        self._held = user
        self._delete_other_models(user.expected)

    def _write_state(self, role: Role, data: bytes) -> None:
        write_sealed(self.folder.state(role), data)
        self._checksums[role] = data[-CHECKSUM_BYTES:]

    def _holder(self) -> KeyHolder:
        """Return the key holder, once like the user."""
        held, self._held_holder = self._held_holder, None
        path = self.folder.state(Role.HOLDER)
        checksum = read_checksum(path)
        if not checksum:
            return KeyHolder(self.enrolment)
        if held is not None and checksum == self._checksums.get(Role.HOLDER):
            return held
        data = read_sealed(path)
        self._checksums[Role.HOLDER] = data[-CHECKSUM_BYTES:]
        return KeyHolder.load(data)

    def _start(self) -> None:
        if self.enrolment.keys.private is None:  # erased once all state files existed
            return
        if Role.USER in self.roles and not self.folder.state(Role.USER).exists():
            self._write_state(Role.USER, self._user().dump())
        if Role.HOLDER in self.roles and not self.folder.state(Role.HOLDER).exists():
            self._write_state(Role.HOLDER, self._holder().dump())
        self.folder.erase_first_key()
        del self.enrolment  # also remove the first key from memory
        self._files = self._identities()

    def seeds(self) -> list[bytes]:
        """Return user 1's sealed tag seeds before the first sum, otherwise nothing."""
        with self.locked():
            self._start()
            if Role.USER not in self.roles:
                return []
            user = self._user()
            return [sent.data for sent in user.seeds()] if user.ended == 0 else []

    def receive(
        self, messages: Sequence[tuple[int, bytes]], *, contributes: bool = False
    ) -> list[bytes]:
        """Handle messages of the protocol, each with the party number that it is for.

        Parameters:
            messages: each with the number of the party that it is for.
            contributes: whether this object contributes to the round that is opened. The opening
                is then written to disk together with the contribution; a process that is killed in
                between has sent nothing and is in its state before the message.

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
                user = self._user()
                for data in to_user:
                    ended, model = user.ended, user.expected
                    answers += [sent.data for sent in user.receive(data)]
                    if user.ended != ended:
                        self._follow(user, model)
                if contributes and len(to_user) == 1 and user.waiting and not answers:
                    self._held = user
                else:
                    self._save_user(user)
            if to_holder:
                try:
                    with only_writer(self.path, "holder.lock", wait=False):
                        answers += self._ask_holder(to_holder)
                except BlockingIOError:
                    raise InvalidData("a process of its own holds this party's keys.") from None
        return answers

    def _ask_holder(self, messages: Sequence[bytes]) -> list[bytes]:
        holder = self._holder()
        answers = [sent.data for data in messages for sent in holder.receive(data)]
        self._write_state(Role.HOLDER, holder.dump())
        self._held_holder = holder
        return answers

    def _follow(self, user: User, digest: bytes | None) -> None:
        """Compute the model after the accepted sum, from which the next round must start."""
        result, user.result = user.result, None  # the state no longer needs the sum
        if digest is not None and result is not None:
            following = self.plan.following(self._read_model(digest), result, user.settings)
            self._write_model(following)
            user.expect(following.digest)

    def open_round(self) -> Header | None:
        """Return the round that waits for this site's update, if there is one."""
        if Role.USER not in self.roles:
            return None
        if self._held is None:
            with self.locked():
                self._held = self._user()
        return self._held.open_round

    def charge(self, ledger: str | None, dataset: str) -> None:
        """Charge the site's ledger with the cost of all its rounds; see `PartyFolder.charge`.

        Without epsilon in the plan nothing is charged.

        Parameters:
            ledger: the ledger's file; None: a warning says that nothing is charged.
            dataset: the name of the site's data in the ledger.
        """
        if self.plan.epsilon is None:
            return
        if ledger is None:
            _log.warning("No ledger was named: the rounds are charged to nobody.")
            return
        with self.locked(), Ledger(ledger, dataset=dataset) as opened:
            self.folder.charge(self.plan.guarantee(self.roster.settings), opened)

    def contribute(
        self, header: Header, model: Model, update: NDArray[np.float64], *, examples: int | float
    ) -> list[bytes]:
        """Pad the update for a round; return nothing if the round is no longer open.

        Parameters:
            header: the result of `open_round` before the update was computed.
            model: the model that the update starts from.
            update: the change of all weights.
            examples: how many examples the site trained on.

        Returns:
            The contribution, for the aggregator; the state on disk can repeat it.
        """
        if model.digest != header.model:
            raise InvalidData("the arrays are not those of the model that the round is bound to.")
        vector = self.plan.contribution(update, examples=examples)
        with self.locked():
            user = self._user()
            if user.open_round is None or user.open_round.context != header.context:
                return []
            sent = user.contribute(vector)
            if self.plan.follows_mean:
                user.expect(header.model)
                self._write_model(model)
            self._save_user(user)
            return [message.data for message in sent]


@contextmanager
def site_of(folder: str | Path) -> Iterator[Site]:
    """Yield the site of a folder, for one message.

    A process that handles many messages, as in Flower's simulation engine, reads a folder's roster,
    keys and state once, and again if another process has changed them. Two threads get two objects,
    and an object is not used again after an exception.

    Parameters:
        folder: the party's folder.

    Yields:
        The site.
    """
    path = Path(folder).absolute()
    site = _idle.pop(path, None)
    if site is None or not site.current:
        site = Site(path)
    yield site
    _idle[path] = site
    most = max(1, _HELD_BYTES // (_BYTES_PER_WEIGHT * site.plan.weights))
    for oldest in list(_idle)[:-most]:
        _idle.pop(oldest, None)


class Server(FlowerParty):
    """The aggregator's folder: the protocol's state and the model of the last sum.

    After a kill, the server app abandons the interrupted round and continues from the last sum.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        if Role.AGGREGATOR not in self.roles:
            raise InvalidParameter(f"{self.path} is not the folder of the aggregator.")
        self.model: Model | None = None
        # A killed server abandons its round, so contributions need not survive it.
        store = FileStore(self.path, self.roster.settings.users, flush=False)
        path = self.path / "server.state"
        if path.exists():
            reader = unseal(b"FLWT", read_sealed(path))
            self.role, digest = Aggregator.load(reader.field(), store=store), reader.field()
            reader.end()
            self.model = self._read_model(digest) if digest else None
            if self.role.phase == "closed":  # holders may have opened the sum: count it as opened
                self.role.spoil()
        else:
            self.role = Aggregator(self.enrolment, store=store)
        self.save()

    def save(self) -> None:
        """Write the state; must be called before messages are sent."""
        digest = None if self.model is None else self.model.digest
        if self.model is not None:
            self._write_model(self.model)
        writer = Writer().field(self.role.dump()).field(digest or b"")
        write_sealed(self.path / "server.state", seal(b"FLWT", bytes(writer)))
        self.role.erase_ended()
        self._delete_other_models(digest)
