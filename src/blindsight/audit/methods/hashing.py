"""Attacks on released codes, and the verdicts on PHashing and PITQ."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from sklearn.base import clone

from blindsight.audit.engine.blackbox import (
    CONFIDENCE,
    Attack,
    attack_outcomes,
    attack_release,
    collect,
    distinguish,
)
from blindsight.audit.report.verdict import Verdict
from blindsight.core import codes
from blindsight.core.arrays import Array
from blindsight.core.codes import from_codes
from blindsight.hashing import LSH, PITQ, CodebookHasher, PHashing
from blindsight.privacy import Guarantee

__all__ = [
    "PrivateHasher",
    "attack_codes",
    "attack_learning",
    "verdicts",
]


class PrivateHasher(Protocol):
    """A fitted hasher that releases codes."""

    guarantee_: Guarantee

    def transform(self, X: Array) -> Array:
        """Release a code for each row."""


def attack_codes(
    hasher: PrivateHasher, *, trials: int, seed: int, unit: str, confidence: float = CONFIDENCE
) -> Attack:
    """Attack the hasher's own `transform` on two inputs that differ as much as one unit may."""
    pair = _apart(hasher, np.random.default_rng(seed), one_bit=unit == "bit")
    book = getattr(hasher, "codebook", None)
    cells = None if book is None else book.assign(np.stack(pair))

    def release(x: Array) -> Array:
        codes = hasher.transform(x)
        return _bits(codes) if cells is None else from_codes(codes)[:, None] == cells

    return attack_release(
        release,
        pair,
        what="its own codes of two inputs that it tells apart",
        trials=trials,
        seed=seed,
        confidence=confidence,
    )


def _bits(released: Array) -> Array:
    """Return packed codes as bits; directions are returned unchanged."""
    return np.unpackbits(released, axis=-1) if released.dtype == np.uint8 else released


def _apart(hasher: Any, rng: np.random.Generator, *, one_bit: bool) -> tuple[Array, Array]:
    """Return two inputs whose plain codes differ most, or in one bit for a promise per bit."""
    columns = int(
        hasher.codebook.embedding.axes.shape[0]
        if hasattr(hasher, "codebook")
        else hasher.n_features_in_
    )
    rows = rng.standard_normal((64, columns))
    if one_bit:  # on the line from one input to another the bits change one by one
        rows = rows[0] + np.linspace(0, 1, 4000)[:, None] * (rows[1] - rows[0])
        differing = (np.diff(_plain(hasher, rows).astype(np.int8), axis=0) != 0).sum(axis=1)
        steps = np.flatnonzero(differing == 1)
        if len(steps):
            return rows[steps[0]], rows[steps[0] + 1]
    else:
        # Hash functions have different centres and scales, so several distances are tried.
        rows = np.concatenate([scale * rows for scale in (1e-2, -1e-2, 1.0, -1.0, 1e2, -1e2)])
        plain = _plain(hasher, rows).astype(np.float32)
        lengths = (plain**2).sum(axis=1)
        apart = lengths[:, None] + lengths - 2 * plain @ plain.T
        first, second = np.unravel_index(int(apart.argmax()), apart.shape)
        if apart[first, second] > 0.5:
            return rows[first], rows[second]
    return rows[0], rows[
        -1
    ]  # the hasher may give all inputs one code (e.g. noisy cells); then this is measured


def _plain(hasher: Any, rows: Array) -> Array:
    """Return codes without noise, one row each; for a codebook, one column per occurring cell."""
    if hasattr(hasher, "query"):
        return _bits(hasher.query(rows))
    book = getattr(hasher, "codebook", None) or hasher.codebook_
    came, index = np.unique(book.assign(rows), return_inverse=True)
    return np.asarray(np.eye(len(came), dtype=np.float32)[index])


def attack_learning(hasher: PrivateHasher, *, runs: int, seed: int) -> Attack:
    """Attack learning: one of 100 digits is replaced, and the attacker sees all that is released.

    That is the released projection, the cells, or the codes.
    """
    from blindsight import data

    rows = data.load("digits").array()[:100].reshape(100, -1) / 255.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    neighbour = rows.copy()
    neighbour[0] = rows[int((rows @ rows[0]).argmin())]
    small = {"n_bits": min(16, hasher.n_bits)} if hasattr(hasher, "n_bits") else {}

    def run(data_rows: Array, dice: np.random.Generator) -> Array:
        fitted = clone(hasher).set_params(random_state=dice, **small).fit(data_rows)
        if not hasattr(fitted, "projection_"):
            return np.concatenate(
                [np.ravel(fitted.released_["centre"]), np.ravel(fitted.weights_)[:8]]
            )
        # Statistics: the released mean and plane applied to both images, and the nearer code.
        mean = fitted.mean_ @ (rows[0] - neighbour[0])
        plane = [
            ((x - fitted.mean_) @ fitted.projection_) @ ((x - fitted.mean_) @ fitted.projection_)
            for x in pair
        ]
        released = fitted.transform(data_rows[:1])
        own, opposite = (codes.hamming(released, fitted.query(x[None]))[0, 0] for x in pair)
        return np.array([mean, *plane, float(opposite) - float(own)])

    pair = rows[0], neighbour[0]
    outcomes = collect(run, rows, neighbour, trials=runs, seed=seed)
    return attack_outcomes(
        outcomes, what="refit with one of 100 images replaced", delta=hasher.guarantee_.delta
    )


_LEARN = "learn the projection from public images, or under noise, and perturb the codes"
_STOP = "release few bits, or the cell of a codebook, under calibration='proven', unit='record'"


def verdicts(rows: Array, *, trials: int, seed: int = 0, workers: int = 1) -> Iterator[Verdict]:
    """Yield verdicts on PHashing, PITQ and the codebook.

    `rows` are a few hundred images as short vectors; neighbours replace one of them.
    """
    for n_bits, epsilon in ((48, 1.0), (12, 2.0)):
        yield _flips(n_bits, epsilon, "paper", trials=trials, seed=seed)
    yield _flips(48, 1.0, "proven", trials=trials, seed=seed)
    for calibration in ("paper", "proven"):
        yield _pitq(rows, calibration, trials=trials // 25, seed=seed, workers=workers)
    yield _codebook(rows, trials=trials, seed=seed)


def _flips(
    n_bits: int, epsilon: float, calibration: Literal["proven", "paper"], *, trials: int, seed: int
) -> Verdict:
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


def _pitq(
    rows: Array, calibration: Literal["proven", "paper"], *, trials: int, seed: int, workers: int
) -> Verdict:
    make = partial(PITQ, 8, epsilon=1.0, calibration=calibration, n_iterations=3)
    neighbour = rows.copy()
    neighbour[0] = rows.max(axis=0) - rows[0]

    def run(data: Array, rng: np.random.Generator) -> float:
        hasher = make(random_state=rng).fit(data)
        # Do the released W and R give the first image the released code of record 0?
        released = hasher.transform(data[:1])
        own, opposite = (
            codes.hamming(released, hasher.query(x[:1]))[0, 0] for x in (rows, neighbour)
        )
        return float(opposite) - float(own)

    audited = distinguish(
        run,
        rows,
        neighbour,
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


def _codebook(rows: Array, *, trials: int, seed: int) -> Verdict:
    hasher = CodebookHasher(epsilon=4.0, n_cells=16, random_state=seed, learned_from="public").fit(
        rows
    )
    audited = attack_codes(
        hasher, trials=20 * trials, seed=seed, unit="record", confidence=0.95
    ).audited
    return Verdict.of(
        hasher.guarantee_,
        audited,
        room="hashing",
        method="codebook (ours)",
        setting="16 cells, ε = 4",
    )
