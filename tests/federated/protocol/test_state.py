"""Roles survive being killed: what was accepted stays accepted, what was opened stays opened."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core.errors import HostileFile, ProtocolError
from blindsight.federated.messages import Code
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import (
    Aggregator,
    Durable,
    KeyGenerator,
    KeyHolder,
    Settings,
    Simulation,
    User,
)
from blindsight.federated.protocol.kept import InFiles
from blindsight.federated.wire import read_sealed, write_sealed
from federated.protocol.conftest import MODEL, refusal


@pytest.mark.parametrize("holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"])
def test_everybody_goes_on_after_every_message(start: Callable, holders) -> None:
    """Every role is written out and read back before each message that it gets."""
    started = start(holders=holders)
    simulation = started.simulation
    for user in (4, 1, 5, 2, 6, 3):
        simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
        simulation.aggregator.receive(started.sent[user][0].data)
    queue = list(simulation.aggregator.close())
    while queue:
        message = queue.pop(0)
        simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
        simulation.users = {n: User.load(user.dump()) for n, user in simulation.users.items()}
        simulation.holders = {
            n: KeyHolder.load(role.dump()) for n, role in simulation.holders.items()
        }
        if simulation.keygen is not None:
            simulation.keygen = KeyGenerator.load(simulation.keygen.dump())
        queue.extend(simulation._party(message.to).receive(message.data))
    simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
    assert simulation.aggregator.phase == "done"
    code = simulation.settings.code
    np.testing.assert_array_equal(
        code.decode(simulation.aggregator.result.values), started.expected()
    )
    started.route(simulation.aggregator.results())
    simulation.users = {n: User.load(user.dump()) for n, user in simulation.users.items()}
    started.again(2)
    started.deliver()
    np.testing.assert_array_equal(started.finish(), started.expected())


CHILD = """
import os, signal, sys
from pathlib import Path
from blindsight.federated.protocol import Aggregator, Durable
state, *messages = [Path(arg) for arg in sys.argv[1:]]
role = Durable(Aggregator.load(state.read_bytes()), state)
for message in messages:
    role.receive(message.read_bytes())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_aggregator_survives_kill_nine(start: Callable, tmp_path: Path) -> None:
    started = start()
    state = tmp_path / "aggregator.state"
    write_sealed(state, started.simulation.aggregator.dump())
    files = []
    for user, [message] in started.sent.items():
        files.append(tmp_path / f"user{user}")
        files[-1].write_bytes(message.data)
    child = subprocess.run([sys.executable, "-c", CHILD, state, *files[:4]], check=False)
    assert child.returncode == -signal.SIGKILL
    started.simulation.aggregator = Aggregator.load(read_sealed(state))
    assert started.simulation.aggregator.contributors == (1, 2, 3, 4)
    assert [message.to for message in started.simulation.aggregator.reopen()] == [5, 6]
    np.testing.assert_array_equal(started.finish(), started.expected(1, 2, 3))


def test_a_key_generator_remembers_that_it_opened_a_round(start: Callable) -> None:
    started = start()
    started.deliver()
    seen = started.route(started.simulation.aggregator.close())
    request = next(m for m in seen if m.data[5] == 3)
    restarted = KeyGenerator.load(started.simulation.keygen.dump())
    [answer] = restarted.receive(request.data)
    assert answer.data == next(m for m in seen if m.data[5] == 4).data


def test_a_user_restarted_in_mid_round_goes_on_and_never_contributes_twice(start: Callable) -> None:
    started = start()
    user = User.load(started.simulation.users[2].dump())
    [opening] = [m for m in started.simulation.aggregator.reopen() if m.to == 2]
    assert user.receive(opening.data) == started.sent[2]
    with pytest.raises(ProtocolError, match="no open round"):
        user.contribute(np.zeros(120))
    late = start()
    assert refusal(user.receive(late.simulation.aggregator.reopen()[0].data)) is Code.AGREEMENT


def test_states_are_private_files_written_whole(start: Callable, tmp_path: Path) -> None:
    path = tmp_path / "keygen.state"
    durable = Durable(start().simulation.keygen, path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    durable.receive(b"noise")
    assert [entry.name for entry in tmp_path.iterdir()] == ["keygen.state"]
    with pytest.raises(HostileFile, match="at most"):
        read_sealed(path, largest=10)


def test_a_failed_write_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_sealed(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_sealed(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert path.read_bytes() == b"old"


@given(data=st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_states_are_refused(small_key: PrivateKey, data: st.DataObject) -> None:
    if not _STATES:
        simulation = Simulation(Settings(dimension=6, users=3), key=small_key)
        simulation.round([np.full(6, 0.5)] * 3)
        shared = Simulation(Settings(dimension=6, users=3, holders=(3, 5)))
        user, role = simulation.users[1], next(iter(shared.holders.values()))
        for thing in (simulation.aggregator, simulation.keygen, user, role):
            _STATES.append((type(thing).load, thing.dump()))
            _STATES.append((type(thing.enrolment).load, thing.enrolment.dump()))
    load, good = data.draw(st.sampled_from(_STATES))
    place = data.draw(st.integers(0, len(good) - 1))
    flipped = (
        good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    )
    bad = data.draw(st.sampled_from([good[:place], good + b"x", flipped, b""]))
    with pytest.raises(HostileFile):
        load(bad)


_STATES: list[tuple[Callable, bytes]] = []


def test_states_of_one_kind_are_not_read_as_another(start: Callable) -> None:
    with pytest.raises(HostileFile, match="not a saved state of kind"):
        KeyGenerator.load(start().simulation.aggregator.dump())


def test_a_message_for_the_models_round_is_needed(start: Callable) -> None:
    started = start()
    user = started.simulation.users[1]
    user.expect(bytes(32))
    started.deliver()
    seen = started.route(started.simulation.aggregator.close())
    assert any(
        m.data[5] == 5 for m in seen
    )  # user 1 confirms no round on a model it did not compute
    assert bytes(32) != MODEL


@pytest.mark.parametrize("holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"])
def test_an_aggregator_in_files_goes_on_after_every_message(
    start: Callable, tmp_path: Path, holders
) -> None:
    """As the other, but contributions and results are in files that only grow, and the state holds
    none of them.
    """
    started = start(holders=holders)
    simulation = started.simulation
    role = Aggregator(simulation.aggregator.enrolment, kept=InFiles(tmp_path))

    def again(dumped: bytes) -> Aggregator:
        return Aggregator.load(dumped, kept=InFiles(tmp_path))

    role.open_round(1, simulation.aggregator.model)
    dumped = role.dump()
    for count, user in enumerate((4, 1, 5, 2, 6, 3), start=1):
        role = again(dumped)  # the state of when the round was opened: the rest is in the file
        assert len(role.contributors) == count - 1
        role.receive(started.sent[user][0].data)
    assert len(dumped) == len(role.dump())
    simulation.aggregator = again(dumped)
    simulation.aggregator.close()
    dumped = simulation.aggregator.dump()
    simulation.aggregator = again(dumped)
    np.testing.assert_array_equal(started.finish(), started.expected())
    simulation.aggregator = again(simulation.aggregator.dump())
    assert simulation.aggregator.phase == "done"
    assert simulation.aggregator.results(1)
    assert (
        simulation.aggregator.results(2, after=0)[0].data
        == simulation.aggregator.results(1)[0].data
    )


def test_a_torn_end_costs_only_the_contribution_that_it_was(
    start: Callable, tmp_path: Path
) -> None:
    started = start()
    role = Aggregator(started.simulation.aggregator.enrolment, kept=InFiles(tmp_path))
    role.open_round(1, started.simulation.aggregator.model)
    dumped = role.dump()
    for user in (1, 2, 3):
        role.receive(started.sent[user][0].data)
    log = tmp_path / "contributions.log"
    log.write_bytes(log.read_bytes()[:-5])
    torn = Aggregator.load(dumped, kept=InFiles(tmp_path))
    assert torn.contributors == (1, 2)
    assert [message.to for message in torn.reopen()] == [3, 4, 5, 6]
    for user in (3, 4, 5, 6):
        torn.receive(started.sent[user][0].data)
    started.simulation.aggregator = torn
    np.testing.assert_array_equal(started.finish(), started.expected())


def test_contributions_of_another_round_are_not_counted_again(
    start: Callable, tmp_path: Path
) -> None:
    started = start()
    role = Aggregator(started.simulation.aggregator.enrolment, kept=InFiles(tmp_path))
    role.open_round(1, started.simulation.aggregator.model)
    role.receive(started.sent[1][0].data)
    before = (tmp_path / "contributions.log").read_bytes()
    role.open_round(2, started.simulation.aggregator.model)
    assert (tmp_path / "contributions.log").read_bytes() == b""
    dumped = role.dump()
    (tmp_path / "contributions.log").write_bytes(before)
    assert Aggregator.load(dumped, kept=InFiles(tmp_path)).contributors == ()
