"""Membership inference finds an overfitted model and stays at chance on one that saw nothing of the
record.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.audit.engine.inference import infer_membership, reconstruct, roc
from blindsight.core.errors import InvalidData
from blindsight.privacy.mechanisms import Gaussian

rng = np.random.default_rng(0)
X = rng.standard_normal((300, 600))
Y = rng.choice([-1.0, 1.0], 300)


def _attack(sigma: float):
    noise = Gaussian(sigma=sigma, sensitivity=1.0, delta=1e-5, unit="record") if sigma else None

    def train(included, dice):
        rows = X[included] / np.linalg.norm(X[included], axis=1, keepdims=True)
        total = (Y[included, None] * rows).sum(axis=0)
        return noise.release(total, rng=dice) if noise else total

    return infer_membership(
        train, lambda weights: Y * (X @ weights), records=300, shadows=6, seed=1
    )


def test_an_unprotected_model_gives_its_members_away() -> None:
    found = _attack(0.0)
    assert found.auc > 0.9
    fpr, tpr = roc(found.scores, found.included)
    assert tpr[fpr <= 0.01].max() > 0.2
    assert found.audited.epsilon > 1


def test_noise_at_epsilon_one_holds_the_attack_to_its_bound() -> None:
    sigma = Gaussian.calibrate(1.0, delta=1e-5, sensitivity=1.0, unit="record").sigma
    found = _attack(sigma)
    assert found.auc < 0.75
    assert found.audited.epsilon <= 1.0


def test_roc_takes_ties_together() -> None:
    fpr, tpr = roc(np.zeros(4), np.array([True, False, True, False]))
    assert fpr.tolist() == [0, 1]
    assert tpr.tolist() == [0, 1]


def test_scores_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InvalidData, match="300 records"):
        infer_membership(lambda mask, dice: None, lambda model: np.zeros(3), records=300)


def test_reconstruction_beats_the_mean_image_exactly_where_the_release_tells_something() -> None:
    images = (rng.random((400, 12, 12)) * 255).astype(np.uint8)
    images[:, :6] = (rng.random((400, 1, 1)) * 255).astype(np.uint8)
    telling = images[:, 0, :1].astype(float)
    noise = rng.standard_normal((400, 1))
    for decoder in ("ridge", "network"):
        leak = reconstruct(
            telling[:300], images[:300], telling[300:], images[300:], decoder=decoder
        )
        blind = reconstruct(noise[:300], images[:300], noise[300:], images[300:], decoder=decoder)
        assert leak.psnr > leak.psnr_of_mean + 1
        assert blind.psnr < blind.psnr_of_mean + 0.5
        assert leak.images.dtype == np.uint8
    assert "PSNR" in str(leak.recovery("features"))
    with pytest.raises(InvalidData):
        reconstruct(telling[:300], images[:299], telling[300:], images[300:])
