"""Private hashing: the codes of two inputs told apart, and for PITQ whose code was released."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.engine.blackbox import distinguish
from blindsight.audit.methods.hashing.attacks import attack_codes
from blindsight.audit.report.verdict import Verdict
from blindsight.core import codes
from blindsight.hashing import LSH, PITQ, CodebookHasher, PHashing

__all__ = ["verdicts"]

_LEARN = "learn the projection from public images, or under noise, and perturb the codes"
_STOP = "release few bits, or the cell of a codebook, under calibration='proven', unit='record'"


def verdicts(
    rows: NDArray[Any], *, trials: int, seed: int = 0, workers: int = 1
) -> Iterator[Verdict]:
    """`rows` are a few hundred images as short rows of numbers; neighbours replace one of them."""
    for n_bits, epsilon in ((48, 1.0), (12, 2.0)):
        yield _flips(n_bits, epsilon, "paper", trials=trials, seed=seed)
    yield _flips(48, 1.0, "proven", trials=trials, seed=seed)
    for calibration in ("paper", "proven"):
        yield _pitq(rows, calibration, trials=trials // 25, seed=seed, workers=workers)
    yield _codebook(rows, trials=trials, seed=seed)


def _flips(n_bits: int, epsilon: float, calibration: Any, *, trials: int, seed: int) -> Verdict:
    rows = np.random.default_rng(seed).standard_normal((200, 64))
    hasher = PHashing(
        LSH(n_bits, random_state=seed),
        epsilon=epsilon,
        calibration=calibration,
        learned_from="public",
    ).fit(rows)
    attack = attack_codes(
        hasher, trials=20 * trials, seed=seed, unit=hasher.guarantee_.unit, confidence=0.95
    )
    return Verdict.of(
        hasher.guarantee_,
        attack.audited,
        room="hashing",
        method="PHashing",
        setting=f"{n_bits} bits, ε = {epsilon:g}, β = {hasher.mechanism_.beta:.3g}",
        advice=_STOP if calibration == "paper" else "",
    )


def _pitq(rows: NDArray[Any], calibration: Any, *, trials: int, seed: int, workers: int) -> Verdict:
    make = partial(PITQ, 8, epsilon=1.0, calibration=calibration, n_iterations=3)
    other = rows.copy()
    other[0] = rows.max(axis=0) - rows[0]

    def run(data: NDArray[Any], rng: np.random.Generator) -> float:
        hasher = make(random_state=rng).fit(data)
        # Is the released code of record 0 the one that the released W and R give the first image?
        released = hasher.transform(data[:1])
        mine, theirs = (codes.hamming(released, hasher.query(x[:1]))[0, 0] for x in (rows, other))
        return float(theirs) - float(mine)

    audited = distinguish(
        run,
        rows,
        other,
        trials=trials,
        seed=seed,
        statistic=lambda scores: scores.astype(float),
        workers=workers,
    )
    return Verdict.of(
        make(random_state=seed).fit(rows).guarantee_,
        audited,
        room="hashing",
        method="PITQ",
        setting="8 bits, ε = 1",
        advice=_LEARN if calibration == "paper" else "",
    )


def _codebook(rows: NDArray[Any], *, trials: int, seed: int) -> Verdict:
    hasher = CodebookHasher(epsilon=4.0, n_cells=16, random_state=seed, learned_from="public").fit(
        rows
    )
    found = attack_codes(
        hasher, trials=20 * trials, seed=seed, unit="record", confidence=0.95
    ).audited
    return Verdict.of(
        hasher.guarantee_,
        found,
        room="hashing",
        method="codebook (ours)",
        setting="16 cells, ε = 4",
    )
