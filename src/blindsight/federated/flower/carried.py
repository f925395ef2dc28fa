"""Flower's messages in parts, as its APIs take them: the message itself, a tree of objects, and their contents.

Parties and aggregator are resident processes that speak these APIs themselves. Flower's own way, a process for each
message, costs seconds of start-up a message, and its waiting loops sleep for seconds.
"""

from __future__ import annotations

import threading
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
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects

__all__ = ["Beat", "content_of", "pull", "push", "record"]

_RECORD = "blindsight"


def record(messages: list[bytes], announced: bytes = b"") -> RecordDict:
    """Messages of the protocol as Flower's content."""
    return RecordDict({_RECORD: ConfigRecord({"messages": messages, "announced": announced})})


def content_of(message: Message) -> tuple[list[bytes], bytes]:
    """What `record` wrote."""
    found: Any = message.content[_RECORD]
    return [bytes(data) for data in found["messages"]], bytes(found["announced"])


def push(client: Any, message: Message, ask: Callable[[Any, Any], Any], *, node: Any, run: int) -> Any:
    """Send a message: `ask(message, tree)` announces it, then its objects follow. What was answered to `ask`."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        bare, tree = message_to_proto(remove_content_from_message(message)), get_object_tree(message)
        answer = ask(bare, tree)
        put = make_push_object_fn_protobuf(client.PushObject, node, run, answer.session_id)
        push_objects(get_all_nested_objects(message), put, object_ids_to_push=set(answer.objects_to_push))
    return answer


def pull(client: Any, bare: Any, tree: Any, *, node: Any, run: int) -> Message:
    """The message whose announcement came: its objects may still be on their way."""
    get = make_pull_object_fn_protobuf(client.PullObject, node, run)
    contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], get, initial_backoff=0.05)
    name = bare.metadata.message_id
    client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name))
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
