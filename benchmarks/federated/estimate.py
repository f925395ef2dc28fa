"""What it costs to break the pad by lattice reduction: `python -m benchmarks.federated.estimate`.

The primal attack (uSVP) on LWE with n = N, modulus q, and secret and error of the same deviation σ.
In dimension d the vector (e, s, 1) of length about σ√d is found by BKZ with block size β once its
projection to the last block is shorter than what the basis has there (Alkim, Ducas, Pöppelmann and
Schwabe 2016, "2016 estimate"):

    σ √β <= δ^(2β - d - 1) q^((d - n - 1)/d),    δ = (β/(2πe) (πβ)^(1/β))^(1/(2β - 2))

Two prices of a β: core-SVP, 2^(0.292 β), which counts one call of a sieve and nothing else; and
MATZOV's (2022) gate count for one call, with dimensions for free (Ducas 2018), progressive sieving
and d - β calls. The script first reproduces three published values, and then prints both for every
parameter set that the pad offers: at half its deviation, because the sum of the secrets is
published (docs/federated-protocol.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blindsight.federated.sums.pad.parameters import choose
from blindsight.federated.sums.pad.sampler import SIGMA

__all__ = ["PUBLISHED", "Broken", "offered", "usvp"]

_SLOPE, _BASE = (
    0.29613500308205365,
    20.387885985467914,
)  # gates of one sieve, list decoding, fitted by its authors

# n, log2 q, σ, the most samples; what the lattice estimator prints: bits, β, d
PUBLISHED = {
    "Kyber512": (512, math.log2(3329), math.sqrt(1.5), 512, (143.8, 406, 998)),
    "n = 500, q = 2^12, sigma 2": (500, 12.0, 2.0, 500 * 8, (154.3, 444, 1019)),
    "n = 512, q = 3989, sigma 2": (512, math.log2(3989), 2.0, 512 * 8, (158.3, 458, 1073)),
}


@dataclass(frozen=True)
class Broken:
    """The cheapest attack found: block size, dimension, and its price in bits under both counts."""

    beta: int
    dimension: int
    gates: float
    core: float


def _log_delta(beta: int) -> float:
    return math.log(beta / (2 * math.pi * math.e) * (math.pi * beta) ** (1 / beta)) / (
        2 * (beta - 1)
    )


def _margin(beta: int, d: int, n: int, log_q: float, sigma: float) -> float:
    """Above 0 where the attack succeeds."""
    return (
        (2 * beta - d - 1) * _log_delta(beta)
        + (d - n - 1) / d * log_q
        - math.log(sigma * math.sqrt(beta))
    )


def _dimension(beta: int, n: int, log_q: float, sigma: float, samples: int) -> int | None:
    """The least dimension in which this block size succeeds, or None."""
    most = n + 1 + samples
    best = min(most, max(n + 2, round(math.sqrt((n + 1) * log_q / _log_delta(beta)))))
    if _margin(beta, best, n, log_q, sigma) < 0:
        return None
    low, high = max(beta, n + 1), best  # the margin grows with d up to `best`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _margin(beta, middle, n, log_q, sigma) >= 0 else (middle, high)
    return high


def _gates(beta: int, d: int) -> float:
    free = max(0.0, beta * math.log(4 / 3) / math.log(beta / (2 * math.pi * math.e)))
    progressive = 1 / (1 - 2**-_SLOPE)
    return _SLOPE * (beta - free) + _BASE + 2 * math.log2(progressive) + math.log2(max(d - beta, 1))


def usvp(n: int, log2_q: float, sigma: float, *, samples: int | None = None) -> Broken:
    """The attack with the least block size that succeeds; any number of samples unless told."""
    log_q, most = log2_q * math.log(2), 64 * n if samples is None else samples
    low, high = 40, 4 * n
    while high - low > 1:
        middle = (low + high) // 2
        found = _dimension(middle, n, log_q, sigma, most) is not None
        low, high = (low, middle) if found else (middle, high)
    dimension = _dimension(high, n, log_q, sigma, most)
    if dimension is None:
        raise AssertionError("a block as long as the lattice always succeeds")
    return Broken(high, dimension, _gates(high, dimension), 0.292 * high)


def offered() -> list[tuple[int, int, int, Broken]]:
    """Users, weights, bits of q and the attack, for the sizes in the docs."""
    found = []
    for users in (5, 100, 1_000, 10_000, 65_536):
        for weights in (650, 206_848, 1 << 20, 10_000_000, 100_000_000):
            parameters = choose(users, weights)
            bits = math.log2(parameters.modulus)
            found.append(
                (users, weights, math.ceil(bits), usvp(parameters.degree, bits, float(SIGMA) / 2))
            )
    return found


def main() -> None:
    """Print both tables."""
    for name, (n, bits, sigma, samples, (gates, beta, d)) in PUBLISHED.items():
        mine = usvp(n, bits, sigma, samples=samples)
        print(
            f"{name:28} here {mine.gates:.1f} beta {mine.beta} d {mine.dimension}; published "
            f"{gates} {beta} {d}"
        )
    print(f"{'users':>7} {'weights':>12} {'log2 q':>7} {'beta':>5} {'gates':>7} {'core-SVP':>9}")
    for users, weights, bits, broken in offered():
        print(
            f"{users:7,} {weights:12,} {bits:7} {broken.beta:5} {broken.gates:7.1f} "
            f"{broken.core:9.1f}"
        )


if __name__ == "__main__":
    main()
