"""A user who sends nonsense is found, as far as the rules let anybody look, and the federation goes
on without it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import ProtocolError
from blindsight.federated.flower.suspicion import Suspicion
from blindsight.federated.protocol import User
from federated.flower.test_services import Clock, LocalLink, coordinator


@given(groups=st.integers(2, 200), bad=st.data())
def test_whoever_always_spoils_is_found_in_few_rounds(groups: int, bad: st.DataObject) -> None:
    culprit = bad.draw(st.integers(0, groups - 1))
    suspicion, failures = Suspicion(), 0
    for _ in range(4 * groups.bit_length()):
        used = suspicion.choose(range(groups), [3] * groups, 3)
        if culprit in used:
            failures += 1
            if suspicion.failed(used) is not None:
                break
        else:
            suspicion.succeeded(used)
    assert suspicion.excluded == {culprit}
    assert failures <= groups.bit_length() + 1


@given(groups=st.integers(2, 40), moods=st.lists(st.booleans(), min_size=60, max_size=60))
def test_nobody_else_is_ever_left_out(groups: int, moods: list[bool]) -> None:
    """One who spoils now and then: no other group is excluded, and rounds go on ending."""
    suspicion, ended = Suspicion(), 0
    for spoils in moods:
        used = suspicion.choose(range(groups), [3] * groups, 3)
        if 0 in used and spoils:
            suspicion.failed(used)
        else:
            suspicion.succeeded(used)
            ended += 1
    assert suspicion.excluded <= {0}
    assert 0 in suspicion.excluded or ended >= len(moods) // (groups.bit_length() + 2) - 1


def test_too_few_to_look_any_further_is_said() -> None:
    suspicion = Suspicion()
    suspicion.failed([0, 1])
    assert suspicion.choose([0, 1], [3, 3], 6) == [0, 1]
    with pytest.raises(ProtocolError, match="too few users"):
        suspicion.failed([0, 1])


OTHER = b"\x09" + bytes(31)  # a public key that is nobody's
LIES = {
    "a wrong check in the key": ({}, {"own_seed": bytes(32)}),
    "a wrong tag of the vector": ({}, {"tag_seed": bytes(32)}),
    "a wrong tag, after votes": ({"least_per_coordinate": 3}, {"tag_seed": bytes(32)}),
    "a wrong check, after votes": ({"least_per_coordinate": 3}, {"own_seed": bytes(32)}),
    "a wrong tag, key holders": ({"holders": (3, 5)}, {"tag_seed": bytes(32)}),
    "shares that no holder can open": (
        {"holders": (3, 5)},
        {"holders": dict.fromkeys(range(1, 6), b"\x09" + bytes(31))},
    ),
}


@pytest.mark.parametrize(("agreed", "lie"), LIES.values(), ids=LIES)
def test_a_user_who_sends_nonsense_costs_its_group_and_not_the_federation(
    federation, rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agreed: dict, lie: dict
) -> None:
    homes = federation(agreed={"users": 9, "group": 3, **agreed}, rounds=2, patience=1.0)
    for n in range(6, 10):
        np.savez(tmp_path / f"user-{n}.npz", X=rows[f"user-{n - 5}"][0], y=rows[f"user-{n - 5}"][1])
    honest = User._padded

    def padded(self: User, header, values):
        if self.number != 5:
            return honest(self, header, values)
        mine = self.enrolment
        self.enrolment = replace(mine, **lie)
        try:
            return honest(self, header, values)
        finally:
            self.enrolment = mine

    monkeypatch.setattr(User, "_padded", padded)
    running = coordinator(homes, Clock())
    running.run(LocalLink(homes, tmp_path))
    assert running.finished
    assert running.excluded == [4, 5, 6]
    assert running.history == [(1, 2, 3), (1, 2, 3, 7, 8, 9)]
    again = coordinator(homes, Clock())
    assert again.excluded == running.excluded
    np.testing.assert_array_equal(again.weights, running.weights)
