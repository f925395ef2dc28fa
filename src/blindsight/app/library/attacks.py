"""Attack what a library released, with the owner's photos as the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.app import defaults
from blindsight.app.library.accounts import has_own_vault, vault_of
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import image_encoder, released_cells
from blindsight.app.result import Progress, no_progress
from blindsight.core.errors import MissingData

__all__ = ["MIN_ATTACKED", "attack_release", "find_release", "report_folder", "too_few"]

#: Photos in a search index below which an attack's counts mean nothing.
MIN_ATTACKED = 20
_PAIRS_SHOWN = 4


def too_few(release: Release) -> bool:
    """Return whether a search index has too few photos to be attacked."""
    return release.kind == "search" and release.photos < MIN_ATTACKED


def attack_release(
    datasets: DataSets, release: str, progress: Progress = no_progress
) -> dict[str, Any]:
    """What a stranger who holds the release makes of it, measured against the photos it stands
    for.
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
    """An index: the library's own attack on a release, with the photos as the truth, and its report
    into the vault.
    """
    from blindsight.audit.release import audit_release

    folder, vault = datasets.folder(release), vault_of(datasets, data_set)
    found = audit_release(
        folder,
        vault.path,
        photos=data_set.source,
        encoder=image_encoder(data_set.features),
        folders=data_set.person != "folder",
        dataset="" if has_own_vault(datasets, data_set) else data_set.id,
        trials=defaults.AUDIT_TRIALS_QUICK,
        progress=lambda done, total, stage: progress(stage, done, total),
    )
    found.write(report_folder(datasets, data_set, release))
    audited = found.card.audited
    ids, cells, _ = released_cells(datasets, data_set, release)
    figures = found.measured.figures()  # those of the report, so that all pages show the same
    datasets.keep_release(
        data_set, replace(datasets.get(data_set.id).release(release.id), figures=figures)
    )
    return {
        "epsilon": 0.0 if audited is None else round(float(audited.epsilon), 2),
        "refuted": found.refuted,
        "looked_at": found.looked_at,
        **{name: value for name, value in figures.items() if name != "photos"},
        "pairs": _pairs(cells, ids),
        "advice": found.advice(),
    }


def _model(datasets: DataSets, release: Release) -> dict[str, Any]:
    """A model or published tags: what is released about one record, attacked on the worst that it
    could be.
    """
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
        found = audit(stated.releases[0].mechanism, trials=defaults.AUDIT_TRIALS_QUICK)
    else:
        found = audit_file(folder / files[release.kind], trials=defaults.AUDIT_TRIALS_QUICK)
    audited = getattr(found.card, "audited", None)
    return {
        "epsilon": 0.0 if audited is None else round(float(audited.epsilon), 2),
        "refuted": bool(found.verdict is not None and found.verdict.refuted),
        "advice": [],
    }


def report_folder(datasets: DataSets, data_set: DataSet, release: Release) -> Path:
    """Return where the report of the last attack on a release is kept."""
    return datasets.vault(data_set) / "audits" / release.id


def _pairs(cells: Any, ids: list[str]) -> list[dict[str, Any]]:
    """Photos drawn at random, each beside another one with the same code: what the code cannot tell
    apart.
    """
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
