"""The report in HTML, Markdown, text and JSON: the answer, the advice, figures and the table.

Figures are SVG and PNG inside the page, so that it needs no other file. Plain text fits a terminal.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from blindsight import __version__
from blindsight.audit.engine.blackbox import DistinguishingResult
from blindsight.audit.engine.inference import Membership, roc
from blindsight.audit.report.verdict import COLUMNS, Verdict
from blindsight.core import plots
from blindsight.core.arrays import Array, Floats
from blindsight.core.plots import INK, LINE
from blindsight.privacy import Disclosure, Guarantee

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "NOT_REFUTED",
    "Figure",
    "Report",
    "allowed",
    "attack_roc",
    "columns",
    "curves",
    "gallery",
    "guesses",
    "lines_of",
    "markdown",
    "roc_curves",
    "three_numbers",
    "verdict_lines",
    "wrapped",
]

_BLUE, _RED, _GREEN = "#2f6fb3", "#d1495b", "#2a8a61"
_CEILING = 30.0


class Figure(NamedTuple):
    """A picture for the page (trusted HTML or SVG), and its numbers, shown if it is missing."""

    title: str
    caption: str
    picture: str
    rows: Sequence[Mapping[str, Any]] = ()


def allowed(fpr: ArrayLike, epsilon: float, delta: float = 0.0) -> Floats:
    """Return the largest true positive rate under (epsilon, delta) at these false positive rates.

    It is min(e^ε f + δ, 1 - e^-ε (1 - δ - f)) (Kairouz, Oh and Viswanath 2015).
    """
    f = np.asarray(fpr, np.float64)
    grow = math.exp(min(epsilon, 700))
    return np.clip(np.minimum(grow * f + delta, 1 - (1 - delta - f) / grow), 0, 1)


def three_numbers(verdicts: Sequence[Verdict]) -> str:
    """Draw claimed, proven and audited epsilons, one line per method that has an epsilon."""
    audited_verdicts = [v for v in verdicts if v.audited is not None]

    def paint(axes: Axes) -> None:
        for line, verdict in enumerate(reversed(audited_verdicts)):
            assert verdict.audited is not None  # noqa: S101  (filtered above)
            proven, audited = min(verdict.proven, _CEILING), min(verdict.audited.epsilon, _CEILING)
            axes.plot([audited, proven], [line, line], color=LINE, lw=1, zorder=1)
            axes.scatter(
                proven,
                line,
                color=_GREEN,
                marker=">" if verdict.proven > _CEILING else "o",
                zorder=2,
            )
            if verdict.claimed is not None:
                axes.scatter(verdict.claimed, line, color=_BLUE, marker="|", s=160, zorder=3)
            axes.scatter(
                audited, line, color=_RED if verdict.refuted else INK, marker="D", s=28, zorder=4
            )
        alone = len(audited_verdicts) == 1  # its setting is in the table
        labels = [
            v.method if alone else f"{v.method}: {v.setting}" for v in reversed(audited_verdicts)
        ]
        axes.set_yticks(range(len(audited_verdicts)), labels, fontsize=8)
        axes.set_xlabel(
            "epsilon: | claimed, ◆ audited (red: refuted), ● proven (▶: more, or none)", fontsize=8
        )
        reach = axes.get_xlim()[1]
        axes.set_xlim(-0.02 * reach, 1.03 * reach)

    return plots.draw(paint, width=9, height=0.42 * len(audited_verdicts) + 1.2)


def curves(
    lines: plots.Lines,
    *,
    xlabel: str,
    ylabel: str,
    own: tuple[float, float] | None = None,
    chance: float | None = None,
    labels: Mapping[str, tuple[float, float]] | None = None,
    logarithmic: bool = True,
) -> str:
    """Draw lines of points.

    `own` is the point of the audited file; it is drawn as a horizontal line if its x is infinite.
    """
    levels = {} if chance is None else {"chance": chance}
    draw_lines = plots.curves(lines, xlabel=xlabel, ylabel=ylabel, log=logarithmic, levels=levels)

    def paint(axes: Axes) -> None:
        if own is not None and math.isinf(own[0]):
            axes.axhline(
                own[1], color=_RED, lw=1.5, ls="--", label=f"your file: {own[1]:.2f}, no ε proven"
            )
        elif own is not None:
            axes.scatter(
                *own, color=_RED, marker="D", s=60, zorder=5, label=f"your file: {own[1]:.2f}"
            )
        draw_lines(axes)
        for text, point in _apart(labels or {}).items():
            axes.annotate(
                text, point, xytext=(4, -11), textcoords="offset points", fontsize=7, color=INK
            )

    return plots.draw(paint, width=5.4, height=3.4)


def _apart(labels: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Merge labels that would overlap."""
    if not labels:
        return {}
    reach = 0.05 * np.ptp(np.array(list(labels.values())), axis=0)
    groups: list[tuple[list[str], tuple[float, float]]] = []
    for text, point in sorted(labels.items(), key=lambda item: item[1]):
        near = next((g for g in groups if (np.abs(np.subtract(g[1], point)) <= reach).all()), None)
        if near is None:
            groups.append(([text], point))
        else:
            near[0].append(text)
    return {", ".join(sorted(names, key=list(labels).index)): point for names, point in groups}


def attack_roc(
    result: DistinguishingResult,
    *,
    proven: float,
    claimed: float | None,
    delta: float = 0.0,
    proof: str = "proven",
) -> tuple[str, list[dict[str, Any]]]:
    """Draw claim, proof and attack on log-log axes; also return them at a few rates, as rows.

    A curve above a line contradicts it. The diamond is the event behind the audited number, at the
    stated confidence. Only the diamond refutes: the left end of the curve rests on a few runs.
    """
    scores = np.concatenate([result.guilty, result.innocent])
    fpr, tpr = roc(scores, np.repeat([True, False], [len(result.guilty), len(result.innocent)]))
    floor = 1 / len(result.innocent)
    grid = np.geomspace(floor, 1, 200)

    def paint(axes: Axes) -> None:
        if not math.isinf(proven):
            label = f"{proof}: ε = {proven:.3g}" + (f", δ = {delta:.1g}" if delta else "")
            axes.plot(
                grid, np.maximum(allowed(grid, proven, delta), floor), color=_GREEN, label=label
            )
        if claimed is not None and not math.isinf(claimed):
            line = np.maximum(allowed(grid, claimed, delta), floor)
            axes.plot(grid, line, color=_BLUE, ls="--", label=f"claimed: ε = {claimed:.3g}")
        axes.plot(
            grid, np.maximum(np.interp(grid, fpr, tpr), floor), color=_RED, lw=2, label="attack"
        )
        if result.audited.epsilon > 0:
            false_rate, true_rate = np.maximum(result.rates, floor)
            axes.scatter(
                false_rate,
                true_rate,
                color=_RED,
                marker="D",
                s=40,
                zorder=5,
                label="audited event",
            )
        _guessing(axes, floor, "right accusations")

    rows = []
    for rate in (1e-3, 1e-2, 1e-1):
        row: dict[str, Any] = {
            "false accusations": rate,
            "attack": round(float(np.interp(rate, fpr, tpr)), 4),
        }
        row["proven allows"] = (
            1.0 if math.isinf(proven) else round(float(allowed(rate, proven, delta)), 4)
        )
        if claimed is not None:
            row["claim allows"] = (
                1.0 if math.isinf(claimed) else round(float(allowed(rate, claimed, delta)), 4)
            )
        rows.append(row)
    return plots.draw(paint, width=5.6, height=4.2), rows


def roc_curves(memberships: Mapping[str, Membership]) -> str:
    """Draw membership inference on log-log axes, where low false positive rates are visible."""

    def paint(axes: Axes) -> None:
        for (name, membership), color in zip(
            memberships.items(), (_RED, _GREEN, _BLUE), strict=False
        ):
            fpr, tpr = roc(membership.scores, membership.included)
            label = f"{name}, AUC {membership.auc:.2f}"
            axes.plot(np.maximum(fpr, 1e-3), np.maximum(tpr, 1e-3), color=color, label=label)
        _guessing(axes, 2e-3, "members found")

    return plots.draw(paint, width=5, height=4)


def _guessing(axes: Axes, floor: float, ylabel: str) -> None:
    """Draw the diagonal on logarithmic axes from `floor` to 1."""
    axes.plot([floor, 1], [floor, 1], color=INK, lw=1, ls=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.15))
    axes.set(xlabel="false accusations", ylabel=ylabel)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)


def guesses(bars: Mapping[str, tuple[float, float, float]], *, most: float | None) -> str:
    """Draw shares of correct guesses with intervals, chance, and the largest share allowed."""

    def paint(axes: Axes) -> None:
        for line, (share, low, high) in enumerate(reversed(list(bars.values()))):
            axes.plot([low, high], [line, line], color=_RED, lw=2)
            axes.scatter(share, line, color=_RED, marker="D", s=40, zorder=3)
        axes.axvline(0.5, color=INK, lw=1, ls=":", label="chance")
        if most is not None:
            axes.axvline(most, color=_GREEN, label=f"the proof allows {most:.2f}")
        axes.set_yticks(range(len(bars)), list(bars)[::-1], fontsize=8)
        axes.set(ylim=(-0.6, len(bars) - 0.4), xlim=(0.3, 1.03), xlabel="share of right guesses")
        axes.legend(frameon=False, labelcolor=INK, fontsize=8)

    return plots.draw(paint, width=7, height=0.5 * len(bars) + 1.3)


def gallery(rows: Mapping[str, Array], *, scale: int = 2) -> str:
    """Rows of small pictures, each row under its caption."""
    lines = []
    for caption, images in rows.items():
        cells = "".join(f'<img alt="" src="{plots.data_uri(image, scale)}">' for image in images)
        lines.append(f"<dt>{html.escape(caption)}</dt><dd>{cells}</dd>")
    return f'<dl class="gallery">{"".join(lines)}</dl>'


Rows = Sequence[Mapping[str, Any]]
#: Printed once in every report.
NOT_REFUTED = (
    "How to read the verdict. REFUTED: an attack measured more than the promise allows. Not "
    "refuted: no attack did, which is no proof; audited numbers are lower bounds, and more trials "
    "can only raise them."
)


def wrapped(words: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Wrap a paragraph into lines of at most `width`; words are never cut."""
    return textwrap.wrap(
        words,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(rows: Rows, width: int) -> list[str]:
    """Return a table as lines of text.

    The first column takes the remaining width and wraps; if that is too narrow, each cell gets a
    line of its own.
    """
    names = _names(rows)
    texts = [[str(row.get(name, "")) for name in names] for row in rows]
    sizes = [max(len(name), *(len(line[i]) for line in texts)) for i, name in enumerate(names)]
    room = width - sum(size + 2 for size in sizes[1:])
    if room < min(sizes[0], 16):
        return [
            f"{name}: {cell}"
            for line in texts
            for name, cell in zip(names, line, strict=True)
            if cell
        ]
    sizes[0] = min(sizes[0], room)
    lines = []
    for line in [names, *texts]:
        parts = wrapped(line[0], sizes[0]) or [""]
        for number, part in enumerate(parts):
            cells = line[1:] if number == len(parts) - 1 else [""] * (len(names) - 1)
            ends = (f"  {cell:>{size}}" for cell, size in zip(cells, sizes[1:], strict=True))
            lines.append((f"{part:<{sizes[0]}}" + "".join(ends)).rstrip())
    return lines


def verdict_lines(verdict: Verdict, width: int) -> list[str]:
    """Return one verdict as text: its word and method, then its three numbers."""
    method, setting, unit, claimed, proven, audited, attack, word = verdict.cells()
    numbers = (
        f"claimed {claimed}, proven {proven}, audited {audited or 'nothing'}, per {unit}; by "
        f"{attack}"
    )
    return [
        *wrapped(f"{word}: {method}, {setting}", width, rest="  "),
        *wrapped(numbers, width, first="  ", rest="  "),
    ]


def lines_of(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The table of verdicts as rows."""
    return [dict(zip(("part", *COLUMNS), (v.room, *v.cells()), strict=True)) for v in verdicts]


def markdown(rows: Rows) -> list[str]:
    """Rows as a Markdown table."""
    names = _names(rows)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + [
        "| " + " | ".join(str(row.get(name, "")).replace("|", "\\|") for name in names) + " |"
        for row in rows
    ]


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


Card = Guarantee | Disclosure

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --paper: #fff; --soft: #f3f5f8; --line: #d5dae1; --red: #b3263b;
  --green: #1f7a56; --quiet: #5d6673; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --paper: #14171c; --soft: #1d2229; --line: #343b46;
  --red: #ff7a8c; --green: #58d09f; --quiet: #a0a9b6; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 64rem; padding: 1.5rem 1rem; overflow-wrap: break-word; }
h1 { margin: 0 0 .5rem; font-size: 1.6rem; } h2 { margin-top: 2.25rem; font-size: 1.2rem; }
p.lead { font-size: 1.2rem; margin-top: 0; max-width: 44rem; } p, ul, figcaption { max-width: 44rem; }
.quiet { color: var(--quiet); }
table { border-collapse: collapse; font-size: .875rem; width: 100%; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { background: var(--soft); } .refuted { color: var(--red); font-weight: 700; } .fine { color: var(--green); }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption { color: var(--quiet); font-size: .9rem; }
dl.gallery { margin: 0; } dl.gallery dt { font-size: .9rem; margin-top: .6rem; } dl.gallery dd { margin: 0;
  display: flex; gap: 3px; } dl.gallery img { flex: 0 1 5rem; min-width: 0; image-rendering: pixelated; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
.card { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: .75rem 1rem; }
.card h3 { margin: 0 0 .5rem; font-size: 1rem; } .card dl { margin: 0; font-size: .85rem; display: grid;
  grid-template-columns: minmax(6rem, 9rem) 1fr; gap: .2rem .9rem; }
.card dt { color: var(--quiet); } .card dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 45rem) { thead { display: none; } tr { display: block; padding: .5rem 0;
  border-bottom: 1px solid var(--line); } td { display: grid; grid-template-columns: 7.5rem 1fr; border: 0;
  padding: .1rem 0; } td::before { content: attr(data-name); color: var(--quiet); } td:empty { display: none; } }
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of an audit, for people and as JSON.

    The figures' pictures are trusted; everything else is escaped. `changes` are sentences on what
    to change beyond the verdicts' own advice; `summary` replaces the headline that counts verdicts;
    `broken` are findings that no epsilon expresses; figures in `lead` come first.
    """

    title: str
    verdicts: Sequence[Verdict]
    cards: Sequence[tuple[str, Card]] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    changes: Sequence[str] = ()
    summary: str = ""
    broken: Sequence[str] = ()
    lead: Sequence[Figure] = ()

    @property
    def refuted(self) -> bool:
        """Whether any claim was refuted."""
        return bool(self.broken) or any(verdict.refuted for verdict in self.verdicts)

    def headline(self) -> str:
        """Return the answer in two sentences."""
        if self.summary:
            return self.summary
        claims = [v for v in self.verdicts if v.published]
        proofs = [v for v in self.verdicts if v.calibration == "proven"]
        parts = [f"{_of(claims)} published claims are REFUTED by an attack."] if claims else []
        parts += [f"Of the promises with a proof, {_of(proofs)} are refuted."] if proofs else []
        return " ".join(parts) or "Nothing here states an epsilon: see the card."

    def advice(self) -> list[str]:
        """Return what to change, without duplicates."""
        refuted = (f"{v.method}: {v.advice}" for v in self.verdicts if v.refuted and v.advice)
        return list(dict.fromkeys((*refuted, *self.changes)))

    def write(self, folder: str | Path) -> list[Path]:
        """Write report.html, report.md and report.json into the folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        files = {
            "report.html": self.to_html(),
            "report.md": self.to_markdown(),
            "report.json": self.to_json(),
        }
        for name, content in files.items():
            (target / name).write_text(content, encoding="utf-8")
        return [target / name for name in files]

    def to_json(self) -> str:
        """Return everything as JSON; figures are given by their numbers, without pictures."""
        cards = {name: json.loads(card.to_json()) for name, card in self.cards}
        fields = {
            "title": self.title,
            "version": __version__,
            "headline": self.headline(),
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "advice": self.advice(),
            "broken": list(self.broken),
            "figures": [
                {"title": f.title, "caption": f.caption, "rows": list(f.rows)}
                for f in (*self.lead, *self.figures)
            ],
            "notes": list(self.notes),
            "cards": cards,
        }
        return json.dumps(fields, ensure_ascii=False, indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the answer, the advice, the figures' numbers, the table and the cards."""
        lines = [
            f"# {self.title}",
            self.headline(),
            "",
            "## What to change",
            *(f"- {s}" for s in self._sentences()),
        ]
        for figure in (*self.lead, *self.figures):
            if figure.rows:
                lines += ["", f"## {figure.title}", figure.caption, "", *markdown(figure.rows)]
        lines += [
            "",
            "## Claimed, proven, audited",
            NOT_REFUTED,
            "",
            *markdown(lines_of(self.verdicts)),
        ]
        lines += ["", *self.notes]
        for name, card in self.cards:
            lines += ["", f"## {name}", "```", card.card(), "```"]
        return "\n".join(lines) + "\n"

    def to_text(self, width: int = 80) -> str:
        """Return text for a terminal of `width` columns: no line is longer and no word is cut."""
        lines = [*wrapped(self.headline(), width), ""]
        for sentence in self._sentences():
            lines += wrapped(sentence, width, first="- ", rest="  ")
        for figure in (*self.lead, *self.figures):
            if figure.rows:
                lines += ["", figure.title, *columns(figure.rows, width)]
        for verdict in self.verdicts:
            lines += ["", *verdict_lines(verdict, width)]
        for note in (*self.notes, NOT_REFUTED):
            lines += ["", *wrapped(note, width)]
        for _, card in self.cards if len(self.verdicts) == 1 else ():
            lines += ["", card.card().partition("\n")[0]]
            for key, text in card.rows():
                lines += wrapped(f"{key}: {text}", width, first="  ", rest="    ")
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Return one page that opens without a network."""
        return "".join(self._html())

    def _sentences(self) -> list[str]:
        return [_sentence(advice) for advice in self.advice()] or [
            "Nothing measured here calls for a change."
        ]

    def _html(self) -> Iterator[str]:
        yield (
            '<!doctype html><html lang="en"><head><meta '
            f'charset="utf-8"><title>{html.escape(self.title)}</title>'
        )
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
        yield f"<style>{_STYLE}</style></head><body><h1>{html.escape(self.title)}</h1>"
        tone = "lead refuted" if self.refuted else "lead"
        yield f'<p class="{tone}">{html.escape(self.headline())}</p>'
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self._sentences())
        yield f"<h2>What to change</h2><ul>{items}</ul>"
        for figure in (*self.lead, *self.figures):
            content = figure.picture or _html_rows(figure.rows)
            words = f"<figcaption>{html.escape(figure.caption)}</figcaption>"
            yield f"<h2>{html.escape(figure.title)}</h2><figure>{content}{words}</figure>"
        yield (
            "<h2>Claimed, proven, "
            f"audited</h2><p>{html.escape(NOT_REFUTED)}</p>{_html_table(self.verdicts)}"
        )
        for note in self.notes:
            yield f'<p class="quiet">{html.escape(note)}</p>'
        if self.cards:
            yield '<h2>Cards</h2><div class="cards">'
            for name, card in self.cards:
                rows = "".join(
                    f"<dt>{html.escape(key)}</dt><dd>{html.escape(text)}</dd>"
                    for key, text in card.rows()
                )
                yield f'<section class="card"><h3>{html.escape(name)}</h3><dl>{rows}</dl></section>'
            yield "</div>"
        yield f'<p class="quiet">Blindsight {__version__}.</p></body></html>'


def _of(verdicts: Sequence[Verdict]) -> str:
    return f"{sum(v.refuted for v in verdicts)} of {len(verdicts)}"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


def _html_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(_cell(name, str(row.get(name, ''))) for name in names)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, content: str, tone: str = "") -> str:
    attribute = f' class="{tone}"' if tone else ""
    return f'<td data-name="{html.escape(name)}"{attribute}>{html.escape(content)}</td>'


def _html_table(verdicts: Sequence[Verdict]) -> str:
    head = "".join(f"<th>{column}</th>" for column in ("part", *COLUMNS))
    body = "".join(
        f"<tr>{_cell('part', verdict.room)}{_html_cells(verdict)}</tr>" for verdict in verdicts
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cells(verdict: Verdict) -> str:
    # Green only where something was promised; a sketch that promises nothing cannot keep a promise.
    promised = verdict.published or verdict.calibration == "proven"
    tone = "refuted" if verdict.refuted else "fine" if promised else "quiet"
    *cells, word = verdict.cells()
    row = "".join(_cell(name, cell) for name, cell in zip(COLUMNS, cells, strict=False))
    return row + _cell(COLUMNS[-1], word, tone)
