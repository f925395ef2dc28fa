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
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Aggregator, Durable, KeyGenerator, Settings, Simulation, User
from blindsight.federated.protocol.enrolment import AggregatorEnrolment, KeygenEnrolment, UserEnrolment
from blindsight.federated.wire import read_sealed, write_sealed


@pytest.mark.parametrize("mode", ["block", "paper"])
def test_aggregator_goes_on_after_every_message(start: Callable, mode: str) -> None:
    started = start(mode=mode)
    simulation = started.simulation
    for user in (1, 2, 4, 5):
        for message in started.sent[user]:
            simulation.aggregator.receive(message.data)
            simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
    assert simulation.aggregator.contributors == (1, 2, 4, 5)
    [request] = simulation.aggregator.close()
    simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
    assert simulation.aggregator.close() == [request]
    [answer] = simulation.keygen.receive(request.data)
    simulation.aggregator.receive(answer.data)
    simulation.aggregator = Aggregator.load(simulation.aggregator.dump())
    assert simulation.aggregator.phase == "done"
    code = simulation.settings.code
    np.testing.assert_array_equal(code.decode(simulation.aggregator.result.values), started.expected(1, 2, 4, 5))


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


def test_aggregator_survives_kill_nine(start: Callable, tmp_path: Path) -> None:
    started = start()
    state = tmp_path / "aggregator.state"
    write_sealed(state, started.simulation.aggregator.dump())
    files = []
    for user, [message] in started.sent.items():
        files.append(tmp_path / f"user{user}")
        files[-1].write_bytes(message.data)
    for part in (files[:2], files[2:4]):
        child = subprocess.run([sys.executable, "-c", CHILD, state, *part], check=False)
        assert child.returncode == -signal.SIGKILL
    started.simulation.aggregator = Aggregator.load(read_sealed(state))
    assert started.simulation.aggregator.contributors == (1, 2, 3, 4)
    missing = started.simulation.aggregator.reopen()
    assert [message.to for message in missing] == [5]
    np.testing.assert_array_equal(started.finish(), started.expected(1, 2, 3, 4))


def test_steps_are_saved_before_their_messages_leave(start: Callable, tmp_path: Path) -> None:
    started = start()
    started.deliver(1, 2, 3)
    durable = Durable(started.simulation.aggregator, tmp_path / "state")
    [request] = durable.act(started.simulation.aggregator.close)
    restarted = Aggregator.load(read_sealed(tmp_path / "state"))
    assert restarted.phase == "closed"
    assert restarted.close() == [request]


def test_states_are_private_files_written_whole(start: Callable, tmp_path: Path) -> None:
    path = tmp_path / "keygen.state"
    durable = Durable(start().simulation.keygen, path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    durable.receive(b"noise")
    assert [entry.name for entry in tmp_path.iterdir()] == ["keygen.state"]
    with pytest.raises(HostileFile, match="at most"):
        read_sealed(path, largest=10)


def test_a_failed_write_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    write_sealed(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_sealed(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert path.read_bytes() == b"old"


def test_key_generator_remembers_that_it_opened_a_round(start: Callable) -> None:
    started = start()
    started.deliver(1, 2, 3)
    [request] = started.simulation.aggregator.close()
    [answer] = started.simulation.keygen.receive(request.data)
    restarted = KeyGenerator.load(started.simulation.keygen.dump())
    assert restarted.receive(request.data) == [answer]
    other = start(seed=4)
    other.deliver()
    [second] = other.simulation.aggregator.close()
    assert restarted.receive(second.data)[0].data[5] == 5
    assert "KeyGenerator(512 bits" in repr(restarted)


def test_a_user_restarted_in_mid_round_goes_on(small_key: PrivateKey) -> None:
    simulation = Simulation(Settings(dimension=20, users=3), key=small_key, workers=1)
    opening = {message.to: message.data for message in simulation.aggregator.open_round(1, bytes(32))}
    user = simulation.users[2]
    user.receive(opening[2])
    before = User.load(user.dump(), workers=1)
    assert before.waiting
    sent = before.contribute(np.full(20, 0.5))
    after = User.load(before.dump(), workers=1)
    assert not after.waiting
    assert after.receive(opening[2]) == sent
    with pytest.raises(ProtocolError):
        after.contribute(np.full(20, 0.5))


@given(data=st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_states_are_refused(small_key: PrivateKey, data: st.DataObject) -> None:
    if not _STATES:
        simulation = Simulation(Settings(dimension=6, users=3), key=small_key, workers=1)
        simulation.round([np.full(6, 0.5)] * 3)
        user = simulation.users[1]
        _STATES.extend(
            [
                (Aggregator.load, simulation.aggregator.dump()),
                (KeyGenerator.load, simulation.keygen.dump()),
                (User.load, user.dump()),
                (UserEnrolment.load, user.enrolment.dump()),
                (AggregatorEnrolment.load, simulation.aggregator.enrolment.dump()),
                (KeygenEnrolment.load, simulation.keygen.enrolment.dump()),
            ]
        )
    load, good = data.draw(st.sampled_from(_STATES))
    place = data.draw(st.integers(0, len(good) - 1))
    flipped = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    bad = data.draw(st.sampled_from([good[:place], good + b"x", flipped, b""]))
    with pytest.raises(HostileFile):
        load(bad)


_STATES: list[tuple[Callable, bytes]] = []


def test_states_of_one_kind_are_not_read_as_another(start: Callable) -> None:
    simulation = start().simulation
    with pytest.raises(HostileFile, match="not a saved state of kind"):
        KeyGenerator.load(simulation.aggregator.dump())
