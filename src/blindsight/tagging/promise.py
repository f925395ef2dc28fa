"""What taggers promise: per training record for what is learned, per query for noisy answers."""

from __future__ import annotations

import math
from typing import Any

from blindsight.privacy.guarantee import Assumption, Guarantee
from blindsight.privacy.plan import Planned
from blindsight.tagging.answers import AnswerNoise, Exact, PaperLaplace
from blindsight.tagging.regimes import DPTraining, Facts, Training, Untrained

__all__ = ["ANSWER", "of_answers", "of_ordinary_training", "of_printed_answers", "of_training"]

ANSWER = "answer"
_NEIGHBOURS: Any = "add or remove one"
_PUBLIC = (
    Assumption("public sizes", "the number of training records, the labels' names and all settings are public"),
    Assumption("public extractor", "the feature extractor was trained on public images"),
    Assumption("public images", "images given as public, and a prior, were not made from the records"),
)
_VOCABULARY = Assumption(
    "private vocabulary",
    "the labels' names were read off the private records: name them yourself (classes=, --vocabulary), "
    "for one record's rare label is in the file as it is",
)
_ORDINARY = Assumption(
    "ordinary training",
    "training has no noise: a record is protected only through noise on answers, which adds up query by query",
)


def of_training(training: Training, facts: Facts, *, public_names: bool, entropy: Any) -> Guarantee:
    """The weights and everything computed from them, per training record, one added or removed."""
    if isinstance(training, Untrained):
        return Guarantee(
            mechanism="public knowledge only: no record is looked at",
            unit="record",
            neighbours=_NEIGHBOURS,
            epsilon=0.0,
            model="central",
            assumptions=_PUBLIC[1:],
            sampler="exact",  # there is no noise whose low bits could betray anything
            entropy=entropy,
        )
    if not isinstance(training, DPTraining):
        return of_ordinary_training(entropy=entropy)
    return Guarantee(
        releases=training.plan(facts),
        delta=training.delta,
        unproven=() if public_names else (_VOCABULARY,),
        mechanism="noisy gradient descent on the linear head, label counts and gradients in one account",
        model="central",
        assumptions=_PUBLIC,
        entropy=entropy,
    )


def of_ordinary_training(*, entropy: Any, claimed: float | None = None, calibration: Any = "proven") -> Guarantee:
    """No promise per training record."""
    return Guarantee(
        unproven=(_ORDINARY,),
        mechanism="ordinary training",
        unit="record",
        neighbours=_NEIGHBOURS,
        model="central",
        claimed=claimed,
        calibration=calibration,
        entropy=entropy,
    )


def of_answers(answers: Exact | AnswerNoise, n_labels: int, *, entropy: Any) -> Guarantee | None:
    """One answer about one image; None where answers carry no noise and so promise nothing about the asked image."""
    if isinstance(answers, Exact):
        return None
    return Guarantee(
        releases=(Planned(what=ANSWER, mechanism=answers.noise(n_labels)),),
        delta=getattr(answers, "delta", 0.0),
        model="central",
        assumptions=(
            Assumption("any two images", "neighbours are any two images asked about"),
            Assumption("repeats add up", "each further answer about the same image costs as much again"),
        ),
        entropy=entropy,
    )


def of_printed_answers(release: PaperLaplace, *, entropy: Any) -> Guarantee:
    """The paper's claim per answer, and what is proven of it."""
    unbounded = Assumption("unbounded logits", "logits have no bound, so no noise hides what one image does to them")
    bounded = release.clip is not None
    return Guarantee(
        releases=(Planned(what=ANSWER, mechanism=release.noise),) if bounded else (),
        unproven=() if bounded else (unbounded,),
        mechanism=f"Lap({release.scale:.3g}) on {'clipped' if bounded else 'raw'} logits, as printed",
        unit="query",
        neighbours="replace one",
        epsilon=release.cost.epsilon if bounded else math.inf,
        model="central",
        claimed=release.claimed,
        calibration="paper",
        sampler="float",
        entropy=entropy,
    )
