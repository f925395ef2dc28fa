"""The attacks on federated rounds work where `paper` mode is weak, and fail against the pad."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.audit.methods import federated_cheats as cheats
from blindsight.audit.methods.federated import (
    match_activity,
    single_contributors,
    single_user_decryption,
    subset_subtraction,
    support_intersection,
)
from blindsight.audit.methods.federated_cheats import CHEATS
from blindsight.federated.paper import paillier
from blindsight.federated.paper.paillier import PrivateKey
from blindsight.federated.sums.messages import Code


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return paillier.generate(384, insecure_for_tests=True)


def test_kept_permutations_give_the_support_away_and_pads_do_not(key: PrivateKey) -> None:
    few = support_intersection("paper", rounds=8, key=key)
    many = support_intersection("paper", rounds=40, key=key)
    fresh = support_intersection("pad", rounds=40, key=key)
    assert few.value < many.value
    assert many.value > 0.9
    assert fresh.value < 0.05


def test_single_contributors_are_published_by_the_paper(key: PrivateKey) -> None:
    """At 95.6% sparsity and 5 users about 91% of the sum's weights have one contributor."""
    assert single_contributors(dimension=1500, key=key).value == pytest.approx(0.91, abs=0.08)


def test_single_contributors_are_rarer_among_many_users(key: PrivateKey) -> None:
    many = single_contributors(users=60, dimension=100, key=key).value
    assert many < single_contributors(users=5, dimension=100, key=key).value


@pytest.mark.parametrize("attack", [subset_subtraction, single_user_decryption])
def test_dishonest_requests_open_an_update_in_paper_mode(key: PrivateKey, attack: object) -> None:
    assert attack(key=key).value == 1.0  # type: ignore[operator]


def test_matching_needs_a_unique_explanation() -> None:
    activity = np.array([[1, 0, 1], [0, 1, 1]], dtype=bool)
    published = np.array([[1, 0, 1, 0], [0, 1, 1, 0]], dtype=bool)
    assert match_activity(activity, published).tolist() == [0, 1, 2, -1]
    assert match_activity(activity[:1], published[:1]).tolist() == [-1, -1, -1, -1]


OUTCOMES = {"SUM ONLY", "ERASED", "OUTVOTED", "NAMED"}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_party_is_stopped_by_a_rule(cheat: str) -> None:
    stopped = CHEATS[cheat]()
    assert stopped in Code.__members__ or stopped in OUTCOMES


def test_attacks_are_stopped_by_rules_and_not_by_the_way_they_ask() -> None:
    """The same stage gives an honest aggregator what it asks for."""
    assert len(CHEATS) >= 24
    stage = cheats.Stage()
    assert stage.ask(stage.everybody) == ""
    stage = cheats.Stage()
    stage.spoil()
    stage.open(2)
    assert stage.ask((1, 2, 3)) == ""
