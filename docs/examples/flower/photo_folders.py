"""Three sites train the last layer of the built-in network on their own folders of photos.

Only the last layer is shared, by name; the network below it is the same public one everywhere.
Each site has PHOTOS/site-0, PHOTOS/site-1, ... with a subfolder for each class.

Run it: BLINDSIGHT_PHOTOS=photos python docs/examples/flower/photo_folders.py
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

from blindsight.app.train_together import read_labelled
from blindsight.federated.flower import (
    SecureFedAvg,
    SumPlan,
    register_protocol,
    secure_sum_mod,
    simulate_enrolment,
)
from blindsight.federated.learning.torch_records import load_arrays, named_arrays

SITES, ROUNDS, FEATURES = 3, 2, 1280
CLASSES = ("benign", "malignant")  # agreed on by all sites, so that labels mean the same
PLAN = SumPlan(weights=len(CLASSES) * (FEATURES + 1), max_examples=100)
client = register_protocol(ClientApp(mods=[secure_sum_mod()]))
server = ServerApp()


def make_head() -> torch.nn.Module:
    """The layer that is trained, as the last one of a larger model."""
    head = torch.nn.Sequential()
    head.add_module("classifier", torch.nn.Linear(FEATURES, len(CLASSES)))
    torch.nn.init.zeros_(head.classifier.weight)
    torch.nn.init.zeros_(head.classifier.bias)
    return head


def record(model: torch.nn.Module) -> ArrayRecord:
    """The arrays of the last layer, chosen by name."""
    return ArrayRecord({n: Array(a) for n, a in named_arrays(model, ["classifier."]).items()})


def load_site(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and class numbers of a site's photos."""
    photos = Path(os.environ["BLINDSIGHT_PHOTOS"]) / f"site-{site}"
    rows = read_labelled(photos, encoder="lite0")
    labels = torch.tensor([CLASSES.index(name) for name in rows.labels])
    return torch.tensor(rows.X * np.sqrt(FEATURES), dtype=torch.float32), labels


@client.train()
def train(message: Message, context: Context) -> Message:
    """Some steps on this site's photos."""
    X, y = load_site(int(context.node_config["partition-id"]))
    model = make_head()
    load_arrays(model, {n: a.numpy() for n, a in message.content["arrays"].items()})
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": record(model), "metrics": metrics}), reply_to=message)


def accuracy(arrays: ArrayRecord, site: int) -> float:
    """On one site's photos."""
    model, (X, y) = make_head(), load_site(site)
    load_arrays(model, {n: a.numpy() for n, a in arrays.items()})
    return float((model(X).argmax(dim=1) == y).float().mean())


@server.main()
def main(grid: Grid, context: Context) -> ArrayRecord:
    """All rounds."""
    parties = Path(os.environ["BLINDSIGHT_PARTIES"])
    strategy = SecureFedAvg(parties / "server")
    result = strategy.start(grid, record(make_head()), num_rounds=ROUNDS)
    print(f"{accuracy(result.arrays, 0):.3f} of the first site's photos are right", flush=True)
    return result.arrays


if __name__ == "__main__":
    folder = simulate_enrolment(Path(tempfile.mkdtemp()) / "parties", PLAN, users=SITES)
    os.environ["BLINDSIGHT_PARTIES"] = str(folder)
    run_simulation(server, client, num_supernodes=SITES)
