"""The server's side of the secure sum in a Flower app: strategies that see only sums."""

from __future__ import annotations

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.deploy.server import MailboxLink, mailboxes
from blindsight.federated.flower.mod import QUERY_TYPE, RECORD_KEY
from blindsight.federated.flower.parties import Server
from blindsight.federated.flower.plan import Model
from blindsight.federated.sums import Outgoing
from blindsight.federated.sums.messages import Kind, is_holder

__all__ = ["SecureFedAvg", "SecureSumMixin"]

_log = logging.getLogger(__name__)
_MOST_EXCHANGES = 6  # answers to answers, so that a client cannot keep the server busy forever
_ASK_HOLDERS = 3  # times, before a round is abandoned
_POLL = 0.05  # seconds between two polls for answers of holders outside Flower


class SecureSumMixin:
    """Secure sum for a strategy: `class SecureFedAdam(SecureSumMixin, FedAdam)`.

    The strategy chooses the nodes of a round and their settings as usual. The clients' updates
    arrive as contributions to a secure sum, and the strategy aggregates a single reply, which holds
    the model moved by the weighted mean. The server never sees a client's arrays, metrics or number
    of examples. If the strategy does not move the model by exactly this mean, the plan needs
    `follows_mean=False`.

    Key holders are nodes of Flower, or separate processes (`blindsight federate run FOLDER`) that
    fetch their messages by HTTPS from the aggregator's address, if it joined with one.

    Parameters:
        folder: the aggregator's folder, with a roster.
        protocol_timeout: how many seconds to wait for the answers to one message of the protocol.
        bind: the host at which the server listens for holders that are separate processes; by
            default that of its address.
        options: the keywords of the strategy. Federated evaluation is off unless
            `fraction_evaluate` is given: its replies would show clients' metrics and numbers of
            examples, and clients answer them only with `secure_sum_mod(plain_replies=True)`.
    """

    arrayrecord_key: str
    weighted_by_key: str

    def __init__(
        self,
        folder: str | Path,
        *,
        protocol_timeout: float = 600.0,
        bind: str | None = None,
        **options: Any,
    ) -> None:
        self.server = Server(folder)
        settings = self.server.roster.settings
        enough = max(settings.fewest, settings.needed)
        super().__init__(**{"fraction_evaluate": 0.0, "min_available_nodes": enough, **options})
        self.protocol_timeout = checks.positive("protocol_timeout", protocol_timeout)
        self._grid: Grid | None = None
        self._bind, self._link = bind, MailboxLink(())  # no mailboxes, unless the server listens
        self._nodes: dict[int, int] = {}  # Flower's node id of each party number
        self._identified: set[int] = set()
        self._content = RecordDict()
        self._train_type = ""
        self._model: Model | None = None
        if self.server.plan.simulation:
            _log.warning("This federation is a simulation: all keys were made on one machine.")

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **options: Any) -> Result:
        """Run the rounds; a federation that already had rounds continues from its last model.

        Parameters:
            grid: Flower's grid.
            initial_arrays: the model to start from; ignored if the folder has a later one.
            args: passed to the strategy's `start`.
            options: passed to the strategy's `start`.
        """
        if self.server.model is not None:
            initial = Model.of_record(initial_arrays)
            if initial.layout != self.server.model.layout:
                raise InvalidParameter(
                    "initial_arrays must have the names, types and shapes of the model that this "
                    "federation has had rounds with. For another model enrol anew."
                )
            _log.warning("Continuing from the model of the last sum, not from initial_arrays.")
            initial_arrays = _record(self.server.model)
        folder = self.server.folder
        listening = "address" in folder.about
        largest = self.server.role.largest_message + 65_536
        with (
            mailboxes(folder, largest=largest, bind=self._bind)
            if listening
            else nullcontext(MailboxLink(()))
        ) as self._link:
            return super().start(grid, initial_arrays, *args, **options)  # type: ignore[misc]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages to users, each with the opening of the round."""
        self._grid = grid
        messages = list(
            super().configure_train(  # type: ignore[misc]
                server_round, arrays, config, grid
            )
        )
        if not messages:
            return []
        self._content, self._train_type = (
            messages[0].content,
            messages[0].metadata.message_type,
        )
        self._model = Model.of_record(arrays)
        if len(self._model.vector) != self.server.plan.weights:
            raise InvalidParameter(
                f"the arrays must hold {self.server.plan.weights} numbers, as agreed on, got "
                f"{len(self._model.vector)}."
            )
        self._identify(grid)
        role = self.server.role
        if role.seeds_missing:
            first = self.server.roster.users[1].name
            _log.warning("Rounds have no sum before %r was connected once.", first)
        opening = role.open_round(
            role.round + 1,
            self._model.digest,
            users=self._invited({message.metadata.dst_node_id for message in messages}),
        )
        self.server.save()
        return self._packed(opening)

    def _users(self) -> list[int]:
        return sorted(set(self._nodes) & set(self.server.roster.users))

    def _invited(self, nodes: set[int]) -> list[int]:
        """Return the users at the sampled nodes, or all users if their set may not be opened."""
        left_out = self.server.role.excluded  # holders could not read their shares
        everybody = [user for user in self._users() if user not in left_out]
        sampled = [user for user in everybody if self._nodes[user] in nodes]
        if self.server.role.could_open(sampled):
            return sampled
        if len(sampled) < len(everybody):
            settings = self.server.roster.settings
            _log.warning(
                "The %d sampled sites cannot be summed, so that all %d are asked: a sum needs %d "
                "to %d sites, and its difference to earlier sums must show none. To sample, enrol "
                "with most_users= and across_rounds=False.",
                *(len(sampled), len(everybody), settings.fewest, settings.largest_round),
            )
        return everybody

    def _identify(self, grid: Grid) -> None:
        """Ask new nodes which party they are; each answer is signed by the party's own key."""
        online = set(grid.get_node_ids())
        self._nodes = {party: node for party, node in self._nodes.items() if node in online}
        self._identified &= online
        challenge, missing = secrets.token_bytes(32), self.server.role.seeds_missing > 0
        question = ConfigRecord({"challenge": challenge, "seeds": missing})
        first = self._nodes.get(1) if missing else None  # user 1 has the seeds
        questions = [
            Message(
                RecordDict({RECORD_KEY: question}),
                dst_node_id=node,
                message_type=QUERY_TYPE,
            )
            for node in sorted(online - (self._identified - {first}))
        ]
        if not questions:
            return
        outgoing: list[Outgoing] = []
        for reply in grid.send_and_receive(questions, timeout=self.protocol_timeout):
            record = self._protocol_record(reply)
            if record is not None:
                self._learn_node(reply.metadata.src_node_id, record, challenge)
                outgoing += self._take(record)
        self.server.save()
        self._exchange(outgoing)

    def _learn_node(self, node: int, record: ConfigRecord, challenge: bytes) -> None:
        parties, proof = record.get("parties"), record.get("proof")
        if not isinstance(parties, list) or not isinstance(proof, bytes):
            return
        signed = self.server.proof(challenge, node)
        verifiers = self.server.roster.verifiers
        for party in parties:
            if party in verifiers and verifiers[party].verify(signed, proof):
                self._nodes[party] = node
                self._identified.add(node)
            else:
                _log.warning("Node %d could not prove that it is party %s.", node, party)

    def _protocol_record(self, reply: Message) -> ConfigRecord | None:
        if reply.has_error():
            _log.warning("Node %d: %s", reply.metadata.src_node_id, reply.error.reason)
            return None
        record = reply.content.get(RECORD_KEY)
        return record if isinstance(record, ConfigRecord) else None

    def _take(self, record: ConfigRecord) -> list[Outgoing]:
        """Pass a reply's messages to the aggregator and return its answers."""
        messages = record.get("messages")
        if not isinstance(messages, list):
            return []
        return [
            answer
            for data in messages
            if isinstance(data, bytes)
            for answer in self.server.role.receive(data)
        ]

    def _packed(self, outgoing: Sequence[Outgoing]) -> list[Message]:
        """Return one message per node: a training message if it has an opening, else a query."""
        by_node: dict[int, list[Outgoing]] = defaultdict(list)
        for message in outgoing:
            if message.to in self._nodes:
                by_node[self._nodes[message.to]].append(message)
        packed = []
        for node, messages in by_node.items():
            record = ConfigRecord(
                {
                    "to": [message.to for message in messages],
                    "messages": [message.data for message in messages],
                }
            )
            opening = any(message.data[5] == Kind.OPEN for message in messages)
            content = dict(self._content.items()) if opening else {}
            packed.append(
                Message(
                    RecordDict({**content, RECORD_KEY: record}),
                    dst_node_id=node,
                    message_type=self._train_type if opening else QUERY_TYPE,
                )
            )
        return packed

    def _exchange(self, outgoing: Sequence[Outgoing]) -> None:
        """Send messages, and the aggregator's answers to the replies, until it has none.

        The state is saved before each answer is sent; the caller saves it after the last replies.
        """
        if self._grid is None:
            raise ProtocolError("a round is configured before its replies are aggregated.")
        for _ in range(_MOST_EXCHANGES):
            if not outgoing:
                return
            boxed = [m for m in outgoing if is_holder(m.to) and m.to not in self._nodes]
            self._link.push(boxed)
            packed = self._packed(outgoing)
            replies: Iterable[Message] = []
            if packed:
                replies = self._grid.send_and_receive(packed, timeout=self.protocol_timeout)
            outgoing = self._answers(replies) + self._fetched({message.to for message in boxed})
            if outgoing:
                self.server.save()

    def _answers(self, replies: Iterable[Message]) -> list[Outgoing]:
        """Pass all replies to the aggregator and return its answers."""
        records = [self._protocol_record(reply) for reply in replies]
        return [answer for record in records if record is not None for answer in self._take(record)]

    def _fetched(self, holders: set[int]) -> list[Outgoing]:
        """Process answers of holders outside Flower until all answered or the sum is opened."""
        role, answers = self.server.role, list[Outgoing]()
        end = time.monotonic() + self.protocol_timeout
        waited_for = role.phase == "closed"
        while True:
            waiting = self._link.unread() & holders
            for data in self._link.pull():  # after that check: answers precede acknowledgements
                answers += role.receive(data)
            opened = waited_for and role.phase != "closed"
            if not waiting or opened or time.monotonic() > end:
                return answers
            time.sleep(_POLL)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Have the contributions' sum opened, and move the model by the weighted mean.

        Returns:
            The new arrays and the number of clients in the sum; (None, None) if there is no sum.
        """
        model, role = self._model, self.server.role
        if model is None or self.server.role.phase != "open":
            return None, None
        self._exchange(self._answers(replies))
        try:
            role.seal()
        except ProtocolError as error:
            self.server.save()
            _log.warning("Round %d has no sum: %s", server_round, error)
            return None, None
        self.server.save()  # save the set before the holders are asked about it
        for _ in range(_ASK_HOLDERS):
            if role.phase != "closed":
                break
            self._exchange(role.close())
        if role.phase == "closed":
            role.spoil()
        opened = role.result
        if opened is None:
            self.server.save()
            _log.warning("Round %d has no sum: %s", server_round, "; ".join(role.refusals[-3:]))
            return None, None
        following = self.server.plan.following(model, opened, role.settings)
        self.server.model = following if self.server.plan.follows_mean else None
        role.result = None  # the state no longer needs the sum
        self.server.save()
        self._exchange(role.results())
        if role.withdrawn:
            role.withdrawn, self.server.model = False, model
            self.server.save()
            _log.warning("Round %d: clients refused the sum.", server_round)
            return None, None
        if role.result is not None:  # clients refused the first sum and were shown another
            following = self.server.plan.following(model, role.result, role.settings)
            self.server.model = following if self.server.plan.follows_mean else None
            role.result = None
            self.server.save()
        clients = MetricRecord({"clients": len(opened.contributors)})
        if self.server.plan.follows_mean:
            return _record(following), clients
        return self._combined(server_round, _record(following)), clients

    def _combined(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord | None:
        """Return the strategy's aggregate of the mean, which it gets as a single client's reply."""
        metrics = MetricRecord({self.weighted_by_key: 1.0})
        content = RecordDict({self.arrayrecord_key: arrays, "metrics": metrics})
        reply = Message(content, dst_node_id=0, message_type=self._train_type)
        combined: ArrayRecord | None = super().aggregate_train(  # type: ignore[misc]
            server_round, [reply]
        )[0]
        return combined


def _record(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.arrays().items()})


class SecureFedAvg(SecureSumMixin, FedAvg):  # type: ignore[misc, unused-ignore]
    """FedAvg whose server sees only the sum of the clients' weighted updates.

    The model is that of FedAvg, up to clipping and the resolution of the fixed-point numbers. If
    the plan has `follows_mean`, clients compute the model themselves from the sums and refuse
    rounds on any other model.

    Parameters:
        folder: the aggregator's folder, with a roster.
        protocol_timeout: how many seconds to wait for the answers to one message of the protocol.
        options: the keywords of `FedAvg`; federated evaluation is off unless `fraction_evaluate`
            is given.
    """
