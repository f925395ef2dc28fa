"""A Flower grid in this process: each message is handled by a client app built anew, as a killed
and restarted node would, and everything that is sent is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from blindsight.federated.flower import register_protocol, secure_sum_mod, simulated_site

__all__ = ["FIRST_NODE", "Arrays", "LocalGrid", "Sites", "arrays_of", "record", "values_in"]

FIRST_NODE = 1000  # node ids are not party numbers
Arrays = dict[str, NDArray[Any]]


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def arrays_of(arrays: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in arrays.items()}


def values_in(content: RecordDict) -> Iterator[bytes]:
    """The bytes of everything in a message's content."""
    for entry in content.values():
        for value in entry.values():
            if isinstance(value, Array):
                yield value.data
            else:
                for item in value if isinstance(value, list) else [value]:
                    yield item if isinstance(item, bytes) else repr(item).encode()


@dataclass
class Sites:
    """What each site's app does: adds its own change, and tells its number of examples."""

    root: Path
    changes: list[Arrays]
    examples: list[int]
    trained: list[int] = field(default_factory=list)

    def secure_app(self, **options: Any) -> ClientApp:
        mod = secure_sum_mod(simulated_site(self.root), **options)
        return self.app(register_protocol(ClientApp(mods=[mod])))

    def app(self, app: ClientApp) -> ClientApp:

        @app.train()
        def train(message: Message, context: Context) -> Message:
            site = int(context.node_config["partition-id"])
            self.trained.append(site)
            after = {
                name: (value + self.changes[site][name]).astype(value.dtype)
                for name, value in arrays_of(message.content["arrays"]).items()
            }
            metrics = MetricRecord({"num-examples": self.examples[site], "train-loss": 0.123})
            content = RecordDict({"arrays": record(after), "metrics": metrics})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            site = int(context.node_config["partition-id"])
            metrics = MetricRecord({"num-examples": self.examples[site], "accuracy": 0.5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app


class LocalGrid(Grid):
    """Calls client apps; `away` nodes never answer, and `lost` decides which replies get lost."""

    def __init__(self, make_app: Callable[[], ClientApp], nodes: int) -> None:
        self.make_app, self.nodes = make_app, nodes
        self.away: set[int] = set()
        self.lost: Callable[[Message], bool] = lambda reply: False
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.replies: list[Message] = []

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST_NODE + number for number in range(self.nodes)]

    def handle(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(
            run_id=1,
            node_id=node,
            node_config={"partition-id": node - FIRST_NODE},
            state=RecordDict(),
            run_config={},
        )
        try:
            return self.make_app()(message, context)
        except Exception as error:  # as Flower's own engines do
            return Message(Error(0, str(error)), reply_to=message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        answered = []
        for message in messages:
            self.sent.append((message.metadata.message_type, dict(message.content.items())))
            if message.metadata.dst_node_id - FIRST_NODE in self.away:
                continue
            reply = self.handle(message)
            self.replies.append(reply)
            if not self.lost(reply):
                answered.append(reply)
        return answered
