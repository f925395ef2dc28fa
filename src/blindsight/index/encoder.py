"""Photos, or vectors of photos, to private codes: features, a hash function from public data, and
a mechanism.

The hash function never sees the private photos. It is made from what is public: by default the
1,000 class vectors of the pretrained network (public weights, trained on ImageNet), and built-in
pictures for pixels; or a folder of public images of your own, which is better the more it looks
like the photos, and best with one subfolder per class.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks import (
    CELL,
    Codebook,
    PublicKnowledge,
    Reading,
    build_codebook,
    text_points,
)
from blindsight.core import checks, durable
from blindsight.core.codes import MatchModel, cell_bits, from_codes, to_codes
from blindsight.core.errors import HostileFile, InvalidParameter, UnchargedRelease
from blindsight.encoders import (
    STORED,
    BuiltIn,
    Embeddings,
    OnnxEncoder,
    default_recipe,
)
from blindsight.encoders.base import require_same_encoder, unit_rows
from blindsight.index.base import CodeIndex, Hit, Hits
from blindsight.index.cell_index import CodebookIndex
from blindsight.index.hamming import HammingIndex
from blindsight.index.public_images import (
    built_in_images,
    edited,
    is_vector_file,
    public_pictures,
    public_vectors,
)
from blindsight.privacy import Door, Guarantee
from blindsight.privacy.door import finite_rows
from blindsight.privacy.entropy import Source, source_of

__all__ = [
    "FEATURES",
    "FUNCTION_FILES",
    "METHODS",
    "CodeRecipe",
    "PhotoEncoder",
    "default_features",
    "load_encoder",
    "make_encoder",
    "release_named",
]

METHODS = ("codebook", "phashing-itq", "phashing-sh", "phashing-lsh")
FEATURES = tuple(STORED)
BUILT_IN = "built-in"
_FILES = {"codebook": "codebook.safetensors", "phashing": "hasher.safetensors"}
#: Names of the files that hold the public hash function of a release.
FUNCTION_FILES = tuple(_FILES.values())

Images = NDArray[np.uint8]
Rows = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class CodeRecipe:
    """How photos become codes: plain values that are stored with the index.

    Parameters:
        method: one of `METHODS`.
        epsilon: the budget per unit.
        unit: "record" (a whole photo) or "bit" (flipped codes only).
        calibration: "proven" or "paper" (flipped codes only).
        bits: the number of cells of a codebook (0: by the budget's rule), or the bits of a flipped
            code.
        features: the encoder's name.
        public: "built-in", a folder, a file of vectors or the name of a data set: what the hash
            function is made from.
        first_page: make more cells: better first ten hits, a worse order of the rest.
        prior: prior probability that a photo matches a query.
        seed: fixes the noise of a simulation; None for a real release.
        own_names: public words for what the photos show.
        identity: what tells the encoder from others; None for a built-in one.
        opened: the encoder, where it is not built in; never stored.
    """

    method: str = "codebook"
    epsilon: float = 8.0
    unit: Literal["record", "bit"] = "record"
    calibration: Literal["proven", "paper"] = "proven"
    bits: int = 0
    features: str = "lite0-128"
    public: str = BUILT_IN
    first_page: bool = False
    prior: float = 0.01
    seed: int | None = None
    own_names: tuple[str, ...] = ()
    identity: dict[str, Any] | None = None
    opened: OnnxEncoder | Embeddings | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_names", tuple(str(name) for name in self.own_names))
        if self.own_names and self.method != "codebook":
            raise InvalidParameter("names for what the photos show need the method codebook.")
        checks.one_of("method", self.method, METHODS)
        checks.one_of("unit", self.unit, ("record", "bit"))
        checks.one_of("calibration", self.calibration, ("proven", "paper"))
        if self.identity is None:
            checks.one_of("features", self.features, FEATURES)
        elif not isinstance(self.identity, dict):
            raise InvalidParameter("the identity of an encoder must be a JSON object.")
        checks.positive("epsilon", self.epsilon)
        checks.probability("prior", self.prior)
        checks.whole("bits", self.bits, least=0)
        if self.method == "codebook" and (self.unit, self.calibration) != ("record", "proven"):
            raise InvalidParameter(
                "a codebook is proven, per record. Use a phashing method for another guarantee."
            )
        if self.method != "codebook" and (self.bits < 2 or self.first_page):
            raise InvalidParameter("flipped codes need bits of at least 2, and have no first_page.")

    def to_fields(self) -> dict[str, Any]:
        """Return plain values for JSON; fields without a value are left out, as in earlier
        versions.
        """
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("opened", "own_names", "identity")
        }
        if self.own_names:
            values["own_names"] = list(self.own_names)
        if self.identity is not None:
            values["identity"] = self.identity
        return values

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> CodeRecipe:
        """Read the values of `to_fields`."""
        try:
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise HostileFile(f"the index's recipe is not one of ours: {error}") from error

    @property
    def own_pictures(self) -> bool:
        """Whether there are public pictures of the photos' kind to calibrate on."""
        return self.public != BUILT_IN

    @property
    def of_vectors(self) -> bool:
        """Whether the records are vectors that were computed elsewhere, rather than images."""
        return self.identity is not None and self.identity.get("kind") == "embeddings"

    @property
    def encoder(self) -> BuiltIn | OnnxEncoder | Embeddings:
        """The encoder of images (and perhaps texts) to vectors.

        Raises:
            InvalidParameter: The codes were made with an encoder of one's own, which was not given.
        """
        if self.identity is None:
            return STORED[self.features]
        if self.opened is None and self.of_vectors:
            raise InvalidParameter(
                f"these codes were made from vectors of {self.features!r}: search with a vector of "
                "that model (--vector), or with words and their vectors (--text-embeddings)."
            )
        if self.opened is None:
            raise InvalidParameter(
                f"these codes were made with the encoder {self.features!r}, which is not built in. "
                "Give its folder, as --encoder or encoder=."
            )
        return self.opened

    @property
    def image(self) -> BuiltIn | OnnxEncoder:
        """The encoder, where it reads images.

        Raises:
            InvalidParameter: The codes were made with an encoder of one's own, which was not given,
                or from vectors.
        """
        encoder = self.encoder
        if isinstance(encoder, Embeddings):
            raise InvalidParameter(
                f"these codes were made from vectors of {self.features!r}, and a picture cannot be "
                "compared with them. Search with a vector of that model (--vector)."
            )
        return encoder

    def with_encoder(self, encoder: object, *, what: str) -> CodeRecipe:
        """Return the recipe with its encoder, after checking that it is the one that made the
        codes.

        Parameters:
            encoder: an encoder that was opened.
            what: what was made with the recipe, for the message.

        Raises:
            InvalidParameter: It is another encoder.
        """
        if not isinstance(encoder, BuiltIn | OnnxEncoder | Embeddings):
            raise InvalidParameter(
                f"{what} needs a built-in encoder, a folder of ONNX files or a file of vectors, "
                f"got {type(encoder).__name__}."
            )
        stored = self.identity or STORED[self.features].identity()
        require_same_encoder(stored, encoder, what=what)
        if isinstance(encoder, BuiltIn):
            return self
        return dataclasses.replace(self, opened=encoder)


class CellRelease:
    """A codebook with the interface of a hasher: it releases one cell per row of features through
    the door.
    """

    def __init__(self, codebook: Codebook, random_state: Any = None) -> None:
        self.codebook, self.random_state = codebook, random_state
        self.mechanism_ = codebook.mechanism
        self.guarantee_ = codebook.guarantee(source_of(random_state).name)

    def transform(
        self, X: Rows, *, names: Sequence[str] | None = None, ledger: Any = None
    ) -> NDArray[np.uint8]:
        """Release cells as packed codes; with `names`, the noise depends on the name."""
        cells = self.codebook.assign(finite_rows(X))
        what = f"cells of {len(cells)} images"
        door = Door(self.guarantee_, what=what, ledger=ledger, random_state=self.random_state)
        released = (
            door.release(CELL, cells)
            if names is None
            else door.release_each(CELL, cells, names, about=self.codebook.digest)
        )
        return to_codes(released, self.codebook.k)


def release_named(
    hasher: Any, names: list[str], rows: NDArray[Any], source: Source | None = None
) -> NDArray[np.uint8]:
    """Release codes of feature rows; the noise of each depends only on its name and on a vault's
    source or a seed.

    With neither, every call draws fresh noise, and is a further release.
    """
    if source is None and hasher.random_state is None:
        fresh: NDArray[np.uint8] = hasher.transform(rows)
        return fresh
    own = copy.copy(hasher)
    if source is not None:
        own.random_state = source
        own.guarantee_ = _keyed(hasher.guarantee_)
    codes: NDArray[np.uint8] = own.transform(rows, names=names)
    return codes


@lru_cache(maxsize=4)
def _keyed(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee with a vault's noise; it is priced once, not for every shard."""
    return dataclasses.replace(guarantee, entropy="keyed")


class PhotoEncoder:
    """A hash function made from public data behind its mechanism, with the features before it.

    Parameters:
        recipe: how photos become codes.
        hasher: the hash function with its mechanism.
        decoding: how distances of flipped codes are read; None for cells.

    Attributes:
        codebook: the codebook, where cells are released.
        guarantee: what is promised for each released code, with what it rests on.
        n_bits: bits of a released code.
    """

    def __init__(
        self,
        recipe: CodeRecipe,
        hasher: Any,
        decoding: MatchModel | None,
    ) -> None:
        self.recipe, self.hasher, self.decoding = recipe, hasher, decoding
        self.codebook: Codebook | None = (
            hasher.codebook if isinstance(hasher, CellRelease) else None
        )
        self.guarantee: Guarantee = hasher.guarantee_
        self.n_bits = int(hasher.n_bits_) if self.codebook is None else cell_bits(self.codebook.k)

    @property
    def match_word(self) -> str:
        """What the number beside a hit is the probability of, in one to three words."""
        if self.codebook is None:
            return "match"
        return "relevant" if self.codebook.calibrated else "unchanged by noise"

    def meaning(self, index: CodeIndex) -> str:
        """Explain in a sentence what the number beside a hit of this index means."""
        if self.codebook is None and not self.recipe.own_pictures:
            return (
                "No number: whether a photo is the query itself can be told only with public "
                "pictures of the photos' kind to calibrate on (protect --public). The distance is "
                "what the index has to say."
            )
        if self.codebook is None:
            return (
                "The probability that the photo is the query itself after small edits (crop, "
                "brightness, "
                "recompression), given the distance of its noisy code, where "
                f"{self.recipe.prior:.3g} of the photos "
                "match beforehand."
            )
        if self.codebook.calibrated:
            return (
                "The probability that the photo is of the query's class, calibrated on the "
                "labelled public pictures "
                "that the cells were made from; it holds as far as the photos are like those."
            )
        if _of_cells(index).reading(self.codebook).shown_trust is None:
            return (
                "No number: with this budget and so few photos, which of the stored cells are "
                "noise cannot be told "
                "well enough. The order is what the index has to say."
            )
        return (
            "The probability that the stored cell is the true one rather than noise. It says "
            "nothing about how well the hit fits the query: for that, make the index with labelled "
            "public pictures."
        )

    def release(
        self, names: list[str], images: Images, source: Source | None = None
    ) -> NDArray[np.uint8]:
        """Release the codes of a batch of photos, which a ledger was charged for."""
        return self.release_rows(names, self.rows(images), source)

    def release_rows(
        self, names: list[str], rows: Rows, source: Source | None = None
    ) -> NDArray[np.uint8]:
        """Release the codes of a batch of vectors, as `prepared` returns them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnchargedRelease)  # one charge covers the whole folder
            return release_named(self.hasher, names, rows, source)

    def rows(self, images: Images) -> Rows:
        """Return feature rows of prepared photos; nothing is written to disk, and no row depends on
        another.
        """
        return self.prepared(self.recipe.image.rows(images))

    def prepared(self, features: Rows) -> Rows:
        """Feature rows as the hash function takes them.

        Parameters:
            features: rows (n, d) of the encoder that the recipe names.

        Raises:
            InvalidParameter: if the rows have another length than the encoder's.
        """
        book = self.codebook
        wanted = int(self.hasher.n_features_in_) if book is None else len(book.embedding.axes)
        if features.shape[1] != wanted:
            raise InvalidParameter(
                f"vectors must have {wanted} numbers, those of {self.recipe.features}, got "
                f"{features.shape[1]}."
            )
        if self.recipe.identity is not None:  # cells are centred, so the length of a row counts
            features = unit_rows(features)
        return features if book is not None else _centred(features)

    def described(self, images: Images) -> Rows:
        """Unit rows whose inner product says how alike two photos look: for the owner only."""
        return _centred(self.recipe.image.rows(images))

    def load(self, path: Path) -> CodeIndex:
        """Load the index of a file that this encoder made into memory."""
        return self._checked(
            HammingIndex.load(path) if self.codebook is None else CodebookIndex.load(path)
        )

    def on_milvus(
        self, uri: str, *, codes: Path, collection: str = "blindsight", token: str = ""
    ) -> CodeIndex:
        """The index on Milvus: the collection, or a new one filled with the codes of the file, no
        more than these.
        """
        from blindsight.index.milvus import MilvusCodebookIndex, MilvusIndex

        kind = MilvusIndex if self.codebook is None else MilvusCodebookIndex
        try:
            return self._checked(kind(uri, collection=collection, token=token))
        except InvalidParameter:  # not there yet
            return self._checked(kind.load(codes, uri, collection=collection, token=token))

    def _checked(self, index: CodeIndex) -> CodeIndex:
        """Refuse codes that state another release than this hash function makes."""
        stated, due = index.guarantee, self.guarantee
        same = stated is not None and (stated.releases, stated.unproven) == (
            due.releases,
            due.unproven,
        )
        if index.n_bits != self.n_bits or not same:
            raise HostileFile(
                "the codes of the index state another guarantee than the hash function beside them "
                "gives. Restore both "
                "from a copy, or ask whoever made the index."
            )
        return index

    def search(self, index: CodeIndex, rows: Rows, k: int, *, ranking: str = "soft") -> Hits:
        """Find the best k of an index for queries, which carry no noise and stay here.

        Parameters:
            index: the released codes.
            rows: the queries' rows (m, d), as `rows` or `prepared` returns them.
            k: how many hits per query.
            ranking: "soft" goes by the query's real values and finds what looks alike; "distance"
                by the bits alone, which is better at finding the very same photo.
        """
        if self.codebook is not None:
            if checks.one_of("ranking", ranking, ("soft", "distance")) == "distance":
                raise InvalidParameter("cells have no Hamming distance: leave --ranking out.")
            return self.search_like(index, self.codebook.similarity(rows), k)
        if checks.one_of("ranking", ranking, ("soft", "distance")) == "distance":
            return self._told(index.search(self.hasher.query(rows), k))
        return self._told(index.search_soft(self.hasher.decision_function(rows), k))

    def search_like(self, index: CodeIndex, similarity: NDArray[Any], k: int) -> Hits:
        """The best k for queries that fit the codebook's cells so well (m, cells): pictures, stored
        records, words.
        """
        book = self._cells("searching by cells")
        hits: Hits = _of_cells(index).search_codebook(book, similarity, k)
        return hits

    def similarity_of_stored(self, index: CodeIndex, ids: Sequence[Any]) -> NDArray[np.float32]:
        """How records that are stored fit the cells, as far as their released cells tell; for
        `search_like`.
        """
        book = self._cells("searching by a stored record")
        return book.likeness(from_codes(index.codes_of(list(ids))))

    def similarity_of_words(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """How words fit the cells, as a mixture of the network's classes; for `search_like`.

        They cost nothing.
        """
        book = self._cells("searching by words")
        points = text_points(self.recipe.encoder, book.embedding, texts)
        return book.cells.similarity(points)

    def present(self, index: CodeIndex, rows: Rows) -> NDArray[np.bool_]:
        """Whether anything like each query is stored; True where the codes cannot tell."""
        if self.codebook is None:
            return np.ones(len(rows), dtype=np.bool_)
        return self.present_like(index, self.codebook.similarity(rows))

    def present_like(
        self, index: CodeIndex, similarity: NDArray[Any], *, words: bool = False
    ) -> NDArray[np.bool_]:
        """The same for queries that fit the codebook's cells so well (m, cells): pictures, or
        words.
        """
        if not len(index):
            return np.ones(len(similarity), dtype=np.bool_)
        cells = _of_cells(index)
        reading: Reading = cells.reading(self._cells("telling what is not stored"))
        return reading.present(similarity, cells.counts, words=words)

    def rerank(
        self,
        images: Images,
        hits: Iterable[Sequence[Hit]],
        original: Callable[[Any], Images | None],
        k: int,
    ) -> list[list[tuple[Any, float]]]:
        """Order candidates by the owner's own images: (id, cosine of the features), best first, k
        for each query.

        `original` gives a stored record's squeezed image, or None where it is gone: such candidates
        are left out.
        """
        hits = list(hits)
        wanted = {hit.id: original(hit.id) for candidates in hits for hit in candidates}
        there = {key: image for key, image in wanted.items() if image is not None}
        stored = self.described(np.stack(list(there.values()))) if there else None
        row_of = {key: row for row, key in enumerate(there)}
        ordered = []
        for query, candidates in zip(self.described(images), hits, strict=True):
            here = [hit.id for hit in candidates if hit.id in row_of]
            values = (
                [] if stored is None else (stored[[row_of[key] for key in here]] @ query).tolist()
            )
            ordered.append(sorted(zip(here, values, strict=True), key=lambda pair: -pair[1])[:k])
        return ordered

    def within(self, index: CodeIndex, rows: Rows, radius: int) -> Hits:
        """Find all codes within a Hamming distance of the queries' plain codes."""
        if self.codebook is not None:
            raise InvalidParameter(
                "cells have no Hamming distance, so there is no --radius. Ask for the best -k."
            )
        return self._told(index.within(self.hasher.query(rows), radius))

    def file(self) -> tuple[str, bytes]:
        """The name and the content of the file of the hash function, which is public."""
        if self.codebook is not None:
            return _FILES["codebook"], self.codebook.to_bytes()
        with tempfile.TemporaryDirectory() as folder:
            self.hasher.save(Path(folder) / _FILES["phashing"])
            return _FILES["phashing"], (Path(folder) / _FILES["phashing"]).read_bytes()

    def save(self, folder: Path) -> None:
        """Write the file of the hash function into a folder."""
        name, content = self.file()
        durable.write_file(folder / name, content)

    def _told(self, hits: Hits) -> Hits:
        """Remove probabilities where there are no public pictures to calibrate on."""
        return hits if self.recipe.own_pictures else dataclasses.replace(hits, probabilities=None)

    def _cells(self, what: str) -> Codebook:
        if self.codebook is None:
            raise InvalidParameter(f"{what} needs an index made with --method codebook.")
        return self.codebook


def _of_cells(index: CodeIndex) -> Any:
    if not hasattr(index, "search_codebook"):
        raise InvalidParameter(
            "the index does not know its cells: open it with CodebookIndex or MilvusCodebookIndex."
        )
    return index


def default_features(*, fast: bool = False) -> str:
    """The pretrained network where it is installed, else pixels."""
    return default_recipe(fast=fast)


def default_bits(method: str, unit: str, epsilon: float) -> int:
    """Return 0 (the codebook's own rule) for cells; for flipped codes one bit per 2.18 of epsilon
    per record, or 64 bits per bit.
    """
    if method == "codebook":
        return 0
    return max(4, round(epsilon / 2.18)) if unit == "record" else 64


def make_encoder(recipe: CodeRecipe) -> PhotoEncoder:
    """Make the hash function from public data, and learn what a match looks like from public
    pictures.
    """
    if recipe.method == "codebook":
        if recipe.own_pictures or recipe.identity is not None:
            book = _codebook(recipe)
        else:
            # What has no part in a codebook must not make it another.
            book = _built_in_codebook(dataclasses.replace(recipe, prior=0.01, seed=None))
        return PhotoEncoder(recipe, CellRelease(book, recipe.seed), None)
    if recipe.of_vectors:
        raise InvalidParameter("vectors need the method codebook: leave --method out.")
    from blindsight.encoders.builtin import head_of

    if recipe.own_pictures:
        rows = _centred(recipe.image.rows(public_pictures(recipe.public, recipe.image).images))
    elif recipe.image.network is not None:
        classes = head_of(recipe.image.network).astype(np.float64)
        rows = _centred(classes - classes.mean(axis=0))
    else:
        rows = _centred(recipe.image.rows(built_in_images(800, recipe.image.size)))
    hasher = _hasher(recipe).fit(rows)
    return PhotoEncoder(recipe, hasher, _match_model(recipe, hasher))


def load_encoder(recipe: CodeRecipe, folder: Path, decoding: MatchModel | None) -> PhotoEncoder:
    """The encoder of an index that exists: its hash function is read and checked, nothing is
    learned again.
    """
    if recipe.method == "codebook":
        book = Codebook.load(folder / _FILES["codebook"])
        return PhotoEncoder(recipe, CellRelease(book, recipe.seed), None)
    from blindsight.hashing import load

    if decoding is None:
        raise HostileFile(
            "the index says nothing about how its codes are read. Restore it from a copy."
        )
    return PhotoEncoder(recipe, load(folder / _FILES["phashing"]), decoding)


def _centred(rows: Rows) -> Rows:
    rows = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def _codebook(recipe: CodeRecipe) -> Codebook:
    """Build the cells of a recipe from public vectors, pictures with classes, or names.

    Raises:
        InvalidData: public vectors have another length than the encoder's.
    """
    encoder = recipe.encoder
    rows, labels = None, None
    if recipe.own_pictures and is_vector_file(recipe.public):
        rows, labels = public_vectors(recipe.public, encoder)
    elif recipe.own_pictures:
        pictures = public_pictures(recipe.public, recipe.image)
        rows, labels = recipe.image.rows(pictures.images), pictures.classes
    elif isinstance(encoder, BuiltIn) and encoder.network is None:
        rows = encoder.rows(built_in_images(800, recipe.image.size))
    return build_codebook(
        encoder,
        recipe.epsilon,
        PublicKnowledge(rows, labels, recipe.own_names),
        n_cells=recipe.bits or None,
        first_page=recipe.first_page,
    )


# The same for every folder of photos; a server makes it once.
_built_in_codebook = lru_cache(maxsize=4)(_codebook)


def _hasher(recipe: CodeRecipe) -> Any:
    from blindsight import hashing

    bases: dict[str, Callable[[], hashing.Hasher]] = {
        "phashing-itq": lambda: hashing.ITQ(recipe.bits),
        "phashing-sh": lambda: hashing.SH(recipe.bits),
        "phashing-lsh": lambda: hashing.LSH(recipe.bits, center=False),
    }
    return hashing.PHashing(
        bases[recipe.method](),
        epsilon=recipe.epsilon,
        unit=recipe.unit,
        calibration=recipe.calibration,
        learned_from="public",
        random_state=recipe.seed,
    )


def _match_model(recipe: CodeRecipe, hasher: Any) -> MatchModel:
    """Distances of public pictures to their own edited copies (matches) and to other pictures
    (others).

    By hash functions that had not learned from these pictures, as the one in use will not have from
    stored photos. The built-in pictures are too unlike photos for that: they give the flips alone,
    and no probability is shown.
    """
    from blindsight.core.codes import hamming

    n_bits, beta = hasher.n_bits_, hasher.mechanism_.beta
    if not recipe.own_pictures:
        return MatchModel.independent_bits(n_bits, beta, prior=recipe.prior)
    pictures = public_pictures(recipe.public, recipe.image).images
    plain, changed = (_centred(recipe.image.rows(part)) for part in (pictures, edited(pictures)))
    half = np.arange(len(plain)) % 2 == 0
    distances, same = [], []
    for learn, measure in ((half, ~half), (~half, half)):
        unseen = _hasher(recipe).fit(plain[learn])
        apart = hamming(unseen.query(changed[measure]), unseen.query(plain[measure]))
        distances.append(apart.ravel())
        same.append(np.eye(len(apart), dtype=bool).ravel())
    model = MatchModel.from_pairs(
        np.concatenate(distances), np.concatenate(same), n_bits=n_bits, beta=beta
    )
    return dataclasses.replace(model, prior=recipe.prior)
