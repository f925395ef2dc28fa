"""(d) Membership inference: was this record in the training set? LiRA (Carlini et al. 2022) with a
few shadow models.

Every record is in or out of every training by its own fair coin. Shadow models say how a record's
score is spread when it is in and when it is out (with one variance for all, as few shadows ask
for); the target's score is judged by the likelihood ratio. The coins of the target make the result
a one-run audit too, so it bounds epsilon from below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindsight.audit.engine.bounds import audit_scores
from blindsight.core import checks
from blindsight.core.arrays import Bools, Floats
from blindsight.core.errors import InvalidData
from blindsight.privacy import Audited

__all__ = ["Membership", "infer_membership", "roc"]

Train = Callable[[Bools, np.random.Generator], Any]
Score = Callable[[Any], Floats]


@dataclass(frozen=True)
class Membership:
    """How well members were told from others: scores and coins of the target, and what they amount
    to.
    """

    scores: Floats
    included: Bools
    audited: Audited

    @property
    def auc(self) -> float:
        """The chance that a member scores above a non-member; 0.5 is guessing."""
        fpr, tpr = roc(self.scores, self.included)
        return float(np.trapezoid(tpr, fpr))

    def tpr_at(self, fpr: float) -> float:
        """The share of members found at this share of false accusations."""
        false, true = roc(self.scores, self.included)
        return float(true[false <= checks.probability("fpr", fpr)].max())


def infer_membership(
    train: Train,
    score: Score,
    *,
    records: int,
    shadows: int = 8,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Membership:
    """Train `shadows` models and one target on random halves and judge every record of the target.

    `train(included, rng)` trains on the marked records; `score(model)` gives one number per record,
    larger for a better fit (the logit of the true class's probability is the usual choice).
    """
    count, shadows = (
        checks.whole("records", records, least=4),
        checks.whole("shadows", shadows, least=2),
    )
    rng = np.random.default_rng(seed)
    # Balanced over shadows, so that every record has both kinds.
    coins = rng.permuted(np.tile(np.arange(shadows) % 2 == 0, (count, 1)), axis=1).T
    seen = np.stack([_checked(score(train(mask, rng)), count) for mask in coins])
    included = rng.random(count) < 0.5
    target = _checked(score(train(included, rng)), count)
    ratio = _log_ratio(seen, coins, target)
    return Membership(
        scores=ratio,
        included=included,
        audited=Audited(
            epsilon=audit_scores(ratio, included, confidence=confidence, delta=delta).epsilon,
            confidence=confidence,
            attack=f"membership, {shadows} shadow models",
            trials=count,
        ),
    )


def roc(scores: Floats, included: Bools) -> tuple[Floats, Floats]:
    """False and true positive rates over all thresholds, ties taken together."""
    order = np.argsort(-scores, kind="stable")
    hits = included[order]
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    tpr = np.cumsum(hits)[last] / max(1, hits.sum())
    fpr = np.cumsum(~hits)[last] / max(1, (~hits).sum())
    return np.append(0.0, fpr), np.append(0.0, tpr)


def _log_ratio(seen: Floats, coins: Bools, target: Floats) -> Floats:
    inside = np.where(coins, seen, np.nan)
    outside = np.where(coins, np.nan, seen)
    mean_in, mean_out = np.nanmean(inside, axis=0), np.nanmean(outside, axis=0)
    variance = max(float(np.mean([np.nanvar(inside, axis=0), np.nanvar(outside, axis=0)])), 1e-12)
    return np.asarray(((target - mean_out) ** 2 - (target - mean_in) ** 2) / (2 * variance))


def _checked(scores: Any, count: int) -> Floats:
    values = np.asarray(scores, np.float64)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise InvalidData(
            f"score must give one finite number for each of {count} records, got shape "
            f"{values.shape}."
        )
    return values
