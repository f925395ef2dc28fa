"""The aggregator's end over Flower: a SuperLink as a child of this process, and a `Link` for the
coordinator on it.

The SuperLink keeps everything in memory: what matters is in the parties' folders. Should it die, it
is started again, the nodes' keys are registered anew, and whoever comes back is asked again. The
server's task is claimed by this process itself, with a secret that only it and the SuperLink know.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
from flwr.app import Message, MessageType
from flwr.cli.build import build_fab_from_files
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.typing import SuperLinkConnection
from flwr.cli.utils import init_http_client_from_connection
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import fab_to_proto
from flwr.proto import control_pb2 as control
from flwr.proto import runtime_pb2 as runtime
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from blindsight.core.errors import ProtocolError
from blindsight.federated.flower.carried import Beat, content_of, pull, push, record
from blindsight.federated.flower.coordinator import party
from blindsight.federated.flower.homes import Home, write_secret
from blindsight.federated.flower.processes import end, reached_at, start_superlink, wait_for_port
from blindsight.federated.messages import Outgoing, sent_by

__all__ = ["SuperLinkLink", "has_ended", "superlink"]

_log = logging.getLogger(__name__)
_LOOK = 0.5  # seconds between two looks at who is there
_BEAT = 8.0
_APP = b"""\
[project]
name = "blindsight-federation"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "blindsight"

[tool.flwr.app.components]
serverapp = "blindsight.federated.flower.running:run_aggregator"
clientapp = "blindsight.federated.mailbox.party:keep_party"
"""
_FILES = {
    "pyproject.toml": _APP,
    "README.md": b"The parties run Blindsight themselves; this names what they run.\n",
}


class SuperLinkLink:
    """Messages over a SuperLink, which is kept alive as long as this is used."""

    def __init__(
        self, home: Home, *, bind: str | None = None, say: Callable[[str], None] = _log.warning
    ) -> None:
        self.home, self._bind, self._say = home.require("aggregator"), bind, say
        self._address = reached_at(home, bind)
        self._secret = secrets.token_bytes(32)
        self._log = home.path / "superlink.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self._beat: Beat | None = None
        self._node, self._run = Node(node_id=SUPERLINK_NODE_ID), 0
        self._nodes: dict[int, int] = {}
        self._waiting: dict[str, int] = {}
        self._coming: list[
            tuple[int, Any, Any]
        ] = []  # answers that were announced: their objects follow
        self._active: dict[int, str] = {}
        self._looked = -float("inf")
        self.seen: set[int] = set()
        self._connect()

    def push(self, messages: Iterable[Outgoing], announced: bytes) -> None:
        """Send to the parties that are there."""
        for message in messages:
            if self._nodes.get(message.to) in self._active:
                self._call(partial(self._send, message, announced))

    def pull(self) -> list[bytes]:
        """What came; an error in place of an answer counts as lost."""
        found: list[bytes] = []
        if self._waiting or self._coming:
            self._call(lambda: found.extend(self._receive()))
        return found

    def back(self) -> set[int]:
        """Parties that came, or came back, since the last look."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return set()
        self._looked = now
        seen: dict[int, str] = {}
        self._call(lambda: seen.update(self._present()))
        news = {
            number
            for number, node in self._nodes.items()
            if seen.get(node) not in (None, self._active.get(node))
        }
        self._active = seen
        self.seen |= news
        # Who joins anew was killed, perhaps in the middle of an answer: the rest of it never comes.
        self._coming = [answer for answer in self._coming if answer[0] not in news]
        return news

    def unread(self) -> set[int]:
        """Parties that have not answered yet."""
        return {*self._waiting.values(), *(number for number, _, _ in self._coming)}

    def close(self) -> None:
        """Stop the SuperLink."""
        self._disconnect()
        if self._process is not None:
            end(self._process)

    def _call(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except (httpx.HTTPError, ObjectPushError, ValueError) as error:
            died = self._process is None or has_ended(self._process, error)
            self._say(
                f"the SuperLink {'stopped' if died else 'does not answer'} ({error}); connecting "
                "again"
            )
            self._connect()

    def _present(self) -> dict[int, str]:
        return {
            node.node_id: node.last_activated_at
            for node in self._client.GetNodes(runtime.GetNodesRequest()).nodes
        }

    def _send(self, message: Outgoing, announced: bytes) -> None:
        sent = Message(
            record([message.data], announced),
            dst_node_id=self._nodes[message.to],
            message_type=MessageType.TRAIN,
        )

        def ask(bare: Any, tree: Any) -> Any:
            request = runtime.PushAppMessagesRequest(
                messages_list=[bare], message_object_trees=[tree]
            )
            return self._client.PushMessages(request)

        answer = push(self._client, sent, ask, node=self._node, run=self._run)
        self._waiting.update((name, message.to) for name in answer.message_ids if name)

    def _receive(self) -> Iterator[bytes]:
        if self._waiting:
            request = runtime.PullAppMessagesRequest(message_ids=list(self._waiting))
            found = self._client.PullMessages(request)
            for bare, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                self._coming.append(
                    (self._waiting.pop(bare.metadata.reply_to_message_id, 0), bare, tree)
                )
        coming, self._coming = self._coming, []
        for number, bare, tree in coming:
            try:
                reply = pull(self._client, bare, tree, node=self._node, run=self._run, patience=0.0)
            except TimeoutError:
                self._coming.append((number, bare, tree))  # the others are not kept waiting
                continue
            except ObjectPullError as error:
                _log.info(
                    "an answer got lost: %s", error
                )  # who sent it joins anew, and is asked again
                continue
            if reply.has_error():
                _log.info("no answer: %s", reply.error.reason)
            else:
                yield from (data for data in content_of(reply)[0] if sent_by(data, number))

    def _connect(self) -> None:
        """A living SuperLink, the parties' keys in it, and a run whose server task is ours."""
        self._disconnect()
        for _ in range(3):
            if self._process is None or self._process.poll() is not None:
                self._start()
            try:
                self._submit()
                self._claim()
                return
            except (httpx.HTTPError, ProtocolError) as error:
                self._say(f"the SuperLink at {self._address} is not ready ({error})")
                time.sleep(0.5)
        raise ProtocolError(
            f"the SuperLink at {self._address} cannot be used; its log is {self._log}."
        )

    def _disconnect(self) -> None:
        if self._beat is not None:
            self._beat.stop()
        if self._client is not None:
            self._client.close()
        self._client, self._beat = None, None
        self._waiting.clear()
        self._coming.clear()
        self._active.clear()

    def _start(self) -> None:
        write_secret(self.home.path / "superlink.secret", self._secret)
        with self._log.open("ab") as output:
            self._process = start_superlink(
                self.home, bind=self._bind, stdout=output, stderr=subprocess.STDOUT
            )
        wait_for_port(self._address, self._process, log=self._log)
        self._nodes = {}

    def _submit(self) -> None:
        authority = str((self.home.path / "ca.pem").resolve())
        connection = SuperLinkConnection(
            name="blindsight", address=self._address, root_certificates=authority, insecure=False
        )
        with contextlib.redirect_stdout(sys.stderr):  # Flower says hello on standard output
            client = init_http_client_from_connection(connection)
        try:
            for path in () if self._nodes else sorted((self.home.path / "nodes").glob("*.pub")):
                request = control.RegisterNodeRequest(
                    public_key=try_load_public_key(path), name=path.stem
                )
                self._nodes[party(path.stem)] = int(client.RegisterNode(request=request).node_id)
            content = build_fab_from_files(_FILES)[0]
            fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
            client.StartRun(control.StartRunRequest(fab=fab_to_proto(fab), federation=""))
        finally:
            client.close()

    def _claim(self) -> None:
        """Take the run's server task, and speak to the SuperLink with the task's token from here
        on.
        """
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        authority = (self.home.path / "ca.pem").read_bytes()
        secret = SuperExecAuthHttpInterceptor(
            master_secret=self._secret,
            protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
        )
        first = RuntimeHttpClient.from_server_address(
            self._address, False, authority, [version, secret]
        )
        try:
            wanted = runtime.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            claimed = first.AcquireTask(wanted)
        finally:
            first.close()
        if not claimed.token:
            raise ProtocolError("there is no task to claim")
        token = RuntimeTokenHttpInterceptor(token=claimed.token)
        self._client = RuntimeHttpClient.from_server_address(
            self._address, False, authority, [version, token]
        )
        given = self._client.PullTaskInput(runtime.PullTaskInputRequest())
        self._run = int(given.run.run_id)
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        client = self._client
        self._beat = Beat(
            lambda: client.SendTaskHeartbeat(runtime.SendTaskHeartbeatRequest()), every=_BEAT
        )


def has_ended(process: subprocess.Popen[bytes], error: Exception, *, seconds: float = 10.0) -> bool:
    """Whether a SuperLink that failed to answer has ended.

    A connection that is closed or refused comes from a process that is ending: a killed process
    closes its sockets before its parent can reap it, so its end is waited for. A process that took
    too long, or answered with an error, is only looked at.
    """
    slow = isinstance(error, httpx.TimeoutException)
    try:
        ending = isinstance(error, httpx.TransportError) and not slow
        process.wait(timeout=seconds if ending else 0)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def superlink(
    home: Home, *, bind: str | None, say: Callable[[str], None]
) -> Iterator[SuperLinkLink]:
    """A link over a SuperLink, for as long as the context lasts."""
    link = SuperLinkLink(home, bind=bind, say=say)
    try:
        yield link
    finally:
        link.close()
