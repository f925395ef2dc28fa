"""The report on one's own file: the attack's curve beside claim and proof, what privacy costs here, what comes back.

The private data are not in a file, so utility and recovery are measured on data inside installed packages, by the same
method with the file's own settings.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

from blindsight.audit.advice import changes
from blindsight.audit.figures import Figure, attack_roc, three_numbers
from blindsight.audit.report import Report
from blindsight.audit.target import Audit
from blindsight.privacy import Disclosure, Guarantee

__all__ = ["report_of"]

_HOMES = ("hashing", "metric", "tagging", "sketching")


def report_of(found: Audit, *, seed: int = 0) -> Report:
    """Card, three numbers, curves, gallery and what to change, of what `audit` or `audit_file` found."""
    verdicts = [] if found.verdict is None else [found.verdict]
    pictures = []
    if found.attacks:
        pictures += [Figure("The three numbers", _NUMBERS, three_numbers(verdicts)), _roc(found)]
    if found.room in _HOMES and found.subject is not None:
        home = importlib.import_module(f"{__name__}.{found.room}")
        pictures += home.figures(found, seed=seed)
    stated = found.card.mechanism if isinstance(found.card, Guarantee) else found.card.method
    return Report(
        title=f"Audit of {found.name}",
        verdicts=verdicts,
        cards=[(found.name, found.card), *found.others],
        figures=pictures,
        notes=[stated[:1].upper() + stated[1:] + ".", *found.notes],
        changes=changes(found),
        summary=_summary(found),
    )


_NUMBERS = (
    "Audited is a lower bound whose ceiling is set by the number of trials: a gap to the proven number is not a gap in "
    "the proof. A red diamond to the right of what is promised is a refutation."
)


def _roc(found: Audit) -> Figure:
    attack = found.attacks[0]
    sketch = isinstance(found.card, Disclosure)
    proven = math.inf if found.verdict is None else found.verdict.proven
    claimed = None if found.verdict is None else found.verdict.claimed
    picture, rows = attack_roc(
        attack.told,
        proven=proven * attack.steps,
        claimed=None if claimed is None else claimed * attack.steps,
        delta=attack.delta,
        proof="computed" if sketch else "proven",
    )
    apart = "" if attack.steps == 1 else f" The two inputs are {attack.steps} neighbours apart, and so are the lines."
    unproven = " No epsilon is proven, so there is no line for it." if math.isinf(proven) else ""
    caption = (
        f"{attack.what[:1].upper()}{attack.what[1:]}, {attack.audited.trials:,} runs. How often the attacker is "
        "right when it accuses, by how often it is wrong, on log-log axes. A curve above a line contradicts it; "
        f"the diamond is the event that the audited number rests on, at {attack.audited.confidence:.0%} "
        f"confidence.{unproven}{apart}"
    )
    return Figure("Claim, proof and attack", caption, picture, rows)


def _summary(found: Audit) -> str:
    card: Any = found.card
    if isinstance(card, Disclosure):
        return f"Nothing here states an epsilon. {card.verdict}"
    verdict = found.verdict
    if verdict is None or verdict.audited is None:
        return "Nothing was attacked: see the notes. Not refuted is not a proof."
    promised = (
        f"ε = {verdict.claimed:.4g} claimed" if verdict.claimed is not None else f"ε = {verdict.proven:.4g} proven"
    )
    if verdict.claimed is None and math.isinf(verdict.proven):
        promised = "no epsilon proven"
    tail = "" if verdict.refuted else " (which is not a proof)"
    return f"{promised} per {verdict.unit}, ε ≥ {verdict.audited.epsilon:.3g} measured: {verdict.word}{tail}."
