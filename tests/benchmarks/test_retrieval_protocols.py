"""Protocols are pinned to their images and repeated."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hashing.protocols import (
    PROTOCOLS,
    Repeated,
    RetrievalProtocol,
    fingerprint,
    repeat,
)
from blindsight.core.errors import InvalidData


def test_the_papers_cifar_protocol_is_ten_thousand_queries_and_fifty_thousand_images():
    protocol = PROTOCOLS["cifar10"]
    assert (protocol.n_queries, protocol.n_database) == (10_000, 50_000)
    assert protocol.n_bits == (12, 24, 32, 48)
    assert len(protocol.seeds) == 5


def test_other_labels_or_another_order_are_refused():
    query, database = np.array([0, 1, 2]), np.array([2, 1, 0, 0])
    protocol = RetrievalProtocol(
        name="small",
        data="small",
        n_queries=3,
        n_database=4,
        query_labels=fingerprint(query),
        database_labels=fingerprint(database),
    )
    protocol.check(query.astype(np.uint8), database)
    with pytest.raises(InvalidData, match="3 query"):
        protocol.check(query[:2], database)
    with pytest.raises(InvalidData, match="database labels"):
        protocol.check(query, database[::-1])


def test_mean_and_deviation_are_those_of_numpy():
    values = repeat(lambda seed: seed**1.5, range(5))
    assert values.mean == pytest.approx(np.mean(values.values))
    assert values.deviation == pytest.approx(np.std(values.values, ddof=1))
    assert Repeated((0.5,)).deviation == 0
    assert "5 seeds" in str(values)
