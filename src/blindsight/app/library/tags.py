"""Tags of a data set: labels from the owner, a model learned from them, tags that are published."""

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

from blindsight.app.library.accounts import (
    name_release,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import rows_of
from blindsight.app.result import Progress, no_progress
from blindsight.app.train_tagger import DEFAULT_DELTA
from blindsight.core.errors import MissingData
from blindsight.core.storage import seal_json, write_atomically
from blindsight.privacy import Cost, Guarantee, Ledger
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.privacy.vault import Vault
from blindsight.tagging import CodebookAnswers, DPTraining, Exact, PrivateTagger
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.guarantee import of_publishing
from blindsight.tagging.photos import HELD_OUT_ONE_IN, MIN_HELD_OUT, quality, split
from blindsight.tagging.publishing import publish, release_of, train_once

__all__ = [
    "MIN_LABELLED",
    "PUBLISH_EPSILON",
    "TRAINING_EPSILON",
    "chances_of",
    "keep_labels",
    "labels_of",
    "learn_tags",
    "plain_cell",
    "publish_data_set_tags",
    "published_truth",
    "quality_of",
    "start_from_words",
]

#: Epsilon in all of learning, per labelled photo, for one photo replaced by another.
TRAINING_EPSILON = 4.0
#: Epsilon per photo of one published tag.
PUBLISH_EPSILON = 4.0
#: Labelled photos that learning needs: about MIN_HELD_OUT of them are held out.
MIN_LABELLED = HELD_OUT_ONE_IN * MIN_HELD_OUT
_MAX_FOLDER_LABELS = 60


def learn_tags(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> dict[str, Any]:
    """Train with noise on what was labelled, about a fifth kept aside to count on; then tag every
    photo, here.
    """
    progress("reading your labels", 0, 3)
    names, records, rows, labels = _labelled(datasets, data_set)
    used, held, expected = split(rows)
    progress("learning, with noise for each photo", 1, 3)
    tagger = PrivateTagger(
        _training(data_set), Exact(), classes=names, prior=_prior(data_set, names)
    )
    vault = vault_of(datasets, data_set)
    with Ledger(datasets.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
        charged: list[str] = []

        def account(release: str) -> Ledger:
            charged.append(release)
            return _account(data_set, vault, ledger, release, records, actor)

        tagger = train_once(
            tagger, rows[used], labels[used], vault=vault, account=account, n_records=expected
        )
    progress("tagging all photos, here", 2, 3)
    found = _counted(tagger, rows[held], labels[held]) | {
        "epsilon": TRAINING_EPSILON,
        "when": today(),
    }
    _keep(datasets, data_set, tagger, found)
    model = _model(datasets, data_set)
    release = _release(
        datasets, data_set, hashlib.sha256(model).hexdigest(), "tags", TRAINING_EPSILON
    )
    costs = _with_persons(tagger.guarantee_.costs, data_set.most)
    name_release(datasets, data_set, release, charged[-1], costs)
    _give(datasets, release, tagger.guarantee_, {"tagger.safetensors": model})
    datasets.keep_release(data_set, replace(release, photos=len(used)))
    return found


def start_from_words(
    datasets: DataSets, data_set: DataSet, progress: Progress = no_progress
) -> dict[str, Any]:
    """What public knowledge says of these labels; no photo was learned from."""
    progress("looking the words up", 0, 2)
    names, _, rows, labels = _labelled(datasets, data_set)
    prior = _prior(data_set, names)
    if prior is None:
        raise MissingData("there is no public knowledge about these labels.")
    tagger = PrivateTagger.from_public(names, prior)
    progress("tagging all photos, here", 1, 2)
    found = _counted(tagger, rows, labels) | {"epsilon": 0.0, "when": today()}
    _keep(datasets, data_set, tagger, found)
    return found


def publish_data_set_tags(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> dict[str, Any]:
    """The likeliest tag of each photo by k-ary response, with the vault's noise: again and again
    the same.
    """
    progress("choosing a tag for each photo", 0, 2)
    vault, rows = vault_of(datasets, data_set), rows_of(datasets, data_set)
    tagger = _publishing(PrivateTagger.load(datasets.vault(data_set) / "tagger.safetensors"))
    number = release_of(tagger, vault)
    where = {photo.id: row for row, photo in enumerate(datasets.photos(data_set))}
    records = sorted(vault.chosen(number, where, data_set.most) if data_set.most else where)
    progress("releasing", 1, 2)
    with Ledger(datasets.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
        told = publish(
            tagger,
            records,
            lambda at: rows[[where[records[i]] for i in at]],
            vault=vault,
            account=lambda release: _account(data_set, vault, ledger, release, records, actor),
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
    release = _release(datasets, data_set, number, "published", PUBLISH_EPSILON)
    files = {
        "tags.csv": sheet.getvalue().encode(),
        "guarantee.json": seal_json(json.loads(guarantee.to_json())),
    }
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
    actor: str | None,
) -> Ledger:
    """What training and publishing charge: per photo, and per person where people are protected."""
    return vault.account(
        ledger,
        release=release,
        records=records,
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
    times, price = 2 * max(1, data_set.most), data_set.price(TRAINING_EPSILON)
    mu = brentq(lambda mu: gaussian_epsilon(times * mu, DEFAULT_DELTA) - price, 1e-3, 10.0)
    return DPTraining(epsilon=gaussian_epsilon(mu, DEFAULT_DELTA), delta=DEFAULT_DELTA)


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
    """Public knowledge about label names, where the photos were read by a network."""
    from blindsight.encoders import feature_recipe
    from blindsight.tagging.photos import Extractor, public_knowledge

    recipe = feature_recipe(data_set.features)
    if recipe.network is None:
        return None
    return public_knowledge(names, Extractor.with_encoder(recipe))[0]


def _publishing(tagger: PrivateTagger) -> PrivateTagger:
    """The same model, which says one label of each photo by k-ary response."""
    labels = len(tagger.classes_)
    return tagger.with_answers(
        CodebookAnswers(PUBLISH_EPSILON, words=AnswerCodebook(np.eye(labels), np.ones(labels)))
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


def plain_cell(text: str) -> str:
    """A cell that begins like a formula would be run by spreadsheets."""
    return "'" + text if text[:1] in "=+-@\t\r" else text


def labels_of(datasets: DataSets, data_set: DataSet) -> dict[str, Any]:
    """Label names and what was labelled; at first what the folders say, unless they may say who is
    on the photos.

    Names stand in the model for everybody to read: a folder for each person would name the persons.
    """
    path = datasets.vault(data_set) / "labels.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found
    folders = {
        photo.id: photo.name.rpartition("/")[0].rpartition("/")[2]
        for photo in datasets.photos(data_set)
    }
    names = sorted({name for name in folders.values() if name})
    if data_set.person in ("folder", "dicom") or not 2 <= len(names) <= _MAX_FOLDER_LABELS:
        return {"names": [], "given": {}}
    return {"names": names, "given": {photo: [name] for photo, name in folders.items() if name}}


def keep_labels(datasets: DataSets, data_set: DataSet, kept: dict[str, Any]) -> None:
    """Store label names and which photos were labelled."""
    write_atomically(datasets.vault(data_set) / "labels.json", json.dumps(kept).encode())


def chances_of(datasets: DataSets, data_set: DataSet) -> dict[str, dict[str, float]]:
    """What the model thinks of each photo."""
    path = datasets.vault(data_set) / "tags.json"
    if not path.exists():
        return {}
    stored = json.loads(path.read_bytes())
    return {
        photo: dict(zip(stored["names"], values, strict=True))
        for photo, values in stored["chances"].items()
    }


def quality_of(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """How good the tags are, for the owner; None where there are none."""
    path = datasets.vault(data_set) / "tags.json"
    return json.loads(path.read_bytes())["quality"] if path.exists() else None


def published_truth(labels: int) -> int:
    """How many of 100 published tags are the model's own."""
    return round(100 / (1 + max(1, labels - 1) * math.exp(-PUBLISH_EPSILON)))
