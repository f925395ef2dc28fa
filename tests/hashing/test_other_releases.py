"""PrivUnit, sampled bits, multi-probe: what else the literature has."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks.hashing.privunit import PrivUnitHasher
from benchmarks.hashing.probing import multi_probe_distances, probes
from benchmarks.hashing.sampling import SampledPHashing
from blindsight.core import codes
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.hashing import LSH
from blindsight.privacy.mechanisms import PrivUnit

X = np.random.default_rng(0).normal(size=(300, 8))


@pytest.mark.parametrize(("epsilon", "dimensions"), [(0.5, 3), (4.0, 10), (16.0, 32)])
def test_privunit_density_ratio_is_exactly_epsilon(epsilon, dimensions):
    noise = PrivUnit(epsilon=epsilon, dimensions=dimensions, unit="record")
    u = np.eye(dimensions)[0]
    ratio = noise.log_prob(u, u) - noise.log_prob(u, -u)
    assert ratio == pytest.approx(epsilon, rel=1e-9)
    p, q = noise.cap(noise.gamma)
    total = q * math.exp(noise.log_prob(u, u)) + (1 - q) * math.exp(noise.log_prob(-u, u))
    assert total == pytest.approx(1)  # a density with respect to the uniform one
    assert p > q


def test_privunit_releases_unit_vectors_with_the_stated_mean():
    noise = PrivUnit(epsilon=4.0, dimensions=6, unit="record")
    u = np.tile(np.eye(6)[2], (40_000, 1))
    v = noise.release(u, rng=np.random.default_rng(1))
    np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1, atol=1e-9)
    inner = v[:, 2]
    p, _ = noise.cap(noise.gamma)
    assert (inner >= noise.gamma).mean() == pytest.approx(
        p, abs=6 * math.sqrt(p * (1 - p) / len(v))
    )
    assert inner.mean() == pytest.approx(
        noise.inner_product, abs=6 * inner.std() / math.sqrt(len(v))
    )
    assert np.abs(np.delete(v, 2, axis=1).mean(axis=0)).max() < 6 / math.sqrt(len(v))


def test_privunit_refuses_what_is_not_a_unit_vector():
    with pytest.raises(InvalidData, match="unit vectors"):
        PrivUnit(epsilon=1.0, dimensions=2, unit="record").release(
            [[3.0, 4.0]], rng=np.random.default_rng(0)
        )


def test_privunit_learned_from_the_protected_images_has_no_epsilon():
    hasher = PrivUnitHasher(epsilon=4.0)
    hasher.fit_transform(X)
    assert math.isinf(hasher.guarantee_.epsilon)
    assert PrivUnitHasher(epsilon=4.0, learned_from="public").fit(X).guarantee_.epsilon == 4.0


def test_sampled_positions_are_independent_of_the_code_and_cost_nothing():
    hasher = SampledPHashing(
        LSH(12, random_state=0), n_sampled=3, epsilon=6.0, random_state=1, learned_from="public"
    ).fit(X)
    released = hasher.transform(X)
    bits, mask = codes.unpack(released[:, :2], 12), codes.unpack(released[:, 2:], 12)
    assert (mask.sum(axis=1) == 3).all()
    assert (bits <= mask).all()
    assert len(np.unique(mask, axis=0)) > 50
    assert hasher.guarantee_.epsilon == pytest.approx(6.0)
    assert hasher.mechanism_.epsilon_per_bit == pytest.approx(2.0)
    plain = codes.unpack(hasher.query(X), 12)
    rate = (bits != plain)[mask == 1].mean()
    assert rate == pytest.approx(hasher.mechanism_.beta, abs=0.05)


def test_sampled_scores_favour_the_image_itself():
    hasher = SampledPHashing(
        LSH(64, random_state=0), epsilon=16.0, random_state=1, learned_from="public"
    ).fit(X)
    scores = hasher.scores(X, hasher.transform(X))
    own, others = np.diag(scores).mean(), scores[~np.eye(len(X), dtype=bool)].mean()
    assert own > others + scores.std()
    with pytest.raises(InvalidParameter, match="n_sampled"):
        SampledPHashing(LSH(4), n_sampled=5, learned_from="public").fit(X)
    with pytest.raises(InvalidData, match="wide"):
        hasher.scores(X, np.zeros((2, 3), np.uint8))


def test_probes_come_in_order_of_cost_and_none_is_missed():
    z = np.array([0.9, -0.2, 0.5, -0.7, 0.1])
    found, costs = probes(z, 32)
    assert np.all(np.diff(costs) >= -1e-12)
    every = sorted(
        sum(np.abs(z)[list(s)]) for r in range(6) for s in itertools.combinations(range(5), r)
    )
    np.testing.assert_allclose(costs, every, atol=1e-12)
    assert len({bytes(code) for code in found}) == 32
    assert np.array_equal(found[:1], codes.pack(z[None] >= 0))


def test_one_probe_is_the_plain_distance():
    z = np.random.default_rng(2).normal(size=(4, 20))
    stored = codes.pack(np.random.default_rng(3).integers(0, 2, (30, 20)))
    assert np.array_equal(
        multi_probe_distances(z, stored, 1), codes.hamming(codes.pack(z >= 0), stored)
    )
    assert (multi_probe_distances(z, stored, 8) <= multi_probe_distances(z, stored, 1)).all()


def test_only_the_drawn_bits_reach_the_door():
    from blindsight.privacy.door import listening

    seen = []

    class Listener:
        def opened(self, door):
            return None

        def passing(self, passage):
            seen.append(passage.value.shape)

        def passed(self, passage, released):
            pass

        def absent(self, n):
            return None

    hasher = SampledPHashing(
        LSH(12, random_state=0), n_sampled=3, epsilon=6.0, learned_from="public"
    ).fit(X)
    with listening(Listener()):
        hasher.transform(X)
    assert seen == [(len(X), 3)]
