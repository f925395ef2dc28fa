"""Attack a mechanism as it is: its release on the two worst inputs, told apart by its own likelihood ratio."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import Outcomes, Told, collect_at_once, tell_apart
from blindsight.audit.exact import likelihood_ratio
from blindsight.core.errors import InvalidData
from blindsight.privacy import Audited
from blindsight.privacy.mechanisms import (
    BitFlip,
    DiscreteGaussian,
    DiscreteLaplace,
    Duchi,
    Gaussian,
    KaryResponse,
    Laplace,
    NoisyTopK,
    PrivUnit,
    Staircase,
    SubsetSelection,
)

__all__ = ["CONFIDENCE", "Attack", "attack_mechanism", "attack_outcomes", "worst_inputs"]

#: of the bounds on a user's own files: a sound release is refuted by mistake in at most one audit of a hundred.
CONFIDENCE = 0.99
Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack: what was attacked, in words, and how well it went.

    `steps` is how many neighbours lie between the two inputs; the bound in `audited` is for one of them, while `told`
    shows the attack itself. `delta` is what the promise allows between the two inputs.
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
    makers: dict[type, Callable[[Any], Pair]] = {
        BitFlip: lambda m: _codes(m.n_bits, 1 if (unit or m.unit) == "bit" else m.n_bits),
        Laplace: lambda m: (np.zeros(1), np.full(1, float(m.sensitivity))),
        DiscreteLaplace: lambda m: (np.zeros(1), np.full(1, m.sensitivity * m.grid)),
        Gaussian: lambda m: (np.zeros(1), np.full(1, float(m.sensitivity))),
        DiscreteGaussian: lambda m: (np.zeros(1), np.full(1, math.isqrt(int(m.squared_sensitivity)) * m.grid)),
        Staircase: lambda m: (np.zeros(m.dimensions), np.full(m.dimensions, float(m.sensitivity))),
        Duchi: lambda m: (np.full(m.dimensions, m.bound), np.full(m.dimensions, -m.bound)),
        PrivUnit: lambda m: (np.eye(1, m.dimensions)[0], -np.eye(1, m.dimensions)[0]),
        KaryResponse: lambda m: (np.array(0), np.array(1)),
        SubsetSelection: lambda m: (np.array(0), np.array(1)),
        # Half of the scores one sensitivity up, the other half down.
        NoisyTopK: lambda m: (np.repeat([m.sensitivity, 0.0], m.k), np.repeat([0.0, m.sensitivity], m.k)),
    }
    for kind, make in makers.items():
        if isinstance(mechanism, kind):
            return make(mechanism)
    raise InvalidData(f"no attack is known for {type(mechanism).__name__}.")


def attack_mechanism(
    mechanism: Any, *, unit: str | None = None, trials: int = 200_000, seed: int = 0, what: str | None = None
) -> Attack:
    """Release the two worst inputs many times; the likelihood ratio says which it was."""
    pair = worst_inputs(mechanism, unit=unit)
    # At least a thousand releases, at most a hundred million numbers.
    width = max(pair[0].size, getattr(mechanism, "k", 1))
    count = max(1000, min(trials, 100_000_000 // width))
    if isinstance(mechanism, DiscreteGaussian):  # exact, and slow where the grid is fine
        count = max(1000, count // 8)
    outcomes = collect_at_once(lambda x, rng: mechanism.release(x, rng=rng), *pair, trials=count, seed=seed)
    return attack_outcomes(
        outcomes,
        what=what or f"likelihood ratio of {type(mechanism).__name__} on its two worst inputs",
        delta=mechanism.cost.delta,
        statistic=lambda released: likelihood_ratio(mechanism, released, *pair),
    )


def attack_outcomes(
    outcomes: Outcomes,
    *,
    what: str,
    delta: float = 0.0,
    steps: int = 1,
    statistic: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None,
) -> Attack:
    """The attack on what was collected from two inputs that are `steps` neighbours apart."""
    told = tell_apart(outcomes, confidence=CONFIDENCE, delta=delta, statistic=statistic)
    return Attack(what=what, told=told, steps=steps, delta=delta)


def _codes(n_bits: int, differing: int) -> Pair:
    zeros: NDArray[Any] = np.zeros(n_bits, np.uint8)
    other = zeros.copy()
    other[:differing] = 1
    return zeros, other
