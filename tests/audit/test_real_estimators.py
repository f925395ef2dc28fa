"""The attacks run what really runs: an estimator that leaves its mechanism out is refuted, and as
it is it is not.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks.hashing.privunit import PrivUnitHasher
from benchmarks.hashing.sampling import SampledPHashing
from blindsight.audit import audit
from blindsight.codebooks import from_pictures
from blindsight.federated import FederatedClassifier, SumNoise
from blindsight.federated.noise import GaussianShares
from blindsight.hashing import LSH, PITQ, CodebookHasher, PHashing
from blindsight.privacy.door import Door
from blindsight.sketching import CodebookSketcher, FlippedBits
from blindsight.tagging import DPTraining, LaplaceAnswers, PrivateTagger

pytestmark = pytest.mark.usefixtures("same_noise")

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 12))
SAID = (RNG.random((60, 3)) < 0.4).astype(np.uint8)
CLASSES = ("cat", "dog", "tree")
IMAGES = RNG.integers(0, 16, (40, 1, 3, 3)).astype(np.uint8)


def _tagger(**params: Any) -> PrivateTagger:
    return PrivateTagger(DPTraining(epsilon=1.0, steps=10), classes=CLASSES, **params).fit(
        ROWS, SAID
    )


def _federated() -> FederatedClassifier:
    made = FederatedClassifier(
        classes=[0, 1, 2], rounds=2, noise=SumNoise(epsilon=2.0), encrypt=False
    )
    return made.fit(ROWS, np.arange(60) % 3, np.arange(60) % 6)


MADE: dict[str, Any] = {
    "flipped codes": lambda: PHashing(LSH(8), epsilon=4.0, learned_from="public").fit(ROWS),
    "flipped codes per bit": lambda: PHashing(
        LSH(8), epsilon=1.0, unit="bit", learned_from="public"
    ).fit(ROWS),
    "some bits": lambda: SampledPHashing(LSH(8), epsilon=4.0, learned_from="public").fit(ROWS),
    "directions": lambda: PrivUnitHasher(epsilon=4.0, learned_from="public").fit(ROWS),
    "cells": lambda: CodebookHasher(epsilon=3.0, n_cells=6, learned_from="public").fit(ROWS),
    # Many rows: with 60 the noise may move the mean so far that all inputs get one code, and then
    # nothing is told.
    "a learned projection": lambda: PITQ(n_bits=4, epsilon=2.0, n_iterations=2).fit(
        np.tile(ROWS, (100, 1))
    ),
    "an index's codebook": lambda: from_pictures(
        np.tile(ROWS, (2, 1)), 3.0, network=None, n_cells=6
    ),
    "noisy logits": lambda: _tagger(answers=LaplaceAnswers(epsilon=2.0)),
    "flipped pixels": lambda: FlippedBits(3.0, depth=4).fit(IMAGES),
    "prototypes": lambda: CodebookSketcher(3.0, k=5).fit(IMAGES),
}


def _bare(door: Door, what: str, value: Any) -> Any:
    """A door that lets values out as they are."""
    planned = door._next(what)
    inside = planned.mechanism.domain.project(value)
    shape = np.asarray(planned.mechanism.release(inside, rng=np.random.default_rng(0)))
    if shape.dtype == bool and inside.dtype != bool:  # a subset of the cells: the true one alone
        return np.eye(shape.shape[-1], dtype=bool)[inside]
    if shape.dtype.kind == inside.dtype.kind or shape.dtype.kind != "i":
        return inside.astype(shape.dtype)
    return np.argsort(-inside, axis=-1)[..., : shape.shape[-1]]


@pytest.mark.parametrize("name", MADE)
def test_what_an_estimator_releases_is_attacked_and_not_its_formula(name: str) -> None:
    subject = MADE[name]()
    sound = audit(subject, trials=20_000)
    assert sound.verdict is not None
    assert not sound.verdict.refuted, sound.verdict
    with mock.patch.object(Door, "release", _bare):
        broken = audit(subject, trials=20_000)
    assert broken.verdict is not None
    assert broken.verdict.refuted, broken.verdict


def test_training_itself_is_attacked() -> None:
    tagger = _tagger()
    sound = audit(tagger, trials=20_000)
    assert sound.verdict is not None
    assert not sound.verdict.refuted, sound.verdict

    def total(door: Door, what: str, rows: Any) -> Any:
        absent = door._listener.absent(len(rows))
        there = np.ones(len(rows)) if absent is None else (~absent).astype(float)
        return (
            rows.weighted_sum(there)
            if hasattr(rows, "weighted_sum")
            else there @ np.asarray(rows, float)
        )

    with mock.patch.object(Door, "total", total):
        broken = audit(tagger, trials=20_000)
    assert broken.verdict is not None
    assert broken.verdict.refuted, broken.verdict


def test_sums_are_attacked_as_users_make_them() -> None:
    model = _federated()
    sound = audit(model, trials=20_000)
    assert sound.verdict is not None
    assert not sound.verdict.refuted, sound.verdict
    with mock.patch.object(
        GaussianShares, "share", lambda self, update, *, rng: self.clipped(update)
    ):
        broken = audit(model, trials=20_000)
    assert broken.verdict is not None
    assert broken.verdict.refuted, broken.verdict
