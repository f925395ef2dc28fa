"""A round in parts, for tests that stand in the middle of one, in the place of any party."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blindsight.federated.messages import Code, Header, Kind, Message, Outgoing, Purpose, Refusal
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, Simulation

MODEL = bytes(range(32))


def refusal(answers: list[Outgoing]) -> Code:
    """The code of the one refusal that came back."""
    [answer] = answers
    message = Message.decode(answer.data, largest=10_000)
    assert message.header.kind is Kind.REFUSED
    return Refusal.decode(message.body).code


def decoded(data: bytes) -> Message:
    return Message.decode(data, largest=len(data))


def resigned(message: Message, identity: Any, body: bytes | None = None, **changes: Any) -> bytes:
    header = replace(message.header, **changes)
    return Message.make(header, message.body if body is None else body, identity).encode()


@dataclass
class Started:
    """A federation with a round open and every user's messages made, none delivered."""

    simulation: Simulation
    updates: list[NDArray[np.float64]]
    sent: dict[int, list[Outgoing]]

    @property
    def header(self) -> Header:
        return self.simulation.aggregator._header

    def deliver(self, *users: int) -> None:
        for user in users or self.sent:
            for message in self.sent[user]:
                assert self.simulation.aggregator.receive(message.data) == []

    def route(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        """Hand messages around until nobody has anything to say; what came last, by whom it was
        for.
        """
        seen = []
        queue = list(outgoing)
        while queue:
            message = queue.pop(0)
            seen.append(message)
            queue.extend(self.simulation._party(message.to).receive(message.data))
        return seen

    def finish(self) -> NDArray[np.float64]:
        aggregator = self.simulation.aggregator
        self.route(aggregator.close())
        assert aggregator.result is not None, aggregator.refusals
        self.route(aggregator.results())
        return self.simulation.settings.code.decode(aggregator.result.values)

    def expected(self, *users: int) -> NDArray[np.float64]:
        code = self.simulation.settings.code
        return code.decode(sum(code.encode(self.updates[u - 1]) for u in users or tuple(self.sent)))

    def again(self, number: int, model: bytes = MODEL, **options: Any) -> None:
        """Another round with the same updates."""
        for opening in self.simulation.aggregator.open_round(number, model, **options):
            assert self.simulation.users[opening.to].receive(opening.data) == []
        self.sent = {
            n: user.contribute(self.updates[n - 1]) for n, user in self.simulation.users.items()
        }


@pytest.fixture
def start(small_key: PrivateKey) -> Callable[..., Started]:
    def make(
        *,
        users: int = 6,
        dimension: int = 120,
        seed: int = 0,
        updates: list | None = None,
        **options: Any,
    ) -> Started:
        settings = Settings(dimension=dimension, users=users, **options)
        simulation = Simulation(settings, key=None if settings.holders else small_key)
        if updates is None:
            updates = list(np.random.default_rng(seed).uniform(-1, 1, (users, dimension)))
        started = Started(simulation, updates, {})
        started.again(
            1, **({"purpose": Purpose.VOTES} if settings.least_per_coordinate > 1 else {})
        )
        return started

    return make
