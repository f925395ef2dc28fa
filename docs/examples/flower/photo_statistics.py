"""Three sites learn from one noisy sum of their photos' feature statistics, in a single round.

Each site has PHOTOS/site-0, PHOTOS/site-1, ... with a subfolder for each class. What leaves a site
is its part of a secure sum: class sums, counts and second moments of public features, with noise.

Run it: BLINDSIGHT_PHOTOS=photos python docs/examples/flower/photo_statistics.py
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from blindsight.app.together_statistics import StatisticsPlan, plan_statistics
from blindsight.app.train_together import read_labelled
from blindsight.encoders import open_encoder
from blindsight.federated.deploy.plan import class_numbers
from blindsight.federated.flower import (
    SecureFedAvg,
    SumPlan,
    register_protocol,
    secure_sum_mod,
    simulate_enrolment,
)
from blindsight.sketching import StatisticsClassifier

SITES, EPSILON, RECORDS, ENCODER = 3, 8.0, 100, "lite0"
CLASSES = ("benign", "malignant")  # agreed on by all sites, so that labels mean the same
client = register_protocol(ClientApp(mods=[secure_sum_mod()]))
server = ServerApp()


@cache
def statistics_plan() -> StatisticsPlan:
    """What is summed; every site computes the same from public knowledge."""
    encoder = open_encoder(ENCODER)
    return plan_statistics(
        sites=SITES, names=CLASSES, epsilon=EPSILON, records=RECORDS, encoder=encoder
    )[1]


def sum_plan() -> SumPlan:
    """The secure sum of such statistics."""
    size = statistics_plan().dimension
    return SumPlan(weights=size, max_examples=RECORDS, epsilon=EPSILON, clip=1.0, totals=True)


@client.train()
def train(message: Message, context: Context) -> Message:
    """The statistics of this site's photos."""
    site = int(context.node_config["partition-id"])
    plan = statistics_plan()
    photos = read_labelled(Path(os.environ["BLINDSIGHT_PHOTOS"]) / f"site-{site}", encoder=ENCODER)
    labels = class_numbers(photos.labels, CLASSES)
    summed = plan.layout.sum(plan.basis.rows(photos.X), labels)
    arrays = ArrayRecord({"statistics": Array(summed)})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> StatisticsClassifier:
    """One round; the classifier is fitted from the noisy sum alone."""
    strategy = SecureFedAvg(Path(os.environ["BLINDSIGHT_PARTIES"]) / "server")
    plan = statistics_plan()
    plan.check(strategy.server.roster.settings)
    start = ArrayRecord({"statistics": Array(np.zeros(plan.dimension))})
    result = strategy.start(grid, start, num_rounds=1)
    sites = int(result.train_metrics_clientapp[1]["clients"])
    total = result.arrays["statistics"].numpy()
    model = plan.fit(total, sites)
    print(f"learned {', '.join(model.classes_)} from {sites} sites", flush=True)
    return model


if __name__ == "__main__":
    folder = simulate_enrolment(Path(tempfile.mkdtemp()) / "parties", sum_plan(), users=SITES)
    os.environ["BLINDSIGHT_PARTIES"] = str(folder)
    run_simulation(server, client, num_supernodes=SITES)
