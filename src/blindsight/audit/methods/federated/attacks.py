"""Attacks on federated rounds: what a dishonest or merely attentive party gets out of the messages
it sees.

Each attack plays one party by the protocol's own messages and says how much it got back; what
cheating parties try against the pad is in `cheats`. None breaks the encryption: the keys are short
only to be quick, and the results do not depend on their length.

    attack                     who                   what it gets in `paper` mode support
    intersection       the aggregator        φ, because it never changes: which weights each user
    changed single contributors        anybody               exact weights of one user, published as
    a "sum" subset subtraction         the aggregator        one user's whole update, as the
    difference of two sums single-user decryption     the aggregator        one user's whole update,
    passed off as a sum
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, KEYGEN, Header, Kind, Message
from blindsight.federated.opened import Opened
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.paper import algorithm
from blindsight.federated.paper.bodies import EncryptedSum, Shard
from blindsight.federated.permutation import inverse
from blindsight.federated.protocol import Settings, Simulation
from blindsight.federated.settings import Mode
from blindsight.privacy import Recovery

__all__ = [
    "match_activity",
    "single_contributors",
    "single_user_decryption",
    "subset_subtraction",
    "support_intersection",
]


def _quick_key(key: PrivateKey | None) -> PrivateKey:
    return keys.generate(512, insecure_for_tests=True) if key is None else key


def _updates(
    rng: np.random.Generator, users: int, dimension: int, density: float
) -> list[NDArray[np.float64]]:
    """Independent sparse updates, never exactly zero inside their support."""
    shape = (users, dimension)
    values = rng.uniform(0.1, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
    return list(np.where(rng.random(shape) < density, values, 0.0))


def match_activity(activity: NDArray[np.bool_], published: NDArray[np.bool_]) -> NDArray[np.intp]:
    """For each index the one place whose activity over the rounds explains it best, or -1 where
    several do.

    activity: (rounds, places), whether anybody sent something for the place. published: (rounds,
    indices), whether the published sum is not zero there. A place that was silent when the index
    changed is ruled out; of the others the one with the fewest extra appearances is it.
    """
    active, shown = activity.astype(np.float64), published.astype(np.float64)
    impossible = shown.T @ (1 - active)
    extra = np.where(impossible > 0, np.inf, (1 - shown).T @ active)
    best = extra.argmin(axis=1)
    least = extra.min(axis=1)
    unique = (
        np.isfinite(least) & ((extra == least[:, None]).sum(axis=1) == 1) & published.any(axis=0)
    )
    return np.where(unique, best, -1)


def _activity(simulation: Simulation, contributions: Sequence[bytes]) -> NDArray[np.bool_]:
    """What the aggregator sees of one round: the φ-permuted places that anybody sent something
    for.
    """
    settings = simulation.settings
    seen = np.zeros(settings.dimension, dtype=bool)
    for data in contributions:
        message = Message.decode(data, largest=len(data))
        if settings.mode == "pad":  # a padded vector has every place, whatever the update
            return np.ones(settings.dimension, dtype=bool)
        body = Shard.decode(
            message.body, width=simulation.aggregator.public.ciphertext_bytes, size=len(seen)
        )
        own = algorithm.user_places(
            settings, simulation.aggregator.enrolment.user_seeds[message.header.sender]
        )
        seen[inverse(own)[body.places.astype(np.intp)]] = True
    return seen


def support_intersection(
    mode: Mode = "paper",
    *,
    rounds: int = 30,
    users: int = 5,
    dimension: int = 200,
    density: float = 0.04,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """The aggregator matches permuted activity with published sums over rounds; success is an index
    de-permuted.
    """
    checks.whole("rounds", rounds)
    settings = Settings(
        dimension=dimension,
        users=users,
        mode=mode,
        capacity=max(1, round(density * dimension)) if mode == "paper" else None,
    )
    simulation = Simulation(settings, key=_quick_key(key))
    rng = np.random.default_rng(seed)
    activity = np.zeros((rounds, dimension), dtype=bool)
    published = np.zeros((rounds, dimension), dtype=bool)
    for r in range(rounds):
        result = simulation.round(_updates(rng, users, dimension, density))
        sent = [
            data for data in result.transcript.seen_by(AGGREGATOR) if data[5] == Kind.CONTRIBUTION
        ]
        activity[r], published[r] = _activity(simulation, sent), result.total != 0
    if mode == "paper":
        truth = algorithm.shared_places(settings, simulation.users[1].enrolment.shared_seed)
    else:
        truth = np.arange(dimension)
    guess, tried = match_activity(activity, published), published.any(axis=0)
    return Recovery(
        attack=f"support intersection over {rounds} rounds",
        measure="share of indices de-permuted",
        value=float((guess == truth)[tried].mean()),
        chance=1 / dimension,
    )


def single_contributors(
    mode: Mode = "paper",
    *,
    users: int = 5,
    dimension: int = 400,
    density: float = 0.044,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """Anybody reads the published sum: where one user alone contributed, it is that user's exact
    weight.
    """
    settings = Settings(
        dimension=dimension, users=users, mode=mode, least_per_coordinate=3 if mode == "pad" else 1
    )
    simulation = Simulation(settings, key=_quick_key(key))
    updates = _updates(np.random.default_rng(seed), users, dimension, density)
    result = simulation.round(updates)
    shown = result.revealed & (result.total != 0)
    alone = np.count_nonzero(updates, axis=0) == 1
    return Recovery(
        attack="single contributors",
        measure="share of the sum's non-zero weights that are one user's, exactly",
        value=float((shown & alone).sum() / max(1, shown.sum())),
        chance=0.0,
    )


@dataclass(frozen=True)
class _Stage:
    """A round whose contributions a dishonest aggregator has in hand, before it asks for
    anything.
    """

    simulation: Simulation
    header: Header
    contributions: dict[int, list[Message]]
    updates: list[NDArray[np.float64]]

    def keys(self, users: Sequence[int]) -> list[mpz]:
        """The product of these users' ciphertexts, place by place."""
        public = self.simulation.aggregator.public
        product: list[mpz] = []
        for user in users:
            for message in self.contributions[user]:
                part = public.from_bytes(self._ciphertexts(message))
                product = (
                    part
                    if not product
                    else [a * b % public.modulus for a, b in zip(product, part, strict=True)]
                )
        return product

    def _ciphertexts(self, message: Message) -> bytes:
        settings, public = self.simulation.settings, self.simulation.aggregator.public
        body = Shard.decode(message.body, width=public.ciphertext_bytes, size=settings.dimension)
        own = algorithm.user_places(
            settings, self.simulation.aggregator.enrolment.user_seeds[message.header.sender]
        )
        numbers = public.from_bytes(body.ciphertexts)
        order = np.argsort(inverse(own)[body.places.astype(np.intp)])
        moved: bytes = public.to_bytes([numbers[i] for i in order])
        return moved

    def sum_of(self, users: Sequence[int], claimed: Sequence[int], power: int = 1) -> Opened | None:
        """What comes of asking for the sum of `claimed` users with the product of `users`' keys;
        None: refused.
        """
        simulation, public = self.simulation, self.simulation.aggregator.public
        product = [pow(c, power, public.modulus) for c in self.keys(users)]
        body = EncryptedSum(len(claimed), public.to_bytes(product)).encode()
        message = simulation.aggregator._send(KEYGEN, Kind.SUM_REQUEST, body, self.header)
        for answer in simulation.keygen.receive(message.data):
            reply = Message.decode(answer.data, largest=len(answer.data))
            if reply.header.kind is Kind.SUM:
                return Opened.decode(reply.body, users=simulation.settings.users)
        return None

    def recovered(self, numbers: NDArray[np.int64] | None) -> float:
        """The share of the victim's (user 1's) weights that `numbers` tells exactly."""
        if numbers is None:
            return 0.0
        victim = self.simulation.settings.code.encode(self.updates[0])
        return float((numbers == victim).mean())


def _stage(users: int, dimension: int, seed: int, key: PrivateKey | None) -> _Stage:
    settings = Settings(dimension=dimension, users=users, mode="paper", capacity=dimension)
    simulation = Simulation(settings, key=_quick_key(key))
    updates = _updates(np.random.default_rng(seed), users, dimension, 1.0)
    for opening in simulation.aggregator.open_round(1, bytes(32)):
        simulation.users[opening.to].receive(opening.data)
    contributions = {
        number: [
            Message.decode(out.data, largest=1 << 30)
            for out in user.contribute(updates[number - 1])
        ]
        for number, user in simulation.users.items()
    }
    header = replace(contributions[1][0].header, kind=Kind.OPEN, sender=AGGREGATOR)
    return _Stage(simulation, header, contributions, updates)


def subset_subtraction(
    *,
    users: int = 5,
    dimension: int = 60,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """The aggregator asks for the sum of all users and of all but one; the difference is that one's
    update.
    """
    stage = _stage(users, dimension, seed, key)
    everybody = list(stage.contributions)
    whole = stage.sum_of(everybody, everybody)
    rest = stage.sum_of(everybody[1:], everybody[1:])
    difference = None if whole is None or rest is None else whole.values - rest.values
    return Recovery(
        attack="subset subtraction",
        measure="share of one user's weights recovered",
        value=stage.recovered(difference),
        chance=0.0,
    )


def single_user_decryption(
    *,
    users: int = 5,
    dimension: int = 60,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """The aggregator passes one user's ciphertexts off as the sum, in every way it can; the best
    one counts.
    """
    best = 0.0
    for claimed, power in (([1], 1), (range(1, users + 1), 1), (range(1, users + 1), users)):
        stage = _stage(users, dimension, seed, key)
        answer = stage.sum_of([1], list(claimed), power)
        if answer is not None:  # the product of N copies holds N times the weight
            exact = answer.values % power == 0
            best = max(best, stage.recovered(np.where(exact, answer.values // power, 0)))
    return Recovery(
        attack="single-user decryption",
        measure="share of one user's weights recovered",
        value=best,
        chance=0.0,
    )
