"""A tagger: what averaging repeated answers reveals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.methods.tagging.attacks import repeated_queries
from blindsight.audit.report.figures import Figure, curves
from blindsight.audit.target import Audit
from blindsight.tagging import Exact, PrivateTagger, TopTags

__all__ = ["figures"]


def figures(found: Audit, *, seed: int = 0) -> list[Figure]:
    """The averaged answers; none where answers carry no noise."""
    tagger: Any = found.subject
    if isinstance(tagger, PrivateTagger) and isinstance(tagger.answer_mechanism_, Exact):
        return []
    rng = np.random.default_rng(seed)
    # Outputs of that many images, anywhere in the range: what is asked about does not matter to the
    # noise.
    n_labels = int(
        tagger.n_labels_ if isinstance(tagger, PrivateTagger) else tagger.release_.n_labels
    )
    logits = rng.normal(0, 2, (40, n_labels))
    points = [
        (
            float(repeats),
            repeated_queries(
                lambda rows: _answered(tagger, rows, rng), logits, logits, repeats=repeats
            ),
        )
        for repeats in (1, 3, 10, 30, 100)
    ]
    line = [(repeats, found.value) for repeats, found in points]
    return [
        Figure(
            "What asking again reveals",
            "A tagger gives no pictures back; asking again is how its noise is removed. Rank "
            "correlation of averaged "
            "answers with the outputs behind them, by how often the same question was asked: 1 is "
            "everything. Every "
            "answer costs its epsilon again, which is why a ledger must count them.",
            curves(
                {"averaged answers, as your file releases": line},
                xlabel="times asked",
                ylabel="rank correlation",
            ),
            [{"times asked": int(n), "rank correlation": round(value, 4)} for n, value in line],
        )
    ]


def _answered(tagger: Any, logits: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float64]:
    """A simulation that leaves nothing: the release's own noise on logits."""
    if not isinstance(tagger, PrivateTagger):
        return np.asarray(tagger.release_.answer(logits, rng=rng).scores)
    way: Any = tagger.answer_mechanism_
    released = way.noise(tagger.n_labels_).release(way.value(logits), rng=rng)
    read = way.read(released, tagger.n_labels_) if isinstance(way, TopTags) else way.read(released)
    return np.asarray(read.scores)
