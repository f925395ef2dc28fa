"""Prepare the sketch page: for Q1 to Q12, what an attacker with public digits learns, and what a classifier can."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight import data
from blindsight.core import storage
from blindsight.evaluation.reconstruction import mean_psnr
from blindsight.service.infra.jobs import JobContext
from blindsight.service.work.search import parts
from blindsight.sketching import PAPER_Q, NegativeSketcher, leak_of
from blindsight.sketching.parameters import QKParameters

__all__ = ["run"]


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """One linear attacker and one linear classifier a setting, both learned from sketches of public digits."""
    folder = place.prepared / "sketch"
    folder.mkdir(parents=True, exist_ok=True)
    digits = data.load("mnist5k")
    images, labels = digits.array(), np.asarray(digits.labels)
    public, _, asked = parts(len(images))
    public = public[: int(arguments.get("public", 1500))]
    names = tuple(arguments.get("settings", PAPER_Q))
    facts: dict[str, Any] = {}
    for done, name in enumerate(names):
        place.say(done, len(names), f"attacking {name}")
        sketcher = NegativeSketcher(name, n_jobs=1).fit(images[public])
        seen, held = (sketcher.sketch(images[rows]).pictures() for rows in (public, asked))
        wanted = np.column_stack([images[public].reshape(len(public), -1), 2.0 * np.eye(10)[labels[public]] - 1])
        attacker, classifier = np.split(_ridge(seen, wanted), [images[0].size], axis=1)
        guess = np.clip(_apply(attacker, held), 0, 255).reshape(held.shape)
        leak = leak_of(QKParameters.paper(name))
        facts[name] = {
            "accuracy": float(np.mean(_apply(classifier, held).argmax(axis=1) == labels[asked])),
            "psnr": float(mean_psnr(images[asked], held, peak=255.0)),
            "psnr_prior": float(mean_psnr(images[asked], guess, peak=255.0)),
            "right": float(leak.pixels_right),
            "epsilon": None if np.isinf(leak.epsilon_pixel) else float(leak.epsilon_pixel),
            "verdict": leak.verdict,
        }
        storage.save(
            folder / f"{name}.safetensors",
            kind="studio-attacker",
            arrays={"map": attacker.astype(np.float32)},
            fields={},
        )
    storage.write_atomically(folder / "facts.json", json.dumps(facts).encode())
    place.say(len(names), len(names), "done")
    return facts


def _ridge(seen: NDArray[Any], targets: NDArray[Any], strength: float = 4e6) -> NDArray[np.float64]:
    rows = np.column_stack([seen.reshape(len(seen), -1), np.full(len(seen), 255.0)]).astype(np.float64)
    return np.linalg.solve(rows.T @ rows + strength * np.eye(rows.shape[1]), rows.T @ targets)


def _apply(weights: NDArray[Any], seen: NDArray[Any]) -> NDArray[np.float64]:
    rows = np.column_stack([seen.reshape(len(seen), -1), np.full(len(seen), 255.0)])
    return rows @ weights
