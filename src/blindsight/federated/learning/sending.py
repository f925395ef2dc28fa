"""What a user sends of its new weights, and what the sum of it does to the shared ones.

Sparsity of weights and sparsity of updates are two things. `Weights` is the paper's: the local
classifier itself, sparse by its elastic net. `TopK` sends the largest changes and keeps the rest
for later rounds (error feedback). `CommonMask` draws one random support for all users, independent
of anybody's data: it tells nothing, and every coordinate that is sent has every user behind it.
`Change` sends the whole change; packed, that is cheap.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks

__all__ = ["Change", "CommonMask", "Sending", "TopK", "Weights", "from_name", "top_k"]

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]


def top_k(vector: Vector, k: int) -> Mask:
    """Where the k entries of largest magnitude are; ties go to the lower index, zeros never
    count.
    """
    size = np.abs(vector)
    chosen = np.zeros(len(vector), dtype=bool)
    if k > 0:
        chosen[np.argsort(-size, kind="stable")[:k]] = True
    return chosen & (size > 0)


class Sending:
    """The whole change, dense; the base of the others.

    `remembers`: what was not sent is kept and added to the next round's change. `replaces`: the
    mean of what was sent becomes the model, instead of being added to it. `sparse`: only some
    coordinates are sent, chosen by the user's data; that needs the paper's protocol.
    `sparsity`: the share of zeros that the learner's strength adapts to; None: its own.
    """

    remembers: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    sparsity: float | None = None

    def free(self, dimension: int, round: int) -> Mask | None:
        """The coordinates that may change this round, the same for every user; None: all."""
        return None

    def choose(self, vector: Vector, round: int) -> Mask:
        """The support of what is sent."""
        return np.ones(len(vector), dtype=bool)

    def apply(self, current: Vector, mean: Vector, revealed: Mask) -> Vector:
        """w̄_(t+1) from the mean over contributors, which is 0 where the sum was withheld."""
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
        """Where the classifier is not zero."""
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
        """The top k."""
        return top_k(vector, max(1, round_half_up(self.share * len(vector))))


@dataclass(frozen=True)
class CommonMask(Sending):
    """A random `share` of coordinates, drawn from `seed` and the round; local training moves those
    and no others.
    """

    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if checks.probability("share", self.share) == 0:
            checks.positive("share", self.share)

    def free(self, dimension: int, round: int) -> Mask:
        """The mask of a round, the same on every machine."""
        digest = hashlib.sha256(f"common mask {self.seed} {round} {dimension}".encode()).digest()
        order = np.random.default_rng(np.frombuffer(digest, dtype="<u4")).permutation(dimension)
        chosen = np.zeros(dimension, dtype=bool)
        chosen[order[: max(1, round_half_up(self.share * dimension))]] = True
        return chosen

    def choose(self, vector: Vector, round: int) -> Mask:
        """The mask, whatever the vector."""
        return self.free(len(vector), round)


def round_half_up(value: float) -> int:
    """Not to the even: shares should be monotone."""
    return int(np.floor(value + 0.5))


def from_name(name: str, *, sparsity: float | None, seed: int = 0) -> Sending:
    """A sending from a word and the sparsity wanted: "weights", "top-k", "mask" or "change"."""
    checks.one_of("send", name, ("weights", "top-k", "mask", "change"))
    share = (
        1.0 if sparsity is None else 1 - checks.probability("sparsity", sparsity, below_one=True)
    )
    if name == "top-k":
        return TopK(share)
    if name == "mask":
        return CommonMask(share, seed)
    return Weights(sparsity) if name == "weights" else Change()
