"""Search a release of photos: by a photo, by words, by a stored photo or by a vector."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.app import defaults
from blindsight.app.defaults import no_progress
from blindsight.app.result import JobResult, Progress, ResultTable, counted, files_table, to_plain
from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.core.storage import write_atomically
from blindsight.data import read_image
from blindsight.data.listing import FilesRead, list_photos, no_photos
from blindsight.encoders import Embeddings, Encoder, open_encoder
from blindsight.encoders.embeddings import QueryVectors
from blindsight.encoders.words import read_dictionary, translated
from blindsight.index.base import CodeIndex, Hit, Hits, by_photos
from blindsight.index.contact_sheet import (
    ALIKE,
    OwnerNames,
    OwnerPhotos,
    Sheet,
    contact_sheet,
    percent,
    shown,
    standing,
    thumbnail,
)
from blindsight.index.encoder import CodeRecipe, PhotoEncoder, load_encoder
from blindsight.index.index_file import IndexHeader
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy import Guarantee

__all__ = [
    "DuplicatePhotos",
    "PhotoHit",
    "QueryHits",
    "SearchResult",
    "find_duplicates",
    "search",
]

#: The largest number of queries from a file of vectors; of more, evenly spaced ones are used.
_MAX_QUERY_VECTORS = 1000
PathText = str | PathLike[str]
Day = datetime.date


@dataclass(frozen=True)
class PhotoHit:
    """One photo that a search returned.

    Parameters:
        hit: its id, and the values by which it is ranked.
        names: the names of its files, if the owner's vault is on this machine; else its id.
    """

    hit: Hit
    names: tuple[str, ...]


@dataclass(frozen=True)
class QueryHits:
    """The hits of one query, best first.

    Parameters:
        query: the query's file, words, id or number.
        present: whether anything similar to the query is stored, estimated from the noisy codes.
        interpretation: how words were understood; None for other queries.
        hits: the photos.
    """

    query: str
    present: bool
    interpretation: str | None
    hits: tuple[PhotoHit, ...]

    def table(self, match_word: str, noun: str = "photo") -> ResultTable:
        """Return the hits as a table; photos of one cell share a rank.

        Parameters:
            match_word: the name of the column of probabilities.
            noun: what is stored: "photo" or "vector".
        """
        title = Path(self.query).name or self.query
        has_number = any(shown(each.hit) is not None for each in self.hits)
        rows: list[tuple[str, ...]] = []
        # The release does not distinguish photos of one cell.
        for _, tied in groupby(
            enumerate(self.hits, start=1),
            key=lambda pair: pair[0] if pair[1].hit.cell is None else pair[1].hit.cell,
        ):
            group = list(tied)
            (first, best), last = group[0], group[-1][0]
            number = shown(best.hit)
            facts = (
                str(first) if first == last else f"{first}-{last}",
                standing(best.hit)[1],
                percent(number) if number else "",
            )
            for position, (_, each) in enumerate(group):
                rank, value, chance = facts if position == 0 else ("", "", "")
                rows.append((rank, ", ".join(each.names), value, *((chance,) * has_number)))
        basis = standing(self.hits[0].hit)[0] if self.hits else "distance"
        columns = ("rank", noun, basis, *((match_word,) * has_number))
        count = f"{len(rows)} hit{'' if len(rows) == 1 else 's'}"
        return ResultTable(f"{title}: {count}", columns, rows)

    def notice(self) -> str | None:
        """Return a sentence if there is no hit or nothing similar is stored, else None."""
        title = Path(self.query).name or self.query
        if not self.hits and not self.present:
            return f"{title}: nothing like this here."
        if not self.hits:
            return f"{title}: nothing stored passes what was asked for."
        if not self.present:
            return f"{title}: nothing like this here, as far as the noisy cells tell. The nearest:"
        return None


@dataclass(frozen=True)
class SearchResult(JobResult):
    """The result of `search`.

    Parameters:
        queries: the hits of each query, in the order of the queries.
        stored: number of photos in the release.
        match_word: the name of the probability that is shown beside a hit.
        meaning: sentences on what this probability means.
        guarantee: the guarantee of the stored codes.
        html: the contact sheet that was written, if one was requested.
        files: number of query photos that were read, and the files that were not; None for other
            queries.
        of_vectors: whether vectors are stored rather than photos.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> from blindsight import protect
        >>> made = protect(folder, f"{folder}.release", encoder="pixels", page=False)
        >>> result = search(made.release, folder / "red.png", k=1)
        >>> result.stored, len(result.hits), result.guarantee.epsilon
        (1, 1, 8.0)
    """

    queries: tuple[QueryHits, ...]
    stored: int
    match_word: str
    meaning: str
    guarantee: Guarantee | None
    html: Path | None = None
    files: FilesRead | None = None
    of_vectors: bool = False

    @property
    def title(self) -> str:
        queries = counted(len(self.queries), "query", "queries")
        return f"{queries} to a release of {counted(self.stored, self.noun)}"

    @property
    def noun(self) -> str:
        """The kind of the stored records: "photo" or "vector"."""
        return "vector" if self.of_vectors else "photo"

    @property
    def hits(self) -> tuple[PhotoHit, ...]:
        """The hits of the first query."""
        return self.queries[0].hits

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[QueryHits]:
        return iter(self.queries)

    def facts(self) -> list[tuple[str, str]]:
        pairs = [("note", line) for line in self.explanations()]
        return pairs if self.html is None else [*pairs, ("contact sheet", str(self.html))]

    def tables(self) -> list[ResultTable]:
        files = [] if self.files is None else [files_table(self.files)]
        return [*(query.table(self.match_word, self.noun) for query in self.queries), *files]

    def explanations(self) -> list[str]:
        """Return what the columns of the hits mean, as sentences."""
        hits = [each.hit for query in self.queries for each in query.hits]
        lines = []
        if any(hit.cell is None and hit.distance is None for hit in hits):
            lines.append(
                f"likeness: the cosine of the {self.noun}s' own features with the query's; 1 is "
                "the same."
            )
        elif hits:
            lines.append(f"{self.match_word}: {self.meaning}")
        if any(hit.tied > 1 for hit in hits):
            lines.append(
                f"{self.noun.capitalize()}s of one cell share a rank: the release does not "
                "distinguish them."
            )
        if self.guarantee is not None:
            lines.append(f"codes: {self.guarantee.line()}")
        return lines

    def to_dict(self) -> dict[str, object]:
        return {
            "queries": [
                {
                    "query": query.query,
                    "present": query.present,
                    "taken": query.interpretation,
                    "hits": [
                        {**each.hit._asdict(), "names": list(each.names)} for each in query.hits
                    ],
                }
                for query in self.queries
            ],
            "stored": self.stored,
            "match": self.meaning,
            "guarantee": to_plain(self.guarantee),
            "html": None if self.html is None else str(self.html),
            "files": to_plain(self.files),
        }


def search(
    release: PathText,
    photo: PathText | Sequence[PathText] | None = None,
    *,
    text: str | Sequence[str] | None = None,
    like: str | Sequence[str] | None = None,
    vector: ArrayLike | PathText | None = None,
    encoder: PathText | Encoder | None = None,
    text_embeddings: PathText | None = None,
    dictionary: PathText | None = None,
    k: int = defaults.SEARCH_HITS,
    rerank: int | None = None,
    inside: str | None = None,
    since: Day | None = None,
    until: Day | None = None,
    radius: int | None = None,
    ranking: str = "soft",
    min_probability: float | None = None,
    html: PathText | None = None,
    photos: PathText | None = None,
    vault: PathText | None = None,
    milvus: str | None = None,
    collection: str = defaults.MILVUS_COLLECTION,
    token: str = "",
    progress: Progress = no_progress,
) -> SearchResult:
    """Find the photos of a release that are similar to a query.

    The query stays on this machine and has no noise. Give exactly one of `photo`, `text`, `like`
    and `vector`.

    Parameters:
        release: the folder that `protect` made.
        photo: photos to look for, or a folder of them.
        text: words such as "dog on a beach"; needs a release made with a pretrained network.
        like: ids, or for the owner file names, of stored photos.
        vector: vectors (d,) or (m, d) of the release's encoder, or a file of them (.npy, .npz,
            Parquet).
        encoder: the encoder that the release was made with, if it is not built in.
        text_embeddings: for words, if the release was made from vectors: a file of names and
            their vectors from the text tower of the same model.
        dictionary: for words in another language: a file of lines `word = English`.
        k: number of hits per query.
        rerank: for the owner: order this number of candidates by the photos themselves.
        inside: for the owner: only photos whose name begins with this text.
        since: only photos taken on this day or later.
        until: only photos taken on this day or before.
        radius: all photos within this Hamming distance; for phashing codes only.
        ranking: "soft" (similar photos) or "distance" (the same photo; phashing only).
        min_probability: only hits with at least this probability of a match or of relevance.
        html: the file of a contact sheet to write: one page with thumbnails.
        photos: the folder of the owner's photos (default: the folder that was protected).
        vault: the owner's vault, which has the photos' names (default: beside the release).
        milvus: the address of a Milvus server to search on; a missing collection is created.
        collection: the Milvus collection.
        token: user:password or API key of Milvus.
        progress: called with (stage, done, total).

    Raises:
        InvalidData: if the release, the vault or a query cannot be read.
        InvalidParameter: if options exclude each other, or the release does not support them.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight.app.protect import protect
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "photos").mkdir()
        >>> for colour in ("red", "green", "blue"):
        ...     Image.new("RGB", (64, 64), colour).save(folder / "photos" / f"{colour}.png")
        >>> made = protect(folder / "photos", folder / "release", encoder="pixels", seed=1)
        >>> len(search(folder / "release", folder / "photos" / "red.png", k=2).hits)
        2
    """
    target = Path(release)
    words = _listed(text)
    if dictionary is not None:
        pairs = read_dictionary(Path(dictionary))
        words = [translated(each, pairs) for each in words]
    if photo is not None and not isinstance(photo, (str, PathLike)):
        photo = list(photo)
        if not all(isinstance(each, (str, PathLike)) for each in photo):
            raise InvalidParameter(
                f"photo must be a path or several, got {type(photo[0]).__name__}. Vectors are "
                "given by name: search(release, vector=...)."
            )
    queries = [Path(each) for each in _listed(photo)]
    _check_order(target, queries)
    if rerank is not None:
        checks.whole("--rerank", rerank)
    if since is not None and until is not None and since > until:
        raise InvalidParameter(
            f"--since {since:%Y-%m-%d} is after --until {until:%Y-%m-%d}: no photo is of both."
        )
    folder, coder, names = _open_release(target, vault, encoder, text_embeddings)
    if inside is not None and names.vault is None and folder.names == "random":
        raise InvalidData(
            "--in needs the names of the photos, which are in the owner's vault: give it with "
            "--vault."
        )
    own = OwnerPhotos(names, Path(photos) if photos is not None else names.source, coder)
    progress("reading the release", 0, 0)
    stored = (
        coder.load(folder.codes)
        if milvus is None
        else coder.on_milvus(milvus, codes=folder.codes, collection=collection, token=token)
    )
    with stored:
        queried = _asked(coder, stored, queries, words, _listed(like), vector, names)
        filtered = inside is not None or since is not None or until is not None
        wanted = max(k, rerank or 0, len(stored) if filtered else 0)
        progress("searching", 0, len(queried.titles))
        hits = _search(coder, stored, queried, wanted, ranking, radius)
        if inside is not None:
            hits = hits.only(own.inside(hits, inside))
        if since is not None or until is not None:
            hits = hits.only(own.between(hits, since, until))
        if min_probability is not None:
            hits = hits.at_least(checks.probability("min_probability", min_probability))
        most = k if rerank is None else max(k, rerank)
        ranked = [each[:most] if hits.distances is None else each for each in hits]
        # Words that the encoder does not know have no hits, rather than arbitrary ones.
        ranked = [each if meant else [] for each, meant in zip(ranked, queried.meant, strict=True)]
        if rerank is not None:
            ranked = _rerank(own, queried, ranked, k)
        if html is not None:
            _write_sheet(Path(html), queried, ranked, stored, own)
        return SearchResult(
            queries=tuple(
                QueryHits(
                    query,
                    present,
                    interpretation,
                    tuple(PhotoHit(hit, tuple(names.of(hit.id))) for hit in each),
                )
                for query, present, interpretation, each in zip(
                    queried.titles,
                    queried.present,
                    queried.interpretations or (None,) * len(ranked),
                    ranked,
                    strict=True,
                )
            ),
            stored=len(stored),
            match_word=coder.match_word,
            meaning=coder.meaning(stored),
            guarantee=stored.guarantee,
            html=None if html is None else Path(html),
            files=queried.files,
            of_vectors=coder.recipe.of_vectors,
        )


@dataclass(frozen=True)
class DuplicatePhotos(JobResult):
    """Photos of a release that are nearly or exactly the same.

    Parameters:
        groups: groups of photos that are nearly the same; each photo is a tuple of its files.
        copies: groups of files with exactly the same image.
    """

    groups: tuple[tuple[tuple[str, ...], ...], ...]
    copies: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        count = sum(len(group) for group in self.groups)
        return (
            f"{counted(count, 'photo')} in {counted(len(self.groups), 'group')} are nearly the "
            "same."
        )

    def facts(self) -> list[tuple[str, str]]:
        groups = [
            (f"group {number}", "  ".join(", ".join(files) for files in group))
            for number, group in enumerate(self.groups, start=1)
        ]
        return groups + [("copies", ", ".join(files)) for files in self.copies]


def find_duplicates(
    release: PathText,
    *,
    min_similarity: float = ALIKE,
    photos: PathText | None = None,
    vault: PathText | None = None,
) -> DuplicatePhotos:
    """Find photos that are nearly the same, for the owner, by reading the photos.

    Copies of one image share a code and cost nothing. Photos that are only nearly the same are
    separate records; a person on several of them is protected only by a guarantee per person.

    Parameters:
        release: the folder that `protect` made.
        min_similarity: the least cosine of the features of photos that are nearly the same.
        photos: the folder of the photos (default: the folder that was protected).
        vault: the owner's vault (default: beside the release).

    Raises:
        InvalidData: if the vault or the photos are not on this machine.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight import protect
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, colour in (("a", (200, 0, 0)), ("b", (201, 0, 0)), ("c", (0, 0, 200))):
        ...     Image.new("RGB", (64, 64), colour).save(folder / f"{name}.png")
        >>> made = protect(folder, f"{folder}.release", encoder="pixels", page=False)
        >>> find_duplicates(made.release).title
        '2 photos in 1 group are nearly the same.'
    """
    folder, encoder, names = _open_release(Path(release), vault)
    if names.vault is None and folder.names == "random":
        raise InvalidData(
            "only the owner can find duplicates: the vault is not here. Give it with --vault."
        )
    own = OwnerPhotos(names, Path(photos) if photos is not None else names.source, encoder)
    with encoder.load(folder.codes) as stored:
        keys = sorted(str(key) for ids, _ in stored.items() for key in ids.tolist())
    groups = own.duplicates(keys, alike=min_similarity)
    files = {key: tuple(names.of(key)) for key in keys}
    return DuplicatePhotos(
        groups=tuple(tuple(files[key] for key in group) for group in groups),
        copies=tuple(shown_by for shown_by in files.values() if len(shown_by) > 1),
    )


def _open_release(
    path: Path,
    vault: PathText | None,
    own: PathText | Encoder | None = None,
    texts: PathText | None = None,
) -> tuple[ReleaseFolder, PhotoEncoder, OwnerNames]:
    folder = ReleaseFolder.read(path)
    recipe = CodeRecipe.from_fields(folder.recipe)
    if texts is not None:
        if not recipe.of_vectors or own is not None:
            raise InvalidParameter(
                f"text embeddings belong to a release of vectors, and {path} was made with the "
                f"encoder {recipe.features!r}: leave them out."
            )
        own = Embeddings(texts, name=recipe.features, texts=texts)
    if own is not None and own != recipe.features:
        recipe = recipe.with_encoder(open_encoder(own), what=str(path))
    encoder = load_encoder(recipe, path, IndexHeader.of(folder.codes).decoding)
    return folder, encoder, OwnerNames(folder, None if vault is None else Path(vault))


def _listed(value: PathText | Sequence[PathText] | None) -> list[str]:
    if value is None:
        return []
    return [str(value)] if isinstance(value, (str, PathLike)) else [str(each) for each in value]


@dataclass(frozen=True)
class _Queries:
    """The queries of one call.

    Parameters:
        titles: the name of each query.
        present: whether anything similar is stored.
        pixels: the pictures, if the queries are pictures.
        squeezed: the pictures as prepared for the encoder.
        rows: the feature vectors, unless the queries are words or records.
        similarity: the similarity to the cells (m, cells), if the queries are words or records.
        records: the ids of stored photos, if the queries are those.
        interpretations: how words were understood.
        known: whether the encoder knows the words; empty for other queries.
        files: the query files that were read and that were not, if the queries are pictures.
    """

    titles: list[str]
    present: list[bool]
    pixels: list[NDArray[np.uint8]] = field(default_factory=list)
    squeezed: NDArray[np.uint8] | None = None
    rows: NDArray[np.floating] | None = None
    similarity: NDArray[np.floating] | None = None
    records: tuple[str, ...] = ()
    interpretations: tuple[str, ...] = ()
    known: Sequence[bool] = ()
    files: FilesRead | None = None

    @property
    def meant(self) -> Sequence[bool]:
        """Whether each query can have hits."""
        return self.known or [True] * len(self.titles)


def _check_order(release: Path, queries: list[Path]) -> None:
    """Explain common mistakes: release and query swapped, a vault or a file given as release."""
    if not (release / "about.json").is_file() and any(
        (query / "about.json").is_file() for query in queries
    ):
        raise InvalidData(f"{queries[0]} is the index, which comes first; the query is second.")
    if (release / "key").is_file():
        raise InvalidData(
            f"{release} is a vault, which is for the owner only. The index is the folder beside it."
        )
    if release.is_file():
        raise InvalidData(
            f"{release} is a file. The first argument is the index: the folder that blindsight "
            "protect made."
        )


def _asked(
    encoder: PhotoEncoder,
    stored: CodeIndex,
    queries: list[Path],
    words: list[str],
    like: list[str],
    vector: ArrayLike | PathText | None,
    names: OwnerNames,
) -> _Queries:
    if sum((bool(queries), bool(words), bool(like), vector is not None)) != 1:
        raise InvalidParameter("give photos, --words, --like or --vector: exactly one of them.")
    if vector is not None:
        if isinstance(vector, (str, PathLike)):
            titles, vectors = QueryVectors(vector).take(_MAX_QUERY_VECTORS)
            if (path := Path(vector)).suffix == ".npy":  # without ids, its vectors are numbered
                several = len(titles) > 1
                titles = [f"{path.name}, row {row}" if several else path.name for row in titles]
            rows = encoder.prepared(vectors)
        else:
            array = checks.finite_array("vector", np.atleast_2d(vector), ndim=2)
            titles = [f"vector {number}" for number in range(1, len(array) + 1)]
            rows = encoder.prepared(array)
        return _Queries(titles, encoder.present(stored, rows).tolist(), rows=rows)
    if queries:
        titles, pixels, files = _read_queries(queries)
        squeezed = np.stack([encoder.recipe.image.prepare(image) for image in pixels])
        rows = encoder.rows(squeezed)
        present = encoder.present(stored, rows).tolist()
        return _Queries(titles, present, pixels, squeezed, rows, files=files)
    if words:
        similarity = encoder.similarity_of_words(words)
        present = encoder.present_like(stored, similarity, words=True).tolist()
        if getattr(encoder.recipe.encoder, "network", None) is None:  # a text tower of its own
            return _Queries(words, present, similarity=similarity)
        from blindsight.encoders.words import understood

        meanings = [understood(text) for text in words]
        meaningful = [bool(meaning.names) for meaning in meanings]
        return _Queries(
            words,
            [is_stored and meant for is_stored, meant in zip(present, meaningful, strict=True)],
            similarity=similarity,
            interpretations=tuple(meaning.line() for meaning in meanings),
            known=meaningful,
        )
    records = tuple(names.record(name) for name in like)
    for name, record in zip(like, records, strict=True):
        try:
            stored.codes_of([record])
        except InvalidData:
            has_vault = names.vault is not None
            wanted = "a file name as the folder has it, or an id" if has_vault else "an id"
            raise InvalidData(
                f"--like {name}: the index holds no such photo. Give {wanted}; blindsight index "
                "show lists them."
                + ("" if has_vault else " File names need the owner's vault (--vault).")
            ) from None
    similarity = encoder.similarity_of_stored(stored, records)
    return _Queries(like, [True] * len(records), similarity=similarity, records=records)


def _read_queries(paths: Sequence[Path]) -> tuple[list[str], list[NDArray[np.uint8]], FilesRead]:
    """Read query photos; damaged photos of a folder are skipped, a named photo must be readable.

    Returns:
        The paths, the pixels, and the files that were read and that were not.
    """
    titles: list[str] = []
    pixels: list[NDArray[np.uint8]] = []
    files = FilesRead(0)
    for path in paths:
        if not path.is_dir():
            titles.append(str(path))
            pixels.append(read_image(path))
            files += FilesRead(1)
            continue
        listed = list_photos(path)
        damaged: list[tuple[str, str]] = []
        for name in listed.photos:
            try:
                pixels.append(read_image(path / name))
                titles.append(str(path / name))
            except HostileFile as error:
                damaged.append((name, str(error)))
        files += listed.files_read(read=len(listed.photos) - len(damaged), damaged=damaged)
    if not pixels:
        raise InvalidParameter(no_photos(paths[0], files.skipped))
    return titles, pixels, files


def _search(
    encoder: PhotoEncoder,
    stored: CodeIndex,
    queries: _Queries,
    k: int,
    ranking: str,
    radius: int | None,
) -> Hits:
    if queries.similarity is not None:
        if radius is not None:
            raise InvalidParameter("--radius needs a query picture and flipped codes.")
        return encoder.search_like(stored, queries.similarity, k)
    if queries.rows is None:
        raise AssertionError("queries without a similarity have rows")
    if radius is not None:
        return encoder.within(stored, queries.rows, radius)
    return encoder.search(stored, queries.rows, k, ranking=ranking)


def _rerank(
    own: OwnerPhotos, queries: _Queries, ranked: list[list[Hit]], k: int
) -> list[list[Hit]]:
    """Order candidates by their photos; a query that is stored is read from the owner's photos."""
    squeezed = queries.squeezed
    if squeezed is None and queries.records:
        pictures = [
            picture for key in queries.records if (picture := own.squeezed(key)) is not None
        ]
        squeezed = np.stack(pictures) if len(pictures) == len(queries.records) else None
    if squeezed is None:
        raise InvalidParameter(
            "--rerank compares pictures: give a query picture, or --like with a photo that is on "
            "this machine (see --folder)."
        )
    ordered = own.encoder.rerank(squeezed, ranked, own.squeezed, k)
    if any(ranked) and not any(ordered):
        raise InvalidParameter(
            "--rerank needs the owner's photos, and none of them was found. Give --folder and "
            "--vault."
        )
    return [[by_photos(key, value) for key, value in pairs] for pairs in ordered]


def _write_sheet(
    target: Path, queries: _Queries, ranked: list[list[Hit]], stored: CodeIndex, own: OwnerPhotos
) -> None:
    small = own.thumbnails({hit.id for hits in ranked for hit in hits} | set(queries.records))
    thumbnails = {own.names.of(key)[0]: picture for key, picture in small.items()}
    named = [[hit._replace(id=own.names.of(hit.id)[0]) for hit in hits] for hits in ranked]
    pictures: list[bytes | None] = [thumbnail(image) for image in queries.pixels]
    pictures = pictures or [small.get(key) for key in queries.records] or [None] * len(named)
    sheets = [
        Sheet(Path(query).name, picture, hits, thumbnails, present)
        for query, picture, hits, present in zip(
            queries.titles, pictures, named, queries.present, strict=True
        )
    ]
    page = contact_sheet(
        sheets,
        stored.guarantee,
        stored=len(stored),
        word=own.encoder.match_word,
        meaning=own.encoder.meaning(stored),
    )
    write_atomically(target, page.encode())
