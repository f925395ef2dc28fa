"""Send: sketches of photos, for somebody who wants to train on them, and beside each what every
attacker gets back.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from numpy.typing import NDArray

from blindsight.core.plots import data_uri
from blindsight.core.storage import write_atomically
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.datasets import DataSet, DataSets, today
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import documented
from blindsight.workbench.infra.shell import Strip, render
from blindsight.workbench.pages.home import budget_of, chosen
from blindsight.workbench.pages.photo_library import directions, points_of
from blindsight.workbench.pages.protect import Next

__all__ = ["ATTACKERS", "SETTINGS", "router", "run"]

router = APIRouter(tags=["send"])
SETTINGS = {"coarse": "Q3", "medium": "Q6", "fine": "Q9"}
SIDES = (64, 128)
_SHOWN, _PUBLIC, _STEPS, _WIDTH = 6, 300, 60, 12
# The library's attackers, as a reader meets them: who, and what they know.
ATTACKERS = {
    "posterior mean": ("Anybody, in a minute", "evens out the noise"),
    "smoothing": ("A patient attacker", "smooths"),
    "denoising": ("A clever attacker", "knows what photos are made of"),
    "second reading": ("The same, reading twice", "asks again with what it found"),
    "network": ("A trained attacker", "a network that saw public pictures"),
}


@router.get("/send", include_in_schema=False)
async def page(
    request: Request,
    workbench: Parts,
    dataset: str | None = None,
    how: Annotated[Literal["coarse", "medium", "fine"], Query()] = "medium",
) -> Response:
    """Looking sends nothing."""
    return await workbench.ledger_lane.run(_page, request, workbench, dataset, how)


@router.post(
    "/api/send/{dataset}/try",
    status_code=202,
    summary="Sketch and attack",
    responses=documented("not_found", "busy"),
)
def attempt(
    dataset: DataSetId,
    workbench: Parts,
    asker: Owner,
    # Not a Literal: a query's words are text, and "64" is not 64.
    side: Annotated[
        int, Query(ge=64, le=128, multiple_of=64, description="Pixels on a side of what is sent.")
    ] = 64,
) -> Next:
    """A few photos, picked at random; everything stays here."""
    data_set = scanned(workbench, dataset, least=1)
    job = workbench.jobs.add("send", {"dataset": data_set.id, "side": side}, asker.name)
    return Next(next=f"/send?dataset={data_set.id}", job=job["id"])


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Sketches at three settings, and what every attacker makes of them: measured, and by a search
    among all photos.
    """
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    photos, rows = datasets.photos(data_set), points_of(datasets, data_set)
    picked = np.random.default_rng().permutation(len(photos))[:_SHOWN]
    side = int(arguments.get("side", SIDES[0]))
    squares = np.stack([_square(datasets, data_set, photos[i].id, side) for i in picked])
    found: dict[str, Any] = {
        "when": today(),
        "photos": [photos[i].id for i in picked],
        "among": len(photos),
    }
    found["side"] = side
    for done, (word, setting) in enumerate(SETTINGS.items()):
        job.say(done, len(SETTINGS), f"sketching and attacking: {word}")
        sent, back, verdict = attack(squares, setting)
        known = {
            name: _recognised(pictures, picked, rows, data_set.features)
            for name, pictures in back.items()
        }
        best = max(known, key=lambda name: sum(known[name]))
        found[word] = {
            "sent": [data_uri(image) for image in sent],
            "back": {
                name: [data_uri(image) for image in pictures] for name, pictures in back.items()
            },
            "known": known,
            "best": best,
            "recognised": sum(known[best]),
            "verdict": verdict,
        }
    write_atomically(datasets.vault(data_set) / "send.json", json.dumps(found).encode())
    return {"recognised": {word: found[word]["recognised"] for word in SETTINGS}}


def attack(
    squares: NDArray[np.uint8], setting: str
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], str]:
    """What is sent of grey squares, what attackers get back who know the setting and how photos
    look, and a verdict.
    """
    from blindsight.index.public_images import built_in_images
    from blindsight.sketching import NegativeSketcher
    from blindsight.sketching.attackers import Suite, measure, measured_verdict

    sketches = NegativeSketcher(setting, n_jobs=1).fit(squares).sketch(squares)
    public = np.rint(built_in_images(_PUBLIC, SIDES[0]).mean(axis=3)).astype(np.uint8)
    suite = Suite(sketches.parameters, public=public, steps=_STEPS, width=_WIDTH)
    found = {name: np.clip(pictures, 0, 255) for name, pictures in suite.recover(sketches).items()}
    measured = [measure(name, squares, pictures) for name, pictures in found.items()]
    sent = np.stack([_sent(counts) for counts in sketches.counts[:, 0]])
    return sent, found, measured_verdict(measured, squares.shape, missing=suite.missing)


def _recognised(
    pictures: NDArray[Any], picked: NDArray[Any], rows: NDArray[Any], features: str
) -> list[bool]:
    """Whether a search among all photos with what came back finds the photo itself first."""
    from blindsight.encoders import feature_recipe

    recipe = feature_recipe(features)
    images = np.stack([recipe.prepare(np.rint(image).astype(np.uint8)) for image in pictures])
    scores = directions(recipe.rows(images)) @ rows.T
    return [bool(first == own) for first, own in zip(scores.argmax(axis=1), picked, strict=True)]


def _square(datasets: DataSets, data_set: DataSet, photo: str, side: int) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(datasets.thumbnail(data_set, photo)) as image:
        return np.asarray(image.convert("L").resize((side, side), Image.Resampling.BILINEAR))


def _sent(counts: NDArray[Any]) -> NDArray[np.uint8]:
    """The first bit's counts of ones among all sightings: numbers, shown as grey."""
    zeros, ones = counts[0].astype(np.float64)
    return np.asarray(np.rint(255.0 * ones / np.maximum(zeros + ones, 1)), np.uint8)


def _page(request: Request, workbench: Workbench, dataset: str | None, how: str) -> Response:
    context: dict[str, Any] = {
        "title": "Send",
        "sets": [],
        "data_set": None,
        "how": how,
        "settings": SETTINGS,
    }
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {"sets": sets, "data_set": data_set}
        if data_set is not None:
            path = workbench.datasets.vault(data_set) / "send.json"
            found = json.loads(path.read_bytes()) if path.exists() else None
            context["job"] = workbench.jobs.under_way("send", dataset=data_set.id)
            shown = found[how] if found else None
            who = {
                name: words for name, words in ATTACKERS.items() if shown and name in shown["back"]
            }
            context |= {"found": found, "shown": shown, "attackers": who, "sides": SIDES}
            context["strip"] = _strip(workbench, data_set, found, how)
    return render(request, workbench, "send.html", context)


def _strip(
    workbench: Workbench, data_set: DataSet, found: dict[str, Any] | None, how: str
) -> Strip:
    known = f"{found[how]['recognised']} of {len(found['photos'])}" if found else "not yet"
    return Strip(
        leaves="One sketch for each photo: a coarse picture, most of it noise.",
        stays="The photos, names, dates.",
        promised="none",
        proven="none",
        attacked=known,
        says="photos of yours, by the best attacker below; fewer is safer",
        bar=budget_of(workbench, data_set),
        note="Sketches carry no privacy guarantee.",
        attacked_word="recognised by attack",
    )
