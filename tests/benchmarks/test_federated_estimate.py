"""The estimate of the pad's strength reproduces what others published, and no size offered falls
below its mark.
"""

from __future__ import annotations

import pytest

from benchmarks.federated import estimate


@pytest.mark.parametrize("name", estimate.PUBLISHED)
def test_published_values_come_out(name: str) -> None:
    n, bits, sigma, samples, (gates, beta, dimension) = estimate.PUBLISHED[name]
    found = estimate.usvp(n, bits, sigma, samples=samples)
    assert found.gates == pytest.approx(gates, abs=0.3)  # one step of the block size
    assert abs(found.beta - beta) <= 1
    assert abs(found.dimension - dimension) <= 40  # the optimum is flat


def test_every_size_offered_costs_at_least_134_bits_of_gates_and_103_of_core_svp() -> None:
    for users, weights, bits, broken in estimate.offered():
        assert broken.gates >= 134, (users, weights, bits)
        assert broken.core >= 103, (users, weights, bits)
