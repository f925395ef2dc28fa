"""Attack a mechanism or an estimator as it is: its own release of two inputs, told apart as well as
may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindsight.audit.engine.blackbox import Outcomes, Told, collect_at_once, tell_apart
from blindsight.audit.engine.bounds import likelihood_ratio
from blindsight.audit.engine.listeners import drawing_from
from blindsight.core.arrays import Array, Floats
from blindsight.core.errors import InvalidData
from blindsight.privacy import Audited
from blindsight.privacy.mechanisms import (
    BitFlip,
    KaryResponse,
    NoisyTopK,
    SubsetSelection,
)

__all__ = [
    "CONFIDENCE",
    "Attack",
    "attack_mechanism",
    "attack_outcomes",
    "attack_release",
    "worst_inputs",
]

# : of the bounds on a user's own files: a sound release is refuted by mistake in at most one audit
# of a hundred.
CONFIDENCE = 0.99
Pair = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack: what was attacked, in words, and how well it went.

    `steps` is how many neighbours lie between the two inputs; the bound in `audited` is for one of
    them, while `told` shows the attack itself. `delta` is what the promise allows between the two
    inputs.
    """

    what: str
    told: Told
    steps: int = 1
    delta: float = 0.0

    @property
    def audited(self) -> Audited:
        """The lower bound on epsilon between neighbours."""
        found = self.told.audited
        return dataclasses.replace(found, epsilon=found.epsilon / self.steps, attack=self.what)


def worst_inputs(mechanism: Any, *, unit: str | None = None) -> Pair:
    """Two inputs that one unit apart differ most. What is promised per bit differs in one bit."""
    if isinstance(mechanism, BitFlip):
        return _codes(
            mechanism.n_bits, 1 if (unit or mechanism.unit) == "bit" else mechanism.n_bits
        )
    if isinstance(
        mechanism, NoisyTopK
    ):  # half of the scores one sensitivity up, the other half down
        k, reach = mechanism.k, mechanism.sensitivity
        return np.repeat([reach, 0.0], k), np.repeat([0.0, reach], k)
    if not hasattr(mechanism, "worst_pair"):
        raise InvalidData(
            f"no attack is known for {type(mechanism).__name__}: give it a worst_pair()."
        )
    one, other = mechanism.worst_pair()
    return (
        (one[0], other[0])
        if isinstance(mechanism, (KaryResponse, SubsetSelection))
        else (one, other)
    )


def attack_mechanism(
    mechanism: Any,
    *,
    unit: str | None = None,
    trials: int = 200_000,
    seed: int = 0,
    what: str | None = None,
) -> Attack:
    """Release the two worst inputs many times; the likelihood ratio says which it was."""
    pair = worst_inputs(mechanism, unit=unit)
    # At least a thousand releases, at most a hundred million numbers.
    width = max(pair[0].size, getattr(mechanism, "k", 1))
    count = max(1000, min(trials, 100_000_000 // width))
    outcomes = collect_at_once(
        lambda x, rng: mechanism.release(x, rng=rng), *pair, trials=count, seed=seed
    )
    return attack_outcomes(
        outcomes,
        what=what or f"likelihood ratio of {type(mechanism).__name__} on its two worst inputs",
        delta=mechanism.cost.delta,
        statistic=lambda released: likelihood_ratio(mechanism, released, *pair),
    )


def attack_release(
    release: Callable[[Array], Array],
    pair: Pair,
    *,
    what: str,
    trials: int,
    seed: int,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
) -> Attack:
    """An estimator's own release, one input per row: what really runs, and no word of its
    mechanism's is taken.
    """

    def run(values: Array, rng: np.random.Generator) -> Array:
        with drawing_from(rng):
            released = np.asarray(release(values))
        return released.reshape(len(values), -1)

    # At least a thousand releases, at most so many numbers in all that it stays a matter of
    # seconds.
    count = max(1000, min(trials, 50_000_000 // max(1, np.size(pair[0]))))
    outcomes = collect_at_once(run, *pair, trials=count, seed=seed)
    return attack_outcomes(outcomes, what=what, delta=delta, confidence=confidence)


def attack_outcomes(
    outcomes: Outcomes,
    *,
    what: str,
    delta: float = 0.0,
    steps: int = 1,
    statistic: Callable[[Array], Floats] | None = None,
    confidence: float = CONFIDENCE,
) -> Attack:
    """The attack on what was collected from two inputs that are `steps` neighbours apart."""
    told = tell_apart(outcomes, confidence=confidence, delta=delta, statistic=statistic)
    return Attack(what=what, told=told, steps=steps, delta=delta)


def _codes(n_bits: int, differing: int) -> Pair:
    zeros: Array = np.zeros(n_bits, np.uint8)
    other = zeros.copy()
    other[:differing] = 1
    return zeros, other
