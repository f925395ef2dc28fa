"""Keys made once a session, and a small federation of digits whose sites enrol without a dealer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from blindsight.federated.deploy.folders import PartyFolder, accept, join, make_roster
from blindsight.federated.deploy.plan import Plan
from blindsight.federated.learning import Federation, initial_weights
from blindsight.federated.paper import paillier
from blindsight.federated.paper.paillier import PrivateKey
from blindsight.federated.sums import Role, Settings, Simulation

USERS = 5


@pytest.fixture(scope="session")
def small_key() -> PrivateKey:
    return paillier.generate(512, insecure_for_tests=True)


@pytest.fixture(scope="session")
def real_key() -> PrivateKey:
    return paillier.generate(2048)


@pytest.fixture(scope="session")
def rows() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    X, y = load_digits(return_X_y=True)
    parts = {f"site-{n}": slice(100 + n, 900, USERS) for n in range(1, USERS + 1)}
    return {
        name: (X[part], y[part])
        for name, part in {**parts, "public": slice(0, 100), "test": slice(900, None)}.items()
    }


@pytest.fixture
def federation(tmp_path: Path, rows) -> Callable[..., dict[str, PartyFolder]]:
    """Folders "site-1" to "site-5", users and holders, and "aggregator"; with their data files.

    With `users` there are as many sites; those after the fifth have the rows of the first ones
    again. The first sites are the holders.
    """

    def make(
        port: int = 9092, agreed: dict | None = None, users: int = USERS, **changes: object
    ) -> dict[str, PartyFolder]:
        scale = np.vstack([np.zeros(64), np.full(64, 16.0)])
        X, y = rows["public"]
        plan = Plan(
            initial=initial_weights(X / 16, y, classes=10),
            scale=scale,
            classes=10,
            **{"rounds": 2, "patience": 1.0, **changes},  # type: ignore[arg-type]
        )
        settings = Settings(**{"dimension": 650, "users": users, "bound": 4.0, **(agreed or {})})
        folders = {
            f"site-{n}": join(
                tmp_path / f"site-{n}",
                f"Site {n}",
                Role.USER | Role.HOLDER if n <= settings.n_holders else Role.USER,
            )
            for n in range(1, users + 1)
        }
        folders["aggregator"] = join(
            tmp_path / "aggregator", "Collector", Role.AGGREGATOR, address=f"127.0.0.1:{port}"
        )
        roster = make_roster(settings, plan, [folder.request for folder in folders.values()])
        for folder in folders.values():
            accept(folder, roster)
        for name, (rows_, labels) in rows.items():
            np.savez(tmp_path / f"{name}.npz", X=rows_, y=labels)
        for n in range(USERS + 1, users + 1):
            rows_, labels = rows[f"site-{(n - 1) % USERS + 1}"]
            np.savez(tmp_path / f"site-{n}.npz", X=rows_, y=labels)
        return folders

    return make


@pytest.fixture
def simulated(rows) -> Callable[..., np.ndarray]:
    """The model that a simulation gives for a plan when those users contribute to those rounds."""

    def run(plan: Plan, settings: Settings, contributors: list[tuple[int, ...]]) -> np.ndarray:
        trainers = {n: plan.trainer(*rows[f"site-{n}"], user=n) for n in range(1, USERS + 1)}
        simulation = Simulation(settings, encrypt=False)
        federation = Federation(simulation, trainers, initial=plan.initial, sending=plan.sending)
        for present in contributors:
            federation.round(dropouts=set(range(1, USERS + 1)) - set(present))
        return federation.weights

    return run
