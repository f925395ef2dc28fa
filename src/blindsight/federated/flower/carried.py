"""Flower's messages in parts, as its APIs take them: the message itself, a tree of objects, and
their contents.

Parties and aggregator are resident processes that speak these APIs themselves. Flower's own way, a
process for each message, costs seconds of start-up a message, and its waiting loops sleep for
seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
    push_objects,
)

__all__ = ["Beat", "content_of", "pull", "push", "record"]

_RECORD = "blindsight"


def record(messages: list[bytes], announced: bytes = b"") -> RecordDict:
    """Messages of the protocol as Flower's content."""
    return RecordDict({_RECORD: ConfigRecord({"messages": messages, "announced": announced})})


def content_of(message: Message) -> tuple[list[bytes], bytes]:
    """What `record` wrote."""
    found: Any = message.content[_RECORD]
    return [bytes(data) for data in found["messages"]], bytes(found["announced"])


def push(
    client: Any, message: Message, ask: Callable[[Any, Any], Any], *, node: Any, run: int
) -> Any:
    """Send a message: `ask(message, tree)` announces it, then its objects follow.

    What was answered to `ask`.
    """
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        bare, tree = (
            message_to_proto(remove_content_from_message(message)),
            get_object_tree(message),
        )
        answer = ask(bare, tree)
        put = make_push_object_fn_protobuf(client.PushObject, node, run, answer.session_id)
        push_objects(
            get_all_nested_objects(message), put, object_ids_to_push=set(answer.objects_to_push)
        )
    return answer


def pull(client: Any, bare: Any, tree: Any, *, node: Any, run: int, patience: float) -> Message:
    """The message whose announcement came: its objects may still be on their way.

    `TimeoutError` where one is not there after `patience` seconds. Flower's own loop would wait for
    two hours for what a sender that was killed never sends.
    """
    get, over = (
        make_pull_object_fn_protobuf(client.PullObject, node, run),
        time.monotonic() + patience,
    )
    contents: dict[str, bytes] = {}
    for part in iterate_object_tree(tree):
        while part.object_id not in contents:
            try:
                contents[part.object_id] = get(part.object_id)
            except ObjectUnavailableError as error:
                if time.monotonic() >= over:
                    raise TimeoutError(str(error)) from None
                time.sleep(0.05)
    name = bare.metadata.message_id
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
    )
    message: Message = inflate_object_from_contents(name, contents)
    message.metadata.__dict__["_message_id"] = name
    return message


class Beat:
    """Says "still here" every few seconds, from a thread, whatever the process is busy with."""

    def __init__(self, say: Callable[[], Any], *, every: float) -> None:
        self._say, self._every, self._over = say, every, threading.Event()
        threading.Thread(target=self._run, name="beat", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._say()
            except (httpx.HTTPError, RuntimeError):
                continue  # whoever speaks next notices, and says so

    def stop(self) -> None:
        """No more."""
        self._over.set()
