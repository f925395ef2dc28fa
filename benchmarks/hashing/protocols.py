"""Retrieval protocols by name, pinned: which images ask, which are searched, how often it is
repeated.

A protocol knows its sets only by their sizes and the fingerprint of their labels, so that a figure
can say exactly what it was measured on, whoever loaded the images.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core.errors import InvalidData

__all__ = ["PROTOCOLS", "Repeated", "RetrievalProtocol", "fingerprint", "repeat"]


def fingerprint(labels: ArrayLike) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of labels in their order, as 64-bit
    numbers.
    """
    array = np.ascontiguousarray(np.asarray(labels), dtype="<i8")
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class RetrievalProtocol:
    """Which images ask (`queries`), which are searched (`database`), code lengths and seeds.

    Two images are similar if they share at least one label. mAP is over the whole ranking, exact
    over ties.
    """

    name: str
    data: str
    n_queries: int
    n_database: int
    query_labels: str
    database_labels: str
    n_bits: tuple[int, ...] = (12, 24, 32, 48)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def check(self, query_labels: ArrayLike, database_labels: ArrayLike) -> None:
        """Refuse labels that are not this protocol's, in this order."""
        for role, labels, count, pinned in (
            ("query", query_labels, self.n_queries, self.query_labels),
            ("database", database_labels, self.n_database, self.database_labels),
        ):
            if len(np.asarray(labels)) != count:
                raise InvalidData(
                    f"{self.name} has {count} {role} images, got {len(np.asarray(labels))}."
                )
            if fingerprint(labels) != pinned:
                raise InvalidData(
                    f"the {role} labels are not those of {self.name}: other images, or another "
                    "order."
                )


@dataclass(frozen=True)
class Repeated:
    """A figure measured with several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """Their standard deviation (n - 1), 0 for a single one."""
        if len(self.values) < 2:
            return 0.0
        return math.sqrt(
            math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1)
        )

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.deviation:.4f} ({len(self.values)} seeds)"


def repeat(measure: Callable[[int], float], seeds: Iterable[int]) -> Repeated:
    """The figure for each seed."""
    return Repeated(tuple(float(measure(seed)) for seed in seeds))


# : CIFAR-10 as in the paper: 10,000 test images ask, 50,000 training images are searched. The
# others alike.
PROTOCOLS: dict[str, RetrievalProtocol] = {
    protocol.name: protocol
    for protocol in (
        RetrievalProtocol(
            name="cifar10",
            data="cifar10",
            n_queries=10_000,
            n_database=50_000,
            query_labels="a0468bbd57dd41b3",
            database_labels="9c53dc2c001574ab",
        ),
        RetrievalProtocol(
            name="fashion-mnist",
            data="fashion-mnist",
            n_queries=10_000,
            n_database=60_000,
            query_labels="84d1f35a9d4cce51",
            database_labels="2899d3a40d32941c",
        ),
        RetrievalProtocol(
            name="coco-subset",
            data="coco-subset",
            n_queries=1_500,
            n_database=3_000,
            query_labels="39fb88ce96d652f9",
            database_labels="14710ecabc1d67b3",
        ),
        RetrievalProtocol(
            name="voc2012-subset",
            data="voc2012-subset",
            n_queries=1_500,
            n_database=3_000,
            query_labels="a9c2d99a9575788b",
            database_labels="65b8d8cfefedc1fa",
        ),
    )
}
