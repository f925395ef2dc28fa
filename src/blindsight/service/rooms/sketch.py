"""The sketch room: a picture, what would be sent of it, and what two attackers make of that."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight import data
from blindsight.core import storage
from blindsight.evaluation.reconstruction import mean_psnr
from blindsight.service.infra.pictures import data_uri
from blindsight.service.work.search import parts
from blindsight.sketching import PAPER_Q, NegativeSketcher, leak_of
from blindsight.sketching.parameters import QKParameters

__all__ = ["SETTINGS", "SketchRoom"]

SETTINGS = tuple(PAPER_Q)
SAMPLES = 12
UPLOAD_SIDE = 64


class SketchRoom:
    """Works at once; the attacker who knows similar pictures comes when it is prepared."""

    def __init__(self, folder: Path) -> None:
        digits = data.load("mnist5k")
        _, _, asked = parts(len(digits))
        labels = np.asarray(digits.labels)[asked]
        first = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]
        self.samples = digits.array()[asked[[*first, 3, 4]]]
        self._folder = folder
        self._attacker = lru_cache(maxsize=len(SETTINGS))(self._load)

    @classmethod
    def open(cls, folder: Path) -> SketchRoom:
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
            "verdict": leak.verdict,
        }
        if image.shape == (28, 28) and (self._folder / f"{setting}.safetensors").exists() and self.prepared:
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
    """The first four bit planes' counts of ones among all sightings, as a 2 x 2 board: numbers, not pixels."""
    planes = [counts[bit].astype(np.float64) for bit in range(4)]
    shares = [255.0 * ones / np.maximum(zeros + ones, 1) for zeros, ones in planes]
    return np.block([[shares[0], shares[1]], [shares[2], shares[3]]]).astype(np.uint8)
