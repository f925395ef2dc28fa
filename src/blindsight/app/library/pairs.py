"""Pairs of photos: the owner's answers, and a threshold with error rates that is learned from them.

The distance is the Euclidean distance of the encoder's features, which costs no budget. To learn a
linear map of so many columns would take tens of thousands of answers (`predict_metric`), so the
whole budget is spent on the threshold and its error rates.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import METRIC_EPSILON as PAIR_EPSILON
from blindsight.app.defaults import no_progress
from blindsight.app.library.accounts import (
    account_ledger,
    release_note,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, today
from blindsight.app.library.photos import points_of, rows_of
from blindsight.app.result import Progress
from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.release.manifest import share_folder

if TYPE_CHECKING:
    from blindsight.metric import DPPMetric
    from blindsight.metric.linear import OperatingPoint

__all__ = [
    "GOOD_ANSWERS",
    "MAX_ANSWERS_EACH",
    "MIN_ANSWERS",
    "OPERATING_POINTS",
    "PAIR_BUDGET",
    "PAIR_EPSILON",
    "PAIR_UNIT",
    "Strictness",
    "affordable",
    "answer_for",
    "answers_of",
    "bounded_pairs",
    "decided",
    "keep_answers",
    "last_comparison",
    "learn_to_compare",
    "next_question",
    "prices",
    "strictness",
]

#: The unit of protection: one answer, which is replaced by the opposite one.
PAIR_UNIT: Final = "label"
#: First budget for answers, in epsilon per answer.
PAIR_BUDGET = 6.0
METRIC_FILE: Final = "metric.safetensors"
#: Thresholds on offer: the largest share of wrong "same" or of wrong "different" answers.
OPERATING_POINTS: dict[str, dict[str, float]] = {
    "balanced": {},
    "few wrong same": {"false_accept": 0.1},
    "few wrong different": {"false_reject": 0.1},
}
#: Decided answers that learning needs, and the number with which the result is good.
MIN_ANSWERS, GOOD_ANSWERS = 40, 200
#: The most answers on one photo (on one person, where people are protected) that are used.
MAX_ANSWERS_EACH = 3


def learn_to_compare(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> dict[str, Any]:
    """Learn the threshold from four fifths of the answers, and test it on the rest.

    Parameters:
        datasets: all data sets.
        data_set: the photos' data set.
        progress: called with (stage, done, total).
        actor: the name of the person who asks for the release, for the ledger.

    Returns:
        The measured figures, which are stored for the owner too (`last_comparison`).
    """
    from blindsight.metric import DPPMetric
    from blindsight.metric.estimator import learn_once

    progress("reading your answers", 0, 3)
    where = {photo.id: i for i, photo in enumerate(datasets.photos(data_set))}
    answered = decided(answers_of(datasets, data_set))
    pairs = np.array([[where[a], where[b]] for a, b, _ in answered if a in where and b in where])
    labels = np.array([word == "same" for a, b, word in answered if a in where and b in where])
    rows = np.asarray(rows_of(datasets, data_set), np.float64)
    aside = np.random.default_rng(len(pairs)).permutation(len(pairs))
    held, used = aside[: len(aside) // 5], aside[len(aside) // 5 :]
    used = used[bounded_pairs(pairs[used], _owners(datasets, data_set))]
    progress("learning, with noise for each answer", 1, 3)
    ids = [photo.id for photo in datasets.photos(data_set)]
    chosen_pairs, answers = pairs[used], labels[used]
    vault = vault_of(datasets, data_set)
    with account_ledger(datasets, data_set) as ledger:
        require_agreement(datasets, data_set, ledger)
        if not any(balance.unit == PAIR_UNIT for balance in ledger.balances()):
            ledger.grant(_pair_budget(), what="budget for answers, set by you", actor=actor)
        charged: list[str] = []

        def account(release: str) -> Ledger:
            charged.append(release)
            return vault.account(
                ledger,
                release=release,
                records=sorted({ids[row] for pair in chosen_pairs for row in pair}),
                most=data_set.most,
                actor=actor,
                costs=lambda costs: _all_units(costs, persons=bool(data_set.most)),
            )

        metric = learn_once(
            DPPMetric(epsilon=PAIR_EPSILON, unit=PAIR_UNIT, loss="plain", preprocessor=rows),
            chosen_pairs,
            answers,
            vault=vault,
            account=account,
        )
    number = charged[-1]
    release = datasets.release_numbered(data_set, number, "metric", PAIR_EPSILON, len(used))
    costs = _all_units(metric.guarantee_.costs, persons=bool(data_set.most))
    share_folder(
        datasets.folder(release),
        METRIC_FILE,
        lambda folder: metric.save(folder / METRIC_FILE),
        "metric",
        guarantee=metric.guarantee_,
        vault=vault,
        note=release_note(datasets, data_set, number, costs),
    )
    progress("looking at the answers that were kept aside", 2, 3)
    datasets.keep_release(data_set, release)
    rates_known = metric.curve_.known
    measured = {
        "release": release.id,
        "pairs": len(used),
        "held": len(held),
        "met": int(((metric.predict(pairs[held]) == 1) == labels[held]).sum()) if len(held) else 0,
        "errors": str(metric.curve_.at_threshold(metric.threshold_)) if rates_known else None,
        "equal_error": metric.curve_.equal_error().error if rates_known else None,
        "when": today(),
        "film": _film(ids, metric.transform(rows)),
    }
    datasets.write_private(data_set, "compared.json", measured)
    return measured


def answer_for(
    datasets: DataSets, data_set: DataSet, first: str, second: str, point: str = "balanced"
) -> dict[str, Any]:
    """Return the distance of two photos, and the answer of the last learned threshold.

    Parameters:
        datasets: all data sets.
        data_set: the photos' data set.
        first: id of a photo.
        second: id of another photo.
        point: a name of `OPERATING_POINTS`.

    Returns:
        "distance", and "answer" (for example "same, wrong in about 5 of 100"). The answer is None
        if nothing was learned yet, or if noise hides the error rates that `point` asks for.
    """
    from blindsight.metric import EuclideanMetric

    where = {photo.id: i for i, photo in enumerate(datasets.photos(data_set))}
    rows = np.asarray(rows_of(datasets, data_set)[[where[first], where[second]]], np.float64)
    away = float(EuclideanMetric().fit(rows).pair_distance(rows[None])[0])
    metric = _last_metric(datasets, data_set)
    answer = None
    if metric is not None and metric.n_features_in_ == rows.shape[1]:
        chosen = _operating_point(metric, point)
        answer = None if chosen is None else str(chosen.answer(away))
    return {"distance": away, "answer": answer}


@dataclass(frozen=True)
class Strictness:
    """A threshold that the owner may choose, with its error rates in per cent.

    Parameters:
        point: a name of `OPERATING_POINTS`.
        called_same: of 100 different pairs, how many are called the same.
        missed: of 100 same pairs, how many are called different.
        wrong_same: an example of two photos that the owner calls different and the threshold calls
            the same: the pair of median distance; None if there is no such pair.
        wrong_different: an example of the opposite mistake.
    """

    point: str
    called_same: int
    missed: int
    wrong_same: tuple[str, str] | None = None
    wrong_different: tuple[str, str] | None = None


def strictness(
    datasets: DataSets, data_set: DataSet
) -> tuple[list[Strictness], list[tuple[int, int]]]:
    """Return the thresholds on offer, and the error curve as pairs (called same, missed) of 100.

    Both are computed from released values, so they cost nothing. Both are empty if nothing was
    learned yet, or if noise hides the error rates. The examples of mistakes show the owner's own
    photos and answers, and are for the owner only.
    """
    metric = _last_metric(datasets, data_set)
    if metric is None:
        return [], []
    # If two settings have the same threshold, only the first one is offered.
    points: dict[float, tuple[str, OperatingPoint]] = {}
    for name in OPERATING_POINTS:
        if (point := _operating_point(metric, name)) is not None:
            points.setdefault(point.threshold, (name, point))
    distances = _answered_distances(datasets, data_set)
    offered = [
        Strictness(
            name,
            round(100 * point.false_accept),
            round(100 * point.false_reject),
            _median_mistake(distances, "different", point),
            _median_mistake(distances, "same", point),
        )
        for name, point in points.values()
    ]
    rates = zip(metric.curve_.false_accept, metric.curve_.false_reject, strict=True)
    curve = {(round(100 * float(accept)), round(100 * float(reject))) for accept, reject in rates}
    return offered, sorted(curve, key=lambda pair: (pair[0], -pair[1]))


def _answered_distances(
    datasets: DataSets, data_set: DataSet
) -> list[tuple[float, str, tuple[str, str]]]:
    """Return distance, answer and photos of each decided pair, the nearest first."""
    from blindsight.metric import EuclideanMetric

    where = {photo.id: i for i, photo in enumerate(datasets.photos(data_set))}
    answers = [row for row in decided(answers_of(datasets, data_set)) if {*row[:2]} <= where.keys()]
    if not answers:
        return []
    pairs = [[where[first], where[second]] for first, second, _ in answers]
    rows = np.asarray(rows_of(datasets, data_set)[pairs], np.float64)
    distances = EuclideanMetric().fit(rows[:, 0]).pair_distance(rows)
    return sorted(
        (float(distance), says, (first, second))
        for distance, (first, second, says) in zip(distances, answers, strict=True)
    )


def _median_mistake(
    distances: list[tuple[float, str, tuple[str, str]]], answer: str, point: OperatingPoint
) -> tuple[str, str] | None:
    wrong = [
        photos
        for distance, says, photos in distances
        if says == answer and (distance <= point.threshold) != (says == "same")
    ]
    return wrong[len(wrong) // 2] if wrong else None


def _last_metric(datasets: DataSets, data_set: DataSet) -> DPPMetric | None:
    """Return the metric that was learned last; None if its error rates are not known."""
    from blindsight.metric import DPPMetric

    last = last_comparison(datasets, data_set)
    releases = [] if last is None else [r for r in data_set.releases if r.id == last.get("release")]
    if not releases:
        return None
    metric = DPPMetric.load(datasets.folder(releases[0]) / METRIC_FILE)
    return metric if metric.curve_.known else None


def _operating_point(metric: DPPMetric, name: str) -> OperatingPoint | None:
    """Return one of `OPERATING_POINTS`; None if the released counts are too noisy for it."""
    rates = OPERATING_POINTS[name]
    if not rates:
        return metric.curve_.at_threshold(metric.threshold_)
    with suppress(InvalidParameter):
        return metric.curve_.at(**rates)
    return None


def prices(data_set: DataSet) -> tuple[Cost, ...]:
    """Return the largest cost of one learning per answer, per pair, per photo and per person."""
    return _most_it_costs(bool(data_set.most))


@functools.cache
def _most_it_costs(persons: bool) -> tuple[Cost, ...]:
    from blindsight.metric import DPPMetric

    metric = DPPMetric(epsilon=PAIR_EPSILON, unit=PAIR_UNIT, loss="plain")
    groups = {PAIR_UNIT: 1, "pair": 1, "record": MAX_ANSWERS_EACH}
    guarantee = metric.promise(n_pairs=MIN_ANSWERS, n_features=1, groups=groups)
    return _all_units(guarantee.costs, persons=persons)


def _all_units(costs: Sequence[Cost], *, persons: bool) -> tuple[Cost, ...]:
    """Convert the costs that a metric states to the units of the accounts.

    The estimator states the cost of one answer that is replaced, of one pair and of one photo that
    are added or removed. Replacing a photo removes its pairs and adds as many, so it changes every
    sum twice as much. A person is in at most as many pairs as a photo (`MAX_ANSWERS_EACH`), so the
    cost per person is the same.
    """
    answers = [cost for cost in costs if cost.unit in (PAIR_UNIT, "pair")]
    (photo,) = (cost for cost in costs if cost.unit == "record")
    assert photo.rho is not None  # noqa: S101  (all noise of a metric is Gaussian)
    mu = 2 * math.sqrt(2 * photo.rho)
    replaced = replace(
        photo,
        epsilon=gaussian_epsilon(mu, photo.delta),
        neighbours="replace one",
        rho=mu * mu / 2,
    )
    person = (replace(replaced, unit="person"),) if persons else ()
    return (*answers, replaced, *person)


def _pair_budget() -> Cost:
    (answer,) = (cost for cost in _most_it_costs(False) if cost.unit == PAIR_UNIT)
    return replace(
        answer, epsilon=PAIR_BUDGET, delta=answer.delta * PAIR_BUDGET / PAIR_EPSILON, rho=None
    )


def _owners(datasets: DataSets, data_set: DataSet) -> list[set[str]]:
    """Return the protected units of each photo: its persons, or the photo itself."""
    if not data_set.most:
        return [{photo.id} for photo in datasets.photos(data_set)]
    persons: dict[str, set[str]] = {}
    for photo in vault_of(datasets, data_set).photos().values():
        persons.setdefault(photo.record, set()).add(photo.person)
    return [persons[photo.id] for photo in datasets.photos(data_set)]


def bounded_pairs(pairs: NDArray[Any], owners: list[set[str]]) -> list[int]:
    """Select pairs, in order, such that each owner is in at most `MAX_ANSWERS_EACH` of them.

    Which owners are in which pair is public.

    Returns:
        The row numbers of the selected pairs.
    """
    counts: Counter[str] = Counter()
    selected = []
    for row, (a, b) in enumerate(pairs):
        owners_of_pair = owners[a] | owners[b]
        if all(counts[name] < MAX_ANSWERS_EACH for name in owners_of_pair):
            counts.update(owners_of_pair)
            selected.append(row)
    return selected


def _film(ids: list[str], space: NDArray[Any]) -> dict[str, Any]:
    """Return a photo that is drawn at random and its ten nearest neighbours."""
    query = int(np.random.default_rng().integers(len(ids)))
    far = np.linalg.norm(space - space[query], axis=1)
    far[query] = np.inf
    return {"asked": ids[query], "nearest": [ids[i] for i in np.argsort(far)[:10]]}


def affordable(data_set: DataSet, ledger: Ledger) -> bool:
    """Return whether the remaining budgets cover one more learning."""
    remaining = {balance.unit: balance.remaining.epsilon for balance in ledger.balances()}
    remaining.setdefault(PAIR_UNIT, PAIR_BUDGET)
    return all(remaining.get(cost.unit, math.inf) >= cost.epsilon for cost in prices(data_set))


def answers_of(datasets: DataSets, data_set: DataSet) -> list[list[str]]:
    """Return what the owner answered: two photos, and "same", "different" or "unsure"."""
    return datasets.read_private(data_set, "pairs.json") or []


def decided(answers: list[list[str]]) -> list[list[str]]:
    """Return the answers that say "same" or "different"."""
    return [row for row in answers if row[2] != "unsure"]


def keep_answers(datasets: DataSets, data_set: DataSet, answers: list[list[str]]) -> None:
    """Store what the owner answered."""
    datasets.write_private(data_set, "pairs.json", answers)


def last_comparison(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """Return the figures of the last learning, for the owner; None if nothing was learned."""
    figures: dict[str, Any] | None = datasets.read_private(data_set, "compared.json")
    return figures


def next_question(datasets: DataSets, data_set: DataSet) -> tuple[str, str]:
    """Return the ids of two photos to ask about; every second pair consists of similar photos."""
    photos, answers = datasets.photos(data_set), answers_of(datasets, data_set)
    done = {frozenset(row[:2]) for row in answers}
    rng = np.random.default_rng()
    rows = points_of(datasets, data_set)
    first = second = 0
    for _ in range(40):
        first, second = (int(row) for row in rng.integers(len(photos), size=2))
        if rng.random() < 0.5:  # similar by their features: these answers are most informative
            alike = rows @ rows[first]
            alike[first] = -np.inf
            second = int(rng.choice(np.argsort(-alike)[:10]))
        if first != second and frozenset((photos[first].id, photos[second].id)) not in done:
            break
    if first == second:
        second = (first + 1) % len(photos)
    return photos[first].id, photos[second].id
