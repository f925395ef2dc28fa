"""Where randomness comes from, and whether it is a protection or a simulation.

Two kinds of dice. `training_rng` gives a numpy generator: fast, for noise that stays inside (gradients, splits).
`release_rng` gives, by default, `SystemEntropy`: every bit from the operating system, for noise that outsiders see,
because numpy's generators can be run backwards from enough of their output. A fixed seed makes either reproducible
and turns the release into a simulation, which its guarantee then says.
"""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter

__all__ = ["RandomState", "Rng", "SystemEntropy", "part_state", "release_rng", "training_rng", "words"]

RandomState: TypeAlias = int | np.random.Generator | np.random.SeedSequence | np.random.RandomState | None


class Rng(Protocol):
    """What a mechanism may ask of its dice; numpy's `Generator` and `SystemEntropy` both answer."""

    def integers(self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64) -> Any: ...

    def random(self, size: Any = None) -> Any: ...

    def bytes(self, length: int) -> bytes: ...


class SystemEntropy:
    """Dice cast by the operating system (`os.urandom`), with the few methods of a numpy generator that we use."""

    def bytes(self, length: int) -> bytes:
        """That many random bytes."""
        return os.urandom(length)

    def integers(self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64) -> Any:
        """Exactly uniform integers in [low, high), as numpy has them, for plain numbers as bounds."""
        if high is None:
            low, high = 0, low
        low, span = int(low), int(high) - int(low)
        if not 1 <= span <= 1 << 64:
            raise InvalidParameter(f"high must be above low, got {low} and {high}.")
        drawn = self._below(span, 1 if size is None else int(np.prod(size)))
        result = (drawn + np.uint64(low % (1 << 64))).astype(dtype)
        return result[0] if size is None else result.reshape(size)

    def random(self, size: Any = None) -> Any:
        """Uniform floats in [0, 1) with 53 random bits each."""
        count = 1 if size is None else int(np.prod(size))
        values = (words(self, count) >> np.uint64(11)) * 2.0**-53
        return float(values[0]) if size is None else values.reshape(size)

    def _below(self, span: int, count: int) -> NDArray[np.uint64]:
        if span & (span - 1) == 0:
            return words(self, count) & np.uint64(span - 1)
        # Values past the largest multiple of the span would favour small remainders: draw them again.
        last = np.uint64((1 << 64) // span * span - 1)
        result = words(self, count)
        todo = np.flatnonzero(result > last)
        while todo.size:
            result[todo] = words(self, todo.size)
            todo = todo[result[todo] > last]
        return result % np.uint64(span)


def words(rng: Rng, count: int) -> NDArray[np.uint64]:
    """`count` uniform 64-bit words, the fastest way each source has."""
    if isinstance(rng, np.random.Generator):
        return rng.integers(0, 2**64, size=count, dtype=np.uint64)
    return np.frombuffer(bytearray(rng.bytes(8 * count)), dtype=np.uint64)


def training_rng(random_state: RandomState) -> tuple[np.random.Generator, bool]:
    """A numpy generator, and whether it makes a simulation (any seed or generator handed in does)."""
    if random_state is None:
        return np.random.default_rng(), False
    if isinstance(random_state, np.random.RandomState):
        return np.random.Generator(random_state._bit_generator), True
    if isinstance(random_state, (bool, np.bool_)) or not isinstance(
        random_state, (int, np.integer, np.random.Generator, np.random.SeedSequence)
    ):
        raise InvalidParameter(
            f"random_state must be None, a whole number, a Generator or a SeedSequence, got {random_state!r}."
        )
    if isinstance(random_state, (int, np.integer)) and random_state < 0:
        raise InvalidParameter(f"random_state must be at least 0, got {random_state}.")
    return np.random.default_rng(random_state), True


def release_rng(random_state: RandomState) -> tuple[Rng, bool]:
    """The operating system's dice, or a seeded generator and the word that it makes a simulation."""
    if random_state is None:
        return SystemEntropy(), False
    return training_rng(random_state)


def part_state(random_state: RandomState, part: int) -> RandomState:
    """The random state of one part of a larger job: of a block, or of an image by its name.

    With a seed each part has dice of its own, the same in whatever order and on whatever machine the parts are made.
    None stays None (every part asks the operating system), and a generator moves on by itself.
    """
    if random_state is None or isinstance(random_state, (np.random.Generator, np.random.RandomState)):
        return random_state
    training_rng(random_state)  # refuses what is no seed
    if isinstance(random_state, np.random.SeedSequence):
        return np.random.SeedSequence(random_state.entropy, spawn_key=(*random_state.spawn_key, part))
    return np.random.SeedSequence(int(random_state), spawn_key=(part,))
