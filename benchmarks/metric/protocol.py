"""How metrics are measured: pairs as the paper makes them, and the scores that tell methods apart.

The paper's protocol (Section VII-B): as many similar as dissimilar pairs at |E|/|V| = 2, the
majority class downsampled for training, kNN (k = 5) on the records in pairs, tested on all others.
On Adult and Bank kNN accuracy does not tell learning from chance (a random map does as well), so
balanced accuracy, held-out pair AUC and the objective stand beside it, with an untrained map as a
control.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.metric.baselines import ContrastiveMetric, InputPerturbation
from blindsight.metric import (
    Contrastive,
    DPPMetric,
    EuclideanMetric,
    RowNoise,
    Steps,
    mean_dissimilar_distance,
)
from blindsight.metric.files import nearest_neighbours
from blindsight.metric.paper import DPPDML, MendedDML

__all__ = ["METHODS", "Measured", "Split", "balanced_pairs", "make_split", "measure", "method"]

Floats = NDArray[np.float64]
ROWS, EPOCHS, BATCH, LIPSCHITZ = 16, 3, 50, 0.5
METHODS = {
    "nonprivate": "non-private (Algorithm 1 without noise)",
    "untrained": "untrained map (control)",
    "dpp": "DPP, paper calibration",
    "dpp_s": "DPP-S, paper calibration",
    "node": "node privacy, paper calibration",
    "input": "input perturbation",
    "mended": "Algorithm 1, proven per pair",
    "ours": "ours, proven per pair",
    "ours_full": "ours with all columns, proven per pair",
    "ours_descent": "ours by descent (contrastive), all columns, proven per pair",
    "ours_scaled": "ours with column sizes found privately, all columns, proven per pair",
    "ours_kappa": "ours, proven per kappa pairs",
}


@dataclass(frozen=True)
class Split:
    """Training pairs of a table, held-out pairs and a test sample."""

    X: Floats
    y: NDArray[np.int64]
    pairs: NDArray[np.int64]
    similar: NDArray[np.bool_]
    gallery: NDArray[np.int64]
    test: NDArray[np.int64]
    test_pairs: NDArray[np.int64]
    test_similar: NDArray[np.bool_]


@dataclass(frozen=True)
class Measured:
    """One method on one split."""

    accuracy: float
    balanced: float
    auc: float
    objective: float
    relative: float


def make_split(
    X: Floats,
    y: NDArray[np.int64],
    *,
    nodes: int,
    rng: np.random.Generator,
    tested: int = 3000,
    density: int = 2,
) -> Split:
    """`nodes` records, as many of each class, in density x nodes pairs; a test sample and fair
    pairs of the rest.
    """
    classes = np.unique(y)
    each = min(nodes // len(classes), *(int((y == c).sum()) - 50 for c in classes))
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(y == c), each, replace=False) for c in classes]
    )
    rest = rng.permutation(np.setdiff1d(np.arange(len(y)), chosen))[:tested]
    pairs, similar = balanced_pairs(chosen, y, density * len(chosen), rng)
    left = np.setdiff1d(np.arange(len(y)), chosen)
    few = min(int((y[left] == c).sum()) for c in classes)
    fair = np.concatenate(
        [rng.choice(left[y[left] == c], min(few, tested), replace=False) for c in classes]
    )
    others, alike = balanced_pairs(fair, y, min(4000, 2 * len(fair)), rng)
    return Split(X, y, pairs, similar, np.unique(pairs), rest, others, alike)


def balanced_pairs(
    records: NDArray[np.int64], y: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Distinct pairs, half similar and half dissimilar."""
    drawn = np.sort(rng.choice(records, (12 * count, 2)), axis=1)
    drawn = drawn[drawn[:, 0] != drawn[:, 1]]
    drawn = drawn[
        np.sort(np.unique(drawn[:, 0] * (len(y) + 1) + drawn[:, 1], return_index=True)[1])
    ]
    similar = y[drawn[:, 0]] == y[drawn[:, 1]]
    kept = np.concatenate([np.flatnonzero(similar == kind)[: count // 2] for kind in (True, False)])
    kept = rng.permutation(kept)
    return drawn[kept], similar[kept]


def method(name: str, epsilon: float, split: Split, seed: int, **changes: Any) -> Any:
    """A fitted metric by its short name."""
    common: dict[str, Any] = {"n_components": min(ROWS, split.X.shape[1]), "random_state": seed}
    if name == "untrained":
        return EuclideanMetric(normalize="l1", **common).fit(split.X)
    common["preprocessor"] = split.X
    letter: dict[str, Any] = {"steps": Steps(epochs=EPOCHS, batch_size=BATCH, rule="root")}
    made: Any
    if name == "nonprivate":
        letter |= {"normalize": "l1", "margin": "mean"}
        made = ContrastiveMetric(**{**common, **letter, **changes})
    elif name == "input":
        made = InputPerturbation(epsilon=epsilon, **{**common, **letter, **changes})
    elif name in ("dpp", "dpp_s", "node"):
        letter |= {"clip": LIPSCHITZ, "epsilon": epsilon}
        extra = {
            "noise": RowNoise(reduced=name == "dpp_s"),
            "kappa": "node" if name == "node" else "bound",
        }
        made = DPPDML(**{**common, **letter, **extra, **changes})
    elif name == "mended":
        made = MendedDML(epsilon=epsilon, **{**common, **letter, **changes})
    else:
        made = DPPMetric(epsilon=epsilon, **{"unit": "pair", **common, **_OURS[name], **changes})
    return made.fit(split.pairs, split.similar)


_OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours_full": {"n_components": None},
    "ours_descent": {"n_components": None, "loss": "contrastive"},
    "ours_scaled": {"n_components": None, "scale": "private"},
    "ours_kappa": {"unit": "kappa pairs"},
}


def measure(metric: Any, split: Split) -> Measured:
    """All four scores of a fitted metric."""
    mapped = metric.transform(split.X[np.r_[split.gallery, split.test]])
    near = len(split.gallery)
    scores = nearest_neighbours(
        mapped[:near], split.y[split.gallery], mapped[near:], split.y[split.test]
    )
    auc = metric.score(split.X[split.test_pairs], split.test_similar)
    return Measured(scores.accuracy, scores.balanced, auc, *objectives(metric, split))


def objectives(metric: Any, split: Split) -> tuple[float, float]:
    """Equation 7 over the training pairs: with the paper's margin, and free of scale.

    The first compares maps on l1-normalised records, as the paper's are. For the second the margin
    is the mean mapped distance of dissimilar pairs, and 1 is what a map that sends everything to
    one point has.
    """
    rows = metric._prepared(split.X)
    differences = rows[split.pairs[:, 0]] - rows[split.pairs[:, 1]]
    far = ~split.similar
    margin = mean_dissimilar_distance(differences, far, order=1 if metric.norm_ == "l1" else 2)
    printed = Contrastive(differences, far, margin=margin).mean(metric.components_)
    mapped = float(np.linalg.norm(differences[far] @ metric.components_.T, axis=1).mean())
    own = Contrastive(differences, far, margin=mapped).mean(metric.components_)
    return printed, own / (0.5 * mapped**2 * float(far.mean()))
