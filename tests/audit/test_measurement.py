"""One measurement: what photos show by each source, the best of several attackers, pictures found
again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blindsight.app.defaults import code_recipe
from blindsight.audit.release.album import Kinds, kinds_of
from blindsight.audit.release.attacks import view_of
from blindsight.audit.release.measurement import found_again, measure_view, release_draws
from blindsight.encoders import Classes, feature_recipe
from blindsight.index.encoder import make_encoder

KINDS = ("beach", "cat", "harbour", "mountain")
LAYOUTS = {
    "year and kind": lambda kind, number: f"{2019 + number % 5}/{kind}/{number}.jpg",
    "trip and kind": lambda kind, number: f"trip {number % 3}/day {number % 2}/{kind}/{number}.jpg",
    "kind only": lambda kind, number: f"{kind}/{number}.jpg",
    "flat": lambda kind, number: f"{kind[0]}{number}.jpg",
}


class Classifier:
    """An encoder whose public classes see the kinds, but for every fifth photo."""

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._weights = weights

    def classes(self) -> Classes:
        return Classes(KINDS, self._weights)


@pytest.fixture(scope="module")
def photos() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(5)
    shows = np.arange(120) % len(KINDS)
    grounds = np.array([[200, 90, 60], [60, 150, 50], [15, 20, 60], [220, 190, 130]])
    images = grounds[shows][:, None, None, :] + rng.normal(0, 40, (120, 32, 32, 3))
    recipe = feature_recipe("pixels")
    prepared = [recipe.prepare(np.clip(image, 0, 255).astype(np.uint8)) for image in images]
    return recipe.rows(np.stack(prepared)).astype(np.float32), shows


def _names(layout: str, shows: NDArray[np.int64]) -> list[str]:
    return [LAYOUTS[layout](KINDS[kind], number) for number, kind in enumerate(shows)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_photos_show_is_their_last_folder_and_the_networks_class(
    photos: tuple[NDArray[np.float32], NDArray[np.int64]], layout: str
) -> None:
    rows, shows = photos
    weights = np.stack([rows[shows == kind].mean(axis=0) for kind in range(4)])
    encoder: Any = Classifier(weights - weights.mean(axis=0))
    kinds = kinds_of(_names(layout, shows), rows, encoder)
    sources = [each.source for each in kinds]
    assert sources[-1] == "the 4 public classes of the network"
    if layout == "flat":
        assert len(kinds) == 1
    else:
        assert sources[0] == "the folders they lie in"
        assert kinds[0].names == KINDS, "years and trips say nothing of what a photo shows"
    people = kinds_of(_names(layout, shows), rows, encoder, folders=False)
    assert [each.source for each in people] == sources[-1:]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_no_figure_is_below_what_a_simple_attacker_gets(
    photos: tuple[NDArray[np.float32], NDArray[np.int64]], layout: str, epsilon: float
) -> None:
    rows, shows = photos
    weights = np.stack([rows[shows == kind].mean(axis=0) for kind in range(4)])
    classifier: Any = Classifier(weights - weights.mean(axis=0))
    kinds = kinds_of(_names(layout, shows), rows, classifier)
    encoder = make_encoder(code_recipe(epsilon=epsilon, features="pixels"))
    view = view_of(encoder)
    released = view.drawn(rows, np.random.default_rng(1))
    measured = measure_view(view, rows, released, kinds, np.random.default_rng(0))
    assert measured.guessed is not None
    for each in kinds:
        for attacker in (_by_most_frequent, _by_group, _by_nearest):
            simple = attacker(encoder, rows, released, each.shows)
            assert measured.guessed.share >= simple - 1e-9, (each.source, attacker.__name__)
    plain = np.asarray(view.plain(rows))
    copies = np.mean(
        [
            (released[row] == cell) / max(1, int((released == cell).sum()))
            for row, cell in enumerate(plain)
        ]
    )
    assert measured.linked.top1 >= copies - 1e-9
    figures = measured.figures()
    assert figures["groups_used"] == len(np.unique(plain)) <= figures["groups"]
    assert figures["kinds"] in {each.source for each in kinds}
    assert figures["hits_source"] == kinds[0].source
    assert figures["plain_guess"] >= figures["guess"] >= figures["luck"]


def test_one_release_measured_again_has_the_same_figures(
    photos: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> None:
    """Kinds that the photos do not show: only attackers who draw releases of their own differ."""
    rows, _ = photos
    shows = np.random.default_rng(11).integers(0, 3, len(rows))
    kinds = (Kinds(shows, ("a", "b", "c"), "a table"),)
    view = view_of(make_encoder(code_recipe(epsilon=2.0, features="pixels")))
    cells = view.drawn(rows, np.random.default_rng(1))
    measured = [measure_view(view, rows, cells, kinds, release_draws("5f" * 8)) for _ in range(6)]
    assert len({str(each) for each in measured}) == 1
    rebuilt = [view.drawn(rows, release_draws("5f" * 8)) for _ in range(2)]
    assert np.array_equal(*rebuilt)
    other = view.drawn(rows, release_draws("60" * 8))
    assert not np.array_equal(rebuilt[0], other), "equal for two releases with p < 1e-20"


def test_photos_that_look_alike_are_not_worth_an_index() -> None:
    rng = np.random.default_rng(2)
    rows = 1 + 1e-3 * rng.normal(size=(80, 768)).astype(np.float32)
    shows = np.arange(80) % 2
    encoder: Any = Classifier(np.zeros((4, 768), np.float32))
    names = [f"{'scan' if kind else 'x-ray'}/{number}.jpg" for number, kind in enumerate(shows)]
    view = view_of(make_encoder(code_recipe(epsilon=8.0, features="pixels")))
    rows = rows[:, : feature_recipe("pixels").dimensions]
    kinds = kinds_of(names, rows, encoder)[:1]
    measured = measure_view(view, rows, view.drawn(rows, np.random.default_rng(1)), kinds, rng)
    assert measured.groups_used < measured.groups / 2
    assert measured.at_chance
    assert not replace(measured, searched=replace(measured.searched, hits=9.0)).at_chance


def test_grey_correlation_finds_what_the_encoder_does_not() -> None:
    rng = np.random.default_rng(3)
    grey = rng.random((50, 16, 16))
    own = np.array([4, 17, 30])
    rebuilt = 0.3 * grey[own] + 0.2 * rng.random((3, 16, 16))
    lost = rng.normal(size=(3, 8))
    found = found_again(rebuilt, own, grey, vectors=lost, gallery=-lost.repeat(17, axis=0)[:50])
    assert found["grey correlation"] == [True] * 3
    assert not all(found["encoder"])


def _by_most_frequent(_e: Any, _r: Any, _c: Any, shows: NDArray[np.int64]) -> float:
    return max(Counter(shows.tolist()).values()) / len(shows)


def _by_group(encoder: Any, rows: Any, released: Any, shows: NDArray[np.int64]) -> float:
    """For each entry the kind that is most likely by what the other photos' own groups are."""
    book = encoder.codebook
    true, right = book.assign(rows), float(book.mechanism.truth_probability)
    wrong = (1 - right) / (book.k - 1)
    hits = 0
    for row, cell in enumerate(released):
        weight = np.zeros(int(shows.max()) + 1)
        for other, kind in enumerate(shows):
            if other != row:
                weight[kind] += right if true[other] == cell else wrong
        hits += int(weight.argmax() == shows[row])
    return hits / len(shows)


def _by_nearest(encoder: Any, rows: Any, released: Any, shows: NDArray[np.int64]) -> float:
    """For each entry the kind of the other photo that is nearest to the middle of its group."""
    near = np.asarray(encoder.codebook.embedding(rows) @ encoder.codebook.cells.middle(released).T)
    np.fill_diagonal(near, -np.inf)
    return float(np.mean(shows[near.argmax(axis=0)] == shows))
