"""Send from a data set of the library: statistics for training, and a trial of sketches that shows
what attackers recover and whether it can be recognised.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.defaults import no_progress
from blindsight.app.labelled_images import public_basis
from blindsight.app.library.accounts import (
    account_ledger,
    release_note,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import directions, points_of, rows_of
from blindsight.app.library.tags import labels_of
from blindsight.app.result import Progress
from blindsight.app.send import predict_sending
from blindsight.core.errors import InvalidData, InvalidParameter, MissingData
from blindsight.core.plots import data_uri
from blindsight.core.storage import write_atomically
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.release.manifest import share_folder
from blindsight.sketching import FeatureStatistics
from blindsight.sketching.statistics_rules import StatisticsForecast, gaussian_mu, width_for

__all__ = [
    "SEND_EPSILON",
    "SEND_EPSILONS",
    "SETTINGS",
    "SHOWN",
    "SIDES",
    "STATISTICS_FILE",
    "TRIED",
    "LabelForecast",
    "SendingPlan",
    "added_epsilon",
    "attack",
    "fit_with_partner",
    "last_trial",
    "partner_model",
    "release_statistics",
    "sending_plan",
    "try_sketches",
]

#: Epsilons per photo (or per person) of statistics on offer, for one photo replaced by another.
SEND_EPSILONS = (1.0, 2.0, 4.0, 8.0)
#: The epsilon that is preselected.
SEND_EPSILON = 2.0
#: The file of a release of statistics.
STATISTICS_FILE = "photos.statistics"
_PARTNER_MODEL, _PARTNER_RESULT = "model.safetensors", "two-sites/result.json"


@dataclass(frozen=True)
class SendingPlan:
    """What statistics of a data set would be good for, for the owner.

    Parameters:
        classes: the names of the classes.
        photos: number of photos, which is public.
        classified: number of photos with exactly one class. Labels are private, so neither the
            forecast nor the release may depend on it.
        forecasts: for each epsilon on offer, the accuracy that a receiver can expect of so many
            photos; empty if there are fewer than two classes.
        released: the last release of statistics, if there is one.
        labels: a forecast for each label, from the number of photos that have it.
    """

    classes: tuple[str, ...]
    photos: int
    classified: int
    forecasts: dict[float, StatisticsForecast]
    released: Release | None
    labels: tuple[LabelForecast, ...] = ()


@dataclass(frozen=True)
class LabelForecast:
    """What a receiver can expect for one label, for the owner only, since it depends on the number
    of photos with the label.

    Parameters:
        name: the label.
        photos: number of photos with this label and no other.
        example: the id of one of these photos; "" if there is none.
        forecasts: for each epsilon on offer, the accuracy that could be expected if every label had
            as many photos as this one.
    """

    name: str
    photos: int
    example: str
    forecasts: dict[float, StatisticsForecast]


def sending_plan(
    datasets: DataSets, data_set: DataSet, *, together: int | None = None
) -> SendingPlan:
    """Predict what statistics of a data set would be good for; nothing is charged.

    Parameters:
        datasets: the owner's library.
        data_set: the data set.
        together: number of photos of all sites, where the statistics of several will be merged.
    """
    stored = labels_of(datasets, data_set)
    names = tuple(str(name) for name in stored["names"])
    photos = datasets.photos(data_set)
    of_label: dict[str, list[str]] = {name: [] for name in names}
    for photo in photos:
        own = set(stored["given"].get(photo.id, ())) & of_label.keys()
        if len(own) == 1:
            of_label[own.pop()].append(photo.id)
    classified = sum(map(len, of_label.values()))
    earlier = [release for release in data_set.releases if release.kind == "statistics"]
    released = earlier[-1] if earlier else None
    if len(names) < 2:
        return SendingPlan(names, len(photos), classified, {}, released)

    def expected(n_photos: int) -> dict[float, StatisticsForecast]:
        return {
            epsilon: predict_sending(
                n_photos,
                len(names),
                epsilon=added_epsilon(epsilon),
                images_per_person=max(1, data_set.most),
            )
            for epsilon in sorted({*SEND_EPSILONS, SEND_EPSILON})
        }

    labels = tuple(
        LabelForecast(
            name, len(ids), ids[0] if ids else "", expected(max(1, len(names) * len(ids)))
        )
        for name, ids in of_label.items()
    )
    forecasts = expected(together or len(photos))
    return SendingPlan(names, len(photos), classified, forecasts, released, labels)


def release_statistics(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    epsilon: float | None = None,
    together: int | None = None,
    actor: str | None = None,
) -> dict[str, Any]:
    """Charge once, then release noisy statistics of all photos.

    A photo without exactly one class adds nothing to the sums. It counts among the photos all the
    same, because it is private which photos have a label.

    Parameters:
        datasets: the owner's library.
        data_set: the data set.
        progress: called with (stage, done, total).
        epsilon: one of `SEND_EPSILONS`.
        together: number of photos of all sites, where the statistics of several will be merged:
            files can be merged only if all sites state the same number.
        actor: the name of the person who asks for the release, for the ledger.

    Returns:
        The numbers of photos and of classes.

    Raises:
        InvalidParameter: there are fewer than two classes, or so few photos that a receiver could
            learn nothing; nothing is charged.
    """
    from blindsight.app.library.photos import image_encoder

    plan = sending_plan(datasets, data_set, together=together)
    photos = together or plan.photos
    epsilon = SEND_EPSILON if epsilon is None else epsilon
    if not plan.forecasts:
        raise InvalidParameter("name at least two classes first, on the page Tags.")
    if epsilon not in plan.forecasts:
        raise InvalidParameter(f"epsilon must be one of {tuple(plan.forecasts)}, got {epsilon:g}.")
    if plan.forecasts[epsilon].refused:
        raise InvalidParameter(plan.forecasts[epsilon].line())
    progress("reading your labels", 0, 2)
    records, people, rows, names = _classified(datasets, data_set, plan.classes)
    encoder = image_encoder(data_set.features)
    most = max(1, data_set.most)
    added = added_epsilon(epsilon)
    width = width_for(photos, len(plan.classes), epsilon=added, most=most)
    basis = public_basis(encoder, None, width, progress=progress)
    settings = {
        "epsilon": added,
        "classes": list(plan.classes),
        "most": data_set.most,
        "basis": basis.digest,
        "encoder": encoder.identity(),
        **({} if together is None else {"all": together}),
    }
    lines = "\x1e".join("\x1f".join(row) for row in zip(records, names, people, strict=True))
    vault = vault_of(datasets, data_set)
    inputs = f"statistics {json.dumps(settings, sort_keys=True)} {_digest(lines)}"
    number = vault.release_of(inputs)
    progress("releasing", 1, 2)
    sender = FeatureStatistics(
        added,
        classes=plan.classes,
        basis=basis,
        unit="person" if data_set.most else "record",
        most=most,
        n_records=photos,
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
    folder = datasets.named(data_set, "statistics", epsilon, number)
    # Pages multiply a release's epsilon by the photos per person; this epsilon is per person.
    release = Release(number[:12], "statistics", folder, epsilon / most, 0, today(), False)
    sender.public_["release"] = number
    share_folder(
        datasets.folder(release),
        STATISTICS_FILE,
        lambda folder: sender.save(folder / STATISTICS_FILE),
        "statistics",
        guarantee=sender.guarantee_,
        vault=vault,
        note=release_note(datasets, data_set, number, sender.guarantee_.costs),
    )
    datasets.keep_release(data_set, replace(release, photos=len(records)))
    return {"photos": len(records), "classes": len(plan.classes)}


def fit_with_partner(datasets: DataSets, data_set: DataSet, theirs: bytes) -> dict[str, Any]:
    """Fit one model to the last statistics of this data set and those of another site.

    Both have noise already, so the model costs nothing more. Its accuracy is measured on the photos
    of this data set, which are among its training data.

    Parameters:
        datasets: the owner's library.
        data_set: the data set whose statistics were released.
        theirs: the content of the other site's file, which is not trusted.

    Returns:
        The accuracy in per cent of the model of both sites ("together"), of a model of this site
        ("alone") and of guessing ("luck"), and when it was measured.

    Raises:
        MissingData: no statistics of this data set were released.
        HostileFile: the other file is damaged or was changed.
        InvalidData: the two files cannot be merged, or are the same.
    """
    from blindsight.sketching import fit_from_statistics, merge_statistics

    plan = sending_plan(datasets, data_set)
    if plan.released is None:
        raise MissingData("no statistics of this data set were released. Release them first.")
    folder = datasets.vault(data_set) / "two-sites"
    folder.mkdir(exist_ok=True, mode=0o700)
    own_file = datasets.folder(plan.released) / STATISTICS_FILE
    if own_file.read_bytes() == theirs:
        raise InvalidData("this is the file of this site. Choose the one that the other site sent.")
    partner_file = folder / "theirs.statistics"
    write_atomically(partner_file, theirs)
    parts = [FeatureStatistics.load(path).statistics_ for path in (own_file, partner_file)]
    models = {
        "alone": fit_from_statistics(parts[0]),
        "together": fit_from_statistics(merge_statistics(parts)),
    }
    models["together"].save(folder / _PARTNER_MODEL)
    _, _, rows, names = _classified(datasets, data_set, plan.classes)
    truth = np.array(names)
    classified = truth != ""
    result = {
        "when": today(),
        "photos": int(classified.sum()),
        "luck": round(100 / len(plan.classes)),
        **{
            word: round(100 * float(np.mean(model.predict(rows[classified]) == truth[classified])))
            for word, model in models.items()
        },
    }
    datasets.write_private(data_set, _PARTNER_RESULT, result)
    return result


def partner_model(datasets: DataSets, data_set: DataSet) -> tuple[dict[str, Any], Path] | None:
    """Return figures and file of the last model of two sites; None if there is none."""
    figures = datasets.read_private(data_set, _PARTNER_RESULT)
    if figures is None:
        return None
    return figures, datasets.vault(data_set) / "two-sites" / _PARTNER_MODEL


def _classified(
    datasets: DataSets, data_set: DataSet, classes: tuple[str, ...]
) -> tuple[list[str], list[str], NDArray[np.float32], list[str]]:
    """Return ids, persons, features and class of all photos; "" if not exactly one class."""
    labels_by_photo = labels_of(datasets, data_set)["given"]
    wanted = set(classes)
    vault = vault_of(datasets, data_set)
    person_of = {photo.record: photo.person for photo in vault.photos(data_set.id).values()}
    records = [photo.id for photo in datasets.photos(data_set)]
    chosen = [sorted(set(labels_by_photo.get(record, ())) & wanted) for record in records]
    names = [own[0] if len(own) == 1 else "" for own in chosen]
    return records, [person_of.get(r, r) or r for r in records], rows_of(datasets, data_set), names


def added_epsilon(epsilon: float) -> float:
    """Return the epsilon per added or removed photo at which a replaced photo costs `epsilon`."""
    return gaussian_epsilon(gaussian_mu(epsilon, defaults.DELTA) / 2, defaults.DELTA)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


#: Settings of sketches that are tried, by the name that pages show.
SETTINGS = {"coarse": "Q3", "medium": "Q6", "fine": "Q9"}
#: Sides in pixels that photos may be resized to before they are sketched.
SIDES = (64, 128)
#: Photos that are sketched and attacked, and how many of them are shown.
TRIED, SHOWN = 24, 6
# Public images, training steps and width of the network of the learning attacker.
_PUBLIC, _STEPS, _WIDTH = 300, 60, 12


def try_sketches(
    datasets: DataSets, data_set: DataSet, progress: Progress = no_progress, *, side: int = SIDES[0]
) -> dict[str, Any]:
    """Sketch some photos with three settings, attack the sketches, and count how many photos can be
    recognised among all photos by what the attackers recover.
    """
    photos, rows = datasets.photos(data_set), points_of(datasets, data_set)
    rng = np.random.default_rng()
    # Photos are searched for among all photos, or a sample of them that can be compared in time.
    among = rng.permutation(len(photos))[: defaults.MEASURED_PHOTOS]
    picked = np.arange(min(TRIED, len(among)))
    progress("reading photos", 0, len(SETTINGS))
    squares = np.stack([_square(datasets, data_set, photos[row].id, side) for row in among])
    tried: dict[str, Any] = {
        "when": today(),
        "photos": [photos[row].id for row in among[picked[:SHOWN]]],
        "tried": len(picked),
        "among": len(among),
        "side": side,
    }
    for done, (word, setting) in enumerate(SETTINGS.items()):
        progress(f"sketching and attacking: {word}", done, len(SETTINGS))
        sent, back, verdict = attack(squares[picked], setting)
        recognised = {
            name: _recognised(pictures, picked, squares, rows[among], data_set.features)
            for name, pictures in back.items()
        }
        best = max(recognised, key=lambda name: sum(recognised[name]))
        tried[word] = {
            "sent": [data_uri(image) for image in sent[:SHOWN]],
            "back": {
                name: [data_uri(image) for image in pictures[:SHOWN]]
                for name, pictures in back.items()
            },
            "known": recognised,
            "best": best,
            # A photo counts as recognised if any attacker's image finds it by any matcher.
            "recognised": sum(any(flags) for flags in zip(*recognised.values(), strict=True)),
            "verdict": verdict,
        }
    datasets.write_private(data_set, "send.json", tried)
    return {"recognised": {word: tried[word]["recognised"] for word in SETTINGS}}


def attack(
    squares: NDArray[np.uint8], setting: str
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], str]:
    """Sketch grey images, and attack the sketches with knowledge of the setting and of public
    images.

    Returns:
        What is sent, as images; what each attacker recovers; and a verdict.
    """
    from blindsight.index.public_images import built_in_images
    from blindsight.sketching import NegativeSketcher
    from blindsight.sketching.attackers import Suite, measure, measured_verdict

    sketches = NegativeSketcher(setting, n_jobs=1).fit(squares).sketch(squares)
    public = np.rint(built_in_images(_PUBLIC, SIDES[0]).mean(axis=3)).astype(np.uint8)
    suite = Suite(sketches.parameters, public=public, steps=_STEPS, width=_WIDTH)
    recovered = {
        name: np.clip(pictures, 0, 255) for name, pictures in suite.recover(sketches).items()
    }
    measured = [measure(name, squares, pictures) for name, pictures in recovered.items()]
    sent = np.stack([_sent(counts) for counts in sketches.counts[:, 0]])
    return sent, recovered, measured_verdict(measured, squares.shape, missing=suite.missing)


def _recognised(
    pictures: NDArray[Any],
    own: NDArray[np.int64],
    squares: NDArray[np.uint8],
    rows: NDArray[Any],
    features: str,
) -> list[bool]:
    """Return whether each recovered image finds its own photo first, by either of two matchers."""
    from blindsight.app.library.photos import image_encoder
    from blindsight.audit.release.measurement import found_again

    recipe = image_encoder(features)
    images = np.stack([recipe.prepare(np.rint(image).astype(np.uint8)) for image in pictures])
    by_matcher = found_again(
        pictures, own, squares, vectors=directions(recipe.rows(images)), gallery=rows
    )
    return [any(flags) for flags in zip(*by_matcher.values(), strict=True)]


def _square(datasets: DataSets, data_set: DataSet, photo: str, side: int) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(datasets.thumbnail(data_set, photo)) as image:
        return np.asarray(image.convert("L").resize((side, side), Image.Resampling.BILINEAR))


def _sent(counts: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the share of ones in the counts of the first bit, as a grey image."""
    zeros, ones = counts[0].astype(np.float64)
    return np.asarray(np.rint(255.0 * ones / np.maximum(zeros + ones, 1)), np.uint8)


def last_trial(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """Return the figures of the last trial, for the owner; None if there was none."""
    figures: dict[str, Any] | None = datasets.read_private(data_set, "send.json")
    return figures
