"""The report: one self-contained HTML page, and the same as Markdown and JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blindsight import __version__
from blindsight.audit.figures import Figure
from blindsight.audit.table import COLUMNS
from blindsight.audit.verdict import Verdict
from blindsight.privacy import Disclosure, Guarantee

__all__ = ["Report"]

Card = Guarantee | Disclosure
_NOTHING = "nothing found to change; not refuted is not a proof"

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --paper: #fff; --soft: #f3f5f8; --line: #d5dae1; --red: #b3263b;
  --green: #1f7a56; --quiet: #5d6673; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --paper: #14171c; --soft: #1d2229; --line: #343b46;
  --red: #ff7a8c; --green: #58d09f; --quiet: #a0a9b6; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 1.5rem; }
h1 { margin: 0 0 .25rem; } h2 { margin-top: 2.25rem; border-bottom: 1px solid var(--line); }
p.lead { font-size: 1.1rem; margin-top: 0; } .quiet { color: var(--quiet); }
table { border-collapse: collapse; font-size: .875rem; } th, td { text-align: left; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { background: var(--soft); position: sticky; top: 0; } td.number { text-align: right; white-space: nowrap; }
td:nth-child(n+6):nth-child(-n+7), td:last-child { white-space: nowrap; }
.scroll { overflow-x: auto; } .refuted { color: var(--red); font-weight: 700; } .fine { color: var(--green); }
table.gallery td { padding: 2px; border: 0; } table.gallery th { border: 0; font-weight: 500; white-space: nowrap;
  vertical-align: middle; padding-left: 0; }
table.gallery img { display: block; image-rendering: pixelated; border-radius: 3px; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } figcaption { color: var(--quiet);
  font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.card { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: .75rem 1rem; }
.card h3 { margin: 0 0 .5rem; font-size: 1rem; } .card dl { margin: 0; font-size: .85rem; }
.card dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .2rem .9rem; }
.card dt { color: var(--quiet); max-width: 13rem; } .card dd { margin: 0; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was audited and what came of it.

    The figures' pictures are trusted; everything else is escaped. `changes` are sentences on what to change beyond
    the verdicts' own advice; `summary` stands in for the headline where counts of verdicts would not say it. Figures in
    `lead` come before the table, the others after it.
    """

    title: str
    verdicts: Sequence[Verdict]
    cards: Sequence[tuple[str, Card]] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    changes: Sequence[str] = ()
    summary: str = ""
    lead: Sequence[Figure] = ()

    @property
    def refuted(self) -> bool:
        """Whether any claim was refuted."""
        return any(verdict.refuted for verdict in self.verdicts)

    def headline(self) -> str:
        """One sentence for people in a hurry."""
        if self.summary:
            return self.summary
        claims = [v for v in self.verdicts if v.published]
        proofs = [v for v in self.verdicts if v.calibration == "proven"]
        parts = [f"{_of(claims)} published claims REFUTED"] if claims else []
        parts += [f"{_of(proofs)} proven promises refuted (not refuted is not a proof)"] if proofs else []
        return "; ".join(parts) + "." if parts else "Nothing here states an epsilon: see the card."

    def advice(self) -> list[str]:
        """What to change to be safe, each once."""
        refuted = (f"{v.method}: {v.advice}" for v in self.verdicts if v.refuted and v.advice)
        return list(dict.fromkeys((*refuted, *self.changes)))

    def write(self, folder: str | Path) -> list[Path]:
        """report.html, report.md and report.json in the folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for name, text in (
            ("report.html", self.to_html()),
            ("report.md", self.to_markdown()),
            ("report.json", self.to_json()),
        ):
            (target / name).write_text(text, encoding="utf-8")
            written.append(target / name)
        return written

    def to_json(self) -> str:
        """Everything but the pictures; of those, the numbers behind them."""
        cards = {name: json.loads(card.to_json()) for name, card in self.cards}
        fields = {
            "title": self.title,
            "version": __version__,
            "headline": self.headline(),
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "advice": self.advice(),
            "figures": [
                {"title": f.title, "caption": f.caption, "rows": list(f.rows)} for f in (*self.lead, *self.figures)
            ],
            "notes": list(self.notes),
            "cards": cards,
        }
        return json.dumps(fields, ensure_ascii=False, indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """The table, the advice and the cards as plain Markdown."""
        lines = [f"# {self.title}", self.headline(), "", *self.notes, "", *_markdown_table(self.verdicts)]
        lines += ["", "## What to change to be safe", *(f"- {sentence}." for sentence in self.advice() or [_NOTHING])]
        for figure in (*self.lead, *self.figures):
            if figure.rows:
                lines += ["", f"## {figure.title}", figure.caption, "", *_markdown_rows(figure.rows)]
        for name, card in self.cards:
            lines += ["", f"## {name}", "```", card.card(), "```"]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """One page that opens with no network."""
        return "".join(self._html())

    def _html(self) -> Iterator[str]:
        yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
        yield f"<style>{_STYLE}</style></head><body><h1>{html.escape(self.title)}</h1>"
        yield f'<p class="lead">{html.escape(self.headline())}</p>'
        for note in self.notes:
            yield f'<p class="quiet">{html.escape(note)}</p>'
        yield from map(_html_figure, self.lead)
        yield "<h2>Claimed, proven, audited</h2>" + _html_table(self.verdicts)
        items = "".join(f"<li>{html.escape(sentence)}.</li>" for sentence in self.advice() or [_NOTHING])
        yield f"<h2>What to change to be safe</h2><ul>{items}</ul>"
        yield from map(_html_figure, self.figures)
        if self.cards:
            yield '<h2>Cards</h2><div class="cards">'
            for name, card in self.cards:
                rows = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(text)}</dd>" for key, text in card.rows())
                yield f'<section class="card"><h3>{html.escape(name)}</h3><dl>{rows}</dl></section>'
            yield "</div>"
        yield f'<p class="quiet">Blindsight {__version__}. An audit can refute a promise, never prove one.</p>'
        yield "</body></html>"


def _of(verdicts: Sequence[Verdict]) -> str:
    return f"{sum(v.refuted for v in verdicts)} of {len(verdicts)}"


def _html_figure(figure: Figure) -> str:
    words = f"<figcaption>{html.escape(figure.caption)}</figcaption>"
    return f"<h2>{html.escape(figure.title)}</h2><figure>{figure.picture}{words}</figure>"


def _html_table(verdicts: Sequence[Verdict]) -> str:
    head = "".join(f"<th>{column}</th>" for column in ("room", *COLUMNS))
    body = "".join(f"<tr><td>{verdict.room}</td>{_html_cells(verdict)}</tr>" for verdict in verdicts)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _html_cells(verdict: Verdict) -> str:
    cells: list[Any] = [html.escape(cell) for cell in verdict.cells()]
    # Green only where something was promised: a sketch that promises nothing has nothing to stand by.
    promised = verdict.published or verdict.calibration == "proven"
    tone = "refuted" if verdict.refuted else "fine" if promised else "quiet"
    word = f'<td class="{tone}">{cells[-1]}</td>'
    return "".join(f"<td>{cell}</td>" for cell in cells[:-1]) + word


def _markdown_table(verdicts: Sequence[Verdict]) -> list[str]:
    lines = ["| " + " | ".join(("room", *COLUMNS)) + " |", "|" + "---|" * (len(COLUMNS) + 1)]
    for verdict in verdicts:
        cells = (cell.replace("|", "\\|") for cell in (verdict.room, *verdict.cells()))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _markdown_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(key, "")).replace("|", "\\|") for key in columns) + " |" for row in rows]
    return lines
