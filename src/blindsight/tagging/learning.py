"""What a tagger learns from its records: released sums, and what is computed from them.

`learn` gets a function `total` that sums records' rows: the door's `total` if training is private,
the exact sum otherwise. Everything else is post-processing of these sums and of public numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Bytes, Floats, Floats32
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.door import Outer
from blindsight.tagging.answer_codebook import (
    FEWER_SCENES,
    SCENES,
    AnswerCodebook,
    AnswerSpread,
    PublicAnswers,
    choose_codebook,
    main_directions,
    quota_thresholds,
    shifted_to,
    spread_rows,
)
from blindsight.tagging.guarantee import AnswerNoise, CodebookAnswers, Exact
from blindsight.tagging.labels import log_odds, sigmoid
from blindsight.tagging.prior import CONSTANT, Inputs, Prior, feature_rows, unit_rows
from blindsight.tagging.training import (
    CENTRE,
    COUNTS,
    GRADIENT,
    SPREAD,
    DPTraining,
    HeldOut,
    LinearHead,
    TrainingFacts,
    Untrained,
    descend,
    noise_variance,
    trusted_share,
)

if TYPE_CHECKING:
    from blindsight.tagging.estimator import PrivateTagger

__all__ = [
    "facts_of",
    "inputs_of",
    "label_rates",
    "learn",
    "sum_exactly",
    "words_from_scenes",
]


def learn(
    tagger: PrivateTagger,
    rows: Floats32,
    labels: Bytes,
    total: Callable[[str, Any], Floats],
    held: HeldOut | None,
    progress: Any,
) -> dict[str, Any]:
    """Return what the door releases and what is computed from it; `total` sums records' rows."""
    training, facts = tagger.training, facts_of(tagger.public_)
    assert not isinstance(training, Untrained)  # noqa: S101  (checked by fit)
    released: dict[str, Any] = {"counts": total(COUNTS, labels.astype(np.float64))}
    if facts.centred:
        released["centre"] = total(CENTRE, unit_rows(rows)) / facts.n_records
    rates = label_rates(released["counts"], facts.n_records)
    inputs = inputs_of(tagger.public_, released)

    def head_input(features: Any) -> tuple[Floats, Floats]:
        """Return the head's input, and the score to which its output is added."""
        start = np.broadcast_to(log_odds(rates), (len(features), labels.shape[1]))
        return inputs(
            features
        ), start if tagger.prior is None else start + training.prior_weight * tagger.prior(features)

    x, offset = head_input(rows)
    look = (
        None
        if held is None
        else held.looking(*head_input(held.rows), tagger.owner_only_["learning curve"])
    )
    if isinstance(training, DPTraining):
        head, steps = (
            LinearHead(rates, training.step_size(facts), training.power),
            training.steps_for(facts),
        )
    else:
        head, steps = LinearHead(rates, training.step_size, 0.0, training.ridge), training.steps
    released["weights"] = descend(
        head,
        x,
        labels,
        offset,
        steps=steps,
        n_records=facts.n_records,
        total=lambda residuals, features: total(GRADIENT, Outer(residuals, features)),
        look=look,
        progress=progress,
    )
    if isinstance(training, DPTraining) and tagger.prior is not None:
        released |= _shrunk_weights(tagger, released["weights"], facts, head.step)
    if facts.spread:
        spread = _spread(
            tagger, facts, rates, offset + x @ released["weights"].T, released["weights"], total
        )
        released |= _codebook(tagger.answers, spread).to_fields()
    elif isinstance(tagger.answers, CodebookAnswers) and tagger.answers.words is None:
        answers = _public_answers(tagger, released, rates, head_input, SCENES)
        released |= _codebook(tagger.answers, answers).to_fields()
    elif isinstance(tagger.answers, Exact) and tagger.answers.threshold is None:
        simulated = _public_answers(tagger, released, rates, head_input, FEWER_SCENES)
        released["quotas"] = quota_thresholds(simulated.logits, rates)
    return released


def _shrunk_weights(
    tagger: PrivateTagger, weights: Floats, facts: TrainingFacts, step: float
) -> dict[str, Any]:
    """Shrink the weights by the share that noise explains; with weights of 0 the prior decides."""
    assert isinstance(tagger.training, DPTraining)  # noqa: S101  (only it has noise)
    gradient = next(item for item in tagger.training.plan(facts) if item.what == GRADIENT)
    variance = noise_variance(
        steps=gradient.count,
        step=step,
        sigma=gradient.mechanism.sigma,  # type: ignore[attr-defined]
        n_records=facts.n_records,
    )
    share = trusted_share(weights, variance, facts.n_records)
    return {"weights": share * weights, "trusted": share}


def _public_answers(
    tagger: PrivateTagger,
    released: dict[str, Any],
    rates: Floats,
    head_input: Callable[[Any], tuple[Floats, Floats]],
    count: int,
) -> PublicAnswers:
    """Return the model's answers for public images and simulated scenes.

    The answers are shifted to the released rates. If there are neither public images nor scenes,
    the answers are for inputs of random directions.
    """
    rng = np.random.default_rng(0)  # scenes are computed from released numbers only
    centre = released["centre"] if "centre" in released else tagger.public_["centre"]
    scenes = None
    if tagger.prior is not None:
        scenes = tagger.prior.scenes(rates, centre, count, rng=rng)
    public_features = [scenes, None if tagger.public is None else feature_rows(tagger.public)]
    head_inputs = [head_input(rows) for rows in public_features if rows is not None]
    if not head_inputs:
        width = int(tagger.public_["width"])
        rows = unit_rows(rng.standard_normal((count, width - 1)))
        inputs = np.hstack([rows, np.full((count, 1), CONSTANT)])
        start = np.zeros((count, len(rates)))
        if tagger.prior is not None:
            start = tagger.training.prior_weight * rng.standard_normal(start.shape)
        head_inputs = [(inputs, start)]
    weights = released["weights"]
    return PublicAnswers(
        np.vstack([shifted_to(start + at @ weights.T, rates) for at, start in head_inputs])
    )


def _spread(
    tagger: PrivateTagger,
    facts: TrainingFacts,
    rates: Floats,
    logits: Floats,
    weights: Floats,
    total: Callable[[str, Any], Floats],
) -> AnswerSpread:
    """Release the second moments of the model's answers for the records."""
    maps = weights[:, :-1]
    if tagger.prior is not None:
        # Scores of the prior have a standard deviation of about 1, so its maps have the same weight
        # as those of inputs of norm 1.
        prior = tagger.prior.weights / np.linalg.norm(
            tagger.prior.weights, axis=1, keepdims=True
        ).clip(1e-12)
        maps = np.hstack([maps, tagger.training.prior_weight * prior])
    directions = main_directions(maps)[:, : facts.directions]
    projected = spread_rows(logits, rates, directions)
    moments = total(SPREAD, Outer(projected, projected))
    sigma = 0.0
    if isinstance(tagger.training, DPTraining):
        sigma = next(
            item.mechanism.sigma  # type: ignore[attr-defined]
            for item in tagger.training.plan(facts)
            if item.what == SPREAD
        )
    return AnswerSpread.from_moments(
        moments, directions, rates, n_records=facts.n_records, sigma=sigma
    )


def words_from_scenes(
    tagger: PrivateTagger, prior: Prior | None, answers: CodebookAnswers
) -> AnswerCodebook:
    """Return the codebook of a fitted model's answers, from scenes that its prior simulates.

    All inputs are released or public, so a codebook for another epsilon costs nothing.

    Raises:
        InvalidParameter: the prior cannot simulate scenes, or the model was not trained.
    """
    scenes = None
    rates = sigmoid(tagger.offset_)
    if prior is not None and tagger.inputs_ is not None:
        rng = np.random.default_rng(0)
        scenes = prior.scenes(rates, tagger.inputs_.centre, SCENES, rng=rng)
    if scenes is None:
        raise InvalidParameter(
            "CodebookAnswers of a trained model need words=, or the prior of an encoder with a "
            "text tower or classes."
        )
    return _codebook(answers, PublicAnswers(shifted_to(tagger.logits(scenes), rates)))


def _codebook(answers: Exact | AnswerNoise, spread: AnswerSpread | PublicAnswers) -> AnswerCodebook:
    """Choose the codebook of answers, from released and public numbers."""
    assert isinstance(answers, CodebookAnswers)  # noqa: S101  (only they have words)
    # The answers are simulated from released numbers, so their randomness protects nobody; a fixed
    # seed makes equal files.
    public_rng = np.random.default_rng(0)
    return choose_codebook(spread, epsilon=answers.epsilon, size=answers.k, rng=public_rng)


def facts_of(public: dict[str, Any]) -> TrainingFacts:
    """Read the public facts of training from a tagger's `public_`; refuse impossible sizes."""
    sizes = {
        name: checks.whole(name, public[name], least=0)
        for name in ("n_records", "n_features", "width")
    }
    if max(sizes.values()) > 2**48:
        raise InvalidData("its sizes are those of no data set")
    return TrainingFacts(
        **sizes,
        n_labels=len(public["classes"]),
        centred=bool(public["centred"]),
        spread=bool(public["spread"]),
        informed="prior_weights" in public,
        directed="directions" in public,
    )


def inputs_of(public: dict[str, Any], released: dict[str, Any]) -> Inputs:
    """Return the inputs' centre, public or released, and their public directions."""
    centre = public["centre"] if "centre" in public else released["centre"]
    return Inputs(centre, public.get("directions"))


def label_rates(counts: ArrayLike, n_records: int) -> Floats:
    """Return label rates from noisy counts, bounded away from 0 and 1."""
    least = max(2.0, 0.001 * n_records)
    return np.asarray(
        np.clip(counts, least, max(least, 0.9 * n_records)) / max(n_records, 2 * least)
    )


def sum_exactly(what: str, rows: ArrayLike) -> Floats:
    """Return the exact sum, for training without privacy."""
    if isinstance(rows, Outer):
        return np.asarray(rows.weighted_sum(np.ones(len(rows))))
    return np.asarray(np.asarray(rows, np.float64).sum(axis=0))
