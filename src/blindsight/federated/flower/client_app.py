"""Flower's client app: the same for users, key generator and holders; a node's folder says which it is.

Each message starts a process, so everything lives in the folder: rows, state, memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from blindsight.core.errors import BlindsightError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import alone, open_service

__all__ = ["app"]

app = ClientApp()


def _reply(message: Message, answers: list[bytes], refused: str = "") -> Message:
    record = ConfigRecord({"messages": answers, "refused": refused})
    return Message(RecordDict({"blindsight": record}), reply_to=message)


def _given(message: Message) -> tuple[list[bytes], bytes]:
    record: Any = message.content["blindsight"]
    return list(record["messages"]), bytes(record["announced"])


def _answer(message: Message, context: Context) -> Message:
    home = Home(Path(str(context.node_config["home"])))
    try:
        (given, *_), announced = _given(message)
        with alone(home):
            service = open_service(home, context.node_config.get("data"))  # type: ignore[arg-type]
            return _reply(message, [answer.data for answer in service.handle(given, announced)])
    except BlindsightError as error:
        return _reply(message, [], str(error))


@app.train()
def contribute(message: Message, context: Context) -> Message:
    """A user's turn."""
    return _answer(message, context)


@app.query()
def open_sum(message: Message, context: Context) -> Message:
    """The turn of who opens sums."""
    return _answer(message, context)
