"""A federation's settings from a classifier's parameters, and with noise the mechanism that goes with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated import keys
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.noise import DistributedGaussian, sum_discloses
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings
from blindsight.privacy import Cost, Disclosure, Guarantee

__all__ = ["Agreement", "agree", "exact_sums", "layout_key"]


@lru_cache(maxsize=4)
def layout_key(bits: int) -> PrivateKey:
    """A key for the shape of messages in simulations without encryption; it never protects anything."""
    return keys.generate(bits)


def exact_sums(rounds: int) -> Guarantee:
    """The guarantee without noise: there is none, and it says so."""
    return Guarantee(
        mechanism=f"none: {rounds} exact sums of updates, encrypted on their way",
        unit="user",
        epsilon=math.inf,
        model="central",
        assumptions=("see the disclosure for who sees what",),
        also=(Cost(epsilon=math.inf, unit="record"),),
    )


@dataclass(frozen=True)
class Agreement:
    """Settings for the protocol, and what they promise."""

    settings: Settings
    noise: DistributedGaussian | None

    def guarantee(self, rounds: int, *, simulation: bool, missing: tuple[str, ...] = ()) -> Guarantee:
        """Per user and per record, for that many rounds; with something `missing` from the proof, none."""
        if self.noise is None:
            return exact_sums(rounds)
        found = self.noise.guarantee(rounds, simulation=simulation)
        if not missing:
            return found
        also = tuple(replace(cost, epsilon=math.inf) for cost in found.also)
        return replace(found, epsilon=math.inf, also=also, assumptions=(*found.assumptions, *missing))

    def advice(self) -> str | None:
        """What to change where the noise is larger than what it is added to."""
        if self.noise is None or self.noise.share_of_clip <= 1:
            return None
        # The sum needs the same noise whatever the number of users, so in the mean it falls as one over them.
        enough = math.ceil(self.settings.users * self.noise.share_of_clip)
        return (
            f"the noise in a mean of {self.settings.users} updates is {self.noise.share_of_clip:.1f} times as long as "
            f"a clipped update can be: expect no better than chance. Take about {enough:,} users, a larger epsilon or "
            "fewer rounds."
        )

    def disclosure(self) -> Disclosure:
        """Who sees what."""
        if self.noise is None:
            return sum_discloses(self.settings)
        return Disclosure(
            method="DPHE, block mode, with noise in every update",
            sees=(
                ("the aggregator", "who takes part, and the noisy sum of a round"),
                ("the key generator", "the noisy sum of a round, once"),
                ("another user", "the noisy sum"),
                ("anybody with the model", "noisy sums; the guarantee bounds what they tell about a user or a record"),
            ),
            assumptions=("the aggregator and the key generator do not collude",),
            verdict="Updates are hidden by encryption, and what their sum tells is bounded by the guarantee.",
        )


def agree(
    *,
    dimension: int,
    users: int,
    rounds: int,
    epsilon: float | None = None,
    delta: float = 1e-5,
    clip: float = 1.0,
    bound: float | None = None,
    bits: int | None = None,
    least_users: int | None = None,
    **settings: Any,
) -> Agreement:
    """Settings as asked; what was left open is chosen here.

    Without noise: bound 2 (standardised features give weights below 1, and a bias about -1), 16 bits, least_users 3.
    With noise (`epsilon`): 24 bits, and the smallest bound, by doubling, that the shares of noise fit into;
    least_users two thirds of the users, because the fewer must contribute, the more noise each of them adds.
    """
    checks.whole("rounds", rounds)
    if epsilon is None:
        agreed = Settings(
            dimension=dimension,
            users=users,
            bound=2.0 if bound is None else bound,
            bits=16 if bits is None else bits,
            least_users=3 if least_users is None else least_users,
            **settings,
        )
        return Agreement(agreed, None)
    needed = max(3, math.ceil(2 * users / 3)) if least_users is None else least_users
    if settings.get("mode", "block") != "block":
        raise InvalidParameter('noise needs mode="block".')
    settings = {**settings, "support": "hidden"}
    noise = _noise(epsilon, delta, clip, bound, 24 if bits is None else bits, dimension, users, needed, rounds)
    agreed = Settings(
        dimension=dimension,
        users=users,
        bound=noise.code.bound,
        bits=noise.code.bits,
        least_users=needed,
        clip=clip,
        noise_variance=noise.variance,
        **settings,
    )
    return Agreement(agreed, noise)


def _noise(
    epsilon: float,
    delta: float,
    clip: float,
    bound: float | None,
    bits: int,
    dimension: int,
    users: int,
    needed: int,
    rounds: int,
) -> DistributedGaussian:
    tried = max(2.0, 2 * checks.positive("clip", clip)) if bound is None else bound
    while True:
        try:
            found = DistributedGaussian.calibrate(
                epsilon,
                delta=delta,
                clip=clip,
                code=FixedPoint(bound=tried, bits=bits),
                dimension=dimension,
                users=users,
                contributors=needed,
                rounds=rounds,
            )
            if found.epsilon(rounds) <= epsilon:
                return found
        except InvalidParameter:
            if bound is not None or tried > 1e9:
                raise
        if bound is not None:
            raise InvalidParameter(f"noise for epsilon {epsilon:g} does not fit bound {bound:g}: leave bound to us.")
        tried *= 2
