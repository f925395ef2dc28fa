"""The demo's federation of N users on built-in digits: every round live, both sides of one
update.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.pictures import curves, draw, heat, noise

if TYPE_CHECKING:
    from blindsight.federated.learning import Federation

__all__ = ["run"]

_PUBLIC = 100


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """All rounds; after each one the page sees its figures."""
    users, rounds = int(arguments["users"]), int(arguments["rounds"])
    place.say(0, rounds, "dealing digits to users and making a key")
    rng = np.random.default_rng()
    X, y, test = _rows()
    federation, agreement = _federation(arguments, X, y, test, rng)
    start = federation.accuracy(federation.weights) if federation.accuracy is not None else 0.0
    logs: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "start": start,
        "users": users,
        "rounds": [],
        "disclosure": _plain(agreement.disclosure()),
    }
    result["guarantee"] = _plain(agreement.guarantee(rounds))
    for number in range(1, rounds + 1):
        absent = _absent(users, float(arguments["dropout"]), rng)
        log = federation.round(dropouts=absent)
        logs.append({**dataclasses.asdict(log), "absent": absent})
        result["rounds"] = logs
        if number == 1 or number == rounds:
            result["views"] = _views(federation, X, y, users, rng)
        place.say(number, rounds, f"round {number} of {rounds}", result)
    points = [(0.0, start), *((float(entry["round"]), float(entry["accuracy"])) for entry in logs)]
    draw(
        curves(
            {"accuracy on held-out digits": points}, xlabel="round", ylabel="accuracy", unit=True
        ),
        path=place.folder / "accuracy.svg",
    )
    return result


def _rows() -> tuple[NDArray[Any], NDArray[Any], tuple[NDArray[Any], NDArray[Any]]]:
    from blindsight import data

    digits = data.load("digits")
    X, y = digits.array().reshape(len(digits), -1) / 255.0, np.asarray(digits.labels)
    order = np.random.default_rng(3).permutation(len(y))
    held, rest = order[:400], order[400:]
    return X[rest], y[rest], (X[held], y[held])


def _federation(
    arguments: dict[str, Any], X: NDArray[Any], y: NDArray[Any], test: Any, rng: np.random.Generator
) -> tuple[Federation, Any]:
    from blindsight.federated.agreement import agree
    from blindsight.federated.learning import (
        Change,
        Federation,
        LocalTrainer,
        Proximal,
        TopK,
        linear,
    )
    from blindsight.federated.protocol import Simulation
    from blindsight.privacy.entropy import SystemEntropy

    users, sparse = int(arguments["users"]), arguments["send"] == "top-k"
    epsilon = arguments.get("epsilon")
    agreement = agree(
        dimension=10 * (X.shape[1] + 1),
        users=users,
        rounds=int(arguments["rounds"]),
        epsilon=epsilon,
        delta=1e-5,
        clip=1.0,
        least_users=3,
        colluders=min(1, users - 3),
        group=1,  # users drop out here one by one; the card says what that gives away without noise
        least_per_coordinate=min(3, users) if sparse and epsilon is None else 1,
    )
    simulation = Simulation(
        agreement.settings, encrypt=bool(arguments["encrypt"]), rng=SystemEntropy()
    )
    owner = rng.integers(0, users, len(y))
    owner[:users] = np.arange(users)  # nobody is left without a row
    trainers = {
        n + 1: LocalTrainer(X[owner == n], y[owner == n], 10, Proximal(strength=1e-3), None, [n])
        for n in range(users)
    }

    def accuracy(weights: NDArray[np.float64]) -> float:
        return float(
            np.mean(linear.predicted(linear.shaped(weights, X.shape[1]), test[0]) == test[1])
        )

    sending = TopK(0.2) if sparse and epsilon is None else Change()
    start = np.zeros(10 * (X.shape[1] + 1))
    return Federation(
        simulation, trainers, initial=start, sending=sending, accuracy=accuracy
    ), agreement


def _absent(users: int, share: float, rng: np.random.Generator) -> list[int]:
    """Who does not answer this round; as many as must confirm a set always do."""
    gone = [n + 1 for n in range(users) if rng.random() < share]
    return gone[: max(0, users - max(3, (users + 1) // 2 + 1))]


def _views(
    federation: Federation, X: NDArray[Any], y: NDArray[Any], users: int, rng: np.random.Generator
) -> dict[str, Any]:
    """One user's update, the bytes that the aggregator holds of it, and the sum that all learn."""

    from blindsight.federated.messages import AGGREGATOR

    last = federation.last
    if last is None:
        return {}
    number = last.contributors[0]
    local: Any = federation.participants[number].local
    own = local(federation.weights, 1) - federation.weights
    seen = last.transcript.sent_by(number)
    message = max(seen, key=len) if seen else b""
    width = 26  # 650 weights as a near square
    return {
        "user": number,
        "rows": len(local.X),
        "has": heat(own, width, cell=8),
        "sum": heat(last.total, width, cell=8),
        "sees": noise(message[200:], width, rows=25, cell=8) if message else None,
        "bytes": sum(map(len, seen)) or int(np.mean([*last.bytes_per_user.values()])),
        "messages": len(last.transcript.seen_by(AGGREGATOR)),
    }


def _plain(card: Any) -> Any:
    return json.loads(card.to_json())
