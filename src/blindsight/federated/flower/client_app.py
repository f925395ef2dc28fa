"""Flower's client app: the same for users and for the key generator; a node's folder says which it is.

Each message starts a process, so everything lives in the folder: rows, state, memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from blindsight.core.errors import BlindsightError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import KeygenService, UserService, alone

__all__ = ["app"]

app = ClientApp()


def _reply(message: Message, answers: list[bytes], refused: str = "") -> Message:
    record = ConfigRecord({"messages": answers, "refused": refused})
    return Message(RecordDict({"blindsight": record}), reply_to=message)


def _given(message: Message) -> tuple[list[bytes], bytes]:
    record: Any = message.content["blindsight"]
    return list(record["messages"]), bytes(record["announced"])


@app.train()
def contribute(message: Message, context: Context) -> Message:
    """A user's turn: an opening comes, a contribution goes."""
    home = Home(Path(str(context.node_config["home"])))
    try:
        (opening, *_), announced = _given(message)
        with alone(home):
            service = UserService(home, str(context.node_config["data"]))
            return _reply(message, [answer.data for answer in service.handle(opening, announced)])
    except BlindsightError as error:
        return _reply(message, [], str(error))


@app.query()
def open_sum(message: Message, context: Context) -> Message:
    """The key generator's turn: a request comes, a sum goes."""
    home = Home(Path(str(context.node_config["home"])))
    try:
        (request, *_), _ = _given(message)
        with alone(home):
            return _reply(message, [answer.data for answer in KeygenService(home).handle(request)])
    except BlindsightError as error:
        return _reply(message, [], str(error))
