"""What an attacker who only asks gets: by asking again, and by telling members of the training set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.harness import Row
from blindsight.audit.tagging import largest_auc, membership_from_answers, repeated_queries

__all__ = ["attack_rows"]


def attack_rows(*, quick: bool, seed: int) -> Iterator[Row]:
    """Repeats and membership, with no protection, under paper calibration, and proven."""
    from blindsight.tagging import PrivateTagger

    rng = np.random.default_rng(seed)
    count = 200 if quick else 400
    x = rng.normal(size=(2 * count, 200)).astype(np.float32)
    y = (x @ rng.normal(size=(200, 8)) + 6 * rng.normal(size=(2 * count, 8)) > 4).astype(np.uint8)
    included = np.arange(2 * count) < count
    common = {"hidden": 128, "epochs": 30, "learning_rate": 3e-3}
    plain = PrivateTagger(10.0, calibration="paper", train_noise=False, random_state=rng, **common)
    paper = PrivateTagger(10.0, calibration="paper", random_state=rng, **common)
    proven = PrivateTagger(10.0, training_epsilon=1.0, random_state=rng)
    for tagger in (plain, paper, proven):
        tagger.fit(x[included], y[included])
    cost = proven.training_guarantee_.cost
    views = (
        ("unprotected", plain.logits, 1, None),
        ("paper.once", paper.decision_function, 1, None),
        ("paper.100_repeats", paper.decision_function, 100, None),
        ("proven.100_repeats", proven.decision_function, 100, largest_auc(cost.epsilon, cost.delta)),
    )
    for name, ask, repeats, bound in views:
        found = membership_from_answers(ask, x, y, included, repeats=repeats)
        limit = "" if bound is None else f"; the bound at record ε = {cost.epsilon:.3g} is {bound:.3f}"
        yield Row(id=f"tagging.attack.membership.{name}", value=found.value, unit="AUC", seed=seed,
                  note=found.attack + limit)  # fmt: skip
    for repeats in (1, 10, 100):
        found = repeated_queries(paper.decision_function, x[:50], paper.logits(x[:50]), repeats=repeats)
        yield Row(id=f"tagging.attack.averaging.{repeats}", value=found.value, unit="rank correlation", seed=seed,
                  note="paper calibration, claimed ε = 10; a ledger per query stops the repeats")  # fmt: skip
