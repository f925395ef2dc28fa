"""What taggers promise: per training record for what is learned, per query for noisy answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from blindsight.privacy.accounting import price
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption, Cost, Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian
from blindsight.privacy.plan import Plan, Planned
from blindsight.tagging.answers import AnswerNoise, Exact
from blindsight.tagging.training import DPTraining, Training, TrainingFacts, Untrained

__all__ = [
    "ANSWER",
    "of_answers",
    "of_publishing",
    "of_repeated_answers",
    "of_training",
]

ANSWER = "answer"
_NEIGHBOURS: Any = "add or remove one"
_ANY_TWO = Assumption("any two images", "neighbours are any two images asked about")
_DISTINCT = Assumption(
    "distinct images",
    "a photo is a distinct image: copies share one answer, and how many distinct images there are "
    "is public; whoever is on several different images is protected for each",
)
_KEYED = Assumption(
    "keyed noise",
    "noise comes from a secret key by HMAC-SHA-256 and AES-256, which nobody can tell from random; "
    "the tagger in memory and its pickled copies hold the key and are not given away",
)
_PUBLIC = (
    Assumption(
        "public sizes",
        "the number of training records, the labels' names and all settings are public",
    ),
    Assumption("public extractor", "the feature extractor was trained on public images"),
    Assumption(
        "public images", "images given as public, and a prior, were not made from the records"
    ),
)
_VOCABULARY = Assumption(
    "private vocabulary",
    "the labels' names were read off the private records: name them yourself (classes=, "
    "--vocabulary), "
    "for one record's rare label is in the file as it is",
)
_ORDINARY = Assumption(
    "ordinary training",
    "training has no noise: a record is protected only through noise on answers, which adds up "
    "query by query",
)


def of_training(
    training: Training, facts: TrainingFacts, *, public_names: bool, entropy: EntropyName
) -> Guarantee:
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
        return Guarantee(
            unproven=(_ORDINARY,),
            mechanism="ordinary training",
            unit="record",
            neighbours=_NEIGHBOURS,
            model="central",
            entropy=entropy,
        )
    plan = training.plan(facts)
    return Guarantee(
        releases=plan,
        delta=training.delta,
        also=(_replaced(plan, training.delta),) if public_names else (),
        unproven=() if public_names else (_VOCABULARY,),
        mechanism="noisy gradient descent on the linear head, label counts and gradients in one "
        "account",
        model="central",
        assumptions=_PUBLIC,
        entropy=entropy,
    )


def _replaced(plan: Plan, delta: float) -> Cost:
    """The same for one record replaced by another: it is taken out and put in, so every sum moves
    twice as far.
    """
    twice = []
    for item in plan:
        law = item.mechanism
        assert isinstance(law, DiscreteGaussian)  # noqa: S101  (all that training releases)
        moved = dataclasses.replace(law, sensitivity=2 * law.sensitivity, neighbours="replace one")
        twice.append(dataclasses.replace(item, mechanism=moved))
    return price(tuple(twice), delta=delta)


def of_answers(
    answers: Exact | AnswerNoise, n_labels: int, *, entropy: EntropyName
) -> Guarantee | None:
    """One answer about one image; None where answers carry no noise and so promise nothing about
    the asked image.
    """
    if isinstance(answers, Exact):
        return None
    return Guarantee(
        releases=(Planned(what=ANSWER, mechanism=answers.noise(n_labels)),),
        delta=getattr(answers, "delta", 0.0),
        model="central",
        assumptions=(
            _ANY_TWO,
            Assumption(
                "repeats add up", "each further answer about the same image costs as much again"
            ),
            Assumption(
                "images apart",
                "which answers are about the same image is public: the asker names the images",
            ),
        ),
        entropy=entropy,
    )


def of_repeated_answers(answers: Guarantee, *, entropy: EntropyName) -> Guarantee:
    """One answer per distinct image with the noise of a key: the same whenever it is asked for."""
    return dataclasses.replace(
        answers,
        assumptions=(_ANY_TWO, _DISTINCT, *((_KEYED,) if entropy == "keyed" else ())),
        entropy=entropy,
    )


def of_publishing(answers: Guarantee) -> Guarantee:
    """One answer for each distinct image, with a vault's permanent noise: the same whenever it is
    given again.
    """
    return dataclasses.replace(
        answers,
        assumptions=(
            _ANY_TWO,
            _DISTINCT,
            Assumption(
                "keyed noise",
                "noise comes from a secret key by HMAC-SHA-256 and AES-256, which nobody can tell "
                "from random; the "
                "vault that holds the key is not given away",
            ),
        ),
        also=(dataclasses.replace(answers.cost, unit="record"),),
        entropy="keyed",
    )
