"""Votes before values: no sum over fewer users than voted, whatever the aggregator tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from blindsight.federated.messages import Code, Kind, Purpose, holder
from blindsight.federated.protocol import KeyHolder, rules
from blindsight.federated.protocol.bodies import Collect, to_members
from federated.protocol.conftest import MODEL, Started, refusal

BOTH = pytest.mark.parametrize(
    "holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"]
)


def voted(start: Callable, *, holders: tuple[int, int] | None, everybody: bool = True) -> Started:
    """Users 1, 4 and 5 changed weight 7, user 1 with two others: three votes.

    Then a round of values is open.
    """
    updates = np.zeros((6, 40))
    updates[:, 3] = 0.25
    updates[[0, 3, 4], 7] = [0.5, -0.125, 0.375]
    started = start(dimension=40, least_per_coordinate=3, holders=holders, updates=list(updates))
    started.deliver(*(range(1, 7) if everybody else (1, 2, 3)))
    started.finish()
    mask = started.simulation.users[1].mask
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == ([3, 7] if everybody else [3])
    started.again(2, length=int(mask.sum()))
    return started


@BOTH
def test_values_of_fewer_users_than_voted(start: Callable, holders) -> None:
    """Three users voted for weight 7; the values of the first group alone would be user 1's weight,
    exactly.
    """
    started = voted(start, holders=holders)
    started.deliver(1, 2, 3)
    aggregator = started.simulation.aggregator
    aggregator._members, aggregator.phase = to_members((1, 2, 3), 6), "closed"  # it knows no rule
    seen = started.route(aggregator.close())
    assert aggregator.result is None
    assert {refusal([m]) for m in seen if m.data[5] == Kind.REFUSED} == {Code.VOTERS}
    assert not any(m.data[5] in (Kind.CONFIRM, Kind.VOTE) for m in seen)
    if holders is None:  # users confirm no such set, and the key generator for itself opens none
        [question] = aggregator._ask_keygen()
        assert refusal(started.simulation.keygen.receive(question.data)) is Code.VOTERS


def test_users_take_no_sum_of_fewer_than_voted(
    start: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the key generator in league with the aggregator in this, users would not believe the
    sum.
    """
    started = voted(start, holders=None)
    started.deliver(1, 2, 3)
    aggregator, users = started.simulation.aggregator, started.simulation.users
    aggregator._members, aggregator.phase = to_members((1, 2, 3), 6), "closed"
    with monkeypatch.context() as lax:
        lax.setattr(rules, "require_voters", lambda *given: None)
        started.route(aggregator.close())
    assert aggregator.result is not None
    [result] = aggregator.results(2)
    assert refusal(users[2].receive(result.data)) is Code.VOTERS


@BOTH
def test_values_of_all_who_voted_and_of_more(start: Callable, holders) -> None:
    started = voted(start, holders=holders)
    started.deliver()
    np.testing.assert_allclose(started.finish(), [1.5, 0.75], atol=1e-4)
    few = voted(start, holders=holders, everybody=False)  # only the first group's votes were opened
    few.deliver()
    np.testing.assert_allclose(few.finish(), [1.5], atol=1e-4)


@BOTH
def test_an_aggregator_waits_for_those_who_voted(start: Callable, holders) -> None:
    started = voted(start, holders=holders)
    started.deliver(1, 2, 3)
    assert not started.simulation.aggregator.enough
    with pytest.raises(Exception, match="VOTERS"):
        started.simulation.aggregator.close()


@BOTH
def test_votes_are_asked_again_where_a_voter_is_missing(start: Callable, holders) -> None:
    started = voted(start, holders=holders)
    started.deliver(1, 2, 3)
    started.again(3, purpose=Purpose.VOTES)
    started.deliver(1, 2, 3)
    started.finish()
    assert np.flatnonzero(started.simulation.users[1].mask).tolist() == [3]
    started.again(4, length=1)
    started.deliver(1, 2, 3)
    np.testing.assert_allclose(started.finish(), [0.75], atol=1e-4)


def test_a_holder_that_was_away_is_told_who_voted(start: Callable) -> None:
    """It did not see the votes being opened; the votes of the others and the set they stand for
    tell it.
    """
    started = voted(start, holders=(3, 5))
    simulation = started.simulation
    fresh = holder(2)
    simulation.holders[fresh] = KeyHolder(simulation.holders[fresh].enrolment)
    aggregator = simulation.aggregator
    started.deliver()
    aggregator.seal()
    [question] = aggregator.ask(fresh)
    assert simulation.holders[fresh].receive(question.data)[0].data[5] == Kind.VOTE
    simulation.holders[fresh] = KeyHolder(simulation.holders[fresh].enrolment)
    aggregator._before = to_members((1, 2, 3), 6)  # a set that the votes do not stand for
    [question] = aggregator.ask(fresh)
    assert refusal(simulation.holders[fresh].receive(question.data)) is Code.CHAIN


@BOTH
def test_a_second_round_of_values_needs_votes_of_its_own(start: Callable, holders) -> None:
    """Also where the first gave no sum: its mask counted users who may not be in the second."""
    started = voted(start, holders=holders)
    started.deliver()
    started.finish()
    for role in started.simulation.holders.values():
        after = replace(started.header, round=3, parent=role._voted)
        assert role._voters(after, Collect(b"", ())) == b""  # its parent was no sum of votes
    [opening, *_] = started.simulation.aggregator.open_round(3, MODEL, length=2)
    assert refusal(started.simulation.users[1].receive(opening.data)) is Code.CHAIN
