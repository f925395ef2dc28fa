"""Five sites train scikit-learn's SGDClassifier on digits; sites have unequal numbers of them.

Run it: python docs/examples/flower/sgd_classifier.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from blindsight.federated.flower import (
    SecureFedAvg,
    SumPlan,
    register_protocol,
    secure_sum_mod,
    simulate_enrolment,
)

SITES, ROUNDS = 5, 3
PLAN = SumPlan(weights=650, max_examples=600, bound=4.0)
X, y = load_digits(return_X_y=True)
X = X / 16.0
TEST = np.arange(len(y)) % 5 == 0
OWNER = np.where(TEST, -1, np.minimum(np.arange(len(y)) // 250, SITES - 1))
client = register_protocol(ClientApp(mods=[secure_sum_mod()]))
server = ServerApp()


def classifier(arrays: ArrayRecord) -> SGDClassifier:
    """The estimator with these weights."""
    model = SGDClassifier(loss="log_loss", alpha=1e-3, random_state=0)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = (arrays[name].numpy().copy() for name in ("coef", "intercept"))
    return model


@client.train()
def train(message: Message, context: Context) -> Message:
    """Five passes over this site's digits."""
    mine = np.equal(OWNER, context.node_config["partition-id"])
    given = classifier(message.content["arrays"])
    model = SGDClassifier(loss="log_loss", alpha=1e-3, max_iter=5, tol=None, random_state=0)
    # Every class must occur in fit: a row of zeros of each has no weight.
    rows, labels = np.vstack([X[mine], np.zeros((10, 64))]), np.append(y[mine], np.arange(10))
    model.fit(
        rows, labels, coef_init=given.coef_, intercept_init=given.intercept_,
        sample_weight=np.append(np.ones(mine.sum()), np.zeros(10)),
    )  # fmt: skip
    arrays = ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})
    metrics = MetricRecord({"num-examples": int(mine.sum())})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def accuracy(arrays: ArrayRecord) -> float:
    """On digits of nobody."""
    return float(classifier(arrays).score(X[TEST], y[TEST]))


@server.main()
def main(grid: Grid, context: Context) -> ArrayRecord:
    """All rounds, and the accuracy after the last."""
    start = ArrayRecord({"coef": Array(np.zeros((10, 64))), "intercept": Array(np.zeros(10))})
    parties = Path(os.environ["BLINDSIGHT_PARTIES"])
    result = SecureFedAvg(parties / "server").start(grid, start, num_rounds=ROUNDS)
    print(f"{accuracy(result.arrays):.3f} right", flush=True)
    return result.arrays


if __name__ == "__main__":
    folder = simulate_enrolment(Path(tempfile.mkdtemp()) / "parties", PLAN, users=SITES)
    os.environ["BLINDSIGHT_PARTIES"] = str(folder)
    run_simulation(server, client, num_supernodes=SITES)
