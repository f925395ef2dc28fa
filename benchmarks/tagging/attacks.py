"""What an attacker who only asks gets: by asking again, and by telling members of the training
set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.harness import Row
from blindsight.audit.methods.tagging import (
    largest_auc,
    membership_from_answers,
    repeated_queries,
)

__all__ = ["attack_rows"]


def attack_rows(*, quick: bool, seed: int) -> Iterator[Row]:
    """Repeats and membership, with no protection, under paper calibration, and proven."""
    from blindsight.tagging import P2MLGCN, DPTraining, GraphHead, PrivateTagger, Schedule, Tagger

    rng = np.random.default_rng(seed)
    count = 200 if quick else 400
    x = rng.normal(size=(2 * count, 200)).astype(np.float32)
    y = (x @ rng.normal(size=(200, 8)) + 6 * rng.normal(size=(2 * count, 8)) > 4).astype(np.uint8)
    included = np.arange(2 * count) < count
    common = {"head": GraphHead(hidden=128), "schedule": Schedule(30, learning_rate=3e-3)}
    plain = Tagger(random_state=rng, **common).fit(x[included], y[included])
    paper = P2MLGCN(10.0, random_state=rng, **common).fit(x[included], y[included])
    proven = PrivateTagger(DPTraining(epsilon=1.0), classes=8, random_state=rng).fit(
        x[included], y[included]
    )
    cost = proven.guarantee_.cost
    views = (
        ("unprotected", plain.logits, 1, None),
        ("paper.once", paper.decision_function, 1, None),
        ("paper.100_repeats", paper.decision_function, 100, None),
        ("proven.exact", proven.decision_function, 1, largest_auc(cost.epsilon, cost.delta)),
    )
    for name, ask, repeats, bound in views:
        found = membership_from_answers(ask, x, y, included, repeats=repeats)
        limit = (
            "" if bound is None else f"; the bound at record ε = {cost.epsilon:.3g} is {bound:.3f}"
        )
        yield Row(id=f"tagging.attack.membership.{name}", value=found.value, unit="AUC", seed=seed,
                  note=found.attack + limit)  # fmt: skip
    for repeats in (1, 10, 100):
        found = repeated_queries(
            paper.decision_function, x[:50], paper.logits(x[:50]), repeats=repeats
        )
        yield Row(
            id=f"tagging.attack.averaging.{repeats}",
            value=found.value,
            unit="rank correlation",
            seed=seed,
            note="paper calibration, claimed ε = 10; a ledger per query stops the repeats",
        )
