"""Refute a claim: a published one, and two of your own that have a bug in them.

An audit can break a promise and never prove one. Its words are "not refuted" and "REFUTED".

Run it: python docs/examples/audit_yourself.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blindsight.audit import audit_door, distinguish, exact_epsilon, neighbours_of
from blindsight.privacy import Door, Guarantee, Planned
from blindsight.privacy.mechanisms import BitFlip, DiscreteGaussian, Laplace


def flips() -> None:
    """48 bits flipped as the paper does at epsilon 1: what is it per bit, and what for a whole
    code?
    """
    zeros, ones = np.zeros(48, np.uint8), np.ones(48, np.uint8)
    one_bit = zeros.copy()
    one_bit[0] = 1
    for name, mechanism in {
        "paper's 1": BitFlip.paper(1.0, n_bits=48, unit="record"),
        "proven 1": BitFlip.proven(1.0, n_bits=48, unit="record"),
    }.items():
        worst = np.stack([zeros, ones])  # the codes that tell most
        bit, code = (exact_epsilon(mechanism, zeros, other, worst) for other in (one_bit, ones))
        print(
            f"{name:>10}: epsilon {bit.epsilon:.2f} where one bit differs, {code.epsilon:.2f} for "
            "a whole code"
        )


def half_the_noise(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A slip that happens: the sensitivity is 1, not 0.5."""
    return Laplace.calibrate(1.0, sensitivity=0.5, unit="record").release(x, rng=rng)


NOISE = DiscreteGaussian.calibrate(1.0, delta=1e-5, sensitivity=2.0, dimensions=1, unit="record")
PROMISE = Guarantee(releases=(Planned(what="sum", mechanism=NOISE),), delta=1e-5, model="central")


def with_its_maximum(rows: np.ndarray, folder: Path) -> tuple[np.ndarray, float]:
    """The sum goes through the door; the largest value slips out beside it."""
    return Door(PROMISE, what="a sum").total("sum", rows), float(rows.max())


def main() -> float:
    """Exact, by sampling, and at the door."""
    flips()
    measured = distinguish(half_the_noise, np.zeros(1), np.ones(1), trials=20_000, seed=0)
    print(f"half the noise: stated epsilon 1, {measured}")
    rows = np.random.default_rng(0).normal(size=(30, 1))
    print(f"with its maximum: {audit_door(with_its_maximum, rows, neighbours=neighbours_of(rows))}")
    return measured.epsilon


if __name__ == "__main__":
    main()
