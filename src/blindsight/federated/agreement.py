"""A federation's settings from a classifier's parameters, the mechanism of its noise, and the
cards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.noise import GaussianShares
from blindsight.federated.settings import Settings
from blindsight.privacy import Cost, Disclosure, Guarantee
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption
from blindsight.privacy.plan import Planned

__all__ = ["SUM", "Agreement", "agree", "discloses"]

SUM = "sum of updates"


@dataclass(frozen=True)
class Agreement:
    """Settings for the protocol, and what they promise."""

    settings: Settings

    @property
    def noise(self) -> GaussianShares | None:
        """What users add their shares of, and what is priced: one object."""
        return self.settings.noise

    def guarantee(
        self, rounds: int, *, entropy: EntropyName = "system", unproven: tuple[Assumption, ...] = ()
    ) -> Guarantee:
        """Per user and per record, for that many rounds; with something `unproven`, none."""
        if self.noise is None:
            return Guarantee(
                mechanism=f"none: {rounds} exact sums of updates, hidden on their way",
                unit="user",
                model="central",
                entropy=entropy,
                unproven=(
                    Assumption("exact sums", "the exact sums are published: epsilon= adds noise"),
                    *unproven,
                ),
                assumptions=(Assumption("disclosure", "see the disclosure for who sees what"),),
                also=(Cost(epsilon=math.inf, unit="record"),),
            )
        settings, plan = self.settings, (Planned(what=SUM, mechanism=self.noise, count=rounds),)
        proven = Guarantee(releases=plan, delta=self.noise.delta, model="central", entropy=entropy)
        epsilon = math.inf if unproven else proven.epsilon
        return Guarantee(
            releases=plan,
            delta=self.noise.delta,
            model="central",
            entropy=entropy,
            unproven=unproven,
            also=(Cost(epsilon=epsilon, delta=self.noise.delta, unit="record"),),
            assumptions=(
                Assumption(
                    "contributors",
                    f"at least {settings.least_users} users contribute to each round",
                ),
                Assumption(
                    "colluders",
                    f"at most {settings.colluders} of them tell their shares or add none",
                ),
                Assumption(
                    "sums only",
                    "what is opened are the rounds' sums and nothing else (see the disclosure)",
                ),
            ),
        )

    def advice(self) -> str | None:
        """What to change where the noise is larger than what it is added to."""
        if self.noise is None:
            return None
        share = self.noise.share_of_clip(self.settings.users, self.settings.dimension)
        if share <= 1:
            return None
        # The sum needs the same noise whatever the number of users, so in the mean it falls as one
        # over them.
        enough = math.ceil(self.settings.users * share)
        return (
            f"the noise in a mean of {self.settings.users} updates is {share:.1f} times as long as "
            f"a clipped update can be: expect no gain. Take about {enough:,} users, a larger "
            "epsilon or "
            "fewer rounds."
        )

    def disclosure(self) -> Disclosure:
        """Who sees what."""
        return discloses(self.settings)


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
    colluders: int = 1,
    **settings: Any,
) -> Agreement:
    """Settings as asked; what was left open is chosen here.

    Without noise: bound 2 (standardised features give weights below 1, and a bias about -1), 16
    bits, least_users 3. With noise (`epsilon`): the grid and the bits that the shares of noise
    need; least_users two thirds of the users, because the fewer must contribute, the more noise
    each of them adds.
    """
    checks.whole("rounds", rounds)
    if epsilon is None:
        agreed = Settings(
            dimension=dimension,
            users=users,
            bound=2.0 if bound is None else bound,
            bits=16 if bits is None else bits,
            least_users=3 if least_users is None else least_users,
            colluders=colluders,
            rounds=rounds,
            **settings,
        )
        return Agreement(agreed)
    if settings.get("mode", "pad") != "pad":
        raise InvalidParameter('noise needs mode="pad".')
    if bound is not None or bits is not None:
        raise InvalidParameter(
            "with epsilon, bound and bits follow from the noise: leave them out."
        )
    needed = max(3, math.ceil(2 * users / 3)) if least_users is None else least_users
    if not 0 <= checks.whole("colluders", colluders, least=0) < needed:
        raise InvalidParameter(
            f"colluders must be fewer than the {needed} users who contribute at least."
        )
    noise = GaussianShares.calibrate(
        epsilon,
        delta=delta,
        clip=clip,
        dimension=dimension,
        shares=needed - colluders,
        rounds=rounds,
    )
    code = noise.code()
    agreed = Settings(
        dimension=dimension,
        users=users,
        bound=code.bound,
        bits=code.bits,
        least_users=needed,
        colluders=colluders,
        rounds=rounds,
        noise=noise,
        **settings,
    )
    return Agreement(agreed)


def discloses(settings: Settings) -> Disclosure:
    """Who sees what, and what remains possible for whom."""
    noise = settings.noise is not None
    if settings.mode == "paper":
        return Disclosure(
            method="DPHE, paper mode, no noise",
            sees=(
                (
                    "the aggregator",
                    "permuted supports, the same permutation every round; the exact sum",
                ),
                ("the key generator", "whatever the aggregator asks it to decrypt"),
                ("another user", "the sum, hence the sum of all others"),
                (
                    "anybody with the model",
                    "the exact sum: no epsilon bounds what it tells about one user or record",
                ),
            ),
            assumptions=(
                "everybody follows the protocol",
                "Paillier's assumption, with half-length exponents (DJN)",
            ),
            verdict="The aggregator can have any user's update opened. Use it to reproduce the "
            "paper.",
        )
    a_sum = "the noisy sum of a round" if noise else "the exact sum of a round"
    whose = "users" if settings.group == 1 else f"whole groups of at least {settings.group} users"
    fewest = settings.least_users if settings.group in (None, 1) else settings.group
    sees = [
        ("the aggregator", f"who takes part, and {a_sum} over {whose}"),
        *_openers(settings),
        ("another user", f"{a_sum}, hence the sum of all others"),
        (
            f"the aggregator with up to {settings.colluders} users",
            f"sums of at least {fewest - settings.colluders} other users; it can also show a false "
            "sum, which a "
            "poisoning user can do anyway",
        ),
    ]
    if settings.holders is None:
        again = "further noisy sums, each of them counted" if noise else f"further sums of {whose}"
        sees.append(
            (
                "the aggregator with a key generator put back in time",
                "nothing more" if settings.unguarded else again,
            )
        )
    if settings.least_per_coordinate > 1:
        sees.append(
            (
                "the aggregator and the users",
                "how many users changed each weight, before any weight is sent",
            )
        )
    if settings.unguarded:
        which = (
            " (and which weights it changed, exactly)" if settings.least_per_coordinate > 1 else ""
        )
        sees.append(
            (
                "whoever sees two rounds",
                "by their difference, nearly the update of one user who was missing in "
                f"one{which}; in league with a "
                "user, exactly",
            )
        )
    if noise:
        sees.append(
            (
                "anybody with the model",
                "noisy sums; the guarantee bounds what they tell of a user or a record",
            )
        )
    else:
        sees.append(
            (
                "anybody with the model",
                "the exact sums: no epsilon bounds what they tell of a user or record",
            )
        )
    verdict = (
        "Updates are hidden, and what their sums tell is bounded by the guarantee."
        if noise
        else "Updates are hidden, their exact sums are not. Add noise where a sum must not tell on "
        "anyone."
    )
    return Disclosure(
        method=f"sums under a lattice pad, {'with noise in every update' if noise else 'no noise'}",
        sees=tuple(sees),
        assumptions=_assumptions(settings),
        verdict=verdict,
    )


def _openers(settings: Settings) -> list[tuple[str, str]]:
    if settings.holders is None:
        return [
            (
                "the key generator",
                "one summed key per round; no vector, and no user's key unless it taps the line",
            ),
            ("the aggregator with the key generator", "every update"),
        ]
    needed, total = settings.holders
    return [
        (
            f"up to {needed - 1} of {total} key holders",
            "nothing, also together with the aggregator",
        ),
        (f"{needed} of them with the aggregator", "every update"),
    ]


def _assumptions(settings: Settings) -> tuple[str, ...]:
    opener = (
        "the aggregator and the key generator do not collude"
        if settings.holders is None
        else f"fewer than {settings.holders[0]} key holders collude with the aggregator"
    )
    key = (
        "Paillier's, with half-length exponents (DJN)"
        if settings.holders is None
        else "X25519 and AES-GCM"
    )
    return (
        opener,
        f"at most {settings.colluders} users collude with the aggregator, and two others are in "
        "every sum",
        f"Ring-LWE at the stated size, and for the keys {key}",
        "enrolment: whoever hands out the folders checks that N users are N people, and chose the "
        "first model fairly",
        "no party's state is put back in time, or it counts as colluding",
    )
