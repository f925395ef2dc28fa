"""The sampler of discrete Gaussian noise draws from its law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from blindsight.privacy.entropy import aes_generator
from blindsight.privacy.mechanisms.gaussian import BASE_VARIANCE, convolved_gaussian

DRAWS = 100_000


@pytest.mark.parametrize("levels", [1, 2])
def test_sums_of_small_draws_have_the_law_of_the_discrete_gaussian(levels: int) -> None:
    # Unseeded: each of the two refuses a right sampler with probability 1e-7.
    drawn = convolved_gaussian(levels, DRAWS, rng=aes_generator())
    reach, variance = np.arange(-400, 401), BASE_VARIANCE * (9**levels - 1) // 8
    law = np.exp(-(reach.astype(float) ** 2) / (2 * variance))
    expected = DRAWS * law / law.sum()
    seen = np.bincount(np.clip(drawn, -400, 400) + 400, minlength=801)
    kept = expected > 20
    expected, seen = (
        np.append(expected[kept], expected[~kept].sum()),
        np.append(seen[kept], seen[~kept].sum()),
    )
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-7
