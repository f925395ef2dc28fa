"""The replay contract of federated learning with noise: the sums of a round are the only thing that
leaves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.engine import Neighbour, watch
from blindsight.core.errors import InvalidData
from blindsight.federated import FederatedClassifier, SumNoise
from blindsight.federated.agreement import agree
from blindsight.federated.noise import GaussianShares
from blindsight.federated.sums import Simulation
from blindsight.federated.sums.user import encode_update
from blindsight.privacy import Door, Guarantee, Planned
from contracts.replay import ReplayContract

RNG = np.random.default_rng(3)
X = RNG.normal(size=(20, 3))
Y = RNG.permutation(np.arange(20) % 3)
OWNERS = np.repeat(np.arange(5), 4)
QUERIES = np.random.default_rng(4).normal(size=(6, 3))


class TestFederatedClassifier(ReplayContract):
    """Noise on every round's sum, per user."""

    kept = (
        "random_state",
        "rounds_",
    )  # the rounds' logs are exact, for the owner: no file has them

    def make(self) -> Any:
        return FederatedClassifier(
            classes=[0, 1, 2], rounds=2, noise=SumNoise(epsilon=8.0), encrypt=False
        )

    def data(self) -> Any:
        return (X, Y, OWNERS)

    def answers(self, fitted: Any) -> Any:
        return fitted.predict(QUERIES), fitted.decision_function(QUERIES)

    def neighbours(self) -> list[Neighbour]:
        """A whole user replaced, and one record of one."""
        mine = OWNERS == 2
        found = []
        for name, rows in (("far", 1e3), ("opposite", -1.0), ("zero", 0.0)):
            for label in (0, 2):
                other, labels = X.copy(), Y.copy()
                other[mine], labels[mine] = rows * X[mine], label
                found.append(Neighbour(f"a user {name}, labels {label}", (other, labels, OWNERS)))
        one = X.copy()
        one[0] *= 1e4
        return [*found, Neighbour("a record far out", (one, Y, OWNERS))]

    def unrelated(self) -> list[Any]:
        rng = np.random.default_rng(9)
        return [
            (rng.normal(size=X.shape) * 10, rng.integers(0, 3, len(X)), OWNERS),
            (np.zeros_like(X), np.ones_like(Y), OWNERS),
        ]


class TestRecordSums(TestFederatedClassifier):
    """Noise on every round's sum, per record."""

    def make(self) -> Any:
        return FederatedClassifier(
            classes=[0, 1, 2],
            rounds=3,
            noise=SumNoise(epsilon=8.0, unit="record", records=8),
            encrypt=False,
        )

    def neighbours(self) -> list[Neighbour]:
        """A record replaced by any other, which is one removed and one added."""
        found = []
        for name, factor in (("far", 1e4), ("opposite", -1.0), ("zero", 0.0), ("nan", np.nan)):
            other, labels = X.copy(), Y.copy()
            other[7], labels[7] = factor * X[7], 2
            found.append(Neighbour(f"a record {name}", (other, labels, OWNERS)))
        return found


class TestAcrossMachines(ReplayContract):
    """The roles that run on several machines, with real keys and pads: how many messages there are,
    between whom, how long they are, and what is logged do not depend on what users contribute.

    The pads hide the messages' contents; the sum that is opened passes the door.
    """

    def data(self) -> Any:
        return np.random.default_rng(7).normal(size=(5, 3))

    def run(self, data: Any, folder: Path) -> Any:
        if len(data) < 3:
            raise InvalidData("a sum needs at least three users, as a coordinator demands.")
        settings = AGREED.settings
        noise = _ByUsers(**asdict(AGREED.noise))
        plan = (Planned(what="sum", mechanism=noise),)
        door = Door(Guarantee(releases=plan, delta=noise.delta, model="central"), what="a round")
        simulation = Simulation(settings)
        result = simulation.round(dict(enumerate(data, start=1)), progress=watch)
        messages = [(a, b, len(content)) for a, b, content in result.transcript.messages]
        return (
            messages,
            result.contributors,
            result.bytes_per_user,
            door.together("sum", list(data), lambda sent: np.sum(sent, axis=0)),
        )


AGREED = agree(dimension=3, users=5, rounds=2, epsilon=8.0)
UPDATES = RNG.normal(size=(5, 3))


@dataclass(frozen=True, kw_only=True)
class _ByUsers(GaussianShares):
    """The agreed noise, each share drawn by the code that runs in a user's own process."""

    def share(self, update: Any, *, rng: Any) -> NDArray[np.int64]:
        return encode_update(AGREED.settings, update, len(update), rng=rng)


class TestUsers(ReplayContract):
    """Real users, who trust no door but their own: what each puts under its pad, and the sum that
    is opened.
    """

    def data(self) -> Any:
        return UPDATES

    def run(self, data: Any, folder: Path) -> Any:
        if len(data) < 3:
            raise InvalidData("a sum needs at least three users, as a coordinator demands.")
        noise = _ByUsers(**asdict(AGREED.noise))
        plan = (Planned(what="sum", mechanism=noise, count=2),)
        door = Door(Guarantee(releases=plan, delta=noise.delta, model="central"), what="rounds")
        return [
            door.together("sum", list(data), lambda sent: np.sum(sent, axis=0)) for _ in range(2)
        ]
