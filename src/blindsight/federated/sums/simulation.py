"""All roles in one process: the same code as across machines, with a list in place of the network.

Groups of users bound the influence of lying users. A secure sum hides single updates, so nobody
sees that one of them is far too large. With `Settings(groups=G)` users are divided into G groups,
user u into group (u - 1) mod G. The sums that users accept belong to the groups in turn: a user
contributes to its own group's sums only, and refuses a result whose set names a user of another
group. After one sum of each group the model moves by the median of the G means, coordinate by
coordinate.

*Claim.* If at most (G - 1) / 2 users lie, every coordinate of the median lies between the smallest
and the largest of the honest groups' means. *Proof.* Each liar is in one group, so at least
(G + 1) / 2 groups, more than half, are honest. The median has at least (G + 1) / 2 values at or
below it, one of which is of an honest group, and as many at or above it. ∎

A user's update is in one sum of a model. The opened sums are over N / G users instead of N. Two
weaknesses remain: liars may choose among the values between the honest groups' means, and liars in
more than half of the groups are not bounded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.sums.aggregator import Aggregator
from blindsight.federated.sums.enrolment import Role, enrol
from blindsight.federated.sums.holder import KeyHolder
from blindsight.federated.sums.labels import Labels, largest_admissible, split, unopened
from blindsight.federated.sums.messages import (
    AGGREGATOR,
    Code,
    Outgoing,
    Refused,
    RoundSum,
    contribution_bytes,
)
from blindsight.federated.sums.party import Party
from blindsight.federated.sums.settings import SUM, Settings
from blindsight.federated.sums.user import User, encode_update
from blindsight.federated.sums.wire import Reader, Writer
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import Rng, SystemEntropy

__all__ = ["GroupMeans", "RoundResult", "Simulation", "Transcript"]


class GroupMeans:
    """Collects the groups' sums of one model; with one group the mean is available at once.

    Parameters:
        settings: the settings of the federation.

    Examples:
        >>> means = GroupMeans(Settings(dimension=1, users=9, groups=3, bound=1.0, bits=2))
        >>> [means.add(RoundSum((1, 4, 7), np.array([x]))) for x in (0, 3)]
        [None, None]
        >>> means.add(RoundSum((3, 6, 9), np.array([1])))
        array([0.33333333])
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sums: list[RoundSum] = []
        self.contributors: tuple[int, ...] = ()

    def add(self, opened: RoundSum) -> NDArray[np.float64] | None:
        """Add the next group's sum.

        Returns:
            The median of the groups' means after the last group's sum, otherwise None.
            `contributors` then holds all users in these sums.
        """
        self._sums.append(opened)
        if len(self._sums) < self._settings.groups:
            return None
        decode = self._settings.code.decode
        means = [decode(group.values) / len(group.contributors) for group in self._sums]
        self.contributors = tuple(sorted(u for group in self._sums for u in group.contributors))
        self._sums = []
        return np.asarray(np.median(np.stack(means), axis=0))

    @property
    def waiting(self) -> bool:
        """Whether the sums of some, but not all, groups of the current model were added."""
        return bool(self._sums)

    def dump(self) -> bytes:
        """Return the sums that were added while other groups' are missing."""
        writer = Writer().number("I", len(self._sums))
        for opened in self._sums:
            writer.field(opened.encode())
        return bytes(writer)

    @classmethod
    def load(cls, settings: Settings, data: bytes) -> GroupMeans:
        """Continue from what `dump` wrote."""
        reader, result = Reader(data), cls(settings)
        for _ in range(reader.number("I")):
            result._sums.append(RoundSum.decode(reader.field(), users=settings.users))
        reader.end()
        return result


Vectors = dict[int, NDArray[np.float64]]


@dataclass(frozen=True)
class Transcript:
    """Every message of a round, in order, as (sender, receiver, bytes)."""

    messages: tuple[tuple[int, int, bytes], ...] = ()

    def sent_by(self, party: int) -> list[bytes]:
        """The messages that one party sent, in order."""
        return [data for sender, _, data in self.messages if sender == party]

    def __repr__(self) -> str:
        total = sum(len(message[2]) for message in self.messages)
        return f"Transcript({len(self.messages)} messages, {total:,} bytes)"


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """One round's outcome.

    Attributes:
        total: the sum of the contributors' updates, in fixed-point resolution; 0 where not summed.
            With groups, the median of the groups' means times the number of contributors.
        revealed: a mask of the coordinates that were summed.
        contributors: the users in the sum.
        bytes_per_user: bytes that each contributor sent.
        seconds: wall time by stage: "users" (each, on average), "aggregator", "holders" and
            "total".
    """

    round: int
    total: NDArray[np.float64] = field(repr=False)
    revealed: NDArray[np.bool_] = field(repr=False)
    contributors: tuple[int, ...]
    bytes_per_user: dict[int, int]
    seconds: dict[str, float]
    transcript: Transcript

    @property
    def mean(self) -> NDArray[np.float64]:
        """The sum divided by the number of contributors."""
        return self.total / max(1, len(self.contributors))


class Simulation:
    """A federation in one process; keys are made once and serve every round.

    Parameters:
        settings: the settings of the federation.
        encrypt: False computes the same result in plain integers, with the same rounding, sets and
            noise, for experiments over many rounds.
        rng: where noise is drawn from; by default the operating system's entropy.
        keep_messages: False leaves the transcripts empty: at full size a round of 100 users takes
            70 MB.
        door: draws the users' shares of noise according to its plan; without one each user draws
            its own share, as on its own machine.

    Examples:
        >>> simulation = Simulation(Settings(dimension=4, users=3, bound=1.0))
        >>> result = simulation.round([[0.5, 0, 0, 0]] * 3)
        >>> result.total.round(3).tolist()
        [1.5, 0.0, 0.0, 0.0]
    """

    def __init__(
        self,
        settings: Settings,
        *,
        encrypt: bool = True,
        rng: Rng | None = None,
        keep_messages: bool = True,
        door: Door | None = None,
    ) -> None:
        self.settings, self.encrypt, self.keep_messages = settings, encrypt, keep_messages
        self._door = door
        self._rng: Rng = SystemEntropy() if rng is None else rng
        self._messages: list[tuple[int, int, bytes]] = []
        self._sent: dict[int, int] = {}
        self._seconds: dict[str, float] = {}
        self._round = 0
        self._ever: Labels = unopened(settings.users)
        if encrypt:
            parties = enrol(settings)
            self.users = {
                number: User(enrolment, rng=self._rng)
                for number, enrolment in enumerate(parties[Role.USER], start=1)
            }
            self.aggregator = Aggregator(parties[Role.AGGREGATOR][0])
            holders = [KeyHolder(enrolment) for enrolment in parties[Role.HOLDER]]
            self.holders = {role.number: role for role in holders}

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a simulation holds private keys and is never pickled or copied.")

    @property
    def code(self) -> FixedPoint:
        """The fixed-point code of the updates."""
        return self.settings.code

    def round(
        self,
        updates: Mapping[int, ArrayLike] | Sequence[ArrayLike],
        *,
        model: bytes = b"",
        supports: Mapping[int, NDArray[np.bool_]] | None = None,
        only: NDArray[np.bool_] | None = None,
        dropouts: Collection[int] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> RoundResult:
        """Run one round.

        Parameters:
            updates: one vector for each user: by user number (1 to N), or a list for users 1, 2,
                ...
            model: bytes that identify the current model; every message is bound to their digest.
            supports: not used: every coordinate of an update is sent.
            only: coordinates that everybody sends, the same for all users and independent of their
                data.
            dropouts: users who receive the opening and never answer.
            progress: called with (done, total).

        Raises:
            ProtocolError: no admissible set of users is present, the round gave no sum, or a user
                refused it.
        """
        present = self._present(updates, dropouts)
        self._messages, self._sent = [], {}
        self._seconds = dict.fromkeys(("users", "aggregator", "holders", "total"), 0.0)
        digest = hashlib.sha256(model).digest()
        vectors = present if only is None else {u: v[only] for u, v in present.items()}
        means = GroupMeans(self.settings)
        with self._timing("total"):
            for group in range(self.settings.groups):
                members = {u: v for u, v in vectors.items() if self.settings.group(u) == group}
                opened = self._sum(digest, members, progress)
                mean = means.add(opened)
        if self.settings.groups == 1:
            total = self.settings.code.decode(opened.values)
        else:
            total = np.zeros(0) if mean is None else mean * len(means.contributors)
        return self._result(total, means.contributors, only, len(present))

    def _present(
        self, updates: Mapping[int, ArrayLike] | Sequence[ArrayLike], dropouts: Collection[int]
    ) -> Vectors:
        by_user = (
            updates if isinstance(updates, Mapping) else {i + 1: u for i, u in enumerate(updates)}
        )
        strangers = [u for u in by_user if not 1 <= u <= self.settings.users]
        if strangers:
            raise InvalidParameter(
                f"users are numbered 1 to {self.settings.users}, got {strangers[0]!r}."
            )
        present = {
            u: np.asarray(v, dtype=np.float64)
            for u, v in sorted(by_user.items())
            if u not in dropouts
        }
        for vector in present.values():
            if vector.shape != (self.settings.dimension,):
                raise InvalidData(
                    f"an update must have {self.settings.dimension} weights, got {vector.shape}."
                )
        return present

    def _sum(
        self, model: bytes, vectors: Vectors, progress: Callable[[int, int], None] | None
    ) -> RoundSum:
        self._round += 1
        if self._door is None or self.settings.noise is None:
            return self._protocol(model, vectors, progress, noisy=False)
        grid, present = self.settings.code.grid, list(vectors)
        opened: list[RoundSum] = []

        def add(shares: list[NDArray[Any]]) -> NDArray[Any]:
            ready = dict(zip(present, shares, strict=True))
            opened.append(self._protocol(model, ready, progress, noisy=True))
            return opened[0].values * grid

        released = self._door.together(SUM, list(vectors.values()), add)
        # If the door returned other values, these are what was released.
        users = opened[0].contributors if opened else self._set(present)
        return RoundSum(users, np.rint(released / grid).astype(np.int64))

    def _protocol(
        self,
        model: bytes,
        vectors: Vectors,
        progress: Callable[[int, int], None] | None,
        *,
        noisy: bool,
    ) -> RoundSum:
        if not self.encrypt:
            return self._plain_sum(vectors, noisy=noisy)
        length = len(next(iter(vectors.values()), ()))
        self._deliver(
            self.aggregator.open_round(self._round, model, length=max(1, length)), vectors
        )
        for done, (number, vector) in enumerate(vectors.items(), start=1):
            with self._timing("users"):
                sent = self.users[number].contribute(vector, noisy=noisy)
            self._route(sent, number, vectors)
            if progress is not None:
                progress(done, len(vectors))
        self._deliver(self.aggregator.close(), vectors)
        opened = self.aggregator.result
        if opened is None:
            raise ProtocolError(f"the round has no result: {self._last_refusal()}")
        self._deliver(self.aggregator.results(), range(1, self.settings.users + 1))
        refusing = [user for user, role in self.users.items() if role.ended != self._round]
        if refusing:
            raise ProtocolError(
                f"{len(refusing)} users refuse the sum, the first being user {refusing[0]}: "
                f"{self.users[refusing[0]].refusals[-1]}"
            )
        return opened

    def _set(self, present: Collection[int]) -> tuple[int, ...]:
        """The set that the holders would open."""
        settings = self.settings
        floors = [(unopened(settings.users), settings.floor_now), (self._ever, settings.floor_ever)]
        used = [(labels, floor) for labels, floor in floors if floor]
        users = largest_admissible(used, present, most=settings.largest_round)
        if not used:
            users = tuple(sorted(present)[: settings.largest_round])
        if len(users) < settings.fewest:
            raise Refused(
                Code.SET,
                f"{settings.fewest} users in an admissible set are needed, and of {len(present)} "
                "contributors no such set can be taken. Wait for more users.",
            )
        return users

    def _plain_sum(self, vectors: Vectors, *, noisy: bool) -> RoundSum:
        users = self._set(vectors)
        if self.settings.floor_ever:
            self._ever = split(self._ever, users)
        length = len(next(iter(vectors.values())))
        total = np.zeros(length, dtype=np.int64)
        for user in users:
            total += encode_update(self.settings, vectors[user], length, rng=self._rng, noisy=noisy)
        size = contribution_bytes(self.settings, length)
        self._sent = dict.fromkeys(vectors, size)
        return RoundSum(users, total)

    def _deliver(self, outgoing: Sequence[Outgoing], present: Collection[int]) -> None:
        self._route(outgoing, AGGREGATOR, present)

    def _route(self, outgoing: Sequence[Outgoing], sender: int, present: Collection[int]) -> None:
        """Deliver messages and the answers to them; absent users receive nothing."""
        for message in outgoing:
            self._sent[sender] = self._sent.get(sender, 0) + len(message.data)
            if self.keep_messages:
                self._messages.append((sender, message.to, message.data))
            if message.to in self.users and message.to not in present:
                continue
            with self._timing(self._stage(message.to)):
                answers = self._party(message.to).receive(message.data)
            self._route(answers, message.to, present)

    def _stage(self, number: int) -> str:
        if number == AGGREGATOR:
            return "aggregator"
        return "users" if number in self.users else "holders"

    def _party(self, number: int) -> Party:
        if number == AGGREGATOR:
            return self.aggregator
        return self.users.get(number) or self.holders[number]

    def _last_refusal(self) -> str:
        parties: list[Party] = [*self.holders.values(), self.aggregator]
        notes = [note for role in parties for note in role.refusals[-1:]]
        return notes[0] if notes else "no answer"

    def expect(self, model: bytes) -> None:
        """Have every user join only rounds on this model, identified by bytes as in `round`."""
        if self.encrypt:
            for user in self.users.values():
                user.expect(hashlib.sha256(model).digest())

    @contextmanager
    def _timing(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - start

    def _result(
        self,
        opened: NDArray[np.float64],
        contributors: tuple[int, ...],
        only: NDArray[np.bool_] | None,
        present: int,
    ) -> RoundResult:
        revealed = np.ones(self.settings.dimension, dtype=bool) if only is None else only.copy()
        total = np.zeros(self.settings.dimension)
        total[revealed] = opened
        return RoundResult(
            round=self._round,
            total=total,
            revealed=revealed,
            contributors=contributors,
            bytes_per_user={u: self._sent.get(u, 0) for u in contributors},
            seconds={**self._seconds, "users": self._seconds["users"] / max(1, present)},
            transcript=Transcript(tuple(self._messages)),
        )
