"""The measurement of a release of photos, the same for every page, command and report.

It answers three questions, each compared with chance: how many of the first ten hits fit the query,
how often an attacker names what a photo shows, and how often an attacker with a copy of a photo
finds its entry. For reconstructed pictures it measures which photos they identify. Each answer is
that of the best of several attackers, so that no page shows less than a simple attack achieves.

`ReleaseAudit` is the result of attacking a release: the numbers, the answer in two sentences, the
advice and the report.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.audit.release.album import Kinds
from blindsight.audit.release.attacks import (
    AttributeResult,
    LinkageResult,
    ReconstructionResult,
    UtilityResult,
    View,
    guess,
    search,
    single_out,
    view_of,
)
from blindsight.audit.report.page import Figure, Report, curves, gallery
from blindsight.audit.report.verdict import Verdict
from blindsight.core.arrays import Array, Floats, Ints
from blindsight.index.encoder import PhotoEncoder
from blindsight.privacy import Guarantee

__all__ = [
    "BudgetResult",
    "Measurement",
    "ReleaseAudit",
    "found_again",
    "measure",
    "measure_view",
    "release_draws",
]

_JUDGED_FROM = 40  # with fewer photos, hits are not compared with chance


def release_draws(release: str, seed: int = 0) -> np.random.Generator:
    """Return the generator of all measurements of one release, so that all pages agree.

    Parameters:
        release: the identifier of the release, as its folder states it.
        seed: another seed gives other draws.

    Examples:
        >>> bool(release_draws("5f").random() == release_draws("5f").random())
        True
    """
    number = int.from_bytes(hashlib.sha256(release.encode()).digest()[:16], "big")
    return np.random.default_rng([seed, number])


@dataclass(frozen=True)
class Measurement:
    """The utility of a release of photos, and what an attacker learns from it.

    Parameters:
        photos: the number of photos in the measurement.
        groups: how many groups (cells) an entry can name; 0 for codes of bits.
        groups_used: how many of them hold a photo.
        linked: how often an attacker with a copy of a photo finds its entry.
        guessed: how often an attacker names what a photo shows, by the source that gives the larger
            figure; None if no source says what photos show.
        searched: how many of the first ten hits fit.
        hits_source: the source that says whether a hit fits.
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
        """Whether search finds hardly more than a random choice of photos."""
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
    """Measure a release of these photos, or a simulated one.

    Parameters:
        encoder: how photos become entries.
        rows: the photos' features.
        kinds: what the photos show, one value per source; the first source says which hits fit.
        cells: the released entries, in the order of `rows`; by default a release is simulated.
        rng: chooses halves, queries and the order of ties, and draws simulated releases.
    """
    view = view_of(encoder)
    released = view.drawn(rows, rng) if cells is None else cells
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
    """Return for each matcher which reconstructed pictures rank their own photo first.

    Parameters:
        rebuilt: pictures that an attacker reconstructed (m, height, width), in grey.
        own: for each of them the row of its photo in `grey`.
        grey: all photos as grey squares of the same size (n, height, width).
        vectors: encoder vectors of the reconstructed pictures (m, d).
        gallery: encoder vectors of all photos (n, d).

    Examples:
        >>> photos = np.random.default_rng(0).random((5, 8, 8))
        >>> found_again(photos[[3]] * 0.5 + 0.1, np.array([3]), photos)
        {'grey correlation': [True]}
    """
    scores = {"grey correlation": _standardised(rebuilt) @ _standardised(grey).T}
    if vectors is not None and gallery is not None:
        scores["encoder"] = np.asarray(vectors @ gallery.T)
    return {
        name: [bool(row.argmax() == target) for row, target in zip(values, own, strict=True)]
        for name, values in scores.items()
    }


def _standardised(pictures: Array) -> Floats:
    """Return pictures as rows of mean 0 and norm 1, whose inner products are correlations."""
    rows = np.asarray(pictures, np.float64).reshape(len(pictures), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


#: From this share of the result for codes without noise, the report says that noise hides nothing.
_AS_GOOD = 0.8
_OFTEN = 0.1


@dataclass(frozen=True)
class BudgetResult:
    """The results for another epsilon on these photos: search, linkage and attributes."""

    epsilon: float
    hits: float
    top1: float
    guess: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseAudit:
    """The measured answers for one release; shares are between 0 and 1, and hits are of ten."""

    name: str
    epsilon: float
    unit: str
    stored: int
    looked_at: int
    lost: int
    verdict: Verdict
    card: Guarantee
    problems: tuple[str, ...]
    measured: Measurement
    rebuilt: ReconstructionResult
    budgets: tuple[BudgetResult, ...]

    @property
    def singled(self) -> LinkageResult:
        """How often an attacker with a copy of a photo finds its entry."""
        return self.measured.linked

    @property
    def guessed(self) -> AttributeResult | None:
        """How often an attacker names what a photo shows."""
        return self.measured.guessed

    @property
    def searched(self) -> UtilityResult:
        """How many of the first ten hits fit."""
        return self.measured.searched

    @property
    def refuted(self) -> bool:
        """Whether the files or the attack contradict the stated guarantee."""
        return bool(self.problems) or self.verdict.refuted

    @property
    def answer(self) -> str:
        """Return two sentences: what an attacker finds out, and what search finds."""
        s, g, search_result = self.singled, self.guessed, self.searched
        guessing = (
            ""
            if g is None
            else f", and guesses what a photo shows {_often(g.share)} ({_of_100(g.luck)} by chance)"
        )
        first = (
            f"Somebody who has a copy of a photo finds its entry {_often(s.top1)} "
            f"({_of_100(s.chance)} by chance){guessing}."
        )
        if self.problems:
            first = f"Do not share this: {self.problems[0]}."
        elif self.verdict.refuted:
            first = "Do not share this: the attack contradicts what the card states."
        right = "show the same" if g is not None else "are what unprotected search shows"
        second = (
            f"Of the first ten hits {search_result.hits:.1f} {right}, where unprotected search "
            f"finds {search_result.features:.1f} and "
            f"chance {search_result.chance:.1f}."
        )
        return f"{first} {second}"

    def advice(self) -> list[str]:
        """Return what to change; each sentence follows from a measurement."""
        return list(_advice(self))

    def rows(self) -> list[dict[str, str]]:
        """Return the table: per question the release, codes without noise, features and chance."""
        s, g, r, search_result = self.singled, self.guessed, self.rebuilt, self.searched
        rows = [
            _row(
                "one photo found by its copy, first try",
                s.top1,
                s.plain_top1,
                1.0,
                s.chance,
                "{:.1%}",
            ),
            _row("rank of its entry", s.rank, s.plain_rank, 1.0, (s.n + 1) / 2, "{:.0f}"),
        ]
        if g is not None:
            rows.append(
                _row("what a photo shows guessed", g.share, g.plain, g.features, g.luck, "{:.0%}")
            )
        rows.append(
            _row("photo rebuilt, PSNR in dB", r.psnr, r.plain, r.features, r.mean, "{:.1f}")
        )
        rows.append(
            _row(
                "first ten hits that fit",
                search_result.hits,
                None,
                search_result.features,
                search_result.chance,
                "{:.1f}",
            )
        )
        return rows

    def report(self) -> Report:
        """Return the report, which can be written as HTML, Markdown, text and JSON."""
        notes = [
            f"Measured on {self.looked_at:,} of {self.stored:,} photos, on this computer; nothing "
            "left it."
        ]
        if self.lost:
            notes.append(
                f"{self.lost:,} codes were not measured: their photos are gone or changed."
            )
        if self.guessed is not None:
            notes.append(
                f"What a photo shows: {self.guessed.kinds} kinds, by {self.guessed.source}."
            )
        return Report(
            title=f"Attack on {self.name}",
            verdicts=[self.verdict],
            cards=[(self.name, self.card)],
            figures=self._figures(),
            notes=notes,
            changes=self.advice(),
            summary=self.answer,
            broken=self.problems,
        )

    def to_html(self) -> str:
        """Return one page that opens without a network; it shows photos, so it is for the owner."""
        return self.report().to_html()

    def to_text(self, width: int = 80) -> str:
        """Return the report as plain text for a terminal of this width."""
        return self.report().to_text(width)

    def to_json(self) -> str:
        """Return the report as JSON, with the numbers under "measured"."""
        return self._json_of(self.report())

    def _json_of(self, report: Report) -> str:
        fields = json.loads(report.to_json())
        return json.dumps(
            {**fields, "measured": self.to_dict()}, ensure_ascii=False, indent=2, allow_nan=False
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        rebuilt = {name: value for name, value in vars(self.rebuilt).items() if name != "pictures"}
        return {
            "answer": self.answer,
            "refuted": self.refuted,
            "epsilon": self.epsilon,
            "unit": self.unit,
            "stored": self.stored,
            "looked_at": self.looked_at,
            "problems": list(self.problems),
            "singled_out": {**dataclasses.asdict(self.singled), "chance": self.singled.chance},
            "guessed": None if self.guessed is None else dataclasses.asdict(self.guessed),
            "rebuilt": rebuilt,
            "search": dataclasses.asdict(self.searched),
            "budgets": [dataclasses.asdict(budget) for budget in self.budgets],
            "advice": self.advice(),
        }

    def write(self, folder: str | Path) -> list[Path]:
        """Write report.html, report.md and report.json; the page shows photos: keep it private."""
        report = self.report()  # once: it draws the figures
        written = report.write(folder)
        (Path(folder) / "report.json").write_text(self._json_of(report), encoding="utf-8")
        return written

    def _figures(self) -> list[Figure]:
        figures = [
            Figure(
                "What can be reconstructed of your photos",
                "What an attacker reconstructs who knows the hash function and half of the photos, "
                "by the better of ridge regression and a small network. A picture that is no "
                "better than the mean photo reveals nothing about its photo.",
                gallery(self.rebuilt.pictures),
            ),
            Figure(
                "What an attacker finds out, and what search finds",
                "From what you shared; from codes without noise; from the photos' features, "
                "which are not protected at all; and by chance.",
                "",
                self.rows(),
            ),
        ]
        if self.budgets:
            figures.append(self._by_budget())
        return figures

    def _by_budget(self) -> Figure:
        lines = {
            "hits that fit, share of ten": [(b.epsilon, b.hits / 10) for b in self.budgets],
            "one photo found by its copy": [(b.epsilon, b.top1) for b in self.budgets],
        }
        if self.guessed is not None:
            lines["what a photo shows guessed"] = [
                (b.epsilon, b.guess or 0.0) for b in self.budgets
            ]
        rows: list[dict[str, Any]] = [
            {
                "epsilon": f"{b.epsilon:g}",
                "hits of ten": f"{b.hits:.1f}",
                "one photo found": f"{b.top1:.1%}",
                **({} if b.guess is None else {"shown guessed": f"{b.guess:.0%}"}),
            }
            for b in self.budgets
        ]
        return Figure(
            "The same photos at other budgets",
            "Simulated releases of these photos, which were not shared; epsilon per record from "
            "left to right.",
            curves(lines, xlabel="epsilon per record", ylabel="share"),
            rows,
        )


def _row(
    question: str, released: float, plain: float | None, features: float, chance: float, form: str
) -> dict[str, str]:
    return {
        "question": question,
        "shared": form.format(released),
        "no noise": "" if plain is None else form.format(plain),
        "features": form.format(features),
        "chance": form.format(chance),
    }


def _of_100(share: float) -> str:
    """Return a share as cases in a hundred: whole from ten on, otherwise with one decimal."""
    return f"{100 * share:.0f}" if share >= 0.095 else f"{100 * share:.1f}"


def _often(share: float) -> str:
    return f"in {_of_100(share)} of 100 cases"


def _gained(value: float, chance: float, full: float) -> float:
    """Return the gain over chance as a share of the largest possible gain."""
    return (value - chance) / (full - chance) if full > chance else 0.0


def _advice(audit: ReleaseAudit) -> Iterator[str]:
    s, g, r, search_result = audit.singled, audit.guessed, audit.rebuilt, audit.searched
    for problem in audit.problems:
        yield f"do not share this, and withdraw what you can: {problem}"
    if audit.verdict.refuted:
        yield ("do not share this: the attack on its worst inputs contradicts what the card states")
    if s.top1 >= _OFTEN and _gained(s.top1, s.chance, s.plain_top1) >= _AS_GOOD:
        yield (
            f"lower epsilon: a photo is found by its copy {_often(s.top1)}, nearly as often as "
            "from codes without "
            f"noise ({_of_100(s.plain_top1)}), whatever epsilon "
            f"says{_at_most(audit, 'top1', s.top1 / 2)}"
        )
    elif s.top1 >= _OFTEN:
        lower = _at_most(audit, "top1", s.top1 / 2)
        yield (
            "lower epsilon if others may have copies of single photos: one is found "
            f"{_often(s.top1)}{lower}"
        )
    if g is not None and g.share - g.luck > 0.05 and _gained(g.share, g.luck, g.plain) >= _AS_GOOD:
        yield (
            "do not rely on the noise to hide what a photo shows: it is guessed "
            f"{_often(g.share)}, as well as from codes without noise "
            f"({_of_100(g.plain)}){_at_most(audit, 'guess', (g.share + g.luck) / 2)}"
        )
    if r.plain - r.mean > 0.5 and _gained(r.psnr, r.mean, r.plain) >= _AS_GOOD:
        yield (
            "look at the pictures: they are reconstructed as well as from codes without noise "
            f"({r.psnr:.1f} dB against "
            f"{r.plain:.1f}; the mean photo has {r.mean:.1f})"
        )
    utility = _gained(search_result.hits, search_result.chance, search_result.features)
    if utility < 0.25:
        more = next(
            (
                b
                for b in audit.budgets
                if b.epsilon > audit.epsilon and b.hits > search_result.hits + 0.5
            ),
            None,
        )
        larger = "" if more is None else f"; epsilon {more.epsilon:g} finds {more.hits:.1f}"
        yield (
            f"search finds little ({search_result.hits:.1f} of ten, unprotected "
            f"{search_result.features:.1f}): give public pictures "
            f"like yours (--public), best with a folder per class{larger}"
        )
    enough = [
        b
        for b in audit.budgets
        if b.epsilon < audit.epsilon and b.hits >= 0.95 * search_result.hits
    ]
    if enough and utility >= 0.1:
        least = min(enough, key=lambda b: b.epsilon)
        yield (
            f"epsilon {least.epsilon:g} is enough: it finds {least.hits:.1f} of ten, as many as "
            f"{audit.epsilon:g} does"
        )


def _at_most(audit: ReleaseAudit, name: str, level: float) -> str:
    """Return the largest smaller epsilon at which a figure is at most `level`, as a clause."""
    lower = [
        b for b in audit.budgets if b.epsilon < audit.epsilon and (getattr(b, name) or 0.0) <= level
    ]
    if not lower:
        return ""
    best = max(lower, key=lambda b: b.epsilon)
    return (
        f"; at epsilon {best.epsilon:g} it is {_often(getattr(best, name))}, and {best.hits:.1f} "
        "of ten hits fit"
    )
