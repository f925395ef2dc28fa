"""The loop of Section 2.1 (share the weights, update them locally, average them under encryption),
and what a user sends of its new weights.

A user's local step is any function of (weights, round) that returns new weights: the training of a
linear SVM, of a network's last layer, or of any other model whose weights are one vector.

Sparsity of weights and sparsity of updates are different. `Weights` is the paper's choice: the
local classifier itself, which is sparse by its elastic net. `TopK` sends the largest changes and
keeps the rest for later rounds (error feedback). `CommonMask` draws one random support for all
users: it does not depend on data, so it reveals nothing, and every user contributes to every
coordinate that is sent. `Change` sends the whole change, which is cheap under a pad.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.learning.linear import model_digest, sparsity
from blindsight.federated.sums.simulation import RoundResult

__all__ = [
    "Change",
    "CommonMask",
    "Federation",
    "LocalStep",
    "Participant",
    "RoundLog",
    "Sending",
    "TopK",
    "Weights",
    "from_name",
    "top_k",
]

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]


def top_k(vector: Vector, k: int) -> Mask:
    """Return a mask of the k entries of largest magnitude.

    Ties go to the lower index; zeros are never chosen.
    """
    size = np.abs(vector)
    chosen = np.zeros(len(vector), dtype=bool)
    if k > 0:
        chosen[np.argsort(-size, kind="stable")[:k]] = True
    return chosen & (size > 0)


class Sending:
    """Which part of an update users send; this base class sends the whole change.

    Attributes:
        remembers: whether what was not sent is kept and added to the next round's change.
        replaces: whether the mean of what was sent becomes the model instead of being added to it.
        sparse: whether only some coordinates are sent, chosen by the user's data; this needs the
            paper's protocol.
        sparsity: the share of zeros to which the learner adapts its strength; None: no adaptation.
    """

    remembers: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    sparsity: float | None = None

    def free(self, dimension: int, round: int) -> Mask | None:
        """Return the coordinates that may change this round, equal for all users; None: all."""
        return None

    def choose(self, vector: Vector, round: int) -> Mask:
        """Return a mask of the coordinates that are sent."""
        return np.ones(len(vector), dtype=bool)

    def apply(self, current: Vector, mean: Vector, revealed: Mask) -> Vector:
        """Return w̄_(t+1) from the mean over contributors, which is 0 where no sum was opened."""
        return (
            np.where(revealed, mean, 0.0)
            if self.replaces
            else current + np.where(revealed, mean, 0.0)
        )


@dataclass(frozen=True)
class Change(Sending):
    """Every coordinate of the change."""


@dataclass(frozen=True)
class Weights(Sending):
    """The local classifier itself: w̄_(t+1) = (1/N) Σ w_t^(n). Its zeros are not sent."""

    sparsity: float | None = None
    replaces: ClassVar[bool] = True
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sparsity is not None:
            checks.probability("sparsity", self.sparsity, below_one=True)

    def choose(self, vector: Vector, round: int) -> Mask:
        """Return a mask of the non-zero weights of the classifier."""
        return np.asarray(vector != 0)


@dataclass(frozen=True)
class TopK(Sending):
    """The largest `share` of the change, with error feedback."""

    share: float = 0.1
    remembers: ClassVar[bool] = True
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if checks.probability("share", self.share) == 0:
            checks.positive("share", self.share)

    def choose(self, vector: Vector, round: int) -> Mask:
        return top_k(vector, max(1, round_half_up(self.share * len(vector))))


@dataclass(frozen=True)
class CommonMask(Sending):
    """A random `share` of coordinates, drawn from `seed` and the round.

    Local training changes these coordinates and no others.
    """

    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if checks.probability("share", self.share) == 0:
            checks.positive("share", self.share)

    def free(self, dimension: int, round: int) -> Mask:
        """Return the mask of a round, which is the same on every machine."""
        digest = hashlib.sha256(f"common mask {self.seed} {round} {dimension}".encode()).digest()
        order = np.random.default_rng(np.frombuffer(digest, dtype="<u4")).permutation(dimension)
        chosen = np.zeros(dimension, dtype=bool)
        chosen[order[: max(1, round_half_up(self.share * dimension))]] = True
        return chosen

    def choose(self, vector: Vector, round: int) -> Mask:
        """Return the mask, which does not depend on the vector."""
        return self.free(len(vector), round)


def round_half_up(value: float) -> int:
    """Round halves up, not to even, so that the result is monotone in a share."""
    return int(np.floor(value + 0.5))


def from_name(name: str, *, sparsity: float | None, seed: int = 0) -> Sending:
    """Return the `Sending` of a name ("weights", "top-k", "mask" or "change") and a sparsity."""
    checks.one_of("send", name, ("weights", "top-k", "mask", "change"))
    share = (
        1.0 if sparsity is None else 1 - checks.probability("sparsity", sparsity, below_one=True)
    )
    if name == "top-k":
        return TopK(share)
    if name == "mask":
        return CommonMask(share, seed)
    return Weights(sparsity) if name == "weights" else Change()


class LocalStep(Protocol):
    """A user's local training in a round."""

    def __call__(
        self, weights: Vector, round: int, free: NDArray[np.bool_] | None = None
    ) -> Vector:
        """Return new weights; if `free` is given, only these coordinates may change."""
        ...


class Summation(Protocol):
    """Where updates are added up: `sums.Simulation` or `paper.algorithm.PaperSimulation`."""

    @property
    def code(self) -> FixedPoint:
        """The fixed-point code of the updates."""
        ...

    def expect(self, model: bytes) -> None:
        """Have every user join rounds on that model only."""
        ...

    def round(
        self,
        updates: Mapping[int, Vector],
        *,
        model: bytes = b"",
        supports: Mapping[int, NDArray[np.bool_]] | None = None,
        only: NDArray[np.bool_] | None = None,
        dropouts: Collection[int] = (),
    ) -> RoundResult: ...


@dataclass(frozen=True, kw_only=True)
class RoundLog:
    """The figures of one round.

    Attributes:
        users: the number of contributors.
        sparsity: the mean share of zeros in what a user sent.
        model_sparsity: the share of zeros in the new shared weights.
        revealed: the share of coordinates whose sum was opened.
        bytes: the mean number of bytes that a user sent.
        seconds: wall time, including local training.
        accuracy: the accuracy of the new weights; None if it was not measured.
    """

    round: int
    users: int
    sparsity: float
    model_sparsity: float
    revealed: float
    bytes: float
    seconds: float
    accuracy: float | None = None


class Participant:
    """A user's state between rounds: its local step, how it sends, and what it has not sent yet."""

    def __init__(
        self, local: LocalStep | Callable[..., Vector], sending: Sending, code: FixedPoint
    ) -> None:
        self.local, self.sending, self.code = local, sending, code
        self._kept: Vector | None = None
        self._sent: Vector | None = None
        self._round = 0

    def step(self, weights: Vector, round: int) -> tuple[Vector, NDArray[np.bool_]]:
        """Return the vector to encrypt this round, in fixed-point resolution, and its support."""
        if self._sent is not None:
            self.settle(self._round, included=False, revealed=None)
        free = self.sending.free(len(weights), round)
        updated = np.asarray(
            self.local(weights, round) if free is None else self.local(weights, round, free),
            dtype=np.float64,
        )
        if updated.shape != weights.shape:
            raise InvalidData(
                f"a local step must return {weights.shape} weights, got {updated.shape}."
            )
        vector = updated if self.sending.replaces else updated - weights
        if self.sending.remembers and self._kept is not None:
            vector = vector + self._kept
        support = self.sending.choose(vector, round)
        clipped = np.where(support, np.clip(vector, -self.code.bound, self.code.bound), 0.0)
        sent = self.code.decode(self.code.encode(clipped))
        if self.sending.remembers:
            # What was not chosen, was cut at the bound or was rounded off is sent in a later round.
            self._kept, self._sent, self._round = vector - sent, sent, round
        return sent, support

    def settle(self, round: int, *, included: bool, revealed: NDArray[np.bool_] | None) -> None:
        """Keep the parts of the last contribution that were not included or not opened."""
        if self._sent is None or self._kept is None or round != self._round:
            return
        if not included or revealed is None:
            self._kept = self._kept + self._sent
        else:
            self._kept = self._kept + np.where(revealed, 0.0, self._sent)
        self._sent = None


class Federation:
    """Participants of one simulation; `run` returns one log entry per round.

    The model is in `weights`.
    """

    def __init__(
        self,
        simulation: Summation,
        locals_: Mapping[int, LocalStep | Callable[..., Vector]],
        *,
        initial: Vector,
        sending: Sending | None = None,
        accuracy: Callable[[Vector], float] | None = None,
    ) -> None:
        self.simulation = simulation
        self.sending = Change() if sending is None else sending
        code = simulation.code
        self.participants = {
            n: Participant(local, self.sending, code) for n, local in locals_.items()
        }
        self.weights = np.array(initial, dtype=np.float64)
        self.accuracy = accuracy
        self.last: RoundResult | None = None
        self._round = 0

    def round(self, *, dropouts: Collection[int] = ()) -> RoundLog:
        """Run one round: local steps, encryption, sum, new weights."""
        start = time.perf_counter()
        self._round += 1
        vectors: dict[int, Vector] = {}
        supports: dict[int, NDArray[np.bool_]] = {}
        for number, participant in self.participants.items():
            if number not in dropouts:
                vectors[number], supports[number] = participant.step(self.weights, self._round)
        model = model_digest(self.weights)
        self.simulation.expect(model)
        result = self.simulation.round(
            vectors,
            model=model,
            supports=supports,
            only=self.sending.free(len(self.weights), self._round),
            dropouts=tuple(dropouts),
        )
        self.weights = self.sending.apply(self.weights, result.mean, result.revealed)
        for number, participant in self.participants.items():
            participant.settle(
                self._round, included=number in result.contributors, revealed=result.revealed
            )
        self.last = result
        return RoundLog(
            round=self._round,
            users=len(result.contributors),
            sparsity=float(np.mean([sparsity(v) for v in vectors.values()])),
            model_sparsity=sparsity(self.weights),
            revealed=float(result.revealed.mean()),
            bytes=float(np.mean([*result.bytes_per_user.values()])),
            seconds=time.perf_counter() - start,
            accuracy=None if self.accuracy is None else float(self.accuracy(self.weights)),
        )

    def run(
        self, rounds: int, *, progress: Callable[[int, int], None] | None = None
    ) -> list[RoundLog]:
        log: list[RoundLog] = []
        for done in range(1, rounds + 1):
            log.append(self.round())
            if progress is not None:
                progress(done, rounds)
        return log

    def __repr__(self) -> str:
        return f"Federation({len(self.participants)} users, round {self._round})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a federation holds private keys and is never pickled or copied.")
