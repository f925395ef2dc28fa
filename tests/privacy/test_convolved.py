"""The fast sampler of discrete Gaussian noise and the exact one of Canonne, Kamath and Steinke have one law."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from blindsight.privacy.entropy import aes_generator
from blindsight.privacy.mechanisms.convolved import BASE_VARIANCE, convolved_gaussian
from blindsight.privacy.mechanisms.exact import discrete_gaussian

DRAWS = 100_000
SAMPLERS: dict[str, Callable[[int], np.ndarray]] = {
    "convolved": lambda levels: convolved_gaussian(levels, DRAWS, rng=aes_generator()),
    "exact": lambda levels: discrete_gaussian(Fraction(_variance(levels)), DRAWS, rng=aes_generator()),
}


def _variance(levels: int) -> int:
    return BASE_VARIANCE * (9**levels - 1) // 8


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_both_samplers_draw_the_discrete_gaussian(sampler: str, levels: int) -> None:
    # Unseeded: each of the four refuses a right sampler with probability 1e-7.
    drawn = SAMPLERS[sampler](levels)
    reach = np.arange(-400, 401)
    law = np.exp(-(reach.astype(float) ** 2) / (2 * _variance(levels)))
    expected = DRAWS * law / law.sum()
    seen = np.bincount(np.clip(drawn, -400, 400) + 400, minlength=801)
    kept = expected > 20
    expected, seen = np.append(expected[kept], expected[~kept].sum()), np.append(seen[kept], seen[~kept].sum())
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-7
