"""Features of the sets that sending is measured on, computed once for this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight import data
from blindsight.data import cache_folder, to_rgb
from blindsight.encoders import built_in
from blindsight.encoders.base import resized

__all__ = ["PUBLIC_SETS", "encoded", "labelled", "public_features"]

Floats = NDArray[np.float32]
Pictures = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]
#: Everyday pictures that are public here: 1,500 of each.
PUBLIC_SETS = ("coco-subset", "voc2012")
_EACH = 1500
_BATCH = 64


def _folder() -> Path:
    """Where features are kept: BLINDSIGHT_SEND_FEATURES, or the cache."""
    return Path(os.environ.get("BLINDSIGHT_SEND_FEATURES", cache_folder() / "features"))


def encoded(name: str, encoder_name: str, pictures: Pictures) -> Floats:
    """Features of pictures, kept under a name."""
    path = _folder() / f"send-{name}-{encoder_name}.npy"
    if path.exists():
        return np.asarray(np.load(path, allow_pickle=False))
    encoder = built_in(encoder_name)
    rows = [
        encoder.rows(
            np.stack([encoder.prepare(np.asarray(p)) for p in pictures[start : start + _BATCH]])
        )
        for start in range(0, len(pictures), _BATCH)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.concatenate(rows))
    return np.concatenate(rows)


def labelled(name: str, split: str | None, encoder_name: str) -> tuple[Floats, NDArray[np.int64]]:
    """Features and classes of a data set of small pictures."""
    images = data.load(name, split=split)
    labels = np.asarray(images.labels, np.int64)
    return encoded(f"{name}-{split}", encoder_name, images.array()), labels


def public_features(size: int, encoder_name: str) -> Floats:
    """Features of public everyday pictures, shrunk to `size` pixels first."""
    path = _folder() / f"send-public-{size}-{encoder_name}.npy"
    if path.exists():
        return np.asarray(np.load(path, allow_pickle=False))
    pictures = []
    for name in PUBLIC_SETS:
        images = data.load(name).images
        chosen = np.random.default_rng(0).permutation(len(images))[:_EACH]
        pictures += [resized(to_rgb(np.asarray(images[i])), size, size) for i in chosen]
    return encoded(f"public-{size}", encoder_name, pictures)
