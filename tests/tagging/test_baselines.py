"""The baselines of Figure 5: their noise, and what is proven about it."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.tagging.baselines import FeatureNoise, noisy_weights
from blindsight.tagging.gcn import MLGCN, classifier_array, torch_generator
from blindsight.tagging.paper import Schedule


def test_proven_feature_noise_bounds_any_two_rows():
    noise = FeatureNoise(epsilon=2.0, bound=3.0)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(100, 8)) * 100
    clipped = rows * np.minimum(1, 3.0 / np.abs(rows).sum(axis=1, keepdims=True))
    assert np.abs(clipped[:, None] - clipped[None]).sum(axis=2).max() <= 6.0 + 1e-9
    out = noise.release(np.zeros((4000, 8)), rng=rng)
    assert np.abs(out).mean() == pytest.approx(2 * 3.0 / 2.0, rel=0.03)
    assert noise.cost.epsilon == 2.0


def test_the_paper_s_feature_noise_has_scale_one_over_epsilon_and_no_proof():
    noise = FeatureNoise(epsilon=0.1, paper=True)
    out = noise.release(np.zeros((2000, 10)), rng=np.random.default_rng(0))
    assert np.abs(out).mean() == pytest.approx(10.0, rel=0.03)
    assert math.isinf(noise.cost.epsilon)


def test_less_epsilon_makes_noisier_weights():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    y = (x[:, :3] > 0).astype(np.uint8)
    agreement = []
    for epsilon in (1e-3, 1e3):
        head = MLGCN(
            np.eye(3),
            np.eye(3),
            n_features=6,
            hidden=16,
            generator=torch_generator(np.random.default_rng(2)),
        )
        noisy_weights(
            head,
            x,
            y,
            epsilon=epsilon,
            schedule=Schedule(5, 20, 0.05),
            rng=np.random.default_rng(1),
        )
        agreement.append(((x @ classifier_array(head).T > 0) == y).mean())
    assert agreement[0] < agreement[1] - 0.1
