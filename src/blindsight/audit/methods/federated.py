"""Attacks on the paper's protocol by a dishonest, or an honest but curious, party.

Each attack plays one party of Algorithm 1 and measures how much it recovers. None breaks the
encryption: the keys are short only to save time, and the results do not depend on their length. The
attacks on our own secure sum are in `federated_cheats`.

| attack | attacker | what it recovers |
|--|--|--|
| support intersection | the aggregator | φ, because it never changes: which weights users changed |
| single contributors | anybody | exact weights of one user, published as a "sum" |
| subset subtraction | the aggregator | one user's update, as the difference of two sums |
| single-user decryption | the aggregator | one user's update, passed off as a sum |

`verdicts` compares what the aggregator and the key holder recover in the paper's protocol and ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.audit.engine.blackbox import Attack, attack_outcomes, collect
from blindsight.audit.methods.federated_cheats import stopped_by
from blindsight.audit.report.verdict import Verdict
from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats, Ints
from blindsight.core.errors import ProtocolError
from blindsight.federated.paper import paillier
from blindsight.federated.paper.algorithm import (
    PaperSettings,
    PaperSimulation,
    Shard,
    inverse,
    shared_places,
    user_places,
)
from blindsight.federated.paper.paillier import PrivateKey
from blindsight.federated.sums import RoundSum, Settings, Simulation
from blindsight.privacy import Recovery

__all__ = [
    "attack_sum",
    "match_activity",
    "single_contributors",
    "single_user_decryption",
    "subset_subtraction",
    "support_intersection",
    "verdicts",
]

Mode = Literal["paper", "pad"]


def _quick_key(key: PrivateKey | None) -> PrivateKey:
    return paillier.generate(512, insecure_for_tests=True) if key is None else key


def _updates(rng: np.random.Generator, users: int, dimension: int, density: float) -> list[Floats]:
    """Return independent sparse updates that are never exactly zero inside their support."""
    shape = (users, dimension)
    values = rng.uniform(0.1, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
    return list(np.where(rng.random(shape) < density, values, 0.0))


def match_activity(activity: Bools, published: Bools) -> NDArray[np.intp]:
    """Match each index with the permuted position whose activity over the rounds fits it best.

    A position that was silent in a round in which the index changed is ruled out; of the others
    the one with the fewest extra appearances is chosen.

    Parameters:
        activity: (rounds, positions), whether any user sent something for the position.
        published: (rounds, indices), whether the published sum is not zero there.

    Returns:
        The position of each index, or -1 if several positions fit equally well.
    """
    active, visible = activity.astype(np.float64), published.astype(np.float64)
    impossible = visible.T @ (1 - active)
    extra = np.where(impossible > 0, np.inf, (1 - visible).T @ active)
    best = extra.argmin(axis=1)
    least = extra.min(axis=1)
    unique = (
        np.isfinite(least) & ((extra == least[:, None]).sum(axis=1) == 1) & published.any(axis=0)
    )
    return np.where(unique, best, -1)


def _activity(simulation: PaperSimulation, contributions: dict[int, list[Shard]]) -> Bools:
    """Return the φ-permuted positions that any user sent, which the aggregator sees in a round."""
    active = np.zeros(simulation.settings.dimension, dtype=bool)
    for user, parts in contributions.items():
        back = inverse(user_places(simulation.settings, simulation.user_seeds[user]))
        for part in parts:
            active[back[part.places.astype(np.intp)]] = True
    return active


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
    """Play an aggregator that matches permuted activity with the published sums of many rounds.

    It succeeds for every index whose permutation it reverses.
    """
    checks.whole("rounds", rounds)
    rng = np.random.default_rng(seed)
    activity = np.zeros((rounds, dimension), dtype=bool)
    published = np.zeros((rounds, dimension), dtype=bool)
    if mode == "paper":
        capacity = max(1, round(density * dimension))
        settings = PaperSettings(dimension=dimension, users=users, capacity=capacity)
        paper = PaperSimulation(settings, key=_quick_key(key))
        truth = shared_places(settings, paper.shared_seed)
    else:
        padded = Simulation(Settings(dimension=dimension, users=users))
        truth = np.arange(dimension)
    for r in range(rounds):
        updates = _updates(rng, users, dimension, density)
        if mode == "paper":
            sent = {n: paper.contribution(n, u) for n, u in enumerate(updates, start=1)}
            activity[r] = _activity(paper, sent)
            published[r] = paper.decrypt(tuple(sent), paper.aggregate(sent)).values != 0
        else:  # a padded vector has every position, whatever the update
            activity[r] = True
            published[r] = padded.round(updates, model=bytes([r])).total != 0
    guess, tried = match_activity(activity, published), published.any(axis=0)
    return Recovery(
        attack=f"support intersection over {rounds} rounds",
        measure="share of indices de-permuted",
        value=float((guess == truth)[tried].mean()),
        chance=1 / dimension,
    )


def single_contributors(
    *,
    users: int = 5,
    dimension: int = 400,
    density: float = 0.044,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """Read the published sum: where only one user contributed, it is this user's exact weight."""
    settings = PaperSettings(dimension=dimension, users=users)
    updates = _updates(np.random.default_rng(seed), users, dimension, density)
    nonzero = PaperSimulation(settings, key=_quick_key(key)).round(updates).total != 0
    alone = np.count_nonzero(updates, axis=0) == 1
    return Recovery(
        attack="single contributors",
        measure="share of the sum's non-zero weights that are one user's, exactly",
        value=float((nonzero & alone).sum() / max(1, nonzero.sum())),
        chance=0.0,
    )


@dataclass(frozen=True)
class _Stage:
    """A round whose contributions a dishonest aggregator has received, before any decryption."""

    simulation: PaperSimulation
    contributions: dict[int, list[Shard]]
    updates: list[Floats]

    def sum_of(
        self, users: Sequence[int], claimed: Sequence[int], power: int = 1
    ) -> RoundSum | None:
        """Request the sum of `claimed` users for the product of the ciphertexts of `users`.

        Returns None if the request is refused.
        """
        modulus = self.simulation.key.public.modulus
        sent = {user: self.contributions[user] for user in users}
        product: list[mpz] = [pow(c, power, modulus) for c in self.simulation.aggregate(sent)]
        try:
            return self.simulation.decrypt(claimed, product)
        except ProtocolError:
            return None

    def recovered(self, numbers: Ints | None) -> float:
        """Return the share of the weights of the victim, user 1, that `numbers` equals exactly."""
        if numbers is None:
            return 0.0
        victim = self.simulation.settings.code.encode(self.updates[0])
        return float((numbers == victim).mean())


def _stage(users: int, dimension: int, seed: int, key: PrivateKey | None) -> _Stage:
    settings = PaperSettings(dimension=dimension, users=users, capacity=dimension)
    simulation = PaperSimulation(settings, key=_quick_key(key))
    updates = _updates(np.random.default_rng(seed), users, dimension, 1.0)
    sent = {n: simulation.contribution(n, u) for n, u in enumerate(updates, start=1)}
    return _Stage(simulation, sent, updates)


def subset_subtraction(
    *,
    users: int = 5,
    dimension: int = 60,
    seed: int = 0,
    key: PrivateKey | None = None,
) -> Recovery:
    """Play an aggregator that requests the sums of all users and of all but one.

    The difference is the update of the user who was left out.
    """
    stage = _stage(users, dimension, seed, key)
    everybody = list(stage.contributions)
    total = stage.sum_of(everybody, everybody)
    rest = stage.sum_of(everybody[1:], everybody[1:])
    difference = None if total is None or rest is None else total.values - rest.values
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
    """Play an aggregator that presents one user's ciphertexts as the sum, in every possible form.

    The best result counts.
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


_ATTACKS: tuple[tuple[str, str, str, Callable[..., Recovery], str], ...] = (
    (
        "support index",
        "30 rounds",
        "nobody learns it",
        support_intersection,
        "send every weight, under a pad: sums=Pad()",
    ),
    (
        "weight",
        "5 users, 96% sparse",
        "only sums are seen",
        single_contributors,
        "send every weight: send=Change() with sums=Pad()",
    ),
    (
        "update",
        "two subsets subtracted",
        "only sums are seen",
        subset_subtraction,
        "let key holders decide which sets are opened: sums=Pad()",
    ),
    (
        "update",
        "one user passed off as the sum",
        "only sums are seen",
        single_user_decryption,
        "check who is in the sum: sums=Pad()",
    ),
)


def verdicts(*, seed: int = 0) -> Iterator[Verdict]:
    """Yield verdicts on four attacks on the paper's protocol and on all attacks on ours."""
    for unit, setting, promise, attack, advice in _ATTACKS:
        recovery = attack(seed=seed)
        broken = recovery.value > max(0.05, 10 * (recovery.chance or 0.0))
        yield _verdict("DPHE", setting, unit, "paper", promise, recovery, broken, advice)
    for unit, setting, promise, attack, advice in _ATTACKS[:1]:
        recovery = attack("pad", seed=seed)
        broken = recovery.value > max(0.05, 10 * (recovery.chance or 0.0))
        yield _verdict(
            "sums under a pad (ours)", setting, unit, "proven", promise, recovery, broken, advice
        )
    tried = stopped_by()
    through = [name for name, code in tried.items() if not code]
    recovery = Recovery(
        attack=f"{len(tried)} ways to cheat by real messages",
        measure="share that went through",
        value=len(through) / len(tried),
        chance=0.0,
    )
    advice = f"mend the rules: {', '.join(through)} went through"
    setting = "cheating aggregator, key holder or user"
    yield _verdict(
        "sums under a pad (ours)",
        setting,
        "update",
        "proven",
        "only sums are seen",
        recovery,
        bool(through),
        advice,
    )


def _verdict(
    method: str,
    setting: str,
    unit: str,
    calibration: Literal["proven", "paper"],
    promise: str,
    recovery: Recovery,
    broken: bool,
    advice: str,
) -> Verdict:
    return Verdict(
        room="federated",
        method=method,
        setting=setting,
        unit=unit,
        calibration=calibration,
        claimed=None,
        proven=math.inf,
        promise=promise,
        recovered=recovery,
        broken=broken,
        advice=advice if broken else "",
    )


def attack_sum(model: Any, *, trials: int, seed: int) -> Attack:
    """Attack the sum of a round of six users, each of whom adds its share of the noise.

    One user sends its bound or minus its bound; if the unit is a record, a record of the largest
    norm is present or absent.
    """
    from blindsight.federated import Pad
    from blindsight.federated.agreement import agree
    from blindsight.federated.learning import RecordDescent
    from blindsight.federated.sums import Settings, Simulation

    options = {name: getattr(model.noise, name) for name in ("epsilon", "delta", "clip")}
    per_record, colluders = model.noise.per_record, (model.sums or Pad()).colluders
    if per_record:
        learner = RecordDescent() if model.learner is None else model.learner
        options |= {"clip": learner.record_norm, "records": model.noise.records}
    settings = agree(
        dimension=4, users=6, rounds=model.rounds, colluders=colluders, **options
    ).settings
    assert isinstance(settings, Settings)  # noqa: S101  (the paper's protocol has no noise)
    # The smallest number of contributors, whose noise is the smallest.
    silent = [np.zeros(4)] * (settings.fewest - 1)
    reach = float(settings.noise.clip) * np.eye(4)[0]  # type: ignore[union-attr]

    def run(update: Array, rng: np.random.Generator) -> Array:
        users = Simulation(settings, encrypt=False, rng=rng)
        return np.array([users.round([update, *silent]).total[0]])

    return attack_outcomes(
        collect(run, reach, 0 * reach if per_record else -reach, trials=trials, seed=seed),
        what="one round's sum of 6 users, one "
        + ("record added" if per_record else "of them replaced"),
        delta=model.guarantee_.delta,
        statistic=lambda sums: np.asarray(sums[:, 0], np.float64),
    )
