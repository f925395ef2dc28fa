"""Decoding of released codes: debiased distances, and the probability that a hit is a match.

A stored bit was flipped with probability beta before it was released. If beta is the same for all
bits, the debiased Hamming distance is an affine function of the plain one and gives the same
ranking. Knowing beta helps where the query keeps its real values (`asymmetric_scores`), where bits
have different beta, and for the probability of a match (`MatchModel`). Released cells (k-ary
response, subset selection) are decoded by `cell_posterior`. All of this is post-processing and
costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, codes
from blindsight.core.checks import core_module
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = [
    "MatchModel",
    "asymmetric_scores",
    "binomial_distances",
    "cell_posterior",
    "debias",
    "flip_kernel",
    "log_odds",
]

Floats = NDArray[np.float64]


def _betas(beta: ArrayLike, n_bits: int) -> Floats:
    """Flip probabilities, one per bit, each in [0, 1/2]."""
    array = np.asarray(beta, dtype=np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (n_bits,)):
        raise InvalidData(
            f"beta must be one number or one per bit ({n_bits}), got shape {array.shape}."
        )
    if not ((array >= 0) & (array <= 0.5)).all():
        raise InvalidParameter(
            "beta must lie in [0, 0.5]: a bit flipped more often says the opposite."
        )
    return np.broadcast_to(array, (n_bits,))


def debias(distances: ArrayLike, n_bits: int, beta: ArrayLike) -> Floats:
    """Unbiased estimates of the true Hamming distances from those to flipped codes.

    E[d'] = c beta + (1 - 2 beta) d, hence d = (d' - c beta) / (1 - 2 beta). They may lie outside
    [0, c]: that is what unbiased means.

    Examples:
        >>> float(debias(5, 10, 0.25))
        5.0
    """
    flips = _betas(beta, checks.whole("n_bits", n_bits))
    if not np.all(flips == flips[0]):
        raise InvalidParameter(
            "debias needs one beta for all bits; use asymmetric_scores for unequal bits."
        )
    if flips[0] == 0.5:
        raise InvalidParameter(
            "beta is 1/2: the codes say nothing and no distance can be recovered."
        )
    debiased: Floats = (np.asarray(distances, dtype=np.float64) - n_bits * flips[0]) / (
        1 - 2 * flips[0]
    )
    return debiased


def log_odds(beta: ArrayLike, n_bits: int) -> Floats:
    """The log-odds ln((1 - beta) / beta) of each released bit, finite even at beta = 0."""
    flips = np.clip(_betas(beta, n_bits), 1e-12, 0.5)
    return np.log1p(-flips) - np.log(flips)


def asymmetric_scores(
    projections: ArrayLike,
    stored: ArrayLike,
    beta: ArrayLike = 0.0,
    *,
    sharpness: float | None = None,
) -> NDArray[np.float32]:
    """Scores (m, n), higher is nearer, of real-valued queries (m, c) against flipped packed codes
    (n, bytes).

    Without `sharpness`: the debiased inner product, sum over bits of z_j (1 - 2 beta_j) s_j: the
    expected inner product with the true code. With it: the log-likelihood that the stored item's
    true bits were drawn with P(bit j = 1) = sigmoid(sharpness z_j), read through the flips.
    """
    z = np.atleast_2d(np.asarray(projections, dtype=np.float64))
    n_bits = z.shape[1]
    flips = _betas(beta, n_bits)
    signs = codes.to_signs(stored, n_bits).astype(np.float32)
    if sharpness is None:
        return (z * (1 - 2 * flips)).astype(np.float32) @ signs.T
    ones = 1 / (1 + np.exp(-np.clip(checks.positive("sharpness", sharpness) * z, -30, 30)))
    seen = ones * (1 - flips) + (1 - ones) * flips  # P(released bit j = 1)
    seen = np.clip(seen, 1e-12, 1 - 1e-12)
    weight, constant = (
        np.log(seen / (1 - seen)) / 2,
        np.log(seen * (1 - seen)).sum(axis=1, keepdims=True) / 2,
    )
    scores: NDArray[np.float32] = weight.astype(np.float32) @ signs.T + constant.astype(np.float32)
    return scores


def binomial_distances(n_bits: int, p: float) -> Floats:
    """The distance distribution (c + 1,) of two codes whose bits differ independently with
    probability p.
    """
    return _binomial(n_bits, checks.probability("p", p))


def flip_kernel(n_bits: int, beta: float) -> Floats:
    """T[d, d'] = P(distance d' after flipping one of the codes | true distance d), shape (c + 1, c
    + 1).

    Of the d differing bits Bin(d, beta) come to agree, of the c - d agreeing ones Bin(c - d, beta)
    to differ.
    """
    n_bits = checks.whole("n_bits", n_bits)
    flip = float(_betas(beta, n_bits)[0])
    kernel = np.empty((n_bits + 1, n_bits + 1))
    for d in range(n_bits + 1):
        still, fresh = _binomial(d, 1 - flip), _binomial(n_bits - d, flip)
        kernel[d] = np.convolve(still, fresh)
    return kernel


def _binomial(n: int, p: float) -> Floats:
    """The binomial distribution over 0..n."""
    # Imported here: it takes most of a second, and only flipped bits need it.
    binom = core_module("scipy.stats").binom

    result: Floats = binom.pmf(np.arange(n + 1), n, p)
    return result


@dataclass(frozen=True, kw_only=True)
class MatchModel:
    """The probability that a hit is a match, from its observed distance.

    Parameters:
        n_bits: the length c of the stored codes.
        beta: the probability with which each stored bit was flipped, in [0, 0.5].
        match: the distribution (c + 1,) of the distance before flipping, for items that match.
        other: the same distribution for items that do not match.
        prior: the prior probability that a stored item matches a query.

    Examples:
        >>> model = MatchModel.independent_bits(16, 0.1, prior=0.01)
        >>> bool(model.posterior(2) > model.posterior(8))
        True
    """

    n_bits: int
    beta: float
    match: Floats
    other: Floats
    prior: float

    def __post_init__(self) -> None:
        checks.whole("n_bits", self.n_bits)
        _betas(self.beta, self.n_bits)
        checks.probability("prior", self.prior)
        for name in ("match", "other"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape != (self.n_bits + 1,) or (values < 0).any() or not values.sum() > 0:
                raise InvalidData(f"{name} must be a distribution over distances 0..{self.n_bits}.")
            object.__setattr__(self, name, values / values.sum())

    @classmethod
    def independent_bits(
        cls, n_bits: int, beta: float, *, prior: float, differ: float = 0.1
    ) -> MatchModel:
        """Without training pairs: a match differs from the query in a share `differ` of bits,
        others in 1/2.
        """
        match, other = binomial_distances(n_bits, differ), binomial_distances(n_bits, 0.5)
        return cls(n_bits=n_bits, beta=beta, match=match, other=other, prior=prior)

    @classmethod
    def from_pairs(
        cls, distances: ArrayLike, similar: ArrayLike, *, n_bits: int, beta: float
    ) -> MatchModel:
        """From true distances of (public) pairs and whether each is similar, smoothed by half a
        count a bin.
        """
        d, s = np.asarray(distances).ravel(), np.asarray(similar).ravel().astype(bool)
        if d.shape != s.shape or not len(d) or d.min() < 0 or d.max() > n_bits:
            raise InvalidData(f"need as many distances in 0..{n_bits} as marks of similarity.")
        counts = [np.bincount(d[mask], minlength=n_bits + 1) for mask in (s, ~s)]
        match, other = (np.asarray(count + 0.5, dtype=np.float64) for count in counts)
        return cls(n_bits=n_bits, beta=beta, match=match, other=other, prior=float(s.mean()))

    def curve(self) -> Floats:
        """Posterior probability of a match at each observed distance 0..c; it never rises with the
        distance.

        Far out neither kind of pair was seen, and the half count that stands for none weighs more
        among few matches than among many others: by itself it would make the furthest codes look
        like matches.
        """
        kernel = flip_kernel(self.n_bits, self.beta)
        match, other = self.prior * (self.match @ kernel), (1 - self.prior) * (self.other @ kernel)
        total = match + other
        chances: Floats = np.divide(match, total, out=np.zeros_like(total), where=total > 0)
        return np.minimum.accumulate(chances)

    def posterior(self, distances: ArrayLike) -> Floats:
        """P(match | observed distance), elementwise; distances are whole numbers in 0..c."""
        observed = np.asarray(distances)
        if observed.dtype.kind not in "iu" or ((observed < 0) | (observed > self.n_bits)).any():
            raise InvalidData(f"distances must be whole numbers in 0..{self.n_bits}.")
        chances: Floats = self.curve()[observed]
        return chances

    def threshold(self, probability: float) -> int:
        """The largest r such that every hit within r is a match with at least `probability`; -1 if
        none.
        """
        below = np.flatnonzero(self.curve() < checks.probability("probability", probability))
        return int(below[0]) - 1 if len(below) else self.n_bits


def cell_posterior(
    members: ArrayLike, epsilon: float, prior: ArrayLike | None = None
) -> NDArray[np.float32]:
    """P(true cell | released set) (n, k), from a released one-hot or subset (n, k) bool.

    Both k-ary response and subset selection make every set that holds the true cell e^epsilon times
    as likely as one that doesn't, so the posterior is the prior, times e^epsilon inside the set.
    """
    inside = np.asarray(members)
    if inside.ndim != 2 or inside.dtype != np.bool_:
        raise InvalidData(
            f"members must be bool of shape (n, k), got {inside.dtype} of shape {inside.shape}."
        )
    weight = np.ones(inside.shape[1]) if prior is None else np.asarray(prior, dtype=np.float64)
    if weight.shape != (inside.shape[1],) or (weight < 0).any() or not weight.sum() > 0:
        raise InvalidData(f"prior must be {inside.shape[1]} weights of at least 0, not all 0.")
    outside = np.exp(-checks.non_negative("epsilon", epsilon, infinite=True))
    posterior = np.where(inside, 1.0, outside).astype(np.float32) * weight.astype(np.float32)
    total = posterior.sum(axis=1, keepdims=True)
    fallback = np.broadcast_to((weight / weight.sum()).astype(np.float32), posterior.shape)
    return np.where(total > 0, posterior / np.where(total > 0, total, 1), fallback)
