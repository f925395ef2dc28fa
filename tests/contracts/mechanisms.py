"""One example of every mechanism, with two neighbouring inputs and its outcomes: what the contract
walks through.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from blindsight.federated.noise import GaussianShares, RecordShares
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
from blindsight.sketching.guarantee import PixelFlip

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A mechanism, one input, a worst neighbour of it, and every outcome (None: a density on the
    line).
    """

    name: str
    make: Callable[..., Any]
    parameters: dict[str, Any]
    x: np.ndarray
    neighbour: np.ndarray
    outcomes: np.ndarray | None
    # for a density: bins, with edges where it jumps
    edges: np.ndarray | None = None
    # whether this pair of inputs meets the stated epsilon (it is a bound over all pairs)
    tight: bool = True
    # for vectors of which one number tells all: from outcomes to that number, and back
    reduce: Callable[[np.ndarray], np.ndarray] = lambda drawn: drawn
    lift: Callable[[np.ndarray], np.ndarray] = lambda values: values[:, None]
    # the log-density of the number where the mechanism's own is uniform
    log_base: float = 0.0

    @property
    def mechanism(self) -> Any:
        return self.make(**self.parameters)

    def draw(self, count: int, rng: Any) -> np.ndarray:
        return self.mechanism.release(np.repeat(self.x[None], count, axis=0), rng=rng)

    def log_prob(self, outcomes: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Log-probability of whole outcomes: coordinates of a vector are independent and add up."""
        value = np.asarray(
            self.mechanism.log_prob(outcomes, np.broadcast_to(x, (len(outcomes), *x.shape)))
        )
        return value.reshape(len(outcomes), -1).sum(axis=1) + self.log_base


_bits = np.array(list(itertools.product((0, 1), repeat=3)), np.uint8)
_steps = np.arange(-400, 401)[:, None] / 8.0
_subsets = np.array(
    [[i in chosen for i in range(5)] for chosen in itertools.combinations(range(5), 2)]
)
_orders = np.array(list(itertools.permutations(range(4), 2)))
_stair = Staircase(epsilon=0.8, sensitivity=1.5, unit="pair")
_line = np.linspace(-9, 9, 61)


def _corners(d: int) -> np.ndarray:
    magnitude = Duchi(epsilon=1.1, dimensions=d, bound=2.0, unit="pair").magnitude
    return np.array(list(itertools.product((-magnitude, magnitude), repeat=d)))


# Few steps, so that every outcome can be listed.
_COARSE: dict[str, Any] = {
    "sigma": 1.5,
    "sensitivity": 1.0,
    "dimensions": 1,
    "delta": 1e-3,
    "unit": "query",
    "levels": 1,
}

CASES = [
    Case(
        "flip",
        BitFlip,
        {"beta": 0.3, "n_bits": 3, "unit": "record"},
        np.array([0, 1, 1], np.uint8),
        np.array([1, 0, 0], np.uint8),
        _bits,
    ),
    Case(
        "laplace",
        Laplace,
        {"scale": 1.25, "sensitivity": 1.0, "unit": "record"},
        np.array([0.0]),
        np.array([1.0]),
        None,
        _line,
    ),
    Case(
        "gaussian",
        Gaussian,
        {"sigma": 1.5, "sensitivity": 1.0, "delta": 1e-3, "unit": "record"},
        np.array([0.0]),
        np.array([1.0]),
        None,
        _line / 1.5,
    ),
    Case(
        "staircase",
        Staircase,
        {"epsilon": 0.8, "sensitivity": 1.5, "unit": "pair"},
        np.array([0.0]),
        np.array([1.5]),
        None,
        np.sort(np.concatenate([s * (_stair.half_width + 1.5 * np.arange(8)) for s in (-1, 1)])),
    ),
    Case(
        "discrete laplace",
        DiscreteLaplace,
        {"scale": Fraction(17, 3), "sensitivity": 8, "grid": 0.125, "unit": "query"},
        np.array([0.0]),
        np.array([1.0]),
        _steps,
    ),
    Case(
        "discrete gaussian",
        DiscreteGaussian,
        _COARSE,
        np.array([0.0]),
        np.array([1.0]),
        np.arange(-400, 401)[:, None] * DiscreteGaussian(**_COARSE).grid,
    ),
    Case(
        "shares",
        GaussianShares,
        {"clip": 0.5, "step": 0.25, "levels": 1, "shares": 2, "delta": 1e-3, "unit": "user"},
        np.array([0.0]),
        np.array([1.0]),
        np.arange(-400, 401)[:, None] * 0.25,
    ),
    Case(
        "shares for records",
        RecordShares,
        {
            "clip": 1.0,
            "step": 0.25,
            "levels": 1,
            "shares": 2,
            "delta": 1e-3,
            "dimension": 1,
            "records": 10,
        },
        np.array([0.0]),
        np.array([1.0]),
        np.arange(-400, 401)[:, None] * 0.25,
        tight=False,  # the price includes rounding
    ),
    Case(
        "duchi, odd",
        Duchi,
        {"epsilon": 1.1, "dimensions": 3, "bound": 2.0, "unit": "pair"},
        np.array([2.0, -2.0, 2.0]),
        np.array([-2.0, 2.0, -2.0]),
        _corners(3),
        tight=False,
    ),
    Case(
        "duchi, even",
        Duchi,
        {"epsilon": 1.1, "dimensions": 4, "bound": 2.0, "unit": "pair"},
        np.array([2.0, 0.5, -1.0, 2.0]),
        np.array([-2.0, -2.0, 2.0, -2.0]),
        _corners(4),
        tight=False,
    ),
    Case(
        "k-ary",
        KaryResponse,
        {"epsilon": 1.3, "k": 6, "unit": "record"},
        np.array([2]),
        np.array([5]),
        np.arange(6)[:, None],
    ),
    Case(
        "pixel flips",
        PixelFlip,
        {"beta": (0.2, 0.4)},
        np.array([0]),
        np.array([3]),
        np.arange(4)[:, None],
    ),
    Case(
        "subset",
        SubsetSelection,
        {"epsilon": 1.3, "k": 5, "size": 2, "unit": "record"},
        np.array([2]),
        np.array([4]),
        _subsets[:, None, :],
    ),
    Case(
        "top-k",
        NoisyTopK,
        {"epsilon": 1.7, "k": 2, "sensitivity": 1.0, "unit": "query"},
        np.array([1.0, 0.0, 0.5, 0.2]),
        np.array([0.0, 1.0, -0.5, 1.2]),
        _orders,
        tight=False,
    ),
    Case(
        "privunit",
        PrivUnit,
        {"epsilon": 1.5, "dimensions": 3, "unit": "record"},
        np.array([1.0, 0.0, 0.0]),
        np.array([-1.0, 0.0, 0.0]),
        None,
        np.sort(
            np.append(
                np.linspace(-1, 1, 41), PrivUnit(epsilon=1.5, dimensions=3, unit="record").gamma
            )
        ),
        # In three dimensions the height of a uniform direction is itself uniform.
        reduce=lambda drawn: drawn[:, 0],
        lift=lambda t: np.stack([t, np.sqrt(1 - t * t), 0 * t], axis=1),
        log_base=-math.log(2),
    ),
]
