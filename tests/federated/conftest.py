"""Keys made once a session, and the small federation of digits that every carrier carries.

Keys are short, for speed: `insecure_for_tests` says so wherever one is made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from blindsight.federated import keys
from blindsight.federated.flower.homes import Home, make_homes
from blindsight.federated.flower.plan import Plan
from blindsight.federated.learning import initial_weights
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings

USERS = 5


@pytest.fixture(scope="session")
def small_key() -> PrivateKey:
    return keys.generate(512, insecure_for_tests=True)


@pytest.fixture(scope="session")
def real_key() -> PrivateKey:
    return keys.generate(2048)


@pytest.fixture(scope="session")
def rows() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    X, y = load_digits(return_X_y=True)
    parts = {f"user-{n}": slice(100 + n, 900, USERS) for n in range(1, USERS + 1)}
    return {
        name: (X[part], y[part])
        for name, part in {**parts, "public": slice(0, 100), "test": slice(900, None)}.items()
    }


@pytest.fixture
def federation(tmp_path: Path, small_key, rows):
    """Make folders and data files for a plan with the given changes; a small key keeps processes
    quick.
    """

    def make(
        port: int = 9092, agreed: dict | None = None, carrier: str = "mailbox", **changes
    ) -> dict[str, Home]:
        scale = np.vstack([np.zeros(64), np.full(64, 16.0)])
        X, y = rows["public"]
        start = initial_weights(X / 16, y, classes=10)
        plan = Plan(
            initial=start, scale=scale, classes=10, **{"rounds": 2, "patience": 1.0, **changes}
        )
        # Any users, so that one may be missing; groups are the protocol's own tests' business.
        settings = Settings(
            **{"dimension": 650, "users": USERS, "bound": 4.0, "group": 1, **(agreed or {})}
        )
        key = None if settings.holders else small_key
        homes = make_homes(tmp_path / "parties", settings, key, plan, port=port, carrier=carrier)
        for name, (rows_, labels) in rows.items():
            np.savez(tmp_path / f"{name}.npz", X=rows_, y=labels)
        return {home.path.name: home for home in homes}

    return make


@pytest.fixture
def simulated(small_key, rows):
    """The model that a simulation gives for a plan when those users contribute to those rounds."""
    from blindsight.federated.learning import Federation
    from blindsight.federated.protocol import Simulation

    def run(plan: Plan, settings: Settings, contributors: list[tuple[int, ...]]) -> np.ndarray:
        trainers = {n: plan.trainer(*rows[f"user-{n}"], user=n) for n in range(1, USERS + 1)}
        simulation = Simulation(settings, key=small_key, encrypt=False)
        federation = Federation(simulation, trainers, initial=plan.initial, sending=plan.sending)
        for present in contributors:
            federation.round(dropouts=set(range(1, USERS + 1)) - set(present))
        return federation.weights

    return run
