"""All roles in one process: the same code that runs across machines, with a list in place of the network."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, KEYGEN, Outgoing, Sum
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import block, paper
from blindsight.federated.protocol.aggregator import Aggregator
from blindsight.federated.protocol.enrolment import Setup, enrol
from blindsight.federated.protocol.holders import KeyHolder, Opener, ThresholdSetup, enrol_holders
from blindsight.federated.protocol.keygen import KeyGenerator
from blindsight.federated.protocol.role import Role
from blindsight.federated.protocol.settings import Settings
from blindsight.federated.protocol.user import User
from blindsight.federated.signatures import Identity
from blindsight.privacy.entropy import Rng

__all__ = ["RoundResult", "Simulation", "Transcript", "simulate_round"]


@dataclass(frozen=True)
class Transcript:
    """Every message of a round, in order, as (sender, receiver, bytes)."""

    messages: tuple[tuple[int, int, bytes], ...] = ()

    def seen_by(self, party: int) -> list[bytes]:
        """What one party received."""
        return [data for _, to, data in self.messages if to == party]

    def sent_by(self, party: int) -> list[bytes]:
        """What one party sent."""
        return [data for sender, _, data in self.messages if sender == party]

    def __repr__(self) -> str:
        return f"Transcript({len(self.messages)} messages, {sum(len(m[2]) for m in self.messages):,} bytes)"


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """One round's outcome.

    total: the sum of the contributors' updates, in fixed point's resolution; 0 where not revealed.
    revealed: which coordinates were revealed.
    contributors: who took part.
    refused_blocks: blocks withheld because their tags or ranges did not hold.
    bytes_per_user: bytes each contributor sent.
    seconds: wall time by stage: "users" (per user, on average), "aggregator", "keygen", "total".
    """

    round: int
    total: NDArray[np.float64] = field(repr=False)
    revealed: NDArray[np.bool_] = field(repr=False)
    contributors: tuple[int, ...]
    refused_blocks: int
    bytes_per_user: dict[int, int]
    seconds: dict[str, float]
    transcript: Transcript

    @property
    def mean(self) -> NDArray[np.float64]:
        """w̄ = w_sum / N (line 6 of Algorithm 1)."""
        return self.total / len(self.contributors)


class Simulation:
    """A federation in one process; keys and tables are made once and serve every round.

    `encrypt=False` computes the very same result in plain integers (rounding, support, withholding and noise
    included), for experiments over many rounds where the cryptography is not the question. `holders=(t, n)` shares the
    key among n holders of whom t are needed. `keep_messages=False` leaves the transcript empty: at full size a round of
    100 users is 120 MB.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        key: PrivateKey | None = None,
        identities: Mapping[int, Identity] | None = None,
        workers: int = 2,
        encrypt: bool = True,
        rng: Rng | None = None,
        holders: tuple[int, int] | None = None,
        keep_messages: bool = True,
    ) -> None:
        self.settings = settings
        self.keep_messages = keep_messages
        self.key = keys.generate() if key is None else key
        self.encrypt = encrypt
        self.holders: dict[int, KeyHolder] = {}
        self.keygen: KeyGenerator | Opener
        setup: Setup | ThresholdSetup
        if holders is None:
            setup = enrol(settings, self.key, identities=identities)
            self.keygen = KeyGenerator(setup.keygen, workers=workers)
        else:
            needed, total = holders
            setup = enrol_holders(settings, self.key, needed=needed, holders=total, identities=identities)
            self.keygen = Opener(setup.opener, needed=needed, holders=total)
            roles = (KeyHolder(dealt, workers=workers) for dealt in setup.holders)
            self.holders = {role.number: role for role in roles}
        self.users = {e.number: User(e, workers=workers, rng=rng) for e in setup.users}
        self.aggregator = Aggregator(setup.aggregator)
        self._messages: list[tuple[int, int, bytes]] = []
        self._sent: dict[int, int] = {}
        self._round = 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a simulation holds private keys and is never pickled or copied.")

    def round(
        self,
        updates: Mapping[int, ArrayLike] | Sequence[ArrayLike],
        *,
        model: bytes = b"",
        supports: Mapping[int, NDArray[np.bool_]] | None = None,
        dropouts: Collection[int] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> RoundResult:
        """Run one round.

        updates: one vector a user: a mapping by user number (1..N), or a list for users 1, 2, ...
        model: bytes that stand for the current model (hashed); every message is bound to them.
        supports: the coordinates each user counts as contributed; by default where its update is not zero.
        dropouts: users who are told of the round and never answer.
        """
        given = updates if isinstance(updates, Mapping) else {i + 1: u for i, u in enumerate(updates)}
        strangers = [u for u in given if u not in self.users]
        if strangers:
            raise InvalidParameter(f"users are numbered 1 to {self.settings.users}, got {strangers[0]!r}.")
        present = {u: v for u, v in given.items() if u not in dropouts}
        supports = supports or {}
        self._round += 1
        if not self.encrypt:
            return self._plain(present, supports)
        self._messages, self._sent = [], {}
        clock = _Clock()
        self._deliver(self.aggregator.open_round(self._round, hashlib.sha256(model).digest()), AGGREGATOR)
        for done, (number, update) in enumerate(sorted(present.items()), start=1):
            with clock.timing("users"):
                sent = self.users[number].contribute(update, support=supports.get(number))
            with clock.timing("aggregator"):
                self._deliver(sent, number)
            if progress is not None:
                progress(done, len(present))
        with clock.timing("aggregator"):
            request = self.aggregator.close()
        with clock.timing("keygen"):
            self._deliver(request, AGGREGATOR)
        if self.aggregator.result is None:
            raise ProtocolError(f"the round has no result: {self.keygen.refusals[-1:] or 'no answer'}")
        clock.seconds["users"] /= max(1, len(present))
        transcript = Transcript(tuple(self._messages))
        sizes = {n: self._sent[n] for n in self.aggregator.contributors}
        return self._result(self.aggregator.result, sizes, clock.finish(), transcript)

    def _deliver(self, outgoing: Sequence[Outgoing], sender: int) -> None:
        for message in outgoing:
            self._sent[sender] = self._sent.get(sender, 0) + len(message.data)
            if self.keep_messages:
                self._messages.append((sender, message.to, message.data))
            receiver = self._party(message.to)
            if receiver is not None:
                self._deliver(receiver.receive(message.data), message.to)

    def _party(self, number: int) -> Role | None:
        if number == AGGREGATOR:
            return self.aggregator
        if number == KEYGEN:
            return self.keygen
        return self.users.get(number) or self.holders.get(number)

    def _plain(self, present: Mapping[int, ArrayLike], supports: Mapping[int, NDArray[np.bool_]]) -> RoundResult:
        clock = _Clock()
        if len(present) < self.settings.least_users:
            raise ProtocolError(f"too few contributors: {self.settings.least_users} are needed, {len(present)} are in.")
        numbers, chosen = {}, {}
        for user, update in present.items():
            numbers[user], chosen[user] = self.users[user].encode(update, supports.get(user))
        if self.settings.mode == "paper":
            total = paper.expected_sum(self.settings, numbers)
        else:
            total = block.expected_sum(self.settings, self.key.public, numbers, chosen)
        sizes = {user: self._size(support) for user, support in chosen.items()}
        return self._result(total, sizes, clock.finish(), Transcript())

    def _size(self, support: NDArray[np.bool_]) -> int:
        public = self.key.public
        if self.settings.mode == "paper":
            shards = len(paper.shards(support, self.settings.m))
            return shards * self.settings.contribution_bytes(public, self.settings.m)
        blocks = block.chosen_blocks(self.settings, public, support)
        return self.settings.contribution_bytes(public, len(blocks))

    def _result(
        self, total: Sum, sizes: dict[int, int], seconds: dict[str, float], transcript: Transcript
    ) -> RoundResult:
        return RoundResult(
            round=self._round,
            total=self.settings.code.decode(total.values),
            revealed=total.revealed,
            contributors=total.contributors,
            refused_blocks=total.refused,
            bytes_per_user=sizes,
            seconds=seconds,
            transcript=transcript,
        )


class _Clock:
    """Wall seconds by stage."""

    def __init__(self) -> None:
        self.seconds = {"users": 0.0, "aggregator": 0.0, "keygen": 0.0}
        self._start = time.perf_counter()

    def timing(self, stage: str) -> _Stage:
        return _Stage(self.seconds, stage)

    def finish(self) -> dict[str, float]:
        return {**self.seconds, "total": time.perf_counter() - self._start}


class _Stage:
    def __init__(self, seconds: dict[str, float], stage: str) -> None:
        self._seconds, self._stage = seconds, stage

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._stage] += time.perf_counter() - self._start


def simulate_round(
    updates: Sequence[ArrayLike], *, key: PrivateKey | None = None, encrypt: bool = True, **settings: Any
) -> RoundResult:
    """One round over a list of updates; further keywords are those of `Settings` (mode, bound, bits, ...).

    For more than one round make a `Simulation`: it keeps the key and its tables.
    """
    if not updates:
        raise InvalidData("a round needs at least three updates, got none.")
    dimension = len(np.asarray(updates[0]))
    agreed = Settings(dimension=dimension, users=len(updates), **settings)
    return Simulation(agreed, key=key, encrypt=encrypt).round(updates)
