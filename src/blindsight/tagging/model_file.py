"""A tagger on disk: one safetensors file with its parameters, its model and both guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.privacy.guarantee import Guarantee
from blindsight.tagging.codebook import Codebook, Confidence
from blindsight.tagging.label_graph import LabelGraph
from blindsight.tagging.learning import Learned
from blindsight.tagging.scaling import Scaling

__all__ = ["KIND", "load", "save"]

KIND = "tagger"
# Learned parts that a user may have handed in: they are in the file as what they became.
_OWN = ("codebook", "graph", "label_vectors", "classes", "public")


def save(tagger: Any, path: str | Path) -> None:
    """Write a fitted tagger; a generator given as random_state is not written."""
    learned: Learned = tagger.learned_
    arrays: dict[str, Any] = {"weights": learned.weights, "counts": learned.graph.counts}
    if learned.scaling.centre is not None:
        arrays["centre"] = learned.scaling.centre
    if learned.scaling.projection is not None:
        arrays["projection"] = learned.scaling.projection
    if learned.codebook is not None:
        arrays |= {"words": learned.codebook.words, "word_weights": learned.codebook.weights}
        if learned.codebook.values is not None:
            arrays["word_values"] = learned.codebook.values
    params = {name: value for name, value in tagger.get_params().items() if name not in _OWN}
    if not isinstance(params["random_state"], (int, np.integer)):
        params["random_state"] = None
    confidence = learned.confidence
    fields = {
        "params": {name: _plain(value) for name, value in params.items()},
        "classes": [str(name) for name in tagger.classes_],
        "named": tagger.classes is not None,
        "n_records": learned.n_records,
        "n_features": int(tagger.n_features_in_),
        "floor": learned.scaling.floor,
        "ceiling": learned.scaling.ceiling,
        "confidence": None if confidence is None else [float(v) for v in vars(confidence).values()],
        "tag_threshold": None if learned.codebook is None else float(learned.codebook.threshold),
        "guarantee": tagger.guarantee_.to_json(),
        "training_guarantee": tagger.training_guarantee_.to_json(),
        "answered": int(tagger.answered_),
        "extractor": tagger.extractor_,
    }
    storage.save(path, kind=KIND, arrays=arrays, fields=fields)


def load(cls: Any, path: str | Path) -> Any:
    """Read a tagger; a file that is not one is refused."""
    arrays, fields = storage.load(path, kind=KIND)
    try:
        return _restore(cls, arrays, fields)
    except (KeyError, TypeError, AttributeError, InvalidData, InvalidParameter, IndexError) as error:
        if isinstance(error, HostileFile):
            raise
        raise HostileFile(f"{Path(path).name} is not a tagger that can be used: {error}.") from error


def _restore(cls: Any, arrays: dict[str, Any], fields: dict[str, Any]) -> Any:
    tagger = cls(**fields["params"])
    classes = [str(name) for name in fields["classes"]]
    if fields["named"]:
        tagger.classes = classes
    weights, counts = arrays["weights"].astype(np.float32), arrays["counts"].astype(np.float64)
    scaling = Scaling(arrays.get("centre"), arrays.get("projection"), fields["floor"], fields["ceiling"])
    n_features = int(fields["n_features"])
    if weights.shape != (len(classes), scaling.width(n_features)) or counts.shape != (len(classes), len(classes)):
        raise InvalidData("its tables do not fit each other")
    if not np.isfinite(weights).all():
        raise InvalidData("its weights are not finite")
    tagger._check()
    spread = fields["confidence"]
    tagger.learned_ = Learned(
        weights,
        scaling,
        LabelGraph(counts, tagger.threshold, tagger.reweight),
        int(fields["n_records"]),
        confidence=None if spread is None else Confidence(*(float(v) for v in spread)),
        codebook=Codebook(
            arrays["words"], arrays["word_weights"], float(fields["tag_threshold"]), arrays.get("word_values")
        )
        if "words" in arrays
        else None,
    )
    tagger.curves_ = None
    tagger.n_features_in_, tagger.n_labels_ = n_features, len(classes)
    tagger.classes_ = np.array(classes)
    if tagger.release == "codebook" and tagger.calibration == "proven" and tagger.learned_.codebook is None:
        raise InvalidData("its codebook is missing")
    tagger.release_ = tagger._release(tagger.learned_)
    tagger.guarantee_ = Guarantee.from_json(fields["guarantee"])
    tagger.training_guarantee_ = Guarantee.from_json(fields["training_guarantee"])
    if tagger.guarantee_.cost != tagger.release_.cost:
        raise InvalidData("its guarantee is not that of its release")
    tagger.answered_ = int(fields["answered"])
    extractor = fields["extractor"]
    if extractor is not None:
        extractor = {"kind": str(extractor["kind"]), "size": int(extractor["size"])}
    tagger.extractor_ = extractor
    return tagger


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
