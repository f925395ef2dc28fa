"""Deterministic splits, and the division of a set among owners: iid, by class, or
Dirichlet-skewed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of, positive, probability, whole
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["partition_indices", "split_indices"]

Indices = NDArray[np.int64]


def split_indices(
    n: int, parts: Mapping[str, float], *, seed: int = 0, labels: NDArray[np.int64] | None = None
) -> dict[str, Indices]:
    """Disjoint, sorted index arrays whose sizes follow the shares; stratified if labels are given.

    The same `n`, shares, seed and labels give the same split on every machine.
    """
    if not parts:
        raise InvalidParameter("parts must name at least one part, got none.")
    shares = np.array([probability(f"share of {name!r}", share) for name, share in parts.items()])
    if shares.sum() > 1 + 1e-9:
        raise InvalidParameter(f"the shares must add up to at most 1, got {shares.sum():g}.")
    rng = np.random.default_rng(seed)
    groups = (
        [np.arange(n)]
        if labels is None
        else [np.flatnonzero(labels == c) for c in np.unique(labels)]
    )
    chosen: list[list[Indices]] = [[] for _ in parts]
    for group in groups:
        order = rng.permutation(group)
        ends = np.floor(np.cumsum(shares) * len(order) + 0.5).astype(int)
        for part, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            chosen[part].append(order[start:end])
    return {name: np.sort(np.concatenate(part)) for name, part in zip(parts, chosen, strict=True)}


def partition_indices(
    n: int,
    owners: int,
    *,
    how: str = "iid",
    seed: int = 0,
    labels: NDArray[np.int64] | None = None,
    classes_per_owner: int = 2,
    alpha: float = 0.5,
) -> list[Indices]:
    """Divide indices among owners; every index goes to exactly one owner, and no owner is left
    empty.

    Args:
        n: How many examples there are. owners: How many owners share them. how: "iid" deals them
        out evenly; "class" gives each owner shards of about `classes_per_owner`
            classes; "dirichlet" draws each class's shares among owners from Dirichlet(`alpha`)
            (small alpha: very uneven).
        seed: The same seed gives the same division.
        labels: Class of each example, needed for "class" and "dirichlet".
        classes_per_owner: Shards an owner receives with how="class".
        alpha: Concentration of the Dirichlet distribution.
    """
    whole("owners", owners)
    one_of("how", how, {"iid", "class", "dirichlet"})
    if owners > n:
        raise InvalidParameter(
            f"owners must be at most the number of examples ({n}), got {owners}."
        )
    rng = np.random.default_rng(seed)
    if how == "iid":
        return [np.sort(part) for part in np.array_split(rng.permutation(n), owners)]
    if labels is None:
        raise InvalidData(f"how={how!r} needs one class label per example; this set has none.")
    if how == "class":
        shards = owners * whole("classes_per_owner", classes_per_owner)
        # Shuffled within a class first, so that a shard is a random piece of its class.
        order = rng.permutation(n)
        order = order[np.argsort(labels[order], kind="stable")]
        pieces = np.array_split(order, min(shards, n))
        deal = rng.permutation(len(pieces))
        return [
            np.sort(np.concatenate([pieces[p] for p in deal[o::owners]])) for o in range(owners)
        ]
    return _dirichlet(labels, owners, positive("alpha", alpha), rng)


def _dirichlet(
    labels: NDArray[np.int64], owners: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(owners)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(owners, alpha))
        ends = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for owner, piece in enumerate(np.split(members, ends)):
            parts[owner].append(piece)
    result = [np.sort(np.concatenate(part)) for part in parts]
    for owner, part in enumerate(result):
        if len(part) == 0:  # the richest owner gives one example away
            richest = int(np.argmax([len(p) for p in result]))
            result[owner], result[richest] = result[richest][-1:], result[richest][:-1]
    return result
