from __future__ import annotations

import pytest

from benchmarks.sketching.curve import above_the_curve

PAPER = (
    [10.0, 7.0, 15.0],
    [94.0, 80.0, 90.0],
)  # leak and accuracy; 15 dB would be worse than 10 dB


def test_margins_are_taken_at_the_same_leak():
    assert above_the_curve([8.5, 10.0], [88.0, 93.0], *PAPER) == pytest.approx([1.0, -1.0])


def test_the_papers_curve_never_falls_with_more_leak():
    assert above_the_curve([12.5, 15.0, 60.0], [94.0, 94.5, 93.0], *PAPER) == pytest.approx(
        [0.0, 0.5, -1.0]
    )


def test_a_point_that_leaks_less_than_any_of_the_papers_is_held_against_its_least():
    assert above_the_curve([6.0, 6.0], [81.0, 79.0], *PAPER) == pytest.approx([1.0, -1.0])
