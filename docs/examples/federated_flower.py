"""Five clinics train a softmax classifier of digits in a Flower app; the server sees only sums.

The app is an ordinary one: `train` gets arrays and returns arrays. `secure_sum_mod` and
`SecureFedAvg` make the update leave as a contribution to the secure sum. Here it runs on Flower's
simulation engine, with all parties' keys on one machine.

Run it: python docs/examples/federated_flower.py
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
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
    simulated_site,
)

X, y = load_digits(return_X_y=True)
X, TEST = X / 16.0, np.arange(len(y)) % 5 == 0
OWNER = np.where(TEST, -1, np.minimum(np.arange(len(y)) // 300, 4))  # of unequal size

root = simulate_enrolment(
    Path(tempfile.mkdtemp()) / "parties", SumPlan(weights=650, max_examples=500), users=5
)
client = register_protocol(ClientApp(mods=[secure_sum_mod(simulated_site(root))]))
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Thirty steps of gradient descent on the clinic's own digits."""
    mine = np.equal(OWNER, context.node_config["partition-id"])
    W, b = (array.numpy() for array in message.content["arrays"].values())
    for _ in range(30):
        scores = np.exp(X[mine] @ W + b)
        error = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y[mine]]
        W, b = W - X[mine].T @ error / mine.sum(), b - error.mean(axis=0)
    arrays = ArrayRecord({"W": Array(W), "b": Array(b)})
    metrics = MetricRecord({"num-examples": int(mine.sum())})  # stays at the clinic
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Three rounds; the model is tested on digits of nobody."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        W, b = (array.numpy() for array in arrays.values())
        accuracy = float(np.mean((X[TEST] @ W + b).argmax(axis=1) == y[TEST]))
        print(f"after round {server_round}: {accuracy:.3f} right", flush=True)
        return MetricRecord({"accuracy": accuracy})

    start = ArrayRecord({"W": Array(np.zeros((64, 10))), "b": Array(np.zeros(10))})
    SecureFedAvg(root / "server").start(grid, start, num_rounds=3, evaluate_fn=evaluate)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(server, client, num_supernodes=5)
