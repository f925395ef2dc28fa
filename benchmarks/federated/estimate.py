"""What it costs to break the pad by lattice reduction: `python -m benchmarks.federated.estimate`.

LWE with n secret entries, modulus q, and secret and error of the same deviation σ. In all formulas
δ is the root-Hermite factor of BKZ with block size β,

    δ = (β/(2πe) (πβ)^(1/β))^(1/(2β - 2)),

d the dimension of the lattice that is reduced, and m = d - n (- 1) the number of samples used.

*usvp.* The vector (e, s, 1) of length about σ√d is found once its projection to the last block is
shorter than what the basis has there (Alkim, Ducas, Pöppelmann and Schwabe 2016):

    σ √β <= δ^(2β - d - 1) q^((d - n - 1)/d).

*Hybrid, primal.* ζ entries of the secret are guessed, and BKZ with block size β is followed, for
each guess, by one sieve in the last η dimensions (Howgrave-Graham 2007, Liu and Nguyen 2013), in
which (e, s), projected, must be shorter than the Gaussian heuristic says of the projected lattice:

    σ √η <= √(η/(2πe)) (πη)^(1/(2η)) δ^(η - d) q^(m/d).

With ζ = 0 this is the decoding attack of the Homomorphic Encryption Standard.

*Dual.* Short vectors of the dual lattice, of length ℓ = δ^(d-1) q^(n/d), tell the samples from
uniform ones with advantage exp(-2 (π σ ℓ / q)²) (Micciancio and Regev 2009); exp(4 (π σ ℓ / q)²)
of them are needed, and each is paid for by a reduction.

*Hybrid, dual.* MATZOV (2022): ζ entries are guessed, t further entries are rounded to a modulus p
and tried at once by a Fourier transform, and a sieve of dimension β' gives (4/3)^(β'/2) short
vectors at once. This is the most optimistic estimate for the attacker: its independence assumption
is disputed (Ducas and Pulles 2023), so it counts as a lower bound.

Two prices of a block size: core-SVP, 2^(0.292 β), which counts one call of a sieve and nothing
else; and MATZOV's gate count for one call, with dimensions for free (Ducas 2018), progressive
sieving and d - β calls. The script first reproduces published values of the lattice estimator and
then prices every parameter set that the pad offers: at half its deviation, because the sum of the
secrets is published (docs/federated-protocol.md). With `--write` it writes the result file and the
table in the specification.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from blindsight.federated.sums import Settings
from blindsight.federated.sums.messages import contribution_bytes
from blindsight.federated.sums.pad.parameters import choose
from blindsight.federated.sums.pad.sampler import SIGMA

__all__ = [
    "HE_STANDARD",
    "PUBLISHED",
    "Attack",
    "dual",
    "dual_hybrid",
    "offered",
    "primal_hybrid",
    "table",
    "usvp",
]

RESULTS = Path("docs/federated-security.json")
SPECIFICATION = Path("docs/federated-protocol.md")
_BEGIN, _END = "<!-- security table -->", "<!-- end of security table -->"

# Gates of one sieve with list decoding, 2^(slope β + base), fitted by MATZOV.
_SLOPE, _BASE = 0.29613500308205365, 20.387885985467914
_PROGRESSIVE = -math.log2(1 - 2**-_SLOPE)
_MULTIPLY, _ADD = 10.0, math.log2(5 * 32)  # gates of 32-bit arithmetic, log2

#: The Homomorphic Encryption Standard (2018), classical 128 bits, error deviation 3.2: the largest
#: log2 q for a ternary secret, by degree. Secrets of the error's deviation may have a larger one.
HE_STANDARD = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438}

#: n, log2 q, σ, samples; what the lattice estimator's documentation prints, log2 of gates.
PUBLISHED: dict[str, tuple[int, float, float, int, dict[str, float]]] = {
    "Kyber512": (
        512,
        math.log2(3329),
        math.sqrt(1.5),
        512,
        {"usvp": 143.8, "primal_hybrid": 140.3, "dual": 149.9, "dual_hybrid": 139.7},
    ),
    "n = 500, q = 2^12, sigma 2": (500, 12.0, 2.0, 500 * 8, {"usvp": 154.3}),
    "n = 512, q = 3989, sigma 2": (512, math.log2(3989), 2.0, 512 * 8, {"usvp": 158.3}),
    "HE Standard, n = 1024, q = 2^27, sigma 3": (1024, 27.0, 3.0, 1024, {"primal_hybrid": 136.7}),
}


@dataclass(frozen=True)
class Attack:
    """The cheapest parameters found for an attack, and its price in bits under both counts."""

    gates: float
    core: float
    beta: int
    dimension: int
    guessed: int = 0


def _log_delta(beta: int) -> float:
    small = max(beta, 40)
    return math.log(small / (2 * math.pi * math.e) * (math.pi * small) ** (1 / small)) / (
        2 * (small - 1)
    )


def _sieve(beta: float) -> float:
    """One sieve, dimensions for free included, log2 of gates."""
    free = max(0.0, beta * math.log(4 / 3) / math.log(beta / (2 * math.pi * math.e)))
    return _SLOPE * (beta - free) + _BASE + _PROGRESSIVE


def _reduction(beta: int, d: int) -> float:
    """BKZ: d - β sieves, progressively, log2 of gates."""
    return _sieve(beta) + _PROGRESSIVE + math.log2(max(d - beta, 1))


def _plus(*logs: float) -> float:
    """log2 of a sum of powers of two."""
    largest = max(logs)
    return largest + math.log2(sum(2 ** (x - largest) for x in logs))


def _entropy(sigma: float) -> float:
    """Bits of one entry of the secret."""
    return math.log2(sigma * math.sqrt(2 * math.pi * math.e))


def _margin(beta: int, d: int, n: int, log_q: float, sigma: float) -> float:
    """Above 0 where the primal attack succeeds."""
    return (
        (2 * beta - d - 1) * _log_delta(beta)
        + (d - n - 1) / d * log_q
        - math.log(sigma * math.sqrt(beta))
    )


def _decodes(beta: int, eta: int, d: int, n: int, log_q: float, sigma: float) -> bool:
    """Whether a sieve in the last η dimensions finds the projected secret."""
    heuristic = math.log(eta / (2 * math.pi * math.e)) / 2 + math.log(math.pi * eta) / (2 * eta)
    shortest = heuristic - (d - eta) * _log_delta(beta) + (d - n) / d * log_q
    return shortest >= math.log(sigma * math.sqrt(eta))


def _best_dimension(beta: int, n: int, log_q: float, most: int) -> int:
    return min(most, max(n + 2, round(math.sqrt((n + 1) * log_q / _log_delta(beta)))))


def usvp(n: int, log2_q: float, sigma: float, *, samples: int | None = None) -> Attack:
    """The primal attack with the least block size that succeeds.

    Parameters:
        n: entries of the secret.
        log2_q: bits of the modulus.
        sigma: deviation of secret and error.
        samples: how many samples there are; any number by default.
    """
    log_q, most = log2_q * math.log(2), n + 1 + (64 * n if samples is None else samples)
    low, high = 40, 4 * n
    while high - low > 1:
        middle = (low + high) // 2
        d = _best_dimension(middle, n, log_q, most)
        fits = _margin(middle, d, n, log_q, sigma) >= 0
        low, high = (low, middle) if fits else (middle, high)
    # The margin grows with d up to the best dimension: take the least that suffices.
    small, d = max(high, n + 1), _best_dimension(high, n, log_q, most)
    while d - small > 1:
        middle = (small + d) // 2
        fits = _margin(high, middle, n, log_q, sigma) >= 0
        small, d = (small, middle) if fits else (middle, d)
    return Attack(_reduction(high, d), 0.292 * high, high, d)


def primal_hybrid(n: int, log2_q: float, sigma: float, *, samples: int | None = None) -> Attack:
    """Guess ζ entries, reduce with β, and decode by a sieve in η dimensions for each guess."""
    log_q = log2_q * math.log(2)
    start, best = usvp(n, log2_q, sigma, samples=samples).beta, None
    for guessed in (0, 1, 2, 4, 8, 16, 32):
        left = n - guessed
        most = left + 1 + (64 * n if samples is None else samples)
        for beta in range(max(60, start - 60), start + 2):
            d = _best_dimension(beta, left, log_q, most)
            low, high = 40, d
            while high - low > 1:
                middle = (low + high) // 2
                fits = _decodes(beta, middle, d, left, log_q, sigma)
                low, high = (low, middle) if fits else (middle, high)
            guesses = _entropy(sigma) * guessed
            gates = _plus(_reduction(beta, d), guesses + _sieve(high) + _PROGRESSIVE)
            core = max(0.292 * beta, guesses + 0.292 * high)
            if best is None or gates < best.gates:
                best = Attack(gates, core, beta, d, guessed)
    if best is None:
        raise AssertionError("the ranges are never empty")
    return best


def dual(n: int, log2_q: float, sigma: float, *, samples: int | None = None) -> Attack:
    """Distinguish by short vectors of the dual lattice, each paid for by a reduction."""
    log_q, best = log2_q * math.log(2), None
    most = n + (64 * n if samples is None else samples)
    start = usvp(n, log2_q, sigma, samples=samples).beta
    for beta in range(max(60, start - 80), start + 120):
        d = _best_dimension(beta, n, log_q, most)
        short = (d - 1) * _log_delta(beta) + n / d * log_q - log_q
        needed = 4 * (math.pi * sigma * math.exp(short)) ** 2 / math.log(2)
        # A sieve ends with (4/3)^(β/2) vectors, longer than the shortest by √(4/3).
        many = 4 / 3 * needed
        calls = min(max(0.0, needed), max(0.0, many - beta / 2 * math.log2(4 / 3)))
        gates = _reduction(beta, d) + calls
        if best is None or gates < best.gates:
            best = Attack(gates, 0.292 * beta + calls, beta, d)
    if best is None:
        raise AssertionError("the range is never empty")
    return best


def dual_hybrid(n: int, log2_q: float, sigma: float, *, samples: int | None = None) -> Attack:
    """MATZOV's attack: guessing, modulus p and a Fourier transform over t entries."""
    log_q, best = log2_q * math.log(2), None
    most = 64 * n if samples is None else samples
    start, entropy = usvp(n, log2_q, sigma, samples=samples).beta, _entropy(sigma)
    betas = range(max(60, start - 60), start + 20)
    beta = np.array(betas)[:, None]
    sieve = beta + np.arange(0, 20, 5)
    delta = np.array([_log_delta(b) for b in betas])[:, None]
    flat = _SLOPE * sieve + _BASE + _PROGRESSIVE
    vectors = sieve / 2 * math.log2(4 / 3)
    one_sieve = np.array([_sieve(b) for b in betas])[:, None] + _PROGRESSIVE
    for p, t, guessed in product(range(2, 12), range(0, 161, 10), range(0, 41, 5)):
        left = n - t - guessed
        fourier = _MULTIPLY + math.log2(max(t, 1)) + (t + 1) * math.log2(p)
        guesses = entropy * guessed * math.log(2) + t * math.log(p) + math.log(2)
        rounding = t / 3 * (sigma * math.pi / p) ** 2
        d = np.clip(np.sqrt((left + 1) * log_q / delta), left + 2, left + most)
        length = (
            math.log(sigma)
            + left / d * log_q
            + np.log(4 / 3 * sieve / (2 * math.pi * math.e)) / 2
            + delta * (d - sieve)
        )
        needed = 4 * (np.exp(length - log_q) * math.pi) ** 2
        count = (needed + rounding + math.log(guesses)) / math.log(2)
        calls = np.maximum(0.0, count - vectors)
        reduction = one_sieve + np.log2(np.maximum(d - beta, 1))
        sample = calls + np.logaddexp2(reduction, flat)
        guess = entropy * guessed + np.logaddexp2(fourier, 2 + _ADD + count)
        gates = np.logaddexp2(sample, guess)
        i, j = np.unravel_index(int(gates.argmin()), gates.shape)
        if best is None or gates[i, j] < best.gates:
            core = max(float(calls[i, j]) + 0.292 * int(sieve[i, j]), entropy * guessed)
            best = Attack(float(gates[i, j]), core, betas[i], round(d[i, 0]), guessed + t)
    if best is None:
        raise AssertionError("the ranges are never empty")
    return best


_ATTACKS = {
    "usvp": usvp,
    "dual": dual,
    "primal_hybrid": primal_hybrid,
    "dual_hybrid": dual_hybrid,
}
_SIZES = (
    (5, 206_848),
    (100, 206_848),
    (1_000, 206_848),
    (10_000, 206_848),
    (100, 10_000_000),
    (65_536, 10_000_000),
)


def offered() -> list[dict[str, float]]:
    """Users, weights, bits of q and the primal attack, for many sizes that the pad offers."""
    rows = []
    for users in (5, 100, 1_000, 10_000, 65_536):
        for weights in (650, 206_848, 1 << 20, 10_000_000, 100_000_000):
            parameters = choose(users, weights)
            bits = math.log2(parameters.modulus)
            attack = usvp(parameters.degree, bits, float(SIGMA) / 2)
            rows.append({"users": users, "weights": weights, "bits": bits, **asdict(attack)})
    return rows


def measured() -> dict[str, object]:
    """What the result file holds: the checks, the HE Standard's own sizes, and the pad's sizes."""
    checks, standard, sizes = [], [], []
    for name, (n, bits, sigma, samples, wanted) in PUBLISHED.items():
        for attack, gates in wanted.items():
            own = _ATTACKS[attack](n, bits, sigma, samples=samples)
            checks.append({"name": name, "attack": attack, "published": gates, **asdict(own)})
    for n, log2_q in HE_STANDARD.items():
        if 2048 <= n <= 8192:
            found = {name: run(n, float(log2_q), 3.2).gates for name, run in _ATTACKS.items()}
            standard.append({"n": n, "log2_q": log2_q, **found})
    for users, weights in _SIZES:
        parameters = choose(users, weights)
        bits, n = math.log2(parameters.modulus), parameters.degree
        settings = Settings(dimension=weights, users=users, holders=5)
        attacks = {name: asdict(run(n, bits, float(SIGMA) / 2)) for name, run in _ATTACKS.items()}
        sizes.append(
            {
                "users": users,
                "weights": weights,
                "degree": n,
                "slots": parameters.slots,
                "slot_bits": parameters.slot_bits,
                "log2_q": math.ceil(bits),
                "he_standard": HE_STANDARD[n],
                "bytes_per_weight": contribution_bytes(settings, weights) / weights,
                "attacks": attacks,
            }
        )
    return {"checks": checks, "he_standard": standard, "sizes": sizes}


def table(result: dict[str, object]) -> str:
    """The table of the specification, from the result file's content."""
    head = (
        "| users | weights | degree | slots × bits | log2 q (HE Standard) | bytes per weight | "
        "usvp | dual | hybrid, primal | hybrid, dual | core-SVP (usvp) |"
    )
    lines = [head, "|--|--|--|--|--|--|--|--|--|--|--|"]
    sizes = result["sizes"]
    assert isinstance(sizes, list)  # noqa: S101  (of our own file)
    for row in sizes:
        attacks = row["attacks"]
        prices = " | ".join(f"{attacks[name]['gates']:.1f}" for name in _ATTACKS)
        lines.append(
            f"| {row['users']:,} | {row['weights']:,} | {row['degree']} | {row['slots']} × "
            f"{row['slot_bits']} | {row['log2_q']} ≤ {row['he_standard']} | "
            f"{row['bytes_per_weight']:.2f} | {prices} | {attacks['usvp']['core']:.1f} |"
        )
    standard = result["he_standard"]
    assert isinstance(standard, list)  # noqa: S101
    lines += [
        "",
        "The same attacks on the Homomorphic Encryption Standard's own sizes for 128 bits "
        "(deviation 3.2):",
        "",
        "| degree | log2 q | usvp | dual | hybrid, primal | hybrid, dual |",
        "|--|--|--|--|--|--|",
    ]
    for row in standard:
        prices = " | ".join(f"{row[name]:.1f}" for name in _ATTACKS)
        lines.append(f"| {row['n']} | {row['log2_q']} | {prices} |")
    return "\n".join(lines)


def with_table(page: str, result: dict[str, object]) -> str:
    """The specification with its table replaced."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{table(result)}\n{_END}{rest.split(_END)[1]}"


def main() -> None:
    """Print the tables; with --write also write them."""
    parser = argparse.ArgumentParser(description="Price lattice attacks on the pad.")
    parser.add_argument("--write", action="store_true", help="write result file and specification")
    write = parser.parse_args().write
    result = measured()
    checks = result["checks"]
    assert isinstance(checks, list)  # noqa: S101
    for row in checks:
        print(f"{row['name']:42} {row['attack']:14} {row['gates']:6.1f} {row['published']:6.1f}")
    print(table(result))
    if write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        page = SPECIFICATION.read_text(encoding="utf-8")
        SPECIFICATION.write_text(with_table(page, result), encoding="utf-8")


if __name__ == "__main__":
    main()
