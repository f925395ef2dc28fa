"""A tagger: how good its answers are by epsilon per query, and what averaging repeated answers reveals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight import data
from blindsight.audit.figures import Figure, curves
from blindsight.audit.tagging import repeated_queries
from blindsight.audit.target import Audit
from blindsight.evaluation.multilabel import mean_average_precision
from blindsight.tagging import CodebookAnswers, Exact, LaplaceAnswers, Ordinary, PrivateTagger, TopTags

__all__ = ["figures"]

# With as many words of a codebook as pay at that price; searching for the best number takes longer than it gives.
_WORDS = {1.0: 4, 4.0: 32, 10.0: 256, 20.0: 512}
_TRAIN, _TEST = 900, 200


def figures(found: Audit, *, seed: int = 0) -> list[Figure]:
    """The curve, and the averaged answers."""
    X, labels = _scenes(seed)
    model = _learned(_release(found.subject), X, labels, seed)
    return [_curve(found, model, X, labels, seed), _repeats(model, X, seed)]


def _scenes(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Built-in scenes of digits as features: for each digit, how much the likeliest quarter looks like it."""
    from sklearn.linear_model import LogisticRegression

    digits = data.load("mnist5k", split="train")
    some = np.random.default_rng(seed).permutation(len(digits))[:2000]
    given, known = np.pad(digits.array()[some], ((0, 0), (2, 2), (2, 2))), np.asarray(digits.labels)[some]
    eye = LogisticRegression(C=0.05, max_iter=100, tol=1e-2).fit(_small(given), known)
    scenes = data.scenes(_TRAIN + _TEST, seed=seed + 1, split="test")
    pictures = np.asarray(scenes.images)
    quarters = [pictures[:, top : top + 32, left : left + 32] for top in (0, 32) for left in (0, 32)]
    # An empty quarter shows no digit.
    filled = [np.asarray(quarter.max(axis=(1, 2)) > 0)[:, None] for quarter in quarters]
    seen = np.stack([eye.predict_proba(_small(quarter)) * full for quarter, full in zip(quarters, filled, strict=True)])
    likeliest = seen.max(axis=0)
    # The head has no constant term, so a digit's absence is a feature too.
    return np.concatenate([likeliest, 1 - likeliest], axis=1), np.asarray(scenes.labels)


def _small(images: NDArray[Any]) -> NDArray[np.float64]:
    """Each 32 x 32 picture with its digit moved to the middle, at half the size, as one row."""
    moved = np.empty(images.shape, np.float64)
    place = np.arange(32) - 15.5
    for row, image in enumerate(images):
        total = max(1.0, float(image.sum()))
        shift = [-round(float(image.sum(axis=1 - axis) @ place) / total) for axis in (0, 1)]
        moved[row] = np.roll(image, shift, axis=(0, 1))
    return moved.reshape(len(images), 16, 2, 16, 2).mean(axis=(2, 4)).reshape(len(images), -1) / 255.0


def _release(subject: Any) -> Any:
    """How the file answers; exact answers are shown beside a codebook of the same model."""
    way = getattr(subject, "way_", None)
    if way is None:
        return LaplaceAnswers(subject.epsilon)
    return CodebookAnswers(10.0, k=_WORDS.get(10.0)) if isinstance(way, Exact) else way


def _learned(way: Any, X: NDArray[Any], labels: NDArray[Any], seed: int) -> PrivateTagger:
    """The same release over a plain linear head: what answers cost is asked here, not what training costs."""
    if isinstance(way, CodebookAnswers) and way.words is not None:
        way = CodebookAnswers(way.epsilon, k=len(way.words))
    tagger = PrivateTagger(Ordinary(steps=60), way, classes=labels.shape[1], random_state=seed)
    return tagger.fit(X[:_TRAIN], labels[:_TRAIN])


def _answers(model: PrivateTagger, X: NDArray[Any], seed: int) -> NDArray[np.float64]:
    return _answered(model, model.logits(X[_TRAIN:]), np.random.default_rng(seed))


def _answered(model: PrivateTagger, logits: NDArray[Any], rng: Any) -> NDArray[np.float64]:
    """A simulation that leaves nothing: the release's own noise on logits."""
    way: Any = model.way_
    released = way.noise(model.n_labels_).release(way.value(logits), rng=rng)
    return (way.read(released, model.n_labels_) if isinstance(way, TopTags) else way.read(released)).scores


def _curve(found: Audit, model: Any, X: NDArray[Any], labels: NDArray[Any], seed: int) -> Figure:
    way = _release(found.subject)
    truth = labels[_TRAIN:]

    def at(epsilon: float, kind: Any) -> tuple[float, float]:
        size = {"k": _WORDS[epsilon]} if kind is CodebookAnswers else {}
        fitted = _learned(kind(epsilon, **size), X, labels, seed)
        return epsilon, mean_average_precision(truth, _answers(fitted, X, seed))

    card: Any = found.card
    kind = type(way)
    lines = {f"{kind.__name__}, proven": [at(epsilon, kind) for epsilon in _WORDS]}
    if kind is not CodebookAnswers:
        lines["CodebookAnswers"] = [at(epsilon, CodebookAnswers) for epsilon in _WORDS]
    mine = float(card.epsilon), mean_average_precision(truth, _answers(model, X, seed))
    open_answers = mean_average_precision(truth, model.logits(X[_TRAIN:]))
    rows = [
        {"release": name, "epsilon per query": epsilon, "mAP": round(score, 4)}
        for name, points in lines.items()
        for epsilon, score in points
    ]
    stated = "none proven" if math.isinf(mine[0]) else mine[0]
    rows.append({"release": "your file's", "epsilon per query": stated, "mAP": round(mine[1], 4)})
    rows.append({"release": "without protection", "epsilon per query": "", "mAP": round(open_answers, 4)})
    return Figure(
        "What privacy costs",
        f"Mean average precision of one answer about {_TEST} built-in scenes of up to four digits, by proven "
        f"epsilon per query; {open_answers:.2f} without protection. The head was trained without noise, so that "
        "only the answers' price shows.",
        curves(lines, xlabel="proven epsilon per query", ylabel="mAP", own=mine, chance=float(truth.mean())),
        rows,
    )


def _repeats(model: Any, X: NDArray[Any], seed: int) -> Figure:
    rng = np.random.default_rng(seed)
    logits = model.logits(X[_TRAIN : _TRAIN + 40])
    points = []
    for repeats in (1, 3, 10, 30, 100):
        result = repeated_queries(lambda rows: _answered(model, rows, rng), logits, logits, repeats=repeats)
        points.append((float(repeats), result.value))
    return Figure(
        "What asking again reveals",
        "A tagger gives no pictures back; asking again is how its noise is removed. Rank correlation of averaged "
        "answers about 40 built-in scenes with the outputs behind them, by how often the same question was asked: "
        "1 is everything. Every answer costs its epsilon again, which is why a ledger must count them.",
        curves(
            {"averaged answers, as your file releases": points},
            xlabel="times asked",
            ylabel="rank correlation",
            chance=0.0,
        ),
        [{"times asked": int(n), "rank correlation": round(value, 4)} for n, value in points],
    )
