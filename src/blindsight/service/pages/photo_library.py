"""The pages' way to the library: photos to features and codes, and what others can make of the codes.

Whatever is computed here from photos stays in the vault, or goes through `index` and the ledger into a release.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import HostileFile, UnchargedRelease
from blindsight.service.infra.datasets import DataSet, DataSets, Photo, Release, today

if TYPE_CHECKING:
    from blindsight.index.encoder import PhotoEncoder, Recipe
    from blindsight.index.photos import Scan
    from blindsight.privacy import Guarantee, Ledger
    from blindsight.privacy.vault import Vault

__all__ = [
    "EPSILONS",
    "Coding",
    "coding",
    "codings",
    "encoder",
    "kinds",
    "measure",
    "measure_plain",
    "paid",
    "release_photos",
    "released_codes",
    "rows_of",
    "scan",
]

Say = Callable[[int, int, str], None]
EPSILONS = (2.0, 4.0, 8.0, 16.0)
_THUMBNAIL = 320
_BATCH = 32
_UNREADABLE = "damaged, too large, or not an image"
_WORDS = {2.0: "says very little", 4.0: "a rough idea", 8.0: "the kind of photo", 16.0: "nearly the photo itself"}


def scan(datasets: DataSets, one: DataSet, say: Say) -> DataSet:
    """Read every photo once: thumbnails and features into the vault, and a list of what could not be read."""
    from blindsight.data import read_image, to_rgb
    from blindsight.index.encoder import SIZES, default_features, vectors

    folder, features = Path(one.source), default_features()
    found, shown = _recognised(datasets, one), _dropped_names(datasets, one)
    records = found.records
    photos: list[Photo] = []
    refused = [(shown.get(name, name), _UNREADABLE) for name, _ in found.refused]
    waiting: list[NDArray[np.uint8]] = []
    blocks: list[NDArray[Any]] = []
    for done, (record, names) in enumerate(records.items()):
        say(done, len(records), f"reading {done:,} of {len(records):,} photos")
        name = shown.get(names[0], names[0])
        try:
            pixels = read_image(folder / names[0])
        except HostileFile:
            refused.append((name, _UNREADABLE))
            continue
        photos.append(Photo(record, name))
        _thumbnail(pixels, datasets.thumbnail(one, record))
        waiting.append(to_rgb(pixels, SIZES[features]))
        if len(waiting) == _BATCH:
            blocks.append(vectors(np.stack(waiting), features).astype(np.float32))
            waiting = []
    if waiting:
        blocks.append(vectors(np.stack(waiting), features).astype(np.float32))
    # In the order of their random numbers: a release in this order tells nothing of folders and dates.
    order = sorted(range(len(photos)), key=lambda i: photos[i].id)
    rows = np.concatenate(blocks)[order] if blocks else np.zeros((0, 1), np.float32)
    vault = datasets.vault(one)
    storage.save(vault / "features.safetensors", kind="workbench-features", arrays={"rows": rows}, fields={})
    listed = [[photos[i].id, photos[i].name] for i in order]
    storage.write_atomically(vault / "photos.json", json.dumps(listed).encode())
    say(len(records), len(records), "learning the models from public data")
    says = [asdict(coding(encoder(epsilon, features))) for epsilon in EPSILONS]
    storage.write_atomically(vault / "coding.json", json.dumps(says).encode())
    one = replace(datasets.get(one.id), photos=len(photos), refused=tuple(refused), scanned=True, features=features)
    return datasets.save(one)


def rows_of(datasets: DataSets, one: DataSet) -> NDArray[np.float32]:
    """The photos' features, in the order of `datasets.photos`."""
    arrays, _ = storage.load(datasets.vault(one) / "features.safetensors", kind="workbench-features")
    return arrays["rows"]


@dataclass(frozen=True)
class Coding:
    """What one code says, whatever the photos: known before any is looked at.

    cells: how many kinds there are. named: how many of them a code names. right: how often it names the true one.
    wrong: how often it names a given other one.
    """

    epsilon: float
    cells: int
    named: int
    right: float
    wrong: float

    @property
    def word(self) -> str:
        """In three words."""
        return _WORDS.get(self.epsilon, "")

    def singled_out(self, photos: int) -> float:
        """How often somebody with a copy of one photo finds its entry, if the photos are spread evenly over kinds."""
        same = 1 + (photos - 1) / self.cells
        return self.right / (same * self.right + (photos - same) * self.wrong) if photos else 0.0


@lru_cache(maxsize=16)
def encoder(epsilon: float, features: str) -> PhotoEncoder:
    """The public model for a budget: learned from public data only, so it is the same for everybody."""
    from blindsight.index.encoder import make_encoder

    return make_encoder(_recipe(epsilon, features))


def coding(made: PhotoEncoder) -> Coding:
    """What its codes say."""
    hasher, model = made.hasher, made.decoding
    named = int(hasher.mechanism_.size)
    return Coding(
        made.recipe.epsilon, int(hasher.n_cells_), named, float(model.match[named - 1]), float(model.other[named - 1])
    )


def codings(datasets: DataSets, one: DataSet) -> list[Coding]:
    """What codes would say at each budget on offer, as the scan left it."""
    return [Coding(**fields) for fields in json.loads((datasets.vault(one) / "coding.json").read_bytes())]


def kinds(datasets: DataSets, one: DataSet, rows: NDArray[Any]) -> tuple[NDArray[np.int64], bool]:
    """What each photo shows: by the folders it lies in where there are several, else as the public network sees it."""
    folders = [photo.name.rpartition("/")[0] for photo in datasets.photos(one)]
    names, found = np.unique(folders, return_inverse=True)
    if 2 <= len(names) <= len(folders) // 2:
        return found.astype(np.int64), True
    made = encoder(16.0, one.features)
    return made.hasher.assign(rows).astype(np.int64), False


def measure(
    made: PhotoEncoder,
    rows: NDArray[Any],
    shows: NDArray[np.int64],
    codes: Any = None,
    *,
    asked: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """What others find and find out, on these very photos: computed here, and kept here.

    Without codes they are drawn anew, as a release would draw them. `asked` are the rows to search with.
    """
    hasher, n = made.hasher, len(rows)
    rng = np.random.default_rng()
    codes = _drawn(hasher, rows) if codes is None else codes
    posterior, cells = hasher.posterior(codes), hasher.assign(rows)
    table = np.zeros((hasher.n_cells_, int(shows.max(initial=0)) + 1))
    np.add.at(table, (cells, shows), 1.0)
    table /= np.maximum(table.sum(axis=1, keepdims=True), 1.0)
    guess = (posterior @ table).argmax(axis=1) == shows
    best = posterior.max(axis=0)
    ties = np.isclose(posterior, best, rtol=1e-6, atol=0).sum(axis=0)
    own = posterior[np.arange(n), cells]
    found = np.isclose(own, best[cells], rtol=1e-6, atol=0) / ties[cells]
    asked = rng.permutation(n)[:60] if asked is None else asked
    near = np.clip(n // 20, min(10, n - 1), 100)
    alike, ranked = _plain_first(rows, asked, int(near)), _protected_first(hasher, rows, codes, asked, rng)
    met = [[row in true for row in first] for true, first in zip(alike, ranked, strict=True)]
    return {
        "hits": round(float(np.mean([sum(flags) for flags in met])), 1),
        "hits_luck": round(10 * float(near) / max(1, n - 1), 1),
        "near": int(near),
        "guess": round(100 * float(guess.mean())),
        "luck": round(100 * float(np.bincount(shows).max(initial=0) / max(1, n))),
        "singled": float(found.mean()),
        "film": [[int(row), bool(flag)] for row, flag in zip(ranked[0], met[0], strict=True)] if ranked else [],
        "asked": int(asked[0]) if n else None,
        "guessed": [bool(flag) for flag in guess],
    }


def measure_plain(rows: NDArray[Any], shows: NDArray[np.int64], asked: NDArray[np.int64]) -> dict[str, Any]:
    """The same without protection: a stranger who holds the features guesses by the nearest other photo."""
    alike = rows @ rows.T
    np.fill_diagonal(alike, -np.inf)
    first = np.argsort(-alike[asked[0]])[:10].tolist() if len(asked) else []
    guess = shows[alike.argmax(axis=1)] == shows if len(rows) > 1 else np.zeros(0)
    return {"guess": round(100 * float(np.mean(guess))), "film": [[int(row), True] for row in first]}


def release_photos(datasets: DataSets, one: DataSet, release: Release, ledger: Ledger, say: Say) -> DataSet:
    """Charge once, then release each photo's code under its random number; continued where a crash stopped it."""
    from blindsight.index.album import charge, keep_in_step
    from blindsight.index.encoder import load_encoder, make_encoder
    from blindsight.index.photos import PhotoFolder, function_of, law_of, stated

    folder, vault = datasets.folder(release), _vault(datasets, one)
    say(0, one.photos, "learning the model from public data")
    recipe = _recipe(release.epsilon, one.features)
    made = function_of(vault, recipe, make_encoder, load_encoder)
    guarantee = stated(made.guarantee, names="random")
    law = law_of(made, guarantee)
    number = vault.release_of(law)
    charge(guarantee, vault, number, ledger)
    place = PhotoFolder.find(folder) or PhotoFolder(folder, recipe.to_fields(), vault.number, number)
    folder.mkdir(parents=True, exist_ok=True)
    place.write()
    made.save(folder)

    def step(done: int, total: int) -> None:
        say(done, total, f"protecting {done:,} of {total:,} photos")

    found = _recognised(datasets, one)
    stored = keep_in_step(place, Path(one.source), found, vault, made, guarantee, law, progress=step).stored
    (folder / "card.txt").write_text(_card(release, made, guarantee, stored), encoding="utf-8")
    return datasets.keep_release(one, replace(release, photos=stored, made=today()))


def released_codes(datasets: DataSets, one: DataSet, release: Release) -> tuple[list[str], NDArray[np.uint8], Any]:
    """The numbers, codes and model of a release: what somebody has who was given it."""
    from blindsight.index import HammingIndex
    from blindsight.index.encoder import Recipe, load_encoder
    from blindsight.index.photos import PhotoFolder

    place = PhotoFolder.read(datasets.folder(release))
    index = HammingIndex.load(place.codes)
    names, codes = next(iter(index.items()))
    made = load_encoder(Recipe.from_fields(place.recipe), place.path, index.decoding)
    return [str(name) for name in names], codes, made


def _vault(datasets: DataSets, one: DataSet) -> Vault:
    """The data set's secret key, and which photo is which record."""
    from blindsight.privacy.vault import Vault

    return Vault.open_or_create(datasets.vault(one) / "vault")


def _recognised(datasets: DataSets, one: DataSet) -> Scan:
    """The photos of the folder by what they show: copies are one record, and a moved photo is the same."""
    from blindsight.data.reading import SUFFIXES
    from blindsight.index.photos import photo_names, scan

    folder = Path(one.source)
    hidden = () if one.dropped else (datasets.settings.state,)
    names = list(photo_names(folder, SUFFIXES, leave_out=hidden))[: datasets.settings.drop_files]
    return scan(folder, names, _vault(datasets, one))


def _recipe(epsilon: float, features: str) -> Recipe:
    from blindsight.index.encoder import Recipe, default_bits

    return Recipe(epsilon=epsilon, features=features, bits=default_bits("codebook", "record", epsilon))


def _card(release: Release, made: PhotoEncoder, guarantee: Guarantee, stored: int) -> str:
    says = coding(made)
    looked = (
        "Epsilon was chosen after looking at measurements on these very photos."
        if release.looked
        else "Epsilon was chosen before anything was measured on these photos."
    )
    return (
        f"Search index of {stored:,} photos\n\n"
        f"For each photo: {says.named} of {says.cells} kinds, the true one named {100 * says.right:.0f} times in 100; "
        "under a random number, without name, path or date.\n"
        f"{looked}\n\n{guarantee.card()}\n"
    )


def _drawn(hasher: Any, rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Codes as a release would draw them, for a look that stays here."""
    with paid():
        found: NDArray[np.uint8] = hasher.transform(rows)
    return found


@contextmanager
def paid() -> Iterator[None]:
    """No word of caution: the release was charged before, or there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnchargedRelease)
        yield


def _plain_first(rows: NDArray[Any], asked: NDArray[Any], near: int) -> list[set[int]]:
    alike = rows[asked] @ rows.T
    alike[np.arange(len(asked)), asked] = -np.inf
    return [set(np.argsort(-row)[:near].tolist()) for row in alike]


def _protected_first(
    hasher: Any, rows: NDArray[Any], codes: Any, asked: NDArray[Any], rng: np.random.Generator
) -> list[list[int]]:
    """The first ten by code alone; equal codes come in random order, for theirs means nothing."""
    scores = np.array(hasher.scores(rows[asked], codes), dtype=np.float64)
    scores += rng.random(scores.shape) * 1e-9
    scores[np.arange(len(asked)), asked] = -np.inf
    return [np.argsort(-row)[:10].tolist() for row in scores]


def _thumbnail(pixels: NDArray[np.uint8], path: Path) -> None:
    from PIL import Image

    if not path.exists():
        small = Image.fromarray(pixels).convert("RGB")
        small.thumbnail((_THUMBNAIL, _THUMBNAIL))
        small.save(path, "JPEG", quality=82)
        path.chmod(0o600)


def _dropped_names(datasets: DataSets, one: DataSet) -> dict[str, str]:
    """Files of a drop lie under numbers; these are the names they came with."""
    path = datasets.vault(one) / "names.json"
    return json.loads(path.read_bytes()) if one.dropped and path.exists() else {}
