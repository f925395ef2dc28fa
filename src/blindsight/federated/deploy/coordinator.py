"""The aggregator's rounds: open, collect, close, have the sum opened, update the model.

Transport is a `Link`, which pushes and pulls messages. The same code runs over HTTPS and, in tests,
over a list. A contribution is appended to a file when it arrives; the state is written when a round
opens, closes and ends.

Users who spoil sums are found by bisection. The encryption hides who sent an invalid contribution,
but the aggregator may leave users out. After a sum that fails, all its users are suspects; each
further sum leaves out half of the suspects. A sum that succeeds clears its users, and one that
fails narrows the suspects to those who were in it.

A user who spoils only some sums may be cleared by chance, so successes guide the search but prove
nothing. Failed sums are the evidence: a single spoiler is in every one of them. Once one suspect is
left, further sums contain it and leave out half of the others who were in every failed sum, until
it is the only one. It is excluded permanently when a later sum without it succeeds. If there is one
spoiler, no other user is excluded, however rarely it spoils.

Users check the tag of a sum and may refuse one that the aggregator has opened. The conclusions from
this sum are then withdrawn (`withdrawn`), and it counts as failed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import ProtocolError
from blindsight.federated.deploy.folders import PartyFolder
from blindsight.federated.learning import RoundLog, model_digest, sparsity
from blindsight.federated.sums import Aggregator, GroupMeans, Outgoing, Role
from blindsight.federated.sums.messages import holder, is_holder
from blindsight.federated.sums.store import FileStore
from blindsight.federated.sums.wire import Writer, read_sealed, seal, unseal, write_sealed

__all__ = ["Coordinator", "FaultIsolation", "Link"]

_MOST_FAILURES = 40  # in a row; a search takes about log2(users) of them


class _State(TypedDict):
    excluded: list[int]
    suspects: list[int]
    condemned: int
    failures: int
    failed_set: list[int]
    in_every: list[int]


class FaultIsolation:
    """Which users are suspected of spoiling sums, and which are excluded."""

    def __init__(
        self,
        *,
        excluded: Iterable[int] = (),
        suspects: Iterable[int] = (),
        condemned: int = 0,
        failures: int = 0,
        failed_set: Iterable[int] = (),
        in_every: Iterable[int] = (),
    ) -> None:
        self.excluded, self.suspects = set(excluded), set(suspects)
        self.condemned, self.failures = condemned, failures
        self.failed_set = tuple(failed_set)  # the users of the last sum, if it failed
        self.in_every = set(in_every)  # users who were in every failed sum of this search
        self._before: _State | None = None  # restored if users refuse the last successful sum

    def _restore(self, state: _State) -> None:
        self.excluded, self.suspects = set(state["excluded"]), set(state["suspects"])
        self.condemned, self.failures = state["condemned"], state["failures"]
        self.failed_set, self.in_every = tuple(state["failed_set"]), set(state["in_every"])

    def _state(self) -> _State:
        return {
            "excluded": sorted(self.excluded),
            "suspects": sorted(self.suspects),
            "condemned": self.condemned,
            "failures": self.failures,
            "failed_set": list(self.failed_set),
            "in_every": sorted(self.in_every),
        }

    def dump(self) -> bytes:
        """Return the state, and the one before the last success, as bytes."""
        return json.dumps([self._state(), self._before]).encode()

    @classmethod
    def load(cls, data: bytes) -> FaultIsolation:
        """Continue from what `dump` wrote."""
        state, before = json.loads(data)
        isolation = cls(**state)
        isolation._before = before
        return isolation

    def proposals(self, present: Collection[int]) -> Iterator[set[int]]:
        """Yield sets of users to sum next, the most informative first."""
        usable = set(present) - self.excluded
        doubted = sorted(self.suspects & usable)
        if len(doubted) == 1 and self.condemned != doubted[0]:
            # Other users were also in every failed sum: sum the suspect without them.
            others = sorted(self.in_every & usable - set(doubted))
            half = (len(others) + 1) // 2
            yield usable - set(others[:half])
            yield usable - set(others[half:])
        if doubted:
            half = (len(doubted) + 1) // 2
            yield usable - set(doubted[:half])
            yield usable - set(doubted[half:])
            yield usable - set(doubted)
        yield usable

    def succeeded(self, users: Collection[int]) -> int | None:
        """Record a successful sum over these users; return the user now excluded, if any."""
        self._before = self._state()
        self.failures, self.failed_set = 0, ()
        self.suspects -= set(users)
        if self.condemned and self.condemned not in users:
            guilty, self.condemned = self.condemned, 0
            self.excluded.add(guilty)
            self.suspects.discard(guilty)
            self.in_every = set()
            return guilty
        self.condemned = 0
        if not self.suspects:  # the search ended without a result
            self.in_every = set()
        return None

    def withdrawn(self, users: Collection[int]) -> None:
        """Count the last successful sum, over these users, as failed, because users refuse it."""
        if self._before is not None:
            self._restore(self._before)
        self.failed(users)

    def failed(self, users: Collection[int]) -> None:
        """Record a failed sum over these users, at least one of whom spoilt it.

        Raises:
            ProtocolError: too many sums in a row failed.
        """
        self.failures += 1
        self.failed_set, self._before = tuple(sorted(users)), None
        # Empty if nothing failed before, or if more than one user spoils sums.
        self.in_every = self.in_every & set(users) or set(users)
        # A user who is not in every failed sum is no suspect; without suspects the search starts
        # again from the users who are.
        self.suspects = self.suspects & self.in_every or set(self.in_every)
        self.condemned = next(iter(self.in_every)) if len(self.in_every) == 1 else 0
        if self.failures > _MOST_FAILURES:
            raise ProtocolError(
                f"{self.failures} sums in a row failed, and who spoils them could not be found. "
                "Set the federation up again without the users in doubt."
            )


_log = logging.getLogger(__name__)
_RESEND = 30.0  # seconds after which a message that nobody answered is sent again
_TOLD = "told.json"
_COMPLAINTS = 1.5  # seconds after the last round in which users may refuse its sum
_STRAGGLERS = 2.0  # seconds to wait for late answers of holders, which contain their next keys
_SAY, _SOON = 5.0, 2.0  # seconds between two notes about who is missing, and before the first
_SAME_SET = 3  # how often a failed set is tried again if no other set is possible


class Link(Protocol):
    """How messages travel between the aggregator and the other parties."""

    @property
    def seen(self) -> Collection[int]:
        """Addresses that have been in contact."""
        ...

    def push(self, messages: Iterable[Outgoing]) -> None:
        """Send messages; parties that are away receive them when they return."""
        ...

    def pull(self) -> list[bytes]:
        """Return the messages that arrived since the last call."""
        ...

    def unread(self) -> Collection[int]:
        """Addresses that have not yet handled all that was sent to them."""
        ...


class _Before(NamedTuple):
    """The state before the last sum, and the users in this sum."""

    weights: NDArray[np.float64]
    means: bytes
    rounds: int
    contributors: tuple[int, ...]


class Coordinator:
    """The aggregator of one federation; after a kill it is loaded again and continues.

    Parameters:
        folder: the aggregator's folder.
        test: labelled rows on which each round's accuracy is measured.
        clock: returns the time in seconds.
        pause: waits for a number of seconds.
    """

    def __init__(
        self,
        folder: PartyFolder,
        *,
        test: tuple[NDArray[Any], NDArray[Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder, self.plan, self.test = folder.require(Role.AGGREGATOR), folder.plan, test
        self._clock, self._pause = clock, pause
        self.log: list[RoundLog] = []
        self.history: list[tuple[int, ...]] = []
        self._used = self._bytes = 0  # the last protocol round that was used; bytes of this one
        self.waiting = ""
        self.isolation = FaultIsolation()
        self._means = GroupMeans(folder.settings)
        self._before: _Before | None = None  # restored if users refuse the last sum
        self._path = folder.state(Role.AGGREGATOR)
        if self._path.exists():
            self._load(read_sealed(self._path))
        else:
            store = FileStore(folder.path, folder.settings.users)
            self.role = Aggregator(folder.enrolment, store=store)
            self.weights = self.plan.initial.copy()
            self.save()

    @property
    def excluded(self) -> list[int]:
        """Users who are left out because they spoil sums."""
        return sorted(self.isolation.excluded)

    @property
    def finished(self) -> bool:
        """Whether every round of the plan is done."""
        return len(self.log) >= self.plan.total_rounds

    def run(self, link: Link, linger: float = 3.0) -> NDArray[np.float64]:
        """Run all remaining rounds, then wait for users who lack the last result.

        Parameters:
            link: how messages travel.
            linger: the largest number of seconds to wait for such users.

        Returns:
            The weights of the model.
        """
        if self.finished:  # started again after the end: mailboxes are empty
            self.save()  # status and model, if the kill came before they were written
            informed = self._told()
            link.push([message for message in self.role.results() if message.to not in informed])
        while True:
            while not self.finished:
                self.round(link)
            self._settle(link, linger)
            if self.finished:
                return self.weights

    def round(self, link: Link) -> RoundLog:
        """Run one round, or the rest of an interrupted one."""
        start = self._clock()
        while True:
            self._advance(link)
            self._used = self.role.round
            if self.role.result is None:
                self._failed()
                self.save()
                continue
            entry = self._finish(self._clock() - start)
            if entry is not None:
                return entry

    def _advance(self, link: Link) -> None:
        """Run one round of the protocol to its end."""
        if self.role.withdrawn:
            return
        if self.role.phase in ("idle", "done") and self.role.round <= self._used:
            length = self.plan.length(len(self.log) + 1)
            self.role.open_round(self.role.round + 1, model_digest(self.weights), length=length)
            self._bytes = self._bytes if self._means.waiting else 0
            self.save()
        if self.role.phase == "open":
            self._collect(link)
        if self.role.withdrawn:
            return
        if self.role.phase == "open":
            self.role.seal(self._required())
            self.save()
        if self.role.result is None:  # not opened before a stop
            self._ask(link)
            self.save()
        if self.role.result is not None:
            link.push(self.role.results())

    def _chosen(self) -> tuple[int, ...]:
        """Return the set to sum: the most informative one that holders will open."""
        again: tuple[int, ...] = ()
        for proposal in self.isolation.proposals(self.role.contributors):
            chosen = self.role.admissible_set(proposal)
            if chosen and chosen != self.isolation.failed_set:
                return chosen
            again = again or chosen
        if again and self.isolation.failures < _SAME_SET:
            return again
        if not again:
            return ()
        raise ProtocolError(
            "sums fail, and the rules on sets leave no other set of users to find out who spoils "
            "them. Set the federation up again without the users in doubt."
        )

    def _required(self) -> tuple[int, ...]:
        """Return the set to sum once nobody else can contribute."""
        chosen, role = self._chosen(), self.role
        if chosen:
            return chosen
        reasons = []
        if role.declined:
            names = ", ".join(map(self._name, sorted(role.declined)))
            reasons.append(f"{names} refuse to contribute to another round")
        if self.excluded:
            names = ", ".join(map(self._name, self.excluded))
            reasons.append(f"{names} spoil sums and are left out")
        raise ProtocolError(
            f"the rules on sets admit no sum over the {len(role.contributors)} users who "
            f"contributed{': ' if reasons else ''}{'; '.join(reasons)}. Set the federation up "
            "again with the users who take part."
        )

    def _failed(self) -> None:
        """Handle a protocol round without a sum, or with one that users refuse."""
        if self.role.withdrawn and self._before is not None:
            # The sum was counted as a success when it was opened.
            self.weights, means, rounds, contributors = self._before
            self.isolation.withdrawn(contributors)
            self._means, self._before = GroupMeans.load(self.role.settings, means), None
            del self.log[rounds:], self.history[rounds:]
        else:
            self.isolation.failed(self.role.members)
        self.role.withdrawn = False
        self.isolation.excluded |= set(self.role.excluded)
        _log.warning("round %d gave no sum; it is tried again with other users", self.role.round)
        settings = self.role.settings
        if len(set(self.role.group_due) - set(self.excluded)) < settings.fewest:
            raise ProtocolError(
                f"too few users are left without {self.excluded}, who spoil sums. Set the "
                "federation up again without them."
            )

    def late(self, link: Link) -> list[int]:
        """Return users who have not fetched the last result."""
        return sorted(
            set(link.unread()) & set(range(1, self.role.settings.users + 1)) - set(self.excluded)
        )

    def _told(self) -> set[int]:
        """Return users who had fetched the last result before the aggregator stopped."""
        path = self.folder.path / _TOLD
        return set(json.loads(path.read_bytes())) if self.finished and path.exists() else set()

    def _settle(self, link: Link, linger: float) -> None:
        """After the last round, wait for users who refuse its sum or have not fetched it yet."""
        start, informed = self._clock(), self._told()
        everybody = set(range(1, self.role.settings.users + 1))
        while not self.role.withdrawn:
            late = self.late(link)
            # Read messages after this check: a user who is not late may report that it lacks an
            # earlier result.
            self._take(link)
            late = late or self.late(link)
            if everybody - set(late) != informed:
                informed = everybody - set(late)
                path = self.folder.path / _TOLD
                storage.write_atomically(path, json.dumps(sorted(informed)).encode())
            if self._clock() - start >= (linger if late else _COMPLAINTS):
                break
            self._pause(0.05)
        if self.role.withdrawn:
            self._failed()
            self.save()

    def _collect(self, link: Link) -> None:
        """Wait for all contributions.

        Once enough have arrived, stop when no new one arrives within the plan's patience.
        """
        users = set(self.role.group_due) - set(self.excluded)
        last = last_request = self._clock()
        reported = last - _SAY + _SOON
        link.push(self.role.reopen())
        while self.role.phase == "open":
            if users <= set(self.role.contributors) | self.role.declined:
                break
            before = len(self.role.contributors)
            self._take(link)
            now = self._clock()
            if len(self.role.contributors) > before:
                last = now
            if now - last >= self.plan.patience and self._chosen():
                break
            if self.role.phase != "open":
                break
            if now - last_request >= _RESEND:
                last_request = now
                link.push(self.role.reopen())
            if now - reported >= _SAY:
                reported = now
                missing = users - set(self.role.contributors) - self.role.declined
                self._say(sorted(missing), "contribution")
            self._pause(0.05)

    def _ask(self, link: Link) -> None:
        """Ask the holders until the sum is opened; a repeated request gets the same answer."""
        last_request, reported = -float("inf"), self._clock() - _SAY + _SOON
        enough = parts = 0.0
        while self.role.phase == "closed":
            now, missing = self._clock(), self.role.awaited()
            if now - last_request >= _RESEND:
                last_request = now
                for address in missing:
                    link.push(self.role.ask(address))
            if now - reported >= _SAY:
                reported = now
                self._say(missing, "answer")
            self._take(link)
            answered = self.role.settings.n_holders - len(self.role.awaited())
            if answered != parts:
                parts, enough = answered, now
            if answered >= self.role.settings.needed and now - enough >= 2 * _RESEND:
                self.role.spoil()
            self._pause(0.05)
        # Late answers carry the keys of the next round.
        start = self._clock()
        while self.role.awaited() and self._clock() - start < _STRAGGLERS:
            self._take(link)
            self._pause(0.05)

    def _say(self, missing: list[int], item: str) -> None:
        """Report whom the round waits for, in the log and in the status that `watch` shows."""
        names = ", ".join(map(self._name, missing[:8]))
        self.waiting = f"waiting for the {item} of {names}" if missing else ""
        if len(missing) > 8:
            self.waiting += f" and {len(missing) - 8} others"
        _log.info("%s", self.waiting)
        self._status()

    def _name(self, address: int) -> str:
        roster = self.role.enrolment.roster
        if is_holder(address):
            return f"{roster.holders[address - holder(0)].name} (key holder)"
        return roster.users[address].name

    def _take(self, link: Link) -> None:
        arrived, missing = link.pull(), self.role.seeds_missing
        for data in arrived:
            before, phase = len(self.role.contributors), self.role.phase
            answers = self.role.receive(data)
            if len(self.role.contributors) > before:
                self._bytes += len(data)
            if self.role.phase != phase:
                self.save()
            if answers:
                link.push(answers)
        if self.role.seeds_missing != missing:
            self.save()
        elif arrived:
            self._status()

    def _finish(self, seconds: float) -> RoundLog | None:
        """Take a sum; once the sums of all groups are there, update the model and log the round."""
        result = self.role.result
        if result is None:
            raise ProtocolError("the round has no result.")
        guilty = self.isolation.succeeded(result.contributors)
        if guilty is not None:
            _log.warning("user %s spoils sums and is left out from now on", guilty)
        before = self._means.dump(), len(self.log), result.contributors
        self._before = _Before(self.weights, *before)
        mean = self._means.add(result)
        if mean is None:
            self.save()
            return None
        turn, users = len(self.log) + 1, len(self._means.contributors)
        self.weights = self.plan.advanced(self.weights, mean, users=users, turn=turn)
        accuracy = None if self.test is None else self.plan.accuracy(self.weights, *self.test)
        if self.plan.evaluates(turn):
            accuracy = self.plan.evaluation(mean)
        missing = max(0, self.plan.dimension - len(mean))
        entry = RoundLog(
            round=turn,
            users=users,
            sparsity=float((np.count_nonzero(mean == 0) + missing) / self.plan.dimension),
            model_sparsity=sparsity(self.weights),
            revealed=len(mean) / self.plan.dimension,
            bytes=self._bytes / users,
            seconds=seconds,
            accuracy=accuracy,
        )
        self.log.append(entry)
        self.history.append(self._means.contributors)
        self.waiting = ""
        self.save()
        return entry

    def _rounds(self) -> list[dict[str, Any]]:
        return [
            {**asdict(entry), "contributors": contributors}
            for entry, contributors in zip(self.log, self.history, strict=True)
        ]

    def save(self) -> None:
        """Write state, model and status; a restart reads the state only."""
        writer = Writer().field(self.role.dump()).field(self.weights.astype("<f8").tobytes())
        writer.number("Q", self._used).number("Q", self._bytes)
        weights, means, rounds, users = self._before or (np.zeros(0), b"", 0, ())
        writer.field(weights.astype("<f8").tobytes()).field(means).number("Q", rounds)
        writer.field(np.array(users, dtype="<u4").tobytes())
        writer.field(self._means.dump()).field(self.isolation.dump()).field(
            json.dumps(self._rounds()).encode()
        )
        write_sealed(self._path, seal(b"COO5", bytes(writer)))
        self.role.erase_ended()
        self._status()
        model = self.plan.learned(self.weights, self.role.settings)
        if model is not None:
            model.save(self.folder.model)

    def _status(self) -> None:
        status = {
            "round": len(self.log) + 1,
            "phase": self.role.phase,
            "users_in": len(self.role.contributors),
            "users": self.role.settings.users,
            "planned": self.plan.total_rounds,
            "evaluates": bool(self.plan.holdout),
            "rounds": self._rounds(),
            "refused": len(self.role.refusals),
            "excluded": self.excluded,
            "waiting": self.waiting,
        }
        storage.write_atomically(self.folder.path / "status.json", json.dumps(status).encode())

    def _load(self, data: bytes) -> None:
        reader = unseal(b"COO5", data)
        store = FileStore(self.folder.path, self.folder.settings.users)
        self.role = Aggregator.load(reader.field(), store=store)
        self.weights = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
        self._used, self._bytes = reader.number("Q"), reader.number("Q")
        before = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
        means, rounds = reader.field(), reader.number("Q")
        users = tuple(np.frombuffer(reader.field(), dtype="<u4").tolist())
        self._before = _Before(before, means, rounds, users) if before.size else None
        self._means = GroupMeans.load(self.folder.settings, reader.field())
        if self.role.phase in ("open", "closed"):
            self._bytes = store.size  # contributions that arrived before the kill
        self.isolation = FaultIsolation.load(reader.field())
        entries = json.loads(reader.field())
        self.history = [tuple(entry.pop("contributors")) for entry in entries]
        self.log = [RoundLog(**entry) for entry in entries]
        reader.end()
