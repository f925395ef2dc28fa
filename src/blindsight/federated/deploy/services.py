"""Users and key holders with their state on disk: a message in, messages out, saved in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core import durable
from blindsight.federated.agreement import Agreement
from blindsight.federated.deploy.folders import PartyFolder
from blindsight.federated.deploy.plan import read_rows
from blindsight.federated.learning import model_digest
from blindsight.federated.noise import RecordShares
from blindsight.federated.sums import Durable, GroupMeans, KeyHolder, Outgoing, Role, User
from blindsight.federated.sums.messages import Kind
from blindsight.federated.sums.wire import Writer, read_sealed, seal, unseal, write_sealed
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.door import Door
from blindsight.privacy.vault import Vault

__all__ = ["HolderService", "Service", "SiteRows", "UserService", "alone", "charge"]

SiteRows = str | Path | tuple[NDArray[np.float64], NDArray[np.int64]]


@contextmanager
def alone(folder: PartyFolder, role: Role) -> Iterator[None]:
    """Only one process of a role at a time; the lock goes with the process, however it ends."""
    with (folder.path / f"{str(role.name).lower()}.lock").open("wb") as file:
        durable.lock(file.fileno())
        yield


class Service(Protocol):
    """A role that answers messages."""

    @property
    def over(self) -> bool:
        """Whether all rounds are done and nothing more will be asked of it."""
        ...

    def start(self) -> list[Outgoing]:
        """What to say before anything was asked."""
        ...

    def handle(self, message: bytes) -> list[Outgoing]:
        """Answer one message."""
        ...


def charge(folder: PartyFolder, ledger: Ledger) -> Guarantee:
    """Charge a user's own ledger with what all its rounds cost, before the first, and once.

    It is charged through a vault in the party's folder, so that an older copy of the folder or of
    the ledger is noticed. `updates.release.json` beside the vault names what was charged: it shows
    that both are older copies where vault and ledger were restored together.

    Raises:
        RolledBack: if the vault or the ledger is an older copy, or both; nothing is charged.
    """
    settings, agreement = folder.require(Role.USER).settings, folder.roster.agreement
    # A record trains or is held out, never both: it is in `rounds` sums at most.
    per_record = isinstance(settings.noise, RecordShares)
    rounds = folder.plan.rounds if per_record else settings.rounds
    guarantee = Agreement(settings).guarantee(rounds)
    vault = Vault.open_or_create(folder.path / "vault")
    release = vault.release_of(f"federation {agreement.hex()}")
    account = vault.account(ledger, release=release, out=folder.path / "updates")
    Door(guarantee, what="updates to a federation", ledger=account)
    return guarantee


class UserService:
    """User n on its own machine: trains on its own rows, contributes, and computes the model.

    Protocol state and model are one file, written before an answer leaves. Killed at any moment it
    comes back with the old state or the new one; asked again for a round it has answered, it sends
    the very same bytes.

    Parameters:
        folder: the party's folder, with a roster.
        data: the user's rows, an .npz file with X and y, or the rows and their class numbers. They
            stay here.
    """

    def __init__(self, folder: PartyFolder, data: SiteRows) -> None:
        self.folder, self.plan = folder.require(Role.USER), folder.plan
        rows = data if isinstance(data, tuple) else read_rows(data, self.plan.names)
        self.task = self.plan.task(*rows, user=folder.number(Role.USER))
        self.weights, self.turn = self.plan.initial.copy(), 1
        self._update: NDArray[np.float64] | None = None
        self._means = GroupMeans(folder.settings)
        self._path = folder.state(Role.USER)
        if self._path.exists():
            reader = unseal(b"USRV", read_sealed(self._path))
            self.user, self.turn = User.load(reader.field()), reader.number("Q")
            self.weights = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
            update = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
            self._update = update if update.size else None
            self._means = GroupMeans.load(folder.settings, reader.field())
            reader.end()
        else:
            self.user = User(folder.enrolment)
            self.user.expect(model_digest(self.weights))
            self._save()
        folder.erase_first_key()

    @property
    def over(self) -> bool:
        """Whether the last round's sum was learned."""
        return self.turn > self.plan.total_rounds

    def start(self) -> list[Outgoing]:
        """User 1 hands round the tag seed until the first round is over."""
        return self.user.seeds() if self.user.ended == 0 else []

    def handle(self, message: bytes) -> list[Outgoing]:
        """Answer an opening with a contribution, and learn from a result."""
        before = self.user.ended
        answers = self.user.receive(message)
        if self.user.ended != before:
            self._learn()
        if self.user.waiting:
            if self._update is None:
                self._update = self.task.vector(self.weights, self.turn, self.user.settings)
            answers = self.user.contribute(self._update)
        if message[5:6] == bytes([Kind.OPEN]) and self.user.ended == 0:
            answers = [*self.user.seeds(), *answers]
        self._save()
        return answers

    def _learn(self) -> None:
        """Compute the model that follows from a checked sum."""
        opened = self.user.result
        if opened is None:
            return
        mean = self._means.add(opened)
        if mean is None:  # other groups' sums of this model are still to come
            return
        users = len(self._means.contributors)
        self.weights = self.plan.advanced(self.weights, mean, users=users, turn=self.turn)
        self.turn, self._update = self.turn + 1, None
        self.user.expect(model_digest(self.weights))
        if self.over:  # until then the weights are in the state
            model = self.plan.learned(self.weights, self.user.settings)
            if model is not None:
                model.save(self.folder.model)

    def _save(self) -> None:
        update = np.zeros(0) if self._update is None else self._update
        writer = Writer().field(self.user.dump()).number("Q", self.turn)
        writer.field(self.weights.astype("<f8").tobytes()).field(update.astype("<f8").tobytes())
        writer.field(self._means.dump())
        write_sealed(self._path, seal(b"USRV", bytes(writer)))


class HolderService:
    """A key holder on its own machine; an answer that was given stays given, whatever is killed."""

    over = False

    def __init__(self, folder: PartyFolder) -> None:
        path = folder.require(Role.HOLDER).state(Role.HOLDER)
        role = KeyHolder.load(read_sealed(path)) if path.exists() else KeyHolder(folder.enrolment)
        self._durable = Durable(role, path)
        folder.erase_first_key()

    def start(self) -> list[Outgoing]:
        """Nothing: holders only answer."""
        return []

    def handle(self, message: bytes) -> list[Outgoing]:
        """Answer with a part of the summed key."""
        return self._durable.receive(message)
