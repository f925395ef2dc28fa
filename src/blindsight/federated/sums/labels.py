"""The rule on which sets of users may be opened: every combination of opened sums that is not
empty contains at least a minimum number of users, the floor.

Every user has a label, a number of two bytes. 0 means that no opened sum has contained the user;
users with the same label were in exactly the same opened sums. Opening a set S splits every class
into its part inside S and its part outside. S is *admissible* if it has at least `floor` users and
afterwards every class but 0 has at least `floor` users.

*Claim.* Every linear combination of sums over sets opened under this rule has non-zero coefficients
for no user or for at least `floor` users. *Proof.* The coefficient of a user in a combination
depends only on the sets that contain the user, so it is constant on classes and zero on class 0;
every other class has at least `floor` users. ∎

Each holder keeps two arrays of labels: `now` for the sums opened on one model, and `ever` for all
sums of the federation. docs/federated-protocol.md proves that holders' arrays agree.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

__all__ = ["Labels", "admissible", "largest_admissible", "refines", "split", "unopened"]

Labels = NDArray[np.uint16]


def unopened(users: int) -> Labels:
    """Return the labels before the first sum, which are all 0."""
    return np.zeros(users, dtype=np.uint16)


def _inside(labels: Labels, users: Collection[int]) -> NDArray[np.bool_]:
    inside = np.zeros(len(labels), dtype=bool)
    inside[np.fromiter(users, dtype=np.int64, count=len(users)) - 1] = True
    return inside


def split(labels: Labels, users: Collection[int]) -> Labels:
    """Return the labels after a sum over `users` (numbered from 1) was opened.

    Classes are numbered 1, 2, ... in the order of their first user.

    Examples:
        >>> split(unopened(5), [2, 3, 4]).tolist()
        [0, 1, 1, 1, 0]
    """
    inside = _inside(labels, users)
    keys = labels.astype(np.int64) * 2 + inside
    result = np.zeros(len(labels), dtype=np.uint16)
    _, first, classes = np.unique(keys, return_index=True, return_inverse=True)
    opened = [c for c in range(len(first)) if keys[first[c]] != 0]
    for number, c in enumerate(sorted(opened, key=lambda c: int(first[c])), start=1):
        result[classes == c] = number
    return result


def admissible(labels: Labels, users: Collection[int], floor: int) -> bool:
    """Whether a sum over `users` may be opened after the sums that `labels` represent.

    Examples:
        >>> after = split(unopened(7), [1, 2, 3, 4, 5, 6])
        >>> admissible(after, [1, 2, 3], 3), admissible(after, [1, 2, 3, 4, 5], 3)
        (True, False)
    """
    if len(users) < floor:
        return False
    sizes = np.bincount(split(labels, users))
    return bool((sizes[1:] >= floor).all())


def refines(received: Labels, own: Labels) -> bool:
    """Whether `received` separates all users that `own` separates.

    It must also have no label 0 where `own` has another label.
    """
    if len(received) != len(own) or own[received == 0].any():
        return False
    pairs = np.unique(received.astype(np.int64) << 16 | own)
    return len(np.unique(pairs >> 16)) == len(pairs)


def largest_admissible(
    arrays: Collection[tuple[Labels, int]], wanted: Collection[int], *, most: int
) -> tuple[int, ...]:
    """Return a large subset of `wanted` that is admissible for every (labels, floor), or nothing.

    Users are dropped from the end of each class until the class fits. A class with too few wanted
    users is left out entirely; from a class with too few other users, so many more users are left
    out that these reach the floor.
    """
    chosen = sorted(wanted)[:most] if len(wanted) > most else sorted(wanted)
    while chosen:
        before = len(chosen)
        for labels, floor in arrays:
            inside = _inside(labels, chosen)
            keep = inside.copy()
            for label in np.unique(labels[inside]):
                members = np.flatnonzero(labels == label)
                present = members[inside[members]]
                left_out = len(members) - len(present)
                if label and 0 < left_out < floor:
                    keep[present[len(present) - min(len(present), floor - left_out) :]] = False
                if keep[members].sum() < floor:
                    keep[members] = False
            chosen = (np.flatnonzero(keep) + 1).tolist()
        if len(chosen) == before:
            break
    fits = all(admissible(labels, chosen, floor) for labels, floor in arrays)
    return tuple(chosen) if chosen and fits else ()
