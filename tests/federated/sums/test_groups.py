"""Lying users are bounded by the median of groups' means, and groups hide as sums do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.sums import Aggregator, GroupMeans, KeyHolder, Settings, Simulation, User
from blindsight.federated.sums.messages import (
    Code,
    Kind,
    Message,
    Refusal,
    RoundSum,
    ShownSum,
    pack_members,
)

LENGTH = 50


def updates(users: int) -> list[np.ndarray]:
    return list(np.random.default_rng(3).normal(0.1, 0.02, (users, LENGTH)))


def lie(monkeypatch: pytest.MonkeyPatch, liars: set[int]) -> None:
    """These users pad the largest number that a weight can have, whatever the settings say."""
    honest = User._padded

    def largest(self: User, header: object, values: np.ndarray) -> object:
        if self.number in liars:
            values = np.full_like(values, (1 << self.settings.bits) - 1)
        return honest(self, header, values)

    monkeypatch.setattr(User, "_padded", largest)


def honest_range(vectors: list[np.ndarray], settings: Settings, liars: set[int]) -> tuple:
    """The smallest and the largest mean of the groups without liars, coordinate by coordinate."""
    groups = [
        [u for u in range(1, settings.users + 1) if settings.group(u) == group]
        for group in range(settings.groups)
    ]
    means = [
        np.mean([vectors[u - 1] for u in group], axis=0)
        for group in groups
        if not liars & set(group)
    ]
    return np.min(means, axis=0), np.max(means, axis=0)


@pytest.mark.parametrize(("groups", "liars"), [(3, {4}), (5, {1, 8}), (3, {1, 4, 7})])
def test_lying_users_move_no_coordinate_beyond_the_honest_groups(
    groups: int, liars: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(dimension=LENGTH, users=15, groups=groups, holders=3)
    vectors = updates(15)
    lie(monkeypatch, liars)
    result = Simulation(settings).round(vectors)
    low, high = honest_range(vectors, settings, liars)
    assert (result.mean >= low - settings.code.grid).all()
    assert (result.mean <= high + settings.code.grid).all()
    assert result.contributors == tuple(range(1, 16))


def test_without_groups_one_lying_user_moves_the_mean_far(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = updates(15)
    lie(monkeypatch, {4})
    result = Simulation(Settings(dimension=LENGTH, users=15, holders=3)).round(vectors)
    assert (result.mean > np.max(vectors, axis=0)).all()


def test_liars_in_most_groups_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What remains, as the documentation says."""
    settings = Settings(dimension=LENGTH, users=15, groups=3, holders=3)
    vectors = updates(15)
    lie(monkeypatch, {1, 2})
    result = Simulation(settings).round(vectors)
    assert (result.mean - np.mean(vectors, axis=0) > 0.05).all()


@pytest.mark.parametrize("encrypt", [True, False])
def test_groups_give_the_median_of_their_means_over_several_rounds(encrypt: bool) -> None:
    settings = Settings(dimension=LENGTH, users=10, groups=3, holders=3)
    simulation, vectors = Simulation(settings, encrypt=encrypt), updates(10)
    for turn in range(3):
        result = simulation.round(vectors, model=bytes([turn]))
        means = [np.mean(vectors[g::3], axis=0) for g in range(3)]
        assert result.mean == pytest.approx(np.median(means, axis=0), abs=settings.code.grid)


def refusal(answers: list) -> Code | None:
    if not answers:
        return None
    message = Message.decode(answers[0].data, largest=len(answers[0].data))
    assert message.header.kind is Kind.REFUSED
    return Refusal.decode(message.body).code


def test_a_user_contributes_to_its_own_groups_sum_only() -> None:
    simulation = Simulation(Settings(dimension=LENGTH, users=9, groups=3))
    aggregator, users = simulation.aggregator, simulation.users
    openings = aggregator.open_round(1, bytes(32), users=range(1, 10))
    codes = {opening.to: refusal(users[opening.to].receive(opening.data)) for opening in openings}
    assert codes == {u: None if u in (1, 4, 7) else Code.COHORT for u in range(1, 10)}


def test_a_user_refuses_a_sum_over_users_of_another_group() -> None:
    simulation = Simulation(Settings(dimension=LENGTH, users=9, groups=3))
    fresh = User(simulation.users[2].enrolment)
    simulation.round(updates(9))
    message = Message.decode(simulation.aggregator.results(2)[0].data, largest=1 << 20)
    body = ShownSum.decode(message.body, simulation.settings)
    assert body.members == pack_members((3, 6, 9), 9)
    own = simulation.aggregator.header
    header = replace(own, kind=Kind.RESULT, parent=bytes(32), parent_round=0)
    forged = Message.make(header, body.encode(), simulation.aggregator.identity)
    assert refusal(fresh.receive(forged.encode())) is Code.SET


def test_group_means_continue_from_their_state() -> None:
    settings = Settings(dimension=2, users=9, groups=3)
    sums = [RoundSum((1 + g, 4 + g, 7 + g), np.array([3 * g, -3 * g])) for g in range(3)]
    means = GroupMeans(settings)
    assert means.add(sums[0]) is None and means.waiting
    again = GroupMeans.load(settings, means.dump())
    assert again.add(sums[1]) is None
    mean = again.add(sums[2])
    assert mean is not None and mean == pytest.approx(np.array([1, -1]) * settings.code.grid)
    assert again.contributors == tuple(range(1, 10)) and not again.waiting


@pytest.mark.parametrize(
    "options", [{"groups": 2}, {"groups": 5}, {"groups": 3, "most_users": 4}, {"groups": 0}]
)
def test_groups_that_do_not_fit_are_refused(options: dict) -> None:
    with pytest.raises(InvalidParameter):
        Settings(dimension=3, users=9, **options)


def test_roles_continue_from_their_state_between_two_groups() -> None:
    simulation = Simulation(Settings(dimension=LENGTH, users=9, groups=3))
    loaded: list[tuple[str, Callable]] = [("users", User.load), ("holders", KeyHolder.load)]
    vectors = updates(9)
    simulation.round(vectors)
    for name, load in loaded:
        roles = getattr(simulation, name)
        setattr(simulation, name, {n: load(role.dump()) for n, role in roles.items()})
    simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
    members = {u: v for u, v in enumerate(vectors, start=1) if simulation.settings.group(u) == 0}
    simulation._round += 1
    simulation._protocol(bytes(32), members, None, noisy=False)
    for name, load in loaded:
        roles = getattr(simulation, name)
        setattr(simulation, name, {n: load(role.dump()) for n, role in roles.items()})
    assert simulation.users[2]._due == 1
    simulation._round += 1
    with pytest.raises(ProtocolError):
        simulation._protocol(bytes(32), members, None, noisy=False)
