"""Noise for what the sum itself reveals: each user adds a share of discrete Gaussian noise before it encrypts.

The sum of N discrete Gaussians of variance s² is not exactly a discrete Gaussian of variance N s², but nearly, and how
nearly is easy to prove (compare Kairouz, Liu and Steinke 2021).

*Lemma.* Let X ~ N_Z(0, a) and Y ~ N_Z(0, b) be independent discrete Gaussians with variances a, b and r = ab/(a+b). The
law of X + Y is within the factor e^(±t) of N_Z(0, a+b) at every point, t = ln((1+e)/(1-e)), e = 2 Σ_k≥1 exp(-2π² r k²).

*Proof.* P(X + Y = y) is proportional to Σ_x exp(-x²/2a - (y-x)²/2b) = exp(-y²/2(a+b)) Σ_x exp(-(x - ya/(a+b))²/2r).
By Poisson summation the last sum is sqrt(2πr) (1 + E_y) with |E_y| <= e, whatever y. So the law is N_Z(0, a+b) times
(1 + E_y) up to normalisation, and normalising costs another factor of the same kind. ∎

Adding one share after the other (a = k s², b = s², r = s² k/(k+1)), the errors multiply: N shares are within
e^(±τ), τ = Σ_k<N t_k, in each coordinate, so within e^(±dτ) for d independent coordinates. If exact noise N_Z(0, N s²)
gives (ε, δ), then P(S) <= e^(dτ) Q(S) <= e^(dτ) (e^ε Q'(S) + δ) <= e^(ε + 2dτ) P'(S) + e^(dτ) δ for the real noise.
With s >= 2 grid steps and N = 100, τ is below 10^-16.

*Sensitivity.* An update is clipped to l2 norm C and rounded toward zero, which lengthens no vector: in grid steps its
norm is at most C/grid. Replacing a user's update by any other moves the sum by at most 2C/grid.

*Range.* A share must fit its slot. It is cut off at the slot's reach B; the discrete Gaussian is sub-Gaussian (Canonne,
Kamath and Steinke 2020), so a share is cut with probability at most 2 exp(-B²/2s²), which is added to δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.privacy import Cost, Disclosure, Guarantee
from blindsight.privacy.accounting import zcdp_epsilon
from blindsight.privacy.entropy import Rng
from blindsight.privacy.mechanisms.exact import discrete_gaussian

if TYPE_CHECKING:
    from blindsight.federated.protocol.settings import Settings

__all__ = ["DistributedGaussian", "clipped_numbers", "divergence", "noise_share", "sum_discloses"]

_CUT_SHARE = 0.01  # of delta, set aside for shares that are cut off


def divergence(variance: float, shares: int) -> float:
    """τ: the sum of `shares` discrete Gaussians is within e^(±τ) of one, at every point (the lemma, added up)."""
    total = 0.0
    for k in range(1, shares):
        r = variance * k / (k + 1)
        error = 2 * sum(math.exp(-2 * math.pi**2 * r * j * j) for j in range(1, 20))
        if error >= 1:
            return math.inf
        total += math.log1p(error) - math.log1p(-error)
    return total


def clipped_numbers(update: NDArray[np.float64], clip: float, code: FixedPoint) -> NDArray[np.int64]:
    """Clip to l2 norm `clip`, then to whole numbers toward zero; the result is shorter than clip/grid for certain."""
    # Scaled into the ball by a hair more than needed: float rounding must not lengthen it.
    norm = float(np.linalg.norm(update)) * (1 + 1e-9)
    return code.encode(update * min(1.0, clip / norm) if norm > 0 else update, toward_zero=True)


def noise_share(variance: Fraction, size: int, settings: Settings, *, rng: Rng) -> NDArray[np.int64]:
    """One user's noise in grid steps, cut off at what its slots hold beside the clipped update."""
    reach = _reach(settings.code, settings.clip or 0.0)
    drawn = np.asarray(discrete_gaussian(variance, size, rng=rng), dtype=np.int64)
    return np.clip(drawn, -reach, reach)


def _reach(code: FixedPoint, clip: float) -> int:
    return code.largest - math.floor(clip / code.grid)


@dataclass(frozen=True, kw_only=True)
class DistributedGaussian:
    """Discrete Gaussian noise of which every user adds a share; variance is that of one share, in grid steps.

    Guarantee: per user, replace one, for `rounds` sums of at least `contributors` users of whom up to `colluders`
    tell the attacker their own shares. A record belongs to one user, so the same numbers hold per record.
    """

    variance: Fraction
    clip: float
    code: FixedPoint
    dimension: int
    users: int
    contributors: int
    colluders: int = 0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        checks.positive("clip", self.clip)
        checks.whole("contributors", self.contributors, least=1)
        checks.whole("colluders", self.colluders, least=0)
        if self.colluders >= self.contributors:
            raise InvalidParameter("colluders must be fewer than contributors.")
        object.__setattr__(self, "variance", Fraction(self.variance))
        reach = _reach(self.code, self.clip)
        if reach <= 0 or self._cut_delta() > _CUT_SHARE * self.delta:
            raise InvalidParameter(
                f"noise of {math.sqrt(self.variance):.3g} grid steps does not fit {self.code.bits}-bit values with "
                f"bound {self.code.bound:g} and clip {self.clip:g}: use a larger bound, more bits or a smaller clip."
            )

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        delta: float,
        clip: float,
        code: FixedPoint,
        dimension: int,
        users: int,
        contributors: int = 3,
        colluders: int = 0,
        rounds: int = 1,
    ) -> DistributedGaussian:
        """The least variance with which `rounds` sums cost at most (epsilon, delta) per user."""
        checks.positive("epsilon", epsilon)

        def enough(sigma: float) -> bool:
            variance = _square(sigma)
            return _epsilon(variance, clip, code, dimension, contributors - colluders, delta, rounds) <= epsilon

        low, high = 1.0, 2.0
        while not enough(high):
            low, high = high, 2 * high
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return cls(
            variance=_square(high),
            clip=clip,
            code=code,
            dimension=dimension,
            users=users,
            contributors=contributors,
            colluders=colluders,
            delta=delta,
        )

    def _cut_delta(self) -> float:
        """The probability that any share of any user is cut off in one round (sub-Gaussian tail, union bound)."""
        reach = _reach(self.code, self.clip)
        exponent = math.log(2.0 * self.dimension * self.users) - reach * reach / (2 * float(self.variance))
        return math.exp(min(exponent, 0.0))

    @property
    def honest(self) -> int:
        """Shares that an attacker does not know."""
        return self.contributors - self.colluders

    def epsilon(self, rounds: int = 1) -> float:
        """Per user, replace one, at `delta` in all; infinite where cut-off shares would cost too much of delta."""
        if rounds * self._cut_delta() > _CUT_SHARE * self.delta:
            return math.inf
        return _epsilon(self.variance, self.clip, self.code, self.dimension, self.honest, self.delta, rounds)

    @property
    def share_of_clip(self) -> float:
        """The norm of the noise in the mean of all users' updates, in clips: above 1 it drowns what is learned."""
        noise = math.sqrt(float(self.variance) * self.users * self.dimension) * self.code.grid
        return noise / self.users / self.clip

    def guarantee(self, rounds: int = 1, *, simulation: bool = False) -> Guarantee:
        """What `rounds` released sums promise, per user and per record."""
        epsilon = self.epsilon(checks.whole("rounds", rounds))
        return Guarantee(
            mechanism=f"distributed discrete Gaussian, {self.honest} shares of {math.sqrt(self.variance):.4g} steps",
            unit="user",
            epsilon=epsilon,
            delta=self.delta,
            model="central",
            accountant="zero-concentrated DP, sum of shares by Poisson summation",
            assumptions=(
                f"at least {self.contributors} users contribute to each of {rounds} rounds",
                f"at most {self.colluders} of them reveal their shares; the others add theirs",
                "who opens the sum opens nothing else (see the disclosure)",
            ),
            sampler="exact",
            simulation=simulation,
            also=(Cost(epsilon=epsilon, delta=self.delta, unit="record"),),
        )


def _square(sigma: float) -> Fraction:
    return Fraction(math.ceil(sigma * 1024), 1024) ** 2


def _epsilon(
    variance: Fraction, clip: float, code: FixedPoint, dimension: int, honest: int, delta: float, rounds: int
) -> float:
    """Rounds compose by adding rho. What the cuts may cost comes off delta first; e^(dτ) widens the rest."""
    slack = rounds * dimension * divergence(float(variance), honest)
    if not slack < 1:
        return math.inf
    squared = rounds * (2 * Fraction(clip) / Fraction(code.grid)) ** 2
    rho = float(squared / (2 * variance * honest))
    return zcdp_epsilon(rho, (1 - _CUT_SHARE) * delta * math.exp(-slack)) + 2 * slack


def sum_discloses(settings: Settings) -> Disclosure:
    """Without noise: encryption has no epsilon, and the published sum is exact. Who sees what."""
    if settings.mode == "paper":
        aggregator = "permuted supports, the same permutation every round; the exact sum of every coordinate"
        keygen = "whatever the aggregator asks it to decrypt"
    else:
        size = "nothing of the support" if settings.support == "hidden" else "how many blocks, which overlap"
        aggregator = f"who takes part; {size}; the exact sum where at least {settings.least_per_coordinate} contribute"
        keygen = "one sum a round, with the contributors of each block"
    return Disclosure(
        method=f"DPHE, {settings.mode} mode, no noise",
        sees=(
            ("the aggregator", aggregator),
            ("the key generator", keygen),
            ("another user", "the sum, hence the sum of all others"),
            ("anybody with the model", "the exact sum: no epsilon bounds what it tells about one user or record"),
        ),
        assumptions=(
            "the aggregator and the key generator do not collude",
            "Paillier's assumption at the key's length, with half-length exponents (DJN)",
        ),
        verdict="Updates are hidden, their exact sum is not. Add noise where the sum itself must not tell on anyone.",
    )
