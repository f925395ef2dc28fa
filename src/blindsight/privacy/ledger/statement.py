"""One page about a data set's releases, for a regulator or an auditor: HTML and plain values.

The fields follow what NIST SP 800-226 asks of a claim of differential privacy: the unit of privacy
and the neighbour relation, the parameters, the accounting over all releases, the trust model, who
released what for which purpose, and what was done to test it. Everything but the audits and the
vault's state is read from the ledger's verified chain.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from blindsight.privacy.ledger.book import Balance, Ledger
from blindsight.privacy.ledger.chain import Entry, Head

__all__ = ["AuditedRelease", "ReleaseLine", "Statement", "statement"]


@dataclass(frozen=True, kw_only=True)
class AuditedRelease:
    """What an audit measured of a release.

    Parameters:
        release: the release's id, or words for it.
        attack: what was tried.
        epsilon: the lower bound that the attack proves.
        confidence: of that bound.
    """

    release: str
    attack: str
    epsilon: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class ReleaseLine:
    """One release, as it was charged to the accounts of a data set."""

    time: str
    what: str
    actor: str
    purpose: str
    release: str
    vault: str
    generation: int
    costs: tuple[str, ...]
    epsilon_per_record: float | None
    epsilon_per_person: float | None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What was released of a data set, by whom, for what purpose, and at which cost.

    Parameters:
        dataset: the data set's name.
        made: when the statement was made, in UTC.
        budgets: each account: unit, neighbour relation, budget, spent and remaining.
        releases: every charge, in order.
        head: the ledger's last entry, which the statement was verified against.
        audits: what was audited, where the caller gives it.
        remarks: disagreements of vault and ledger, and what is not stated, in words.
    """

    dataset: str
    made: str
    budgets: tuple[dict[str, Any], ...]
    releases: tuple[ReleaseLine, ...]
    head: Head
    audits: tuple[AuditedRelease, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": "blindsight budget statement 1",
            "framework": "NIST SP 800-226",
            "trust_model": _TRUST,
            **dataclasses.asdict(self),
            "head": self.head._asdict(),
        }

    def to_html(self) -> str:
        """The statement as one self-contained page."""
        budgets = [
            (f"per {b['unit']} ({b['neighbours']})", b["budget"], b["spent"], b["remaining"])
            for b in self.budgets
        ]
        lines = [
            (
                line.time[:16].replace("T", " "),
                line.what,
                line.actor or "not stated",
                line.purpose or "not stated",
                _number(line.epsilon_per_record),
                _number(line.epsilon_per_person),
                "; ".join(line.costs),
                f"{line.vault} / {line.generation}" if line.vault else "",
            )
            for line in self.releases
        ]
        audits = [
            (a.release, a.attack, f"epsilon is at least {a.epsilon:.3g}", f"{a.confidence:.0%}")
            for a in self.audits
        ]
        columns = ("when (UTC)", "what", "by whom", "purpose", "epsilon per photo")
        more = ("epsilon per person", "all costs", "vault / release")
        parts = [
            f"<h1>Privacy statement: {html.escape(self.dataset)}</h1>",
            f"<p>Made {html.escape(self.made[:16].replace('T', ' '))} UTC, verified against entry "
            f"{self.head.sequence} of the ledger (SHA-256 {html.escape(self.head.hash)}). Fields "
            f"after NIST SP 800-226. {html.escape(_TRUST)}</p>",
            *(f"<p><strong>{html.escape(remark)}</strong></p>" for remark in self.remarks),
            _table("Budgets", ("unit of privacy", "budget", "spent", "remaining"), budgets),
            _table("Releases", (*columns, *more), lines),
            _table("Audits", ("release", "attack", "result", "confidence"), audits),
        ]
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            f"<title>Privacy statement: {html.escape(self.dataset)}</title><style>{_STYLE}</style>"
            f"<body>{''.join(parts)}</body></html>"
        )


_TRUST = (
    "The owner holds the data, the vault and the ledger; whoever receives a release is not trusted."
)
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #bbb;padding:.3em .6em;"
    "text-align:left;vertical-align:top}"
)


def statement(
    ledger: Ledger, *, audits: Iterable[AuditedRelease] = (), remarks: Iterable[str] = ()
) -> Statement:
    """The statement of a data set's releases; the ledger's chain is verified first.

    Parameters:
        ledger: the account of the data set.
        audits: what was audited.
        remarks: sentences to put at the top, such as what `reconcile` found.

    Raises:
        LedgerTampered: the chain does not hold.

    Examples:
        >>> import tempfile
        >>> from blindsight.privacy.cost import Cost
        >>> ledger = Ledger(tempfile.mkdtemp() + "/budget.db", dataset="ward-7")
        >>> entry = ledger.grant(Cost(epsilon=8, unit="record"))
        >>> cost = Cost(epsilon=4, unit="record")
        >>> entry = ledger.charge(cost, what="codes", actor="Anna", purpose="a study")
        >>> statement(ledger).releases[0].purpose
        'a study'
    """
    head = ledger.verify()
    entries = [entry for entry in ledger.entries() if entry.sequence <= head.sequence]
    charges = [entry for entry in entries if entry.kind == "charge"]
    grouped: dict[tuple[str, int], list[Entry]] = {}
    for entry in charges:
        # The entries of one release stand together under its key; without a key each is its own.
        number = 0 if entry.key else entry.sequence
        grouped.setdefault((entry.key, number), []).append(entry)
    lasts = {entry.account: entry for entry in entries}
    unstated = sum(not entry.purpose for entry in charges)
    said = list(remarks)
    if unstated:
        said.append(f"{unstated} of {len(charges)} charges state no purpose.")
    return Statement(
        dataset=ledger.dataset,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        budgets=tuple(_budget(Balance.after(entry)) for entry in lasts.values()),
        releases=tuple(map(_line, grouped.values())),
        head=head,
        audits=tuple(audits),
        remarks=tuple(said),
    )


def _budget(balance: Balance) -> dict[str, Any]:
    return {
        "unit": balance.unit,
        "neighbours": balance.neighbours,
        "composition": balance.composition,
        "budget": str(balance.budget),
        "spent": str(balance.spent),
        "remaining": "closed" if balance.closed else str(balance.remaining),
    }


def _line(entries: list[Entry]) -> ReleaseLine:
    first = entries[0]
    costs = tuple(f"{e.amount} per {e.unit} ({e.neighbours})" for e in entries)
    return ReleaseLine(
        time=first.time,
        what=first.what,
        actor=first.actor,
        purpose=first.purpose,
        release=first.release,
        vault=first.vault,
        generation=first.generation,
        costs=costs,
        epsilon_per_record=_epsilon(entries, "record"),
        epsilon_per_person=_epsilon(entries, "person"),
    )


def _epsilon(entries: list[Entry], unit: str) -> float | None:
    """The cost per unit, under "replace one" where it is stated so."""
    of_unit = [entry for entry in entries if entry.unit == unit]
    chosen = [entry for entry in of_unit if entry.neighbours == "replace one"] or of_unit
    return chosen[0].amount.epsilon if chosen else None


def _number(value: float | None) -> str:
    return "not stated" if value is None else f"{value:g}"


def _table(title: str, columns: Iterable[str], rows: list[tuple[Any, ...]]) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    if not rows:
        return f"<h2>{title}</h2><p>None.</p>"
    return f"<h2>{title}</h2><table><tr>{heads}</tr>{body}</table>"
