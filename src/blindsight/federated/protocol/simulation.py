"""All roles in one process: the same code that runs across machines, with a list in place of the
network.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError
from blindsight.federated import keys
from blindsight.federated.agreement import SUM
from blindsight.federated.enrolment import enrol
from blindsight.federated.messages import (
    AGGREGATOR,
    HEADER_BYTES,
    KEYGEN,
    Code,
    Outgoing,
    Purpose,
    Refused,
    holder,
)
from blindsight.federated.opened import Opened
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.paper import PaperAggregator, PaperKeyGenerator, PaperUser, algorithm
from blindsight.federated.protocol import rules
from blindsight.federated.protocol.aggregator import Aggregator
from blindsight.federated.protocol.holder import KeyHolder
from blindsight.federated.protocol.keygen import KeyGenerator
from blindsight.federated.protocol.user import User, encode_update
from blindsight.federated.role import Role
from blindsight.federated.settings import Settings
from blindsight.federated.signatures import SIGNATURE_BYTES
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import Rng, SystemEntropy

__all__ = ["RoundResult", "Simulation", "Transcript", "simulate_round"]

_CONFIRM_BYTES = HEADER_BYTES + 32 + SIGNATURE_BYTES
_ENVELOPE = HEADER_BYTES + SIGNATURE_BYTES


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
        return (
            f"Transcript({len(self.messages)} messages, {sum(len(m[2]) for m in self.messages):,} "
            "bytes)"
        )


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """One round's outcome.

    total: the sum of the contributors' updates, in fixed point's resolution; 0 where not revealed.
    revealed: which coordinates were summed at all. contributors: who is in the sum. bytes_per_user:
    bytes each contributor sent. seconds: wall time by stage: "users" (per user, on average),
    "aggregator", "keygen" (or the holders), "total".
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
        """w̄ = w_sum / N (line 6 of Algorithm 1)."""
        return self.total / max(1, len(self.contributors))


class Simulation:
    """A federation in one process; keys and tables are made once and serve every round.

    `encrypt=False` computes the very same result in plain integers (rounding, groups, votes and
    noise included), for experiments over many rounds where the cryptography is not the question.
    With a `door` the users' shares of noise are drawn there, as its plan says; without one each
    user draws its own, as it does on its own machine. `keep_messages=False` leaves the transcript
    empty: at full size a round of 100 users is 70 MB.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        key: PrivateKey | None = None,
        workers: int = 1,
        encrypt: bool = True,
        rng: Rng | None = None,
        keep_messages: bool = True,
        key_bits: int = 2048,
        door: Door | None = None,
    ) -> None:
        self.settings, self.encrypt, self.keep_messages = settings, encrypt, keep_messages
        self._door = door
        self.key_bits = key_bits if key is None else key.public.bits
        self._rng: Rng = SystemEntropy() if rng is None else rng
        self._messages: list[tuple[int, int, bytes]] = []
        self._sent: dict[int, int] = {}
        self._seconds: dict[str, float] = {}
        self._round = 0
        if encrypt:
            self._enrol(key, workers)

    def _enrol(self, key: PrivateKey | None, workers: int) -> None:
        settings, rng = self.settings, self._rng
        if settings.holders is None and key is None:
            key = keys.generate(self.key_bits)
        self.key = key if settings.holders is None else None
        setup = enrol(settings, self.key)
        paper = settings.mode == "paper"
        self.users: dict[int, Any] = {
            e.number: (PaperUser if paper else User)(e, workers=workers, rng=rng)
            for e in setup.users
        }
        self.aggregator: Any = (PaperAggregator if paper else Aggregator)(setup.aggregator)
        self.keygen: Any = None
        if setup.keygen is not None:
            self.keygen = (PaperKeyGenerator if paper else KeyGenerator)(
                setup.keygen, workers=workers
            )
        self.holders = {holder(e.index): KeyHolder(e) for e in setup.holders}

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a simulation holds private keys and is never pickled or copied.")

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
        """Run one round; with votes, the two that belong together.

        updates: one vector a user: a mapping by user number (1..N), or a list for users 1, 2, ...
        model: bytes that stand for the current model (hashed); every message is bound to them.
        supports: the coordinates each user counts as contributed; by default where its update is
        not zero. only: coordinates that everybody sends, the same for all users and independent of
        their data; default all. dropouts: users who are told of the round and never answer.
        """
        given = (
            updates if isinstance(updates, Mapping) else {i + 1: u for i, u in enumerate(updates)}
        )
        strangers = [u for u in given if not 1 <= u <= self.settings.users]
        if strangers:
            raise InvalidParameter(
                f"users are numbered 1 to {self.settings.users}, got {strangers[0]!r}."
            )
        present = {
            u: np.asarray(v, dtype=np.float64)
            for u, v in sorted(given.items())
            if u not in dropouts
        }
        for vector in present.values():
            if vector.shape != (self.settings.dimension,):
                raise InvalidData(
                    f"an update must have {self.settings.dimension} weights, got {vector.shape}."
                )
        chosen = {
            u: v != 0 if supports is None or u not in supports else supports[u]
            for u, v in present.items()
        }
        self._messages, self._sent = [], {}
        self._seconds = {"users": 0.0, "aggregator": 0.0, "keygen": 0.0, "total": 0.0}
        digest = hashlib.sha256(model).digest()
        with self._timing("total"):
            if self.settings.mode == "paper":
                opened, shown = self._paper(digest, present, chosen, progress), None
            else:
                opened, shown = self._padded(digest, present, chosen, only, progress)
        return self._result(opened, shown, len(present))

    def _padded(
        self,
        model: bytes,
        present: dict[int, NDArray[np.float64]],
        chosen: dict[int, NDArray[np.bool_]],
        only: NDArray[np.bool_] | None,
        progress: Callable[[int, int], None] | None,
    ) -> tuple[Opened, NDArray[np.bool_] | None]:
        if self.settings.least_per_coordinate == 1:
            vectors = present if only is None else {u: v[only] for u, v in present.items()}
            return self._sum(model, Purpose.VALUES, vectors, chosen, None, progress), only
        votes = self._sum(model, Purpose.VOTES, present, chosen, None, None)
        mask = votes.values >= self.settings.least_per_coordinate
        if not mask.any():
            return Opened(votes.contributors, np.zeros(0, dtype=np.int64)), mask
        return self._sum(model, Purpose.VALUES, present, chosen, mask, progress), mask

    def _sum(
        self,
        model: bytes,
        purpose: Purpose,
        vectors: dict[int, NDArray[np.float64]],
        chosen: dict[int, NDArray[np.bool_]],
        mask: NDArray[np.bool_] | None,
        progress: Callable[[int, int], None] | None,
    ) -> Opened:
        """One protocol round."""
        self._round += 1
        length = len(next(iter(vectors.values()), ())) if mask is None else int(mask.sum())
        if self._door is None or self.settings.noise is None:
            return self._protocol(
                model, purpose, vectors, chosen, mask, length, progress, noisy=False
            )
        grid, present = self.settings.code.grid, list(vectors)
        opened: list[Opened] = []

        def add(shares: list[NDArray[Any]]) -> NDArray[Any]:
            ready = dict(zip(present, shares, strict=True))
            opened.append(
                self._protocol(model, purpose, ready, chosen, mask, length, progress, noisy=True)
            )
            return opened[0].values * grid

        released = self._door.together(SUM, list(vectors.values()), add)
        # Where the door handed out something else, that is what was released.
        users = opened[0].contributors if opened else self.settings.whole_groups(set(present))
        return Opened(users, np.rint(released / grid).astype(np.int64))

    def _protocol(
        self,
        model: bytes,
        purpose: Purpose,
        vectors: dict[int, NDArray[np.float64]],
        chosen: dict[int, NDArray[np.bool_]],
        mask: NDArray[np.bool_] | None,
        length: int,
        progress: Callable[[int, int], None] | None,
        *,
        noisy: bool,
    ) -> Opened:
        if not self.encrypt:
            return self._plain_sum(purpose, vectors, chosen, mask, length, noisy=noisy)
        users, ready = self.users, {"noisy": True} if noisy else {}
        self._deliver(
            self.aggregator.open_round(self._round, model, length=max(1, length), purpose=purpose),
            vectors,
        )
        for done, (number, vector) in enumerate(vectors.items(), start=1):
            with self._timing("users"):
                sent = users[number].contribute(vector, support=chosen[number], **ready)
            self._route(sent, number, vectors)
            if progress is not None:
                progress(done, len(vectors))
        self._deliver(self.aggregator.close(), vectors)
        opened: Opened | None = self.aggregator.result
        if opened is None:
            raise ProtocolError(f"the round has no result: {self._last_refusal()}")
        self._deliver(self.aggregator.results(), range(1, self.settings.users + 1))
        return opened

    def _paper(
        self,
        model: bytes,
        present: dict[int, NDArray[np.float64]],
        chosen: dict[int, NDArray[np.bool_]],
        progress: Callable[[int, int], None] | None,
    ) -> Opened:
        if self.encrypt:
            return self._sum(model, Purpose.VALUES, present, chosen, None, progress)
        self._round += 1
        self._require_enough(present)
        each = _ENVELOPE + 8 + self.settings.m * (self.key_bits // 4 + 4)
        self._sent = {u: each * len(algorithm.shards(chosen[u], self.settings.m)) for u in present}
        return algorithm.expected_sum(
            self.settings, {u: self.settings.code.encode(v) for u, v in present.items()}
        )

    def _plain_sum(
        self,
        purpose: Purpose,
        vectors: dict[int, NDArray[np.float64]],
        chosen: dict[int, NDArray[np.bool_]],
        mask: NDArray[np.bool_] | None,
        length: int,
        *,
        noisy: bool,
    ) -> Opened:
        votes = purpose is Purpose.VOTES
        users = self._require_enough(vectors)
        numbers = {}
        for u, v in vectors.items():
            if votes:
                numbers[u] = chosen[u].astype(np.int64)
            else:
                sent = v if mask is None else v[mask]
                numbers[u] = encode_update(self.settings, sent, length, rng=self._rng, noisy=noisy)
        size = rules.contribution_bytes(self.settings, length, votes=votes, key_bits=self.key_bits)
        for user in vectors:
            extra = _CONFIRM_BYTES if self.settings.holders is None else 0
            self._sent[user] = self._sent.get(user, 0) + size + extra
        return Opened(users, np.sum([numbers[u] for u in users], axis=0))

    def _require_enough(self, present: Collection[int]) -> tuple[int, ...]:
        users = self.settings.whole_groups(set(present))
        if len(users) < self.settings.least_users:
            raise Refused(
                Code.FEW,
                f"{self.settings.least_users} users in whole groups of {self.settings.group} are "
                "needed, "
                f"{len(users)} of {len(present)} are. Wait for more users.",
            )
        if (
            self.settings.mode == "pad"
            and not self.settings.holders
            and len(present) < self.settings.confirmations
        ):
            raise Refused(
                Code.CONFIRM, f"{self.settings.confirmations} users must confirm the set."
            )
        return users

    def _deliver(self, outgoing: Sequence[Outgoing], there: Collection[int]) -> None:
        self._route(outgoing, AGGREGATOR, there)

    def _route(self, outgoing: Sequence[Outgoing], sender: int, there: Collection[int]) -> None:
        """Hand messages over, and what they cause; users who are not there hear nothing."""
        for message in outgoing:
            self._sent[sender] = self._sent.get(sender, 0) + len(message.data)
            if self.keep_messages:
                self._messages.append((sender, message.to, message.data))
            if message.to in self.users and message.to not in there:
                continue
            receiver = self._party(message.to)
            stage = (
                "aggregator"
                if message.to == AGGREGATOR
                else "users"
                if message.to in self.users
                else "keygen"
            )
            with self._timing(stage):
                answers = receiver.receive(message.data)
            self._route(answers, message.to, there)

    def _party(self, number: int) -> Role:
        found: Role = (
            self.aggregator
            if number == AGGREGATOR
            else self.keygen
            if number == KEYGEN
            else self.users.get(number) or self.holders[number]
        )
        return found

    def _last_refusal(self) -> str:
        openers = [self.keygen] if self.keygen is not None else list(self.holders.values())
        notes = [note for role in (*openers, self.aggregator) for note in role.refusals[-1:]]
        return notes[0] if notes else "no answer"

    def expect(self, model: bytes) -> None:
        """Have every user join rounds on that model only (bytes that stand for it, as in
        `round`).
        """
        if self.encrypt:
            for user in self.users.values():
                user.expect(hashlib.sha256(model).digest())

    @contextmanager
    def _timing(self, stage: str) -> Any:
        start = time.perf_counter()
        yield
        self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - start

    def _result(self, opened: Opened, shown: NDArray[np.bool_] | None, present: int) -> RoundResult:
        revealed = np.ones(self.settings.dimension, dtype=bool) if shown is None else shown.copy()
        values = np.zeros(self.settings.dimension, dtype=np.int64)
        values[revealed] = opened.values
        seconds = {**self._seconds, "users": self._seconds["users"] / max(1, present)}
        return RoundResult(
            round=self._round,
            total=self.settings.code.decode(values),
            revealed=revealed,
            contributors=opened.contributors,
            bytes_per_user={u: self._sent.get(u, 0) for u in opened.contributors},
            seconds=seconds,
            transcript=Transcript(tuple(self._messages)),
        )


def simulate_round(
    updates: Sequence[ArrayLike],
    *,
    key: PrivateKey | None = None,
    encrypt: bool = True,
    **settings: Any,
) -> RoundResult:
    """One round over a list of updates; further keywords are those of `Settings` (mode, bound,
    bits, ...).

    For more than one round make a `Simulation`: it keeps the key and its tables.
    """
    if not updates:
        raise InvalidData("a round needs at least three updates, got none.")
    dimension = len(np.asarray(updates[0]))
    agreed = Settings(dimension=dimension, users=len(updates), **settings)
    return Simulation(agreed, key=key, encrypt=encrypt).round(updates)
