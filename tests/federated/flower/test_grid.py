"""The server app's link and the client app over a grid in memory: Flower's own records, no sockets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from blindsight.federated.flower import client_app
from blindsight.federated.flower.coordinator import Coordinator
from blindsight.federated.flower.server_app import GridLink
from blindsight.federated.messages import KEYGEN


class MemoryGrid(Grid):
    """Delivers to the client app at once; nodes in `away` are gone, those in `mute` never answer."""

    def __init__(self, configs: dict[int, dict[str, str]]) -> None:
        self.configs = configs
        self.away: set[int] = set()
        self.mute: set[int] = set()
        self.replies: dict[str, Message] = {}
        self.sent = 0

    def set_run(self, run) -> None:
        self._run = run

    @property
    def run(self):
        return self._run

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self):
        return [node for node in self.configs if node not in self.away]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.sent += 1
            identifier = f"message {self.sent}"
            message.metadata.__dict__["_message_id"] = identifier
            node = message.metadata.dst_node_id
            if node not in self.mute:
                context = Context(
                    run_id=1, node_id=node, node_config=self.configs[node], state=RecordDict(), run_config={}
                )
                handler = client_app.open_sum if message.metadata.message_type == "query" else client_app.contribute
                self.replies[identifier] = handler(message, context)
            ids.append(identifier)
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture
def grid(federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("_task_id", "_run_id", "_node_id"):  # Flower sets these when it starts a process
        monkeypatch.setattr(TaskIdentity, name, 1)
    homes = federation(rounds=2)
    configs, nodes = {}, {}
    for node, (name, home) in enumerate(sorted(homes.items()), start=100):
        if name != "aggregator":
            configs[node] = {"home": str(home.path), "data": str(tmp_path / f"{name}.npz")}
            nodes[KEYGEN if name == "keygen" else home.number] = node
    return homes, MemoryGrid(configs), nodes


def _coordinator(homes) -> Coordinator:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    return Coordinator(homes["aggregator"], clock=lambda: now[0], pause=pause)


def test_rounds_over_the_grid_equal_the_simulation(grid, simulated) -> None:
    homes, memory, nodes = grid
    running = _coordinator(homes)
    link = GridLink(memory, nodes)
    memory.away = {nodes[2]}
    running.round(link)
    memory.away, memory.mute = set(), {nodes[3]}
    running.round(link)
    assert running.history == [(1, 3, 4, 5), (1, 2, 4, 5)]
    expected = simulated(running.plan, running.role.settings, running.history)
    np.testing.assert_array_equal(running.weights, expected)


def test_a_users_mistake_is_a_refusal_and_the_round_goes_on(grid, tmp_path: Path) -> None:
    homes, memory, nodes = grid
    (tmp_path / "user-1.npz").write_bytes(b"damaged")
    running = _coordinator(homes)
    running.round(GridLink(memory, nodes))
    assert running.history == [(2, 3, 4, 5)]
