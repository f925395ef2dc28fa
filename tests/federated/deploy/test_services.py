"""The roles as durable services, without a network: any of them may be killed at any message."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from blindsight.app.federation import (
    accept_roster,
    agree_federation,
    join_federation,
    load_model,
)
from blindsight.app.together_statistics import plan_statistics
from blindsight.core import durable
from blindsight.core.durable import DurableFile
from blindsight.core.errors import (
    BlindsightError,
    BudgetExceeded,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
    ProtocolError,
)
from blindsight.federated import FederatedClassifier
from blindsight.federated.agreement import Agreement, agree
from blindsight.federated.deploy.coordinator import Coordinator, FaultIsolation
from blindsight.federated.deploy.folders import (
    PartyFolder,
    accept,
    join,
    make_roster,
    pack_roster,
)
from blindsight.federated.deploy.plan import read_rows
from blindsight.federated.deploy.running import HolderService, UserService, charge
from blindsight.federated.learning import Federation
from blindsight.federated.sums import KeyHolder, Outgoing, PartyKeys, Role, Simulation, User
from blindsight.federated.sums.messages import Contribution, Message, holder, is_holder
from blindsight.federated.sums.user import SHARE_LABEL, share_binding
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.entropy import SystemEntropy
from blindsight.sketching import FeatureBasis


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class LocalLink:
    """Every message starts its party anew from its folder; parties in `away` hear of nothing."""

    def __init__(self, folders: dict[str, PartyFolder], data: Path) -> None:
        self.folders, self.data = folders, data
        self.away: set[int] = set()
        self.waiting: list[bytes] = []
        self.seen: set[int] = set()
        self.waiting += [out.data for out in self.user(1).start()]

    def user(self, number: int) -> UserService:
        folder = PartyFolder(self.folders[f"site-{number}"].path)
        return UserService(folder, self.data / f"site-{number}.npz")

    def push(self, messages: Iterable[Outgoing]) -> None:
        for message in messages:
            if message.to in self.away:
                continue
            if is_holder(message.to):
                number = message.to - holder(0)
                service = HolderService(PartyFolder(self.folders[f"site-{number}"].path))
            else:
                service = self.user(message.to)
            self.waiting += [answer.data for answer in service.handle(message.data)]

    def pull(self) -> list[bytes]:
        waiting, self.waiting = self.waiting, []
        return waiting

    def unread(self) -> set[int]:
        return set()


def coordinator(folders: dict[str, PartyFolder], clock: Clock, **options: object) -> Coordinator:
    folder = PartyFolder(folders["aggregator"].path)
    return Coordinator(folder, clock=clock, pause=clock.pause, **options)  # type: ignore[arg-type]


PLANS: dict[str, dict] = {
    "change": {},
    "mask": {"send": "mask", "sparsity": 0.5},
    "sgd": {"learner": "sgd", "options": {"epochs": 1}},
    "clip": {"agreed": {"clip": 1.0}},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_rounds_with_dropouts_equal_the_simulation_over_the_same_contributions(
    changes: dict, federation: Callable, simulated: Callable, tmp_path: Path
) -> None:
    agreed = {"across_rounds": False, **changes.get("agreed", {})}
    folders = federation(**{**changes, "agreed": agreed})
    clock, link = Clock(), LocalLink(folders, tmp_path)
    running = coordinator(folders, clock, test=read_rows(tmp_path / "test.npz"))
    link.away = {4}
    running.round(link)
    link.away = set()
    running = coordinator(folders, clock, test=read_rows(tmp_path / "test.npz"))  # killed, and back
    running.run(link)
    assert running.history == [(1, 2, 3, 5), (1, 2, 3, 4, 5)]
    expected = simulated(running.plan, running.role.settings, running.history)
    np.testing.assert_array_equal(running.weights, expected)
    saved = FederatedClassifier.load(folders["aggregator"].model)
    np.testing.assert_array_equal(saved.released_["weights"].ravel(), expected)
    assert saved.guarantee_ == Agreement(running.role.settings).guarantee(running.plan.rounds)
    for number in range(1, 6):
        assert link.user(number).over
        learned = FederatedClassifier.load(folders[f"site-{number}"].model)
        np.testing.assert_array_equal(learned.released_["weights"], saved.released_["weights"])


class Killed(BaseException):
    """The process ends here: nothing that follows happens."""


def test_an_aggregator_that_is_killed_before_and_after_each_of_its_writes_continues(
    federation: Callable, simulated: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is written in several phases of a round; every such place ends the process twice,
    once before the write and once after it.
    """
    folders = federation()
    aggregator, running, places = folders["aggregator"], [], set()

    def deadly(write: Callable) -> Callable:
        def written(target: Path | DurableFile, *args: object, **options: object) -> None:
            path = target.path if isinstance(target, DurableFile) else Path(target)
            role = running[-1].role if running else None
            place = (write.__name__, path.name, role and role.phase, role and role.round)
            own = path.parent == aggregator.path and role is not None
            for before in (True, False):
                if own and (place, before) not in places:
                    places.add((place, before))
                    if not before:
                        write(target, *args, **options)
                    raise Killed
            write(target, *args, **options)

        return written

    monkeypatch.setattr(durable, "write_file", deadly(durable.write_file))
    for name in ("append", "cut"):
        monkeypatch.setattr(DurableFile, name, deadly(getattr(DurableFile, name)))
    clock, link = Clock(), LocalLink(folders, tmp_path)
    while True:
        try:
            running.append(coordinator(folders, clock))
            running[-1].run(link)
            break
        except Killed:
            link.waiting += [out.data for out in link.user(1).start()]  # what was not read is lost
    monkeypatch.undo()
    names = {name for (_, name, _, _), _ in places}
    assert names == {
        "rounds.state", "contributions.log", "results.log", "status.json", "told.json",
        "model.safetensors",
    }  # fmt: skip
    assert running[-1].history == [(1, 2, 3, 4, 5)] * 2
    expected = simulated(running[-1].plan, running[-1].role.settings, running[-1].history)
    np.testing.assert_array_equal(running[-1].weights, expected)
    saved = FederatedClassifier.load(aggregator.model)
    np.testing.assert_array_equal(saved.released_["weights"].ravel(), expected)
    status = json.loads((aggregator.path / "status.json").read_bytes())
    assert len(status["rounds"]) == 2
    assert (aggregator.path / "contributions.log").stat().st_size == 0
    for number in range(1, 6):
        assert link.user(number).over


def test_groups_over_folders_equal_the_simulation(
    federation: Callable, tmp_path: Path, rows: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine sites in three groups, with a restart between two groups' sums."""
    folders = federation(users=9, agreed={"groups": 3, "holders": 3})
    clock, link = Clock(), LocalLink(folders, tmp_path)
    running = coordinator(folders, clock)
    finish = running._finish

    def stop(seconds: float) -> None:
        finish(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_finish", stop)
    with pytest.raises(KeyboardInterrupt):
        running.round(link)
    running = coordinator(folders, clock)  # the first group's sum is there
    assert running._means.waiting and not running.log
    running.run(link)
    assert running.history == [tuple(range(1, 10))] * 2
    plan, settings = running.plan, running.role.settings
    trainers = {n: plan.trainer(*rows[f"site-{(n - 1) % 5 + 1}"], user=n) for n in range(1, 10)}
    simulation = Federation(
        Simulation(settings, encrypt=False), trainers, initial=plan.initial, sending=plan.sending
    )
    simulation.run(2)
    np.testing.assert_allclose(running.weights, simulation.weights, rtol=0, atol=1e-12)
    for number in range(1, 10):
        assert link.user(number).over
        np.testing.assert_array_equal(link.user(number).weights, running.weights)


@pytest.fixture
def spoiler(monkeypatch: pytest.MonkeyPatch) -> int:
    """A user who contributes under another tag seed: sums with it open, and users refuse them."""
    original = User.contribute

    def contribute(self: User, update: np.ndarray, *, noisy: bool = False) -> list[Outgoing]:
        seed = self._seed
        if self.number == 3:
            self._seed = b"another seed".ljust(32)
        try:
            return original(self, update, noisy=noisy)
        finally:
            self._seed = seed

    monkeypatch.setattr(User, "contribute", contribute)
    return 3


def test_a_user_who_spoils_sums_is_found_and_left_out(
    federation: Callable, spoiler: int, tmp_path: Path
) -> None:
    agreed = {"across_rounds": False, "colluders": 0, "holders": 5}
    folders = federation(users=9, agreed=agreed, rounds=6)
    clock, link = Clock(), LocalLink(folders, tmp_path)
    running = coordinator(folders, clock)
    while not running.finished:
        running.round(link)
        running = coordinator(folders, clock)  # killed before users refuse the sum, and back
    running.run(link)
    assert running.excluded == [spoiler]
    assert running.history[-1] == (1, 2, 4, 5, 6, 7, 8, 9)
    assert all(spoiler not in users for users in running.history)
    for number in range(1, 10):
        np.testing.assert_array_equal(link.user(number).weights, running.weights)


def test_a_spoiler_among_five_users_ends_the_federation_with_an_error(
    federation: Callable, spoiler: int, tmp_path: Path
) -> None:
    # After a sum over all five, any other set would leave a class of fewer than three users.
    folders = federation(agreed={"across_rounds": False, "colluders": 0})
    running = coordinator(folders, Clock())
    with pytest.raises(ProtocolError, match="leave no other set of users to find out who spoils"):
        running.run(LocalLink(folders, tmp_path))
    assert running.log == [] and running.isolation.failures == 3
    np.testing.assert_array_equal(running.weights, running.plan.initial)


def test_users_who_refuse_further_rounds_end_the_federation_with_an_error(
    federation: Callable, tmp_path: Path
) -> None:
    folders = federation(agreed={"rounds": 1})  # the plan has two
    running = coordinator(folders, Clock())
    with pytest.raises(ProtocolError, match=r"Site 1.* refuse to contribute to another round"):
        running.run(LocalLink(folders, tmp_path))
    assert len(running.log) == 1


def test_isolation_takes_back_a_success_that_users_refuse() -> None:
    isolation = FaultIsolation(
        suspects={1, 2}, condemned=3, failures=2, failed_set=(1, 2, 3), in_every={1, 2, 3}
    )
    assert isolation.succeeded({1, 4, 5}) == 3
    isolation = FaultIsolation.load(isolation.dump())
    isolation.withdrawn({1, 4, 5})
    assert isolation.excluded == set() and isolation.suspects == {1}
    assert isolation.failures == 3 and isolation.failed_set == (1, 4, 5)


def sums_until_excluded(guilty: int, rate: float, rng: np.random.Generator, most: int) -> int:
    """How many sums over thirty users it takes until the one who spoils them is excluded."""
    users, isolation = set(range(1, 31)), FaultIsolation()
    for count in range(1, most + 1):
        chosen = next(iter(isolation.proposals(users)))
        if guilty in chosen and rng.random() < rate:
            isolation.failed(chosen)
        else:
            isolation.succeeded(chosen)
        assert isolation.excluded <= {guilty}
        if isolation.excluded:
            return count
    return most + 1


def test_isolation_excludes_nobody_for_what_others_did() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        # Of 3,000 searches 99% took at most 58 sums and the longest 98; the tail is geometric.
        assert sums_until_excluded(int(rng.integers(1, 31)), 0.9, rng, most=400) <= 400
    for guilty in range(1, 31):  # rarely finds anybody, and must never convict another
        sums_until_excluded(guilty, 0.3, rng, most=200)


def test_isolation_finds_whoever_spoils_every_sum_after_a_few_sums() -> None:
    rng = np.random.default_rng(0)
    assert max(sums_until_excluded(guilty, 1.0, rng, most=20) for guilty in range(1, 31)) <= 12


def test_isolation_gives_up_after_many_failures() -> None:
    isolation = FaultIsolation()
    with pytest.raises(ProtocolError, match="in a row"):
        for _ in range(100):
            isolation.failed({1, 2, 3})


def test_no_folder_holds_another_partys_secrets(federation: Callable, tmp_path: Path) -> None:
    folders = federation()
    own = {}
    for name, folder in folders.items():
        keys = PartyKeys.load((folder.path / "keys.bin").read_bytes())
        assert keys.private is not None
        own[name] = [keys.identity.dump(), keys.private.dump(), folder.token.encode()]
    for name, folder in folders.items():
        content = b"".join(p.read_bytes() for p in folder.path.rglob("*") if p.is_file())
        for other, secrets in own.items():
            assert all((secret in content) == (other == name) for secret in secrets)
        for path in folder.path.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_first_keys_are_erased_from_the_folder_after_the_first_round(
    federation: Callable, tmp_path: Path
) -> None:
    folders = federation(rounds=1)
    first = {
        name: PartyKeys.load((folder.path / "keys.bin").read_bytes()).private
        for name, folder in folders.items()
    }
    coordinator(folders, Clock()).run(LocalLink(folders, tmp_path))
    for name, folder in folders.items():
        if name != "aggregator":
            content = b"".join(p.read_bytes() for p in folder.path.rglob("*") if p.is_file())
            assert first[name] is not None and first[name].dump() not in content
    assert (folders["aggregator"].path / "contributions.log").stat().st_size == 0


def test_nothing_on_any_machine_opens_a_past_round(
    federation: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All machines are seized after the run: no file holds a contribution or a key for it."""
    folders = federation()
    sent: dict[int, list[bytes]] = {}
    original = User.contribute

    def contribute(self: User, update: np.ndarray, *, noisy: bool = False) -> list[Outgoing]:
        messages = original(self, update, noisy=noisy)
        sent.setdefault(self.number, []).append(messages[0].data)
        return messages

    monkeypatch.setattr(User, "contribute", contribute)
    clock, link = Clock(), LocalLink(folders, tmp_path)
    first = PartyKeys.load((folders["site-1"].path / "keys.bin").read_bytes())
    assert first.private is not None
    coordinator(folders, clock).run(link)
    assert {user: len(messages) for user, messages in sent.items()} == dict.fromkeys(range(1, 6), 2)
    seized = {
        path: path.read_bytes()
        for folder in folders.values()
        for path in folder.path.rglob("*")
        if path.is_file()
    }
    settings = folders["site-1"].settings
    for messages in sent.values():
        for data in messages:
            message = Message.decode(data, largest=len(data))
            body = Contribution.decode(message.body, settings, message.header.length)
            parts = [body.ephemeral, body.padded[:64], *(share[-64:] for share in body.shares)]
            assert not any(part in content for part in parts for content in seized.values())
            for name in (f"site-{j}" for j in range(1, 6)):
                role = KeyHolder.load(folders[name].state(Role.HOLDER).read_bytes())
                assert role._private is not None
                bound = share_binding(message.header.context, message.header.sender, role.index)
                with pytest.raises(ProtocolError):
                    share = body.shares[role.index - 1]
                    role._private.open(body.ephemeral, share, SHARE_LABEL, bound)
    assert not any(first.private.dump()[:32] in content for content in seized.values())


def test_rosters_and_requests_from_outside_are_checked(
    federation: Callable, tmp_path: Path
) -> None:
    folders = federation()
    data = (folders["site-1"].path / "roster").read_bytes()
    stranger = join(tmp_path / "stranger", "Stranger", Role.USER | Role.HOLDER)
    with pytest.raises(MissingData, match="accept"):
        _ = stranger.roster
    with pytest.raises(InvalidData, match="does not hold this party's request"):
        accept(stranger, data)
    plan_changed = data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]
    for bad in (b"", b"nonsense", data[:-1], plan_changed):
        with pytest.raises(HostileFile):
            accept(stranger, bad)
    # Settings, at the beginning, are not signed: with others it is another roster.
    for position in (*range(200), *range(200, len(data), 97)):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises((HostileFile, InvalidData, InvalidParameter)):
            accept(folders["site-1"], changed)
    requests = [folder.request for folder in folders.values()]
    plan, settings = folders["site-1"].plan, folders["site-1"].settings
    other = make_roster(settings, plan, requests)
    assert accept(folders["site-1"], other).fingerprint == folders["site-1"].roster.fingerprint
    changed = make_roster(settings, plan, [*requests[1:], requests[0]])
    with pytest.raises(InvalidParameter, match="another roster"):
        accept(folders["site-1"], changed)
    with pytest.raises(InvalidData, match="role user"):
        make_roster(settings, plan, requests[1:])
    with pytest.raises(InvalidParameter, match="not empty"):
        join(folders["site-1"].path, "Again", Role.USER)
    with pytest.raises(InvalidParameter, match="address"):
        join(tmp_path / "more", "A site", Role.USER, address="127.0.0.1:9")
    # Only a Flower app does without an address: neither who makes a roster nor who gets one takes
    # it where the parties must reach the aggregator themselves.
    silent = join(tmp_path / "silent", "No address", Role.AGGREGATOR).request
    others = [request for request in requests if Role.AGGREGATOR not in request.roles]
    with pytest.raises(InvalidParameter, match="address"):
        make_roster(settings, plan, [*others, silent])
    fresh = join(tmp_path / "fresh", "Fresh", others[0].roles)
    unreachable = pack_roster(settings, plan.dump(), [fresh.request, *others[1:], silent])
    with pytest.raises(HostileFile, match="address"):
        accept(fresh, unreachable)
    assert not fresh.agreed


def test_a_users_ledger_is_charged_once(federation: Callable, tmp_path: Path) -> None:
    agreed = agree(dimension=650, users=5, rounds=2, epsilon=4.0, least_users=4).settings
    plan = federation()["aggregator"].plan
    site = Role.USER | Role.HOLDER
    folders = [join(tmp_path / f"n{i}", f"N {i}", site) for i in range(5)]
    collector = join(tmp_path / "nc", "C", Role.AGGREGATOR, address="127.0.0.1:9")
    roster = make_roster(agreed, plan, [f.request for f in (*folders, collector)])  # type: ignore[arg-type]
    accept(folders[0], roster)
    with Ledger(tmp_path / "ledger.db", dataset="rows") as ledger:
        ledger.grant(Cost(epsilon=5.0, delta=1e-4, unit="user"))
        ledger.grant(Cost(epsilon=5.0, delta=1e-4, unit="record"))
        first = charge(folders[0], ledger)
        assert charge(folders[0], ledger) == first
        assert ledger.balance("user").spent.epsilon == pytest.approx(first.epsilon)
    with Ledger(tmp_path / "small.db", dataset="rows") as ledger:
        ledger.grant(Cost(epsilon=1.0, delta=1e-4, unit="user"))
        with pytest.raises(BudgetExceeded):
            charge(folders[0], ledger)


def test_status_says_who_is_missing(federation: Callable, tmp_path: Path) -> None:
    folders = federation(agreed={"least_users": 4}, patience=30.0)
    clock, link = Clock(), LocalLink(folders, tmp_path)
    link.away = {4}
    running = coordinator(folders, clock)
    seen: list[str] = []
    status = running._status

    def spy() -> None:
        status()
        path = folders["aggregator"].path / "status.json"
        seen.append(json.loads(path.read_bytes())["waiting"])

    running._status = spy  # type: ignore[method-assign]
    running.round(link)
    assert "waiting for the contribution of Site 4" in seen


def test_statistics_are_summed_across_parties_that_may_be_killed_at_any_message(
    tmp_path: Path, rows: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round of statistics and one evaluation; the roster, its plan and the model are files."""
    drawn = np.random.default_rng(1)  # a fixed seed: the accuracy is the same every time
    monkeypatch.setattr(SystemEntropy, "bytes", lambda self, length: drawn.bytes(length))
    for name, (X, y) in rows.items():
        np.savez(tmp_path / f"{name}.npz", X=X, y=y.astype(str))
    folders = {}
    for number in range(1, 6):
        address = "127.0.0.1:9" if number == 1 else None
        join_federation(tmp_path / f"site-{number}", f"Site {number}", address=address)
        folders[f"site-{number}"] = PartyFolder(tmp_path / f"site-{number}")
    folders["aggregator"] = folders["site-1"]
    agreed = agree_federation(
        tmp_path / "roster",
        [folders[f"site-{number}"].path / "request" for number in range(1, 6)],
        public=tmp_path / "public.npz",
        method="statistics",
        epsilon=8.0,
        holdout=0.2,
        records=200,
    )
    assert (agreed.guarantee.unit, agreed.guarantee.epsilon <= 8.0) == ("record", True)
    for number in range(1, 6):
        accept_roster(tmp_path / f"site-{number}", tmp_path / "roster")
    running = coordinator(folders, Clock())
    link = LocalLink(folders, tmp_path)
    running.round(link)
    running = coordinator(folders, Clock())  # killed, and back
    running.run(link)
    assert [entry.users for entry in running.log] == [5, 5]
    models = [load_model(folders[f"site-{number}"].model) for number in range(1, 6)]
    X, y = rows["test"]
    predicted = [model.predict(X) for model in models]
    assert (predicted[0] == y.astype(str)).mean() > 0.8
    assert all((other == predicted[0]).all() for other in predicted)
    assert running.log[-1].accuracy == pytest.approx(
        (predicted[0] == y.astype(str)).mean(), abs=0.2
    )
    with Ledger(tmp_path / "book.db", dataset="photos") as ledger:
        relation = "add or remove one"
        ledger.grant(Cost(epsilon=9.0, delta=1e-4, unit="record", neighbours=relation))
        charge(folders["site-2"], ledger)
        assert ledger.balance("record").spent.epsilon == pytest.approx(8.0, rel=0.02)


def test_a_plan_of_statistics_whose_noise_was_changed_is_refused(rows: dict) -> None:
    basis = FeatureBasis.learn(rows["public"][0], width=8)
    agreement, plan = plan_statistics(basis, sites=5, names=["a", "b"], epsilon=8.0)
    assert plan.moments > 0
    plan.check(agreement.settings)
    for change in ({"share": plan.share / 2}, {"moments": 0.0}):
        with pytest.raises(BlindsightError):
            dataclasses.replace(plan, **change).check(agreement.settings)
