"""The demo's sketches: a digit, what would be sent of it, and what two attackers make of that, for
Q1 to Q12.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from blindsight.core import storage
from blindsight.workbench.infra.access import Asker, Parts
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.pictures import COLOURS, INK, SvgResponse, data_uri, draw
from blindsight.workbench.infra.problems import documented
from blindsight.workbench.infra.uploads import UPLOAD, read_upload
from blindsight.workbench.pages.demo.gallery import parts

__all__ = ["SETTINGS", "LiveSketches", "router", "run"]


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """One linear attacker and one linear classifier a setting, both learned from sketches of public
    digits.
    """

    from blindsight import data
    from blindsight.evaluation.reconstruction import mean_psnr
    from blindsight.sketching import PAPER_Q, NegativeSketcher, leak_of
    from blindsight.sketching.parameters import QKParameters

    folder = place.prepared / "sketch"
    folder.mkdir(parents=True, exist_ok=True)
    digits = data.load("mnist5k")
    images, labels = digits.array(), np.asarray(digits.labels)
    public, _, asked = parts(len(images))
    public = public[: int(arguments.get("public", 1500))]
    names = tuple(arguments.get("settings", PAPER_Q))
    facts: dict[str, Any] = {}
    for done, name in enumerate(names):
        place.say(done, len(names), f"attacking {name}")
        sketcher = NegativeSketcher(name, n_jobs=1).fit(images[public])
        seen, held = (sketcher.sketch(images[rows]).pictures() for rows in (public, asked))
        wanted = np.column_stack(
            [images[public].reshape(len(public), -1), 2.0 * np.eye(10)[labels[public]] - 1]
        )
        attacker, classifier = np.split(_ridge(seen, wanted), [images[0].size], axis=1)
        guess = np.clip(_apply(attacker, held), 0, 255).reshape(held.shape)
        leak = leak_of(QKParameters.paper(name))
        facts[name] = {
            "accuracy": float(np.mean(_apply(classifier, held).argmax(axis=1) == labels[asked])),
            "psnr": float(mean_psnr(images[asked], held, peak=255.0)),
            "psnr_prior": float(mean_psnr(images[asked], guess, peak=255.0)),
            "right": float(leak.pixels_right),
            "epsilon": None if np.isinf(leak.epsilon_pixel) else float(leak.epsilon_pixel),
            "verdict": leak.verdict_at(images[0].shape),
        }
        storage.save(
            folder / f"{name}.safetensors",
            kind="studio-attacker",
            arrays={"map": attacker.astype(np.float32)},
            fields={},
        )
    storage.write_atomically(folder / "facts.json", json.dumps(facts).encode())
    place.say(len(names), len(names), "done")
    return facts


def _ridge(seen: NDArray[Any], targets: NDArray[Any], strength: float = 4e6) -> NDArray[np.float64]:
    rows = np.column_stack([seen.reshape(len(seen), -1), np.full(len(seen), 255.0)]).astype(
        np.float64
    )
    return np.linalg.solve(rows.T @ rows + strength * np.eye(rows.shape[1]), rows.T @ targets)


def _apply(weights: NDArray[Any], seen: NDArray[Any]) -> NDArray[np.float64]:
    rows = np.column_stack([seen.reshape(len(seen), -1), np.full(len(seen), 255.0)])
    return np.asarray(rows @ weights, np.float64)


SETTINGS = tuple(f"Q{n}" for n in range(1, 13))


SAMPLES = 12


UPLOAD_SIDE = 64


class LiveSketches:
    """Works at once; the attacker who knows similar pictures comes when it is prepared."""

    def __init__(self, folder: Path) -> None:
        from blindsight import data

        digits = data.load("mnist5k")
        _, _, asked = parts(len(digits))
        labels = np.asarray(digits.labels)[asked]
        first = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]
        self.samples = digits.array()[asked[[*first, 3, 4]]]
        self._folder = folder
        self._attacker = lru_cache(maxsize=len(SETTINGS))(self._load)

    @classmethod
    def open(cls, folder: Path) -> LiveSketches:
        """Ready from the start."""
        return cls(folder)

    @property
    def prepared(self) -> bool:
        """Whether the stronger attacker is there."""
        return (self._folder / "facts.json").exists()

    def facts(self) -> dict[str, Any]:
        """Leak and accuracy of each setting, once measured."""
        return json.loads((self._folder / "facts.json").read_text()) if self.prepared else {}

    def show(self, setting: str, query: int | NDArray[Any]) -> dict[str, Any]:
        """Original, sent, recovered; with the leak of the setting."""

        from blindsight.evaluation.reconstruction import mean_psnr
        from blindsight.sketching import NegativeSketcher, leak_of
        from blindsight.sketching.parameters import QKParameters

        image = self.samples[query] if isinstance(query, int) else as_square(query)
        sketcher = NegativeSketcher(setting, n_jobs=1).fit(image[None])
        sketch = sketcher.sketch(image[None])
        guess = sketch.pictures()[0]
        leak = leak_of(QKParameters.paper(setting))
        found = {
            "setting": setting,
            "original": data_uri(image),
            "sent": data_uri(_sent(sketch.counts[0, 0])),
            "recovered": data_uri(guess),
            "psnr": round(float(mean_psnr(image[None], guess[None], peak=255.0)), 2),
            "recovered_prior": None,
            "bytes_image": int(image.size),
            "bytes_sent": int(sketch.counts.nbytes),
            "right": round(leak.pixels_right, 4),
            "first_bit": round(leak.bits_right[0], 4),
            "epsilon_pixel": None if np.isinf(leak.epsilon_pixel) else round(leak.epsilon_pixel, 2),
            "verdict": leak.verdict_at(image.shape),
        }
        if (
            image.shape == (28, 28)
            and (self._folder / f"{setting}.safetensors").exists()
            and self.prepared
        ):
            row = np.append(guess.ravel(), 255.0)
            clear = np.clip(row @ self._attacker(setting), 0, 255).reshape(28, 28)
            found["recovered_prior"] = data_uri(clear)
        return found

    def _load(self, setting: str) -> NDArray[Any]:
        arrays, _ = storage.load(self._folder / f"{setting}.safetensors", kind="studio-attacker")
        return arrays["map"]


def as_square(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """An upload as a small grey square."""
    from PIL import Image

    size = (UPLOAD_SIDE, UPLOAD_SIDE)
    return np.asarray(Image.fromarray(pixels).convert("L").resize(size, Image.Resampling.BILINEAR))


def _sent(counts: NDArray[Any]) -> NDArray[np.uint8]:
    """The first four bit planes' counts of ones among all sightings, as a 2 x 2 board: numbers, not
    pixels.
    """
    planes = [counts[bit].astype(np.float64) for bit in range(4)]
    shares = [255.0 * ones / np.maximum(zeros + ones, 1) for zeros, ones in planes]
    return np.block([[shares[0], shares[1]], [shares[2], shares[3]]]).astype(np.uint8)


router = APIRouter(prefix="/api/demo/sketch", tags=["demo"])


Setting = Annotated[
    Literal["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q7", "Q8", "Q9", "Q10", "Q11", "Q12"],
    Query(description="The paper's settings; Q3 hides most, Q12 hands the picture over."),
]


class Shown(BaseModel):
    """Pictures as data URIs, and what the setting gives away."""

    setting: str
    original: str
    sent: str
    recovered: str
    recovered_prior: str | None
    psnr: float
    bytes_image: int
    bytes_sent: int
    right: float
    first_bit: float
    epsilon_pixel: float | None
    verdict: str


@router.get("", summary="Leak and accuracy of every setting", responses=documented())
def about(studio: Parts, asker: Asker) -> dict[str, Any]:
    """Empty until the attackers have been trained in the background."""
    facts: dict[str, Any] = studio.demo.sketch.get().facts()
    return facts


@router.get("/pictures", summary="Pictures to sketch", responses=documented())
def pictures(studio: Parts, asker: Asker) -> list[str]:
    """Built-in, public digits."""
    return [data_uri(image) for image in studio.demo.sketch.get().samples]


@router.post("/show", summary="Sketch a built-in picture", responses=documented())
def show(
    studio: Parts,
    asker: Asker,
    query: Annotated[int, Query(ge=0, le=11, description="The picture's position.")] = 0,
    setting: Setting = "Q3",
) -> Shown:
    """A sketch carries no epsilon, so nothing is charged: read the verdict."""
    return Shown(**studio.demo.sketch.get().show(setting, query))


@router.post(
    "/upload",
    summary="Sketch an uploaded image",
    openapi_extra=UPLOAD,
    responses=documented("refused_image", "busy"),
)
async def upload(request: Request, studio: Parts, asker: Asker, setting: Setting = "Q3") -> Shown:
    """The image is decoded in a confined process, sketched, and forgotten."""
    pixels = await read_upload(request, studio.decoders)
    return Shown(**await run_in_threadpool(lambda: studio.demo.sketch.get().show(setting, pixels)))


@router.get(
    "/curves.svg",
    summary="Accuracy against leak",
    response_class=SvgResponse,
    responses=documented("preparing"),
)
def plot(studio: Parts, asker: Asker, setting: Setting = "Q3") -> Response:
    """Each setting is a point: what a classifier learns from sketches, against what an attacker
    sees.
    """
    facts = studio.demo.sketch.get().facts()
    if not facts:
        raise studio.jobs.unprepared("demo-sketch")
    return SvgResponse(_curves(json.dumps(facts), setting))


@lru_cache(maxsize=32)
def _curves(measured: str, setting: str) -> str:
    facts = json.loads(measured)

    def paint(axes: Any) -> None:
        for name, fact in facts.items():
            here = name == setting
            colour = COLOURS[1] if here else COLOURS[0]
            x = max(fact["psnr"], fact["psnr_prior"])
            axes.scatter(x, fact["accuracy"], s=70 if here else 26, color=colour, zorder=3)
            axes.annotate(
                name,
                (x, fact["accuracy"]),
                (5, 4),
                textcoords="offset points",
                fontsize=9,
                color=INK,
            )
        axes.set_xlabel("leak: PSNR in dB of the better attacker")
        axes.set_ylabel("accuracy from sketches")

    return draw(paint)
