"""Statistics of a data set's labelled photos, with a proof, for somebody who trains on them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app.labelled_images import public_basis
from blindsight.app.library.accounts import (
    account_ledger,
    name_release,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import rows_of
from blindsight.app.library.tags import labels_of
from blindsight.app.result import Progress, no_progress
from blindsight.app.send import DEFAULT_DELTA, predict_sending
from blindsight.core.errors import InvalidParameter
from blindsight.core.storage import write_atomically
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.sketching import FeatureStatistics
from blindsight.sketching.statistics_rules import Forecast, gaussian_mu, width_for

__all__ = [
    "SEND_EPSILON",
    "STATISTICS_FILE",
    "SendingPlan",
    "added_epsilon",
    "release_statistics",
    "sending_plan",
]

#: Epsilon per photo (or per person) of statistics, for one photo replaced by another.
SEND_EPSILON = 2.0
#: The file of a release of statistics.
STATISTICS_FILE = "photos.statistics"


@dataclass(frozen=True)
class SendingPlan:
    """What would be sent of a data set, from public numbers; for the owner.

    Parameters:
        classes: the names of the classes.
        photos: number of photos, which is public.
        classified: number of photos with exactly one class: the labels are private, so neither the
            forecast nor what is released may depend on it.
        forecast: what a receiver can expect of so many photos; None where there are no two classes.
        released: the last release of statistics, if there is one.
    """

    classes: tuple[str, ...]
    photos: int
    classified: int
    forecast: Forecast | None
    released: Release | None


def sending_plan(datasets: DataSets, data_set: DataSet) -> SendingPlan:
    """Say what statistics of a data set would be good for; nothing is charged."""
    kept = labels_of(datasets, data_set)
    names = tuple(str(name) for name in kept["names"])
    photos = datasets.photos(data_set)
    classified = sum(
        len(set(kept["given"].get(photo.id, ())) & set(names)) == 1 for photo in photos
    )
    expected = None
    if len(names) >= 2:
        epsilon = added_epsilon(SEND_EPSILON)
        expected = predict_sending(
            len(photos), len(names), epsilon=epsilon, images_per_person=max(1, data_set.most)
        )
    made = [release for release in data_set.releases if release.kind == "statistics"]
    released = made[-1] if made else None
    return SendingPlan(names, len(photos), classified, expected, released)


def release_statistics(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> dict[str, Any]:
    """Release noisy statistics of all photos; charged once, before.

    A photo without exactly one class adds nothing, and counts among the photos all the same: who
    has a label is private.
    """
    from blindsight.app.library.photos import image_encoder

    plan = sending_plan(datasets, data_set)
    if plan.forecast is None:
        raise InvalidParameter("name at least two classes first, on the page Tags.")
    if plan.forecast.refused:
        raise InvalidParameter(plan.forecast.line())
    progress("reading your labels", 0, 2)
    records, people, rows, names = _classified(datasets, data_set, plan.classes)
    encoder = image_encoder(data_set.features)
    most = max(1, data_set.most)
    epsilon = added_epsilon(SEND_EPSILON)
    width = width_for(plan.photos, len(plan.classes), epsilon=epsilon, most=most)
    basis = public_basis(encoder, None, width, progress=progress)
    settings = {
        "epsilon": epsilon,
        "classes": list(plan.classes),
        "most": data_set.most,
        "basis": basis.digest,
        "encoder": encoder.identity(),
    }
    lines = "\x1e".join("\x1f".join(row) for row in zip(records, names, people, strict=True))
    vault = vault_of(datasets, data_set)
    law = f"statistics {json.dumps(settings, sort_keys=True)} {_digest(lines)}"
    number = vault.release_of(law)
    progress("releasing", 1, 2)
    sender = FeatureStatistics(
        epsilon,
        classes=plan.classes,
        basis=basis,
        unit="person" if data_set.most else "record",
        most=most,
        n_records=plan.photos,
        encoder=encoder.identity(),
        random_state=vault.training_source(number),
    )
    with account_ledger(datasets, data_set) as ledger:
        require_agreement(datasets, data_set, ledger)
        account = vault.account(
            ledger, release=number, records=records, most=data_set.most, actor=actor
        )
        units = people if data_set.most else records
        sender.fit(rows, np.array(names), units=np.array(units), ledger=account)
    folder = datasets.named(data_set, "statistics", SEND_EPSILON, number)
    # Pages multiply a release's epsilon by the photos of a person; this one is per person already.
    release = Release(number[:12], "statistics", folder, SEND_EPSILON / most, 0, today(), False)
    name_release(datasets, data_set, release, number, sender.guarantee_.costs)
    sender.public_["release"] = number
    sender.save(datasets.folder(release) / STATISTICS_FILE)
    card = sender.guarantee_.card() + "\n"
    write_atomically(datasets.folder(release) / "card.txt", card.encode())
    datasets.keep_release(data_set, replace(release, photos=len(records)))
    return {"photos": len(records), "classes": len(plan.classes)}


def _classified(
    datasets: DataSets, data_set: DataSet, classes: tuple[str, ...]
) -> tuple[list[str], list[str], NDArray[np.float32], list[str]]:
    """Records, persons, features and class of all photos; "" where it is not exactly one class."""
    given = labels_of(datasets, data_set)["given"]
    wanted = set(classes)
    vault = vault_of(datasets, data_set)
    person_of = {photo.record: photo.person for photo in vault.photos(data_set.id).values()}
    records = [photo.id for photo in datasets.photos(data_set)]
    chosen = [sorted(set(given.get(record, ())) & wanted) for record in records]
    names = [own[0] if len(own) == 1 else "" for own in chosen]
    return records, [person_of.get(r, r) or r for r in records], rows_of(datasets, data_set), names


def added_epsilon(epsilon: float) -> float:
    """The epsilon for one photo added or removed at which a replaced photo costs `epsilon`."""
    return gaussian_epsilon(gaussian_mu(epsilon, DEFAULT_DELTA) / 2, DEFAULT_DELTA)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
