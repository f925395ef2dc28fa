"""Constrained clustering with private must-link and cannot-link pairs.

Experts said of 2,400 pairs of digits whether they belong together. Whoever clusters the digits may
see the digits, but not what was said about any pair. So the pairs go into a private metric, and
k-means runs in the mapped space.

Run it: python docs/examples/metric_clustering.py
"""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from blindsight import data
from blindsight.metric import DPPMetric, EuclideanMetric


def expert_pairs(
    classes: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """As many must-links (1) as cannot-links (0)."""
    pairs = rng.integers(0, len(classes), (10 * count, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    must = classes[pairs[:, 0]] == classes[pairs[:, 1]]
    kept = np.concatenate([np.flatnonzero(must == kind)[: count // 2] for kind in (True, False)])
    return pairs[kept], must[kept]


def agreement(mapped: np.ndarray, classes: np.ndarray) -> float:
    """How well ten clusters agree with the ten digits: 1 is perfect, 0 is chance."""
    found = KMeans(10, n_init=10, random_state=0).fit_predict(mapped)
    return adjusted_rand_score(classes, found)


def main() -> dict[str, float]:
    """Cluster without pairs, with private pairs at three budgets, and say how well."""
    digits = data.load("digits")
    X, classes = digits.array().reshape(len(digits), -1).astype(float), digits.labels
    pairs, must = expert_pairs(classes, 2400, np.random.default_rng(0))
    scores = {"no pairs": agreement(EuclideanMetric().fit(X).transform(X), classes)}
    for epsilon in (0.5, 1.0, 4.0):
        metric = DPPMetric(
            16, epsilon=epsilon, unit="pair", loss="contrastive", preprocessor=X, random_state=0
        ).fit(pairs, must)
        scores[f"epsilon {epsilon:g} per pair"] = agreement(metric.transform(X), classes)
    for name, score in scores.items():
        print(f"{name:>22}: adjusted Rand index {score:.3f}")
    print(metric.guarantee_.card())
    return scores


if __name__ == "__main__":
    main()
