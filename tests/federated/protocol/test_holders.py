"""What a cheating aggregator or key holder tries against key holders, and the rule that stops
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from blindsight.core.errors import ProtocolError
from blindsight.federated.messages import Code, Kind, Outgoing, holder
from blindsight.federated.protocol import KeyHolder, rules
from blindsight.federated.protocol.bodies import Collect, Contribution, to_members, write_list
from blindsight.federated.wire import Writer
from federated.protocol.conftest import MODEL, Started, decoded, refusal, resigned


def collect(
    started: Started, index: int, users: tuple[int, ...], certificate: tuple[bytes, ...] = ()
) -> Outgoing:
    shares = []
    for user in users:
        parts = Contribution.decode(decoded(started.sent[user][0].data).body, most=5).keys
        shares.append(parts[index - 1])
    members = to_members(users, started.simulation.settings.users)
    body = Collect(members, tuple(shares), certificate).encode()
    return started.simulation.aggregator._send(holder(index), Kind.COLLECT, body, started.header)


def test_a_two_faced_holder_opens_nothing_twice(start: Callable) -> None:
    """Two sets in one round: with one holder voting for both, neither gets a second quorum."""
    started = start(holders=(3, 5), group=1)
    holders, header = started.simulation.holders, started.header
    first, second = (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5)
    votes: dict[tuple[int, ...], dict[int, bytes]] = {first: {}, second: {}}
    faces = {holder(5): KeyHolder.load(holders[holder(5)].dump())}  # the cheat keeps two states
    for index in (1, 2, 3):
        [vote] = holders[holder(index)].receive(collect(started, index, first).data)
        votes[first][index] = vote.data
        assert (
            refusal(holders[holder(index)].receive(collect(started, index, second).data))
            is Code.ROUND
        )
    [vote] = holders[holder(4)].receive(collect(started, 4, second).data)
    votes[second][4] = vote.data
    votes[first][5] = holders[holder(5)].receive(collect(started, 5, first).data)[0].data
    votes[second][5] = faces[holder(5)].receive(collect(started, 5, second).data)[0].data

    def answers(users: tuple[int, ...], role) -> list[Outgoing]:
        body = bytes(write_list(Writer(), tuple(votes[users].values())))
        return role.receive(started.simulation.aggregator._send(0, Kind.VOTES, body, header).data)

    assert answers(first, holders[holder(1)])[0].data[5] == Kind.SHARE_SUM
    assert refusal(answers(second, holders[holder(4)])) is Code.VOTES
    assert refusal(answers(first, holders[holder(4)])) is Code.VOTES  # it voted for the other set
    doubled = bytes(write_list(Writer(), (votes[second][4],) * 5))
    message = started.simulation.aggregator._send(0, Kind.VOTES, doubled, header)
    assert refusal(holders[holder(4)].receive(message.data)) is Code.VOTES


def test_a_holder_is_bound_to_the_model_and_to_votes_that_were_given(start: Callable) -> None:
    started = start(holders=(3, 5))
    aggregator, roles = started.simulation.aggregator, started.simulation.holders
    whole = (1, 2, 3, 4, 5, 6)
    other = replace(started.header, model=bytes(32))
    body = decoded(collect(started, 3, whole).data).body
    moved = aggregator._send(holder(3), Kind.COLLECT, body, other)
    assert refusal(roles[holder(3)].receive(moved.data)) is Code.CHAIN
    votes = [
        roles[holder(j)].receive(collect(started, j, whole).data)[0].data for j in (1, 2, 3, 4)
    ]

    def answer(listed: list[bytes], header=started.header) -> list[Outgoing]:
        listing = bytes(write_list(Writer(), tuple(listed)))
        return roles[holder(3)].receive(
            aggregator._send(holder(3), Kind.VOTES, listing, header).data
        )

    needed = started.simulation.settings.votes
    assert needed == 4
    assert refusal(answer(votes[: needed - 1])) is Code.VOTES
    invented = resigned(decoded(votes[0]), aggregator.identity, sender=holder(5))
    assert refusal(answer([*votes[: needed - 1], invented])) is Code.SIGNATURE
    assert refusal(answer(votes, other)) is Code.CHAIN
    assert answer(votes)[0].data[5] == Kind.SHARE_SUM


def test_holders_check_sets_shares_and_the_chain(start: Callable) -> None:
    started = start(holders=(3, 5))
    role = started.simulation.holders[holder(3)]
    whole = (1, 2, 3, 4, 5, 6)
    assert refusal(role.receive(collect(started, 3, (1, 2, 3, 4, 5)).data)) is Code.GROUP
    assert refusal(role.receive(collect(started, 3, (1, 2)).data)) is Code.FEW
    assert (
        refusal(role.receive(replace(collect(started, 4, whole), to=role.number).data))
        is Code.SHARES
    )
    good = Collect.decode(decoded(collect(started, 3, whole).data).body, users=6, holders=5)
    for shares in (good.shares[:-1], good.shares[::-1], (*good.shares[:-1], good.shares[0])):
        body = replace(good, shares=shares).encode()
        message = started.simulation.aggregator._send(0, Kind.COLLECT, body, started.header)
        assert refusal(role.receive(message.data)) is Code.SHARES
    started.deliver()
    started.finish()
    started.simulation.aggregator._parent = bytes(32)
    started.simulation.aggregator._ended.clear()
    for opening in started.simulation.aggregator.open_round(2, MODEL):
        assert refusal(started.simulation.users[opening.to].receive(opening.data)) is Code.CHAIN
    message = started.simulation.aggregator._send(0, Kind.COLLECT, good.encode(), started.header)
    assert refusal(role.receive(message.data)) is Code.CHAIN


def test_the_opener_is_gone_and_no_holder_learns_a_users_key(start: Callable) -> None:
    """Two holders' shares of one user are what any key would give: independent of it."""
    started = start(holders=(3, 5))
    sharing = rules.sharing(started.simulation.settings, 4096)
    publics = started.simulation.users[1].enrolment.holders
    private = {j: started.simulation.holders[holder(j)].enrolment.private for j in publics}
    key = np.zeros(sharing.length, dtype=np.int64)
    for j in (1, 4):
        values = np.concatenate(
            [
                sharing.receive(j, private[j], sharing.share(key, publics, b"x")[j], b"x")
                for _ in range(4)
            ]
        )
        counts = np.histogram(values, bins=16, range=(0, sharing.prime))[0]
        expected = len(values) / 16
        assert (np.abs(counts - expected) < 7 * np.sqrt(expected)).all()


def test_shares_open_for_their_holder_round_and_user_only(start: Callable) -> None:
    started = start(holders=(3, 5))
    sharing = rules.sharing(started.simulation.settings, 4096)
    enrolment = started.simulation.users[1].enrolment
    private = {
        j: started.simulation.holders[holder(j)].enrolment.private for j in enrolment.holders
    }
    shares = sharing.share(np.arange(sharing.length) % 128, enrolment.holders, b"round 1")
    for j, own, data, bound in [
        (1, private[1], shares[1], b"round 2"),
        (1, private[2], shares[1], b"round 1"),
        (1, private[1], shares[2], b"round 1"),
        (3, private[3], shares[3][:-1], b"round 1"),
        (3, private[3], shares[3][:-1] + bytes([shares[3][-1] ^ 1]), b"round 1"),
        (3, private[3], bytes(32) + shares[3][32:], b"round 1"),
    ]:
        with pytest.raises(ProtocolError, match="malformed"):
            sharing.receive(j, own, data, bound)
    found = {j: sharing.receive(j, private[j], shares[j], b"round 1") for j in (1, 3, 4, 5)}
    np.testing.assert_array_equal(sharing.combine(found)[0], np.arange(sharing.length) % 128)
    assert sharing.combine({j: found[j] for j in (1, 3, 4)}) is None  # three agree with anything
