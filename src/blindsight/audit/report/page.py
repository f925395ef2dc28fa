"""The report: first the answer, then what to change, then pictures, then the table; HTML, Markdown,
text and JSON.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindsight import __version__
from blindsight.audit.report import text
from blindsight.audit.report.figures import Figure
from blindsight.audit.report.verdict import COLUMNS, Verdict
from blindsight.privacy import Disclosure, Guarantee

__all__ = ["Report"]

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
    """What was audited and what came of it.

    The figures' pictures are trusted; everything else is escaped. `changes` are sentences on what
    to change beyond the verdicts' own advice; `summary` stands in for the headline where counts of
    verdicts would not say it; `broken` are findings that no epsilon expresses; figures in `lead`
    come first.
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
        """The answer in two sentences, for people in a hurry."""
        if self.summary:
            return self.summary
        claims = [v for v in self.verdicts if v.published]
        proofs = [v for v in self.verdicts if v.calibration == "proven"]
        parts = [f"{_of(claims)} published claims are REFUTED by an attack."] if claims else []
        parts += [f"Of the promises with a proof, {_of(proofs)} are refuted."] if proofs else []
        return " ".join(parts) or "Nothing here states an epsilon: see the card."

    def advice(self) -> list[str]:
        """What to change to be safe, each once."""
        refuted = (f"{v.method}: {v.advice}" for v in self.verdicts if v.refuted and v.advice)
        return list(dict.fromkeys((*refuted, *self.changes)))

    def write(self, folder: str | Path) -> list[Path]:
        """report.html, report.md and report.json in the folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        made = {
            "report.html": self.to_html(),
            "report.md": self.to_markdown(),
            "report.json": self.to_json(),
        }
        for name, content in made.items():
            (target / name).write_text(content, encoding="utf-8")
        return [target / name for name in made]

    def to_json(self) -> str:
        """Everything but the pictures; of those, the numbers behind them."""
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
        """The answer, what to change, the numbers behind the pictures, the table and the cards."""
        lines = [
            f"# {self.title}",
            self.headline(),
            "",
            "## What to change",
            *(f"- {s}" for s in self._sentences()),
        ]
        for figure in (*self.lead, *self.figures):
            if figure.rows:
                lines += ["", f"## {figure.title}", figure.caption, "", *text.markdown(figure.rows)]
        lines += [
            "",
            "## Claimed, proven, audited",
            text.NOT_REFUTED,
            "",
            *text.markdown(text.lines_of(self.verdicts)),
        ]
        lines += ["", *self.notes]
        for name, card in self.cards:
            lines += ["", f"## {name}", "```", card.card(), "```"]
        return "\n".join(lines) + "\n"

    def to_text(self, width: int = 80) -> str:
        """For a terminal of that many columns: no line is longer and no word is cut."""
        lines = [*text.wrapped(self.headline(), width), ""]
        for sentence in self._sentences():
            lines += text.wrapped(sentence, width, first="- ", rest="  ")
        for figure in (*self.lead, *self.figures):
            if figure.rows:
                lines += ["", figure.title, *text.columns(figure.rows, width)]
        for verdict in self.verdicts:
            lines += ["", *text.verdict_lines(verdict, width)]
        for note in (*self.notes, text.NOT_REFUTED):
            lines += ["", *text.wrapped(note, width)]
        for _, card in self.cards if len(self.verdicts) == 1 else ():
            lines += ["", card.card().partition("\n")[0]]
            for key, told in card.rows():
                lines += text.wrapped(f"{key}: {told}", width, first="  ", rest="    ")
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """One page that opens with no network."""
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
            shown = figure.picture or _html_rows(figure.rows)
            words = f"<figcaption>{html.escape(figure.caption)}</figcaption>"
            yield f"<h2>{html.escape(figure.title)}</h2><figure>{shown}{words}</figure>"
        yield (
            "<h2>Claimed, proven, "
            f"audited</h2><p>{html.escape(text.NOT_REFUTED)}</p>{_html_table(self.verdicts)}"
        )
        for note in self.notes:
            yield f'<p class="quiet">{html.escape(note)}</p>'
        if self.cards:
            yield '<h2>Cards</h2><div class="cards">'
            for name, card in self.cards:
                rows = "".join(
                    f"<dt>{html.escape(key)}</dt><dd>{html.escape(told)}</dd>"
                    for key, told in card.rows()
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
    shown = f' class="{tone}"' if tone else ""
    return f'<td data-name="{html.escape(name)}"{shown}>{html.escape(content)}</td>'


def _html_table(verdicts: Sequence[Verdict]) -> str:
    head = "".join(f"<th>{column}</th>" for column in ("part", *COLUMNS))
    body = "".join(
        f"<tr>{_cell('part', verdict.room)}{_html_cells(verdict)}</tr>" for verdict in verdicts
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cells(verdict: Verdict) -> str:
    # Green only where something was promised: a sketch that promises nothing has nothing to stand
    # by.
    promised = verdict.published or verdict.calibration == "proven"
    tone = "refuted" if verdict.refuted else "fine" if promised else "quiet"
    *cells, word = verdict.cells()
    shown = "".join(_cell(name, cell) for name, cell in zip(COLUMNS, cells, strict=False))
    return shown + _cell(COLUMNS[-1], word, tone)
