"""Images that are public, to learn hash functions from: a folder or a set of your own, or pictures
of nobody's.

Built in are crops of two photographs that scikit-learn ships under a free licence, and "dead
leaves" (overlapping random shapes), which have edges and scales like natural pictures. Neither says
anything about the photos that are to be protected.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile, InvalidData
from blindsight.data.listing import list_photos, no_photos
from blindsight.encoders import Embeddings, Encoder
from blindsight.encoders.base import Floats
from blindsight.encoders.public_pictures import built_in_images

__all__ = [
    "PublicPictures",
    "built_in_images",
    "edited",
    "is_vector_file",
    "public_pictures",
    "public_vectors",
    "refuse_private",
]

Images = NDArray[np.uint8]
_MOST = 2000
_VECTOR_FILES = (".npy", ".npz", ".parquet", ".pq")


@dataclass(frozen=True)
class PublicPictures:
    """Pictures that hash functions may be learned from.

    Parameters:
        images: pictures (n, side, side, 3) as the encoder takes them.
        classes: the class of each, where the folder has one subfolder per class.
    """

    images: Images
    classes: tuple[str, ...] | None = None


def public_pictures(public: str, recipe: Encoder) -> PublicPictures:
    """The pictures of a public folder, or of a set that is known by name; at most 2,000, spread
    over it.
    """
    from blindsight.data import load

    folder = Path(public)
    if not folder.is_dir():
        images = load(public).take(slice(0, _MOST)).images
        return PublicPictures(np.stack([recipe.prepare(images[i]) for i in range(len(images))]))
    listed = list_photos(folder)
    names = list(listed.photos)
    if not names:
        raise InvalidData(no_photos(folder, listed.skipped))
    chosen = names[:: max(1, -(-len(names) // _MOST))]
    readable: dict[str, Images] = {}
    for name in chosen:
        with contextlib.suppress(HostileFile):  # a damaged picture teaches nothing
            readable[name] = recipe.read(folder / name)
    if not readable:
        raise InvalidData(f"none of the pictures in {folder} can be read. Check --public.")
    return PublicPictures(np.stack(list(readable.values())), _classes(list(readable)))


def is_vector_file(public: str) -> bool:
    """Whether this names a file of vectors, rather than a folder or a data set."""
    return Path(public).suffix.lower() in _VECTOR_FILES


def public_vectors(file: str, encoder: Encoder) -> tuple[Floats, tuple[str, ...] | None]:
    """Public vectors of an encoder, at most 2,000, spread over their file; and their classes.

    The classes come from ids such as "cat/17", as those of a folder come from its subfolders.

    Raises:
        InvalidData: the vectors have another length than the encoder's.
    """
    public = Embeddings(file)
    if public.dimensions != encoder.dimensions:
        raise InvalidData(
            f"the public vectors have {public.dimensions} numbers, and those of {encoder.name} "
            f"{encoder.dimensions}. Both must come from one model."
        )
    ids, rows = public.take(_MOST)
    return rows, _classes(ids)


def _classes(names: list[str]) -> tuple[str, ...] | None:
    """The subfolder of each picture, if every picture lies in one, and each of at least two holds
    two or more.
    """
    parts = [Path(name).parts for name in names]
    if any(len(part) < 2 for part in parts):
        return None
    labels = [part[0] for part in parts]
    counts = {label: labels.count(label) for label in set(labels)}
    return tuple(labels) if len(counts) > 1 and min(counts.values()) > 1 else None


def refuse_private(public: str, photos: Path, names: Iterable[str]) -> None:
    """Refuse a public folder that is the photos' own, lies around or inside it, or holds one of the
    photos.

    What is learned from protected photos without noise has no epsilon, whatever the folder is
    called.
    """
    folder = Path(public)
    if not folder.is_dir():
        return
    ours, theirs = folder.resolve(), photos.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise InvalidData(
            f"{public} shares files with the photos of {photos}: they are protected, so they are "
            "not public."
        )
    sizes: dict[int, list[Path]] = {}
    for name in list_photos(folder).photos:
        sizes.setdefault((folder / name).stat().st_size, []).append(folder / name)
    for name in names:
        path = photos / name
        same = sizes.get(path.stat().st_size, []) if path.is_file() else []
        if any(_digest(other) == _digest(path) for other in same):
            raise InvalidData(
                f"{public} holds a copy of a photo of {photos}: what is protected is not public."
            )


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def edited(images: Images, *, seed: int = 1) -> Images:
    """Return the pictures with small edits: cropped, brighter or darker, compressed again."""
    from PIL import Image, ImageEnhance

    rng = np.random.default_rng(seed)
    results = []
    for pixels in images:
        picture = Image.fromarray(pixels)
        width, height = picture.size
        left, top = rng.uniform(0, 0.1, 2) * (width, height)
        right, bottom = (width, height) - rng.uniform(0, 0.1, 2) * (width, height)
        picture = picture.crop((int(left), int(top), int(right), int(bottom))).resize(
            (width, height)
        )
        picture = ImageEnhance.Brightness(picture).enhance(rng.uniform(0.85, 1.15))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=int(rng.integers(50, 90)))
        results.append(np.asarray(Image.open(buffer).convert("RGB")))
    return np.stack(results)
