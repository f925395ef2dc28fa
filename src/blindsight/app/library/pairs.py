"""Pairs of photos: the owner's answers, and a way to compare that is learned from them."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app.compare import DEFAULT_EPSILON as PAIR_EPSILON
from blindsight.app.library.accounts import (
    name_release,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import columns, points_of, rows_of
from blindsight.app.result import Progress, no_progress
from blindsight.core.storage import write_atomically
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon

__all__ = [
    "GOOD_ANSWERS",
    "MAX_ANSWERS_EACH",
    "MIN_ANSWERS",
    "PAIR_BUDGET",
    "PAIR_EPSILON",
    "affordable",
    "answers_of",
    "bounded_pairs",
    "decided",
    "keep_answers",
    "last_comparison",
    "learn_to_compare",
    "next_question",
    "prices",
]

#: First budget for answers, in epsilon per pair.
PAIR_BUDGET = 6.0
#: Decided answers that learning needs, and as many as it is good with.
MIN_ANSWERS, GOOD_ANSWERS = 40, 200
#: Answers about one photo that are learned from, or about one person where people are protected.
MAX_ANSWERS_EACH = 3
_COLUMNS = 12


def learn_to_compare(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> dict[str, Any]:
    """Learn with a fifth of the pairs kept aside, and see how often the answers to those are met,
    before and after.
    """
    from blindsight.metric import DPPMetric
    from blindsight.metric.estimator import learn_once

    progress("reading your answers", 0, 3)
    where = {photo.id: i for i, photo in enumerate(datasets.photos(data_set))}
    said = decided(answers_of(datasets, data_set))
    pairs = np.array([[where[a], where[b]] for a, b, _ in said if a in where and b in where])
    labels = np.array([word == "same" for a, b, word in said if a in where and b in where])
    points = columns(rows_of(datasets, data_set), _COLUMNS)
    aside = np.random.default_rng(len(pairs)).permutation(len(pairs))
    held, used = aside[: len(aside) // 5], aside[len(aside) // 5 :]
    used = used[bounded_pairs(pairs[used], _owners(datasets, data_set))]
    progress("learning, with noise for each pair", 1, 3)
    ids = [photo.id for photo in datasets.photos(data_set)]
    chosen_pairs, answers = pairs[used], labels[used]
    vault = vault_of(datasets, data_set)
    with Ledger(datasets.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
        if not any(balance.unit == "pair" for balance in ledger.balances()):
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
            DPPMetric(epsilon=PAIR_EPSILON, unit="pair", preprocessor=points),
            chosen_pairs,
            answers,
            vault=vault,
            account=account,
        )
    number = charged[-1]
    release = _release(datasets, data_set, number, len(used))
    folder = datasets.folder(release)
    costs = _all_units(metric.guarantee_.costs, persons=bool(data_set.most))
    name_release(datasets, data_set, release, number, costs)
    metric.save(folder / "metric.safetensors")
    progress("comparing before and after", 2, 3)
    (folder / "card.txt").write_text(metric.guarantee_.card() + "\n", encoding="utf-8")
    datasets.keep_release(data_set, release)
    after = np.asarray(metric.transform(points))
    found = {
        "pairs": len(used),
        "held": len(held),
        "before": _met(points, pairs[used], labels[used], pairs[held], labels[held]),
        "after": _met(after, pairs[used], labels[used], pairs[held], labels[held]),
        "when": today(),
        "film": _film([photo.id for photo in datasets.photos(data_set)], points, after),
    }
    write_atomically(datasets.vault(data_set) / "compared.json", json.dumps(found).encode())
    return found


def prices(data_set: DataSet) -> tuple[Cost, ...]:
    """What one learning costs per pair, per photo and per person, before anything is learned."""
    return _most_it_costs(bool(data_set.most))


@functools.cache
def _most_it_costs(persons: bool) -> tuple[Cost, ...]:
    from blindsight.metric import DPPMetric

    metric = DPPMetric(epsilon=PAIR_EPSILON, unit="pair")
    groups = {"pair": 1, "record": MAX_ANSWERS_EACH}
    guarantee = metric.promise(n_pairs=MIN_ANSWERS, n_features=_COLUMNS, groups=groups)
    return _all_units(guarantee.costs, persons=persons)


def _all_units(costs: Sequence[Cost], *, persons: bool) -> tuple[Cost, ...]:
    """A metric's stated costs in the units of the accounts.

    The estimator states what one pair costs, and what one photo costs that is added or removed. A
    photo that is replaced takes its pairs away and brings as many new ones, so it moves every sum
    twice as far. A person is in no more of the pairs than a photo may be (`MAX_ANSWERS_EACH`), so a
    person costs the same.
    """
    (pair,) = (cost for cost in costs if cost.unit == "pair")
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
    return (pair, replaced, *person)


def _pair_budget() -> Cost:
    (pair,) = (cost for cost in _most_it_costs(False) if cost.unit == "pair")
    return replace(
        pair, epsilon=PAIR_BUDGET, delta=pair.delta * PAIR_BUDGET / PAIR_EPSILON, rho=None
    )


def _release(datasets: DataSets, data_set: DataSet, number: str, pairs: int) -> Release:
    """The release with this id: learned again from the same answers, it is the same one."""
    known = {release.id: release for release in datasets.get(data_set.id).releases}
    folder = datasets.named(data_set, "compare", PAIR_EPSILON, number)
    return known.get(number[:12]) or Release(
        number[:12], "metric", folder, PAIR_EPSILON, pairs, today(), False
    )


def _owners(datasets: DataSets, data_set: DataSet) -> list[set[str]]:
    """Who is protected on each photo: its persons, or the photo itself."""
    if not data_set.most:
        return [{photo.id} for photo in datasets.photos(data_set)]
    persons: dict[str, set[str]] = {}
    for photo in vault_of(datasets, data_set).photos().values():
        persons.setdefault(photo.record, set()).add(photo.person)
    return [persons[photo.id] for photo in datasets.photos(data_set)]


def bounded_pairs(pairs: NDArray[Any], owners: list[set[str]]) -> list[int]:
    """Return the pairs, in order, that leave each owner in at most `MAX_ANSWERS_EACH` of them.

    Who is in which pair is public.
    """
    counts: Counter[str] = Counter()
    kept = []
    for row, (a, b) in enumerate(pairs):
        who = owners[a] | owners[b]
        if all(counts[name] < MAX_ANSWERS_EACH for name in who):
            counts.update(who)
            kept.append(row)
    return kept


def _met(space: Any, pairs: Any, labels: Any, held: Any, truth: Any) -> int:
    """How many held pairs fall on the right side of the distance that separates the others best."""

    def far(rows: Any) -> NDArray[np.float64]:
        return np.asarray(np.linalg.norm(space[rows[:, 0]] - space[rows[:, 1]], axis=1))

    known = far(pairs)
    cuts = np.quantile(known, np.linspace(0, 1, 51))
    best = max(cuts, key=lambda cut: np.mean((known <= cut) == labels))
    return int(np.sum((far(held) <= best) == truth))


def _film(ids: list[str], before: NDArray[Any], after: NDArray[Any]) -> dict[str, Any]:
    """The ten nearest to one photo, drawn at random, by the network and by what was learned."""
    asked = int(np.random.default_rng().integers(len(ids)))

    def nearest(space: NDArray[Any]) -> list[str]:
        far = np.linalg.norm(space - space[asked], axis=1)
        far[asked] = np.inf
        return [ids[i] for i in np.argsort(far)[:10]]

    return {"asked": ids[asked], "before": nearest(before), "after": nearest(after)}


def affordable(data_set: DataSet, ledger: Ledger) -> bool:
    """Return whether one learning fits into what is left per pair, per photo and per person."""
    left = {balance.unit: balance.remaining.epsilon for balance in ledger.balances()}
    left.setdefault("pair", PAIR_BUDGET)
    return all(left.get(cost.unit, math.inf) >= cost.epsilon for cost in prices(data_set))


def answers_of(datasets: DataSets, data_set: DataSet) -> list[list[str]]:
    """Return what the owner answered: two photos, and "same", "different" or "unsure"."""
    path = datasets.vault(data_set) / "pairs.json"
    return json.loads(path.read_bytes()) if path.exists() else []


def decided(answers: list[list[str]]) -> list[list[str]]:
    """Return the answers that say "same" or "different"."""
    return [row for row in answers if row[2] != "unsure"]


def keep_answers(datasets: DataSets, data_set: DataSet, answers: list[list[str]]) -> None:
    """Store what the owner answered."""
    write_atomically(datasets.vault(data_set) / "pairs.json", json.dumps(answers).encode())


def last_comparison(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """Return what the last learning measured, for the owner; None before the first."""
    path = datasets.vault(data_set) / "compared.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def next_question(datasets: DataSets, data_set: DataSet) -> tuple[str, str]:
    """Return two photos to ask about: half of them near each other by the network."""
    photos, answers = datasets.photos(data_set), answers_of(datasets, data_set)
    done = {frozenset(row[:2]) for row in answers}
    rng = np.random.default_rng()
    rows = points_of(datasets, data_set)
    first = second = 0
    for _ in range(40):
        first, second = (int(row) for row in rng.integers(len(photos), size=2))
        if rng.random() < 0.5:  # near by the network: those answers teach most
            alike = rows @ rows[first]
            alike[first] = -np.inf
            second = int(rng.choice(np.argsort(-alike)[:10]))
        if first != second and frozenset((photos[first].id, photos[second].id)) not in done:
            break
    if first == second:
        second = (first + 1) % len(photos)
    return photos[first].id, photos[second].id
