from __future__ import annotations

import numpy as np
import pytest

from blindsight import data
from blindsight.audit.sketches import (
    LearnedPrior,
    attack_card,
    measure,
    posterior_mean,
    propagate_beliefs,
    reverse,
)
from blindsight.core.errors import InvalidData
from blindsight.sketching import NegativeDatabase, NegativeSketcher, QKParameters
from blindsight.sketching.bits import to_bits
from blindsight.sketching.local import FlippedBits
from blindsight.sketching.qk_hidden import hide_image


@pytest.fixture(scope="module")
def digits():
    images = data.load("mnist5k").array()[:, 4:24, 4:24]
    return images[::25], images[1::5]  # private, public


@pytest.mark.parametrize(("name", "r", "least"), [("Q3", 6.5, 0.995), ("Q6", 6.5, 0.995), ("Q3", 3.0, 0.95)])
def test_records_are_reversed_by_belief_propagation(digits, name, r, least):
    parameters = QKParameters.paper(name, r=r)
    image = digits[0][3]
    database = hide_image(image, parameters, random_state=0)
    bits = to_bits(image.ravel(), 8).ravel()
    assert ((propagate_beliefs(database, parameters) > 0) == bits).mean() > least


def test_records_tell_more_than_their_sketch(digits):
    parameters = QKParameters.paper("Q3")
    image = digits[0][5]
    database = hide_image(image, parameters, random_state=1)
    exact = (reverse(database, parameters) == image.ravel()).mean()
    sketch = np.asarray(database.sketch(8), np.uint8)
    likelier = (sketch[:, 1] > sketch[:, 0]) == (parameters.p_diff[0] < 0.5)
    from_sketch = (to_bits(image.ravel(), 8) == likelier.T).all(axis=1).mean()
    assert exact > 0.95 and from_sketch < 0.2


def test_belief_propagation_wants_records_of_k_bits():
    with pytest.raises(InvalidData, match="3 specified bits"):
        propagate_beliefs(NegativeDatabase.complement(["00000000"]), QKParameters.paper("Q3"))


def test_a_learned_prior_beats_the_posterior_mean(digits):
    private, public = digits
    sketcher = NegativeSketcher("Q3", random_state=0).fit(private)
    sketches = sketcher.sketch(private)
    weak = measure("mean", private, posterior_mean(sketches))
    attacker = LearnedPrior(epochs=2, width=12).fit(public, NegativeSketcher("Q3").fit(public).sketch)
    strong = measure("prior", private, attacker.recover(sketches))
    assert strong.psnr > weak.psnr + 5  # 7.5 to 15 and more in trials
    assert strong.ssim > weak.ssim + 0.2


def test_a_learned_prior_attacks_flipped_bits_too(digits):
    private, public = digits[0][:20], digits[1][:200]
    flipper = FlippedBits(8.0, random_state=0).fit(private)
    attacker = LearnedPrior(epochs=1, width=8).fit(public, flipper.sketch)
    assert attacker.recover(flipper.sketch(private)).shape == private.shape


def test_the_card_shows_what_attacks_recovered(digits):
    private, public = digits[0][:8], digits[1][:64]
    card = attack_card(NegativeSketcher("Q6", random_state=0), private, public=public, epochs=1)
    text = card.card()
    for words in ("posterior mean: PSNR", "prior learned from public images", "belief propagation", "Equation 11"):
        assert words in text
    assert "handed over" in card.verdict


def test_small_images_are_measured_without_ssim():
    images = np.zeros((2, 4, 4), np.uint8)
    assert measure("none", images, images).ssim is None
