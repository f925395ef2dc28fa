"""The secure sum in Flower apps beside plain FedAvg: CPU, bytes, accuracy; epsilon per record.

Every client is real and every message goes through the client app; they run one after the other in
this process, so that CPU time is that of all parties together. Plain and secure rounds take turns,
and the ratio is the median over the turns, so that a busy machine moves it little.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks.harness import Row
from blindsight.core.errors import MissingData, ProtocolError
from blindsight.federated import FederatedClassifier, SumNoise

__all__ = ["flower_rows"]

_USERS, _HOLDERS = 6, 5
_TURNS, _ROUNDS = 7, 3  # turns of each kind whose CPU time is compared, and rounds in each
_ACCURACY_ROUNDS = 10  # chosen before it was measured; both arms have as many
_SMALL, _LARGE = 128, 2000  # hidden units: 71,754 and 1,050,810 weights
_PASSES, _BATCH = 5, 16  # of a client over its digits, in a round
_SEEDS = 5


def _network(hidden: int, seed: int = 0) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(512, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, 10),
    )


class _App:
    """Digits dealt to clients, a network, and one pass over a client's digits each round."""

    def __init__(self, hidden: int, users: int, seed: int = 0) -> None:
        import torch

        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        X, y, self.seed = X[order], y[order], seed
        self.images = torch.tensor(X / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
        self.labels, self.hidden, self.users = torch.tensor(y), hidden, users
        self.owner = np.where(np.arange(len(y)) % 5 == 0, -1, np.arange(len(y)) % users)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        network = _network(self.hidden, self.seed)
        return {n: p.detach().numpy() for n, p in network.named_parameters()}

    def _loaded(self, arrays: dict[str, NDArray[Any]]) -> Any:
        from blindsight.federated.learning.torch_records import load_arrays

        model = _network(self.hidden)
        load_arrays(model, arrays)
        return model

    def train(self, arrays: dict[str, NDArray[Any]], site: int) -> dict[str, NDArray[Any]]:
        import torch

        model, mine = self._loaded(arrays), np.flatnonzero(self.owner == site)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen = np.tile(mine, _PASSES)
        for part in np.array_split(seen, max(1, len(seen) // _BATCH)):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(self.images[part]), self.labels[part])
            loss.backward()
            optimiser.step()
        return {n: p.detach().numpy() for n, p in model.named_parameters()}

    def accuracy(self, arrays: dict[str, NDArray[Any]]) -> float:
        model, test = self._loaded(arrays), np.flatnonzero(self.owner == -1)
        return float((model(self.images[test]).argmax(dim=1) == self.labels[test]).float().mean())


def _client(app: _App, mods: list[Any]) -> Any:
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from blindsight.federated.flower import register_protocol

    client = register_protocol(ClientApp(mods=mods))

    @client.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        site = int(context.node_config["partition-id"])
        arrays = {n: a.numpy().copy() for n, a in message.content["arrays"].items()}
        after = ArrayRecord({n: Array(a) for n, a in app.train(arrays, site).items()})
        metrics = MetricRecord({"num-examples": int((app.owner == site).sum())})
        return Message(RecordDict({"arrays": after, "metrics": metrics}), reply_to=message)

    return client


def _grid(client: Any, nodes: int, sent: list[int]) -> Any:
    """A grid that calls the client app in this process and counts the bytes of replies."""
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.serverapp import Grid

    class LocalGrid(Grid):  # type: ignore[misc, unused-ignore]
        def set_run(self, run: Any) -> None:
            raise NotImplementedError

        @property
        def run(self) -> Any:
            raise NotImplementedError

        def create_message(self, *args: Any, **options: Any) -> Message:
            raise NotImplementedError

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            raise NotImplementedError

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            raise NotImplementedError

        def get_node_ids(self) -> Iterable[int]:
            return range(1, nodes + 1)

        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            replies = []
            for message in messages:
                node = message.metadata.dst_node_id
                context = Context(1, node, {"partition-id": node - 1}, RecordDict(), {})
                try:
                    reply = client(message, context)
                except Exception as error:  # as Flower's own engines do
                    reply = Message(Error(0, str(error)), reply_to=message)
                if reply.has_content():
                    sent.append(_size(reply.content))
                replies.append(reply)
            return replies

    return LocalGrid()


def _size(content: Any) -> int:
    total = 0
    for record in content.values():
        for value in record.values():
            for item in value if isinstance(value, list) else [value]:
                data: Any = getattr(item, "data", item)
                total += 8 if isinstance(data, int | float) else len(data)
    return total


class _Arm:
    """Rounds of one strategy on the same app: plain FedAvg, or with the secure sum."""

    def __init__(self, app: _App, root: Path, *, secure: bool) -> None:
        from flwr.app import Array, ArrayRecord
        from flwr.serverapp.strategy import FedAvg

        from blindsight.federated.flower import (
            SecureFedAvg,
            SumPlan,
            secure_sum_mod,
            simulate_enrolment,
            simulated_site,
        )

        self.app, self.sent, nodes = app, list[int](), _USERS
        self.weights = sum(array.size for array in app.arrays.values())
        mods: list[Any] = []
        self.strategy: Any = FedAvg(fraction_evaluate=0.0)
        if secure:
            plan = SumPlan(weights=self.weights, max_examples=300, bound=0.5)
            simulate_enrolment(root, plan, users=_USERS, holders=_HOLDERS)
            mods, nodes = [secure_sum_mod(simulated_site(root))], _USERS + _HOLDERS
            self.strategy = SecureFedAvg(root / "server")
        self.grid = _grid(_client(app, mods), nodes, self.sent)
        self.arrays = ArrayRecord({n: Array(a) for n, a in app.arrays.items()})

    def run(self, rounds: int) -> float:
        """More rounds; the CPU seconds of one, of all parties together."""
        start = time.process_time()
        self.arrays = self.strategy.start(self.grid, self.arrays, num_rounds=rounds).arrays
        return (time.process_time() - start) / rounds

    @property
    def bytes_per_weight(self) -> float:
        return max(self.sent) / self.weights

    def accuracy(self) -> float:
        return self.app.accuracy({n: a.numpy() for n, a in self.arrays.items()})


def _arms(hidden: int, folder: str, seed: int = 0) -> tuple[_Arm, _Arm]:
    app = _App(hidden, _USERS, seed)
    root = Path(folder) / f"parties-{seed}"
    return _Arm(app, root, secure=False), _Arm(app, root, secure=True)


def _identify() -> None:
    """Flower's engines give each process an identity, which every new message needs."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        setattr(TaskIdentity, name, 1)


def _app_rows(quick: bool, seed: int) -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)  # threads that wait for each other would count as work of plain rounds
    _identify()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name, hidden in (("small", _SMALL), ("1m", _LARGE))[: 1 if quick else 2]:
        with tempfile.TemporaryDirectory() as folder:
            plain, secure = _arms(hidden, folder)
            plain.run(1), secure.run(1)  # tables and compiled code
            turns = [
                (plain.run(_ROUNDS), secure.run(_ROUNDS)) for _ in range(2 if quick else _TURNS)
            ]
        theirs, own = (statistics.median(times) for times in zip(*turns, strict=True))
        ratios = sorted(with_sum / without for without, with_sum in turns)
        yield Row(
            id=f"flower.cpu_vs_plain_{name}",
            value=statistics.median(ratios),
            unit="times plain FedAvg",
            seed=seed,
            seconds=own,
            note=f"median of {len(ratios)} turns of {_ROUNDS} rounds "
            f"({', '.join(f'{ratio:.3f}' for ratio in ratios)}); CPU s of a round for all "
            f"parties, {own:.2f} against {theirs:.2f}; "
            f"a convolutional network of {secure.weights:,} weights, {_USERS} clients with "
            f"{_PASSES} passes over their 240 digits each, {_HOLDERS} holders as nodes, all in one "
            f"process and thread; {secure.bytes_per_weight:.2f} bytes per weight from a client "
            f"against {plain.bytes_per_weight:.2f}",
        )
    yield _accuracy_row(quick, seed)


def _accuracy_row(quick: bool, seed: int) -> Row:
    rounds, seeds = (2, 2) if quick else (_ACCURACY_ROUNDS, _SEEDS)
    pairs = []
    for number in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            arms = _arms(_SMALL, folder, seed + number)
            for arm in arms:
                arm.run(rounds)
            pairs.append([arm.accuracy() for arm in arms])
    plain, secure = np.mean(pairs, axis=0)
    differences = np.diff(pairs, axis=1)[:, 0]
    shown = ", ".join(f"{difference:+.3f}" for difference in differences)
    return Row(
        id="flower.accuracy_minus_plain",
        value=float(secure - plain),
        unit="share right",
        seed=seed,
        note=f"digits after {rounds} rounds of both, mean of {seeds} splits and starts ({shown}); "
        f"{secure:.3f} against {plain:.3f}; standard error "
        f"{float(np.std(differences, ddof=1) / np.sqrt(seeds)):.3f}",
    )


_RAY_APP = """
import json, resource, sys, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from blindsight.federated.flower import (
    SecureFedAvg, SumPlan, register_protocol, secure_sum_mod, simulate_enrolment, simulated_site
)
from sklearn.datasets import load_digits

USERS, ROUNDS = 100, 2
root = simulate_enrolment(sys.argv[1], SumPlan(weights=650, max_examples=30), users=USERS)
client = register_protocol(ClientApp(mods=[secure_sum_mod(simulated_site(root))]))
server, told = ServerApp(), {}
X, y = load_digits(return_X_y=True)
X = X / 16

@client.train()
def train(message, context):
    site = int(context.node_config["partition-id"])
    W, b = (message.content["arrays"][name].numpy() for name in ("W", "b"))
    mine = np.arange(len(y)) % (USERS + 25) == site
    for _ in range(30):
        scores = np.exp(X[mine] @ W + b)
        error = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y[mine]]
        W, b = W - X[mine].T @ error / mine.sum(), b - error.mean(axis=0)
    arrays = ArrayRecord({"W": Array(W), "b": Array(b)})
    metrics = MetricRecord({"num-examples": int(mine.sum())})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    start = ArrayRecord({"W": Array(np.zeros((64, 10))), "b": Array(np.zeros(10))})
    began = time.perf_counter()
    result = SecureFedAvg(root / "server").start(grid, start, num_rounds=ROUNDS)
    W, b = (result.arrays[name].numpy() for name in ("W", "b"))
    test = np.arange(len(y)) % (USERS + 25) >= USERS
    told["seconds"] = (time.perf_counter() - began) / ROUNDS
    told["accuracy"] = float(np.mean((X[test] @ W + b).argmax(axis=1) == y[test]))
    told["clients"] = [int(m["clients"]) for m in result.train_metrics_clientapp.values()]

run_simulation(server, client, num_supernodes=USERS + 5)
used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
told["peak"] = used[0].ru_maxrss / 1024
print(json.dumps(told))
"""

_LARGE_APP = """
import json, resource, sys, time
import numpy as np
from pathlib import Path
from blindsight.federated.flower import SumPlan, simulate_enrolment
from blindsight.federated.flower.parties import Server, Site
from blindsight.federated.flower.plan import Model
from blindsight.federated.sums import Role

WEIGHTS, USERS = 10_000_000, 3
plan = SumPlan(weights=WEIGHTS, max_examples=100, bound=0.5)
root = simulate_enrolment(sys.argv[1], plan, users=USERS)
sites, server = [Site(root / f"node-{n}") for n in range(USERS)], Server(root / "server")
model = Model.of({"w": np.zeros(WEIGHTS, dtype=np.float32)})
rng, told = np.random.default_rng(0), {}
changes = [rng.normal(0, 0.05, WEIGHTS) for _ in sites]
role, by_party = server.role, {}
for site in sites:
    for number in site.addresses:
        by_party[number] = site
for site in sites:
    for data in site.seeds():
        for out in role.receive(data):
            by_party[out.to].receive([(out.to, out.data)])

def deliver(messages):
    for out in messages:
        for answer in by_party[out.to].receive([(out.to, out.data)]):
            deliver(role.receive(answer))

def timed(what, call):
    start = time.process_time()
    made = call()
    told.setdefault(what, []).append(time.process_time() - start)
    return made

deliver(role.open_round(1, model.digest))
for site, change in zip(sites, changes):
    header = site.open_round()
    sent = timed("client", lambda: site.contribute(header, model, change, examples=100))
    told["bytes"] = max(map(len, sent)) / WEIGHTS
    timed("server_adds", lambda: [role.receive(data) for data in sent])
timed("opening", lambda: deliver(role.close()))
following = timed("server_moves", lambda: plan.following(model, role.result, role.settings))
error = np.abs(following.vector - np.mean(changes, axis=0)).max()
told["error"] = float(error)
told["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(told))
"""


def _in_process(code: str) -> dict[str, Any]:
    """What a program that runs in a process of its own prints last."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", code, str(Path(folder) / "parties")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProtocolError(f"the program failed: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _scale_rows(seed: int) -> Iterator[Row]:
    told = _in_process(_RAY_APP)
    yield Row(
        id="flower.ray_100_clients_sums",
        value=len(told["clients"]),
        unit="of 2 rounds",
        seed=seed,
        seconds=told["seconds"],
        note=f"100 clients and 5 holders on Flower's simulation engine (Ray), digits, 650 weights: "
        f"all {min(told['clients'])} clients in every sum, {told['seconds']:.0f} s of wall time a "
        f"round on this machine, {told['accuracy']:.3f} right, {told['peak']:.0f} MB in the "
        "server's process",
    )
    told = _in_process(_LARGE_APP)
    client = float(np.median(told["client"]))
    yield Row(
        id="flower.client_cpu_seconds_1e7",
        value=client,
        unit="CPU s",
        seed=seed,
        seconds=client,
        note=f"a contribution of 10,000,000 weights, 3 clients that hold the keys; server "
        f"{float(np.median(told['server_adds'])):.1f} CPU s per contribution and "
        f"{told['server_moves'][0]:.1f} for the new model; {told['opening'][0]:.1f} for opening by "
        f"all holders and checking by all clients; {told['bytes']:.2f} bytes per weight; all "
        f"parties in one process: {told['peak']:.0f} MB at most; largest error of the mean "
        f"{told['error']:.1e}",
    )


def _size_rows(seed: int) -> Iterator[Row]:
    from blindsight.federated.flower import SumPlan
    from blindsight.federated.sums.messages import contribution_bytes

    sizes = {}
    for weights in (71_754, 1_050_810):
        settings = SumPlan(weights=weights, max_examples=1000).settings(100)
        sizes[weights] = contribution_bytes(settings, settings.dimension) / weights, settings.bits
    large, bits = sizes[1_050_810]
    yield Row(
        id="flower.bytes_per_weight_n100",
        value=large,
        unit="bytes",
        seed=seed,
        note=f"a client's contribution among 100, 1,050,810 weights, {bits} bits per weight, 5 "
        f"holders; 71,754 weights: {sizes[71_754][0]:.2f}; plain float32 is 4",
    )


def _record_rows(quick: bool, seed: int) -> Iterator[Row]:
    X, y = load_digits(return_X_y=True)
    for epsilon in (2.0, 1.0):
        for unit in ("record", "user"):
            accuracies = []
            for number in range(2 if quick else _SEEDS):
                order = np.random.default_rng([seed, number]).permutation(len(y))
                public, test, private = np.split(order, [100, 460])
                model = FederatedClassifier(
                    classes=list(range(10)),
                    rounds=30 if unit == "record" else 1,
                    noise=SumNoise(epsilon=epsilon, unit=unit, records=400),
                    encrypt=False,
                )
                shown = (X[public], y[public])
                model.fit(X[private], y[private], public=shown, test=(X[test], y[test]))
                accuracies.append(float(model.rounds_[-1].accuracy or 0.0))
            name = "record" if unit == "record" else "site_noise"
            yield Row(
                id=f"federated.{name}_eps{epsilon:g}_accuracy_5_sites",
                value=float(np.mean(accuracies)),
                unit="share right",
                seed=seed,
                note=f"digits, mean of {len(accuracies)} splits, deviation "
                f"{float(np.std(accuracies)):.3f}; {model.guarantee_.cost}, at least 4 of 5 sites",
            )


def _statistics_rows(seed: int) -> Iterator[Row]:
    from benchmarks.send.features import labelled, public_features
    from blindsight.app.together_statistics import plan_statistics
    from blindsight.federated.sums import Simulation
    from blindsight.sketching import FeatureBasis, StatisticsLayout

    try:
        train, classes = labelled("cifar10", "train", "lite0-224")
        test, truth = labelled("cifar10", "test", "lite0-224")
        public = public_features(32, "lite0-224")
    except MissingData:
        return
    names = tuple(f"class {number}" for number in range(10))
    layout = StatisticsLayout.choose(names, n_records=len(train), epsilon=1.0)
    basis = FeatureBasis.learn(public, width=layout.width)
    agreement, plan = plan_statistics(
        basis, sites=5, names=names, epsilon=1.0, records=len(train) // 5
    )
    layout = plan.layout
    rows, order = basis.rows(train), np.random.default_rng(seed).permutation(len(train))
    sums = {n + 1: layout.sum(rows[order[n::5]], classes[order[n::5]]) for n in range(5)}
    settings: Any = agreement.settings
    accuracies = []
    for _ in range(_SEEDS):
        total = Simulation(settings, encrypt=False).round(sums, model=b"statistics").total
        model = plan.fit(total, len(sums))
        accuracies.append(float(np.mean(model.predict(test) == np.array(names)[truth])))
    yield Row(
        id="federated.statistics_cifar10_5_sites_eps1",
        value=float(np.mean(accuracies)),
        unit="share right",
        seed=seed,
        note=f"one round, {layout.size:,} numbers, mean of {len(accuracies)} draws of noise, "
        f"deviation {float(np.std(accuracies)):.4f}; {agreement.guarantee(1).cost}, at least 4 of "
        "5 sites",
    )


def flower_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Rows of Flower apps, of noise per record and of statistics in one round."""
    yield from _size_rows(seed)
    yield from _record_rows(quick, seed)
    if not quick:
        yield from _statistics_rows(seed)
    yield from _app_rows(quick, seed)
    if not quick:
        yield from _scale_rows(seed)
    if progress is not None:
        progress(1, 1)
