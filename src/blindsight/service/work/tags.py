"""Prepare the tagger: a public eye for digits, and a private tagger trained on built-in scenes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from blindsight import data
from blindsight.audit.tagging import distinguish_images
from blindsight.core.storage import write_atomically
from blindsight.service.infra.jobs import JobContext
from blindsight.service.reader import DigitReader
from blindsight.tagging import PrivateTagger

__all__ = ["EPSILON", "SCENES", "run", "scene_sets"]

EPSILON, TRAINING_EPSILON = 4.0, 2.0
SCENES = 24
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def scene_sets(count: int = 1) -> tuple[Any, Any]:
    """Training scenes, and scenes to ask about; they share no digit with what the eye learned from."""
    return data.scenes(count, seed=11, split="test"), data.scenes(SCENES, seed=12, split="test")


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Learn, measure, save."""
    folder = place.prepared / "tags"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "facts.json").exists():
        place.say(0, 4, "learning to read public digits")
        digits = data.load("mnist5k", split="train")
        eye = DigitReader.learn(digits.array(), np.asarray(digits.labels))
        eye.save(folder / "reader.safetensors")
        place.say(1, 4, "making scenes")
        training, _ = scene_sets(int(arguments.get("scenes", 3000)))
        cut = len(training.images) * 5 // 6
        X, check = eye.features(training.images[:cut]), eye.features(training.images[cut:])
        place.say(2, 4, "training with differential privacy")
        tagger = PrivateTagger(EPSILON, training_epsilon=TRAINING_EPSILON, classes=list(_NAMES))
        tagger.fit(X, training.labels[:cut])
        tagger.save(folder / "tagger.safetensors")
        place.say(3, 4, "attacking the answers")
        truth = training.labels[cut:].astype(bool)
        logits = tagger.logits(check)
        far = int(np.abs(logits - logits[0]).sum(axis=1).argmax())
        audited = distinguish_images(
            lambda rows, rng: tagger.release_.answer(rows, rng=rng).scores, logits[0], logits[far], trials=5000
        )
        facts = {
            "labels": float(np.mean((logits > 0) == truth)),
            "answers": float(np.mean(tagger.answer(check).tags == truth)),
            "nothing": float(np.mean(~truth)),
            "audited": round(float(audited.epsilon), 3),
            "guarantee": json.loads(tagger.guarantee_.to_json()),
            "training": json.loads(tagger.training_guarantee_.to_json()),
        }
        write_atomically(folder / "facts.json", json.dumps(facts).encode())
    place.say(4, 4, "done")
    return json.loads((folder / "facts.json").read_text())
