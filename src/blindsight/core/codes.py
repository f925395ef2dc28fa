"""Binary codes as packed bytes, distances between them, and how flipped codes are read.

A code of c bits is stored in ceil(c/8) bytes in little-endian bit order: bit j of a code is bit
j % 8 of byte j // 8, and the unused bits of the last byte are 0, so that a distance is the popcount
of an exclusive or. Bits are 0 and 1; `to_signs` and `from_signs` convert from and to +1 and -1. The
code of a cell is its number (`to_codes`, `from_codes`).

Decoding of released codes: debiased distances, and the probability that a hit is a match.

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

from blindsight.core import checks
from blindsight.core.checks import core_module
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = [
    "MatchModel",
    "asymmetric_scores",
    "binomial_distances",
    "cell_bits",
    "cell_posterior",
    "check_codes",
    "debias",
    "flip_kernel",
    "from_codes",
    "from_signs",
    "hamming",
    "log_odds",
    "n_bytes",
    "pack",
    "scrambled",
    "tie_order",
    "to_codes",
    "to_signs",
    "to_words",
    "unpack",
]

# Rows of `a` handled at once in `hamming`: keeps the exclusive-or buffer near 32 MB.
_BUFFER_BYTES = 1 << 25


def n_bytes(n_bits: int) -> int:
    """The bytes that hold `n_bits` bits.

    Examples:
        >>> n_bytes(12)
        2
    """
    return (checks.whole("n_bits", n_bits) + 7) // 8


def cell_bits(k: int) -> int:
    """Bits that hold one of k cells."""
    return max(1, (k - 1).bit_length())


def to_codes(cells: NDArray[np.integer], k: int) -> NDArray[np.uint8]:
    """Cell numbers (n,) as packed codes of `cell_bits(k)` bits."""
    width = n_bytes(cell_bits(k))
    return np.ascontiguousarray(
        np.asarray(cells).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]
    )


def from_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Packed codes back to cell numbers."""
    padded = np.zeros((len(codes), 4), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view("<u4").ravel().astype(np.uint32)


def tie_order(cells: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Rows by cell, the largest number first; rows of one cell in the order in which an index that
    was read from a file lists them.

    Examples:
        >>> tie_order(np.array([0, 2, 1], np.uint32)).tolist()
        [1, 2, 0]
    """
    rows = np.arange(len(cells), dtype=np.uint64)
    return np.lexsort((scrambled(rows), -cells.astype(np.int64)))


def scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """32 well-mixed bits of each number (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = numbers + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(32)


def pack(bits: ArrayLike) -> NDArray[np.uint8]:
    """Bits (n, c) of 0 and 1 (or bool) to packed codes (n, ceil(c/8)).

    Examples:
        >>> pack([[1, 0, 0, 0, 0, 0, 0, 0, 1]])
        array([[1, 1]], dtype=uint8)
    """
    array = np.asarray(bits)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidData(f"bits must have shape (n, c) with c of at least 1, got {array.shape}.")
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
            raise InvalidData("bits must be 0 or 1. Use from_signs for codes of +1 and -1.")
        array = array.astype(np.bool_)
    return np.packbits(array, axis=1, bitorder="little")


def unpack(codes: ArrayLike, n_bits: int) -> NDArray[np.uint8]:
    """Packed codes (n, ceil(c/8)) back to bits (n, c) of 0 and 1.

    Examples:
        >>> unpack(pack([[1, 0, 1]]), 3)
        array([[1, 0, 1]], dtype=uint8)
    """
    return np.unpackbits(check_codes(codes, n_bits), axis=1, count=n_bits, bitorder="little")


def check_codes(
    codes: ArrayLike, n_bits: int | None = None, *, name: str = "codes"
) -> NDArray[np.uint8]:
    """The same codes as a contiguous uint8 (n, bytes) array, or `InvalidData` saying what is wrong.

    With `n_bits` the width must fit and the padding bits must be 0.
    """
    array = np.asarray(codes)
    if array.dtype != np.uint8 or array.ndim != 2:
        raise InvalidData(
            f"{name} must be packed uint8 of shape (n, bytes), got {array.dtype} of shape "
            f"{array.shape}."
        )
    if n_bits is not None:
        width = n_bytes(n_bits)
        if array.shape[1] != width:
            raise InvalidData(
                f"{name} of {n_bits} bits must be {width} bytes wide, got {array.shape[1]}."
            )
        spare = 8 * width - n_bits
        if spare and (array[:, -1] >> (8 - spare)).any():
            raise InvalidData(f"{name} have bits set past bit {n_bits}: the padding must be 0.")
    return np.ascontiguousarray(array)


def to_signs(codes: ArrayLike, n_bits: int) -> NDArray[np.int8]:
    """Packed codes to +1 (bit 1) and -1 (bit 0), as int8 (n, c)."""
    return 2 * unpack(codes, n_bits).astype(np.int8) - 1


def from_signs(signs: ArrayLike) -> NDArray[np.uint8]:
    """+1 and -1 (n, c) to packed codes; anything else is refused (0 has no sign)."""
    array = np.asarray(signs)
    if array.dtype.kind not in "if" or not ((array == 1) | (array == -1)).all():
        raise InvalidData("signs must be +1 or -1. Use pack for bits of 0 and 1.")
    return pack(array > 0)


def to_words(codes: ArrayLike) -> NDArray[np.uint64]:
    """The same codes as 64-bit words (n, ceil(bytes/8)), zero-padded: popcounts run eight times as
    wide.
    """
    array = check_codes(codes)
    rows, width = array.shape
    words = max(1, (width + 7) // 8)
    if width == 8 * words:
        return array.view(np.uint64)
    padded = np.zeros((rows, 8 * words), dtype=np.uint8)
    padded[:, :width] = array
    return padded.view(np.uint64)


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """Hamming distances (n, m) between packed codes a (n, bytes) and b (m, bytes).

    Examples:
        >>> hamming(pack([[1, 1, 0]]), pack([[1, 1, 0], [0, 0, 1]]))
        array([[0, 3]], dtype=int32)
    """
    left, right = check_codes(a, name="a"), check_codes(b, name="b")
    if left.shape[1] != right.shape[1]:
        raise InvalidData(
            f"a and b must be equally wide, got {left.shape[1]} and {right.shape[1]} bytes."
        )
    left_words, right_words = to_words(left), to_words(right)
    distances = np.zeros((len(left), len(right)), dtype=np.int32)
    step = max(1, _BUFFER_BYTES // max(1, 8 * len(right)))
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        for word in range(left_words.shape[1]):
            distances[rows] += np.bitwise_count(
                left_words[rows, word, None] ^ right_words[None, :, word]
            )
    return distances


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
            "beta must lie in [0, 0.5]: a bit flipped more often carries the opposite value."
        )
    return np.broadcast_to(array, (n_bits,))


def debias(distances: ArrayLike, n_bits: int, beta: ArrayLike) -> Floats:
    """Unbiased estimates of the true Hamming distances from those to flipped codes.

    E[d'] = c beta + (1 - 2 beta) d, hence d = (d' - c beta) / (1 - 2 beta). An estimate may lie
    outside [0, c].

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
            "beta is 1/2: the codes carry no information, so no distance can be recovered."
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
    signs = to_signs(stored, n_bits).astype(np.float32)
    if sharpness is None:
        return (z * (1 - 2 * flips)).astype(np.float32) @ signs.T
    ones = 1 / (1 + np.exp(-np.clip(checks.positive("sharpness", sharpness) * z, -30, 30)))
    released = ones * (1 - flips) + (1 - ones) * flips  # P(released bit j = 1)
    released = np.clip(released, 1e-12, 1 - 1e-12)
    weight, constant = (
        np.log(released / (1 - released)) / 2,
        np.log(released * (1 - released)).sum(axis=1, keepdims=True) / 2,
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
        """Make a model without training pairs: a match differs from the query in a share `differ`
        of the bits, other items in half of them.
        """
        match, other = binomial_distances(n_bits, differ), binomial_distances(n_bits, 0.5)
        return cls(n_bits=n_bits, beta=beta, match=match, other=other, prior=prior)

    @classmethod
    def from_pairs(
        cls, distances: ArrayLike, similar: ArrayLike, *, n_bits: int, beta: float
    ) -> MatchModel:
        """Estimate a model from the true distances of public pairs and whether each is similar;
        half a count is added to each bin.
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

        At large distances no pair of either kind was counted. The half count added to each bin
        then weighs more among the few matches than among the many others, so without this the
        furthest codes would look like matches.
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
