"""Secrets have the law they are said to have."""

from __future__ import annotations

import mpmath
import numpy as np

from blindsight.federated.sums.pad import sampler


def test_thresholds_are_the_discrete_gaussians_to_the_last_bit() -> None:
    with mpmath.workprec(300):
        weight = [mpmath.exp(-mpmath.mpf(k * k) / (2 * mpmath.mpf("6.4") ** 2)) for k in range(64)]
        whole = weight[0] + 2 * sum(weight[1:])
        below = weight[0] / whole
        for i, threshold in enumerate(sampler.thresholds(), start=1):
            assert abs(below * 2**126 - threshold) <= 1
            below += 2 * weight[i] / whole


def test_samples_follow_their_law() -> None:
    """Bernstein's bound cell by cell: a false alarm has probability below 1e-6 over all cells."""
    n = 400_000
    drawn = sampler.secret(n)
    law = np.exp(-(np.arange(-63, 64) ** 2) / (2 * 6.4**2))
    law /= law.sum()
    counts = np.bincount(drawn.astype(int) + 63, minlength=127)
    spread = np.log(2 * 127 / 1e-6)
    allowed = np.sqrt(2 * n * law * spread) + spread
    assert (np.abs(counts - n * law) <= allowed).all()
    assert np.abs(drawn.astype(int)).max() <= sampler.LARGEST


def test_the_scan_counts_thresholds_exactly_at_their_edges() -> None:
    table = sampler._table()
    for i, threshold in enumerate(sampler.thresholds(), start=1):
        for value, size in ((threshold, i), (threshold - 1, i - 1)):
            for sign in (0, 1):
                words = np.array(
                    [(value >> 63) << 1 | sign, (value & (1 << 63) - 1) << 1], dtype=np.uint64
                )
                out = np.empty(1, dtype=np.int8)
                sampler._scan(words, table, out)
                assert out[0] == (-size if sign else size)


def test_no_two_draws_are_alike() -> None:
    assert (sampler.secret(4096) != sampler.secret(4096)).any()
