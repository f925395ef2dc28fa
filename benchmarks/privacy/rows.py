"""The ground floor measured: noise against bare random numbers, the ledger's pace, features a
second.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Row, race
from benchmarks.privacy.album import album_rows
from benchmarks.privacy.features import feature_rows
from benchmarks.privacy.ledger import ledger_rows
from blindsight.privacy.mechanisms import BitFlip, DiscreteGaussian, DiscreteLaplace, Laplace

__all__ = ["rows"]

_TIMES = "x the time of numpy's uniforms (lower is better)"


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Noise draws against numpy's own uniforms, in turns and by CPU time; then ledger, features and
    vault.
    """
    step = progress or (lambda done, total: None)
    rng = np.random.default_rng(seed)
    parts = 6
    step(0, parts)
    yield from _noise_rows(rng, seed, quick)
    step(2, parts)
    yield from _exact_rows(rng, seed)
    step(3, parts)
    yield from ledger_rows(quick=quick, seed=seed)
    step(4, parts)
    yield from feature_rows(quick=quick, seed=seed)
    step(5, parts)
    yield from album_rows(quick=quick, seed=seed)
    step(6, parts)


def _noise_rows(rng: np.random.Generator, seed: int, quick: bool) -> Iterator[Row]:
    repeats = 3 if quick else 7
    bits = np.zeros((100_000_000 // 64, 64), np.bool_)
    flip = BitFlip.proven(4.0, n_bits=64, unit="record")
    outcome = race(
        lambda: flip.release(bits, rng=rng),
        lambda: rng.random(100_000_000),
        repeats=repeats,
        clock=time.process_time,
    )
    yield Row(
        id="privacy.flip_vs_uniforms",
        value=1 / outcome.ratio,
        unit=_TIMES,
        peer="numpy Generator.random, 100 million",
        seed=seed,
        seconds=outcome.ours_seconds,
    )
    values = np.zeros(10_000_000)
    noise = Laplace(scale=1.0, sensitivity=1.0, unit="record")
    outcome = race(
        lambda: noise.release(values, rng=rng),
        lambda: rng.random(values.size),
        repeats=repeats,
        clock=time.process_time,
    )
    yield Row(
        id="privacy.laplace_vs_uniforms",
        value=1 / outcome.ratio,
        unit=_TIMES,
        peer="numpy Generator.random, 10 million",
        seed=seed,
        seconds=outcome.ours_seconds,
    )


def _exact_rows(rng: np.random.Generator, seed: int) -> Iterator[Row]:
    """What exactness costs: the discrete samplers against the float Laplace."""
    values = np.zeros(100_000)
    fast = Laplace(scale=1.0, sensitivity=1.0, unit="query")
    exact: dict[str, DiscreteLaplace | DiscreteGaussian] = {
        "laplace": DiscreteLaplace.calibrate(
            1.0, sensitivity=1.0, grid=2**-10, dimensions=1, unit="query"
        ),
        "gaussian": DiscreteGaussian.calibrate(
            1.0, delta=1e-5, sensitivity=1.0, dimensions=1, unit="query"
        ),
    }
    for name, mechanism in exact.items():
        outcome = race(
            functools.partial(mechanism.release, values, rng=rng),
            functools.partial(fast.release, values, rng=rng),
            repeats=3,
        )
        yield Row(
            id=f"privacy.exact_{name}_vs_float_laplace",
            value=1 / outcome.ratio,
            unit="x the time of the float Laplace (lower is better)",
            peer="Laplace, 100,000 values",
            seed=seed,
            seconds=outcome.ours_seconds,
        )
