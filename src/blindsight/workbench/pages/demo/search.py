"""The demo's search: digits at several budgets, or an index made by `blindsight hash`."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray
from pydantic import BaseModel

from blindsight.core.errors import InvalidParameter
from blindsight.workbench.infra.access import Analyst, Parts, Studio
from blindsight.workbench.infra.identity import Identity
from blindsight.workbench.infra.pictures import SvgResponse, curves, data_uri, draw
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.settings import Settings
from blindsight.workbench.infra.uploads import UPLOAD, read_upload
from blindsight.workbench.pages.demo.cells import CellIndex, Ranked

if TYPE_CHECKING:
    from blindsight.privacy import Guarantee

__all__ = ["Gallery", "PhotoIndex", "Searchable", "as_digit", "open_search", "router"]


class Searchable(Protocol):
    """What both kinds of index can do."""

    name: str
    size: int
    asked: int

    def facts(self) -> list[dict[str, Any]]: ...

    def check(self, query: int | NDArray[Any]) -> None: ...

    def guarantee(self, epsilon: float) -> Guarantee: ...

    def ask(
        self, epsilon: float, query: int | NDArray[Any], k: int, least: float
    ) -> list[dict[str, Any]]: ...

    def ask_openly(self, query: int | NDArray[Any], k: int) -> list[dict[str, Any]] | None: ...

    def picture(self, query: int) -> str | None: ...

    def thumbnail(self, identifier: Any) -> str | None: ...


def open_search(settings: Settings, folder: Path) -> Searchable | None:
    """The live for the settings, or None while nothing is prepared."""
    if settings.index != "mnist5k":
        return PhotoIndex(Path(settings.index), settings.codes)
    return Gallery(folder) if any(folder.glob("*/facts.json")) else None


class Gallery:
    """5,000 digits: 2,000 public ones to learn from, 2,600 protected ones that are searched, 400 to
    ask about.
    """

    name = "mnist5k"

    def __init__(self, folder: Path) -> None:
        from blindsight import data
        from blindsight.encoders import PixelPCA
        from blindsight.hashing import CodebookHasher
        from blindsight.index import HammingIndex
        from blindsight.workbench.pages.demo.gallery import parts

        self._digits = data.load("mnist5k")
        images = self._digits.array()
        _, stored, asked = parts(len(images))
        self._stored_images, self._asked_images = images[stored], images[asked]
        self._features = PixelPCA.load(folder / "features.safetensors")
        X = self._features.transform(self._digits)
        self._facts, self._indexes = {}, {}
        self._similarities: dict[float, NDArray[Any]] = {}
        for path in sorted(folder.glob("*/facts.json")):
            fact = json.loads(path.read_text())
            epsilon = float(fact["epsilon"])
            hasher = CodebookHasher.load(path.parent / "hasher.safetensors")
            _, codes = next(iter(HammingIndex.load(path.parent / "codes.index").items()))
            self._facts[epsilon] = fact
            self._indexes[epsilon] = CellIndex(hasher, codes)
            self._similarities[epsilon] = hasher.similarity(X[asked])
        self._public = X[parts(len(images))[0]]
        # How far from the nearest public digit a digit may lie; what lies farther is no digit.
        self._reach = 1.1 * float(np.quantile([self._distance(row) for row in X[asked]], 0.99))
        self._best = self._indexes[max(self._indexes)].hasher
        points = self._chances(X)
        self._asked_points = points[asked]
        self.size = next(iter(self._indexes.values())).size
        self._stored_points = points[stored] if self.size == len(stored) else None
        self.asked = len(asked)
        self.picture = lru_cache(maxsize=1024)(self._picture)  # type: ignore[method-assign]
        self.thumbnail = lru_cache(maxsize=4096)(self._thumbnail)  # type: ignore[method-assign]

    def facts(self) -> list[dict[str, Any]]:
        """One a budget, by epsilon."""
        return [self._facts[epsilon] for epsilon in sorted(self._facts)]

    def guarantee(self, epsilon: float) -> Guarantee:
        """What was promised when these codes were released."""
        promised: Guarantee = self._index(epsilon).hasher.guarantee_
        return promised

    def ask(
        self, epsilon: float, query: int | NDArray[Any], k: int, least: float
    ) -> list[dict[str, Any]]:
        """Hits among released codes, with the probability to show the same digit."""
        index = self._index(epsilon)
        if isinstance(query, int):
            similarity = self._similarities[epsilon][query]
        else:
            similarity = index.hasher.similarity(self._row(query))[0]
        return self._hits(index.rank(similarity, k, least))

    def check(self, query: int | NDArray[Any]) -> None:
        """Refuse a picture that is no digit, before anything is charged."""
        if not isinstance(query, int):
            self._row(query)

    def ask_openly(self, query: int | NDArray[Any], k: int) -> list[dict[str, Any]] | None:
        """The ranking that would need the pictures' own features: for the owner."""
        if self._stored_points is None:
            return None
        point = (
            self._asked_points[query]
            if isinstance(query, int)
            else self._chances(self._row(query))[0]
        )
        scores = point @ self._stored_points.T
        best = np.argpartition(-scores, k)[:k]
        best = best[np.argsort(-scores[best], kind="stable")]
        return self._hits(Ranked(best, scores[best].astype(np.float64)))

    def _chances(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Of each class, for each row."""
        return np.asarray(np.exp(self._best.codebook_.similarity(rows)))

    def _row(self, pixels: NDArray[Any]) -> NDArray[Any]:
        digit = as_digit(pixels)
        row = self._features.transform(digit[None])
        # Strokes on an even ground, and near other digits; a photo is neither.
        if (digit < 25).mean() < 0.5 or digit.max() < 150 or not self.knows(row[0]):
            raise Problem("not_of_the_kind")
        return row

    def knows(self, row: NDArray[Any]) -> bool:
        """Whether a picture's features lie where digits lie."""
        return self._distance(row) <= self._reach

    def _distance(self, row: NDArray[Any]) -> float:
        return float(np.sqrt(((self._public - row) ** 2).sum(axis=1).min()))

    def _index(self, epsilon: float) -> CellIndex:
        if epsilon not in self._indexes:
            raise InvalidParameter("there are no codes at this budget.")
        return self._indexes[epsilon]

    def _picture(self, query: int) -> str | None:
        return data_uri(self._asked_images[query])

    def _thumbnail(self, identifier: Any) -> str | None:
        return data_uri(self._stored_images[int(identifier) % len(self._stored_images)])

    picture, thumbnail = _picture, _thumbnail

    @staticmethod
    def _hits(ranked: Ranked) -> list[dict[str, Any]]:
        return [
            {"id": int(row), "probability": _share(score)}
            for row, score in zip(ranked.rows, ranked.chances, strict=True)
        ]


class PhotoIndex:
    """An index made by `blindsight hash`: asked by upload only, and it shows names, for the photos
    are elsewhere.
    """

    asked = 0

    def __init__(self, folder: Path, codes: str | None = None) -> None:
        from blindsight.index.encoder import CodeRecipe, load_encoder
        from blindsight.index.index_file import Header
        from blindsight.index.release_folder import ReleaseFolder

        place = ReleaseFolder.read(folder)
        self.name = folder.name
        self._recipe = CodeRecipe.from_fields(place.recipe)
        self._encoder = load_encoder(self._recipe, folder, Header.of(place.codes).decoding)
        encoder = self._encoder
        stored = (
            encoder.load(place.codes)
            if codes is None
            else encoder.on_milvus(codes, codes=place.codes)
        )
        self._index = stored
        self.size = len(stored)

    def facts(self) -> list[dict[str, Any]]:
        """The one budget that the index was made with."""
        guarantee = json.loads(self._encoder.guarantee.to_json())
        return [
            {
                "epsilon": self._recipe.epsilon,
                "map": None,
                "leak": None,
                "audited": None,
                "guarantee": guarantee,
            }
        ]

    def guarantee(self, epsilon: float) -> Guarantee:
        """What was promised when the codes were released."""
        if epsilon != self._recipe.epsilon:
            raise InvalidParameter("there are no codes at this budget.")
        return self._encoder.guarantee

    def ask(
        self, epsilon: float, query: int | NDArray[Any], k: int, least: float
    ) -> list[dict[str, Any]]:
        """Hits by name."""
        from blindsight.data import to_rgb

        self.guarantee(epsilon)
        if isinstance(query, int):
            raise InvalidParameter("this index is asked by upload.")
        image = to_rgb(query, self._recipe.size)[None]
        hits = self._encoder.search(self._index, image, k)[0]
        # Without labelled public pictures a codebook has no probability of relevance, only the
        # trust in its cell.
        chances = [hit.trust if hit.probability is None else hit.probability for hit in hits]
        return [
            {"id": str(hit.id), "probability": None if chance is None else _share(chance)}
            for hit, chance in zip(hits, chances, strict=True)
            if chance is None or chance >= least
        ]

    def check(self, query: int | NDArray[Any]) -> None:
        """Any picture may be asked."""

    def ask_openly(self, query: int | NDArray[Any], k: int) -> list[dict[str, Any]] | None:
        """Nothing: the photos are not here."""
        return None

    def picture(self, query: int) -> str | None:
        """Nothing: the photos are not here."""
        return None

    def thumbnail(self, identifier: Any) -> str | None:
        """Nothing: the photos are not here."""
        return None


def _share(score: Any) -> float:
    return round(min(1.0, max(0.0, float(score))), 4)


def as_digit(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Any picture as 28 x 28 grey, light on dark."""
    from PIL import Image

    small = np.asarray(
        Image.fromarray(pixels).convert("L").resize((28, 28), Image.Resampling.BILINEAR)
    )
    edge = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]])
    return (255 - small) if edge.mean() > 127 else small


router = APIRouter(prefix="/api/demo/search", tags=["demo"])


Epsilon = Annotated[
    float, Query(gt=0, le=1000, description="Which released codes: their budget per record.")
]


Count = Annotated[int, Query(ge=1, le=100, description="How many hits.")]


Least = Annotated[
    float, Query(ge=0, le=1, description="Only hits that match with at least this probability.")
]


Beside = Annotated[bool, Query(description="Also the open ranking (owner only).")]


class Hit(BaseModel):
    """One found picture."""

    id: int | str
    probability: float | None
    picture: str | None = None


class Found(BaseModel):
    """Hits among released codes; for the owner also the ranking without privacy, and pictures."""

    epsilon: float
    threshold: float
    searched: int
    hits: list[Hit]
    open_hits: list[Hit] | None = None


class Budget(BaseModel):
    """Codes that were released at one budget, and what was measured on them."""

    epsilon: float
    map: float | None
    leak: float | None
    audited: float | None
    guarantee: dict[str, Any]


class About(BaseModel):
    """What can be searched."""

    name: str
    stored: int
    asked: int
    budgets: list[Budget]


@router.get(
    "", summary="What can be searched, and at which budgets", responses=documented("preparing")
)
def about(studio: Parts, asker: Analyst) -> About:
    """Each budget is one release, charged once to the gallery's own account."""
    live = _live(studio)
    return About(
        name=live.name,
        stored=live.size,
        asked=live.asked,
        budgets=[Budget(**f) for f in live.facts()],
    )


@router.get("/pictures", summary="Pictures to ask about", responses=documented("preparing"))
def pictures(studio: Parts, asker: Analyst, count: Count = 40) -> list[str]:
    """Built-in, public pictures, as data URIs; the position is what `ask` takes."""
    live = _live(studio)
    return [p for i in range(min(count, live.asked)) if (p := live.picture(i)) is not None]


@router.post(
    "/ask",
    summary="Search with a built-in picture",
    response_model=Found,
    responses=documented("preparing", "budget", "ledger"),
)
async def ask(
    studio: Parts,
    asker: Analyst,
    query: Annotated[int, Query(ge=0, le=10_000, description="The picture's position.")],
    epsilon: Epsilon = 8.0,
    k: Count = 12,
    threshold: Least = 0.0,
    beside: Beside = False,
) -> Response:
    """The first search at a budget is charged to the key, per record; further ones see nothing
    new.
    """
    live = await studio.ledger_lane.run(_live, studio)
    if query >= live.asked:
        raise Problem("invalid")
    return await studio.ledger_lane.run(
        _answer, studio, asker, live, query, epsilon, k, threshold, beside
    )


@router.post(
    "/upload",
    summary="Search with an uploaded image",
    response_model=Found,
    openapi_extra=UPLOAD,
    responses=documented("preparing", "budget", "ledger", "refused_image", "not_of_the_kind"),
)
async def upload(
    request: Request,
    studio: Parts,
    asker: Analyst,
    epsilon: Epsilon = 8.0,
    k: Count = 12,
    threshold: Least = 0.0,
    beside: Beside = False,
) -> Response:
    """The image is decoded in a confined process, used for this search, and forgotten."""
    live = await studio.ledger_lane.run(_live, studio)
    pixels = await read_upload(request, studio.decoders)
    return await studio.ledger_lane.run(
        _answer, studio, asker, live, pixels, epsilon, k, threshold, beside
    )


@router.get(
    "/curves.svg",
    summary="mAP and leak against the budget",
    response_class=SvgResponse,
    responses=documented("preparing", "not_found"),
)
def plot(studio: Parts, asker: Analyst, epsilon: Epsilon = 8.0) -> Response:
    """Measured on the built-in gallery."""
    facts = [fact for fact in _live(studio).facts() if fact["map"] is not None]
    if not facts:
        raise Problem("not_found")
    marked = epsilon if any(f["epsilon"] == epsilon for f in facts) else None
    return SvgResponse(_curves(json.dumps(facts), marked))


@lru_cache(maxsize=32)
def _curves(measured: str, marked: float | None) -> str:
    """Drawn once for what was measured; drawing takes a tenth of a second and one lock."""
    facts = json.loads(measured)
    lines = {
        "mAP of the search": [(f["epsilon"], f["map"]) for f in facts],
        "leak: digits guessed from the index alone": [(f["epsilon"], f["leak"]) for f in facts],
    }
    levels = {"mAP without privacy": facts[-1]["open_map"], "guessing": 0.1}
    paint = curves(
        lines,
        xlabel="proven epsilon per record",
        ylabel="share",
        log=True,
        levels=levels,
        mark=marked,
        unit=True,
    )
    return draw(paint)


def _answer(
    studio: Studio,
    asker: Identity,
    live: Searchable,
    query: Any,
    epsilon: float,
    k: int,
    threshold: float,
    beside: bool,
) -> Response:
    guarantee = live.guarantee(epsilon)
    live.check(query)
    studio.budgets.charge_once(
        asker, guarantee.cost, f"sees codes of {live.name} at epsilon {epsilon:g}"
    )
    hits = live.ask(epsilon, query, k, threshold)
    owner = asker.role == "owner"
    opened = live.ask_openly(query, k) if owner and beside else None
    if owner:
        hits, opened = _pictured(live, hits), None if opened is None else _pictured(live, opened)
    body = {
        "epsilon": epsilon,
        "threshold": threshold,
        "searched": live.size,
        "hits": hits,
        "open_hits": opened,
    }
    return JSONResponse(body)


def _pictured(live: Searchable, hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**hit, "picture": live.thumbnail(hit["id"])} for hit in hits]


def _live(studio: Studio) -> Searchable:
    live: Searchable | None = studio.demo.search.get()
    if live is None:
        raise studio.jobs.unprepared("demo-search")
    return live
