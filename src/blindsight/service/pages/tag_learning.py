"""What the page Tags does in the background: learn from labels, start from words, publish a tag of each photo."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import MissingData
from blindsight.core.storage import write_atomically
from blindsight.index.photos import stated
from blindsight.privacy import Cost, Guarantee, Ledger
from blindsight.privacy.door import Door
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.plan import Planned
from blindsight.service.infra.datasets import DataSet, DataSets, Release, today
from blindsight.service.infra.jobs import JobContext
from blindsight.service.pages.photo_library import paid, rows_of, vault_of
from blindsight.service.pages.tags import EPSILON, PUBLISHED, labels_of, plain_cell
from blindsight.tagging import DPTraining, Exact, PrivateTagger

__all__ = ["run"]

_DELTA = 1e-5


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Learn, start from words, or publish; each run again after a crash gives the same and is paid once."""
    datasets = DataSets(place.settings)
    one = datasets.get(arguments["dataset"])
    steps = {"learn": _learn, "words": _from_words, "publish": _publish}
    return steps[arguments.get("step", "learn")](datasets, one, arguments, place)


def _learn(datasets: DataSets, one: DataSet, arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Train with noise on what was labelled, a fifth kept aside to count on; then tag every photo, here."""
    place.say(0, 3, "reading your labels")
    kept, photos = labels_of(datasets, one), datasets.photos(one)
    rows = rows_of(datasets, one)
    names = kept["names"]
    where = {photo.id: i for i, photo in enumerate(photos)}
    allowed = set(kept["given"]) & set(where)
    if one.most:  # of each person as many as the price is for
        allowed = vault_of(datasets, one).chosen(arguments["release"], allowed, one.most)
    given = [(where[number], tags) for number, tags in sorted(kept["given"].items()) if number in allowed]
    labels = np.array([[name in tags for name in names] for _, tags in given], np.uint8)
    used = np.array([row for row, _ in given])
    order = np.random.default_rng(len(given)).permutation(len(given))
    held, train = order[: len(order) // 5], order[len(order) // 5 :]
    place.say(1, 3, "learning, with noise for each photo")
    release = _release(datasets, one, arguments["release"], "tags", EPSILON, len(train))
    folder = datasets.folder(release)
    with Ledger(place.settings.ledger_place, dataset=one.account) as ledger:
        # Under the release's own number: run again after a crash, it is paid already.
        ledger.charge(_costs(one, _price()), what="tag model", key=release.id)
    if (folder / "tagger.safetensors").exists():  # made before a crash: a second one would be a second release
        tagger = PrivateTagger.load(folder / "tagger.safetensors")
    else:
        tagger = _tagger(one, names)
        with paid():
            tagger.fit(rows[used[train]], labels[train])
        folder.mkdir(parents=True, exist_ok=True)
        tagger.save(folder / "tagger.safetensors")
    (folder / "card.txt").write_text(tagger.guarantee_.card() + "\n", encoding="utf-8")
    place.say(2, 3, "tagging all photos, here")
    told, truth = _told(tagger, rows[used[held]]), labels[held].astype(bool)
    quality = {
        "held": len(held),
        "right": round(100 * float(np.sum(told & truth) / max(1, told.sum()))),
        "found": round(100 * float(np.sum(told & truth) / max(1, truth.sum()))),
        "epsilon": EPSILON,
        "when": today(),
    }
    _keep_thoughts(datasets, one, tagger, rows, quality)
    datasets.keep_release(one, release)
    return quality


def _from_words(datasets: DataSets, one: DataSet, _: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """What public knowledge says of these labels; no photo was learned from."""
    place.say(0, 2, "looking the words up")
    kept, rows = labels_of(datasets, one), rows_of(datasets, one)
    prior = _prior(one, kept["names"])
    if prior is None:
        raise MissingData("there is no public knowledge about these labels.")
    tagger = PrivateTagger.from_public(kept["names"], prior)
    place.say(1, 2, "tagging all photos, here")
    quality = _counted(datasets, one, tagger, kept, rows) | {"epsilon": 0.0, "when": today()}
    _keep_thoughts(datasets, one, tagger, rows, quality)
    return quality


def _publish(datasets: DataSets, one: DataSet, arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """The likeliest tag of each photo by k-ary response, with the vault's noise: again and again the same."""
    place.say(0, 2, "choosing a tag for each photo")
    stored = json.loads((datasets.vault(one) / "tags.json").read_bytes())
    names, vault = stored["names"], vault_of(datasets, one)
    records = sorted(stored["chances"])
    about = hashlib.sha256(json.dumps([names, stored["quality"]["when"]]).encode()).hexdigest()
    if one.most:
        records = sorted(vault.chosen(about, records, one.most))
    best = np.array([int(np.argmax(stored["chances"][record])) for record in records], np.int64)
    mechanism = KaryResponse(epsilon=PUBLISHED, k=len(names), unit="record")
    plan = (Planned(what="one tag of each photo", mechanism=mechanism),)
    bare = Guarantee(releases=plan, model="local", entropy="keyed")
    guarantee = stated(bare, names="random", most=one.most)
    place.say(1, 2, "releasing")
    with Ledger(place.settings.ledger_place, dataset=one.account) as ledger:
        door = Door(
            guarantee,
            what="published tags",
            ledger=ledger,
            random_state=vault.source(records, about=about),
            key=arguments["release"],
        )
        released = door.release_each("one tag of each photo", best, records, about=about)
    release = _release(datasets, one, arguments["release"], "published", PUBLISHED, len(records))
    folder = datasets.folder(release)
    folder.mkdir(parents=True, exist_ok=True)
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(["photo", "tag"])
    writer.writerows((record, plain_cell(names[tag])) for record, tag in zip(records, released, strict=True))
    write_atomically(folder / "tags.csv", sheet.getvalue().encode())
    write_atomically(folder / "guarantee.json", guarantee.to_json().encode())
    (folder / "card.txt").write_text(guarantee.card() + "\n", encoding="utf-8")
    datasets.keep_release(one, replace(release, left_out=len(stored["chances"]) - len(records)))
    return {"photos": len(records), "right": round(100 * mechanism.truth_probability)}


def _release(datasets: DataSets, one: DataSet, number: str, kind: str, epsilon: float, photos: int) -> Release:
    """A release under its own number; made again after a crash it has the same folder."""
    return Release(number, kind, f"{datasets.base(one, kind, epsilon)}-{number[:4]}", epsilon, photos, today(), False)


def _costs(one: DataSet, cost: Cost) -> tuple[Cost, ...]:
    return (cost, cost.per("person", times=one.most)) if one.most else (cost,)


def _prior(one: DataSet, names: list[str]) -> Any:
    """Public knowledge about label names, where the photos were read by the network that it is about."""
    from blindsight.tagging.photos import Extractor, public_knowledge

    return public_knowledge(names, Extractor("efficientnet"))[0] if one.features.startswith("efficientnet") else None


def _tagger(one: DataSet, names: list[str]) -> PrivateTagger:
    """One total epsilon for training, beginning at what is public about the words; exact answers."""
    training = DPTraining(epsilon=EPSILON / 2, delta=_DELTA)
    return PrivateTagger(training, Exact(), classes=names, prior=_prior(one, names))


def _counted(
    datasets: DataSets, one: DataSet, tagger: PrivateTagger, kept: dict[str, Any], rows: NDArray[Any]
) -> dict[str, Any]:
    """How good the tags are on all labelled photos, none of which was learned from."""
    where = {photo.id: i for i, photo in enumerate(datasets.photos(one))}
    given = [(where[number], tags) for number, tags in kept["given"].items() if number in where]
    truth = np.array([[name in tags for name in kept["names"]] for _, tags in given], bool)
    told = _told(tagger, rows[[row for row, _ in given]]) if given else truth
    right, found = (float(np.sum(told & truth)) / max(1, int(by.sum())) for by in (told, truth))
    return {"held": len(given), "right": round(100 * right), "found": round(100 * found)}


def _keep_thoughts(
    datasets: DataSets, one: DataSet, tagger: PrivateTagger, rows: NDArray[Any], quality: dict[str, Any]
) -> None:
    """What the model says of every photo, in the vault."""
    chances = _chances(tagger, rows)
    thought = {p.id: [round(float(v), 3) for v in chances[i]] for i, p in enumerate(datasets.photos(one))}
    stored = {"names": list(tagger.classes_), "chances": thought, "quality": quality}
    write_atomically(datasets.vault(one) / "tags.json", json.dumps(stored).encode())


def _price() -> Cost:
    """Two neighbours of one more or less make one that is replaced: epsilon twice, delta 1 + e^epsilon times."""
    return Cost(epsilon=EPSILON, delta=_DELTA * (1 + math.exp(EPSILON / 2)), unit="record")


def _chances(tagger: Any, rows: NDArray[Any]) -> NDArray[np.float64]:
    """How sure the model is of each label, 0.5 where it would begin to say it."""
    told = _told(tagger, rows)
    sure = 1 / (1 + np.exp(-np.asarray(tagger.logits(rows), np.float64)))
    return np.where(told, np.maximum(sure, 0.51), np.minimum(sure, 0.49))


def _told(tagger: Any, rows: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(tagger.answer(rows).tags, bool)
