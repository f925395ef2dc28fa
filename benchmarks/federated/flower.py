"""The secure sum in Flower apps beside plain FedAvg: CPU, bytes, accuracy; epsilon per record.

Every client is real and every message goes through the client app; they run one after the other in
this process, so that CPU time is that of all parties together.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks.harness import Row
from blindsight.core.errors import MissingData
from blindsight.federated import FederatedClassifier, SumNoise

__all__ = ["flower_rows"]

_USERS, _HOLDERS, _ROUNDS = 6, 5, 3
_SMALL, _LARGE = (64, 266), (256, 1013)  # channels and hidden units: 71,672 and 1,051,025 weights
_SEEDS = 5


def _network(channels: int, hidden: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, channels, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * channels, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, 10),
    )


class _App:
    """Digits dealt to clients, a network, and one pass over a client's digits each round."""

    def __init__(self, shape: tuple[int, int], users: int) -> None:
        import torch

        X, y = load_digits(return_X_y=True)
        self.images = torch.tensor(X / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
        self.labels, self.shape, self.users = torch.tensor(y), shape, users
        self.owner = np.where(np.arange(len(y)) % 5 == 0, -1, np.arange(len(y)) % users)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {n: p.detach().numpy() for n, p in _network(*self.shape).named_parameters()}

    def _loaded(self, arrays: dict[str, NDArray[Any]]) -> Any:
        from blindsight.federated.learning.torch_records import load_arrays

        model = _network(*self.shape)
        load_arrays(model, arrays)
        return model

    def train(self, arrays: dict[str, NDArray[Any]], site: int) -> dict[str, NDArray[Any]]:
        import torch

        model, mine = self._loaded(arrays), np.flatnonzero(self.owner == site)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for part in np.array_split(np.tile(mine, 3), max(1, 3 * len(mine) // 16)):
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


def _measured(shape: tuple[int, int], *, secure: bool, repeats: int) -> dict[str, float]:
    """CPU seconds of a round for all parties together, after a first one, and the accuracy."""
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from blindsight.federated.flower import (
        SecureFedAvg,
        SumPlan,
        secure_sum_mod,
        simulate_enrolment,
        simulated_site,
    )

    app, sent = _App(shape, _USERS), list[int]()
    weights = sum(array.size for array in app.arrays.values())
    with tempfile.TemporaryDirectory() as folder:
        mods: list[Any] = []
        nodes = _USERS
        strategy: Any = FedAvg(fraction_evaluate=0.0)
        if secure:
            plan = SumPlan(weights=weights, max_examples=300, bound=0.5)
            root = Path(folder) / "parties"
            simulate_enrolment(root, plan, users=_USERS, holders=_HOLDERS)
            mods, nodes = [secure_sum_mod(simulated_site(root))], _USERS + _HOLDERS
            strategy = SecureFedAvg(root / "server")
        grid = _grid(_client(app, mods), nodes, sent)
        arrays = ArrayRecord({n: Array(a) for n, a in app.arrays.items()})
        arrays = strategy.start(grid, arrays, num_rounds=1).arrays  # tables, compiled code
        sent.clear()
        start = time.process_time()
        result = strategy.start(grid, arrays, num_rounds=repeats)
        seconds = (time.process_time() - start) / repeats
        final = {n: a.numpy() for n, a in result.arrays.items()}
        return {
            "seconds": seconds,
            "accuracy": app.accuracy(final),
            "bytes": max(sent) / weights,
            "weights": weights,
        }


def _identify() -> None:
    """Flower's engines give each process an identity, which every new message needs."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        setattr(TaskIdentity, name, 1)


def _app_rows(quick: bool, seed: int) -> Iterator[Row]:
    _identify()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    accuracies = []
    for name, shape in (("small", _SMALL), ("1m", _LARGE))[: 1 if quick else 2]:
        repeats = 2 if quick else _ROUNDS
        plain = _measured(shape, secure=False, repeats=repeats)
        secure = _measured(shape, secure=True, repeats=repeats)
        accuracies.append(secure["accuracy"] - plain["accuracy"])
        yield Row(
            id=f"flower.cpu_vs_plain_{name}",
            value=secure["seconds"] / plain["seconds"],
            unit="times plain FedAvg",
            seed=seed,
            seconds=secure["seconds"],
            note=f"CPU s of a round for all parties, {secure['seconds']:.2f} against "
            f"{plain['seconds']:.2f}; {secure['weights']:,} weights, {_USERS} clients with three "
            f"passes over their digits each, {_HOLDERS} holders as nodes; {secure['bytes']:.2f} "
            f"bytes a weight from a client against {plain['bytes']:.2f}",
        )
    yield Row(
        id="flower.accuracy_minus_plain",
        value=min(accuracies),
        unit="share right",
        seed=seed,
        note=f"digits after {repeats + 1} rounds, the worst of {len(accuracies)} networks",
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
    from blindsight.app.together_statistics import agree_on_statistics, sum_statistics
    from blindsight.federated.sums import Simulation
    from blindsight.sketching import FeatureBasis, StatisticsLayout, fit_from_statistics

    try:
        train, classes = labelled("cifar10", "train", "lite0-224")
        test, truth = labelled("cifar10", "test", "lite0-224")
        public = public_features(32, "lite0-224")
    except MissingData:
        return
    names = tuple(f"class {number}" for number in range(10))
    layout = StatisticsLayout.choose(names, n_records=len(train), epsilon=1.0)
    basis = FeatureBasis.learn(public, width=layout.width)
    layout = StatisticsLayout(names, basis.width, layout.moments)
    rows, order = basis.rows(train), np.random.default_rng(seed).permutation(len(train))
    sums = {n + 1: layout.sum(rows[order[n::5]], classes[order[n::5]]) for n in range(5)}
    agreement = agree_on_statistics(layout, sites=5, epsilon=1.0)
    settings: Any = agreement.settings
    accuracies = []
    for _ in range(_SEEDS):
        simulation = Simulation(settings, encrypt=False)
        statistics, _result = sum_statistics(simulation, sums, layout, basis)
        model = fit_from_statistics(statistics)
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
    if progress is not None:
        progress(1, 1)
