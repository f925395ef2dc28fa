"""At the door: what one unit can do there is what was stated, and everything after it is a function
of what left.

Holes that were: `fit` refused contradictory or all-similar pairs (an oracle), took equal rows for
one record (so a feature moved the price in the file), and kept a margin with all its float digits.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.metric import DPPMetric
from blindsight.privacy.door import listening

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4))
PAIRS = np.array([[0, i] for i in range(1, 6)] + [[i, i + 1] for i in range(6, 22)])
SIMILAR = RNG.random(len(PAIRS)) < 0.5
CASES = {
    "contrastive": {"loss": "contrastive"},
    "moments": {"loss": "moments"},
    "private scale": {"loss": "moments", "scale": "private"},
    "record": {"loss": "contrastive", "unit": "record", "scale": "private"},
    "kappa": {"loss": "moments", "unit": "kappa pairs", "kappa": 3, "select": 3},
    "plain": {"loss": "plain"},
    "pair": {"loss": "moments", "unit": "pair"},
}


class Listener:
    """Remembers what came to the door; hands out what `given` holds instead of drawing."""

    def __init__(self, given=None, absent=None):
        self.given, self.gone = given, absent
        self.seen, self.left = [], []

    def opened(self, door):
        return None

    def passing(self, passage):
        self.seen.append(passage)
        return None if self.given is None else self.given[len(self.seen) - 1]

    def passed(self, passage, released):
        self.left.append(released)

    def absent(self, n):
        return self.gone


def run(tmp_path, records, similar, listener, **parameters):
    path = tmp_path / "metric.safetensors"
    with listening(listener):
        metric = DPPMetric(preprocessor=records, random_state=0, **parameters).fit(PAIRS, similar)
    metric.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)
def test_replayed_on_other_data_the_file_is_the_same_to_the_byte(tmp_path, parameters):
    first = Listener()
    file = run(tmp_path, X, SIMILAR, first, **parameters)
    strangers = [
        (1e3 * np.random.default_rng(1).normal(size=X.shape), ~SIMILAR),
        (np.zeros_like(X), np.ones(len(PAIRS), dtype=bool)),  # all similar, all records equal
        (X, np.zeros(len(PAIRS), dtype=bool)),
        (X * 1e-12, np.arange(len(PAIRS)) % 2 == 0),
    ]
    for records, similar in strangers:
        assert run(tmp_path, records, similar, Listener(first.left), **parameters) == file


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)
def test_taking_a_unit_away_moves_every_release_by_at_most_its_sensitivity(tmp_path, parameters):
    """With equal releases handed out, what arrives differs by no more than the mechanism was
    calibrated for.
    """
    first = Listener()
    run(tmp_path, X, SIMILAR, first, **parameters)
    fitted = DPPMetric(preprocessor=X, random_state=0, **parameters).fit(PAIRS, SIMILAR)
    for unit_pairs in _units(parameters, fitted):
        second = Listener(first.left, absent=np.isin(np.arange(fitted.n_pairs_), unit_pairs))
        run(tmp_path, X, SIMILAR, second, **parameters)
        for here, there in zip(first.seen, second.seen, strict=True):
            reach = here.planned.mechanism.domain.reach
            assert here.planned.mechanism.domain.distance(here.value, there.value) <= reach * (
                1 + 1e-9
            )


def _units(parameters, fitted):
    if parameters.get("unit") == "record":
        return [np.flatnonzero((record == PAIRS).any(axis=1)) for record in (0, 7, 23)]
    size = fitted.public_["groups"][parameters.get("unit", "label")]
    return [np.arange(first, first + size) for first in (0, 5, fitted.n_pairs_ - size)]


@pytest.mark.parametrize("scale", [None, "private"])
@pytest.mark.parametrize("loss", ["plain", "moments", "contrastive"])
def test_a_replaced_label_moves_every_release_by_at_most_its_sensitivity(tmp_path, loss, scale):
    """Some release reaches it exactly: the label unit wastes nothing and hides nothing."""
    first = Listener()
    run(tmp_path, X, SIMILAR, first, loss=loss, scale=scale)
    reached = []
    for pair in range(len(PAIRS)):
        labels = SIMILAR.copy()
        labels[pair] = ~labels[pair]
        second = Listener(first.left)
        run(tmp_path, X, labels, second, loss=loss, scale=scale)
        for here, there in zip(first.seen, second.seen, strict=True):
            domain = here.planned.mechanism.domain
            assert here.planned.mechanism.neighbours == "replace one"
            reached.append(domain.distance(here.value, there.value) / domain.reach)
    assert max(reached) <= 1 + 1e-9 and max(reached) > 0.99


def test_triplets_with_the_answer_turned_round_stay_within_the_sensitivity():
    triplets = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 9, 10]])
    for loss in ("plain", "triplet"):
        first = Listener()
        with listening(first):
            DPPMetric(preprocessor=X, random_state=0, loss=loss).fit(triplets)
        for place in range(len(triplets)):
            turned = triplets.copy()
            turned[place, 1:] = turned[place, :0:-1]
            second = Listener(first.left)
            with listening(second):
                DPPMetric(preprocessor=X, random_state=0, loss=loss).fit(turned)
            for here, there in zip(first.seen, second.seen, strict=True):
                domain = here.planned.mechanism.domain
                assert domain.distance(here.value, there.value) <= domain.reach * (1 + 1e-9)


def test_everything_that_touches_a_person_moves_by_at_most_the_sensitivity():
    """A person whose records are in several pairs, two of them in one pair."""
    people = np.arange(len(X)) // 2
    for select in ("all", 2):
        settings = {"loss": "moments", "unit": "person", "select": select}
        first = Listener()
        with listening(first):
            fitted = DPPMetric(preprocessor=X, random_state=0, **settings).fit(
                PAIRS, SIMILAR, people=people
            )
        used = fitted._read(PAIRS, SIMILAR, people)[0].numbers
        for person in np.unique(people):
            touched = (people[used] == person).any(axis=1)
            second = Listener(first.left, absent=touched)
            with listening(second):
                DPPMetric(preprocessor=X, random_state=0, **settings).fit(
                    PAIRS, SIMILAR, people=people
                )
            for here, there in zip(first.seen, second.seen, strict=True):
                domain = here.planned.mechanism.domain
                assert domain.distance(here.value, there.value) <= domain.reach * (1 + 1e-9)


def test_the_hub_reaches_what_the_record_was_promised(tmp_path):
    """All five pairs of the hub in one direction: the gradient's sum moves by the whole
    sensitivity.
    """
    records = np.vstack([np.eye(1, 4), np.tile(-np.eye(1, 4), (23, 1))])
    first = Listener()
    alike = np.ones(len(PAIRS), dtype=bool)
    run(tmp_path, records, alike, first, loss="moments", unit="record")
    second = Listener(first.left, absent=np.arange(len(PAIRS)) < 5)
    run(tmp_path, records, alike, second, loss="moments", unit="record")
    moved = {
        one.planned.what: one.planned.mechanism.domain.distance(one.value, other.value)
        / one.planned.mechanism.domain.reach
        for one, other in zip(first.seen, second.seen, strict=True)
    }
    assert moved["second moments"] == pytest.approx(1.0, rel=2**-14) and moved[
        "distances"
    ] == pytest.approx(1.0, rel=2**-14)


@pytest.mark.parametrize("loss", ["moments", "contrastive"])
@pytest.mark.parametrize("scale", [None, "private", (np.full(4, -1e-3), np.full(4, 1e-3))])
@pytest.mark.parametrize("far", [1e308, -1e308, 1e-308])
def test_a_record_at_the_end_of_all_numbers_does_no_more_than_its_share(tmp_path, loss, scale, far):
    records = X.copy()
    records[0] = far
    records[1] = -far
    parameters = {"loss": loss, "scale": scale, "unit": "record"}
    first = Listener()
    run(tmp_path, records, SIMILAR, first, **parameters)
    second = Listener(first.left, absent=(PAIRS == 0).any(axis=1))
    run(tmp_path, records, SIMILAR, second, **parameters)
    for here, there in zip(first.seen, second.seen, strict=True):
        domain = here.planned.mechanism.domain
        assert np.isfinite(here.value).all()
        assert domain.distance(here.value, there.value) <= domain.reach * (1 + 1e-9)


@pytest.mark.parametrize(
    "similar",
    [
        np.ones(3, dtype=bool),
        np.zeros(3, dtype=bool),
        np.array([True, True, False]),  # contradicts itself along a chain
    ],
)
@pytest.mark.parametrize("loss", ["moments", "contrastive"])
def test_no_label_is_refused(similar, loss):
    triangle = np.array([[0, 1], [1, 2], [2, 0]])
    metric = DPPMetric(loss=loss, preprocessor=X, random_state=0).fit(triangle, similar)
    assert np.isfinite(metric.components_).all() and metric.n_pairs_ == 3


def test_a_pair_labelled_both_ways_counts_once_without_a_word():
    both = np.array([[0, 1], [1, 0], [2, 3]])
    for labels in ([1, 0, 0], [1, 1, 0]):
        assert DPPMetric(preprocessor=X, random_state=0).fit(both, labels).n_pairs_ == 2


def test_one_private_row_does_not_move_the_price_in_the_file():
    rows = X[PAIRS]
    other = rows.copy()
    other[3, 0] = other[9, 1]
    one, two = (
        DPPMetric(unit="pair", random_state=0).fit(given, SIMILAR).guarantee_
        for given in (rows, other)
    )
    assert one == two


def test_every_learned_number_stems_from_values_on_the_noises_grid():
    listener = Listener()
    with listening(listener):
        DPPMetric(preprocessor=X, random_state=0, loss="contrastive").fit(PAIRS, SIMILAR)
    for passage, left in zip(listener.seen, listener.left, strict=True):
        mechanism = passage.planned.mechanism
        assert mechanism.sampler == "exact"
        steps = left / mechanism.grid
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
