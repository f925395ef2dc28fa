"""Statistics of several sites inside the secure sum: the noise is needed once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blindsight.federated.agreement import agree
from blindsight.federated.sums import Simulation
from blindsight.sketching import (
    FeatureBasis,
    Statistics,
    StatisticsLayout,
    fit_from_statistics,
    merge_statistics,
)

CLASSES = ("a", "b")
SITES, EACH = 4, 400


def _features(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    features = rng.random((n, 12))
    features[np.arange(n), labels] += 1.0
    return features, labels


def test_sites_add_statistics_in_a_secure_sum_with_noise_once() -> None:
    basis = FeatureBasis.learn(np.random.default_rng(9).random((200, 12)), width=6)
    layout = StatisticsLayout(CLASSES, basis.width, moments=0.5)
    agreed = agree(
        dimension=layout.size,
        users=SITES,
        rounds=1,
        epsilon=4.0,
        delta=1e-5,
        records=EACH,
        clip=1.0,
    )
    noise = agreed.settings.noise
    assert noise is not None and noise.unit == "record"
    assert noise.clip == layout.bound()
    vectors = []
    for site in range(SITES):
        features, labels = _features(site, EACH)
        vectors.append(layout.sum(basis.rows(features), labels))
    result = Simulation(agreed.settings, rng=np.random.default_rng(0)).round(vectors)
    # Every site adds a share; the guarantee counts on `shares` of them only.
    sigma = noise.sigma * math.sqrt(SITES / noise.shares)
    statistics = Statistics.from_sum(result.total, layout, basis, sigma=sigma, senders=SITES)
    # Six standard deviations of the noise in each of the coordinates.
    assert np.abs(result.total - np.sum(vectors, axis=0)).max() < 6.5 * sigma + 0.01
    test, truth = _features(77, 400)
    model = fit_from_statistics(statistics)
    assert model.score(test, np.array(CLASSES)[truth]) > 0.75
    alone = [Statistics.from_sum(vector, layout, basis, sigma=noise.sigma) for vector in vectors]
    assert merge_statistics(alone).sigma == pytest.approx(noise.sigma * math.sqrt(SITES))
