"""The parameters of the QK-hidden algorithm as one value, and the twelve settings Q1 to Q12 of the
paper.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["PAPER_P", "PAPER_Q", "PAPER_R", "QKParameters", "resolve"]

# Table 2 of the paper: q_1 (most significant bit) to q_8.
PAPER_Q: dict[str, tuple[float, ...]] = {
    "Q1": (0.05, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.35),
    "Q2": (0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.30),
    "Q3": (0.125,) * 8,
    "Q4": (0.20, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.20),
    "Q5": (0.30, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10),
    "Q6": (0.40, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.30),
    "Q7": (0.50, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.20),
    "Q8": (0.60, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.10),
    "Q9": (0.70, 0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05),
    "Q10": (0.80, 0.0, 0.0, 0.0, 0.05, 0.05, 0.05, 0.05),
    "Q11": (0.90, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.05),
    "Q12": (0.95, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05),
}
PAPER_P = (0.70, 0.24, 0.06)  # Section 5
PAPER_R = 6.5
MOST_BITS = 16


def _distribution(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, (str, bytes)):
        raise InvalidParameter(f"{name} must be a sequence of probabilities, got {values!r}.")
    try:
        row = tuple(checks.probability(f"{name}[{i}]", value) for i, value in enumerate(values))
    except TypeError:
        raise InvalidParameter(
            f"{name} must be a sequence of probabilities, got {values!r}."
        ) from None
    if not row or abs(math.fsum(row) - 1) > 1e-9:
        raise InvalidParameter(
            f"{name} must sum to 1, got {math.fsum(row):.10g}. Rescale its entries."
        )
    return row


@dataclass(frozen=True, kw_only=True)
class QKParameters:
    """What the owner and the server agree on before a sketch is made. Nothing here is secret.

    Parameters:
        q: q_1..q_L, how often bit j (1 is the most significant) is chosen to differ from the image;
        sums to 1. p: p_1..p_K, how often a record has 1..K differing bits; sums to 1. Its length is
        K. r: records per bit of the hidden string.
    """

    q: tuple[float, ...]
    p: tuple[float, ...] = PAPER_P
    r: float = PAPER_R

    def __post_init__(self) -> None:
        object.__setattr__(self, "q", _distribution("q", self.q))
        object.__setattr__(self, "p", _distribution("p", self.p))
        object.__setattr__(self, "r", checks.positive("r", self.r))
        if self.depth > MOST_BITS:
            raise InvalidParameter(
                f"q must have at most {MOST_BITS} entries, one per bit, got {self.depth}."
            )

    @classmethod
    def paper(cls, name: str, *, p: Sequence[float] = PAPER_P, r: float = PAPER_R) -> QKParameters:
        """One of Q1 to Q12 (8-bit images)."""
        return cls(q=PAPER_Q[checks.one_of("q", name, PAPER_Q)], p=tuple(p), r=r)

    @classmethod
    def k_hidden(
        cls, depth: int, *, p: Sequence[float] = PAPER_P, r: float = PAPER_R
    ) -> QKParameters:
        """The K-hidden algorithm: the special case q_j = 1/L."""
        depth = checks.whole("depth", depth)
        return cls(q=(1 / depth,) * depth, p=tuple(p), r=r)

    @property
    def depth(self) -> int:
        """L: bits per pixel."""
        return len(self.q)

    @property
    def specified(self) -> int:
        """K: specified bits per record."""
        return len(self.p)

    @property
    def name(self) -> str:
        """ "Q1" to "Q12" where the paper has this q, else the q's digits."""
        for name, q in PAPER_Q.items():
            if q == self.q:
                return name
        return "q=(" + ", ".join(f"{value:.3g}" for value in self.q) + ")"

    @property
    def mean_differing(self) -> float:
        """mu = sum of j p_j: differing bits per record, on average."""
        return math.fsum(i * p for i, p in enumerate(self.p, start=1))

    @property
    def differing_rate(self) -> NDArray[np.float64]:
        """lambda_d, a bit: expected sightings of the wrong value, r L mu q_j."""
        return self.r * self.depth * self.mean_differing * np.asarray(self.q)

    @property
    def agreeing_rate(self) -> float:
        """lambda_s, a bit: expected sightings of the true value, r (K - mu)."""
        # fsum over the terms, not K - mu: at p_K = 1 the difference must be exactly zero.
        return self.r * math.fsum((self.specified - i) * p for i, p in enumerate(self.p, start=1))

    @property
    def p_diff(self) -> NDArray[np.float64]:
        """P_diff[j] of Equation 4: the share of wrong values among the sightings of bit j."""
        differing = self.differing_rate
        total = differing + self.agreeing_rate
        # A bit that is never sighted tells nothing: one half.
        return np.asarray(
            np.divide(differing, total, out=np.full(self.depth, 0.5), where=total > 0)
        )

    def n_records(self, n_attributes: int) -> int:
        """N = m r, rounded, for a string of `n_attributes` pixels."""
        return max(1, round(self.depth * n_attributes * self.r))

    def check_string(self, n_attributes: int) -> None:
        """Refuse a string too short for K specified bits, or for as many differing bits as p asks
        for.
        """
        bits = self.depth * checks.whole("n_attributes", n_attributes)
        if self.specified > bits:
            raise InvalidParameter(
                f"K (the length of p) must be at most the string's {bits} bits, got "
                f"{self.specified}."
            )
        most = max(i for i, p in enumerate(self.p, start=1) if p > 0)
        places = n_attributes * sum(q > 0 for q in self.q)
        if most > places:
            raise InvalidParameter(
                f"q must leave room for {most} differing bits in a record, got {places} bits with "
                "q above 0. "
                "Use more pixels, a shorter p, or a q without zeros."
            )

    @property
    def top_count(self) -> int:
        """A count that no cell exceeds, but for a chance below 1e-18 (Chernoff's bound for a
        Poisson count).
        """
        rate = max(self.differing_rate.max(), self.agreeing_rate, 1e-9)
        top = math.ceil(rate) + 1
        while top * math.log(top / rate) - top + rate < 41.5:
            top += 1
        return int(top)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint8 and uint16 that holds the counts."""
        if self.top_count > np.iinfo(np.uint16).max:
            raise InvalidParameter(f"r must be small enough for 16-bit counts, got {self.r:g}.")
        return np.dtype(np.uint8 if self.top_count <= np.iinfo(np.uint8).max else np.uint16)

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ between different parameters: written into sketches and
        models.
        """
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"q": list(self.q), "p": list(self.p), "r": self.r}

    @classmethod
    def from_dict(cls, fields: Any) -> QKParameters:
        """The inverse of `to_dict`; anything else is refused."""
        if not isinstance(fields, dict) or fields.keys() != {
            f.name for f in dataclasses.fields(cls)
        }:
            raise InvalidData("QK parameters must be an object with exactly q, p and r.")
        return cls(**fields)


def resolve(
    q: str | Sequence[float] | QKParameters, *, p: Sequence[float], r: float
) -> QKParameters:
    """Parameters from a name ("Q6"), a sequence of q_j, or ready-made ones."""
    if isinstance(q, QKParameters):
        return q
    if isinstance(q, str):
        return QKParameters.paper(q, p=p, r=r)
    return QKParameters(q=q, p=p, r=r)  # type: ignore[arg-type]
