"""One measurement of a release of photos, for every page, command and report.

Three questions, each with what chance gives: how many of the first ten hits fit the query, how
often a stranger names what a photo shows, and how often somebody with a copy of a photo finds its
entry. And for pictures that an attacker rebuilt: which photos are found again with them. Each is
answered by the best of several attackers, so that no page shows less than a simple attack gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindsight.audit.release.album import Kinds
from blindsight.audit.release.attacks import (
    AttributeResult,
    LinkageResult,
    UtilityResult,
    View,
    guess,
    search,
    single_out,
    view_of,
)
from blindsight.core.arrays import Array, Floats, Ints
from blindsight.index.encoder import PhotoEncoder

__all__ = ["Measurement", "found_again", "measure", "measure_view"]

_JUDGED_FROM = 40  # photos below which hits are not told from chance


@dataclass(frozen=True)
class Measurement:
    """What a release of photos is good for, and what strangers learn from it.

    Parameters:
        photos: how many photos were measured on.
        groups: how many groups (cells) an entry can name; 0 for codes of bits.
        groups_used: how many of them hold a photo.
        linked: how often somebody with a copy of a photo finds its entry.
        guessed: how often a stranger names what a photo shows, by the source that gives the larger
            figure; None where nothing says what photos show.
        searched: how many of the first ten hits fit.
        hits_source: what says whether a hit fits.
    """

    photos: int
    groups: int
    groups_used: int
    linked: LinkageResult
    guessed: AttributeResult | None
    searched: UtilityResult
    hits_source: str

    @property
    def at_chance(self) -> bool:
        """Whether search finds hardly more than picking photos at random would."""
        by_luck = self.searched.chance
        return self.photos >= _JUDGED_FROM and self.searched.hits < 1.1 * by_luck + 0.3

    def figures(self) -> dict[str, Any]:
        """Return the figures that pages and reports show, as JSON values.

        `hits` are of ten; `guess`, `plain_guess` and `luck` are of 100; `by_copy` is a share.
        """
        guessed = self.guessed
        return {
            "photos": self.photos,
            "groups": self.groups,
            "groups_used": self.groups_used,
            "hits": round(self.searched.hits, 1),
            "plain_hits": round(self.searched.features, 1),
            "hits_luck": round(self.searched.chance, 1),
            "hits_source": self.hits_source,
            "guess": None if guessed is None else round(100 * guessed.share),
            "plain_guess": None if guessed is None else round(100 * guessed.features),
            "luck": None if guessed is None else round(100 * guessed.luck),
            "kinds": None if guessed is None else guessed.source,
            "by_copy": float(self.linked.top1),
            "at_chance": self.at_chance,
        }


def measure(
    encoder: PhotoEncoder,
    rows: Array,
    kinds: Sequence[Kinds],
    *,
    cells: Ints | None = None,
    rng: np.random.Generator,
) -> Measurement:
    """Measure a release of these photos, or one as it would be drawn.

    Parameters:
        encoder: how photos become entries.
        rows: the photos' features.
        kinds: what the photos show, by each source that says so; the first one says which hits fit.
        cells: the released entries, in the order of `rows`; by default they are drawn anew, as a
            release would draw them.
        rng: for halves, ties and which photos are queries.
    """
    view = view_of(encoder)
    released = view.drawn(rows) if cells is None else cells
    return measure_view(view, rows, released, kinds, rng)


def measure_view(
    view: View, rows: Array, released: Array, kinds: Sequence[Kinds], rng: np.random.Generator
) -> Measurement:
    """Measure released codes of any method; see `measure`."""
    guesses = [guess(view, rows, released, each.shows, each.source, rng) for each in kinds]
    plain = view.plain(rows)
    return Measurement(
        photos=len(rows),
        groups=view.groups,
        groups_used=len(np.unique(plain)) if view.groups else 0,
        linked=single_out(view, rows, released, rng),
        guessed=max(guesses, key=lambda result: result.share, default=None),
        searched=search(view, rows, released, kinds[0].shows if kinds else None, rng),
        hits_source=kinds[0].source if kinds else "what unprotected search shows first",
    )


def found_again(
    rebuilt: Array,
    own: Ints,
    grey: Array,
    *,
    vectors: Array | None = None,
    gallery: Array | None = None,
) -> dict[str, list[bool]]:
    """Return for each matcher which rebuilt pictures find their own photo first among all.

    Parameters:
        rebuilt: pictures that an attacker made (m, height, width), in grey.
        own: for each of them the row of its photo in `grey`.
        grey: all photos as grey squares of the same size (n, height, width).
        vectors: encoder vectors of the rebuilt pictures (m, d).
        gallery: encoder vectors of all photos (n, d).

    Example:
        >>> photos = np.random.default_rng(0).random((5, 8, 8))
        >>> found_again(photos[[3]] * 0.5 + 0.1, np.array([3]), photos)
        {'grey correlation': [True]}
    """
    scores = {"grey correlation": _standardised(rebuilt) @ _standardised(grey).T}
    if vectors is not None and gallery is not None:
        scores["encoder"] = np.asarray(vectors @ gallery.T)
    return {
        name: [bool(row.argmax() == mine) for row, mine in zip(values, own, strict=True)]
        for name, values in scores.items()
    }


def _standardised(pictures: Array) -> Floats:
    """Pictures as rows of mean 0 and norm 1, so that their products are correlations."""
    rows = np.asarray(pictures, np.float64).reshape(len(pictures), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
