"""Attacks on federated rounds: what a dishonest or merely attentive party gets out of the messages it sees.

Each attack plays one party by the protocol's own messages, against `paper` or `block` mode, and says how much it got
back. None breaks the encryption: the keys are short only to be quick, and the results do not depend on their length.

    attack                     who                   what it gets in `paper` mode
    support intersection       the aggregator        φ, because it never changes: which weights each user changed
    single contributors        anybody               exact weights of one user, published as a "sum"
    subset subtraction         the aggregator        one user's whole update, as the difference of two sums
    single-user decryption     the aggregator        one user's whole update, passed off as a sum
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.federated import keys
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Contribution,
    Header,
    Kind,
    Message,
    Proof,
    Sum,
    SumRequest,
)
from blindsight.federated.noise import sum_discloses
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.permutation import inverse
from blindsight.federated.protocol import Settings, Simulation, block, paper
from blindsight.federated.protocol.accumulator import Accumulator
from blindsight.federated.protocol.settings import Mode
from blindsight.privacy import Disclosure, Recovery

__all__ = [
    "attack_all",
    "match_activity",
    "single_contributors",
    "single_user_decryption",
    "subset_subtraction",
    "support_intersection",
]


def _quick_key(key: PrivateKey | None) -> PrivateKey:
    return keys.generate(512, insecure_for_tests=True) if key is None else key


def _updates(rng: np.random.Generator, users: int, dimension: int, density: float) -> list[NDArray[np.float64]]:
    """Independent sparse updates, never exactly zero inside their support."""
    shape = (users, dimension)
    values = rng.uniform(0.1, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
    return list(np.where(rng.random(shape) < density, values, 0.0))


def match_activity(activity: NDArray[np.bool_], published: NDArray[np.bool_]) -> NDArray[np.intp]:
    """For each index the one place whose activity over the rounds explains it best, or -1 where several do.

    activity: (rounds, places), whether anybody sent something for the place. published: (rounds, indices), whether the
    published sum is not zero there. A place that was silent when the index changed is ruled out; of the others the one
    with the fewest extra appearances is it.
    """
    active, shown = activity.astype(np.float64), published.astype(np.float64)
    impossible = shown.T @ (1 - active)
    extra = np.where(impossible > 0, np.inf, (1 - shown).T @ active)
    best = extra.argmin(axis=1)
    least = extra.min(axis=1)
    unique = np.isfinite(least) & ((extra == least[:, None]).sum(axis=1) == 1) & published.any(axis=0)
    return np.where(unique, best, -1)


def _activity(simulation: Simulation, contributions: Sequence[bytes]) -> NDArray[np.bool_]:
    """What the aggregator sees of one round: the φ-permuted places that anybody sent something for."""
    settings, public = simulation.settings, simulation.key.public
    size = settings.places(public)
    seen = np.zeros(size, dtype=bool)
    for data in contributions:
        message = Message.decode(data, largest=len(data))
        body = Contribution.decode(message.body, width=public.ciphertext_bytes, size=size)
        seed = simulation.aggregator.enrolment.user_seeds[message.header.sender]
        if settings.mode == "paper":
            own = paper.user_places(settings, seed)
        else:
            context = block.round_context(message.header.round, message.header.model)
            own = block.user_places(settings, public, seed, context)
        places = np.arange(size) if body.places is None else body.places.astype(np.intp)
        seen[inverse(own)[places]] = True
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
    """The aggregator matches permuted activity with published sums over rounds; success is an index de-permuted."""
    checks.whole("rounds", rounds)
    key = _quick_key(key)
    settings = Settings(dimension=dimension, users=users, mode=mode, count="block", least_per_coordinate=1)
    if mode == "block":  # as many places as in paper mode, and everything revealed: the attacker's best case
        settings = replace(settings, dimension=dimension * settings.packing(key.public).slots)
    else:
        settings = replace(settings, capacity=max(1, round(density * dimension)))
    simulation = Simulation(settings, key=key, workers=1)
    size, rng = settings.places(simulation.key.public), np.random.default_rng(seed)
    activity = np.zeros((rounds, size), dtype=bool)
    published = np.zeros((rounds, size), dtype=bool)
    truth = np.zeros((rounds, size), dtype=np.intp)
    shared_seed = simulation.users[1].enrolment.shared_seed
    for r in range(rounds):
        updates = _updates(rng, users, size, density)
        if mode == "block":  # one active weight stands for its block
            updates = [np.pad(u[:, None], ((0, 0), (0, settings.dimension // size - 1))).ravel() for u in updates]
        result = simulation.round(updates)
        sent = [data for data in result.transcript.seen_by(AGGREGATOR) if data[5] == Kind.CONTRIBUTION]
        activity[r] = _activity(simulation, sent)
        published[r] = (result.total != 0).reshape(size, -1).any(axis=1)
        if mode == "paper":
            truth[r] = paper.shared_places(settings, shared_seed)
        else:
            header = Message.decode(sent[0], largest=len(sent[0])).header
            context = block.round_context(header.round, header.model)
            truth[r] = block.shared_places(settings, simulation.key.public, shared_seed, context)
    guess = match_activity(activity, published)
    tried = published.any(axis=0)
    return Recovery(
        attack=f"support intersection over {rounds} rounds",
        measure="share of indices de-permuted",
        value=float((guess == truth[-1])[tried].mean()),
        chance=1 / size,
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
    """Anybody reads the published sum: where one user alone contributed, it is that user's exact weight."""
    settings = Settings(dimension=dimension, users=users, mode=mode)
    simulation = Simulation(settings, key=_quick_key(key), workers=1)
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
    """A round whose contributions a dishonest aggregator has in hand, before it asks for anything."""

    simulation: Simulation
    header: Header
    contributions: dict[int, list[Message]]
    updates: list[NDArray[np.float64]]

    def products(self, users: Sequence[int]) -> Accumulator:
        enrolment = self.simulation.aggregator.enrolment
        sums = Accumulator(
            self.simulation.settings,
            self.simulation.key.public,
            seeds=enrolment.user_seeds,
            verifiers=enrolment.verifiers,
            context=block.round_context(self.header.round, self.header.model),
        )
        for user in users:
            for message in self.contributions[user]:
                sums.add(message)
        return sums

    def ask(self, request: SumRequest) -> Sum | None:
        """Send a request to the key generator as the aggregator; None where it is refused."""
        header = Header(
            kind=Kind.SUM_REQUEST,
            key_id=self.header.key_id,
            round=self.header.round,
            model=self.header.model,
            sender=AGGREGATOR,
        )
        message = Message.make(header, request.encode(), self.simulation.aggregator.identity)
        settings = self.simulation.settings
        for answer in self.simulation.keygen.receive(message.encode()):
            reply = Message.decode(answer.data, largest=len(answer.data))
            if reply.header.kind is Kind.SUM and reply.header.sender == KEYGEN:
                return Sum.decode(reply.body, dimension=settings.dimension, users=settings.users)
        return None

    def recovered(self, numbers: NDArray[np.int64] | None, shown: NDArray[np.bool_] | None = None) -> float:
        """The share of the victim's (user 1's) weights that `numbers` tells exactly."""
        if numbers is None:
            return 0.0
        victim = self.simulation.settings.code.encode(self.updates[0])
        support = victim != 0
        right = numbers == victim if shown is None else (numbers == victim) & shown
        return float(right[support].mean())


def _stage(mode: Mode, users: int, dimension: int, seed: int, key: PrivateKey | None) -> _Stage:
    # The whole update is dense and every contributor is counted: nothing is withheld for want of contributors.
    settings = Settings(dimension=dimension, users=users, mode=mode, support="hidden" if mode == "block" else "sparse")
    simulation = Simulation(settings, key=_quick_key(key), workers=1)
    updates = _updates(np.random.default_rng(seed), users, dimension, 1.0)
    for opening in simulation.aggregator.open_round(1, bytes(32)):
        simulation.users[opening.to].receive(opening.data)
    contributions = {
        number: [Message.decode(out.data, largest=1 << 30) for out in user.contribute(updates[number - 1])]
        for number, user in simulation.users.items()
    }
    header = contributions[1][0].header
    return _Stage(simulation, header, contributions, updates)


def subset_subtraction(
    mode: Mode = "paper",
    *,
    users: int = 5,
    dimension: int = 60,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """The aggregator asks for the sum of all users and of all but one; the difference is that one's update."""
    stage = _stage(mode, users, dimension, seed, key)
    everybody = list(stage.contributions)
    whole = stage.ask(stage.products(everybody).request())
    rest = stage.ask(stage.products(everybody[1:]).request())
    difference = None if whole is None or rest is None else whole.values - rest.values
    return Recovery(
        attack="subset subtraction",
        measure="share of one user's weights recovered",
        value=stage.recovered(difference),
        chance=0.0,
    )


def single_user_decryption(
    mode: Mode = "paper",
    *,
    users: int = 5,
    dimension: int = 60,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """The aggregator passes one user's ciphertexts off as the sum, in every way it can; the best one counts."""
    best = 0.0
    for forge in (_only_victim, _victim_repeated, _victim_under_all_names):
        stage = _stage(mode, users, dimension, seed, key)
        answer = stage.ask(forge(stage))
        if answer is None:
            continue
        for times in (1, users):  # the product of N copies holds N times the weight
            exact = answer.values % times == 0
            best = max(best, stage.recovered(np.where(exact, answer.values // times, 0), answer.revealed & exact))
    return Recovery(
        attack="single-user decryption",
        measure="share of one user's weights recovered",
        value=best,
        chance=0.0,
    )


def _victim_products(stage: _Stage, power: int) -> tuple[SumRequest, list[mpz]]:
    """An honest-looking request, and the victim's ciphertexts at its places, each to a power."""
    honest = stage.products(list(stage.contributions)).request()
    alone = stage.products([1])
    public = stage.simulation.key.public
    mine = alone.ciphertexts()
    chosen = [pow(mine.get(int(place), public.raw(0)), power, public.modulus) for place in honest.places]
    return honest, chosen


def _forged(stage: _Stage, power: int, members: NDArray[np.bool_] | None, proofs: tuple[Proof, ...]) -> SumRequest:
    honest, chosen = _victim_products(stage, power)
    data = stage.simulation.key.public.to_bytes(chosen)
    shown = honest.members if members is None else members
    return SumRequest(honest.users, proofs, honest.places, shown, data)


def _victim_under_all_names(stage: _Stage) -> SumRequest:
    honest, _ = _victim_products(stage, 1)
    return _forged(stage, 1, None, honest.proofs)


def _victim_repeated(stage: _Stage) -> SumRequest:
    honest, _ = _victim_products(stage, 1)
    return _forged(stage, len(stage.contributions), None, honest.proofs)


def _only_victim(stage: _Stage) -> SumRequest:
    """All signatures, but the truth about who is in the blocks."""
    honest, _ = _victim_products(stage, 1)
    members = honest.members.copy()
    members[:, 1:] = False
    return _forged(stage, 1, members, honest.proofs)


def attack_all(mode: Mode = "paper", *, seed: int = 0, key: PrivateKey | None = None) -> Disclosure:
    """Who sees what in a mode, with what each attack got."""
    key = _quick_key(key)
    recovered = (
        support_intersection(mode, seed=seed, key=key),
        single_contributors(mode, seed=seed, key=key),
        subset_subtraction(mode, seed=seed, key=key),
        single_user_decryption(mode, seed=seed, key=key),
    )
    worst = max(recovered, key=lambda recovery: recovery.value)
    settings = Settings(dimension=10, users=5, mode=mode)
    verdict = (
        f"Not safe against a dishonest aggregator: {worst.attack} recovers {worst.value:.0%}."
        if worst.value > 0.1
        else "No attack tried here recovered an update. The exact sum is published all the same."
    )
    return sum_discloses(settings).with_recovery(*recovered, verdict=verdict)
