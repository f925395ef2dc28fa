"""Messages in parts, without a network: an answer of which a part never comes holds up nobody."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blindsight.federated.flower.processes import prepare
from blindsight.federated.messages import Header, Kind, Message
from blindsight.federated.signatures import Identity


@pytest.fixture(autouse=True)
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported under our variables, and in the place of a server's task."""
    prepare(SimpleNamespace(path=tmp_path))  # type: ignore[arg-type]
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Store:
    """What a SuperLink keeps: objects that were pushed, and answers that were announced."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.announced: list[tuple[Any, Any]] = []

    def PushObject(self, request: Any) -> Any:
        self.objects[request.object_id] = request.object_content
        return SimpleNamespace(stored=True)

    def PullObject(self, request: Any) -> Any:
        content = self.objects.get(request.object_id)
        return SimpleNamespace(
            object_found=True, object_available=content is not None, object_content=content
        )

    def PullMessages(self, request: Any) -> Any:
        found, self.announced = self.announced, []
        return SimpleNamespace(
            messages_list=[bare for bare, _ in found], message_object_trees=[t for _, t in found]
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        return None

    def answered(self, number: int) -> bytes:
        """Announce and push an answer of that party."""
        from flwr.app import Message as Carried

        from blindsight.federated.flower.carried import push, record

        header = Header(
            kind=Kind.CONFIRM, agreement=bytes(32), round=1, model=bytes(32), sender=number
        )
        data = Message.make(header, b"", Identity(bytes(32))).encode()
        message = Carried(record([data]), dst_node_id=1, message_type="train")
        message.metadata.__dict__["_reply_to_message_id"] = f"asked {number}"

        def announce(bare: Any, tree: Any) -> Any:
            self.announced.append((bare, tree))
            return SimpleNamespace(session_id="s", objects_to_push=[tree.object_id, *_below(tree)])

        push(self, message, announce, node=None, run=1)
        return data


def _below(tree: Any) -> list[str]:
    return [name for child in tree.children for name in (child.object_id, *_below(child))]


def test_a_message_is_put_together_from_its_parts_and_one_that_lacks_a_part_is_given_up() -> None:
    from blindsight.federated.flower.carried import content_of, pull

    store = Store()
    data = store.answered(3)
    [(bare, tree)] = store.announced
    assert content_of(pull(store, bare, tree, node=None, run=1, patience=0.0)) == ([data], b"")
    store.objects.pop(_below(tree)[-1])
    with pytest.raises(TimeoutError, match="not yet available"):
        pull(store, bare, tree, node=None, run=1, patience=0.0)


def test_an_answer_that_a_killed_party_announced_holds_up_no_other() -> None:
    from blindsight.federated.flower.superlink import SuperLinkLink

    store = Store()
    link = object.__new__(SuperLinkLink)
    link._client, link._node, link._run, link._nodes, link._active = (
        store,
        None,
        1,
        {3: 30, 4: 40},
        {},
    )
    link._waiting, link._coming, link._looked, link.seen = (
        {"asked 3": 3, "asked 4": 4},
        [],
        -1e9,
        set(),
    )
    store.answered(3)
    kept, store.objects = store.objects, {}  # killed after it said that an answer comes
    last = store.answered(4)
    assert link.pull() == [last]
    assert link.unread() == {3}
    assert link.pull() == []
    store.objects |= kept  # or only slow
    assert len(link.pull()) == 1
    assert link.unread() == set()
    link._coming = [(3, None, None)]
    link._present = lambda: {30: "now", 40: ""}  # type: ignore[method-assign]
    assert 3 in link.back()
    assert link.unread() == set()
