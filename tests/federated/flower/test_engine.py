"""The mod and the strategy on Flower's own simulation engine, which runs clients in Ray actors.

It runs in a process of its own, because the engine ends the Ray of its process when it is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import patient_ray

SECONDS = 1800  # only keeps a hanging engine from blocking other tests
APP = """
import json, sys
import numpy as np
import patient_ray
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from blindsight.federated.flower import (
    SecureFedAvg, SumPlan, register_protocol, secure_sum_mod, simulate_enrolment, simulated_site
)

patient_ray.install()
root = simulate_enrolment(sys.argv[1], SumPlan(weights=4, max_examples=30), users=3)
client = register_protocol(ClientApp(mods=[secure_sum_mod(simulated_site(root))]))
server = ServerApp()

@client.train()
def train(message, context):
    site = context.node_config["partition-id"]
    after = message.content["arrays"]["w"].numpy() + 0.1 * (site + 1)
    content = {
        "arrays": ArrayRecord({"w": Array(after)}),
        "metrics": MetricRecord({"num-examples": 10 * (site + 1)}),
    }
    return Message(RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    start = ArrayRecord({"w": Array(np.zeros(4))})
    result = SecureFedAvg(root / "server").start(grid, start, num_rounds=2)
    print(json.dumps(result.arrays["w"].numpy().tolist()), flush=True)

run_simulation(server, client, num_supernodes=3)
"""


@pytest.mark.real("ray")
def test_the_mean_comes_out_of_flowers_simulation_engine(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(patient_ray.__file__).parent),
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(app), str(tmp_path / "parties")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    final = json.loads(done.stdout.splitlines()[-1])
    mean = (0.1 * 10 + 0.2 * 20 + 0.3 * 30) / 60
    # Two rounds; half a step for each of three sites' change and weight, over a weight of 2.
    assert final == pytest.approx([2 * mean] * 4, abs=2 * 3 / (2**15 - 1) / 2)
