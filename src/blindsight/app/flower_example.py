"""Write a runnable Flower app whose server sees only sums, as a template for other apps.

This is the function behind `blindsight federate new`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blindsight.app.result import JobResult
from blindsight.core.errors import InvalidParameter

__all__ = ["FILES", "NewFederation", "new_federation"]

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "secure-digits"
version = "1.0.0"
description = "Clinics learn to read digits; the server sees only sums."
license = "Apache-2.0"
dependencies = ["blindsight[flower]", "scikit-learn>=1.5"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "example"

[tool.flwr.app.components]
serverapp = "secure_digits.server_app:app"
clientapp = "secure_digits.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 3
parties = "parties"
"""

_TASK = '''\
"""What the clinics learn: a softmax classifier of digits. Replace it by your own model and data."""

import numpy as np
from sklearn.datasets import load_digits

SITES = 3
WEIGHTS = 650


def initial_arrays() -> dict[str, np.ndarray]:
    """The model of the first round."""
    return {"W": np.zeros((64, 10)), "b": np.zeros(10)}


def load_data(site: int) -> tuple[np.ndarray, np.ndarray]:
    """The digits of one clinic; a hospital reads its own files here."""
    X, y = load_digits(return_X_y=True)
    mine = np.arange(len(y)) % (SITES + 1) == site
    return X[mine] / 16.0, y[mine]


def load_test() -> tuple[np.ndarray, np.ndarray]:
    """Digits of nobody, by which the server measures the model."""
    return load_data(SITES)


def train(arrays: dict[str, np.ndarray], X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Thirty steps of gradient descent on a clinic's own digits."""
    W, b = arrays["W"], arrays["b"]
    for _ in range(30):
        scores = np.exp(X @ W + b)
        error = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y]
        W, b = W - X.T @ error / len(y), b - error.mean(axis=0)
    return {"W": W, "b": b}


def accuracy(arrays: dict[str, np.ndarray], X: np.ndarray, y: np.ndarray) -> float:
    """The share of digits that the model reads rightly."""
    return float(np.mean((X @ arrays["W"] + arrays["b"]).argmax(axis=1) == y))
'''

_CLIENT = '''\
"""A clinic: trains on its own digits; its update leaves only as a part of a secure sum."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from blindsight.federated.flower import register_protocol, secure_sum_mod
from secure_digits.task import load_data, train

# The folder with the clinic's keys is the node's setting `blindsight-folder`; a simulation finds
# it by the node's number below the folder that the variable BLINDSIGHT_PARTIES names.
app = register_protocol(ClientApp(mods=[secure_sum_mod()]))


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """One round on this clinic's digits; the number of examples stays here."""
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    X, y = load_data(int(context.node_config["partition-id"]))
    after = ArrayRecord({name: Array(value) for name, value in train(arrays, X, y).items()})
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": after, "metrics": metrics}), reply_to=message)
'''

_SERVER = '''\
"""The server: sees who takes part and the sum of all updates, and nothing of one clinic."""

import os
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from blindsight.federated.flower import SecureFedAvg
from secure_digits.task import accuracy, initial_arrays, load_test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Some rounds; the model of a killed run is continued."""
    simulated = os.environ.get("BLINDSIGHT_PARTIES", "parties")
    parties = Path(str(context.run_config.get("parties", simulated)))
    test = load_test()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        measured = accuracy({name: array.numpy() for name, array in arrays.items()}, *test)
        print(f"after round {server_round}: {measured:.3f} right", flush=True)
        return MetricRecord({"accuracy": measured})

    start = ArrayRecord({name: Array(value) for name, value in initial_arrays().items()})
    rounds = int(context.run_config.get("num-server-rounds", 3))
    strategy = SecureFedAvg(parties / "server")
    strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluate)
'''

_PARTIES = '''\
"""Make a folder with keys for the server and for each clinic, all on this machine: a simulation.

Real parties make their own folders (`join`), send each other the public requests, and accept the
roster that one of them made of these (`make_roster`, `accept`); see README.md.
"""

from blindsight.federated.flower import SumPlan, simulate_enrolment
from secure_digits.task import SITES, WEIGHTS

if __name__ == "__main__":
    simulate_enrolment("parties", SumPlan(weights=WEIGHTS, max_examples=500), users=SITES)
    print(f"parties/server, and parties/node-0 to parties/node-{SITES - 1}")
'''

_SIMULATE = '''\
"""Run the app on Flower's simulation engine: `python simulate.py`."""

import os
import subprocess
import sys
from pathlib import Path

from flwr.simulation import run_simulation

HERE = Path(__file__).parent.absolute()

if __name__ == "__main__":
    os.chdir(HERE)
    if not Path("parties").exists():
        subprocess.run([sys.executable, "make_parties.py"], check=True)
    os.environ["PYTHONPATH"] = str(HERE)  # of the processes that Flower starts
    os.environ["BLINDSIGHT_PARTIES"] = str(HERE / "parties")
    from secure_digits.client_app import app as client
    from secure_digits.server_app import app as server
    from secure_digits.task import SITES

    run_simulation(server, client, num_supernodes=SITES)
'''

_README = """\
# Secure digits
Three clinics learn to read digits with [Flower](https://flower.ai). The server sees the sum of the
clinics' updates and nothing of a single one: `secure_sum_mod` in `secure_digits/client_app.py` and
`SecureFedAvg` in `secure_digits/server_app.py` are all that differs from an ordinary Flower app.

## In one process
    python simulate.py

## On Flower's deployment engine
    python make_parties.py
    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 \\
        --node-config 'partition-id=0 blindsight-folder="/full/path/parties/node-0"'
    (the same with 1 and 2, and another --port each)
    flwr run . clinics --stream --run-config 'parties="/full/path/parties"'
`clinics` is a SuperLink in Flower's file ~/.flwr/config.toml; without a name, `flwr run` simulates:

    [superlink.clinics]
    address = "127.0.0.1:8000"
    insecure = true

With TLS, that file has root-certificates = "/full/path/ca.pem" instead of insecure. Give
--ssl-ca-certfile, --ssl-certfile and --ssl-keyfile instead of --insecure to the SuperLink, and
--root-certificates to the SuperNodes. With --enable-supernode-auth at the SuperLink only nodes
whose public key was registered (`flwr supernode register KEY.pub clinics`) are let in; each starts
with --auth-supernode-private-key. A node that is killed continues when it is started again; with
--database FILE the SuperLink finds its nodes again, and the next `flwr run` continues from the last
sum.

## With keys of their own
`make_parties.py` makes everybody's keys on one machine, which protects nobody from that machine.
Instead, each clinic and the server make their own folder, once:

    from blindsight.federated.flower import join
    from blindsight.federated.sums import Role
    join("party", "Harbour clinic", Role.USER | Role.HOLDER)     # the server: Role.AGGREGATOR

Everybody sends the public file `party/request` to one of them, who makes the roster; everybody
accepts it and compares the fingerprint by telephone:

    from blindsight.federated.flower import SumPlan, accept, make_roster
    from blindsight.federated.sums import Request
    requests = [Request.decode(data) for data in files]
    roster = make_roster(SumPlan(weights=650, max_examples=500), requests)
    print(accept("party", roster).fingerprint)
"""

#: The files of the example and what they hold.
FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "make_parties.py": _PARTIES,
    "simulate.py": _SIMULATE,
    "secure_digits/__init__.py": '"""Clinics learn to read digits; the server sees only sums."""\n',
    "secure_digits/task.py": _TASK,
    "secure_digits/client_app.py": _CLIENT,
    "secure_digits/server_app.py": _SERVER,
}


@dataclass(frozen=True)
class NewFederation(JobResult):
    """The result of `new_federation`.

    Attributes:
        folder: the folder of the app.
        files: the names of its files.
    """

    folder: Path
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"A Flower app is in {self.folder}"

    def facts(self) -> list[tuple[str, str]]:
        return [("run it", f"python {self.folder / 'simulate.py'}"), ("read", "README.md")]


def new_federation(folder: str | Path) -> NewFederation:
    """Write a runnable Flower app whose sites share only sums.

    Parameters:
        folder: the folder, which must be empty or not exist.

    Raises:
        InvalidParameter: the folder is not empty.

    Examples:
        >>> import tempfile
        >>> app = new_federation(Path(tempfile.mkdtemp()) / "digits")
        >>> (app.folder / "secure_digits" / "client_app.py").exists()
        True
    """
    root = Path(folder)
    if root.exists() and any(root.iterdir()):
        raise InvalidParameter(f"{root} is not empty. Choose another folder.")
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return NewFederation(root, tuple(FILES))
