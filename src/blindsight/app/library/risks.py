"""Utility and risk of a release: measured on public photos or on these photos before it is made,
and by attack afterwards.

Everything here is computed and stored on this machine, for the owner only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.defaults import no_progress
from blindsight.app.library.accounts import has_own_vault, vault_of
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import (
    book_of,
    directions,
    encoder,
    encoder_label,
    image_encoder,
    keep_thumbnail,
    released_cells,
    rows_of,
)
from blindsight.app.result import Progress
from blindsight.core import storage
from blindsight.core.errors import (
    BlindsightError,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
    MissingDependency,
)

if TYPE_CHECKING:
    from blindsight.audit.release.album import Kinds
    from blindsight.data import ImageSet

__all__ = [
    "MIN_ATTACKED",
    "attack_release",
    "find_release",
    "forecast_remedies",
    "kinds_shown",
    "look_at_own",
    "look_at_public",
    "measure_release",
    "refuse_chance",
    "report_folder",
    "seen",
    "too_few",
]

_MAX_PUBLIC_PHOTOS = 1000
_MAX_TRIED_QUERIES = 60
_REMEDY_PHOTOS = 60


def look_at_own(datasets: DataSets, data_set: DataSet, progress: Progress = no_progress) -> None:
    """Measure search and risk at each epsilon on offer on the data set's own photos.

    Of the result, pages show only how the photos are spread over the groups, unless the owner asks
    for the rest; then the caller stores that the owner looked.
    """
    every = rows_of(datasets, data_set)
    chosen = np.sort(np.random.default_rng().permutation(len(every))[: defaults.MEASURED_PHOTOS])
    kinds = kinds_shown(datasets, data_set, chosen)
    measured = _look(every[chosen], kinds, data_set, progress)
    photos = datasets.photos(data_set)
    ids = [photos[row].id for row in chosen]
    _use_ids(measured, ids)
    measured["groups"] = _groups_used(every[chosen], ids, data_set)
    if measured[f"{defaults.EPSILON_CHOSEN_FIRST:g}"]["at_chance"]:
        measured["remedies"] = forecast_remedies(datasets, data_set, progress)
    datasets.write_private(data_set, _preview_file("own"), measured)


def look_at_public(datasets: DataSets, data_set: DataSet, progress: Progress = no_progress) -> None:
    """Measure on public photos, if there are some on this machine, so that epsilon can be chosen
    before anything is measured on the data set's own photos.
    """
    public = _public(datasets.settings.public, Path(data_set.source))
    if public is None:
        return
    from blindsight.audit.release.album import Kinds

    progress(f"reading public photos of {public.name}", 0, len(public.shows))
    rows = _public_rows(datasets, public, data_set.features, progress)
    kinds = (Kinds(public.shows, (), "the folders they lie in"),)
    measured = _look(rows, kinds, data_set, progress)
    ids = [
        hashlib.sha256(f"public {public.name} {i}".encode()).hexdigest()[:32]
        for i in range(len(rows))
    ]
    for row in {row for each in measured.values() for row, _ in each["film"]}:
        keep_thumbnail(public.read(row), datasets.thumbnail(data_set, ids[row]))
    _use_ids(measured, ids)
    measured["public"] = {"name": public.name, "photos": len(rows)}
    datasets.write_private(data_set, _preview_file("public"), measured)


def seen(datasets: DataSets, data_set: DataSet, where: str) -> dict[str, Any] | None:
    """Return the measurements on "own" or "public" photos; None if there are none."""
    measured: dict[str, Any] | None = datasets.read_private(data_set, _preview_file(where))
    return measured


def refuse_chance(datasets: DataSets, data_set: DataSet, epsilon: float) -> None:
    """Refuse a release in which search would find hardly more than chance.

    Raises:
        InvalidParameter: `look_at_own` measured that search finds hardly more than chance.
    """
    figures = (seen(datasets, data_set, "own") or {}).get(f"{epsilon:g}", {})
    if figures.get("at_chance"):
        raise InvalidParameter(
            f"at epsilon {epsilon:g} {figures['hits']:g} of ten hits would fit, and "
            f"{figures['hits_luck']:g} of ten photos at random: search would find little more "
            "than chance. Nothing was charged. Choose another encoder, say what the photos are "
            "about, or agree to it (accept_chance)."
        )


def _preview_file(where: str) -> str:
    return f"preview-{where}.json"


def _look(
    rows: NDArray[np.float32], kinds: Sequence[Kinds], data_set: DataSet, progress: Progress
) -> dict[str, Any]:
    """Measure at each epsilon on offer, and choose one query whose hits pages show as pictures."""
    from blindsight.audit.release.attacks import view_of
    from blindsight.audit.release.measurement import measure_view

    rng = np.random.default_rng()
    points = directions(rows)
    shows = kinds[0].shows if kinds else np.zeros(len(rows), np.int64)
    row = _good_question(points, shows, rng)
    nearest = _first(points @ points[row], row, rng)
    fits = shows == shows[row] if kinds else np.isin(np.arange(len(rows)), nearest)
    looked: dict[str, Any] = {"plain": {"film": _film(nearest, fits)}}
    for done, epsilon in enumerate(defaults.EPSILONS_OFFERED):
        progress(f"measuring at ε {epsilon:g}", done, len(defaults.EPSILONS_OFFERED))
        view = view_of(encoder(epsilon, data_set.features, data_set.own_names))
        released = view.drawn(rows, rng)
        figures = measure_view(view, rows, released, kinds, rng).figures()
        scores = np.asarray(view.scores(rows[[row]], released), np.float64)[0]
        looked[f"{epsilon:g}"] = figures | {"film": _film(_first(scores, row, rng), fits)}
        looked["plain"] |= {
            "hits": figures["plain_hits"],
            "guess": max(figures["plain_guess"] or 0, looked["plain"].get("guess", 0)),
        }
    return looked


def _groups_used(
    rows: NDArray[np.float32], ids: Sequence[str], data_set: DataSet
) -> dict[str, Any]:
    """Return the groups in use at the default epsilon, and ten photos of the largest group."""
    book = book_of(encoder(defaults.EPSILON_CHOSEN_FIRST, data_set.features, data_set.own_names))
    cells = book.assign(rows)
    counts = np.bincount(cells, minlength=book.k)
    alike = np.flatnonzero(cells == counts.argmax())[:10]
    return {
        "all": int(book.k),
        "used": np.flatnonzero(counts).tolist(),
        "alike": [ids[row] for row in alike],
    }


def forecast_remedies(
    datasets: DataSets, data_set: DataSet, progress: Progress = no_progress
) -> list[dict[str, Any]]:
    """Measure on a sample of these photos what search would give if they were read differently.

    Nothing is released or charged. All forecasts use the same photos, the epsilon that is
    preselected, and the same ground truth: the folders if these group the photos, else the hits of
    search without protection.

    Returns:
        The figures for the present encoder, for each other built-in network whose weights are on
        this machine, and for the present encoder with groups learned from the public folder of the
        settings, if that is a folder. Each has `name` (the encoder) and `public`.
    """
    from PIL import Image

    from blindsight.audit.release.album import folder_kinds
    from blindsight.audit.release.measurement import measure
    from blindsight.encoders import BUILT_IN
    from blindsight.encoders.network import available
    from blindsight.index.encoder import make_encoder

    epsilon, photos = defaults.EPSILON_CHOSEN_FIRST, datasets.photos(data_set)[:_REMEDY_PHOTOS]
    pictures = [Image.open(datasets.thumbnail(data_set, photo.id)) for photo in photos]
    pixels = [np.asarray(picture.convert("RGB")) for picture in pictures]
    by_folder = folder_kinds([photo.name for photo in photos])
    kinds = () if by_folder is None or data_set.person == "folder" else (by_folder,)
    others = [
        BUILT_IN[name].name
        for name in defaults.NETWORKS_OFFERED
        if available(name) and BUILT_IN[name].name != data_set.features
    ]
    folder = Path(datasets.settings.public).expanduser()
    tried = [(features, "") for features in (data_set.features, *others)]
    public_set = _public(str(folder), Path(data_set.source)) if datasets.settings.public else None
    if public_set is not None and folder.is_dir():
        tried.append((data_set.features, str(folder)))
    forecasts = []
    for done, (features, public) in enumerate(tried):
        progress("trying other ways to read these photos", done, len(tried))
        recipe = image_encoder(features)
        rows = recipe.rows(np.stack([recipe.prepare(each) for each in pixels])).astype(np.float32)
        photo_encoder = encoder(epsilon, features, data_set.own_names)
        if public:
            try:
                photo_encoder = make_encoder(
                    replace(photo_encoder.recipe, public=public, own_names=())
                )
            except BlindsightError:
                continue  # too few public pictures to learn groups from
        measured = measure(photo_encoder, rows, kinds, rng=np.random.default_rng(0)).figures()
        forecasts.append({"name": features, "public": bool(public), **measured})
    return forecasts


def _good_question(
    points: NDArray[np.float32], shows: NDArray[np.int64], rng: np.random.Generator
) -> int:
    """Return a photo whose neighbours without protection show the same, as an example."""
    candidates = rng.permutation(len(points))[:_MAX_TRIED_QUERIES]
    fitting = [
        float(np.mean(shows[_first(points @ points[row], int(row), rng)] == shows[row]))
        for row in candidates
    ]
    return int(candidates[int(np.argmax(fitting))])


def _first(scores: NDArray[Any], own: int, rng: np.random.Generator) -> list[int]:
    """Return the ten best rows without the query itself; equal scores are in random order."""
    order = np.lexsort((rng.random(len(scores)), -scores))
    return [int(row) for row in order if row != own][:10]


def _film(first: list[int], fits: NDArray[np.bool_]) -> list[list[Any]]:
    return [[hit, bool(fits[hit])] for hit in first]


def _use_ids(measured: dict[str, Any], ids: list[str]) -> None:
    """Replace row numbers by the ids of photos, which another scan does not change."""
    for each in measured.values():
        each["film"] = [[ids[row], hit] for row, hit in each["film"]]


@dataclass(frozen=True)
class _Public:
    """Public photos: their name, what each shows, and a function that reads one."""

    name: str
    shows: NDArray[np.int64]
    read: Callable[[int], NDArray[np.uint8]]


def _public(source: str, photos: Path) -> _Public | None:
    """Open a folder with one subfolder for each kind of photo, or a known data set; None if it is
    not on this machine.
    """
    from blindsight.data import read_image
    from blindsight.data.listing import list_photos
    from blindsight.index.public_images import refuse_private

    folder, draw = Path(source).expanduser(), np.random.default_rng(0)
    if not source:
        return None
    if folder.is_dir():
        names = list(list_photos(folder).photos)
        try:
            refuse_private(str(folder), photos, list_photos(photos).photos)
        except InvalidData:
            return None  # the folder contains photos that are to be protected
        names = [names[i] for i in draw.permutation(len(names))[:_MAX_PUBLIC_PHOTOS]]
        folders = [name.rpartition("/")[0].rpartition("/")[2] for name in names]
        shows = np.unique(folders, return_inverse=True)[1]
        return _Public(folder.name, shows.astype(np.int64), lambda i: read_image(folder / names[i]))
    name, pictures = _known_set((source, defaults.BUNDLED_PICTURES))
    if pictures is None or pictures.labels is None:
        return None
    labels = pictures.labels
    some = draw.permutation(len(pictures))[:_MAX_PUBLIC_PHOTOS]
    return _Public(name, labels[some], lambda i: pictures.images[int(some[i])])


def _known_set(names: Sequence[str]) -> tuple[str, ImageSet | None]:
    """Return the first of these data sets that is on this machine, with its name."""
    from blindsight.data import load

    for name in names:
        try:
            return name, load(name)
        except (MissingData, MissingDependency):
            continue
    return "", None


def _public_rows(
    datasets: DataSets, public: _Public, features: str, progress: Progress
) -> NDArray[np.float32]:
    """Return the features of public photos, which are stored for the next time."""
    recipe, n = image_encoder(features), len(public.shows)
    # By the encoder's identity, not by its path: its files may change.
    label = encoder_label(features)
    key = hashlib.sha256(f"{public.name} {label} {n}".encode()).hexdigest()[:12]
    path = datasets.settings.state / "public" / f"{key}.safetensors"
    try:
        stored: NDArray[np.float32] = storage.load(path, kind="public-features")[0]["rows"]
        return stored
    except (HostileFile, MissingData):
        path.parent.mkdir(exist_ok=True, mode=0o700)
    blocks = []
    for start in range(0, n, 32):
        progress("reading public photos", start, n)
        images = [recipe.prepare(public.read(i)) for i in range(start, min(n, start + 32))]
        blocks.append(recipe.rows(np.stack(images)).astype(np.float32))
    rows = np.concatenate(blocks)
    storage.save(path, kind="public-features", arrays={"rows": rows}, fields={})
    return rows


def kinds_shown(
    datasets: DataSets, data_set: DataSet, chosen: NDArray[np.int64] | None = None
) -> tuple[Kinds, ...]:
    """Return what the photos, or the chosen ones, show, by folders and by the encoder's classes."""
    from blindsight.audit.release.album import kinds_of

    rows, photos = rows_of(datasets, data_set), datasets.photos(data_set)
    at = np.arange(len(rows)) if chosen is None else chosen
    return kinds_of(
        [photos[row].name for row in at],
        rows[at],
        image_encoder(data_set.features),
        folders=data_set.person != "folder",
    )


def measure_release(datasets: DataSets, data_set: DataSet, release: Release) -> dict[str, Any]:
    """Return the figures of a search index: its utility, and what others learn from it.

    The random draws are those of the attack on the release (`audit.release.audit_release`), so that
    pages and report show the same figures.
    """
    from blindsight.audit.release.measurement import measure, release_draws
    from blindsight.index.release_folder import ReleaseFolder

    ids, cells, photo_encoder = released_cells(datasets, data_set, release)
    row_of = {photo.id: row for row, photo in enumerate(datasets.photos(data_set))}
    rng = release_draws(ReleaseFolder.read(datasets.folder(release)).release)
    drawn = np.sort(rng.permutation(len(ids))[: defaults.MEASURED_PHOTOS])
    chosen = np.array([number for number in drawn if ids[number] in row_of], np.int64)
    at = np.array([row_of[ids[number]] for number in chosen], np.int64)
    kinds = kinds_shown(datasets, data_set, at)
    rows = rows_of(datasets, data_set)[at]
    return measure(photo_encoder, rows, kinds, cells=cells[chosen], rng=rng).figures()


#: An attack on a search index of fewer photos gives no meaningful counts.
MIN_ATTACKED = 20
_PAIRS_SHOWN = 4


def too_few(release: Release) -> bool:
    """Return whether a search index has too few photos to be attacked."""
    return release.kind == "search" and release.photos < MIN_ATTACKED


def attack_release(
    datasets: DataSets, release: str, progress: Progress = no_progress
) -> dict[str, Any]:
    """Attack a release, measure the result against the photos, and store it.

    Parameters:
        datasets: all data sets.
        release: the id of the release.
        progress: called with (stage, done, total).

    Returns:
        Whether the attack refuted the guarantee, as "refuted".
    """
    data_set, target = find_release(datasets, release)
    progress("reading what was shared", 0, 4)
    measured = (
        _index(datasets, data_set, target, progress)
        if target.kind == "search"
        else _model(datasets, target)
    )
    result = {"when": today(), "photos": target.photos, **measured}
    datasets.keep_release(
        data_set, replace(datasets.get(data_set.id).release(target.id), attack=result)
    )
    return {"refuted": result["refuted"]}


def _index(
    datasets: DataSets, data_set: DataSet, release: Release, progress: Progress
) -> dict[str, Any]:
    """Attack a search index with the photos as the truth, and write a report for the owner."""
    from blindsight.audit.release import audit_release

    folder, vault = datasets.folder(release), vault_of(datasets, data_set)
    audit = audit_release(
        folder,
        vault.path,
        photos=data_set.source,
        encoder=image_encoder(data_set.features),
        folders=data_set.person != "folder",
        dataset="" if has_own_vault(datasets, data_set) else data_set.id,
        trials=defaults.AUDIT_TRIALS_QUICK,
        progress=lambda done, total, stage: progress(stage, done, total),
    )
    audit.write(report_folder(datasets, data_set, release))
    audited = audit.card.audited
    ids, cells, _ = released_cells(datasets, data_set, release)
    figures = audit.measured.figures()  # of the report, so that all pages show the same figures
    datasets.keep_release(
        data_set, replace(datasets.get(data_set.id).release(release.id), figures=figures)
    )
    return {
        "epsilon": 0.0 if audited is None else round(float(audited.epsilon), 2),
        "refuted": audit.refuted,
        "looked_at": audit.looked_at,
        **{name: value for name, value in figures.items() if name != "photos"},
        "pairs": _pairs(cells, ids),
        "advice": audit.advice(),
    }


def _model(datasets: DataSets, release: Release) -> dict[str, Any]:
    """Attack a model or published tags with the worst pair of neighbouring inputs."""
    from blindsight.app.library.sending import STATISTICS_FILE
    from blindsight.audit.release.sketches_and_tags import read_guarantee
    from blindsight.audit.target import audit, audit_file

    folder = datasets.folder(release)
    files = {
        "tags": "tagger.safetensors",
        "metric": "metric.safetensors",
        "statistics": STATISTICS_FILE,
    }
    if release.kind == "published":
        stated = read_guarantee(folder / "guarantee.json")
        outcome = audit(stated.releases[0].mechanism, trials=defaults.AUDIT_TRIALS_QUICK)
    else:
        outcome = audit_file(folder / files[release.kind], trials=defaults.AUDIT_TRIALS_QUICK)
    audited = getattr(outcome.card, "audited", None)
    return {
        "epsilon": 0.0 if audited is None else round(float(audited.epsilon), 2),
        "refuted": bool(outcome.verdict is not None and outcome.verdict.refuted),
        "advice": [],
    }


def report_folder(datasets: DataSets, data_set: DataSet, release: Release) -> Path:
    """Return the folder of the report of the last attack on a release."""
    return datasets.vault(data_set) / "audits" / release.id


def _pairs(cells: Any, ids: list[str]) -> list[dict[str, Any]]:
    """Return random photos, each with another photo of the same code."""
    rng = np.random.default_rng()
    pairs: list[dict[str, Any]] = []
    for row in rng.permutation(len(ids)):
        others = np.flatnonzero((cells == cells[row]) & (np.arange(len(ids)) != row))
        if len(others) and len(pairs) < _PAIRS_SHOWN:
            pairs.append({"yours": ids[row], "same": ids[int(rng.choice(others))]})
    return pairs


def find_release(datasets: DataSets, number: str) -> tuple[DataSet, Release]:
    """Return a release by its number, with its data set.

    Raises:
        MissingData: if there is no such release.
    """
    for data_set in datasets.listed():
        for release in data_set.releases:
            if release.id == number:
                return data_set, release
    raise MissingData(f"there is no release {number[:20]!r} here.")
