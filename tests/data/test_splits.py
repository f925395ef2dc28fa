from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight import data
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data import partition_indices, split_indices

LABELS = np.repeat(np.arange(5), 40)


def test_the_same_seed_gives_the_same_split_on_every_machine() -> None:
    split = split_indices(10, {"train": 0.5, "test": 0.3}, seed=3)
    assert {name: part.tolist() for name, part in split.items()} == {
        "train": [0, 1, 2, 6, 9],
        "test": [4, 5, 7],
    }
    assert (
        split_indices(100, {"a": 0.5}, seed=1)["a"].tolist()
        != split_indices(100, {"a": 0.5}, seed=2)["a"].tolist()
    )


@given(st.integers(0, 300), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(0, 5))
def test_parts_are_disjoint_and_follow_their_shares(
    n: int, weights: list[float], seed: int
) -> None:
    total = max(sum(weights), 1e-9) * 1.01
    shares = {str(i): weight / total for i, weight in enumerate(weights)}
    parts = split_indices(n, shares, seed=seed)
    everything = np.concatenate(list(parts.values()))
    assert len(np.unique(everything)) == len(everything) <= n
    for name, part in parts.items():
        assert abs(len(part) - shares[name] * n) <= 1


def test_a_stratified_split_keeps_the_share_of_every_class() -> None:
    parts = split_indices(200, {"train": 0.75, "test": 0.25}, labels=LABELS)
    assert np.bincount(LABELS[parts["train"]]).tolist() == [30] * 5
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(200))


@pytest.mark.parametrize("how", ["iid", "class", "dirichlet"])
@pytest.mark.parametrize("owners", [1, 7, 50])
def test_every_example_goes_to_exactly_one_owner_and_nobody_is_empty(how: str, owners: int) -> None:
    parts = partition_indices(200, owners, how=how, labels=LABELS, alpha=0.05, seed=4)
    assert len(parts) == owners
    assert min(len(part) for part in parts) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    again = partition_indices(200, owners, how=how, labels=LABELS, alpha=0.05, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_iid_parts_are_even_and_class_parts_see_few_classes() -> None:
    assert {len(part) for part in partition_indices(200, 8)} == {25}
    parts = partition_indices(200, 10, how="class", labels=LABELS, classes_per_owner=1)
    assert max(len(np.unique(LABELS[part])) for part in parts) == 1


def test_small_alpha_is_more_uneven_than_large_alpha() -> None:
    def unevenness(alpha: float) -> float:
        parts = partition_indices(200, 5, how="dirichlet", labels=LABELS, alpha=alpha)
        return float(np.mean([np.bincount(LABELS[p], minlength=5).max() / len(p) for p in parts]))

    assert unevenness(0.1) > unevenness(100) + 0.2


def test_nonsense_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="at most 1"):
        split_indices(10, {"a": 0.7, "b": 0.7})
    with pytest.raises(InvalidParameter, match="owners"):
        partition_indices(3, 5)
    with pytest.raises(InvalidParameter, match="how"):
        partition_indices(3, 2, how="fairly")
    with pytest.raises(InvalidData, match="label"):
        partition_indices(3, 2, how="class")
    with pytest.raises(InvalidParameter, match="alpha"):
        partition_indices(200, 2, how="dirichlet", labels=LABELS, alpha=0)


def test_sets_split_and_share_themselves() -> None:
    digits = data.load("digits")
    parts = digits.split({"train": 0.8, "test": 0.2})
    assert len(parts["train"]) + len(parts["test"]) == len(digits)
    owners = digits.partition(5, how="dirichlet", alpha=0.3, seed=2)
    assert sum(len(owner) for owner in owners) == len(digits)
    assert all(owner.classes == digits.classes for owner in owners)
