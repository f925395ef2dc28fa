"""Hashing and sketching of sets too large for one machine: the same work, here or on a Ray cluster.

A set is cut into shards. Whatever makes them, this process (`Here`) or many (`OnRay`), the output
is the same: a photo's noise comes from the owner's vault, or from a seed in a simulation; a block
of sketches without a seed asks the operating system. A shard that was made is on the disk, once,
before anyone hears of it (`spool`), so a worker that dies loses nothing and nothing is drawn a
second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.index.bulk.hashing import Released, Wanted, hash_to, records_of, release_named
from blindsight.index.bulk.pools import HERE, Here, OnRay, Pool, Spool, pool_at

__all__ = [
    "HERE",
    "Here",
    "OnRay",
    "Pool",
    "Released",
    "Spool",
    "Wanted",
    "hash_to",
    "pool_at",
    "records_of",
    "release_named",
    "sketch_to",
]

if TYPE_CHECKING:
    from blindsight.index.bulk.sketching import sketch_to


def __getattr__(name: str) -> Any:
    # Sketching brings seconds of imports that hashing has no use for.
    if name == "sketch_to":
        from blindsight.index.bulk.sketching import sketch_to

        return sketch_to
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
