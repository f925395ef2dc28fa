"""The roles as durable services, without a network: any of them may be killed at any message."""

from __future__ import annotations

import json
import random
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from blindsight.core.errors import (
    BudgetExceeded,
    HostileFile,
    InvalidData,
    InvalidParameter,
    ProtocolError,
)
from blindsight.federated import FederatedClassifier
from blindsight.federated.agreement import Agreement, agree
from blindsight.federated.flower.coordinator import Coordinator, _name
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import (
    Announcement,
    KeygenService,
    UserService,
    charge,
    open_service,
)
from blindsight.federated.flower.plan import Plan, read_rows
from blindsight.federated.flower.processes import environment
from blindsight.federated.learning import model_digest
from blindsight.federated.mailbox.server import MailboxLink, read_tokens
from blindsight.federated.messages import Code, Kind, Message, Purpose, Refusal
from blindsight.privacy import Cost, Ledger
from federated.protocol.test_hostile import mutated


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class LocalLink:
    """Every message starts its party anew from its folder, as Flower does; parties in `away` never
    hear of it.
    """

    def __init__(self, homes: dict[str, Home], data: Path, away: set[int] | None = None) -> None:
        self.homes, self.data, self.away = homes, data, away or set()
        self.waiting: list[bytes] = []
        self.delivered = 0

    def push(self, messages, announced: bytes) -> None:
        for message in messages:
            if message.to in self.away:
                continue
            self.delivered += 1
            home = Home(self.homes[_name(message.to)].path)
            answers = open_service(home, self.data / f"{home.path.name}.npz").handle(
                message.data, announced
            )
            self.waiting.extend(answer.data for answer in answers)

    def pull(self) -> list[bytes]:
        found, self.waiting = self.waiting, []
        return found

    def back(self) -> set[int]:
        return set()

    def unread(self) -> set[int]:
        return set()


def coordinator(homes: dict[str, Home], clock: Clock, **options) -> Coordinator:
    return Coordinator(Home(homes["aggregator"].path), clock=clock, pause=clock.pause, **options)


PLANS = {
    "change": {},
    "weights": {"send": "weights", "sparsity": 0.7},
    "top-k after votes": {
        "send": "top-k",
        "sparsity": 0.8,
        "rounds": 3,
        "agreed": {"least_per_coordinate": 2},
    },
    "mask": {"send": "mask", "sparsity": 0.5},
    "sgd": {"learner": "sgd", "options": {"epochs": 1}},
    "holders": {"agreed": {"holders": (3, 5)}},
    "the paper": {"send": "weights", "sparsity": 0.7, "agreed": {"mode": "paper"}},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_rounds_with_dropouts_equal_the_simulation_over_the_same_contributions(
    changes, federation, simulated, tmp_path: Path
) -> None:
    homes = federation(**changes)
    clock, link = Clock(), LocalLink(homes, tmp_path)
    running = coordinator(homes, clock, test=read_rows(tmp_path / "test.npz"))
    link.away = {4}
    running.round(link)
    link.away = set()
    running = coordinator(homes, clock, test=read_rows(tmp_path / "test.npz"))  # killed, and back
    running.run(link)
    assert running.history[0] == (1, 2, 3, 5)
    assert running.history[1] == (1, 2, 3, 4, 5)
    expected = simulated(running.plan, running.role.settings, running.history)
    np.testing.assert_array_equal(running.weights, expected)
    assert running.log[-1].accuracy > 0.8
    saved = FederatedClassifier.load(homes["aggregator"].model)
    np.testing.assert_array_equal(saved.released_["weights"].ravel(), expected)
    assert saved.guarantee_ == Agreement(running.role.settings).guarantee(running.plan.rounds)
    users = [home for name, home in homes.items() if name.startswith("user")]
    if running.role.settings.mode == "paper":  # whose users are not told of the last sum
        assert not any(home.model.exists() for home in users)
        return
    rows, labels = read_rows(tmp_path / "test.npz")
    for home in users:
        assert open_service(home, tmp_path / f"{home.path.name}.npz").over
        learned = FederatedClassifier.load(home.model)
        np.testing.assert_array_equal(learned.released_["weights"], saved.released_["weights"])
        assert (learned.predict(rows) == labels).mean() == running.log[-1].accuracy


def test_the_model_of_a_run_promises_what_was_agreed_on(federation, tmp_path: Path) -> None:
    settings = agree(dimension=650, users=5, rounds=2, epsilon=4.0, least_users=4).settings
    plan = federation()["aggregator"].plan
    model = plan.classifier(plan.initial, settings)
    assert model.guarantee_ == Agreement(settings).guarantee(2)
    assert model.guarantee_.epsilon == pytest.approx(4.0, rel=1e-6)
    model.save(tmp_path / "model.safetensors")
    assert FederatedClassifier.load(tmp_path / "model.safetensors").guarantee_ == model.guarantee_
    # The settings of a cheaper agreement under the same weights, and those of another shape.
    for other in (
        {"epsilon": 1.0},
        {"epsilon": 4.0, "users": 6},
        {"epsilon": 4.0, "dimension": 651},
    ):
        forged = agree(
            **{"dimension": 650, "users": 5, "rounds": 2, "least_users": 4, **other}
        ).settings
        model.public_["agreed"] = forged.encode().hex()
        model.save(tmp_path / "forged.safetensors")
        with pytest.raises(HostileFile):
            FederatedClassifier.load(tmp_path / "forged.safetensors")


@pytest.mark.parametrize("holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"])
def test_a_voter_who_does_not_come_back_costs_a_round_of_votes(
    federation, simulated, tmp_path: Path, holders
) -> None:
    """User 4 voted and is gone: values without it would be of fewer than were counted."""
    agreed = {"least_per_coordinate": 3, "holders": holders}
    homes = federation(send="top-k", sparsity=0.8, rounds=2, agreed=agreed)
    clock, link = Clock(), LocalLink(homes, tmp_path)
    deliver = link.push

    def push(messages, announced: bytes) -> None:
        messages = list(messages)
        if any(message.data[5:7] == bytes([Kind.OPEN, Purpose.VALUES]) for message in messages):
            link.away = {4}
        deliver(messages, announced)

    link.push = push
    running = coordinator(homes, clock)
    running.round(link)
    assert running.history == [(1, 2, 3, 5)]
    assert running.role.round == 4  # votes, values that nobody asked to open, votes, values
    np.testing.assert_array_equal(
        running.weights, simulated(running.plan, running.role.settings, running.history)
    )
    link.push, link.away = deliver, set()
    running.run(link)
    assert running.history[1] == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"])
def test_ten_thousand_mutated_messages_stop_no_aggregator(
    federation, tmp_path: Path, holders
) -> None:
    """Over boxes, by an enrolled party: whatever it says, and for whom, the rounds end as if it had
    said nothing.
    """
    homes = federation(agreed={"holders": holders}, rounds=1)
    clock, link = Clock(), LocalLink(homes, tmp_path)
    running = coordinator(homes, clock)
    boxes = MailboxLink(read_tokens(homes["aggregator"]).values())
    said: list[bytes] = []
    deliver, take = link.push, link.pull

    def push(messages, announced: bytes) -> None:
        messages = list(messages)
        boxes.push(messages, announced)  # where a carrier would put them, strangers' too
        known = [message for message in messages if message.to in boxes._boxes]
        said.extend(message.data for message in known)
        deliver(known, announced)

    def pull() -> list[bytes]:
        found = take()
        said.extend(found)
        return found + [mutated(rng, said) for _ in range(100)] if said else found

    rng = random.Random(7)
    link.push, link.pull = push, pull
    for _ in range(100):
        running._take(link)
    running.run(link)
    assert running.history == [(1, 2, 3, 4, 5)]
    assert len(running.role.refusals) > 1000


def test_an_aggregator_killed_at_any_step_ends_with_the_same_model(
    federation, simulated, tmp_path: Path
) -> None:
    """Killed after every save, one after the other, it goes on each time."""
    homes = federation()
    clock, link = Clock(), LocalLink(homes, tmp_path)

    class Killed(Exception):
        pass

    kills = 0
    while True:
        running = coordinator(homes, clock)
        if running.finished:
            break
        left = [1]  # it may save once, then it dies
        original = running.save

        def save(original=original, left=left) -> None:
            original()
            if left[0] == 0:
                raise Killed
            left[0] -= 1

        running.save = save
        try:
            running.round(link)
        except Killed:
            kills += 1
            link.waiting.clear()  # what was under way is lost
        assert kills < 60
    assert kills >= 2
    assert running.history == [(1, 2, 3, 4, 5)] * 2
    np.testing.assert_array_equal(
        running.weights, simulated(running.plan, running.role.settings, running.history)
    )


def test_a_user_asked_twice_sends_the_same_bytes(federation, tmp_path: Path) -> None:
    homes = federation()
    running = coordinator(homes, Clock())
    opening = running.role.open_round(1, model_digest(running.weights))[0].data
    home, data = homes["user-1"], tmp_path / "user-1.npz"
    first = UserService(home, data).handle(opening)
    again = UserService(Home(home.path), data).handle(opening)
    assert [message.data for message in first] == [message.data for message in again]


def test_a_user_joins_rounds_on_the_model_it_computed_only(federation, tmp_path: Path) -> None:
    homes = federation()
    running = coordinator(homes, Clock())
    service = UserService(homes["user-1"], tmp_path / "user-1.npz")
    opening = running.role.open_round(1, model_digest(running.weights + 1e-9))[0].data
    [answer] = service.handle(opening)
    message = Message.decode(answer.data, largest=10_000)
    assert message.header.kind is Kind.REFUSED
    assert Refusal.decode(message.body).code is Code.CHAIN


def test_the_papers_users_want_the_weights_that_the_round_was_opened_for(
    federation, tmp_path: Path
) -> None:
    homes = federation(agreed={"mode": "paper"})
    running = coordinator(homes, Clock())
    opening = running.role.open_round(1, model_digest(running.weights))[0].data
    service = UserService(homes["user-1"], tmp_path / "user-1.npz")
    with pytest.raises(ProtocolError, match="wrong model"):
        service.handle(opening, Announcement(running.weights + 1, 0, ()).encode())
    with pytest.raises(ProtocolError, match="malformed"):
        service.handle(opening, Announcement(running.weights[:-1], 0, ()).encode())


def test_announcements_survive_the_wire() -> None:
    rng = np.random.default_rng(0)
    sent = Announcement(rng.normal(size=21), 7, (1, 4))
    got = Announcement.decode(sent.encode(), dimension=21, users=5)
    np.testing.assert_array_equal(got.weights, sent.weights)
    assert (got.last_round, got.contributors) == (7, (1, 4))
    with pytest.raises(ProtocolError):
        Announcement.decode(sent.encode()[:-1], dimension=21, users=5)


def test_folders_are_for_their_owner_only_and_never_overwritten(
    federation, small_key, tmp_path: Path
) -> None:
    homes = federation()
    for home in homes.values():
        assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
        for path in home.path.rglob("*"):
            if path.is_file() and path.suffix != ".safetensors":
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidParameter, match="not empty"):
        federation()
    secret = small_key.factors()[0].to_bytes(32, "little")
    holders = [
        name for name, home in homes.items() if secret in (home.path / "enrolment.bin").read_bytes()
    ]
    assert holders == ["keygen"]


def test_a_folder_serves_its_own_role_only(federation, tmp_path: Path) -> None:
    homes = federation()
    with pytest.raises(InvalidParameter, match="belongs to"):
        KeygenService(homes["user-1"])
    with pytest.raises(InvalidParameter, match="belongs to"):
        Coordinator(homes["keygen"])
    with pytest.raises(HostileFile, match="party"):
        Home(tmp_path).require("user")


def test_flower_runs_without_telemetry_or_installing_anything(federation) -> None:
    variables = environment(federation()["keygen"])
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_damaged_state_is_refused(federation, tmp_path: Path) -> None:
    homes = federation()
    coordinator(homes, Clock())
    state = homes["aggregator"].state
    state.write_bytes(state.read_bytes()[:-3])
    with pytest.raises(HostileFile):
        coordinator(homes, Clock())


def test_bad_rows_and_plans_are_refused(federation, tmp_path: Path) -> None:
    homes = federation()
    plan = homes["user-1"].plan
    with pytest.raises(InvalidData, match="features"):
        plan.trainer(np.zeros((3, 5)), np.zeros(3, dtype=int), user=1)
    with pytest.raises(InvalidData, match="class numbers"):
        plan.trainer(np.zeros((3, 64)), np.full(3, 10), user=1)
    (tmp_path / "bad.npz").write_bytes(b"not an archive")
    with pytest.raises(HostileFile):
        read_rows(tmp_path / "bad.npz")
    with pytest.raises(InvalidParameter, match="options"):
        Plan(initial=plan.initial, scale=plan.scale, classes=10, options={"depth": 3})
    shutil.copy(tmp_path / "bad.npz", homes["user-1"].path / "plan.safetensors")
    with pytest.raises(HostileFile):
        _ = Home(homes["user-1"].path).plan


def test_status_tells_what_the_table_shows(federation, tmp_path: Path) -> None:
    homes = federation(rounds=1)
    running = coordinator(homes, Clock())
    running.run(LocalLink(homes, tmp_path))
    status = json.loads((homes["aggregator"].path / "status.json").read_text())
    assert status["phase"] == "done"
    (entry,) = status["rounds"]
    assert entry["contributors"] == [1, 2, 3, 4, 5]
    assert entry["bytes"] > 0


def test_a_users_own_ledger_is_charged_once_for_all_rounds(federation, tmp_path: Path) -> None:
    noise = agree(dimension=650, users=5, rounds=2, epsilon=4.0)
    fields = {
        name: getattr(noise.settings, name)
        for name in ("noise", "bound", "bits", "least_users", "rounds")
    }
    homes = federation(agreed=fields)
    ledger = Ledger(tmp_path / "ledger.db", dataset="rows")
    ledger.grant(Cost(epsilon=5, delta=1e-4, unit="user"))
    ledger.grant(Cost(epsilon=5, delta=1e-4, unit="record"))
    assert charge(homes["user-1"], ledger).epsilon <= 4.0
    spent = ledger.balance("user")
    charge(homes["user-1"], ledger)  # killed, and joined again
    assert ledger.balance("user") == spent
    poor = Ledger(tmp_path / "poor.db", dataset="rows")
    poor.grant(Cost(epsilon=1, delta=1e-4, unit="user"))
    with pytest.raises(BudgetExceeded):
        charge(homes["user-1"], poor)
