"""Noise that limits what the sum itself reveals: each user adds a share of discrete Gaussian noise
before it pads its update.

*One share* is `convolved_gaussian(levels)`, a discrete Gaussian of standard deviation w =
width(levels) >= 6.4 steps, up to a factor that `DiscreteGaussian` allows for. *The sum of h shares*
is nearly the discrete Gaussian of variance h w² (compare Kairouz, Liu and Steinke 2021):

*Lemma.* Let X ~ N_Z(0, a) and Y ~ N_Z(0, b) be independent discrete Gaussians with variances a, b
and r = ab/(a+b). The distribution of X + Y is within the factor e^(±t) of N_Z(0, a+b) at every
point, where t = ln((1+e)/(1-e)) and e = 2 Σ_k≥1 exp(-2π² r k²).

*Proof.* P(X + Y = y) is proportional to Σ_x exp(-x²/2a - (y-x)²/2b) = exp(-y²/2(a+b)) Σ_x exp(-(x -
ya/(a+b))²/2r). By Poisson summation the last sum is sqrt(2πr) (1 + E_y) with |E_y| <= e for every
y. So the distribution is N_Z(0, a+b) times (1 + E_y) up to normalisation, which costs another
factor of the same form. ∎

With w² = 41, r is at least 20.5 and e below 2^-582. Over 2^28 weights, 2^16 users and any number of
rounds this is far below 1e-9, by which `mu` is rounded up. The discrete Gaussian of variance s² is
in turn bounded by the continuous one of variance s² - 9, as proven at `DiscreteGaussian`.

*Sensitivity.* An update is clipped to l2 norm C and rounded toward zero, which lengthens no vector:
in steps its norm is at most C/grid. Replacing a user's update by any other changes the sum by at
most 2C/grid.

*Range.* A share is never larger than 160 (3^levels - 1)/2 steps, and slots have room for it and the
clipped update: nothing is cut off, and nothing has to be added to delta.

*Records.* `RecordShares` bounds what the sum reveals about one record. A user's update is then a
sum of vectors, one for each of its records, each of l2 norm at most C (`clipped_sum`). Without one
record the user's sum differs by at most C; cutting off coordinates and rounding them to the grid
adds less than one step in each of d coordinates, so in steps two neighbouring sums differ by at
most C/step + sqrt(d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.door import FILLED, MOST_ROWS, PlainRows, Rows, finite_rows
from blindsight.privacy.entropy import Rng
from blindsight.privacy.mechanisms import Gaussian
from blindsight.privacy.mechanisms.base import Reals, keep_dtype, register
from blindsight.privacy.mechanisms.gaussian import convolved_gaussian, width

__all__ = ["GaussianShares", "RecordShares", "clipped_sum", "largest_share"]

# Steps of the grid in clip / sqrt(dimension): rounding toward zero then costs a few per cent of a
# clip.
_FINENESS = 16
# The same for sums of records: rounding then costs less than one per cent of the noise.
_RECORD_FINENESS = 128
_MOST_SLOT_BITS = 28  # the largest values that the secure sum can add


def largest_share(levels: int) -> int:
    """Return the largest possible share; the sampler's table ends at ±160."""
    return int(160 * (3**levels - 1) // 2)


@register
@dataclass(frozen=True, kw_only=True)
class GaussianShares:
    """A sum to which users add discrete Gaussian noise, `shares` of them unknown to the attacker.

    Guarantee: (epsilon, delta) per user, replace one, for one sum of updates of l2 norm at most
    `clip` on a grid of `step`; a record belongs to one user, so the same numbers hold per record.
    """

    clip: float
    step: float
    levels: int
    shares: int
    delta: float
    unit: Unit = "user"
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        checks.positive("clip", self.clip)
        checks.positive("step", self.step)
        checks.whole("shares", self.shares)
        width(checks.whole("levels", self.levels))
        if not 0 < checks.number("delta", self.delta) < 1:
            raise InvalidParameter(
                f"delta must be above 0 and below 1 for Gaussian noise, got {self.delta!r}."
            )
        _ = Cost(epsilon=0, unit=self.unit, neighbours=self.neighbours)

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        delta: float,
        clip: float,
        dimension: int,
        shares: int,
        rounds: int = 1,
    ) -> GaussianShares:
        """Return the smallest noise with which `rounds` sums cost (epsilon, delta) per user.

        The grid is chosen to fit the noise.
        """
        checks.whole("rounds", rounds)
        plain = Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="user")
        mu = plain.mu / math.sqrt(rounds)
        for levels in range(1, 29):
            # `mu` below, solved for the step.
            steps = mu * math.sqrt(shares * width(levels) ** 2 - 9) / (1 + 1e-9)
            step = 2 * checks.positive("clip", clip) / steps * (1 + 1e-12)
            if step <= clip / (_FINENESS * math.sqrt(dimension)):
                return cls(clip=clip, step=step, levels=levels, shares=shares, delta=delta)
        raise _too_wide(epsilon)

    @property
    def mu(self) -> float:
        """Sensitivity over sigma of the continuous Gaussian that bounds the sum of the shares."""
        return (
            (1 + 1e-9)
            * (2 * self.clip / self.step)
            / math.sqrt(self.shares * width(self.levels) ** 2 - 9)
        )

    @property
    def sigma(self) -> float:
        """The standard deviation of all shares together."""
        return math.sqrt(self.shares) * width(self.levels) * self.step

    @property
    def says(self) -> str:
        return (
            f"{self.shares} shares of discrete Gaussian noise, sigma = {self.sigma:.4g} for clip "
            f"{self.clip:.4g}"
        )

    @property
    def cost(self) -> Cost:
        """The smallest epsilon of one sum at `delta`."""
        gaussian = Gaussian(
            sigma=1.0,
            sensitivity=self.mu,
            delta=self.delta,
            unit=self.unit,
            neighbours=self.neighbours,
        )
        return gaussian.cost

    @property
    def domain(self) -> Reals:
        """Sums of updates; those of neighbours differ by at most twice the clip."""
        return Reals(2 * self.clip, 2)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return two neighbouring inputs that attain the stated epsilon."""
        return np.array([-self.clip]), np.array([self.clip])

    def clipped(self, update: Any) -> NDArray[np.int64]:
        """Return the clipped update in whole steps, rounded toward zero; shorter than clip/step."""
        values = finite_rows(checks.number_array("update", update, ndim=1)[None])[0]
        # Scaled slightly more than needed, so that floating-point rounding cannot lengthen it.
        norm = float(np.linalg.norm(values)) * (1 + 1e-9)
        inside = values * min(1.0, self.clip / norm) if norm > 0 else values
        return np.asarray(np.trunc(inside / self.step), np.int64)

    def share(self, update: Any, *, rng: Rng) -> NDArray[np.int64]:
        """Return what one user sends, in steps: its clipped update plus its share of the noise."""
        inside = self.clipped(update)
        return inside + convolved_gaussian(self.levels, inside.size, rng=rng)

    def release(self, x: Any, *, rng: Rng) -> NDArray[Any]:
        """Return the sum, rounded toward zero to the grid, plus all shares."""
        values = checks.finite_array("x", x)
        # Floating-point arithmetic may have reduced a sum of whole steps by an ulp.
        steps = np.trunc(values / self.step * (1 + 1e-12)).astype(np.int64)
        for _ in range(self.shares):
            steps = steps + convolved_gaussian(self.levels, steps.size, rng=rng).reshape(
                steps.shape
            )
        return keep_dtype(steps * self.step, x)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """Return the log-probability of every coordinate's grid point."""
        deviation = math.sqrt(self.shares) * width(self.levels)
        steps = np.rint((np.asarray(released, np.float64) - np.asarray(x, np.float64)) / self.step)
        return -0.5 * (steps / deviation) ** 2 - math.log(deviation * math.sqrt(2 * math.pi))

    def code(self) -> FixedPoint:
        """The fewest bits whose slots hold a clipped update and a share."""
        reach = math.ceil(self.clip / self.step) + largest_share(self.levels)
        bits = reach.bit_length() + 1
        return FixedPoint(bound=self.step * ((1 << (bits - 1)) - 1), bits=bits)

    def share_of_clip(self, users: int, dimension: int) -> float:
        """Return the norm of the noise in the mean of all users' updates, divided by the clip.

        Above 1 the noise hides the updates.
        """
        return width(self.levels) * self.step * math.sqrt(users * dimension) / users / self.clip


def _too_wide(epsilon: float) -> InvalidParameter:
    return InvalidParameter(
        f"noise for epsilon {epsilon:g} is too wide for the sampler: use a larger epsilon."
    )


@register
@dataclass(frozen=True, kw_only=True)
class RecordShares(GaussianShares):
    """A sum over all records of all users, to which users add shares of discrete Gaussian noise.

    Guarantee: (epsilon, delta) per record, add or remove one, for one sum of records' vectors of
    l2 norm at most `clip` each, against everybody who does not know the noise of `shares` users.

    Parameters:
        clip: the largest norm of one record's vector.
        step: the grid of the sums.
        levels: the width of one share, see `convolved_gaussian`.
        shares: the number of shares that the attacker does not know.
        delta: of the guarantee.
        dimension: the length of the vectors.
        records: how many records' vectors of full length a user's slots hold in one coordinate;
            a larger sum is cut off there, which costs accuracy and no privacy.
    """

    dimension: int
    records: int
    unit: Unit = "record"
    neighbours: Neighbours = "add or remove one"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("dimension", self.dimension)
        checks.whole("records", self.records)
        if self.unit != "record" or self.neighbours != "add or remove one":
            raise InvalidParameter("RecordShares protect a record that is added or removed.")

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        delta: float,
        clip: float,
        dimension: int,
        shares: int,
        rounds: int = 1,
        records: int = 1,
    ) -> Self:
        """Return the smallest noise with which `rounds` sums cost (epsilon, delta) per record."""
        checks.whole("rounds", rounds)
        plain = Gaussian.calibrate(epsilon, delta=delta, sensitivity=1.0, unit="record")
        mu, root = plain.mu / math.sqrt(rounds), math.sqrt(checks.whole("dimension", dimension))
        for levels in range(1, 29):
            steps = mu * math.sqrt(shares * width(levels) ** 2 - 9) / (1 + 1e-9) - root
            if steps >= _RECORD_FINENESS * root:
                return cls(
                    clip=clip,
                    step=checks.positive("clip", clip) / steps * (1 + 1e-12),
                    levels=levels,
                    shares=shares,
                    delta=delta,
                    dimension=dimension,
                    records=records,
                )
        raise _too_wide(epsilon)

    @property
    def mu(self) -> float:
        """Sensitivity over sigma of the continuous Gaussian that bounds the sum of the shares."""
        sensitivity = self.clip / self.step + math.sqrt(self.dimension)
        return (1 + 1e-9) * sensitivity / math.sqrt(self.shares * width(self.levels) ** 2 - 9)

    @property
    def domain(self) -> Reals:
        """Sums of records' vectors; those of neighbours differ by at most the clip."""
        return Reals(self.clip, 2)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return two neighbouring inputs: the sum without a record, and with it."""
        return np.array([0.0]), np.array([self.clip])

    @property
    def reach(self) -> int:
        """The largest sum of a user in one coordinate, in steps."""
        room = (1 << (_MOST_SLOT_BITS - 1)) - 1 - largest_share(self.levels)
        return min(math.ceil(self.records * self.clip / self.step), room)

    def clipped(self, update: Any) -> NDArray[np.int64]:
        """Return a sum of records' vectors in whole steps, cut off at `reach`.

        The vectors must have been clipped one by one (`clipped_sum`); a sum with NaN or infinity
        counts as zeros.
        """
        values = finite_rows(checks.number_array("update", update, ndim=1)[None])[0]
        steps = np.clip(values / self.step, -self.reach, self.reach)
        return np.asarray(np.trunc(steps), np.int64)

    def code(self) -> FixedPoint:
        """The fewest bits whose slots hold a user's sum and a share."""
        bits = (self.reach + largest_share(self.levels)).bit_length() + 1
        return FixedPoint(bound=self.step * ((1 << (bits - 1)) - 1), bits=bits)

    def share_of_clip(self, users: int, dimension: int) -> float:
        """Return the noise norm in the mean over all possible records, divided by the clip."""
        noise = width(self.levels) * self.step * math.sqrt(users * dimension)
        return noise / (users * self.records) / self.clip


def clipped_sum(rows: Rows | NDArray[Any], clip: float) -> NDArray[np.float64]:
    """Return the sum of records' vectors, each scaled down to l2 norm `clip`.

    Vectors with NaN or infinity count as zeros. The sum is computed so that leaving out a record
    changes it by at most `clip`, including rounding (see `blindsight.privacy.door.FILLED`).

    Parameters:
        rows: one vector for each record, or `Outer` products, which are never materialised.
        clip: the largest norm of one record's vector.

    Examples:
        >>> clipped_sum(np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.0]]), 1.0).round(3).tolist()
        [0.9, 1.2]
    """
    vectors = PlainRows(np.asarray(rows, np.float64)) if isinstance(rows, np.ndarray) else rows
    if len(vectors) > MOST_ROWS:
        raise InvalidParameter(
            f"at most {MOST_ROWS:,} records can be summed, got {len(vectors):,}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.asarray(vectors.norms(2), np.float64)
    usable = np.isfinite(norms)
    # The norm is increased by more than its rounding error, so that no row is longer than `clip`.
    longest = np.where(usable, norms, 1.0) * (1 + 1e-9)
    weights = np.minimum(1.0, clip * FILLED / np.maximum(longest, clip * FILLED))
    return np.asarray(vectors.weighted_sum(np.where(usable, weights, 0.0)), np.float64)
