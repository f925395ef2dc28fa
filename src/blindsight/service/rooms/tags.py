"""The tag room: private answers about a scene, and for the owner's eyes what they hide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.privacy import Cost
from blindsight.service.infra.pictures import data_uri
from blindsight.service.reader import DigitReader
from blindsight.service.work.tags import scene_sets
from blindsight.tagging import PrivateTagger

__all__ = ["REPEATS", "TagRoom"]

REPEATS = (1, 2, 4, 8, 16, 32, 64)
_TRIALS = 40


class TagRoom:
    """A prepared tagger and its public eye."""

    def __init__(self, folder: Path) -> None:
        self._eye = DigitReader.load(folder / "reader.safetensors")
        self._tagger = PrivateTagger.load(folder / "tagger.safetensors")
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        _, asked = scene_sets()
        self.scenes: NDArray[np.uint8] = np.asarray(asked.images)
        self.answer_scene(0)  # the first use is the slow one

    @classmethod
    def open(cls, folder: Path) -> TagRoom | None:
        """The room, or None while it is not prepared."""
        return cls(folder) if (folder / "facts.json").exists() else None

    @property
    def cost(self) -> Cost:
        """What one answer costs."""
        return self._tagger.query_cost(1)

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
        return self._tagger.logits(self._eye.features(image[None]))[0]

    def answer_scene(self, query: int | NDArray[Any]) -> list[dict[str, Any]]:
        """One private answer; the caller has charged for it."""
        return self.answer(self.look(query))

    def answer(self, logits: NDArray[Any]) -> list[dict[str, Any]]:
        """Noise on outputs: tags that may leave."""
        rng, _ = self._tagger._dice()
        found = self._tagger.release_.answer(logits[None], rng=rng)
        return self._listed(found.tags[0], found.scores[0])

    def openly(self, logits: NDArray[Any]) -> list[dict[str, Any]]:
        """The tags without noise, for the owner."""
        return self._listed(logits > 0, 1 / (1 + np.exp(-logits)))

    def repeats(self, logits: NDArray[Any]) -> list[tuple[int, float]]:
        """How far the average of n answers agrees with the unprotected tags; a simulation that leaves nothing."""
        truth, most = logits > 0, REPEATS[-1]
        rng, _ = self._tagger._dice()
        scores = self._tagger.release_.answer(np.repeat(logits[None], _TRIALS * most, axis=0), rng=rng).scores
        sums = scores.reshape(_TRIALS, most, -1).cumsum(axis=1)
        size = max(1, int(truth.sum()))
        found = []
        for n in REPEATS:
            ranked = np.argsort(-sums[:, n - 1], axis=1)[:, :size]
            found.append((n, float(np.mean(truth[ranked]))))
        return found

    def _listed(self, tags: NDArray[Any], scores: NDArray[Any]) -> list[dict[str, Any]]:
        order = np.argsort(-scores, kind="stable")
        return [{"tag": self.names[i], "score": round(float(scores[i]), 3)} for i in order if tags[i]]


def _as_scene(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    from PIL import Image

    small = np.asarray(Image.fromarray(pixels).convert("L").resize((64, 64), Image.Resampling.BILINEAR))
    edge = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]])
    return (255 - small) if edge.mean() > 127 else small
