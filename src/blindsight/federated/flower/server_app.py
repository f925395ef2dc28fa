"""Flower's server app: the aggregator's coordinator over Flower's grid."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from blindsight.federated.flower.coordinator import Coordinator, party
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import alone
from blindsight.federated.flower.plan import read_rows
from blindsight.federated.messages import KEYGEN, Outgoing, is_holder

__all__ = ["GridLink", "app"]

_log = logging.getLogger("flwr")
app = ServerApp()


class GridLink:
    """Messages over Flower's grid; `nodes` maps parties to node ids.

    The grid's own `send_and_receive` sleeps three seconds between looks, so this one looks for itself.
    """

    def __init__(self, grid: Grid, nodes: dict[int, int]) -> None:
        self.grid, self.nodes = grid, nodes
        self._waiting: set[str] = set()

    def push(self, messages: Iterable[Outgoing], announced: bytes) -> None:
        """Send to the parties that are there."""
        present = set(self.grid.get_node_ids())
        for message in messages:
            node = self.nodes.get(message.to)
            if node not in present or node is None:
                _log.info("party %d is away", message.to)
                continue
            opener = message.to == KEYGEN or is_holder(message.to)
            kind = MessageType.QUERY if opener else MessageType.TRAIN
            record = ConfigRecord({"messages": [message.data], "announced": b"" if opener else announced})
            sent = Message(RecordDict({"blindsight": record}), dst_node_id=node, message_type=kind)
            self._waiting.update(i for i in self.grid.push_messages([sent]) if i)

    def pull(self) -> list[bytes]:
        """What came; an error in place of an answer is logged, and its message counts as lost."""
        found: list[bytes] = []
        if not self._waiting:
            return found
        for reply in self.grid.pull_messages(self._waiting):
            self._waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_error():
                _log.info("no answer: %s", reply.error.reason)
                continue
            record: Any = reply.content["blindsight"]
            if record["refused"]:
                _log.info("refused: %s", record["refused"])
            found.extend(bytes(data) for data in record["messages"])
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left; the folder says where we are."""
    home = Home(Path(str(context.run_config["home"])))
    nodes = json.loads((home.path / "nodes.json").read_text(encoding="utf-8"))
    given = str(context.run_config.get("test", ""))
    with alone(home):
        coordinator = Coordinator(home, test=read_rows(given) if given else None)
        parties = {party(name): int(node) for name, node in nodes.items()}
        coordinator.run(GridLink(grid, parties))
