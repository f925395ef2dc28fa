"""Attacks on a shared release, checked against the owner's photos; nothing is sent or charged.

    result = audit_release("out", "out.vault")  # the folder that was shared, and its vault
    print(result.to_text())  # also to_html(), to_json() and write(folder)

`blindsight audit RELEASE --vault VAULT` and the workbench call `audit_release(release, vault, ...)`
for codes; `audit_sketches(file, photos)` and `audit_tags(table, vault, photos)` do the same for
sketches and published tags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.audit.release import attacks
from blindsight.audit.release.album import Album, Kinds, kinds_of, read_album
from blindsight.audit.release.measurement import (
    BudgetResult,
    ReleaseAudit,
    measure_view,
    release_draws,
)
from blindsight.audit.release.sketches_and_tags import audit_sketches, audit_tags
from blindsight.audit.target import attacked_index
from blindsight.core import checks
from blindsight.core.errors import BlindsightError
from blindsight.encoders import Encoder
from blindsight.index.release_folder import ReleaseFolder

__all__ = ["BudgetResult", "ReleaseAudit", "audit_release", "audit_sketches", "audit_tags"]

_EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
Progress = Callable[[int, int, str], None]


def audit_release(
    release: str | Path,
    vault: str | Path,
    *,
    photos: str | Path | None = None,
    encoder: str | PathLike[str] | Encoder | None = None,
    labels: str | None = None,
    dataset: str = "",
    folders: bool = True,
    most: int = 2000,
    seed: int = 0,
    trials: int = 200_000,
    progress: Progress | None = None,
) -> ReleaseAudit:
    """Measure on the owner's photos what an attacker learns from a release, and how search works.

    Parameters:
        release: the folder that was shared.
        vault: its vault.
        photos: the photos' folder; by default the one that the vault remembers.
        encoder: the encoder of the release, if it is not built in.
        labels: what the photos show: "folder", or FILE.csv:COLUMN with the photos' names in the
            first column. By default the folders if there are several, otherwise the classes
            predicted by the public network.
        dataset: the name of the release's photos in a vault of several data sets.
        folders: whether folders say what photos show; False if they name people.
        most: the largest number of photos that are measured, drawn at random.
        seed: all measurements of a release use the same random draws; another seed changes them.
        trials: runs of the attack on the mechanism.
        progress: called with (done, total, what is being done).

    Returns:
        The measured answers, which can be written as a report.
    """
    rng = release_draws(ReleaseFolder.read(Path(release)).release, seed)
    step = progress or (lambda done, total, task: None)
    most = checks.whole("most", most, least=20)
    album = read_album(
        Path(release),
        Path(vault),
        photos=_path(photos),
        encoder=encoder,
        dataset=dataset,
        most=most,
        rng=rng,
        step=step,
    )
    kinds = kinds_of(album.names, album.rows, album.encoder.recipe.image, labels, folders=folders)
    view = attacks.view_of(album.encoder)
    held = view.released(album.codes)
    parts = len(_EPSILONS) + 3
    step(0, parts, "searching, guessing, looking for single photos")
    measured = measure_view(view, album.rows, held, kinds, rng)
    step(1, parts, "rebuilding photos")
    rebuilt = attacks.rebuild(view, album.rows, held, album.thumbnails, rng)
    step(2, parts, "attacking the mechanism")
    verdict, card = attacked_index(
        album.release.path, album.encoder.hasher.mechanism_, album.guarantee, trials, seed
    )
    budgets = []
    for number, epsilon in enumerate(_EPSILONS):
        step(3 + number, parts, f"trying epsilon {epsilon:g} on these photos")
        result = _at(epsilon, album, kinds, rng)
        budgets += [] if result is None else [result]
    step(parts, parts, "done")
    broken = attacks.noise_problem(view, album.rows, held)
    return ReleaseAudit(
        name=album.release.path.name,
        epsilon=album.guarantee.epsilon,
        unit=album.guarantee.unit,
        stored=album.stored,
        looked_at=len(album.rows),
        lost=album.lost,
        verdict=verdict,
        card=card,
        problems=(*album.problems, *(() if broken is None else (broken,))),
        measured=measured,
        rebuilt=rebuilt,
        budgets=tuple(budgets),
    )


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _at(
    epsilon: float, album: Album, kinds: Sequence[Kinds], rng: np.random.Generator
) -> BudgetResult | None:
    """Measure the same photos under another epsilon.

    Returns None if the public images that the encoder was learned from no longer exist.
    """
    from blindsight.index.encoder import default_bits, make_encoder

    recipe = album.recipe
    same: dict[str, Any] = {"epsilon": epsilon}
    if recipe.bits and recipe.bits == default_bits(recipe.method, recipe.unit, recipe.epsilon):
        same["bits"] = default_bits(recipe.method, recipe.unit, epsilon)
    try:
        encoder = make_encoder(dataclasses.replace(recipe, **same, seed=None))
    except BlindsightError:
        return None
    view = attacks.view_of(encoder)
    measured = measure_view(view, album.rows, view.drawn(album.rows, rng), kinds, rng)
    return BudgetResult(
        epsilon=epsilon,
        hits=measured.searched.hits,
        top1=measured.linked.top1,
        guess=None if measured.guessed is None else measured.guessed.share,
    )
