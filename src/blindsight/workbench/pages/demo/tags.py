"""The demo's tags: private answers about scenes of digits, charged before they leave."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from numpy.typing import NDArray
from pydantic import BaseModel

from blindsight.core.storage import write_atomically
from blindsight.workbench.infra.access import Analyst, Parts, Studio
from blindsight.workbench.infra.identity import Identity
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.pictures import data_uri
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.uploads import UPLOAD, read_upload
from blindsight.workbench.pages.demo.digit_reader import DigitReader

if TYPE_CHECKING:
    from blindsight.privacy import Cost

__all__ = ["EPSILON", "REPEATS", "SCENES", "LiveTags", "router", "run", "scene_sets"]

EPSILON, TRAINING_EPSILON = 4.0, 2.0


SCENES = 24


_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def scene_sets(count: int = 1) -> tuple[Any, Any]:
    """Training scenes, and scenes to ask about; they share no digit with what the eye learned
    from.
    """

    from blindsight import data

    return data.scenes(count, seed=11, split="test"), data.scenes(SCENES, seed=12, split="test")


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Learn, measure, save."""

    from blindsight import data
    from blindsight.audit.methods.tagging.attacks import distinguish_images
    from blindsight.tagging import CodebookAnswers, DPTraining, Exact, PrivateTagger
    from blindsight.tagging.estimator import Paid

    folder = place.prepared / "tags"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "facts.json").exists():
        place.say(0, 4, "learning to read public digits")
        digits = data.load("mnist5k", split="train")
        eye = DigitReader.learn(digits.array(), np.asarray(digits.labels))
        eye.save(folder / "reader.safetensors")
        place.say(1, 4, "making scenes")
        training, _ = scene_sets(int(arguments.get("scenes", 3000)))
        cut = len(training.images) * 5 // 6
        X, check = eye.features(training.images[:cut]), eye.features(training.images[cut:])
        place.say(2, 4, "training with differential privacy")
        tagger = PrivateTagger(
            DPTraining(epsilon=TRAINING_EPSILON), CodebookAnswers(EPSILON), classes=list(_NAMES)
        )
        tagger.fit(X, training.labels[:cut])
        tagger.save(folder / "tagger.safetensors")
        place.say(3, 4, "attacking the answers")
        truth = training.labels[cut:].astype(bool)
        logits = tagger.logits(check)
        far = int(np.abs(logits - logits[0]).sum(axis=1).argmax())
        way: Any = tagger.way_
        audited = distinguish_images(
            lambda rows, rng: (
                way.read(way.noise(len(_NAMES)).release(way.value(rows), rng=rng)).scores
            ),
            logits[0],
            logits[far],
            trials=5000,
        )
        promised: Any = tagger.answer_guarantee_
        facts = {
            "labels": float(np.mean(Exact().read(logits).tags == truth)),
            "answers": float(np.mean(tagger.noisy(logits, ledger=Paid()).tags == truth)),
            "nothing": float(np.mean(~truth)),
            "audited": round(float(audited.epsilon), 3),
            "guarantee": json.loads(promised.to_json()),
            "training": json.loads(tagger.guarantee_.to_json()),
        }
        write_atomically(folder / "facts.json", json.dumps(facts).encode())
    place.say(4, 4, "done")
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return found


REPEATS = (1, 2, 4, 8, 16, 32, 64)


_TRIALS = 40


class LiveTags:
    """A prepared tagger and its public eye."""

    def __init__(self, folder: Path) -> None:
        from blindsight.tagging import PrivateTagger

        self._eye = DigitReader.load(folder / "reader.safetensors")
        self._tagger = PrivateTagger.load(folder / "tagger.safetensors")
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        _, asked = scene_sets()
        self.scenes: NDArray[np.uint8] = np.asarray(asked.images)
        self._guard = threading.Lock()
        self._asked: dict[str, Counter[bytes]] = {}
        self.answer_scene(0)  # the first use is the slow one

    @classmethod
    def open(cls, folder: Path) -> LiveTags | None:
        """The live, or None while it is not prepared."""
        return cls(folder) if (folder / "facts.json").exists() else None

    @property
    def cost(self) -> Cost:
        """What one answer costs."""
        cost: Cost = self._tagger.query_cost(1)
        return cost

    @property
    def names(self) -> list[str]:
        """All tags there are."""
        return [str(name) for name in self._tagger.classes_]

    def picture(self, scene: int) -> str:
        """A built-in scene."""
        return data_uri(self.scenes[scene])

    def look(self, query: int | NDArray[Any]) -> NDArray[Any]:
        """The model's outputs, without noise: they must not leave."""
        image = self.scenes[query] if isinstance(query, int) else _as_scene(query)
        if not isinstance(query, int) and not self._eye.knows(image):
            raise Problem("not_of_the_kind")
        return np.asarray(self._tagger.logits(self._eye.features(image[None]))[0])

    def answer_scene(self, query: int | NDArray[Any]) -> list[dict[str, Any]]:
        """One private answer; the caller has charged for it."""
        return self.answer(self.look(query))

    def answer(self, logits: NDArray[Any]) -> list[dict[str, Any]]:
        """Noise on outputs: tags that may leave."""
        from blindsight.tagging.estimator import Paid

        found = self._tagger.noisy(logits[None], ledger=Paid())
        return self._listed(found.tags[0], found.scores[0])

    def pay(self, asker: str, query: int | NDArray[Any], charge: Callable[[int], bool]) -> float:
        """Charge for one more answer about this image: different images do not add up. What was
        charged.

        `charge(n)` pays for everybody's n-th answer about one image, once. Counted in memory: after
        a restart counting starts anew, and all charges together still cover every image.
        """
        image = (self.scenes[query] if isinstance(query, int) else _as_scene(query)).tobytes()
        with self._guard:
            asked = self._asked.setdefault(asker, Counter())
            asked[image] += 1
            number = asked[image]
        try:
            return self.cost.epsilon if charge(number) else 0.0
        except BaseException:
            with self._guard:
                asked[image] -= 1
            raise

    def openly(self, logits: NDArray[Any]) -> list[dict[str, Any]]:
        """The tags without noise, for the owner."""
        from blindsight.tagging import Exact

        return self._listed(Exact().read(logits).tags, 1 / (1 + np.exp(-logits)))

    def repeats(self, logits: NDArray[Any]) -> list[tuple[int, float]]:
        """How far the average of n answers agrees with the unprotected tags; a simulation that
        leaves nothing.
        """
        from blindsight.tagging import Exact
        from blindsight.tagging.estimator import Paid

        truth, most = Exact().read(logits).tags, REPEATS[-1]
        scores = self._tagger.noisy(
            np.repeat(logits[None], _TRIALS * most, axis=0), ledger=Paid()
        ).scores
        sums = scores.reshape(_TRIALS, most, -1).cumsum(axis=1)
        size = max(1, int(truth.sum()))
        found = []
        for n in REPEATS:
            ranked = np.argsort(-sums[:, n - 1], axis=1)[:, :size]
            found.append((n, float(np.mean(truth[ranked]))))
        return found

    def _listed(self, tags: NDArray[Any], scores: NDArray[Any]) -> list[dict[str, Any]]:
        order = np.argsort(-scores, kind="stable")
        return [
            {"tag": self.names[i], "score": round(float(scores[i]), 3)} for i in order if tags[i]
        ]


def _as_scene(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    from PIL import Image

    small = np.asarray(
        Image.fromarray(pixels).convert("L").resize((64, 64), Image.Resampling.BILINEAR)
    )
    edge = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]])
    return (255 - small) if edge.mean() > 127 else small


router = APIRouter(prefix="/api/demo/tags", tags=["demo"])


class Tag(BaseModel):
    """A tag and its score."""

    tag: str
    score: float


class Answer(BaseModel):
    """What left, what it cost, what is left; for the owner also what the noise hid, and what asking
    on would show.
    """

    tags: list[Tag]
    spent: float
    remaining: float
    answers_left: int
    open_tags: list[Tag] | None = None
    repeats: list[tuple[int, float]] | None = None


@router.get("", summary="What an answer costs", responses=documented("preparing"))
def about(studio: Parts, asker: Analyst) -> dict[str, Any]:
    """Measured quality, and the guarantees of answers and training."""
    live = _live(studio)
    return {**live.facts, "names": live.names, "scenes": len(live.scenes)}


@router.get("/pictures", summary="Scenes to ask about", responses=documented("preparing"))
def pictures(studio: Parts, asker: Analyst) -> list[str]:
    """Built-in scenes of one to four digits."""
    live = _live(studio)
    return [live.picture(i) for i in range(len(live.scenes))]


@router.post(
    "/ask",
    summary="Tags of a built-in scene",
    responses=documented("preparing", "budget", "ledger"),
)
async def ask(
    studio: Parts,
    asker: Analyst,
    query: Annotated[int, Query(ge=0, le=23, description="The scene's position.")],
    beside: Annotated[bool, Query(description="Also what the noise hides (owner only).")] = False,
) -> Answer:
    """Every further answer about the same scene costs; different scenes do not add up."""
    return await studio.ledger_lane.run(_answer, studio, asker, query, beside)


@router.post(
    "/upload",
    summary="Tags of an uploaded image",
    openapi_extra=UPLOAD,
    responses=documented("preparing", "budget", "ledger", "refused_image", "not_of_the_kind"),
)
async def upload(
    request: Request,
    studio: Parts,
    asker: Analyst,
    beside: Annotated[bool, Query(description="Also what the noise hides (owner only).")] = False,
) -> Answer:
    """The image is decoded in a confined process, answered about, and forgotten."""
    await studio.ledger_lane.run(_live, studio)
    pixels = await read_upload(request, studio.decoders)
    return await studio.ledger_lane.run(_answer, studio, asker, pixels, beside)


def _answer(studio: Studio, asker: Identity, query: Any, beside: bool) -> Answer:
    live = _live(studio)
    logits = live.look(query)
    what = "tags of one image"
    spent = live.pay(
        asker.name, query, lambda n: studio.budgets.charge_level(asker, live.cost, what, n)
    )
    tags = live.answer(logits)
    left = studio.budgets.ledger(asker).balance("query").remaining
    each = live.cost.epsilon
    owner = asker.role == "owner" and beside
    return Answer(
        tags=[Tag(**tag) for tag in tags],
        spent=spent,
        remaining=left.epsilon,
        answers_left=int(left.epsilon / each + 1e-9),
        open_tags=[Tag(**tag) for tag in live.openly(logits)] if owner else None,
        repeats=live.repeats(logits) if owner else None,
    )


def _live(studio: Studio) -> Any:
    live = studio.demo.tags.get()
    if live is None:
        raise studio.jobs.unprepared("demo-tags")
    return live
