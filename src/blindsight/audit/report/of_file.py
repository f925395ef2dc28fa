"""The report on one's own file: the attack's curve beside claim and proof, and what the file itself
shows.

The private data are not in a file. What it tells about one's own photos is measured where they are:
`audit.release`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

from blindsight.audit.report.advice import changes
from blindsight.audit.report.figures import Figure, attack_roc, three_numbers
from blindsight.audit.report.page import Report
from blindsight.audit.target import Audit
from blindsight.privacy import Disclosure, Guarantee

__all__ = ["report_of"]

_HOMES = ("metric", "tagging", "sketching")


def report_of(found: Audit, *, seed: int = 0) -> Report:
    """Card, three numbers, the attack's curve, pictures and what to change, of what `audit` or
    `audit_file` found.
    """
    verdicts = [] if found.verdict is None else [found.verdict]
    pictures = []
    # The verdict needs no pictures: without the extra `plots` the report has none.
    if found.attacks and importlib.util.find_spec("matplotlib") is not None:
        pictures += [Figure("The three numbers", _NUMBERS, three_numbers(verdicts)), _roc(found)]
    if found.room in _HOMES and found.subject is not None:
        home = importlib.import_module(f"blindsight.audit.methods.{found.room}")
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
    "Audited is a lower bound whose ceiling is set by the number of trials: a gap to the proven "
    "number is not a gap in "
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
    apart = (
        ""
        if attack.steps == 1
        else f" The two inputs are {attack.steps} neighbours apart, and so are the lines."
    )
    unproven = " No epsilon is proven, so there is no line for it." if math.isinf(proven) else ""
    caption = (
        f"{attack.what[:1].upper()}{attack.what[1:]}, {attack.audited.trials:,} runs. How often "
        "the attacker is "
        "right when it accuses, by how often it is wrong, on log-log axes. A curve above a line "
        "contradicts it; "
        "the diamond is the event that the audited number rests on, at "
        f"{attack.audited.confidence:.0%} "
        f"confidence.{unproven}{apart}"
    )
    return Figure("Claim, proof and attack", caption, picture, rows)


def _summary(found: Audit) -> str:
    card: Any = found.card
    if isinstance(card, Disclosure):
        return f"Nothing here states an epsilon. {card.verdict}"
    verdict = found.verdict
    if verdict is None or verdict.audited is None:
        return "Nothing was attacked: see the notes."
    if verdict.claimed is not None:
        promised = f"ε = {verdict.claimed:.4g} is claimed"
    else:
        promised = (
            "No epsilon is proven"
            if math.isinf(verdict.proven)
            else f"ε = {verdict.proven:.4g} is proven"
        )
    word = "which refutes it" if verdict.refuted else "which does not refute it"
    return (
        f"{promised} per {verdict.unit}. The attack measured at least ε = "
        f"{verdict.audited.epsilon:.3g}, {word}."
    )
