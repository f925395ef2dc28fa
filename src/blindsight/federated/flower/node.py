"""A party's end over Flower: the same fetch and answer as over HTTPS, by the API that SuperNodes
use.

One resident process for each party. It signs every request with its node key, so the SuperLink lets
nobody else in.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from blindsight.federated.flower.carried import Beat, content_of, pull, push, record
from blindsight.federated.flower.homes import Home, write_secret

__all__ = ["NodeClient"]

_BEAT = 10.0  # seconds; a node that was not heard of for two of them counts as away
_PATIENCE = (
    60.0  # seconds for the rest of a message; then the node joins anew, and is sent it again
)
_SOON, _LATER = 0.2, 0.7  # seconds between two looks: after work, and while nothing happens


class NodeClient:
    """One party's connection to the SuperLink."""

    def __init__(self, home: Home) -> None:
        self.home = home
        private: Any = load_ssh_private_key((home.path / "node.key").read_bytes(), None)
        self._public = public_key_to_bytes(private.public_key())
        self._client = FleetHttpClient.from_server_address(
            home.about["address"],
            False,
            (home.path / "ca.pem").read_bytes(),
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        )
        self._node: Any = None
        self._beat: Beat | None = None
        self._asked: Message | None = None
        self._place = 0
        self._worked = 0.0

    def fetch(self) -> list[tuple[int, bytes, bytes]]:
        """The next message, or nothing after a while."""
        try:
            if self._node is None:
                self._join()
            found = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not found.messages_list:
                time.sleep(_SOON if time.monotonic() - self._worked < 3 else _LATER)
                return []
            bare, tree = found.messages_list[0], found.message_object_trees[0]
            message = message_from_proto(bare)
            run = message.metadata.run_id
            self._asked = pull(
                self._client, bare, tree, node=self._node, run=run, patience=_PATIENCE
            )
        except (httpx.HTTPError, ObjectPullError, TimeoutError) as error:
            raise self._away(error) from error
        self._place, self._worked = self._place + 1, time.monotonic()
        messages, announced = content_of(self._asked)
        return [(self._place, data, announced) for data in messages]

    def answer(self, answers: list[bytes], place: int) -> None:
        """Reply, also where there is nothing to say: the SuperLink counts replies."""
        if self._asked is None:
            return
        reply, run = Message(record(answers), reply_to=self._asked), self._asked.metadata.run_id

        def ask(bare: Any, tree: Any) -> Any:
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[bare],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
            return self._client.PushMessages(request)

        try:
            push(self._client, reply, ask, node=self._node, run=run)
        except (httpx.HTTPError, ObjectPushError) as error:
            raise self._away(error) from error
        self._asked, self._worked = None, time.monotonic()

    def _join(self) -> None:
        """Activate; a node that was killed still counts as there, and has to be deactivated
        first.
        """
        known = self.home.path / "node.id"
        if known.exists():
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=int(known.read_text())))
        found = self._client.ActivateNode(
            ActivateNodeRequest(public_key=self._public, heartbeat_interval=_BEAT)
        )
        write_secret(known, str(found.node_id).encode())
        self._node = Node(node_id=found.node_id)
        self._beat = Beat(self._alive, every=0.7 * _BEAT)

    def _alive(self) -> None:
        self._client.SendNodeHeartbeat(
            SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_BEAT)
        )

    def _away(self, error: Exception) -> ConnectionError:
        """Join anew next time: the SuperLink may be another one."""
        self._forget()
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (
            400,
            401,
            403,
            404,
            412,
        ):
            return ConnectionError("it does not know this party, or not yet")
        return ConnectionError(str(error) or type(error).__name__)

    def _forget(self) -> None:
        self._node, self._asked = None, None
        if self._beat is not None:
            self._beat.stop()

    def close(self) -> None:
        """Leave."""
        node = self._node
        self._forget()
        if node is not None:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
        self._client.close()
