"""Parameters of flipped bits: the same storage and the same training code as sketches, with a
proven epsilon.

A flipped bit is a sketch with exactly one sighting of each bit, wrong with probability beta_j. So
P_diff = beta_j, Equations 5 to 7 and everything built on them apply unchanged, and epsilon a pixel
is the sum over its bits of ln((1 - beta_j)/beta_j): randomised response, proven, pure, local.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.sketching.parameters import QKParameters

__all__ = ["FlipParameters", "Law", "law_from_dict"]


@dataclass(frozen=True, kw_only=True)
class FlipParameters:
    """How likely each bit of a pixel is to be flipped, most significant first; in (0, 1/2]."""

    beta: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            beta = tuple(
                checks.probability(f"beta[{j}]", value) for j, value in enumerate(self.beta)
            )
        except TypeError:
            raise InvalidParameter(
                f"beta must be a sequence of probabilities, got {self.beta!r}."
            ) from None
        if not 1 <= len(beta) <= 16 or any(not 0 < value <= 0.5 for value in beta):
            raise InvalidParameter(
                "beta must hold 1 to 16 probabilities above 0 and up to 1/2, one per bit."
            )
        object.__setattr__(self, "beta", beta)

    @classmethod
    def proven(cls, epsilon_per_pixel: float, *, depth: int = 8) -> FlipParameters:
        """Spend an epsilon per pixel where it counts most: on the allocation with the least squared
        error.

        The squared error of a pixel is the sum over bits of 4^(L-j) beta_j (1 - beta_j) (posterior
        variance of a fair bit), beta_j = 1/(1 + e^eps_j); the budget is handed out in small steps
        to whichever bit gains most.
        """
        budget = checks.positive("epsilon_per_pixel", epsilon_per_pixel)
        depth = checks.whole("depth", depth)
        # A hair less than the budget, so that rounding never spends more than it.
        share = _spend(budget * (1 - 1e-12), depth)
        return cls(
            beta=tuple(min(0.5, 1 / (1 + math.exp(min(epsilon, 500.0)))) for epsilon in share)
        )

    @property
    def depth(self) -> int:
        """L: bits per pixel."""
        return len(self.beta)

    @property
    def p_diff(self) -> NDArray[np.float64]:
        """The share of wrong values among the sightings of each bit: beta."""
        return np.asarray(self.beta)

    @property
    def epsilon_bit(self) -> tuple[float, ...]:
        """ln((1 - beta_j)/beta_j)."""
        return tuple(math.log1p(-b) - math.log(b) for b in self.beta)

    @property
    def epsilon_pixel(self) -> float:
        """The sum over bits."""
        return math.fsum(self.epsilon_bit)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Counts are 0 or 1."""
        return np.dtype(np.uint8)

    @property
    def name(self) -> str:
        """Short name with its epsilon."""
        return f"flipped bits, epsilon {self.epsilon_pixel:.3g} per pixel"

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ between different parameters."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"beta": list(self.beta)}

    @classmethod
    def from_dict(cls, fields: Any) -> FlipParameters:
        """The inverse of `to_dict`; anything else is refused."""
        if not isinstance(fields, dict) or fields.keys() != {
            f.name for f in dataclasses.fields(cls)
        }:
            raise InvalidData("flip parameters must be an object with exactly beta.")
        return cls(**fields)


Law = QKParameters | FlipParameters


def law_from_dict(fields: Any) -> Law:
    """Parameters of either kind from their fields."""
    if isinstance(fields, dict) and "beta" in fields:
        return FlipParameters.from_dict(fields)
    return QKParameters.from_dict(fields)


def _spend(budget: float, depth: int, steps: int = 512) -> list[float]:
    """Hand out the budget in small equal steps, each to the bit whose error falls most."""
    step = budget / steps
    weights = 4.0 ** np.arange(depth - 1, -1, -1)
    spent = np.zeros(depth)

    def error(epsilon: NDArray[Any]) -> NDArray[Any]:
        beta = 1 / (1 + np.exp(epsilon))
        return np.asarray(weights * beta * (1 - beta))

    # A lone step on an unused bit gains only in second order, so each bit may also be opened with a
    # lump.
    left = steps
    while left > 0:
        sizes = [size for size in (1, 4, 16, 64, 256) if size <= left]
        gains = np.array([(error(spent) - error(spent + size * step)) / size for size in sizes])
        size_at, bit = np.unravel_index(int(gains.argmax()), gains.shape)
        spent[bit] += sizes[int(size_at)] * step
        left -= sizes[int(size_at)]
    return spent.tolist()
