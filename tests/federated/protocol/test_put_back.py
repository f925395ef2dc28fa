"""State files put back in time: what a restored backup, or whoever restores it, must not bring
about.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blindsight.federated.agreement import agree
from blindsight.federated.messages import Code, Kind, holder
from blindsight.federated.protocol import KeyGenerator, KeyHolder, Simulation, User
from federated.protocol.conftest import MODEL, Started, refusal

BOTH = pytest.mark.parametrize(
    "holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"]
)


def second_sum(started: Started) -> list[Code]:
    """The first sum opened and shown to nobody, one opener put back, and another round on the same
    model without 6.
    """
    simulation = started.simulation
    aggregator = simulation.aggregator
    before = simulation.keygen.dump() if simulation.keygen else simulation.holders[holder(1)].dump()
    started.deliver()
    started.route(aggregator.close())
    assert aggregator.result is not None
    if simulation.keygen:
        simulation.keygen = KeyGenerator.load(before)
    else:
        simulation.holders[holder(1)] = KeyHolder.load(before)
    aggregator._parent, aggregator._certificate = bytes(32), ()
    started.again(2)
    started.deliver(1, 2, 3, 4, 5)
    seen = started.route(aggregator.close())
    return [refusal([m]) for m in seen if m.data[5] == Kind.REFUSED]


@BOTH
def test_another_round_on_the_same_model_after_an_opener_was_put_back(
    start: Callable, holders
) -> None:
    """Another round, not another set in the same round: the two sums would differ by user 6's
    update, exactly.
    """
    started = start(group=1, holders=holders)
    for user in started.simulation.users.values():
        user.expect(MODEL)
    codes = second_sum(started)
    assert started.simulation.aggregator.result is None
    assert set(codes) == ({Code.CHAIN} if holders else {Code.CONFIRM})


def test_a_user_who_confirmed_goes_on_once_it_has_the_sum(start: Callable) -> None:
    started = start(group=1)
    started.deliver()
    started.finish()
    started.again(2)
    started.deliver(1, 2, 3, 4, 5)
    np.testing.assert_array_equal(started.finish(), started.expected(1, 2, 3, 4, 5))


def test_with_groups_another_round_sums_whole_groups_only(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    before = simulation.keygen.dump()
    started.deliver()
    started.route(simulation.aggregator.close())
    simulation.keygen = KeyGenerator.load(before)
    simulation.aggregator._parent = bytes(32)
    started.again(2)
    started.deliver(1, 2, 3, 4, 5)
    started.route(simulation.aggregator.close())
    assert simulation.aggregator.result.contributors == (1, 2, 3)


@BOTH
def test_a_user_restored_from_a_backup_pays_for_the_sums_it_forgot(small_key, holders) -> None:
    """Two noisy sums are paid for.

    Restored to before the first it learns of both, and takes part in no third.
    """
    settings = agree(
        dimension=50, users=6, rounds=2, epsilon=50.0, least_users=3, holders=holders
    ).settings
    simulation = Simulation(settings, key=None if holders else small_key)
    backup = simulation.users[1].dump()
    started = Started(simulation, [np.zeros(50)] * 6, {})
    for number in (1, 2):
        started.again(number)
        started.deliver()
        started.finish()
    simulation.users[1] = User.load(backup)
    started.route(simulation.aggregator.results(1, after=0))
    assert simulation.users[1].ended == 2
    [opening, *_] = simulation.aggregator.open_round(3, MODEL)
    assert refusal(simulation.users[1].receive(opening.data)) is Code.ROUND


def test_a_user_that_was_away_pays_only_for_sums_that_it_is_in(small_key) -> None:
    settings = agree(dimension=50, users=6, rounds=2, epsilon=50.0, least_users=3).settings
    simulation = Simulation(settings, key=small_key)
    started = Started(simulation, [np.zeros(50)] * 6, {})
    started.again(1)
    started.deliver(1, 2, 3, 4, 5)
    started.finish()
    away = User(simulation.users[6].enrolment)  # it never saw round 1
    [result] = simulation.aggregator.results(6)
    assert away.receive(result.data) == []
    assert (away.ended, away._contributed) == (1, 0)
