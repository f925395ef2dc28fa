"""Search: search among the codes of a release, as its receiver can; only the owner sees photos.
Answer: the owner decides about a request that a receiver saved. Received: verify and open a release
that somebody else shared.
"""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.datasets import DataSet, Release
from blindsight.app.library.search import (
    Question,
    SearchIndex,
    copy_chosen,
    open_index,
    requested_photos,
    words_can_be_asked,
)
from blindsight.app.release import open_release, request_signer
from blindsight.app.result import counted
from blindsight.core.errors import BlindsightError, InvalidParameter, MissingData
from blindsight.workbench.infra.access import (
    Administrator,
    DataSetId,
    Owner,
    Parts,
    Searcher,
    Workbench,
)
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import render
from blindsight.workbench.infra.uploads import UPLOAD, read_upload
from blindsight.workbench.pages.home import chosen, search_strip

__all__ = ["OTHERS_PAGE", "Searches", "answers_router", "router"]

router = APIRouter(tags=["search"])
WhichRelease = Annotated[
    str | None,
    Query(
        pattern="^[0-9a-f]{12}$",
        description="Which search index; by default the newest that the asker may search.",
    ),
]
Rerank = Annotated[bool, Query(description="Sort the first candidates by the photos in the vault.")]
_SEARCH_PAGE, _SIGNED = "search.html", "manifest.sig"
# The page of a received release runs in its own origin, without cookies and network. Its search
# field is a form: without allow-forms the page would not be notified that it was submitted.
OTHERS_PAGE = {
    "Content-Security-Policy": "sandbox allow-scripts allow-forms allow-downloads; "
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob: data:; connect-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
}
_CANDIDATES, _SHOWN, _GROUPS, _FILM = 200, 60, 8, 24


class ShownHit(BaseModel):
    """A photo: its number in the release and, for the owner, its name."""

    id: str
    name: str


class Group(BaseModel):
    """Photos with the same code.

    `mix` counts what they show by the owner's folders; `noise` is how many of them noise put here.
    """

    title: str
    count: int
    noise: int | None = None
    mix: list[tuple[str, int]] = []
    photos: list[ShownHit]
    far: bool = False


class Words(BaseModel):
    """The words to search for, in English."""

    model_config = ConfigDict(extra="forbid")
    words: Annotated[str, Field(min_length=1, max_length=200)]


class Found(BaseModel):
    """An answer; `query` repeats the search with the same picture or words, which are only kept in
    memory.
    """

    query: str
    nothing: str | None
    searched_for: list[str]
    ignored: list[str]
    groups: list[Group]
    searched: int
    reranked: bool


@router.get("/search", include_in_schema=False)
async def page(request: Request, workbench: Parts, dataset: str | None = None) -> Response:
    return await workbench.ledger_lane.run(_page, request, workbench, dataset)


@router.post(
    "/api/search/{dataset}/upload",
    summary="Search with a picture",
    openapi_extra=UPLOAD,
    responses=documented("not_found", "conflict", "refused_image", "busy", "needs_torch"),
)
async def upload(
    dataset: DataSetId,
    request: Request,
    workbench: Parts,
    asker: Searcher,
    rerank: Rerank = False,
    release: WhichRelease = None,
) -> Found:
    """The picture is decoded in a confined process, used for this search, and not stored."""
    index = await workbench.ledger_lane.run(_index, workbench, dataset, release, rerank)
    pixels = await read_upload(request, workbench.decoders)

    def look() -> Found:
        return _answer(
            workbench, index, workbench.searches.remember(index.asked(index.row_of(pixels))), rerank
        )

    return await workbench.ledger_lane.run(look)


@router.post(
    "/api/search/{dataset}/words",
    summary="Search with words",
    responses=documented("not_found", "conflict", "needs_words", "busy"),
)
async def by_words(
    dataset: DataSetId,
    order: Words,
    workbench: Parts,
    asker: Searcher,
    rerank: Rerank = False,
    release: WhichRelease = None,
) -> Found:
    """Words for everyday things in English; they are not stored."""

    def look() -> Found:
        index = _index(workbench, dataset, release, rerank)
        if not order.words.strip():
            raise Problem("invalid")
        if not index.takes_words:
            raise Problem("needs_words")
        return _answer(
            workbench, index, workbench.searches.remember(index.asked_words(order.words)), rerank
        )

    return await workbench.ledger_lane.run(look)


@router.post(
    "/api/search/{dataset}/photo/{photo}",
    summary="Search with a stored photo",
    responses=documented("not_found", "conflict", "busy"),
)
async def by_photo(
    dataset: DataSetId,
    photo: Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="A photo's number.")],
    workbench: Parts,
    asker: Owner,
    rerank: Rerank = False,
) -> Found:
    """The photo's features come from the vault."""

    def look() -> Found:
        index = _index(workbench, dataset, None, rerank)
        if photo not in index.row_by_id:
            raise Problem("not_found")
        question = index.asked(index.rows[index.row_by_id[photo]], own=photo)
        return _answer(workbench, index, workbench.searches.remember(question), rerank)

    return await workbench.ledger_lane.run(look)


@router.post(
    "/api/search/{dataset}/again/{query}",
    summary="Repeat a search",
    responses=documented("not_found", "conflict", "busy"),
)
async def again(
    dataset: DataSetId,
    query: Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="The answer's `query`.")],
    workbench: Parts,
    asker: Searcher,
    rerank: Rerank = False,
    release: WhichRelease = None,
) -> Found:
    """Repeat a search in another order, without a second upload."""
    return await workbench.ledger_lane.run(
        lambda: _answer(workbench, _index(workbench, dataset, release, rerank), query, rerank)
    )


class Searches:
    """Caches a few loaded releases and questions, in memory only."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, SearchIndex] = OrderedDict()
        self._asked: OrderedDict[str, Question] = OrderedDict()
        self._guard = threading.Lock()

    def index(self, workbench: Workbench, data_set: DataSet, release: Release) -> SearchIndex:
        """Return the index of a release, which is read once."""
        with self._guard:
            if release.id in self._indexes:
                self._indexes.move_to_end(release.id)
                return self._indexes[release.id]
        opened = open_index(workbench.datasets, data_set, release)
        with self._guard:
            self._indexes[release.id] = opened
            if len(self._indexes) > 4:
                self._indexes.popitem(last=False)
        return opened

    def remember(self, question: Question) -> str:
        """Store a question, and return the name under which it can be asked again."""
        name = secrets.token_hex(8)
        with self._guard:
            self._asked[name] = question
            if len(self._asked) > 64:
                self._asked.popitem(last=False)
        return name

    def asked(self, name: str) -> Question:
        """Return a stored question; raise `Problem("not_found")` if it was removed."""
        with self._guard:
            if name not in self._asked:
                raise Problem("not_found")
            return self._asked[name]


def _page(request: Request, workbench: Workbench, dataset: str | None) -> Response:
    context: dict[str, Any] = {"title": "Search", "sets": [], "data_set": None}
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset, released=True)
        releases = [] if data_set is None else workbench.searchable(data_set)
        release = next(iter(releases), None)
        context["sets"] = [s for s in sets if workbench.searchable(s)]
        if data_set is not None and release is not None:
            words = words_can_be_asked(data_set.features)
            owner = request.state.identity.can("own", data_set.id)
            context |= {
                "data_set": data_set,
                "release": release,
                "film": workbench.datasets.photos(data_set)[:_FILM] if owner else [],
                "words": words,
                "sees_photos": owner,
            }
            context["strip"] = search_strip(
                workbench, data_set, release.epsilon, release.attack, "Searching spends nothing."
            )
    return render(request, workbench, "search.html", context)


def _index(
    workbench: Workbench, dataset: str, number: str | None, rerank: bool = False
) -> SearchIndex:
    """Return the release to search if the asker may; only the owner may sort by photos."""
    data_set = workbench.datasets.get(dataset)
    releases = workbench.searchable(data_set)
    if number is not None:
        releases = [release for release in releases if release.id == number]
        if not releases:
            raise Problem("not_found")
    if rerank and not _sees_photos(workbench, data_set):
        raise Problem("not_allowed")
    if not releases:
        raise Problem("conflict")
    release = releases[0]
    index: SearchIndex = workbench.searches.index(workbench, data_set, release)
    return index


def _sees_photos(workbench: Workbench, data_set: DataSet) -> bool:
    """Whether the asker may see photos and their names; a searcher sees only the release."""
    return workbench.identity is not None and workbench.identity.can("own", data_set.id)


def _without_names(group: Group) -> Group:
    """Return a group without what only the owner sees: names, and what the photos show."""
    photos = [ShownHit(id=hit.id, name="") for hit in group.photos]
    return group.model_copy(update={"mix": [], "photos": photos})


def _answer(workbench: Workbench, index: SearchIndex, query: str, rerank: bool) -> Found:
    question: Question = workbench.searches.asked(query)
    if question.dataset != index.data_set.id:
        raise Problem("not_found")
    meant = question.meant
    searched_for = list(meant.names) if meant else []
    ignored = [*meant.ignored, *meant.unknown] if meant else []
    nothing = None
    groups: list[Group] = []
    if meant is not None and not meant.names:
        nothing = f"{meant.line()[:1].upper()}{meant.line()[1:]}"
    else:
        scores = np.asarray(index.reading.scores(question.similarity))[0]
        groups = _groups(index, scores, question.own)
        words = bool(question.words)
        if not index.reading.present(question.similarity, index.counts, words=words)[0]:
            nothing = _nothing(index, question.cell)
    if rerank:
        groups = [_by_photos(index, groups, question)] if groups else []
        nothing = None if groups else nothing
    else:
        groups = _with_the_rest(groups)
    if not _sees_photos(workbench, index.data_set):
        groups = [_without_names(group) for group in groups]
    return Found(
        query=query,
        nothing=nothing,
        searched_for=searched_for,
        ignored=ignored,
        groups=groups,
        searched=len(index.ids),
        reranked=rerank,
    )


def _nothing(index: SearchIndex, cell: int) -> str:
    count, low, high = int(index.counts[cell]), *index.by_noise()
    verb = "is" if count == 1 else "are"
    sentence = f"{count:,} of {len(index.ids):,} photos {verb} in the nearest group."
    if count > high:
        return (
            f"{sentence} The groups that fit hold no more photos than noise alone would put there."
        )
    puts = f"{low:,} to {high:,} photos" if high != low else counted(high, "photo")
    so = "so these mean nothing" if count != 1 else "so this one means nothing"
    return f"{sentence} Noise alone puts {puts} into any group, {so}."


def _groups(index: SearchIndex, scores: NDArray[Any], own: str | None) -> list[Group]:
    """Return a group for each cell that has codes, in the order of similarity."""
    groups: list[Group] = []
    words = ("nearest", "next", "further")
    present = np.flatnonzero(index.counts)
    total = 0
    for cell in present[np.argsort(-scores[present], kind="stable")]:
        members = [int(i) for i in np.flatnonzero(index.cells == cell) if index.ids[i] != own]
        if not members:
            continue
        count, _, true = index.expected(int(cell))
        share = min(1.0, true * index.says.right / max(1, count))
        word = words[min(len(groups), 2)]
        title = f"{len(members):,} photo{'s' if len(members) > 1 else ''} in the {word} group"
        photos = [
            ShownHit(id=index.ids[i], name=index.names.get(index.ids[i], ""))
            for i in members[:_SHOWN]
        ]
        noise = round((1 - share) * len(members))
        groups.append(
            Group(
                title=title,
                count=len(members),
                noise=noise,
                mix=index.mix(members),
                photos=photos,
            )
        )
        total += len(members)
        if total >= _CANDIDATES or len(groups) == _GROUPS:
            break
    return groups


def _with_the_rest(groups: list[Group]) -> list[Group]:
    """Return the two nearest groups, and all others as one group."""
    rest = groups[2:]
    if len(rest) < 2:
        return groups
    count = sum(group.count for group in rest)
    photos = [hit for group in rest for hit in group.photos][:_SHOWN]
    title = f"{count:,} more photos in {len(rest)} groups"
    return [*groups[:2], Group(title=title, count=count, photos=photos, far=True)]


def _by_photos(index: SearchIndex, groups: list[Group], question: Question) -> Group:
    hits = [hit for group in groups for hit in group.photos if hit.id in index.row_by_id][
        :_CANDIDATES
    ]
    order = np.argsort(-index.likeness(question, [hit.id for hit in hits]), kind="stable")
    hits = [hits[position] for position in order]
    title = f"First {min(len(hits), _SHOWN):,} of {len(hits):,} candidates, sorted by your photos"
    return Group(title=title, count=len(hits), photos=hits[:_SHOWN])


answers_router = APIRouter(tags=["answers"])
EntryId = Annotated[str, Field(min_length=1, max_length=200)]


class PhotoRequest(BaseModel):
    """A request for photos, which a receiver saved in `search.html`."""

    model_config = ConfigDict(extra="forbid")
    format: Literal["blindsight request 1"]
    release: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    ids: Annotated[list[EntryId], Field(max_length=1000)]
    message: Annotated[str, Field(max_length=2000)] = ""
    query: dict[str, str | bool] = {}
    key: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    signature: Annotated[str, Field(pattern="^([0-9a-f]{128})?$")] = ""


class CopyOrder(BaseModel):
    """A request, and the ids of the photos that the owner hands over."""

    model_config = ConfigDict(extra="forbid")
    request: PhotoRequest
    chosen: Annotated[list[EntryId], Field(min_length=1, max_length=1000)]


class RequestedPhoto(BaseModel):
    """A photo that a request asks for."""

    id: str
    name: str


class Requested(BaseModel):
    """The photos that a request asks for, as the owner sees them."""

    dataset: str
    name: str
    epsilon: float
    message: str
    signed_by: str
    photos: list[RequestedPhoto]
    unknown: int


class Copied(BaseModel):
    """The folder of the copies, which the owner sends or deletes."""

    folder: str
    count: int


@answers_router.get("/answer", include_in_schema=False)
async def answer_page(request: Request, workbench: Parts, dataset: str | None = None) -> Response:
    """Render the page that answers a request."""
    return await workbench.ledger_lane.run(_answer_page, request, workbench, dataset)


@answers_router.post(
    "/api/answers/{dataset}",
    summary="Look up which photos a request asks for",
    responses=documented("not_found", "conflict"),
)
def look_up(dataset: DataSetId, request: PhotoRequest, workbench: Parts, asker: Owner) -> Requested:
    """For the owner. The vault's log records that it was looked up, without names."""
    signer = ""
    try:
        if request.key or request.signature:
            signer = request_signer(
                request.format,
                request.release,
                request.message,
                request.ids,
                request.key,
                request.signature,
            )
    except ValueError as error:
        raise Problem("conflict") from error
    try:
        data_set = workbench.datasets.get(dataset)
        requested = requested_photos(workbench.datasets, data_set, request.release, request.ids)
    except MissingData as error:
        raise Problem("not_found") from error
    return Requested(
        dataset=requested.data_set.id,
        name=requested.data_set.name,
        epsilon=requested.release.epsilon,
        message="".join(x for x in request.message if x.isprintable() or x == "\n"),
        signed_by=signer,
        photos=[RequestedPhoto(id=photo.id, name=photo.name) for photo in requested.photos],
        unknown=requested.unknown,
    )


@answers_router.post(
    "/api/answers/{dataset}/copies",
    status_code=201,
    summary="Copy the photos that the owner chose into a new folder",
    responses=documented("not_found", "conflict"),
)
def copies(dataset: DataSetId, decision: CopyOrder, workbench: Parts, asker: Owner) -> Copied:
    """Nothing is sent. The vault's log records the number of photos."""
    request = decision.request
    try:
        data_set = workbench.datasets.get(dataset)
        paths = copy_chosen(
            workbench.datasets, data_set, request.release, request.ids, decision.chosen
        )
    except MissingData as error:
        raise Problem("not_found") from error
    except InvalidParameter as error:
        raise Problem("conflict") from error
    return Copied(folder=str(paths[0].parent), count=len(paths))


def _answer_page(request: Request, workbench: Workbench, dataset: str | None) -> Response:
    context: dict[str, object] = {"title": "Answer a request", "sets": [], "data_set": None}
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {"sets": sets, "data_set": data_set}
    return render(request, workbench, "answer.html", context)


@answers_router.get("/received", include_in_schema=False)
def received_page(
    request: Request,
    workbench: Parts,
    asker: Administrator,
    folder: Annotated[str, Query(max_length=1000)] = "",
    fingerprint: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Verify a release that somebody else shared, and open its own search page."""
    roots = [root for root in workbench.settings.photos if root.is_dir()]
    context: dict[str, object] = {
        "title": "Received releases",
        "menu_word": "Search",
        "folders": received_folders(roots),
        "folder": folder,
        "fingerprint": fingerprint,
    }
    if folder:
        try:
            path = workbench.datasets.allowed(folder)
            opened = open_release(path, fingerprint=fingerprint.strip() or None)
        except BlindsightError as error:
            context["refused"] = str(error)
        else:
            context |= {"opened": opened, "has_page": (path / _SEARCH_PAGE).is_file()}
    return render(request, workbench, "received.html", context)


@answers_router.get("/received/search.html", include_in_schema=False)
def received_search(
    workbench: Parts,
    asker: Administrator,
    folder: Annotated[str, Query(max_length=1000)],
    fingerprint: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Verify a received release again, and serve its search page in its own origin."""
    path = workbench.datasets.allowed(folder)
    try:
        open_release(path, fingerprint=fingerprint.strip() or None)
    except BlindsightError as error:
        raise Problem("conflict") from error
    if not (path / _SEARCH_PAGE).is_file():
        raise Problem("not_found")
    return FileResponse(path / _SEARCH_PAGE, media_type="text/html", headers=OTHERS_PAGE)


def received_folders(roots: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Return the allowed roots, and the folders directly in them, that contain a signed release."""
    paths: list[pathlib.Path] = []
    for root in roots:
        with contextlib.suppress(OSError):  # a folder that cannot be read counts as empty
            inner = [path for path in sorted(root.iterdir()) if not path.name.startswith(".")]
            paths += [path for path in (root, *inner) if (path / _SIGNED).is_file()]
    return paths
