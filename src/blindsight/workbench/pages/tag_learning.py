"""What the page Tags does in the background: learn from labels, start from words, publish a tag of
each photo.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from blindsight.core.errors import MissingData
from blindsight.core.storage import write_atomically
from blindsight.privacy import Cost, Guarantee, Ledger
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.privacy.vault import Vault
from blindsight.tagging import CodebookAnswers, DPTraining, Exact, PrivateTagger
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.guarantee import of_publishing
from blindsight.tagging.photos import MIN_HELD_OUT, quality, split
from blindsight.tagging.publishing import publish, release_of, train_once
from blindsight.workbench.infra.accounts import (
    ReleaseAccount,
    name_release,
    require_agreement,
    vault_of,
)
from blindsight.workbench.infra.datasets import DataSet, DataSets, Release, today
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.pages.photo_library import rows_of
from blindsight.workbench.pages.tags import EPSILON, PUBLISHED, labels_of, plain_cell

__all__ = ["run"]

_DELTA = 1e-5


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Learn, start from words, or publish; each run again after a crash gives the same and is paid
    once.
    """
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    steps = {"learn": _learn, "words": _from_words, "publish": _publish}
    return steps[arguments.get("step", "learn")](datasets, data_set, job)


def _learn(datasets: DataSets, data_set: DataSet, job: JobContext) -> dict[str, Any]:
    """Train with noise on what was labelled, about a fifth kept aside to count on; then tag every
    photo, here.
    """
    job.say(0, 3, "reading your labels")
    names, records, rows, labels = _labelled(datasets, data_set)
    used, held, expected = split(rows)
    job.say(1, 3, "learning, with noise for each photo")
    tagger = PrivateTagger(
        _training(data_set), Exact(), classes=names, prior=_prior(data_set, names)
    )
    vault = vault_of(datasets, data_set)
    with Ledger(job.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
        charged: list[str] = []

        def account(release: str) -> ReleaseAccount:
            charged.append(release)
            return _account(data_set, vault, ledger, release, records, job.actor)

        tagger = train_once(
            tagger, rows[used], labels[used], vault=vault, account=account, n_records=expected
        )
    job.say(2, 3, "tagging all photos, here")
    found = _counted(tagger, rows[held], labels[held]) | {"epsilon": EPSILON, "when": today()}
    _keep(datasets, data_set, tagger, found)
    model = _model(datasets, data_set)
    release = _release(datasets, data_set, hashlib.sha256(model).hexdigest(), "tags", EPSILON)
    costs = _with_persons(tagger.guarantee_.costs, data_set.most)
    name_release(datasets, data_set, release, charged[-1], costs)
    _give(datasets, release, tagger.guarantee_, {"tagger.safetensors": model})
    datasets.keep_release(data_set, replace(release, photos=len(used)))
    return found


def _from_words(datasets: DataSets, data_set: DataSet, job: JobContext) -> dict[str, Any]:
    """What public knowledge says of these labels; no photo was learned from."""
    job.say(0, 2, "looking the words up")
    names, _, rows, labels = _labelled(datasets, data_set)
    prior = _prior(data_set, names)
    if prior is None:
        raise MissingData("there is no public knowledge about these labels.")
    tagger = PrivateTagger.from_public(names, prior)
    job.say(1, 2, "tagging all photos, here")
    found = _counted(tagger, rows, labels) | {"epsilon": 0.0, "when": today()}
    _keep(datasets, data_set, tagger, found)
    return found


def _publish(datasets: DataSets, data_set: DataSet, job: JobContext) -> dict[str, Any]:
    """The likeliest tag of each photo by k-ary response, with the vault's noise: again and again
    the same.
    """
    job.say(0, 2, "choosing a tag for each photo")
    vault, rows = vault_of(datasets, data_set), rows_of(datasets, data_set)
    tagger = _publishing(PrivateTagger.load(datasets.vault(data_set) / "tagger.safetensors"))
    number = release_of(tagger, vault)
    where = {photo.id: row for row, photo in enumerate(datasets.photos(data_set))}
    records = sorted(vault.chosen(number, where, data_set.most) if data_set.most else where)
    job.say(1, 2, "releasing")
    with Ledger(job.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
        told = publish(
            tagger,
            records,
            lambda at: rows[[where[records[i]] for i in at]],
            vault=vault,
            account=lambda release: _account(data_set, vault, ledger, release, records, job.actor),
        )
    single = tagger.answer_guarantee_
    assert single is not None  # noqa: S101  (publish refuses exact answers)
    guarantee = of_publishing(single)
    guarantee = replace(guarantee, also=_with_persons(guarantee.also, data_set.most))
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(["photo", "tag"])
    tags = (plain_cell(str(tagger.classes_[tag])) for tag in told.scores.argmax(axis=1))
    writer.writerows(zip(records, tags, strict=True))
    release = _release(datasets, data_set, number, "published", PUBLISHED)
    files = {"tags.csv": sheet.getvalue().encode(), "guarantee.json": guarantee.to_json().encode()}
    name_release(datasets, data_set, release, number, guarantee.costs)
    _give(datasets, release, guarantee, files)
    datasets.keep_release(
        data_set, replace(release, photos=len(records), left_out=len(where) - len(records))
    )
    truth = guarantee.releases[0].mechanism.truth_probability  # type: ignore[attr-defined]
    return {"photos": len(records), "right": round(100 * truth)}


def _account(
    data_set: DataSet,
    vault: Vault,
    ledger: Ledger,
    release: str,
    records: Sequence[str],
    actor: str,
) -> ReleaseAccount:
    """What training and publishing charge: per photo, and per person where people are protected."""
    return ReleaseAccount(
        vault,
        ledger,
        release,
        records,
        most=data_set.most,
        actor=actor,
        costs=lambda costs: _with_persons(costs, data_set.most),
    )


def _with_persons(costs: Sequence[Cost], most: int) -> tuple[Cost, ...]:
    """The costs, and what they are per person where at most `most` photos of one are used."""
    photo = [cost for cost in costs if (cost.unit, cost.neighbours) == ("record", "replace one")]
    return (*costs, *(_per_person(cost, most) for cost in photo if most))


def _per_person(cost: Cost, most: int) -> Cost:
    if not cost.delta:
        return cost.per("person", times=most)
    assert cost.rho is not None  # noqa: S101  (all that training releases has Gaussian noise)
    mu = most * math.sqrt(
        2 * cost.rho
    )  # exact for Gaussian noise, where group privacy's delta explodes
    return replace(cost, epsilon=gaussian_epsilon(mu, cost.delta), unit="person", rho=mu * mu / 2)


def _training(data_set: DataSet) -> DPTraining:
    """Training at the price that the page states; its own epsilon is for one photo more or less.

    A photo that is replaced is taken out and put in, so it moves a sum twice as far; a person's
    `most` photos move it so many times that.
    """
    times, price = 2 * max(1, data_set.most), data_set.price(EPSILON)
    mu = brentq(lambda mu: gaussian_epsilon(times * mu, _DELTA) - price, 1e-3, 10.0)
    return DPTraining(epsilon=gaussian_epsilon(mu, _DELTA), delta=_DELTA)


def _labelled(
    datasets: DataSets, data_set: DataSet
) -> tuple[list[str], list[str], NDArray[np.float32], NDArray[np.uint8]]:
    """Label names, and ids, features and labels of the photos that were labelled: of a person as
    many as are paid for.
    """
    kept = labels_of(datasets, data_set)
    where = {photo.id: row for row, photo in enumerate(datasets.photos(data_set))}
    given = sorted(set(kept["given"]) & set(where))
    if data_set.most:
        given = sorted(vault_of(datasets, data_set).chosen("labelled photos", given, data_set.most))
    labels = [[name in kept["given"][photo] for name in kept["names"]] for photo in given]
    rows = rows_of(datasets, data_set)[[where[photo] for photo in given]]
    table = np.array(labels, np.uint8).reshape(len(given), len(kept["names"]))
    return kept["names"], given, rows, table


def _prior(data_set: DataSet, names: list[str]) -> Any:
    """Public knowledge about label names, where the photos were read by the network that it is
    about.
    """
    from blindsight.encoders import feature_recipe
    from blindsight.tagging.photos import Extractor, public_knowledge

    return (
        public_knowledge(names, Extractor("efficientnet"))[0]
        if feature_recipe(data_set.features).network == "lite0"
        else None
    )


def _publishing(tagger: PrivateTagger) -> PrivateTagger:
    """The same model, which says one label of each photo by k-ary response."""
    labels = len(tagger.classes_)
    return tagger.with_answers(
        CodebookAnswers(PUBLISHED, words=AnswerCodebook(np.eye(labels), np.ones(labels)))
    )


def _counted(
    tagger: PrivateTagger, rows: NDArray[Any], labels: NDArray[np.uint8]
) -> dict[str, Any]:
    """How good tags are on photos that were not learned from, and whether published ones would tell
    anything.
    """
    truth = labels.astype(bool)
    told = np.asarray(tagger.answer(rows).tags, bool) if len(rows) else truth
    right, found = (float(np.sum(told & truth)) / max(1, int(by.sum())) for by in (told, truth))
    worth = (
        len(rows) >= MIN_HELD_OUT
        and bool(truth.any())
        and quality(_publishing(tagger), rows, labels).worth_it
    )
    return {
        "held": len(rows),
        "right": round(100 * right),
        "found": round(100 * found),
        "worth": worth,
    }


def _keep(
    datasets: DataSets, data_set: DataSet, tagger: PrivateTagger, found: dict[str, Any]
) -> None:
    """The model, and what it says of every photo, in the vault."""
    rows, vault = rows_of(datasets, data_set), datasets.vault(data_set)
    tagger.save(vault / "tagger.safetensors")
    told = np.asarray(tagger.answer(rows).tags, bool)
    sure = 1 / (1 + np.exp(-np.asarray(tagger.logits(rows), np.float64)))
    chances = np.where(
        told, np.maximum(sure, 0.51), np.minimum(sure, 0.49)
    )  # 0.5: where it would begin to say it
    thought = {
        p.id: [round(float(v), 3) for v in chances[i]]
        for i, p in enumerate(datasets.photos(data_set))
    }
    stored = {"names": list(tagger.classes_), "chances": thought, "quality": found}
    write_atomically(vault / "tags.json", json.dumps(stored).encode())


def _model(datasets: DataSets, data_set: DataSet) -> bytes:
    return (datasets.vault(data_set) / "tagger.safetensors").read_bytes()


def _release(
    datasets: DataSets, data_set: DataSet, digest: str, kind: str, epsilon: float
) -> Release:
    """The release of a model: made again, it is the same one, in the same folder."""
    known = next(
        (release for release in datasets.get(data_set.id).releases if release.id == digest[:12]),
        None,
    )
    folder = datasets.named(data_set, kind, epsilon, digest)
    return known or Release(digest[:12], kind, folder, epsilon, 0, today(), False)


def _give(
    datasets: DataSets, release: Release, guarantee: Guarantee, files: dict[str, bytes]
) -> None:
    """Into the folder that may be shared, with the card."""
    folder = datasets.folder(release)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(folder / name, data)
    (folder / "card.txt").write_text(guarantee.card() + "\n", encoding="utf-8")
