"""A federation's settings, made from a classifier's parameters, with guarantee and disclosure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.noise import GaussianShares, RecordShares
from blindsight.federated.paper.algorithm import PaperSettings
from blindsight.federated.sums.settings import SUM, Settings
from blindsight.privacy import Cost, Disclosure, Guarantee
from blindsight.privacy.accounting import Planned
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption

__all__ = ["SUM", "Agreement", "agree", "discloses"]

_RECORD_ASSUMPTIONS = (
    Assumption("clipped records", "each site clips each record's part of its sum"),
    Assumption("one place", "a record is held by one site, once; copies count as several records"),
)


@dataclass(frozen=True)
class Agreement:
    """Settings of the protocol, and what they promise."""

    settings: Settings | PaperSettings

    @property
    def noise(self) -> GaussianShares | None:
        """The noise whose shares users add, which is also the mechanism of the guarantee."""
        return self.settings.noise

    def guarantee(
        self, rounds: int, *, entropy: EntropyName = "system", unproven: tuple[Assumption, ...] = ()
    ) -> Guarantee:
        """Return the guarantee for a user, or with `RecordShares` for a record, over all sums.

        Parameters:
            rounds: the number of sums that contain one user's update, or one record.
            entropy: where the noise is drawn from.
            unproven: assumptions without proof; with any, no epsilon is proven.
        """
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
        assert isinstance(settings, Settings)  # noqa: S101  (the paper's protocol has no noise)
        per_record = isinstance(self.noise, RecordShares)
        also: tuple[Cost, ...] = ()
        if not per_record:  # a record belongs to one user
            proven = Guarantee(
                releases=plan, delta=self.noise.delta, model="central", entropy=entropy
            )
            epsilon = math.inf if unproven else proven.epsilon
            also = (Cost(epsilon=epsilon, delta=self.noise.delta, unit="record"),)
        return Guarantee(
            releases=plan,
            delta=self.noise.delta,
            model="central",
            entropy=entropy,
            unproven=unproven,
            also=also,
            assumptions=(
                *(_RECORD_ASSUMPTIONS if per_record else ()),
                Assumption(
                    "contributors",
                    f"at least {settings.fewest} users contribute to each round",
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
        """Return what to change if the noise is larger than the updates, otherwise None."""
        if self.noise is None:
            return None
        share = self.noise.share_of_clip(self.settings.users, self.settings.dimension)
        if share <= 1:
            return None
        if isinstance(self.noise, RecordShares):
            return (
                f"the noise in a mean over {self.settings.users} sites of {self.noise.records:,} "
                f"records is {share:.1f} times as long as a record's part can be: take more "
                "records, a larger epsilon or fewer rounds."
            )
        # The noise of the sum does not depend on the number of users, so that of the mean falls as
        # one over this number.
        enough = math.ceil(self.settings.users * share)
        return (
            f"the noise in a mean of {self.settings.users} updates is {share:.1f} times as long as "
            f"a clipped update can be: expect no gain. Take about {enough:,} users, a larger "
            "epsilon or "
            "fewer rounds."
        )

    def disclosure(self) -> Disclosure:
        """Return what each party of this federation sees."""
        return discloses(self.settings)


def agree(
    *,
    dimension: int,
    users: int,
    rounds: int,
    epsilon: float | None = None,
    delta: float = 1e-5,
    clip: float | None = None,
    bound: float | None = None,
    bits: int | None = None,
    least_users: int | None = None,
    colluders: int = 1,
    holders: int | None = None,
    most_users: int | None = None,
    across_rounds: bool | None = None,
    records: int | None = None,
    contributions: int | None = None,
    groups: int = 1,
) -> Agreement:
    """Return the settings of a federation; parameters that are None get a default.

    Without noise the defaults are bound 2 (standardised features give weights below 1 and a bias
    about -1) and 16 bits. With noise (`epsilon`), grid and bits are those that the shares of noise
    need, and `least_users` is two thirds of the users of a round: the fewer users must contribute,
    the more noise each of them adds.

    Parameters:
        dimension: the length of the vectors that are summed.
        users: the number of users.
        rounds: the number of sums that the guarantee covers.
        epsilon: per user over all rounds, or per record if `records` is given; None: no noise.
        delta: of the guarantee.
        clip: the largest norm of a user's update, or of one record's vector.
        bound: the largest weight in fixed point; only without noise.
        bits: the bits of a weight in fixed point; only without noise.
        least_users: the smallest number of contributors to a sum.
        colluders: how many users may collude with the aggregator.
        holders: the number of key holders.
        most_users: the largest number of users in one round.
        across_rounds: whether combinations of sums of different rounds are also protected.
        records: makes a record the unit of privacy: about the largest number of records of a site.
        contributions: how often a user contributes, if more often than `rounds`: sums over
            disjoint sets of records cost as much as the most expensive of them.
        groups: the number of groups of users that are summed separately, see `Settings`.
    """
    checks.whole("rounds", rounds)
    if epsilon is None:
        agreed = Settings(
            dimension=dimension,
            users=users,
            bound=2.0 if bound is None else bound,
            bits=16 if bits is None else bits,
            least_users=least_users,
            colluders=colluders,
            holders=holders,
            most_users=most_users,
            across_rounds=across_rounds,
            clip=clip,
            rounds=rounds if contributions is None else contributions,
            groups=groups,
        )
        return Agreement(agreed)
    if bound is not None or bits is not None:
        raise InvalidParameter(
            "with epsilon, bound and bits follow from the noise: leave them out."
        )
    largest = users if most_users is None else most_users
    needed = max(3, math.ceil(2 * largest / 3)) if least_users is None else least_users
    if not 0 <= checks.whole("colluders", colluders, least=0) < needed:
        raise InvalidParameter(
            f"colluders must be fewer than the {needed} users who contribute at least."
        )
    noise = (GaussianShares if records is None else RecordShares).calibrate(
        epsilon,
        delta=delta,
        clip=1.0 if clip is None else clip,
        dimension=dimension,
        shares=needed - colluders,
        rounds=rounds,
        **({} if records is None else {"records": records}),
    )
    code = noise.code()
    agreed = Settings(
        dimension=dimension,
        users=users,
        bound=code.bound,
        bits=code.bits,
        least_users=needed,
        colluders=colluders,
        holders=holders,
        most_users=most_users,
        across_rounds=across_rounds,
        rounds=rounds if contributions is None else contributions,
        noise=noise,
        groups=groups,
    )
    return Agreement(agreed)


def discloses(settings: Settings | PaperSettings) -> Disclosure:
    """Return what each party sees, and which attacks remain possible."""
    if isinstance(settings, PaperSettings):
        return _paper_disclosure()
    noise, faulty = settings.noise is not None, settings.faulty_holders
    a_sum = "the noisy sum of a round" if noise else "the exact sum of a round"
    honest = settings.fewest - settings.colluders
    sees = [
        ("the aggregator", f"who takes part, and {a_sum} over at least {settings.fewest} users"),
        (
            f"up to {faulty} of {settings.n_holders} key holders with the aggregator",
            "the same and nothing more",
        ),
        (
            f"more than {faulty} key holders with the aggregator",
            f"sums over other sets of users, and from {settings.needed} on every update",
        ),
        ("another user", f"{a_sum}, hence the sum of all others"),
        (
            f"the aggregator with up to {settings.colluders} users",
            f"sums of at least {honest} other users; it can also show a false sum, which a "
            "poisoning user can bring about anyway",
        ),
    ]
    if noise:
        sees.append(
            (
                "anybody with the model",
                "noisy sums; the guarantee bounds what they tell about "
                + (
                    "a record" if isinstance(settings.noise, RecordShares) else "a user or a record"
                ),
            )
        )
    else:
        across = (
            f"combinations of sums of different rounds of at least {settings.floor_ever} users"
            if settings.floor_ever
            else "combinations of sums of different rounds, down to nearly one user's update"
        )
        sees.append(
            (
                "whoever sees all sums",
                f"combinations of sums on one model of at least {settings.hiding_set} users; "
                f"{across}",
            )
        )
        sees.append(
            (
                "anybody with the model",
                "the exact sums: no epsilon bounds what they tell about a user or a record",
            )
        )
    verdict = (
        "Updates are hidden, and what their sums tell is bounded by the guarantee."
        if noise
        else "Updates are hidden, their exact sums are not. Add noise where a sum must not tell "
        "anything about one user."
    )
    return Disclosure(
        method=f"sums under one-time pads, {'with noise in every update' if noise else 'no noise'}",
        sees=tuple(sees),
        assumptions=_assumptions(settings),
        verdict=verdict,
    )


def _influence(settings: Settings) -> str:
    """Return how far one user can change the result, as half a sentence."""
    if settings.groups > 1:
        return (
            f"or up to {(settings.groups - 1) // 2} of them can move no coordinate of the mean "
            f"beyond the means of the honest ones of {settings.groups} groups"
        )
    if settings.clip is not None:
        return (
            f"can move the mean anywhere inside the ball of radius {settings.clip:g}, and no "
            "further: longer sums are refused"
        )
    return (
        "can shift the sum anywhere inside its range: clip= and groups= bound this, and poisoning "
        "remains"
    )


def _paper_disclosure() -> Disclosure:
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
        verdict="The aggregator can have any user's update opened. Use it to reproduce the paper.",
    )


def _assumptions(settings: Settings) -> tuple[str, ...]:
    return (
        f"at most {settings.faulty_holders} of {settings.n_holders} key holders collude with the "
        "aggregator or are put back in time",
        f"at most {settings.colluders} users collude with the aggregator, and two others are in "
        "every sum",
        "Ring-LWE at the stated size; for the keys X25519 or ML-KEM-768, and AES-256-GCM",
        "enrolment: people recognised the names in the roster and compared its fingerprint",
        "machines erase what they delete: keys of past rounds and contributions",
        f"poisoning is not prevented: one user {_influence(settings)}",
    )
