from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData
from blindsight.sketching import leak
from blindsight.sketching.parameters import PAPER_Q, QKParameters
from blindsight.sketching.sampler import Dice, draw_sketches


def _pixel_mean_by_enumeration(of_one):
    """Equations 6 and 7 as printed, for one pixel: the sum over all 2^L values d of d Pr(x = d)."""
    bits = np.asarray(of_one, np.float64)
    total = 0.0
    for d in range(2**bits.size):
        binary = [(d >> (bits.size - 1 - j)) & 1 for j in range(bits.size)]
        total += d * float(np.prod([p if b else 1 - p for b, p in zip(binary, bits, strict=True)]))
    return total


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.01, 0.99))
def test_posterior_is_equation_5_as_printed(n0, n1, p):
    zero = (1 - p) ** n0 * p**n1
    one = (1 - p) ** n1 * p**n0
    assert leak.posterior_of_one(n0, n1, p) == pytest.approx(one / (zero + one), rel=1e-9)


def test_a_bit_that_never_lies_is_known_from_one_sighting():
    assert leak.posterior_of_one([0, 1, 0], [1, 0, 0], 0.0).tolist() == [1, 0, 0.5]
    assert leak.posterior_of_one([0, 1, 0], [1, 0, 0], 1.0).tolist() == [0, 1, 0.5]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_linearity_gives_the_papers_sum_over_all_values(posteriors):
    weights = 2.0 ** np.arange(len(posteriors) - 1, -1, -1)
    assert _pixel_mean_by_enumeration(posteriors) == pytest.approx(weights @ posteriors, abs=1e-9)


@pytest.mark.parametrize("name", PAPER_Q)
def test_means_from_tables_equal_the_papers_formulas(name):
    parameters = QKParameters.paper(name)
    pixels = np.random.default_rng(0).integers(0, 256, size=(3, 49)).astype(np.uint8)
    counts = draw_sketches(pixels, parameters, dice=Dice.throw(0))
    means, bits = (
        leak.pixel_means(counts, parameters),
        leak.bit_posteriors(counts, parameters),
    )
    for k, a in [(0, 0), (1, 17), (2, 48)]:
        printed = [
            float(
                leak.posterior_of_one(counts[k, j, 0, a], counts[k, j, 1, a], parameters.p_diff[j])
            )
            for j in range(8)
        ]
        assert bits[k, :, a] == pytest.approx(printed, abs=1e-6)
        assert means[k, a] == pytest.approx(_pixel_mean_by_enumeration(printed), abs=1e-3)


def test_shapes_follow_the_images():
    counts = np.zeros((2, 3, 8, 2, 5, 7), np.uint8)
    parameters = QKParameters.paper("Q6")
    assert leak.pixel_means(counts, parameters).shape == (2, 3, 5, 7)
    assert leak.bit_posteriors(counts, parameters).shape == (2, 3, 8, 5, 7)
    assert leak.pixel_means(counts, parameters) == pytest.approx(127.5)


def test_sixteen_bit_counts_are_read():
    parameters = QKParameters.paper("Q8", r=60)
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 49)).astype(np.uint8)
    counts = draw_sketches(pixels, parameters, dice=Dice.throw(0))
    assert counts.dtype == np.uint16
    assert (np.rint(leak.pixel_means(counts, parameters)) == pixels).mean() > 0.9


@pytest.mark.parametrize(
    "counts",
    [np.zeros((2, 8, 3, 9), np.uint8), np.zeros((2, 4, 2, 9), np.uint8), np.zeros((2, 8, 2, 9))],
)
def test_what_is_not_a_sketch_is_refused(counts):
    with pytest.raises(InvalidData):
        leak.pixel_means(counts, QKParameters.paper("Q6"))
