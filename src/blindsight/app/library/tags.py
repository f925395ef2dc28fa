"""Tags of a data set: the owner's labels, a model that is learned from them, and published tags."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from blindsight.app.defaults import DELTA, no_progress
from blindsight.app.library.accounts import (
    account_ledger,
    release_note,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import image_encoder, rows_of
from blindsight.app.result import Progress
from blindsight.core import durable
from blindsight.core.errors import MissingData
from blindsight.core.storage import seal_json
from blindsight.encoders import BuiltIn, OnnxEncoder
from blindsight.privacy import Cost, Guarantee, Ledger
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.privacy.vault import Vault
from blindsight.release.manifest import share_folder
from blindsight.tagging import CodebookAnswers, DPTraining, Exact, Prior, PrivateTagger
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.guarantee import NoCharge, of_publishing
from blindsight.tagging.photos import (
    HELD_OUT_ONE_IN,
    MIN_HELD_OUT,
    Extractor,
    expected_training,
    public_knowledge,
    publish,
    quality,
    release_of,
    split,
    train_once,
)
from blindsight.tagging.training import TaggingForecast, forecast

__all__ = [
    "MIN_LABELLED",
    "PUBLISH_EPSILONS",
    "TRAINING_EPSILON",
    "chances_of",
    "keep_labels",
    "labels_of",
    "learn_tags",
    "learning_forecast",
    "names_digest",
    "plain_cell",
    "publish_data_set_tags",
    "quality_of",
    "start_from_words",
]

#: Total epsilon of training per labelled photo, for one photo replaced by another.
TRAINING_EPSILON = 4.0
#: Epsilons per photo at which tags can be published.
PUBLISH_EPSILONS = (4.0, 8.0, 10.0)
#: Labelled photos that training needs, so that about MIN_HELD_OUT of them are held out.
MIN_LABELLED = HELD_OUT_ONE_IN * MIN_HELD_OUT
_MAX_FOLDER_LABELS = 60
_MODEL_FILE = "tagger.safetensors"


def learn_tags(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> dict[str, Any]:
    """Train a tagger with noise on the labelled photos, and tag all photos for the owner.

    About a fifth of the labelled photos is held out to measure the quality.

    Parameters:
        datasets: all data sets.
        data_set: the data set.
        progress: called with (stage, done, total).
        actor: the name of the person who asks for the release, for the ledger.

    Returns:
        The measured quality, which is stored for the owner too (`quality_of`).
    """
    progress("reading your labels", 0, 3)
    names, records, rows, labels = _labelled(datasets, data_set)
    used, held, expected = split(rows)
    progress("learning, with noise for each photo", 1, 3)
    prior = _prior(data_set, names)
    tagger = PrivateTagger(_training(data_set), Exact(), classes=names, prior=prior)
    vault = vault_of(datasets, data_set)
    with account_ledger(datasets, data_set) as ledger:
        require_agreement(datasets, data_set, ledger)
        charged: list[str] = []

        def account(release: str) -> Ledger:
            charged.append(release)
            return _account(data_set, vault, ledger, release, records, actor)

        tagger = train_once(
            tagger, rows[used], labels[used], vault=vault, account=account, n_records=expected
        )
    progress("tagging all photos, here", 2, 3)
    _keep_model(datasets, data_set, tagger)
    publishers = [_publisher(datasets, data_set, epsilon, prior) for epsilon in PUBLISH_EPSILONS]
    measured = _counted(tagger, publishers, rows[held], labels[held]) | {
        "epsilon": TRAINING_EPSILON,
        "learned": tagger.released_.get("trusted"),
        "when": today(),
    }
    _keep_answers(datasets, data_set, tagger, measured)
    model = _model(datasets, data_set)
    digest = hashlib.sha256(model).hexdigest()
    release = datasets.release_numbered(data_set, digest, "tags", TRAINING_EPSILON)
    costs = _with_persons(tagger.guarantee_.costs, data_set.most)
    note = release_note(datasets, data_set, charged[-1], costs)
    _share(datasets, release, tagger.guarantee_, {_MODEL_FILE: model}, "tagger", vault, note)
    datasets.keep_release(data_set, replace(release, photos=len(used)))
    return measured


def start_from_words(
    datasets: DataSets, data_set: DataSet, progress: Progress = no_progress
) -> dict[str, Any]:
    """Tag all photos with a model from public knowledge about the label names, without training.

    Raises:
        MissingData: nothing is known in public about these labels.
    """
    progress("looking the words up", 0, 2)
    names, _, rows, labels = _labelled(datasets, data_set)
    prior = _prior(data_set, names)
    if prior is None:
        raise MissingData("there is no public knowledge about these labels.")
    tagger = PrivateTagger.from_public(names, prior)
    progress("tagging all photos, here", 1, 2)
    _keep_model(datasets, data_set, tagger)
    publishers = [_publisher(datasets, data_set, epsilon, prior) for epsilon in PUBLISH_EPSILONS]
    measured = _counted(tagger, publishers, rows, labels) | {"epsilon": 0.0, "when": today()}
    _keep_answers(datasets, data_set, tagger, measured)
    return measured


def learning_forecast(datasets: DataSets, data_set: DataSet) -> TaggingForecast | None:
    """Predict whether training would improve on the free start from label names.

    Returns:
        The forecast, in numbers of labelled photos, of which about one in `HELD_OUT_ONE_IN` is held
        out; None if there is no free start, because the encoder knows no words or there are no
        labels.
    """
    stored = labels_of(datasets, data_set)
    if not stored["names"] or not _knows_words(image_encoder(data_set.features)):
        return None
    labelled = len(_training_photos(datasets, data_set, stored))
    predicted = forecast(_training(data_set), expected_training(labelled), len(stored["names"]))
    least = predicted.least * HELD_OUT_ONE_IN / (HELD_OUT_ONE_IN - 1)
    return replace(predicted, n_records=labelled, least=math.ceil(least / 10) * 10)


def publish_data_set_tags(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    epsilon: float = PUBLISH_EPSILONS[0],
    actor: str | None = None,
) -> dict[str, Any]:
    """Release the tags of each photo once, by k-ary response over typical answers.

    The noise is derived from the vault's key, so a second call returns the same tags and costs
    nothing more.

    Parameters:
        datasets: all data sets.
        data_set: the data set whose tags are published.
        progress: called with (stage, done, total).
        epsilon: one of `PUBLISH_EPSILONS`, per photo.
        actor: the name of the person who asks for the release, for the ledger.

    Returns:
        The number of photos, and how many of 100 answers the noise leaves as they are.
    """
    progress("choosing tags for each photo", 0, 2)
    vault, rows = vault_of(datasets, data_set), rows_of(datasets, data_set)
    tagger = _publisher(datasets, data_set, epsilon)
    number = release_of(tagger, vault)
    where = {photo.id: row for row, photo in enumerate(datasets.photos(data_set))}
    records = sorted(vault.chosen(number, where, data_set.most) if data_set.most else where)
    progress("releasing", 1, 2)
    with account_ledger(datasets, data_set) as ledger:
        require_agreement(datasets, data_set, ledger)
        answers = publish(
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
    writer.writerow(["photo", "tags"])
    writer.writerows(
        (record, plain_cell(";".join(_names_of(tagger, tags, scores))))
        for record, tags, scores in zip(records, answers.tags, answers.scores, strict=True)
    )
    release = datasets.release_numbered(data_set, number, "published", epsilon)
    files = {
        "tags.csv": sheet.getvalue().encode(),
        "guarantee.json": seal_json(json.loads(guarantee.to_json())),
    }
    note = release_note(datasets, data_set, number, guarantee.costs)
    _share(datasets, release, guarantee, files, "tags", vault, note)
    datasets.keep_release(
        data_set, replace(release, photos=len(records), left_out=len(where) - len(records))
    )
    return {"photos": len(records), "right": _truth(tagger)}


def _account(
    data_set: DataSet,
    vault: Vault,
    ledger: Ledger,
    release: str,
    records: Sequence[str],
    actor: str | None,
) -> Ledger:
    """Return the account that is charged per photo, and per person if people are protected."""
    return vault.account(
        ledger,
        release=release,
        records=records,
        most=data_set.most,
        actor=actor,
        costs=lambda costs: _with_persons(costs, data_set.most),
    )


def _with_persons(costs: Sequence[Cost], most: int) -> tuple[Cost, ...]:
    """Return the costs, and the costs per person if at most `most` photos of a person are used."""
    photo = [cost for cost in costs if (cost.unit, cost.neighbours) == ("record", "replace one")]
    return (*costs, *(_per_person(cost, most) for cost in photo if most))


def _per_person(cost: Cost, most: int) -> Cost:
    if not cost.delta:
        return cost.per("person", times=most)
    assert cost.rho is not None  # noqa: S101  (all that training releases has Gaussian noise)
    # Exact for Gaussian noise; the general bound for groups has a much larger delta.
    mu = most * math.sqrt(2 * cost.rho)
    return replace(cost, epsilon=gaussian_epsilon(mu, cost.delta), unit="person", rho=mu * mu / 2)


def _training(data_set: DataSet) -> DPTraining:
    """Return the training whose cost per replaced photo (or person) is what the page states.

    The epsilon of `DPTraining` is for one photo that is added or removed. Replacing a photo changes
    a sum twice as much, and replacing `most` photos of a person `most` times as much again.
    """
    times, price = 2 * max(1, data_set.most), data_set.price(TRAINING_EPSILON)
    mu = brentq(lambda mu: gaussian_epsilon(times * mu, DELTA) - price, 1e-3, 10.0)
    return DPTraining(epsilon=gaussian_epsilon(mu, DELTA), delta=DELTA)


def _labelled(
    datasets: DataSets, data_set: DataSet
) -> tuple[list[str], list[str], NDArray[np.float32], NDArray[np.uint8]]:
    """Return the label names, and ids, features and labels of the photos to train on."""
    stored = labels_of(datasets, data_set)
    where = {photo.id: row for row, photo in enumerate(datasets.photos(data_set))}
    photos = _training_photos(datasets, data_set, stored)
    labels = [[name in stored["given"][photo] for name in stored["names"]] for photo in photos]
    rows = rows_of(datasets, data_set)[[where[photo] for photo in photos]]
    table = np.array(labels, np.uint8).reshape(len(photos), len(stored["names"]))
    return stored["names"], photos, rows, table


def _training_photos(datasets: DataSets, data_set: DataSet, stored: dict[str, Any]) -> list[str]:
    """Return the ids of the labelled photos to train on, at most `most` of each person."""
    photos = sorted(set(stored["given"]) & {photo.id for photo in datasets.photos(data_set)})
    if not data_set.most:
        return photos
    return sorted(vault_of(datasets, data_set).chosen("labelled photos", photos, data_set.most))


def _prior(data_set: DataSet, names: list[str]) -> Prior | None:
    """Return public knowledge about label names; None if the encoder knows no words."""
    recipe = image_encoder(data_set.features)
    if not _knows_words(recipe):
        return None
    return public_knowledge(names, Extractor.with_encoder(recipe))[0]


def _knows_words(encoder: BuiltIn | OnnxEncoder) -> bool:
    """Return whether an encoder can interpret words, by its classes or its text tower."""
    return encoder.network is not None or encoder.texts(["photo"]) is not None


def _publisher(
    datasets: DataSets, data_set: DataSet, epsilon: float, prior: Prior | None = None
) -> PrivateTagger:
    """Return the data set's model with answers that may be published, stored in the private folder.

    If the prior can simulate scenes, an answer is one of the typical sets of tags, as on the
    command line; else it is one label. The model is stored because another machine would compute
    the typical sets with other rounding errors, which would be another release.
    """
    model = hashlib.sha256(_model(datasets, data_set)).hexdigest()[:16]
    path = datasets.vault(data_set) / f"publisher-{model}-{epsilon:g}.safetensors"
    if path.exists():
        return PrivateTagger.load(path)
    tagger = PrivateTagger.load(datasets.vault(data_set) / _MODEL_FILE)
    labels = len(tagger.classes_)
    if prior is None:
        prior = _prior(data_set, [str(name) for name in tagger.classes_])
    if prior is None or prior.things is None or tagger.weights_ is None:
        one_label = AnswerCodebook(np.eye(labels), np.ones(labels))
        publisher = tagger.with_answers(CodebookAnswers(epsilon, words=one_label))
    else:
        publisher = tagger.with_answers(CodebookAnswers(epsilon), prior=prior)
    publisher.save(path)
    return publisher


def _truth(publisher: PrivateTagger) -> int:
    """Return how many of 100 answers the noise does not change."""
    answers = publisher.answer_mechanism_
    assert isinstance(answers, CodebookAnswers)  # noqa: S101  (all publishers' are)
    return round(100 * float(answers.noise(publisher.n_labels_).truth_probability))


def _names_of(
    tagger: PrivateTagger, tags: NDArray[np.bool_], scores: NDArray[np.float64]
) -> list[str]:
    """Return the names of a photo's tags, the most probable first."""
    return [str(tagger.classes_[label]) for label in np.argsort(-scores) if tags[label]]


def _counted(
    tagger: PrivateTagger,
    publishers: Sequence[PrivateTagger],
    rows: NDArray[Any],
    labels: NDArray[np.uint8],
) -> dict[str, Any]:
    """Return the quality of the tags on these photos, and for each epsilon on offer the quality of
    published tags and whether they say more than label rates.
    """
    truth = labels.astype(bool)
    tags = np.asarray(tagger.answer(rows).tags, bool) if len(rows) else truth
    right, recalled = _right_and_found(tags, truth)
    offers = []
    for publisher, epsilon in zip(publishers, PUBLISH_EPSILONS, strict=True):
        offer: dict[str, Any] = {"epsilon": epsilon, "truth": _truth(publisher), "worth": False}
        if len(rows) >= MIN_HELD_OUT and truth.any():
            # A trial that is not released, so it is not charged.
            trial = publisher.noisy(publisher.logits(rows), ledger=NoCharge())
            noisy = _right_and_found(np.asarray(trial.tags, bool), truth)
            offer |= {"right": noisy[0], "found": noisy[1]}
            offer["worth"] = quality(publisher, rows, labels).worth_it
        offers.append(offer)
    return {
        "held": len(rows),
        "right": right,
        "found": recalled,
        "worth": any(offer["worth"] for offer in offers),
        "offers": offers,
    }


def _right_and_found(tags: NDArray[np.bool_], truth: NDArray[np.bool_]) -> tuple[int, int]:
    """Return precision and recall of tags in per cent."""
    hits = float(np.sum(tags & truth))
    return round(100 * hits / max(1, tags.sum())), round(100 * hits / max(1, truth.sum()))


def _keep_model(datasets: DataSets, data_set: DataSet, tagger: PrivateTagger) -> None:
    tagger.save(datasets.vault(data_set) / _MODEL_FILE)


def _keep_answers(
    datasets: DataSets, data_set: DataSet, tagger: PrivateTagger, measured: dict[str, Any]
) -> None:
    """Store the model's probabilities for every photo, and its quality."""
    rows = rows_of(datasets, data_set)
    tags = np.asarray(tagger.answer(rows).tags, bool)
    probability = 1 / (1 + np.exp(-np.asarray(tagger.logits(rows), np.float64)))
    # Pages show a tag from 0.5 on, whatever the model's threshold for the label is.
    chances = np.where(tags, np.maximum(probability, 0.51), np.minimum(probability, 0.49))
    of_photo = {
        photo.id: [round(float(value), 3) for value in chances[row]]
        for row, photo in enumerate(datasets.photos(data_set))
    }
    stored = {"names": list(tagger.classes_), "chances": of_photo, "quality": measured}
    datasets.write_private(data_set, "tags.json", stored)


def _model(datasets: DataSets, data_set: DataSet) -> bytes:
    return (datasets.vault(data_set) / _MODEL_FILE).read_bytes()


def _share(
    datasets: DataSets,
    release: Release,
    guarantee: Guarantee,
    files: dict[str, bytes],
    kind: str,
    vault: Vault,
    note: bytes,
) -> None:
    """Write files into a release's folder, with card and signature; the first is the main file."""

    def write(folder: Path) -> None:
        for name, data in files.items():
            durable.write_file(folder / name, data)

    folder, (first, *_) = datasets.folder(release), files
    share_folder(folder, first, write, kind, guarantee=guarantee, vault=vault, note=note)


def plain_cell(text: str) -> str:
    """Return a cell as text: a spreadsheet would run one that begins like a formula."""
    return "'" + text if text[:1] in "=+-@\t\r" else text


def names_digest(names: Sequence[str]) -> str:
    """Return a digest of label names, with which the owner confirms the names that were shown."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:16]


def labels_of(datasets: DataSets, data_set: DataSet) -> dict[str, Any]:
    """Return the label names ("names") and the labels of each photo ("given").

    Before the owner has stored labels, they are the names of the folders, unless folders may name
    persons: everybody who has the model can read its label names. `confirmed` states whether the
    owner has agreed to share the names.
    """
    stored: dict[str, Any] | None = datasets.read_private(data_set, "labels.json")
    if stored is not None:
        return stored
    folders = {
        photo.id: photo.name.rpartition("/")[0].rpartition("/")[2]
        for photo in datasets.photos(data_set)
    }
    names = sorted({name for name in folders.values() if name})
    if data_set.person in ("folder", "dicom") or not 2 <= len(names) <= _MAX_FOLDER_LABELS:
        return {"names": [], "given": {}}
    return {"names": names, "given": {photo: [name] for photo, name in folders.items() if name}}


def keep_labels(datasets: DataSets, data_set: DataSet, labels: dict[str, Any]) -> None:
    """Store label names and the labels of each photo."""
    datasets.write_private(data_set, "labels.json", labels)


def chances_of(datasets: DataSets, data_set: DataSet) -> dict[str, dict[str, float]]:
    """Return the model's probability of each label for each photo; empty without a model."""
    stored = datasets.read_private(data_set, "tags.json")
    if stored is None:
        return {}
    return {
        photo: dict(zip(stored["names"], values, strict=True))
        for photo, values in stored["chances"].items()
    }


def quality_of(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """Return the quality of the tags, for the owner; None if there are none."""
    stored = datasets.read_private(data_set, "tags.json")
    if stored is None:
        return None
    # A model of an earlier version has no offers; to train it again gives the same, for free.
    return {"learned": None, "offers": [], **stored["quality"]}
