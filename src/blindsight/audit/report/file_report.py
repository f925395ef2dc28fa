"""The report on one file: the attack's ROC curve, what the file itself reveals, and advice.

There is advice also where nothing was refuted but a parameter is unwise. A file does not contain
the private data; `audit.release` measures what a release reveals about the owner's photos.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterator
from typing import Any

from blindsight.audit.report.page import Figure, Report, attack_roc, three_numbers
from blindsight.audit.target import Audit
from blindsight.privacy import Cost, Disclosure, Guarantee

__all__ = ["changes", "report_of"]

#: Above this epsilon an attacker's odds may grow more than twenty-thousandfold.
LARGE = 10.0


def changes(audit: Audit) -> list[str]:
    """Return sentences that each name one thing to change; empty where nothing was found."""
    if isinstance(audit.card, Disclosure):
        return list(_sketches(audit))
    sentences = [*_promise(audit.card, audit), *_release(audit.card, audit)]
    for name, promise in audit.others:
        sentences += [f"{name.lower()}: {sentence}" for sentence in _training(promise, audit)]
    return list(dict.fromkeys(sentences))


def _promise(card: Guarantee, audit: Audit) -> Iterator[str]:
    if audit.verdict is not None and audit.verdict.refuted and card.calibration == "proven":
        yield (
            "the attack contradicts what is stated: do not release; the noise is not what the file "
            "says it is"
        )
    if card.calibration == "paper":
        yield f"use calibration='proven' with the epsilon you can afford: {_claim(card)}"
    elif math.isinf(card.epsilon):
        yield _unproven(card, audit)
    yield from _unit(card, audit)
    if card.delta > 1e-3:
        yield (
            f"lower delta ({card.delta:.3g}): it is the share of people who may lose all protection"
        )


def _claim(card: Guarantee) -> str:
    claimed = (
        f"the paper's ε = {card.claimed:.3g}" if card.claimed is not None else "the paper's promise"
    )
    proof = (
        "nothing is proven"
        if math.isinf(card.epsilon)
        else f"only ε = {card.epsilon:.4g} is proven"
    )
    if card.refuted and card.audited is not None:
        return (
            f"{claimed} does not hold ({proof}, and the attack measured at least "
            f"{card.audited.epsilon:.3g})"
        )
    return f"{claimed} has no proof ({proof})"


def _unproven(card: Guarantee, audit: Audit) -> str:
    if audit.room == "federated":
        return (
            "give epsilon=...: without noise the exact sums are revealed, and no epsilon bounds "
            "what they tell"
        )
    return (
        "learn the hash function from public images (learned_from='public'; transform, not "
        "fit_transform), or take a "
        "base that looks at none (LSH(center=False)): no epsilon per record is proven now"
    )


def _unit(card: Guarantee, audit: Audit) -> Iterator[str]:
    record = card.cost if card.unit == "record" else _per(card, "record")
    if card.unit == "bit":
        per_record = (
            "no proven epsilon"
            if record is None or math.isinf(record.epsilon)
            else f"ε = {record.epsilon:.4g}"
        )
        yield (
            f"set unit='record': a bit is not a person, and the same release is {per_record} for a "
            "whole record"
        )
    elif card.unit == "pixel":
        per_record = "" if record is None else f" (ε = {record.epsilon:.4g} for a whole image)"
        yield (
            "release one well-asked question an image, CodebookSketcher: a pixel is not a "
            f"picture{per_record}"
        )
    elif card.unit in ("pair", "kappa pairs") and (record is None or record.epsilon > card.epsilon):
        per_record = "" if record is None else f" (ε = {record.epsilon:.4g} per record)"
        yield (
            f"set unit='record' where people are in several pairs: {card.unit} protects a label, "
            f"not a person{per_record}"
        )
    if card.unit not in ("bit", "pixel") and LARGE < card.epsilon < math.inf:
        odds = f"{card.epsilon:.4g} per {card.unit} {_odds(card.epsilon)}"
        yield f"lower epsilon below {LARGE:g}: {odds}{_cheaper(audit)}"


def _odds(epsilon: float) -> str:
    factor = math.exp(min(epsilon, 700))
    size = f"{factor:,.0f}" if factor < 1e6 else f"10^{epsilon / math.log(10):.0f}"
    return f"lets an attacker's odds grow {size} times"


def _cheaper(audit: Audit) -> str:
    if type(audit.subject).__name__ in ("PHashing", "BitFlip"):
        return (
            "; fewer bits, or the cell of a codebook (CodebookHasher), keep more at the same budget"
        )
    return ""


def _release(card: Guarantee, audit: Audit) -> Iterator[str]:
    if card.simulation:
        yield (
            "make it again with random_state=None: a fixed seed is a simulation, and who knows it "
            "removes the noise"
        )
    kind = type(audit.subject).__name__
    if card.sampler == "float" and kind in (
        "PrivUnitHasher",
        "Laplace",
        "Gaussian",
        "Staircase",
        "PrivUnit",
    ):
        yield (
            "round what you publish to a few digits: the low bits of floating-point noise can "
            "betray what it hides"
        )
    if kind in ("PrivateTagger", "P2MLGCN", "RP2MLGCN") and card.unit == "query":
        price = "adds to it" if math.isinf(card.epsilon) else f"costs ε = {card.epsilon:.3g} more"
        yield (
            "charge every answer to a ledger: the file states no limit, each answer about the "
            f"same image {price}, "
            "and repeats average the noise away"
        )


def _training(card: Guarantee, audit: Audit) -> Iterator[str]:
    if math.isinf(card.epsilon):
        yield (
            "train with PrivateTagger(DPTraining(epsilon=2)): nothing bounds what the model "
            "remembers"
        )
    elif card.epsilon > LARGE:
        yield (
            f"lower the epsilon of DPTraining: {card.epsilon:.3g} per record {_odds(card.epsilon)}"
        )
    if card.simulation:
        yield "train again with random_state=None: a fixed seed is a simulation"


def _sketches(audit: Audit) -> Iterator[str]:
    card: Any = audit.card
    verdict = card.verdict.rstrip(".")
    yield f"do not send these sketches to someone who must not see the images. {verdict}"
    yield (
        "send what has a proof instead: CodebookSketcher (an epsilon per image), or FlippedBits "
        "(per pixel)"
    )


def _per(card: Guarantee, unit: str) -> Cost | None:
    return next((cost for cost in card.also if cost.unit == unit), None)


_HOMES = ("metric", "tagging", "sketching")


def report_of(audit: Audit, *, seed: int = 0) -> Report:
    """Return the report on a result of `audit` or `audit_file`."""
    verdicts = [] if audit.verdict is None else [audit.verdict]
    pictures = []
    # The verdict needs no pictures: without the extra `plots` the report has none.
    if audit.attacks and importlib.util.find_spec("matplotlib") is not None:
        pictures += [Figure("The three numbers", _NUMBERS, three_numbers(verdicts)), _roc(audit)]
    if audit.room in _HOMES and audit.subject is not None:
        home = importlib.import_module(f"blindsight.audit.methods.{audit.room}")
        pictures += home.figures(audit, seed=seed)
    stated = audit.card.mechanism if isinstance(audit.card, Guarantee) else audit.card.method
    return Report(
        title=f"Audit of {audit.name}",
        verdicts=verdicts,
        cards=[(audit.name, audit.card), *audit.others],
        figures=pictures,
        notes=[stated[:1].upper() + stated[1:] + ".", *audit.notes],
        changes=changes(audit),
        summary=_summary(audit),
    )


_NUMBERS = (
    "Audited is a lower bound whose ceiling is set by the number of trials: a gap to the proven "
    "number is not a gap in "
    "the proof. A red diamond to the right of what is promised is a refutation."
)


def _roc(audit: Audit) -> Figure:
    attack = audit.attacks[0]
    sketch = isinstance(audit.card, Disclosure)
    proven = math.inf if audit.verdict is None else audit.verdict.proven
    claimed = None if audit.verdict is None else audit.verdict.claimed
    picture, rows = attack_roc(
        attack.result,
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


def _summary(audit: Audit) -> str:
    card: Any = audit.card
    if isinstance(card, Disclosure):
        return f"Nothing here states an epsilon. {card.verdict}"
    verdict = audit.verdict
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
