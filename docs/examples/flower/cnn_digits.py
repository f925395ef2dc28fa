"""Three clinics train a small convolutional network on digits, with epsilon per digit.

Each clinic sums its digits' gradients, each clipped, and adds its share of the noise; the server
sees the noisy sum. Without epsilon in the plan `train` would return the trained arrays instead.

Run it: python docs/examples/flower/cnn_digits.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from blindsight.federated.flower import (
    SecureFedAvg,
    SumPlan,
    register_protocol,
    secure_sum_mod,
    simulate_enrolment,
)
from blindsight.federated.learning.torch_records import (
    load_arrays,
    named_arrays,
    record_gradients,
)

SITES, ROUNDS = 3, 20
pixels, digits = load_digits(return_X_y=True)
IMAGES = torch.tensor(pixels / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
LABELS = torch.tensor(digits)
OWNER = np.arange(len(digits)) % (SITES + 1)  # the last part is nobody's: it tests the model


def make_model() -> torch.nn.Module:
    """The network that everybody starts from."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )


WEIGHTS = sum(array.size for array in named_arrays(make_model()).values())
PLAN = SumPlan(weights=WEIGHTS, max_examples=500, epsilon=8.0, clip=1.0, rounds=ROUNDS, rate=2.0)
client = register_protocol(ClientApp(mods=[secure_sum_mod()]))
server = ServerApp()


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


@client.train()
def train(message: Message, context: Context) -> Message:
    """The clipped gradients of this clinic's digits, summed."""
    mine = np.flatnonzero(context.node_config["partition-id"] == OWNER)
    model = make_model()
    load_arrays(model, {n: a.numpy() for n, a in message.content["arrays"].items()})
    clip = float(message.content["privacy"]["clip"])
    loss = torch.nn.functional.cross_entropy
    sums = record_gradients(model, loss, IMAGES[mine], LABELS[mine], clip=clip)
    metrics = MetricRecord({"num-examples": len(mine)})  # is summed, with noise
    return Message(RecordDict({"arrays": record(sums), "metrics": metrics}), reply_to=message)


def accuracy(arrays: ArrayRecord) -> float:
    """On the digits of nobody."""
    model, test = make_model(), np.flatnonzero(OWNER == SITES)
    load_arrays(model, {n: a.numpy() for n, a in arrays.items()})
    return float((model(IMAGES[test]).argmax(dim=1) == LABELS[test]).float().mean())


@server.main()
def main(grid: Grid, context: Context) -> ArrayRecord:
    """All rounds, and the accuracy after the last."""
    parties = Path(os.environ["BLINDSIGHT_PARTIES"])
    start = record(named_arrays(make_model()))
    result = SecureFedAvg(parties / "server").start(grid, start, num_rounds=ROUNDS)
    print(f"{accuracy(result.arrays):.3f} right", flush=True)
    return result.arrays


if __name__ == "__main__":
    folder = simulate_enrolment(Path(tempfile.mkdtemp()) / "parties", PLAN, users=SITES)
    os.environ["BLINDSIGHT_PARTIES"] = str(folder)
    run_simulation(server, client, num_supernodes=SITES)
