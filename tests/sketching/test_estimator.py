from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight import data
from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.mechanisms import from_fields, to_fields
from blindsight.sketching.estimator import CodebookClassifier, CodebookSketcher, FlippedBits
from blindsight.sketching.guarantee import PixelFlip
from blindsight.sketching.parameters import FlipParameters, from_bits, parameters_from_dict, to_bits

MANY = np.random.default_rng(1).integers(0, 256, size=(120, 9, 9)).astype(np.uint8)
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

    worst = max(
        log_prob(o, a) - log_prob(o, b) for o in range(16) for a in range(16) for b in range(16)
    )
    assert worst <= 3.0 + 1e-9
    assert worst == pytest.approx(parameters.epsilon_pixel)


def test_the_guarantee_speaks_of_pixels_and_of_images():
    guarantee = FlippedBits(2.0).fit(IMAGES).guarantee_
    assert guarantee.unit == "pixel" and guarantee.epsilon == pytest.approx(2.0)
    assert guarantee.also[0].unit == "record" and guarantee.also[0].epsilon == pytest.approx(
        2.0 * 81
    )


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
    assert parameters_from_dict(flips.to_dict()) == flips
    with pytest.raises(InvalidData):
        parameters_from_dict({"beta": [0.1], "q": [1.0]})


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


def test_public_labels_make_classes_of_the_cells_and_tell_more_at_small_budgets():
    images = data.load("mnist5k")
    x, y = images.array(), images.labels
    order = np.random.default_rng(0).permutation(len(x))
    public, private = order[:1000], order[1000:3000]
    scores = []
    for labels in (None, y[public]):
        book = CodebookSketcher(4.0, random_state=0).fit(x[public], labels)
        released = book.transform(x[private])
        model = CodebookClassifier().fit(released[:1500], y[private[:1500]])
        scores.append((model.predict(released[1500:]) == y[private[1500:]]).mean())
    assert book.mechanism_.k == 10 and scores[1] > scores[0] + 0.05
    with pytest.raises(InvalidParameter, match="k must be None"):
        CodebookSketcher(4.0, k=7).fit(x[public], y[public])


@pytest.mark.parametrize("make", [lambda: FlippedBits(2.0), lambda: CodebookSketcher(3.0, k=5)])
def test_the_card_says_that_labels_go_in_clear(make):
    guarantee = make().fit(MANY).guarantee_
    assert guarantee.assumes("labels in clear")
    assert "labels" in guarantee.card() and "covers the image, not its label" in guarantee.card()


def test_every_budget_hears_of_flipped_bits(tmp_path):
    ledger = Ledger(tmp_path / "l.db", dataset="x")
    ledger.grant(Cost(epsilon=5.0, unit="pixel"))
    ledger.grant(Cost(epsilon=5.0 * 81, unit="record"))
    FlippedBits(2.0).fit(IMAGES).transform(IMAGES, ledger=ledger)
    assert float(ledger.balance("pixel").remaining.epsilon) == pytest.approx(3.0)
    assert float(ledger.balance("record").remaining.epsilon) == pytest.approx(3.0 * 81)


def test_no_private_value_is_refused():
    flipper = FlippedBits(2.0).fit(IMAGES)
    wild = IMAGES[:2].astype(float)
    wild[0, 0, :5] = [np.nan, np.inf, -np.inf, 1e9, 0.5]
    assert flipper.transform(wild).shape == flipper.transform(IMAGES[:2]).shape
    book = CodebookSketcher(3.0, k=5).fit(MANY)
    assert book.transform(wild).shape == (2,)


@pytest.mark.parametrize("make", [lambda: FlippedBits(2.0), lambda: CodebookSketcher(3.0, k=5)])
def test_a_file_holds_nothing_of_private_images(make, tmp_path):
    """Both are made of public facts alone: what is released later does not touch them."""
    fitted = make().fit(MANY)
    fitted.save(tmp_path / "a")
    fitted.transform(IMAGES)
    fitted.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert fitted.released_ == {}


def test_what_arrives_at_the_door_is_what_leaves_before_noise():
    from blindsight.privacy.door import listening

    class Ear:
        def __init__(self):
            self.seen = []

        def opened(self, door):
            return None

        def passing(self, passage):
            self.seen.append(passage)
            return passage.value

        def passed(self, passage, released):
            pass

        def absent(self, n):
            return None

    with listening(Ear()) as ear:
        counts = FlippedBits(2.0).fit(IMAGES).transform(IMAGES)
    assert (from_bits(np.moveaxis(counts[:, 0, :, 1], 1, -1)) == IMAGES).all()
    assert [passage.planned.mechanism.unit for passage in ear.seen] == ["pixel"]


@given(st.lists(st.floats(0.01, 0.5), min_size=1, max_size=5))
def test_a_pixels_flips_cost_what_its_worst_pair_shows(beta):
    mechanism = PixelFlip(beta=beta)
    outputs = np.arange(2 ** len(beta))
    a, b = mechanism.worst_pair()
    loss = mechanism.log_prob(outputs, np.broadcast_to(a, outputs.shape)) - mechanism.log_prob(
        outputs, np.broadcast_to(b, outputs.shape)
    )
    assert np.abs(loss).max() == pytest.approx(mechanism.cost.epsilon, rel=1e-9)
    assert np.exp(mechanism.log_prob(outputs, np.zeros_like(outputs))).sum() == pytest.approx(1)
    assert from_fields(json.loads(json.dumps(to_fields(mechanism)))) == mechanism


def test_a_codebook_larger_than_its_public_images_is_refused():
    with pytest.raises(InvalidData, match="public images"):
        CodebookSketcher(8.0, k=41).fit(IMAGES)
    assert CodebookSketcher(8.0).fit(IMAGES).mechanism_.k == 40 // 6


def test_numbers_never_seen_get_the_commonest_class():
    model = CodebookClassifier().fit(np.array([0, 0, 2]), np.array([7, 7, 9]))
    assert model.predict(np.array([0, 1, 2, 50])).tolist() == [7, 7, 9, 7]
