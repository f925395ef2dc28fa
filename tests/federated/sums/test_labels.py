"""The rule on sets: no combination of opened sums touches fewer users than the floor."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from blindsight.federated.sums.labels import (
    admissible,
    largest_admissible,
    refines,
    split,
    unopened,
)


def fewest_touched(sets: list[set[int]], users: int) -> int:
    """The smallest number of users that a non-zero combination of the sums touches.

    Users in the same sets have the same coefficient in every combination, so the smallest support
    is a union of such classes. With full freedom of coefficients the least is found over all
    subspaces by brute force on small integer coefficients.
    """
    rows = np.array([[u in s for u in range(1, users + 1)] for s in sets], dtype=float)
    best = users
    grid = np.array(np.meshgrid(*[range(-3, 4)] * len(sets))).reshape(len(sets), -1).T
    for coefficients in grid:
        touched = int((coefficients @ rows != 0).sum())
        if touched:
            best = min(best, touched)
    return best


def test_no_combination_of_opened_sums_touches_fewer_users_than_the_floor() -> None:
    rng = np.random.default_rng(0)
    users, floor = 12, 3
    for _ in range(60):
        labels, opened = unopened(users), []
        for _ in range(40):
            chosen = set((np.flatnonzero(rng.random(users) < 0.6) + 1).tolist())
            if len(opened) < 4 and admissible(labels, chosen, floor):
                labels = split(labels, chosen)
                opened.append(chosen)
        assert opened and fewest_touched(opened, users) >= floor


def test_pairwise_difference_by_the_floor_would_not_protect() -> None:
    """A + B - C - D is one user, and every two of the sets differ by three users both ways."""
    a, b = {1, 2, 3, 4, 5, 6, 13}, {7, 8, 9, 10, 11, 12}
    c, d = {1, 2, 3, 7, 8, 9}, {4, 5, 6, 10, 11, 12}
    sets = [a, b, c, d]
    assert all(len(x - y) >= 3 for x in sets for y in sets if x is not y)
    assert fewest_touched(sets, 13) == 1
    labels = unopened(13)
    for opened in (a, b, c):
        assert admissible(labels, opened, 3)
        labels = split(labels, opened)
    assert not admissible(labels, d, 3)


def test_repeating_a_set_is_always_admissible() -> None:
    labels = split(unopened(9), [1, 2, 3, 4, 5])
    assert admissible(labels, [1, 2, 3, 4, 5], 3)
    assert (split(labels, [1, 2, 3, 4, 5]) == labels).all()


@pytest.mark.parametrize(
    ("shown", "own", "fine"),
    [
        ([1, 1, 2, 2], [0, 0, 1, 1], True),
        ([1, 1, 2, 2], [1, 1, 1, 1], True),
        ([1, 1, 1, 1], [1, 1, 2, 2], False),
        ([0, 0, 1, 1], [1, 1, 1, 1], False),
        ([0, 0, 0, 0], [0, 0, 0, 0], True),
    ],
)
def test_shown_labels_must_refine_known_ones(shown: list, own: list, fine: bool) -> None:
    assert refines(np.array(shown, np.uint16), np.array(own, np.uint16)) is fine


def test_largest_admissible_subset_is_admissible_and_not_needlessly_small() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        users = int(rng.integers(3, 30))
        now, ever = unopened(users), unopened(users)
        for labels in (now, ever):
            for _ in range(2):
                wanted = set((np.flatnonzero(rng.random(users) < 0.7) + 1).tolist())
                chosen = largest_admissible([(labels, 3)], wanted, most=users)
                if chosen:
                    labels[:] = split(labels, chosen)
        wanted = set((np.flatnonzero(rng.random(users) < 0.8) + 1).tolist())
        chosen = largest_admissible([(now, 4), (ever, 3)], wanted, most=users)
        assert set(chosen) <= wanted
        if chosen:
            assert admissible(now, chosen, 4) and admissible(ever, chosen, 3)
    everybody = list(range(1, 11))
    assert largest_admissible([(unopened(10), 4)], everybody, most=10) == tuple(everybody)
    after = split(unopened(10), everybody)
    assert len(largest_admissible([(after, 4)], everybody[:-1], most=10)) == 6
    assert all(
        not admissible(after, subset, 4) for subset in combinations(everybody, 7)
    )  # six of ten is the most that leaves four
