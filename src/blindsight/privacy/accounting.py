"""Plans of releases, the cost of several releases together, and the cost of shuffled releases.

A plan (`Planned`) is stated before any private value is seen; `price` computes its cost. A cost is
never below that of Google's dp-accounting (the tests compare them), and calibration rounds toward
privacy.

*Shuffled entries.* The central guarantee of an index whose entries are in random order under random
ids. Each photo's cell is released by k-ary response with a local epsilon. Somebody who cannot link
an entry to a photo sees only how often each cell occurs, and each photo hides among the random
answers of all others. `shuffled_epsilon` computes the epsilon that holds against such an observer.

*Lemma.* Let n records be released by k-ary response, with gamma = k / (e^epsilon0 + k - 1), and let
the observer see the counts of the cells. For neighbours that replace one record,

    delta(epsilon) <= E_B E_h [(1 - gamma) k / (B + 1) (h_1 - e^epsilon h_2) - (e^epsilon - 1)
    gamma]+

where B is Binomial(n - 1, gamma) and h is Multinomial(B + 1; 1/k, ..., 1/k).

*Proof.* k-ary response answers uniformly at random with probability gamma and truthfully otherwise.
Give the observer more than it has: the values of the other n - 1 records, and which of them
answered truthfully. It can subtract those; what remains are the B uniform answers of the others and
the answer of the replaced record, as counts h with sum B + 1. Let Q be the distribution of B + 1
uniform answers. If the replaced record answers x truthfully, h has probability Q(h) k h_x / (B +
1): of the (B + 1)! / prod h_j! orders with probability k^-(B+1) each, B! h_x / prod h_j! have k^-B.
If it answers at random, h has probability Q(h). So the probability of h is Q(h) [(1 - gamma) k h_x
/ (B + 1) + gamma], and delta at e^epsilon is the sum of the positive part of the difference for x =
1 and x' = 2. More knowledge never decreases delta, so the bound holds for the real observer. (The
privacy blanket of Balle, Bell, Gascon and Nissim, CRYPTO 2019, with the common part gamma Q kept.)

Given B, the bound decreases with B: one more uniform answer is a random function of the counts. The
code groups values of B and takes the smallest of each group, which is an upper bound.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter, NotProven, UnitMismatch
from blindsight.privacy.cost import Cost, build
from blindsight.privacy.mechanisms import Mechanism, from_fields, to_fields
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon as closed_form

__all__ = [
    "Plan",
    "Planned",
    "ShuffleStatement",
    "compose",
    "least_noise",
    "plan_from_fields",
    "plan_to_fields",
    "price",
    "shuffled_epsilon",
]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One kind of release and how often it happens.

    Parameters:
        what: what is released, in a word or two ("label counts"); it identifies the release.
        mechanism: the mechanism that releases it. Its sensitivity is that of a whole unit, with all
            `group` rows of the unit in the sum.
        count: how often it is released about the same unit.
        group: how many rows (pairs, photos) of one unit may be in the sum.
        parts: the number of parts that public facts divide the rows into, where each release is
            about one part. `count` is how often one unit is used; up to count x parts releases are
            allowed.
        change: how far a unit moves the sum at most, in bounds of its rows. None: 2 where a unit
            is replaced (its old rows leave, new ones come), 1 where it is added or removed. A
            replaced label that moves a row to other coordinates of the sum moves it by root 2.

    Examples:
        >>> from blindsight.privacy.mechanisms import Laplace
        >>> noise = Laplace(scale=2.0, sensitivity=1.0, unit="record")
        >>> print(Planned(what="label counts", mechanism=noise, count=3))
        label counts: Laplace noise of scale 2, 3 times
    """

    what: str
    mechanism: Mechanism
    count: int = 1
    group: int = 1
    parts: int = 1
    change: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.what, str) or not self.what.strip():
            raise InvalidParameter(f"what must say what is released, got {self.what!r}.")
        if not isinstance(self.mechanism, Mechanism):
            raise InvalidParameter(
                "mechanism must have unit, neighbours, cost, domain, release, log_prob and "
                "worst_pair, "
                f"got {type(self.mechanism).__name__}."
            )
        checks.whole("count", self.count)
        checks.whole("group", self.group)
        checks.whole("parts", self.parts)
        if self.change is not None and not 1 <= checks.number("change", self.change) <= 2:
            raise InvalidParameter(f"change must be between 1 and 2, got {self.change}.")

    @property
    def row_bound(self) -> float:
        """How large one row may be, in the mechanism's norm, so that a unit stays within the
        sensitivity.
        """
        times = self.change
        if times is None:
            times = 2 if self.mechanism.neighbours == "replace one" else 1
        return self.mechanism.domain.reach / (self.group * times)

    def __str__(self) -> str:
        often = f", {self.count:,} times" if self.count > 1 else ""
        rows = f", up to {self.group} rows per {self.mechanism.unit}" if self.group > 1 else ""
        parts = f", on {self.parts:,} disjoint parts" if self.parts > 1 else ""
        return f"{self.what}: {self.mechanism.says}{often}{rows}{parts}"


Plan: TypeAlias = tuple[Planned, ...]


def plan_to_fields(plan: Iterable[Planned]) -> list[dict[str, Any]]:
    """Return the plan as values that JSON can hold; `plan_from_fields` reads them."""
    return [
        {
            "what": item.what,
            "mechanism": to_fields(item.mechanism),
            "count": item.count,
            "rate": 1.0,  # required by the card's format; this version never samples records
            "group": item.group,
            "parts": item.parts,
            **({} if item.change is None else {"change": item.change}),
        }
        for item in plan
    ]


def plan_from_fields(fields: Any) -> Plan:
    """Read a plan that `plan_to_fields` wrote; anything else is refused."""
    if not isinstance(fields, list):
        raise InvalidData(f"releases must be a list, got {type(fields).__name__}.")
    for item in fields:
        if not isinstance(item, dict):
            raise InvalidData(f"a release must be a JSON object, got {type(item).__name__}.")
        if item.get("rate", 1.0) != 1.0:
            raise NotProven(
                f"a release samples its records with probability {item['rate']!r}; expected 1: "
                "sampled releases are not accounted for."
            )
    return tuple(
        build(
            Planned,
            {
                **{name: value for name, value in item.items() if name != "rate"},
                "mechanism": from_fields(item.get("mechanism")),
            },
        )
        for item in fields
    )


def price(releases: Plan, *, delta: float = 0.0) -> Cost:
    """Return the total cost of a plan at one `delta`, in the unit that all its mechanisms share.

    Pure epsilons add up. Gaussian releases add up in mu^2, and their epsilon follows from the exact
    privacy curve of the Gaussian.
    """
    if not releases:
        raise InvalidParameter("a plan must name at least one release.")
    relations = {(item.mechanism.unit, item.mechanism.neighbours) for item in releases}
    if len(relations) > 1:
        named = " and ".join(sorted(f"per {unit} ({neighbours})" for unit, neighbours in relations))
        raise UnitMismatch(f"one plan must speak of one unit, got releases {named}.")
    ((unit, neighbours),) = relations
    pure = [item for item in releases if not hasattr(item.mechanism, "mu")]
    gaussian = [item for item in releases if hasattr(item.mechanism, "mu")]
    epsilon = math.fsum(item.count * item.mechanism.cost.epsilon for item in pure)
    rho = math.fsum(item.count * item.mechanism.cost.epsilon**2 / 2 for item in pure)
    spent = math.fsum(item.count * item.mechanism.cost.delta for item in pure)
    if gaussian:
        remaining_delta = checks.probability("delta", delta, below_one=True) - spent
        if remaining_delta <= 0:
            raise InvalidParameter(
                f"delta must be above {spent:g} for a plan with Gaussian noise, got {delta!r}."
            )
        epsilon += _gaussian_plan_epsilon(tuple(gaussian), remaining_delta)
        rho += math.fsum(item.count * _mu(item) ** 2 / 2 for item in gaussian)
        spent = delta
    composed_rho = None if any(item.mechanism.cost.delta for item in pure) else rho
    # A single pure release states what its mechanism does; its rho follows from epsilon.
    return Cost(
        epsilon=epsilon,
        delta=spent,
        unit=unit,
        neighbours=neighbours,
        rho=composed_rho if gaussian else None,
    )


def least_noise(
    epsilon: float,
    releases: Callable[[float], Plan],
    *,
    delta: float,
    low: float = 1e-3,
    precision: float = 1.001,
) -> float:
    """The least noise (to 0.1%) whose plan keeps (epsilon, delta), rounded toward privacy.

    `releases` makes the plan for a noise scale; more noise must not cost more.
    """
    target = checks.positive("epsilon", epsilon)

    def fits(noise: float) -> bool:
        return price(releases(noise), delta=delta).epsilon <= target

    high = max(1.0, low)
    while not fits(high):
        high *= 2
        if high > 1e9:
            raise InvalidParameter(
                f"no noise keeps epsilon {target:g}: other parts of the plan cost more."
            )
    while high / 2 > low and fits(high / 2):
        high /= 2
    least = high / 2
    while high / least > precision:
        middle = math.sqrt(least * high)
        least, high = (least, middle) if fits(middle) else (middle, high)
    return high


def _mu(item: Planned) -> float:
    return float(item.mechanism.mu)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=512)
def _gaussian_plan_epsilon(releases: Plan, delta: float) -> float:
    return closed_form(
        math.sqrt(math.fsum(item.count * _mu(item) ** 2 for item in releases)), delta
    )


def compose(costs: Iterable[Cost]) -> Cost:
    """Basic composition: what releases on the same data cost together (epsilons and deltas add)."""
    listed = list(costs)
    if not listed:
        raise InvalidParameter("costs must hold at least one cost, got none.")
    return functools.reduce(operator.add, listed)


_GROUPS = 48
_TAIL = 1e-3  # of delta: spent on the ends of the distributions that are not summed
_ROUNDING = 1e-12  # relative error of the tail probabilities, which are good to some 1e-14


@dataclass(frozen=True)
class ShuffleStatement:
    """What holds against an observer who cannot link entries to photos.

    Attributes:
        epsilon, delta: The central guarantee for each photo.
        local_epsilon: The guarantee that holds against everybody, and that this one never replaces.
        cells, records: The number of cells and of photos in the batch.
    """

    epsilon: float
    delta: float
    local_epsilon: float
    cells: int
    records: int

    assumptions = (
        "all entries were released in one batch: entries that are added later stand out",
        "nobody can link an entry's random id to a photo",
        "nobody observes which ids the owner looks up",
    )

    @classmethod
    def of_batch(cls, local_epsilon: float, cells: int, records: int) -> ShuffleStatement:
        """The statement for one batch, at delta = 1 / (10 records)."""
        delta = 1 / (10 * checks.whole("records", records))
        epsilon = shuffled_epsilon(local_epsilon, cells, records, delta)
        return cls(epsilon, delta, local_epsilon, cells, records)

    def __str__(self) -> str:
        if self.epsilon >= self.local_epsilon:
            return "Random order adds no protection at this number of photos."
        return (
            f"Against somebody who cannot link entries to photos: ε = {self.epsilon:.3g} at "
            f"δ = {self.delta:.1g}, for {self.records:,} photos in one batch. Against everybody: "
            f"ε = {self.local_epsilon:g}."
        )


def shuffled_epsilon(local_epsilon: float, cells: int, records: int, delta: float) -> float:
    """Compute the central epsilon of k-ary response whose answers are shuffled.

    Parameters:
        local_epsilon: Epsilon of k-ary response for one record.
        cells: The number of possible answers, k.
        records: The number of records that are released together, n.
        delta: The probability with which the bound may fail.

    Returns:
        float: An upper bound, at most `local_epsilon` (which holds with delta = 0), rounded up.

    Examples:
        >>> shuffled_epsilon(4.0, 29, 100_000, 1e-6) < 0.2
        True
        >>> shuffled_epsilon(8.0, 414, 2, 1e-9)
        8.0
    """
    counts = _Counts(local_epsilon, cells, records, delta)
    if counts.delta(local_epsilon * (1 - 1e-6)) > delta:
        return float(local_epsilon)
    low, high = 0.0, float(local_epsilon)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if counts.delta(middle) <= delta:
            high = middle
        else:
            low = middle
    return high


class _Group(NamedTuple):
    """Numbers of random answers that are treated alike.

    `mass` is the probability of the group, `answers` the smallest number of answers in it, and
    `probabilities` the distribution of `sums`, the sum of the counts of two cells.
    """

    answers: int
    mass: float
    sums: NDArray[np.float64]
    probabilities: NDArray[np.float64]


class _Counts:
    """The joint distribution of the counts of two cells, for groups of numbers of random answers.

    The parameters are those of `shuffled_epsilon`.
    """

    def __init__(self, local_epsilon: float, cells: int, records: int, delta: float) -> None:
        checks.positive("local_epsilon", local_epsilon)
        k, n = checks.whole("cells", cells), checks.whole("records", records)
        if k < 2:
            raise InvalidParameter(f"cells must be at least 2, got {k}.")
        self.gamma = k / (math.exp(local_epsilon) + k - 1)
        cut = _TAIL * checks.positive("delta", delta) / 16
        low, high = _window(n - 1, self.gamma, cut)
        edges = np.unique(np.linspace(low, high + 1, _GROUPS + 1).astype(np.int64))
        # Outside [low, high], and outside the windows of the groups, the gain is at most 1 in the
        # distribution in which the replaced record answers truthfully.
        self.tails = 2 * cut + 4 * cut
        self.groups: list[_Group] = []
        share = 2 / k
        for start, stop in itertools.pairwise(edges):
            mass = float(
                _more_than(start - 1, n - 1, self.gamma) - _more_than(stop - 1, n - 1, self.gamma)
            )
            answers = int(start) + 1
            if k == 2:  # all answers are of the two cells
                self.groups.append(_Group(answers, mass, np.array([float(answers)]), np.ones(1)))
                continue
            # Binomial(answers, 2/k) in a window. If the replaced record answers truthfully, the sum
            # is one more than a Binomial of one answer fewer: the window is chosen for that one.
            least, largest = _window(answers - 1, share, cut)
            sums = np.arange(least, largest + 2, dtype=np.float64)
            with np.errstate(divide="ignore"):
                steps = np.log(np.maximum(answers - sums[:-1], 0.0)) - np.log(sums[1:])
                logs = np.cumsum([0.0, *(steps + np.log(share) - np.log1p(-share))])
            weights = np.exp(logs - logs.max())
            # Scaled to sum to one over the window: never below the true probabilities.
            self.groups.append(_Group(answers, mass, sums, weights / weights.sum()))
        self.k = k

    def delta(self, epsilon: float) -> float:
        """Bound delta at this epsilon: the expectation of the lemma, summed over the groups.

        With `first` Binomial(sum, 1/2), the gain (scale (first - growth second) - floor)+ rises
        with `first` and is positive from `least` on, so that two tail probabilities of the Binomial
        give its mean: first is sum / 2 times a probability for one answer fewer.
        """
        growth = math.exp(epsilon)
        floor = (growth - 1) * self.gamma
        total = self.tails
        for group in self.groups:
            scale = (1 - self.gamma) * self.k / group.answers
            slope = scale * (1 + growth)
            offset = scale * growth * group.sums + floor
            least = np.maximum(np.ceil(offset / slope), 0.0)
            above = _more_than(least - 1, group.sums, 0.5)
            fewer = np.maximum(group.sums - 1, 0.0)
            mean = group.sums / 2 * _more_than(least - 2, fewer, 0.5)
            gained, lost = slope * mean, offset * above
            rounding = _ROUNDING * (gained + lost)
            gain = float(group.probabilities @ np.maximum(gained - lost + rounding, 0.0))
            total += group.mass * gain
        return total


# The Binomial by its tail function: importing scipy.stats takes longer than all that is computed.


def _more_than(count: ArrayLike, trials: ArrayLike, share: float) -> NDArray[np.float64]:
    """P[X > count] for a Binomial X."""
    at, n = np.broadcast_arrays(np.asarray(count, np.float64), np.asarray(trials, np.float64))
    inside = (at >= 0) & (at < n)
    betainc = checks.core_module("scipy.special").betainc
    tail = betainc(np.where(inside, at + 1, 1.0), np.where(inside, n - at, 1.0), share)
    return np.where(inside, tail, np.where(at < 0, 1.0, 0.0))


def _window(trials: int, share: float, cut: float) -> tuple[int, int]:
    """The least and the largest count outside which a Binomial has at most `cut` on each side."""
    betainc = checks.core_module("scipy.special").betainc
    ends = []
    # The lower end follows from the upper end of the number of failures.
    for chance in (1.0 - share, share):
        low, high = 0, trials
        while low < high:
            middle = (low + high) // 2
            # `_more_than`, without arrays: the middle is at least 0 and below the trials.
            if betainc(middle + 1.0, float(trials - middle), chance) <= cut:
                high = middle
            else:
                low = middle + 1
        ends.append(low)
    return trials - ends[0], ends[1]
