"""Dice: where they come from, that they are fair, and that a seed is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.door import clip_norm
from blindsight.privacy.entropy import SystemEntropy, source_of, training_rng


def test_no_seed_means_the_operating_system_and_a_seed_means_simulation() -> None:
    assert isinstance(source_of(None).stream("a release", exact=True), SystemEntropy)
    assert source_of(None).name == "system"
    assert training_rng(None)[1] is False
    for seed in (3, np.random.default_rng(3), np.random.SeedSequence(3), np.random.RandomState(3)):
        assert training_rng(seed)[1] is True
        assert source_of(seed).name == "seed"
    assert training_rng(5)[0].random() == training_rng(5)[0].random()


@pytest.mark.parametrize("bad", [-1, 1.5, "seed", True], ids=str)
def test_what_is_no_seed_is_refused(bad: object) -> None:
    with pytest.raises(InvalidParameter, match="random_state"):
        training_rng(bad)


@pytest.mark.parametrize("span", [2, 3, 10, 2**32, 3 * 2**61, 2**64])
def test_system_integers_are_uniform(span: int) -> None:
    # Unseeded: rejects a fair source with probability 1e-7.
    drawn = SystemEntropy().integers(0, span, size=100_000, dtype=np.uint64)
    cells = np.floor(drawn.astype(np.float64) / span * min(span, 16)).astype(int)
    assert stats.chisquare(np.bincount(cells, minlength=min(span, 16))).pvalue > 1e-7


def test_system_dice_speak_like_numpys() -> None:
    rng = SystemEntropy()
    assert rng.random((3, 2)).shape == (3, 2)
    assert 0 <= rng.random() < 1
    assert set(np.unique(rng.integers(-2, 3, size=1000))) == {-2, -1, 0, 1, 2}
    assert 0 <= rng.integers(7) < 7
    assert rng.integers(0, 5, size=(2, 3), dtype=np.uint8).dtype == np.uint8
    with pytest.raises(InvalidParameter):
        rng.integers(3, 3)


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(0.01, 100),
)
def test_clipped_rows_stay_in_the_ball(rows: list[list[float]], bound: float) -> None:
    for order in (1, 2):
        clipped = clip_norm(rows, bound, order=order)
        assert (np.linalg.norm(clipped, ord=order, axis=1) <= bound * (1 + 1e-12)).all()
        inside = np.linalg.norm(rows, ord=order, axis=1) <= bound
        np.testing.assert_array_equal(clipped[inside], np.asarray(rows)[inside])


def test_clipping_refuses_what_has_no_size() -> None:
    with pytest.raises(InvalidData, match="finite"):
        clip_norm([[np.nan, 1.0]], 1.0)
    with pytest.raises(InvalidParameter, match="bound"):
        clip_norm([[1.0]], 0)
