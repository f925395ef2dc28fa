"""Twelve bugs planted on purpose, each beside its sound twin: the audit must catch the one and spare the other.

A pipeline takes `(data, rng, ledger)`; `broken` says whether the bug is in. `audited` returns whether the audit
refuted it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import distinguish
from blindsight.audit.federation import single_user_decryption, support_intersection
from blindsight.audit.replay import refuses_nan, replay
from blindsight.privacy import Cost
from blindsight.privacy.clipping import clip_norm, clip_values
from blindsight.privacy.mechanisms import BitFlip, Laplace

__all__ = ["PLANTED", "SURE", "Planted"]

# Each verdict on a sound twin is a false alarm with at most this chance.
SURE = 1 - 1e-6
_DATA = np.random.default_rng(5).uniform(-1, 1, (40, 6))
_NEIGHBOUR = np.concatenate([_DATA[:-1], 50.0 * np.sign(_DATA[-1:])])
_BOUNDED = np.concatenate([_DATA[:-1], -np.sign(_DATA[-1:])])


@dataclass(frozen=True)
class Planted:
    """One bug: its name and whether the audit refutes the pipeline with it (True) or without it (False)."""

    name: str
    audited: Callable[[bool], bool]


def _noise(epsilon: float = 1.0, sensitivity: float = 2.0) -> Laplace:
    return Laplace.calibrate(epsilon, sensitivity=sensitivity, unit="record")


def _clip_unused(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        noise = _noise()
        ledger.charge(noise.cost, what="sum")
        return noise.release((x if broken else clip_norm(x, 1.0, order=1)).sum(axis=0), rng=rng)

    return replay(run, _DATA, _NEIGHBOUR).refuted


def _half_the_noise(broken: bool) -> bool:
    stated = _noise(sensitivity=1.0)
    drawn = Laplace(scale=stated.scale / 2, sensitivity=1.0, unit="record") if broken else stated
    found = distinguish(
        lambda x, rng: drawn.release(x, rng=rng), np.zeros(1), np.ones(1), trials=20_000, confidence=SURE
    )
    return found.epsilon > stated.cost.epsilon


def _last_batch_bare(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        noise = _noise()
        ledger.charge(Cost(epsilon=4.0, unit="record"), what="four batches")
        sums = [clip_norm(batch, 1.0, order=1).sum(axis=0) for batch in np.array_split(x, 4)]
        noisy = [noise.release(part, rng=rng) for part in (sums[:-1] if broken else sums)]
        return np.stack([*noisy, sums[-1]] if broken else noisy)

    return replay(run, _DATA, _NEIGHBOUR).refuted


def _seed_reused(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        noise = _noise()
        ledger.charge(noise.cost, what="sum")
        dice = np.random.default_rng(42) if broken else rng
        return noise.release(clip_norm(x, 1.0, order=1).sum(axis=0), rng=dice)

    return replay(run, _DATA, _NEIGHBOUR).refuted


def _scale_from_the_data(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        bound = float(np.abs(x).sum(axis=1).max()) if broken else 1.0
        noise = _noise(sensitivity=2 * bound)
        ledger.charge(noise.cost, what="sum")
        return noise.release(clip_norm(x, bound, order=1).sum(axis=0), rng=rng)

    return replay(run, _DATA, _NEIGHBOUR).refuted


def _sensitivity_off_by_two(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        # Replacing a row moves the sum by twice the clipping bound, not once.
        noise = _noise(sensitivity=1.0 if broken else 2.0)
        ledger.charge(noise.cost, what="sum")
        return noise.release(clip_norm(x, 1.0, order=1).sum(axis=0), rng=rng)

    flipped = np.concatenate([_DATA[:-1], -10 * _DATA[-1:]])
    return replay(run, np.concatenate([_DATA[:-1], 10 * _DATA[-1:]]), flipped).refuted


def _rows_not_composed(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        rows = clip_values(x, -1, 1).sum(axis=0)
        noise = _noise()
        total = noise.cost.epsilon * (1 if broken else len(rows))
        ledger.charge(Cost(epsilon=total, unit="record"), what="every row")
        return np.stack([noise.release(row, rng=rng) for row in rows])

    return replay(run, _DATA, _BOUNDED).refuted


def _charged_after(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        noise = _noise()
        if not broken:
            ledger.charge(noise.cost, what="sum")
        released = noise.release(clip_norm(x, 1.0, order=1).sum(axis=0), rng=rng)
        if broken:
            ledger.charge(noise.cost, what="sum")
        return released

    return replay(run, _DATA, _NEIGHBOUR).refuted


def _one_bit_never_flipped(broken: bool) -> bool:
    flip = BitFlip.proven(4.0, n_bits=8, unit="record")

    def run(bits: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        released = flip.release(bits, rng=rng)
        if broken:
            released[3] = bits[3]
        return released

    zeros = np.zeros(8, np.uint8)
    return distinguish(run, zeros, 1 - zeros, trials=10_000, confidence=SURE).epsilon > flip.cost.epsilon


def _nan_let_through(broken: bool) -> bool:
    def run(x: NDArray[Any], rng: np.random.Generator, ledger: Any) -> NDArray[Any]:
        noise = _noise()
        total = np.clip(x, -1, 1) if broken else clip_values(x, -1, 1)
        ledger.charge(noise.cost, what="sum")
        # nansum hides the hole: one NaN then tells whose value is missing.
        return noise.release(np.nansum(total, axis=0) / x.shape[1], rng=rng)

    return not refuses_nan(run, _DATA)


def _permutation_reused(broken: bool) -> bool:
    # The paper's protocol keeps one permutation for all rounds; a pad has no permutation.
    found = support_intersection("paper" if broken else "pad", rounds=30)
    return found.value > 0.25


def _single_user_decrypted(broken: bool) -> bool:
    # The paper's key generator opens whatever it is handed; under a pad it wants several signed users.
    return single_user_decryption("paper" if broken else "pad").value > 0.0


PLANTED = (
    Planted("clip unused", _clip_unused),
    Planted("noise half as large", _half_the_noise),
    Planted("last batch not noised", _last_batch_bare),
    Planted("seed re-used", _seed_reused),
    Planted("noise scale from the data", _scale_from_the_data),
    Planted("sensitivity off by two", _sensitivity_off_by_two),
    Planted("rows not composed", _rows_not_composed),
    Planted("budget charged after release", _charged_after),
    Planted("one bit never flipped", _one_bit_never_flipped),
    Planted("NaN let through", _nan_let_through),
    Planted("permutation re-used", _permutation_reused),
    Planted("single-user decryption", _single_user_decrypted),
)
