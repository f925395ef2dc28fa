"""A round in parts, for tests that stand in the middle of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from blindsight.federated.messages import Outgoing
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, Simulation

MODEL = bytes(range(32))


@dataclass
class Started:
    """A federation with round 1 open and every user's messages made, none delivered."""

    simulation: Simulation
    updates: list[NDArray[np.float64]]
    sent: dict[int, list[Outgoing]]

    def deliver(self, *users: int) -> None:
        for user in users or self.sent:
            for message in self.sent[user]:
                assert self.simulation.aggregator.receive(message.data) == []

    def finish(self) -> NDArray[np.float64]:
        aggregator, keygen = self.simulation.aggregator, self.simulation.keygen
        for request in aggregator.close():
            for answer in keygen.receive(request.data):
                aggregator.receive(answer.data)
        assert aggregator.result is not None
        return self.simulation.settings.code.decode(aggregator.result.values)

    def expected(self, *users: int) -> NDArray[np.float64]:
        code = self.simulation.settings.code
        chosen = users or tuple(self.sent)
        return code.decode(sum(code.encode(self.updates[u - 1]) for u in chosen))


def sparse(rng: np.random.Generator, users: int, dimension: int, density: float = 0.3) -> list[NDArray[np.float64]]:
    shape = (users, dimension)
    return list(np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0.0))


@pytest.fixture
def start(small_key: PrivateKey) -> Callable[..., Started]:
    def make(
        *, users: int = 5, dimension: int = 120, density: float = 0.3, seed: int = 0, **options: object
    ) -> Started:
        options.setdefault("least_per_coordinate", 1)
        settings = Settings(dimension=dimension, users=users, **options)  # type: ignore[arg-type]
        simulation = Simulation(settings, key=small_key, workers=1)
        updates = sparse(np.random.default_rng(seed), users, dimension, density)
        for opening in simulation.aggregator.open_round(1, MODEL):
            assert simulation.users[opening.to].receive(opening.data) == []
        sent = {n: user.contribute(updates[n - 1]) for n, user in simulation.users.items()}
        return Started(simulation, updates, sent)

    return make
