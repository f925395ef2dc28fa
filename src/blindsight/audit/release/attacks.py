"""Four attacks on released codes, measured against the photos: linkage, attributes,
reconstruction and search.

Each result is compared with chance, with codes without noise, and with the photos' own features.
The attacker knows the hash function and the mechanism, which are public. To guess attributes and
to reconstruct photos it also knows half of the photos and what they show. This is a strong
attacker: a weaker one succeeds less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import stats

from blindsight.audit.engine.inference import reconstruct
from blindsight.core.arrays import Array, Bools, Bytes, Floats, Ints
from blindsight.core.codes import from_codes, hamming, pack, unpack
from blindsight.index.encoder import PhotoEncoder

__all__ = [
    "AttributeResult",
    "LinkageResult",
    "ReconstructionResult",
    "UtilityResult",
    "View",
    "by_count",
    "guess",
    "half",
    "noise_problem",
    "ranks",
    "rebuild",
    "search",
    "single_out",
    "view_of",
]

_FIRST = 10
_REPEATS = 4  # releases of each known photo that the attacker learns from
_PROBES = 500
_SHOWN = 8
#: The probability that a sound release is reported as unsound.
_ERROR = 1e-6


class View(Protocol):
    """Released codes as an attacker reads them: cells of a codebook, or flipped bits."""

    def released(self, codes: Bytes) -> Array:
        """Return packed codes as cells (n,) or bits (n, b)."""

    def plain(self, rows: Array) -> Array:
        """Return the codes of photos without noise, as cells or bits."""

    def drawn(self, rows: Array, rng: np.random.Generator) -> Array:
        """Simulate a release of these photos, with noise drawn from `rng`."""

    def fits(self, plain: Array, released: Array) -> Array:
        """Return scores (m, n) that grow with the probability that a code is that of a photo."""

    def vectors(self, codes: Array) -> Floats:
        """Return codes as numeric vectors to learn from."""

    def scores(self, rows: Array, released: Array) -> Array:
        """Return the scores (m, n) by which search ranks released codes for queries."""

    def likelihood(self, plain: Array, released: Array) -> Floats:
        """Return the probability of each released code given each photo (m, n), up to a factor."""

    def affinity(self, rows: Array, released: Array) -> Array:
        """Return the similarity of each released code to each photo (m, n)."""

    @property
    def groups(self) -> int:
        """How many groups an entry can name; 0 for bits."""

    def truth_counts(self, plain: Array, released: Array) -> tuple[int, int, float]:
        """Return how many entries are unchanged by noise, of how many, and the stated share."""

    def lies(self, plain: Array, released: Array) -> tuple[Array, int, float]:
        """Return how often each observed change occurs, how many exist, and their probability."""


class _Cells:
    def __init__(self, encoder: PhotoEncoder) -> None:
        book = encoder.codebook
        assert book is not None  # noqa: S101  (see view_of)
        self.encoder, self.book = encoder, book

    def released(self, codes: Bytes) -> Array:
        return from_codes(codes).astype(np.int64)

    def plain(self, rows: Array) -> Array:
        return self.book.assign(rows)

    def drawn(self, rows: Array, rng: np.random.Generator) -> Array:
        return np.asarray(self.book.mechanism.release(self.plain(rows), rng=rng))

    def fits(self, plain: Array, released: Array) -> Array:
        return np.asarray(plain[:, None] == released, np.int8)

    def vectors(self, codes: Array) -> Floats:
        return self.book.cells.middle(codes).astype(np.float64)

    def scores(self, rows: Array, released: Array) -> Array:
        counts = np.bincount(released, minlength=self.book.k)
        by_cell = self.book.reading(counts).scores(self.book.similarity(rows))
        return np.asarray(by_cell)[:, released]

    def likelihood(self, plain: Array, released: Array) -> Floats:
        right = float(self.book.mechanism.truth_probability)
        return np.where(plain[:, None] == released, right, (1 - right) / (self.book.k - 1))

    def affinity(self, rows: Array, released: Array) -> Array:
        return np.asarray(self.book.embedding(rows) @ self.book.cells.middle(released).T)

    @property
    def groups(self) -> int:
        return int(self.book.k)

    def truth_counts(self, plain: Array, released: Array) -> tuple[int, int, float]:
        return (
            int((plain == released).sum()),
            len(plain),
            float(self.book.mechanism.truth_probability),
        )

    def lies(self, plain: Array, released: Array) -> tuple[Array, int, float]:
        k = self.book.k
        shift, counts = np.unique((released - plain) % k, return_counts=True)
        return (
            counts[shift > 0],
            k - 1,
            (1 - float(self.book.mechanism.truth_probability)) / (k - 1),
        )


class _Bits:
    def __init__(self, encoder: PhotoEncoder) -> None:
        self.encoder, self.hasher = encoder, encoder.hasher

    def released(self, codes: Bytes) -> Array:
        return unpack(codes, self.encoder.n_bits)

    def plain(self, rows: Array) -> Array:
        return self.released(self.hasher.query(_centred(rows)))

    def drawn(self, rows: Array, rng: np.random.Generator) -> Array:
        return np.asarray(self.hasher.mechanism_.release(self.plain(rows), rng=rng))

    def fits(self, plain: Array, released: Array) -> Array:
        far: Array = hamming(pack(plain), pack(released)).astype(np.int32)
        return far if self.hasher.mechanism_.beta > 0.5 else -far

    def vectors(self, codes: Array) -> Floats:
        return 2.0 * codes - 1.0

    def scores(self, rows: Array, released: Array) -> Array:
        values: Array = self.hasher.decision_function(_centred(rows)) @ self.vectors(released).T
        return -values if self.hasher.mechanism_.beta > 0.5 else values

    def likelihood(self, plain: Array, released: Array) -> Floats:
        beta = float(np.clip(self.hasher.mechanism_.beta, 1e-9, 1 - 1e-9))
        far = hamming(pack(plain), pack(released)).astype(np.float64)
        return np.asarray(np.exp((far - far.min(axis=0)) * np.log(beta / (1 - beta))))

    def affinity(self, rows: Array, released: Array) -> Array:
        return self.scores(rows, released)

    @property
    def groups(self) -> int:
        return 0

    def truth_counts(self, plain: Array, released: Array) -> tuple[int, int, float]:
        return int((plain == released).sum()), plain.size, 1 - float(self.hasher.mechanism_.beta)

    def lies(self, plain: Array, released: Array) -> tuple[Array, int, float]:
        return (plain != released).sum(axis=0), plain.shape[1], float(self.hasher.mechanism_.beta)


def view_of(encoder: PhotoEncoder) -> View:
    """Return the attacker's view of this encoder's codes."""
    return _Bits(encoder) if encoder.codebook is None else _Cells(encoder)


def noise_problem(view: View, rows: Array, released: Array) -> str | None:
    """Return a message if the noise is not as stated, otherwise None.

    It is not if too many codes are unchanged, or if too many are changed in the same way.
    """
    plain = view.plain(rows)
    true, n, stated = view.truth_counts(plain, released)
    if stats.binom.sf(true - 1, n, stated) < _ERROR / 2:
        return (
            f"the true code was released in {true:,} of {n:,} cases, where the promise says "
            f"{stated:.1%}"
        )
    counts, ways, chance = view.lies(plain, released)
    odd = np.minimum(
        stats.binom.cdf(counts, len(plain), chance), stats.binom.sf(counts - 1, len(plain), chance)
    )
    if float(odd.min(initial=1.0)) * 2 * ways < _ERROR / 2:
        count = int(counts[int(odd.argmin())])
        return (
            f"{count:,} of {len(plain):,} codes were changed in the same way, where the promise "
            f"says {chance:.1%}: photos share their noise, which reveals their differences"
        )
    return None


@dataclass(frozen=True)
class LinkageResult:
    """Linkage: an attacker with a copy of a photo looks for its entry.

    It holds the entry's mean rank, and how often the entry comes first.
    """

    rank: float
    top1: float
    plain_rank: float
    plain_top1: float
    n: int

    @property
    def chance(self) -> float:
        return 1 / self.n


def single_out(view: View, rows: Array, released: Array, rng: np.random.Generator) -> LinkageResult:
    """Rank all entries by their likelihood given the photo; ties count by their expected rank."""
    plain = view.plain(rows)
    probes = rng.permutation(len(rows))[:_PROBES]
    rank, top = ranks(view.fits(plain[probes], released), probes)
    plain_rank, plain_top = ranks(view.fits(plain[probes], plain), probes)
    return LinkageResult(
        float(rank.mean()),
        float(top.mean()),
        float(plain_rank.mean()),
        float(plain_top.mean()),
        len(rows),
    )


def ranks(fits: Array, own: Array) -> tuple[Floats, Floats]:
    """Return the expected rank of each row's own entry, and the probability that it comes first.

    Tied entries are in random order.
    """
    own_fit = fits[np.arange(len(own)), own][:, None]
    above, tied = (fits > own_fit).sum(axis=1), (fits == own_fit).sum(axis=1)
    return above + (tied + 1) / 2, np.where(above == 0, 1 / tied, 0.0)


@dataclass(frozen=True)
class AttributeResult:
    """How often the attacker guesses what a photo shows.

    The shares are for the release, for codes without noise, for features, and by chance (`luck`).
    """

    share: float
    plain: float
    features: float
    luck: float
    kinds: int
    source: str


def guess(
    view: View, rows: Array, released: Array, shows: Array, source: str, rng: np.random.Generator
) -> AttributeResult:
    """Guess what photos show, by the best of four attackers.

    Two attackers know half of the photos: one counts the kinds of photos with each code, the other
    learns by ridge regression. Two know all other photos: one weights each photo by the probability
    of the released code, the other takes the photo that is most similar to the code.
    """
    known = half(len(rows), rng)
    plain = view.plain(rows)
    learn = np.flatnonzero(known)
    fresh = np.concatenate([view.drawn(rows[learn], rng) for _ in range(_REPEATS)])
    again = np.tile(shows[learn], _REPEATS)
    answers = shows[~known]
    right = {
        "share": max(
            _best(view, fresh, again, released[~known], answers),
            *_knowing_all_others(view, rows, plain, released, shows),
        ),
        "plain": _best(view, plain[learn], shows[learn], plain[~known], answers),
        "features": max(
            _by_ridge(_centred(rows[learn]), shows[learn], _centred(rows[~known]), answers),
            _nearest_kind(_centred(rows) @ _centred(rows).T, shows),
        ),
    }
    # An attacker with more information succeeds at least as often as one with less.
    right["plain"] = max(right["plain"], right["share"])
    right["features"] = max(right["features"], right["plain"])
    luck = float(np.bincount(shows).max() / len(shows))
    return AttributeResult(
        **{name: max(luck, value) for name, value in right.items()},
        luck=luck,
        kinds=int(shows.max()) + 1,
        source=source,
    )


def _knowing_all_others(
    view: View, rows: Array, plain: Array, released: Array, shows: Array
) -> tuple[float, float]:
    """Return how often two attackers who know every other photo name what one shows."""
    likely = view.likelihood(plain, released)
    np.fill_diagonal(likely, 0.0)  # the attackers do not know the photo itself
    by_kind = likely.T @ np.eye(int(shows.max()) + 1)[shows]
    weighed = float((by_kind.argmax(axis=1) == shows).mean())
    return weighed, _nearest_kind(np.asarray(view.affinity(rows, released), np.float64), shows)


def _nearest_kind(alike: Array, shows: Array) -> float:
    """Return how often the nearest other photo (rows) to an entry (columns) is of its kind."""
    alike = alike.copy()
    np.fill_diagonal(alike, -np.inf)
    return float((shows[alike.argmax(axis=0)] == shows).mean())


def _best(view: View, codes: Array, shows: Array, probes: Array, truth: Array) -> float:
    return max(
        by_count(codes, shows, probes, truth),
        _by_ridge(view.vectors(codes), shows, view.vectors(probes), truth),
    )


def half(n: int, rng: np.random.Generator) -> Bools:
    """Return a random mask of the half of n photos that the attacker knows."""
    known = np.zeros(n, bool)
    known[rng.permutation(n)[: n // 2]] = True
    return known


def by_count(codes: Array, shows: Array, probes: Array, truth: Array) -> float:
    """Return the accuracy of the most common kind among known releases with the same code.

    A code without a known release is given the most common kind of all.
    """
    texts, index = np.unique(np.concatenate([codes, probes]), axis=0, return_inverse=True)
    index = index.ravel()
    table = np.zeros((len(texts), int(shows.max()) + 1))
    np.add.at(table, (index[: len(codes)], shows), 1.0)
    table += 1e-3 * np.bincount(shows, minlength=table.shape[1]) / len(shows)
    return float((table.argmax(axis=1)[index[len(codes) :]] == truth).mean())


def _by_ridge(x: Floats, shows: Array, z: Floats, truth: Array) -> float:
    """Return the accuracy of ridge regression on one column per kind."""
    kinds, index = np.unique(shows, return_inverse=True)
    centre = x.mean(axis=0)
    centred, wanted = x - centre, np.eye(len(kinds))[index]
    answers = wanted - wanted.mean(axis=0)
    # Of the two equations for the same weights, the one with fewer unknowns.
    wide = x.shape[1] > len(x)
    gram = centred @ centred.T if wide else centred.T @ centred
    gram[np.diag_indices_from(gram)] += 1e-2 * max(np.trace(gram) / x.shape[1], 1e-12) + 1e-9
    if wide:
        weights = centred.T @ np.linalg.solve(gram, answers)
    else:
        weights = np.linalg.solve(gram, centred.T @ answers)
    return float(
        (kinds[((z - centre) @ weights + wanted.mean(axis=0)).argmax(axis=1)] == truth).mean()
    )


@dataclass(frozen=True, eq=False)
class ReconstructionResult:
    """Photos reconstructed from codes.

    PSNR and SSIM are given for the release, codes without noise, features and the mean image.
    """

    psnr: float
    ssim: float
    plain: float
    features: float
    mean: float
    decoder: str
    pictures: dict[str, Bytes]


def rebuild(
    view: View,
    rows: Array,
    released: Array,
    thumbnails: Bytes,
    rng: np.random.Generator,
) -> ReconstructionResult:
    """Learn to reconstruct photos from half of them, by ridge regression and by a small network.

    The better result is returned.
    """
    known = half(len(rows), rng)
    plain = view.plain(rows)
    seed = int(rng.integers(2**31))

    def from_(x: Floats, images: Array, z: Floats) -> Any:
        tries = [
            reconstruct(x, images, z, thumbnails[~known], decoder=decoder, seed=seed)
            for decoder in ("ridge", "network")
        ]
        return max(tries, key=lambda result: result.psnr)

    fresh = np.concatenate([view.drawn(rows[known], rng) for _ in range(_REPEATS)])
    images = np.tile(thumbnails[known], (_REPEATS, 1, 1, 1))
    released_back = from_(view.vectors(fresh), images, view.vectors(released[~known]))
    plain_back = from_(view.vectors(plain[known]), thumbnails[known], view.vectors(plain[~known]))
    feature_back = from_(_centred(rows[known]), thumbnails[known], _centred(rows[~known]))
    mean = np.broadcast_to(
        thumbnails[known].mean(axis=0).astype(np.uint8), thumbnails[:_SHOWN].shape
    )
    pictures = {
        "your photos": thumbnails[~known][:_SHOWN],
        f"from the features: {feature_back.psnr:.1f} dB": feature_back.images[:_SHOWN],
        f"from codes without noise: {plain_back.psnr:.1f} dB": plain_back.images[:_SHOWN],
        f"from what you shared: {released_back.psnr:.1f} dB": released_back.images[:_SHOWN],
        f"from nothing, the mean photo: {released_back.psnr_of_mean:.1f} dB": mean[
            : len(thumbnails[~known])
        ],
    }
    return ReconstructionResult(
        psnr=released_back.psnr,
        ssim=released_back.ssim,
        plain=plain_back.psnr,
        features=feature_back.psnr,
        mean=released_back.psnr_of_mean,
        decoder=released_back.decoder,
        pictures=pictures,
    )


@dataclass(frozen=True)
class UtilityResult:
    """How many of the first ten hits are of the query's kind, compared with unprotected search."""

    hits: float
    features: float
    chance: float
    same: float


def search(
    view: View, rows: Array, released: Array, shows: Array | None, rng: np.random.Generator
) -> UtilityResult:
    """Search with photos as queries for each other.

    Without kinds, the first results of unprotected search count as correct.
    """
    probes = rng.permutation(len(rows))[:_PROBES]
    points = _centred(rows)
    alike = points[probes] @ points.T
    scores = np.asarray(view.scores(rows[probes], released), np.float64)
    first = {
        name: _first(value, probes, rng) for name, value in (("features", alike), ("hits", scores))
    }
    near = int(np.clip(len(rows) // 20, _FIRST, 100))
    best = _first(alike, probes, rng, near)
    same = float(
        np.mean(
            [
                len(set(hits) & set(nearest))
                for hits, nearest in zip(first["hits"], best, strict=True)
            ]
        )
    )
    if shows is None:
        others = len(rows) - 1  # a single photo finds nothing, and nothing by chance either
        luck = _FIRST * near / others if others else 0.0
        return UtilityResult(same, float(_FIRST), luck, same)
    counts = {
        name: float((shows[hits] == shows[probes][:, None]).sum(axis=1).mean())
        for name, hits in first.items()
    }
    chance = _FIRST * float(
        np.mean((np.bincount(shows)[shows[probes]] - 1) / max(len(rows) - 1, 1))
    )
    return UtilityResult(counts["hits"], counts["features"], chance, same)


def _first(values: Array, own: Array, rng: np.random.Generator, count: int = _FIRST) -> Ints:
    """Return positions of the largest values without the query itself; ties in random order."""
    scores = values.astype(np.float64).copy()
    scores[np.arange(len(own)), own] = -np.inf
    lot = rng.random(scores.shape[1])
    return np.stack([np.lexsort((lot, -row))[:count] for row in scores])


def _centred(rows: Array) -> Floats:
    """Return features centred on their own mean, as unit vectors."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(
        centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12), np.float64
    )
