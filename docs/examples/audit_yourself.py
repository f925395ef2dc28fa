"""Refute a claim: a published one, and two of your own that have a bug in them.

An audit can break a promise and never prove one. Its words are "not refuted" and "REFUTED".

Run it: python docs/examples/audit_yourself.py
"""

from __future__ import annotations

import numpy as np

from blindsight.audit import distinguish, exact_epsilon, replay
from blindsight.privacy.mechanisms import BitFlip, Laplace


def flips() -> None:
    """48 bits flipped as the paper does at epsilon 1: what is it per bit, and what for a whole code?"""
    zeros, ones = np.zeros(48, np.uint8), np.ones(48, np.uint8)
    one_bit = zeros.copy()
    one_bit[0] = 1
    for name, mechanism in {
        "paper's 1": BitFlip.paper(1.0, n_bits=48, unit="record"),
        "proven 1": BitFlip.proven(1.0, n_bits=48, unit="record"),
    }.items():
        worst = np.stack([zeros, ones])  # the codes that tell most
        bit, code = (exact_epsilon(mechanism, zeros, other, worst) for other in (one_bit, ones))
        print(f"{name:>10}: epsilon {bit.epsilon:.2f} where one bit differs, {code.epsilon:.2f} for a whole code")


def half_the_noise(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A slip that happens: the sensitivity is 1, not 0.5."""
    return Laplace.calibrate(1.0, sensitivity=0.5, unit="record").release(x, rng=rng)


def forgot_to_clip(x: np.ndarray, rng: np.random.Generator, ledger: object) -> np.ndarray:
    """Noise for values up to 1; but who says that they are?"""
    noise = Laplace.calibrate(1.0, sensitivity=1.0, unit="record")
    ledger.charge(noise.cost, what="sum")  # type: ignore[attr-defined]
    return noise.release(x.sum(axis=0), rng=rng)


def main() -> float:
    """Exact, by sampling, and by replaying with the noise frozen."""
    flips()
    measured = distinguish(half_the_noise, np.zeros(1), np.ones(1), trials=20_000, seed=0)
    print(f"half the noise: stated epsilon 1, {measured}")
    data = np.full((10, 1), 0.5)
    outlier = data.copy()
    outlier[-1] = 90.0
    print(f"forgot to clip: {replay(forgot_to_clip, data, outlier)}")
    return measured.epsilon


if __name__ == "__main__":
    main()
