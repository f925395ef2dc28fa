from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight import data
from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.sketching.bits import to_bits
from blindsight.sketching.flips import FlipParameters, law_from_dict
from blindsight.sketching.local import CodebookClassifier, CodebookSketcher, FlippedBits

IMAGES = np.random.default_rng(0).integers(0, 256, size=(40, 9, 9)).astype(np.uint8)


@given(st.floats(0.01, 200), st.integers(1, 16))
def test_the_allocation_never_spends_more_than_the_budget(epsilon, depth):
    parameters = FlipParameters.proven(epsilon, depth=depth)
    assert parameters.epsilon_pixel <= epsilon
    assert parameters.epsilon_pixel >= 0.99 * epsilon
    assert all(a <= b + 1e-12 for a, b in zip(parameters.beta, parameters.beta[1:], strict=False))


def test_the_allocation_has_less_error_than_equal_shares():
    def error(beta):
        return sum(4.0 ** (8 - j) * b * (1 - b) for j, b in enumerate(beta, 1))

    for epsilon in (2.0, 8.0, 24.0):
        equal = 1 / (1 + math.exp(epsilon / 8))
        assert error(FlipParameters.proven(epsilon).beta) < error((equal,) * 8)


def test_bits_flip_as_often_as_promised():
    flipper = FlippedBits(12.0, random_state=0).fit(IMAGES)
    counts = flipper.transform(np.repeat(IMAGES, 20, axis=0))[:, 0]
    assert (counts.sum(axis=2) == 1).all()
    bits = to_bits(np.repeat(IMAGES, 20, axis=0), 8).transpose(0, 3, 1, 2)
    flipped = (counts[:, :, 1] != bits).mean(axis=(0, 2, 3))
    # 64,800 bits a plane: 5 standard errors are below 0.01
    assert flipped == pytest.approx(flipper.parameters_.beta, abs=0.01)


def test_neighbouring_pixels_differ_by_at_most_epsilon():
    parameters = FlipParameters.proven(3.0, depth=4)
    beta = np.asarray(parameters.beta)

    def log_prob(released, x):
        changed = to_bits(np.array(released), 4) != to_bits(np.array(x), 4)
        return np.where(changed, np.log(beta), np.log1p(-beta)).sum()

    worst = max(log_prob(o, a) - log_prob(o, b) for o in range(16) for a in range(16) for b in range(16))
    assert worst <= 3.0 + 1e-9
    assert worst == pytest.approx(parameters.epsilon_pixel)


def test_the_guarantee_speaks_of_pixels_and_of_images():
    guarantee = FlippedBits(2.0).fit(IMAGES).guarantee_
    assert guarantee.unit == "pixel" and guarantee.epsilon == pytest.approx(2.0)
    assert guarantee.also[0].unit == "record" and guarantee.also[0].epsilon == pytest.approx(2.0 * 81)


def test_flipped_bits_train_through_the_same_code():
    from blindsight.sketching import NegDL, SketchSet

    sketches = FlippedBits(10.0, random_state=0).fit(IMAGES).sketch(IMAGES, np.arange(40) % 2)
    assert SketchSet.from_bytes(sketches.to_bytes()).parameters == sketches.parameters
    assert NegDL(epochs=1, random_state=0).fit(sketches).predict(sketches).shape == (40,)


def test_a_refused_charge_releases_nothing(tmp_path):
    ledger = Ledger(tmp_path / "l.db", dataset="x")
    ledger.grant(Cost(epsilon=1.0, unit="pixel"))
    with pytest.raises(BudgetExceeded):
        FlippedBits(2.0).fit(IMAGES).transform(IMAGES, ledger=ledger)


@pytest.mark.parametrize("beta", [(), (0.0,), (0.6,), (0.1,) * 17, 0.1])
def test_wrong_flip_probabilities_are_refused(beta):
    with pytest.raises(InvalidParameter):
        FlipParameters(beta=beta)


def test_laws_are_told_apart():
    flips = FlipParameters.proven(4.0)
    assert law_from_dict(flips.to_dict()) == flips
    with pytest.raises(InvalidData):
        law_from_dict({"beta": [0.1], "q": [1.0]})


def test_a_codebook_classifies_private_digits():
    images = data.load("mnist5k")
    x, y = images.array(), images.labels
    order = np.random.default_rng(0).permutation(len(x))
    public, private, test = order[:1500], order[1500:4000], order[4000:]
    sketcher = CodebookSketcher(8.0, random_state=0).fit(x[public])
    model = CodebookClassifier().fit(sketcher.transform(x[private]), y[private])
    accuracy = (model.predict(sketcher.transform(x[test])) == y[test]).mean()
    assert accuracy > 0.68  # chance is 0.1
    assert sketcher.guarantee_.unit == "record" and sketcher.guarantee_.epsilon == 8.0
    assert sketcher.pictures([0, 1]).shape == (2, 28, 28)


def test_a_codebook_larger_than_its_public_images_is_refused():
    with pytest.raises(InvalidData, match="public images"):
        CodebookSketcher(8.0, k=41).fit(IMAGES)


def test_numbers_never_seen_get_the_commonest_class():
    model = CodebookClassifier().fit(np.array([0, 0, 2]), np.array([7, 7, 9]))
    assert model.predict(np.array([0, 1, 2, 50])).tolist() == [7, 7, 9, 7]
