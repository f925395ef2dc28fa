"""The secure sum in a Flower app gives FedAvg's model, and clients' updates never leave."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.federated.deploy.folders import PartyFolder
from blindsight.federated.deploy.running import keep_role
from blindsight.federated.flower import (
    SecureFedAvg,
    SecureSumMixin,
    SumPlan,
    accept,
    join,
    make_roster,
    parties,
    secure_sum_mod,
    simulate_enrolment,
    simulated_site,
)
from blindsight.federated.flower.mod import QUERY_TYPE, RECORD_KEY
from blindsight.federated.flower.parties import Site, site_of
from blindsight.federated.flower.plan import Model
from blindsight.federated.sums import Role, User
from blindsight.federated.sums.messages import Kind, contribution_bytes, share_bytes
from federated.flower.local_grid import (
    FIRST_NODE,
    Arrays,
    LocalGrid,
    Sites,
    arrays_of,
    record,
    values_in,
)
from ports import held_port

EVERYBODY = [0, 1, 2, 3, 4]
EXAMPLES = [40, 100, 73, 20, 55]
PLAN = SumPlan(weights=40, max_examples=100, bound=0.5)


def start_arrays() -> Arrays:
    rng = np.random.default_rng(1)
    return {
        "layer.weight": rng.normal(size=(7, 5)).astype(np.float32),
        "layer.bias": rng.normal(size=5),
    }


START = start_arrays()


def site_changes() -> list[Arrays]:
    rng = np.random.default_rng(2)
    return [
        {name: rng.uniform(-0.4, 0.4, value.shape) for name, value in START.items()}
        for _ in EVERYBODY
    ]


class Federation:
    """Five sites that are their own holders, a server, and the grid between them."""

    def __init__(self, root: Path, plan: SumPlan = PLAN, **options: Any) -> None:
        self.changes = site_changes()
        self.root = simulate_enrolment(root / "parties", plan, users=5, **options)
        self.sites = Sites(self.root, self.changes, EXAMPLES)
        self.grid = LocalGrid(self.sites.secure_app, 5)
        self.strategy = SecureFedAvg(self.root / "server")

    def run(self, rounds: int) -> Arrays:
        """The model after some more rounds; empty where none of them had a sum."""
        result = self.strategy.start(self.grid, record(START), num_rounds=rounds)
        return arrays_of(result.arrays)

    def restart_server(self) -> None:
        self.strategy = SecureFedAvg(self.root / "server")

    def replies(self, kind: str) -> list[Message]:
        return [r for r in self.grid.replies if r.metadata.message_type == kind]

    def kinds_sent(self) -> list[int]:
        """The kinds of the protocol's messages that the server sent."""
        records = [content[RECORD_KEY] for _, content in self.grid.sent]
        return [data[5] for entry in records for data in entry.get("messages", [])]

    def mean(self, sites: list[int]) -> Arrays:
        weights = np.array([EXAMPLES[site] for site in sites], dtype=float)
        return {
            name: np.average([self.changes[s][name] for s in sites], axis=0, weights=weights)
            for name in START
        }


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def tolerance(*rounds: list[int]) -> float:
    """In each round half a step for each site's change and weight, over the sum of the weights."""
    step = PLAN.bound / (2**15 - 1)
    steps = [2 * len(sites) * step / (sum(EXAMPLES[s] for s in sites) / 100) for sites in rounds]
    return sum(steps) + 1e-6 * len(rounds)  # and the rounding to float32


def assert_moved_by_means(federation: Federation, final: Arrays, *rounds: list[int]) -> None:
    means = [federation.mean(sites) for sites in rounds]
    assert {n: (a.dtype, a.shape) for n, a in final.items()} == {
        n: (a.dtype, a.shape) for n, a in START.items()
    }
    for name, value in START.items():
        expected = value + sum(mean[name] for mean in means)
        assert np.abs(final[name] - expected).max() <= tolerance(*rounds)


def test_the_model_moves_by_the_weighted_mean(federation: Federation) -> None:
    assert_moved_by_means(federation, federation.run(3), *[EVERYBODY] * 3)


def test_flowers_own_fedavg_gives_the_same_model(federation: Federation) -> None:
    grid = LocalGrid(lambda: federation.sites.app(ClientApp()), 5)
    plain = FedAvg(fraction_evaluate=0.0).start(grid, record(START), num_rounds=1)
    secure = federation.run(1)
    for name, value in arrays_of(plain.arrays).items():
        assert np.abs(secure[name] - value).max() <= tolerance(EVERYBODY)


def test_nothing_of_a_client_leaves_in_plain(federation: Federation) -> None:
    federation.run(1)
    for reply in federation.grid.replies:
        assert reply.has_content(), reply.error.reason
        assert set(reply.content) == {RECORD_KEY}
        assert set(reply.content[RECORD_KEY]) <= {"messages", "parties", "proof"}
    left = b"".join(v for reply in federation.grid.replies for v in values_in(reply.content))
    for site, change in enumerate(federation.changes):
        after = {name: (a + change[name]).astype(a.dtype) for name, a in START.items()}
        update = Model.of(after).vector - Model.of(START).vector
        contribution = PLAN.contribution(update, examples=EXAMPLES[site])
        for secret in (*after.values(), update, update.astype(np.float32), contribution):
            assert secret.tobytes()[:16] not in left


def test_replies_of_sites_with_unequal_numbers_of_examples_look_alike(
    federation: Federation,
) -> None:
    federation.run(1)
    training = federation.replies(MessageType.TRAIN)
    forms = [tuple(map(len, reply.content[RECORD_KEY]["messages"])) for reply in training]
    assert len(forms) == 5
    assert len(set(forms)) == 1


def test_messages_of_the_protocol_never_reach_the_app(federation: Federation) -> None:
    federation.run(1)
    queries = federation.replies(QUERY_TYPE)
    assert len(queries) > 5
    assert all(reply.has_content() for reply in queries)
    assert sorted(federation.sites.trained) == EVERYBODY


def test_a_site_that_drops_out_is_not_waited_for(federation: Federation) -> None:
    federation.grid.away = {3}
    present = [0, 1, 2, 4]
    assert_moved_by_means(federation, federation.run(2), present, present)


def test_a_site_that_drops_out_later_does_not_stop_the_others(tmp_path: Path) -> None:
    federation = Federation(tmp_path, across_rounds=False)
    federation.run(1)
    federation.grid.away = {2}
    federation.restart_server()
    assert_moved_by_means(federation, federation.run(1), EVERYBODY, [0, 1, 3, 4])


def test_no_sum_is_opened_whose_difference_to_another_shows_one_site(
    federation: Federation,
) -> None:
    federation.run(1)
    before = federation.kinds_sent().count(Kind.COLLECT)
    assert before > 0
    federation.grid.away = {2}
    federation.restart_server()
    assert federation.run(1) == {}
    assert federation.kinds_sent().count(Kind.COLLECT) == before


def test_a_site_that_comes_back_catches_up_with_the_model(tmp_path: Path) -> None:
    federation = Federation(tmp_path, across_rounds=False)
    federation.run(1)
    federation.grid.away = {2}
    federation.restart_server()
    federation.run(1)
    federation.grid.away = set()
    federation.restart_server()
    final = federation.run(1)
    assert_moved_by_means(federation, final, EVERYBODY, [0, 1, 3, 4], EVERYBODY)


def test_a_contribution_whose_reply_was_lost_is_repeated_not_made_anew(
    federation: Federation,
) -> None:
    strategy, grid = federation.strategy, federation.grid
    messages = list(strategy.configure_train(1, record(START), ConfigRecord(), grid))
    asked = messages[0]
    again = copied(asked)
    first = grid.handle(asked).content[RECORD_KEY]["messages"]
    federation.changes[0]["layer.bias"] += 0.05
    assert grid.handle(again).content[RECORD_KEY]["messages"] == first
    assert federation.sites.trained == [0]


def test_a_client_that_was_killed_while_it_trained_trains_again(federation: Federation) -> None:
    strategy, grid = federation.strategy, federation.grid
    messages = list(strategy.configure_train(1, record(START), ConfigRecord(), grid))
    copies = [copied(message) for message in messages]

    def killed(message: Message, context: Any) -> Message:
        raise KeyboardInterrupt

    app = ClientApp(mods=[secure_sum_mod(federation.root / "node-0")])
    app.train()(killed)
    with pytest.raises(KeyboardInterrupt):
        app(messages[0], None)
    arrays, metrics = strategy.aggregate_train(1, list(grid.send_and_receive(copies)))
    assert arrays is not None
    assert metrics == {"clients": 5}
    assert_moved_by_means(federation, arrays_of(arrays), EVERYBODY)


def test_a_server_that_was_killed_continues_from_the_last_sum(federation: Federation) -> None:
    federation.run(1)
    list(
        federation.strategy.configure_train(
            2, federation_arrays(federation), ConfigRecord(), federation.grid
        )
    )
    federation.restart_server()
    assert_moved_by_means(federation, federation.run(1), EVERYBODY, EVERYBODY)


def federation_arrays(federation: Federation) -> Any:
    model = federation.strategy.server.model
    assert model is not None
    return record(model.arrays())


def test_a_site_stores_the_model_it_expects_next_and_no_older_one(
    federation: Federation,
) -> None:
    federation.run(2)
    model = federation.strategy.server.model
    assert model is not None
    for site in EVERYBODY:
        stored = list((federation.root / f"node-{site}").glob("model-*"))
        assert [path.name for path in stored] == [f"model-{model.digest.hex()}"]


def test_a_site_in_memory_is_used_until_its_files_change_or_its_use_fails(
    federation: Federation,
) -> None:
    folder = federation.root / "node-0"
    federation.run(1)
    state = (folder / "user.state").read_bytes()
    with site_of(folder) as first:
        assert first._user().ended == 1
    with site_of(folder) as second, site_of(folder) as beside:
        assert second is first
        assert beside is not first  # two users of one folder at once share nothing
    federation.run(1)
    (folder / "user.state").write_bytes(state)  # as another process would change it
    with site_of(folder) as third:
        assert third._user().ended == 1
    with pytest.raises(InvalidData), site_of(folder) as failed:
        raise InvalidData("in use")
    with site_of(folder) as fourth:
        assert fourth is not failed
    os.utime(folder / "roster", ns=(0, 0))
    with site_of(folder) as fifth:
        assert fifth is not fourth


def test_a_process_holds_no_more_sites_than_its_memory_allows(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parties, "_idle", {})
    monkeypatch.setattr(parties, "_HELD_BYTES", 2 * 12 * PLAN.weights)
    federation.run(1)
    assert len(parties._idle) == 2
    # Neither the folder's first key nor the user's is in memory any longer.
    for site in parties._idle.values():
        assert site.enrolment.keys.private is None
        user = site._user()
        assert user.enrolment.keys.private is None
        assert user._private is None


def copied(message: Message) -> Message:
    """The same message once more, because a client app takes its records away."""
    return Message(
        RecordDict(dict(message.content.items())),
        dst_node_id=message.metadata.dst_node_id,
        message_type=message.metadata.message_type,
    )


def app_that(train: Callable[[], None], folder: Path) -> ClientApp:
    """A client app that does something while it trains, and then returns the arrays as they are."""
    app = ClientApp(mods=[secure_sum_mod(folder)])

    @app.train()
    def trained(message: Message, context: Any) -> Message:
        arrays = message.content["arrays"]
        train()
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    return app


def sent_by(reply: Message) -> list[bytes]:
    return list(reply.content[RECORD_KEY]["messages"])


def test_processes_that_hold_the_same_sites_read_what_the_others_wrote(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a fork: both have the same sites in memory, and go on by turns."""
    monkeypatch.setattr(parties, "_idle", {})
    federation.run(1)
    forked = {}
    for path, site in parties._idle.items():
        twin = copy.copy(site)
        twin._checksums, twin._held = dict(site._checksums), copy.copy(site._held)
        twin._held_holder = copy.copy(site._held_holder)
        forked[path] = twin
    assert any(twin._held is not None for twin in forked.values())
    for memory in (parties._idle, forked, parties._idle):
        monkeypatch.setattr(parties, "_idle", memory)
        final = federation.run(1)
    assert_moved_by_means(federation, final, *[EVERYBODY] * 4)


def test_of_two_threads_that_train_for_one_round_only_one_contributes(
    federation: Federation,
) -> None:
    strategy, grid = federation.strategy, federation.grid
    asked = next(iter(strategy.configure_train(1, record(START), ConfigRecord(), grid)))
    both_train = threading.Barrier(2)
    app = app_that(lambda: both_train.wait(600) and None, federation.root / "node-0")
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda message: app(message, None), [copied(asked), copied(asked)]))
    [contribution] = [data for reply in replies for data in sent_by(reply)]
    assert sent_by(app(copied(asked), None)) == [contribution]


def test_a_folder_put_back_from_a_backup_while_its_site_trains_contributes_nothing(
    federation: Federation, tmp_path: Path
) -> None:
    folder, backup = federation.root / "node-0", tmp_path / "backup"
    federation.run(1)
    shutil.copytree(folder, backup)
    federation.run(1)
    arrays = federation_arrays(federation)
    asked = next(
        iter(federation.strategy.configure_train(3, arrays, ConfigRecord(), federation.grid))
    )

    def put_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)

    assert sent_by(app_that(put_back, folder)(asked, None)) == []
    federation.restart_server()
    assert_moved_by_means(federation, federation.run(1), *[EVERYBODY] * 3)


def test_a_folder_put_back_to_its_enrolment_while_held_is_read_anew(
    federation: Federation, tmp_path: Path
) -> None:
    """Only files that changed are put back, as rsync does: the roster stays the same file."""
    folder, backup = federation.root / "node-0", tmp_path / "backup"
    shutil.copytree(folder, backup)
    federation.run(1)
    for path in (*folder.glob("*.state"), *folder.glob("model-*")):
        path.unlink()
    shutil.copy2(backup / "keys.bin", folder / "keys.bin")
    assert PartyFolder(folder).keys.private is not None
    with site_of(folder) as site:
        site.seeds()
    assert PartyFolder(folder).keys.private is None  # erased again, also on the disk


def test_a_folder_without_its_files_is_refused_also_while_its_site_is_held(
    federation: Federation,
) -> None:
    strategy, grid = federation.strategy, federation.grid
    asked = next(iter(strategy.configure_train(1, record(START), ConfigRecord(), grid)))
    shutil.rmtree(federation.root / "node-0")
    reply = grid.handle(asked)
    assert "is no party's folder" in reply.error.reason


@pytest.mark.parametrize("failing", ["write_sealed", "_delete_other_models"])
def test_a_contribution_that_could_not_be_saved_does_not_leave(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Before the state is on the disk the site trains again; after it, it repeats what it has."""
    strategy, grid, trained = federation.strategy, federation.grid, federation.sites.trained
    asked = next(iter(strategy.configure_train(1, record(START), ConfigRecord(), grid)))

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = parties if failing == "write_sealed" else Site
    with monkeypatch.context() as disk:
        disk.setattr(owner, failing, full)
        assert grid.handle(copied(asked)).has_error()
    stored = User.load((federation.root / "node-0" / "user.state").read_bytes())
    assert (stored._sent == b"") is (failing == "write_sealed")
    [contribution] = sent_by(grid.handle(copied(asked)))
    assert trained == ([0, 0] if failing == "write_sealed" else [0])
    assert stored._sent in (b"", contribution)


def test_clients_refuse_a_model_that_does_not_follow_from_the_sums(
    federation: Federation,
) -> None:
    federation.run(1)
    federation.sites.trained.clear()
    other = {name: value + 1 for name, value in START.items()}
    strategy, grid = federation.strategy, federation.grid
    replies = list(
        grid.send_and_receive(strategy.configure_train(2, record(other), ConfigRecord(), grid))
    )
    assert federation.sites.trained == []
    assert strategy.aggregate_train(2, replies) == (None, None)


def test_a_client_refuses_arrays_that_the_round_is_not_bound_to(federation: Federation) -> None:
    strategy, grid = federation.strategy, federation.grid
    message = next(iter(strategy.configure_train(1, record(START), ConfigRecord(), grid)))
    message.content["arrays"] = record({name: value * 2 for name, value in START.items()})
    reply = grid.handle(message)
    assert "bound to" in reply.error.reason
    assert federation.sites.trained == []


@pytest.mark.parametrize("kind", ["train", "train.other", "evaluate", "query.blindsight"])
def test_a_message_without_the_protocol_never_reaches_the_app(
    federation: Federation, kind: str
) -> None:
    content = RecordDict({"arrays": record(START)})
    reply = federation.grid.handle(Message(content, dst_node_id=FIRST_NODE, message_type=kind))
    assert reply.has_error()
    assert federation.sites.trained == []


def test_what_an_app_says_when_it_fails_stays_with_the_client(federation: Federation) -> None:
    strategy, grid = federation.strategy, federation.grid
    message = next(iter(strategy.configure_train(1, record(START), ConfigRecord(), grid)))

    def fail(message: Message, context: Any) -> Message:
        raise ValueError("patient Miller")

    app = ClientApp(mods=[secure_sum_mod(federation.root / "node-0")])
    app.train()(fail)
    reply = app(message, None)
    assert "failed while it trained" in reply.error.reason
    assert "Miller" not in reply.error.reason


def test_a_sample_of_the_sites_is_summed(federation: Federation) -> None:
    federation.strategy = SecureFedAvg(
        federation.root / "server", fraction_train=0.6, min_train_nodes=3
    )
    final = federation.run(1)
    sampled = sorted(federation.sites.trained)
    assert len(sampled) == 3
    assert_moved_by_means(federation, final, sampled)


def test_a_sample_too_small_for_a_sum_is_replaced_by_all_sites_with_a_warning(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    federation.strategy = SecureFedAvg(
        federation.root / "server", fraction_train=0.4, min_train_nodes=2
    )
    assert_moved_by_means(federation, federation.run(1), EVERYBODY)
    assert "The 2 sampled sites cannot be summed, so that all 5 are asked" in caplog.text


def test_samples_of_a_federation_for_small_rounds_are_summed_in_every_round(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path, most_users=3, across_rounds=False)
    federation.strategy = SecureFedAvg(
        federation.root / "server", fraction_train=0.6, min_train_nodes=3
    )
    final = federation.run(4)
    sampled = federation.sites.trained
    assert len(sampled) == 12
    assert_moved_by_means(federation, final, *[sampled[at : at + 3] for at in range(0, 12, 3)])


def test_evaluation_is_answered_only_where_the_site_allows_it(federation: Federation) -> None:
    federation.grid.make_app = lambda: federation.sites.secure_app(plain_replies=True)
    for kind, answered in (("evaluate", True), ("train", False)):
        content = RecordDict({"arrays": record(START)})
        reply = federation.grid.handle(Message(content, dst_node_id=FIRST_NODE, message_type=kind))
        assert reply.has_content() is answered


def test_a_node_cannot_pass_for_another_party(federation: Federation) -> None:
    strategy, challenge = federation.strategy, bytes(32)
    first, second = (Site(federation.root / f"node-{number}") for number in (0, 1))

    def claim(node: int, proof: bytes) -> bool:
        answer = ConfigRecord({"parties": second.addresses, "proof": proof})
        strategy._learn_node(node, answer, challenge)
        return strategy._nodes.get(2) == node

    assert not claim(5, first.prove(challenge, 5))
    assert not claim(5, second.prove(challenge, 6))  # the proof of another node
    assert not claim(5, second.prove(bytes([1] * 32), 5))  # of another time
    assert claim(5, second.prove(challenge, 5))


def test_long_updates_are_clipped_to_the_agreed_norm(tmp_path: Path) -> None:
    plan = SumPlan(weights=40, max_examples=100, bound=0.5, clip=0.3)
    federation = Federation(tmp_path, plan)
    final = federation.run(1)
    moved = Model.of(final).vector - Model.of(START).vector
    vectors = [Model.of(change).vector for change in federation.changes]
    clipped = [vector * min(1, 0.3 / np.linalg.norm(vector)) for vector in vectors]
    assert all(np.linalg.norm(vector) > 0.3 for vector in vectors)
    expected = np.average(clipped, axis=0, weights=EXAMPLES)
    assert np.abs(moved - expected).max() <= 2 * tolerance(EVERYBODY)  # rounded toward zero


def test_holders_may_be_nodes_of_their_own(tmp_path: Path) -> None:
    root = simulate_enrolment(tmp_path / "parties", PLAN, users=4, holders=3)
    federation = Federation(tmp_path / "unused")
    sites = Sites(root, federation.changes, EXAMPLES)
    grid = LocalGrid(sites.secure_app, 7)
    result = SecureFedAvg(root / "server").start(grid, record(START), num_rounds=1)
    assert_moved_by_means(federation, arrays_of(result.arrays), [0, 1, 2, 3])
    assert sorted(sites.trained) == [0, 1, 2, 3]


def test_holders_may_be_processes_of_their_own_beside_the_nodes(tmp_path: Path) -> None:
    """Three of five holders fetch their questions over HTTPS, one is a node, and one is away."""
    address = f"127.0.0.1:{held_port()}"
    root = simulate_enrolment(tmp_path / "parties", PLAN, users=4, holders=5, address=address)
    federation = Federation(tmp_path / "unused")
    sites = Sites(root, federation.changes, EXAMPLES)
    grid, over = LocalGrid(sites.secure_app, 5), threading.Event()
    served = [PartyFolder(root / f"node-{number}") for number in (5, 6, 7)]
    threads = [
        threading.Thread(target=keep_role, args=(folder, Role.HOLDER), kwargs={"stop": over.is_set})
        for folder in served
    ]
    for thread in threads:
        thread.start()
    try:
        strategy = SecureFedAvg(root / "server")
        result = strategy.start(grid, record(START), num_rounds=2)
        refused = Site(served[0].path)
        with pytest.raises(InvalidData, match="a process of its own"):
            refused.receive([(refused.addresses[0], b"a message of whatever kind")])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert strategy.server.role.round == 2
    moved = Model.of(arrays_of(result.arrays)).vector - Model.of(START).vector
    vectors = [Model.of(change).vector for change in federation.changes[:4]]
    expected = 2 * np.average(vectors, axis=0, weights=EXAMPLES[:4])
    assert np.abs(moved - expected).max() <= 4 * tolerance([0, 1, 2, 3])


def test_other_strategies_take_the_mean_as_one_reply(tmp_path: Path) -> None:
    class SecureFedAdam(SecureSumMixin, FedAdam):
        pass

    plan = SumPlan(weights=40, max_examples=100, bound=0.5, follows_mean=False)
    federation = Federation(tmp_path, plan)
    strategy = SecureFedAdam(federation.root / "server", eta=0.1)
    secure = strategy.start(federation.grid, record(START), num_rounds=2)
    grid = LocalGrid(lambda: federation.sites.app(ClientApp()), 5)
    plain = FedAdam(fraction_evaluate=0.0, eta=0.1).start(grid, record(START), num_rounds=2)
    for name, value in arrays_of(plain.arrays).items():
        assert np.abs(arrays_of(secure.arrays)[name] - value).max() <= 0.01


def test_an_update_that_is_not_finite_counts_as_none() -> None:
    update = np.full(40, 0.1)
    update[7] = np.nan
    assert not PLAN.contribution(update, examples=10).any()


def test_whole_numbers_in_a_model_keep_their_type() -> None:
    model = Model.of({"steps": np.array([3, 4]), "w": np.array([0.5], dtype=np.float32)})
    moved = model.moved(np.array([0.6, 0.2, 0.25])).arrays()
    assert moved["steps"].tolist() == [4, 4]
    assert moved["steps"].dtype == np.int64
    assert moved["w"].tolist() == [0.75]


def test_a_stored_model_comes_back_and_a_damaged_one_is_refused() -> None:
    model = Model.of(START)
    data = model.dump()
    loaded = Model.load(data, model.digest)
    assert loaded.layout == model.layout
    assert loaded.digest == model.digest
    np.testing.assert_array_equal(loaded.vector, model.vector)
    with pytest.raises(HostileFile, match="damaged"):
        Model.load(data[:-1] + bytes([data[-1] ^ 1]), model.digest)


def test_parties_enrol_each_with_keys_of_its_own(tmp_path: Path) -> None:
    site = Role.USER | Role.HOLDER
    roles = {"a": site, "b": site, "c": site, "server": Role.AGGREGATOR}
    requests = [join(tmp_path / name, name, role) for name, role in roles.items()]
    roster = make_roster(PLAN, requests)
    prints = {accept(tmp_path / name, roster).fingerprint for name in roles}
    assert len(prints) == 1
    strategy = SecureFedAvg(tmp_path / "server")
    assert not strategy.server.plan.simulation
    with pytest.raises(InvalidParameter, match="not empty"):
        join(tmp_path / "a", "a", site)
    join(tmp_path / "stranger", "stranger", site)
    with pytest.raises(InvalidData, match="does not hold"):
        accept(tmp_path / "stranger", roster)


def test_a_simulation_says_that_it_is_one(federation: Federation) -> None:
    assert federation.strategy.server.plan.simulation
    assert (federation.root / "node-0" / "SIMULATION").exists()


@pytest.mark.parametrize("damage", [b"", b"BSRF\3", b"no roster"])
def test_a_damaged_roster_is_refused(tmp_path: Path, damage: bytes) -> None:
    join(tmp_path / "a", "a", Role.USER)
    with pytest.raises(HostileFile, match="roster"):
        accept(tmp_path / "a", damage)


def test_a_roster_whose_plan_was_exchanged_is_refused(federation: Federation) -> None:
    data = (federation.root / "server" / "roster").read_bytes()
    with pytest.raises(HostileFile, match="agreed on"):
        accept(
            federation.root / "node-0", data.replace(b'"max_examples": 100', b'"max_examples": 900')
        )


def test_each_simulated_node_has_its_own_folder(tmp_path: Path) -> None:
    class Node:
        node_config = {"partition-id": 3}  # noqa: RUF012

    assert simulated_site(tmp_path)(Node()) == tmp_path / "node-3"


def test_the_plan_for_10_000_users_states_the_protocols_own_sizes() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "cluster.md").read_text().split())
    plan, weights, users = SumPlan(weights=206_848, max_examples=100), 206_848, 10_000
    settings = plan.settings(users, holders=5)
    sent = contribution_bytes(settings, settings.dimension)
    shown = -(-settings.dimension * settings.pad(settings.dimension).slot_bits // 8)
    shares = share_bytes(settings, settings.dimension)
    # To a holder: the ephemeral key, digests, signature and labels of each user, and its share.
    asked = [users * (32 + 32 * 5 + 64 + 4 + share) for share in shares]
    small = plan.settings(users, holders=5, most_users=1000, across_rounds=False)
    for words in (
        f"{sent / 1e6:.2f} MB ({sent / weights:.2f} bytes per weight)",
        f"the model, {8 * weights / 1e6:.2f} MB as float64, and the sum, {shown / 1e6:.2f} MB",
        f"to all, {users * (8 * weights + shown) / 1e9:.0f} GB",
        f"questions to holders, {sum(asked) / 1e9:.2f} GB",
        f"{users * sent / 1e9:.1f} GB, on disk",
        f"sealed share), {asked[0] / 1e6:.1f} MB",
        f"{asked[-1] / users / 1e3:.1f} kB per user, {asked[-1] / 1e6:.0f} MB",
        f"A sum then has {small.fewest} to {small.largest_round:,} users",
        f"a contribution {contribution_bytes(small, small.dimension) / 1e6:.2f} MB",
    ):
        assert words in page, words
