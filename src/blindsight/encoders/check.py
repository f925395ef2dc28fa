"""Look at an encoder before it is trusted: shapes, preparation on known pictures, speed, offers.

An encoder with a wrong preparation runs without an error. What can be seen from outside is seen
here: values that no network was trained on, a known picture whose vector differs from the stored
one, two different photographs with one vector, vectors that depend on the batch, and a text tower
that takes a flower for a temple.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindsight.core.errors import BlindsightError
from blindsight.encoders.base import Encoder, Floats, Identity, unit_rows
from blindsight.encoders.embeddings import Embeddings
from blindsight.encoders.hub import open_encoder
from blindsight.encoders.onnx_folder import OnnxEncoder
from blindsight.encoders.public_pictures import built_in_images, flower, temple

__all__ = ["EncoderReport", "check"]

_PICTURES = 24
_SIDE = 256
# Photographs in the range of a network's training have about mean 0 and deviation 1 (or lie in
# [0, 1]); outside of these bounds no common training lies.
_MEAN_BOUND, _LEAST_DEVIATION, _MOST_DEVIATION = 1.5, 0.15, 4.0
# Cosines: of a known picture with its stored vector; of a picture alone and in a batch; of two
# unlike photographs.
_SAME, _REPEATED, _APART = 0.999, 0.9999, 0.9995


@dataclass(frozen=True)
class EncoderReport:
    """What was seen of an encoder.

    Parameters:
        name: the encoder's name.
        identity: what stored things will be compared with; None where it could not be opened.
        offers: what can be done with it.
        problems: what is wrong; an encoder with problems should not be used.
        notes: what could not be checked.
        milliseconds: CPU time for one image and, with a text tower, for one text.
    """

    name: str
    identity: Identity | None
    offers: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    milliseconds: dict[str, float]

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check(source: str | Path | Encoder, *, offline: bool = False) -> EncoderReport:
    """Check an encoder on known pictures.

    Parameters:
        source: what `open_encoder` takes.
        offline: never ask the network.

    Examples:
        >>> report = check("pixels")
        >>> report.good, report.offers
        (True, ('768 numbers per image',))
    """
    try:
        encoder = open_encoder(source, offline=offline)
    except BlindsightError as error:
        name = getattr(source, "name", str(source))
        return EncoderReport(str(name), None, (), (str(error),), (), {})
    if isinstance(encoder, Embeddings):
        return _check_vectors(encoder)
    problems: list[str] = []
    notes: list[str] = []
    milliseconds: dict[str, float] = {}
    try:
        pictures = [flower(), temple(), *built_in_images(_PICTURES, _SIDE)]
        pixels = np.stack([encoder.prepare(picture) for picture in pictures])
        start = time.process_time()
        vectors = encoder.images(pixels)
        milliseconds["image"] = 1000 * (time.process_time() - start) / len(pixels)
        problems += _image_problems(encoder, pixels, vectors)
        _check_reference(encoder, vectors[0], problems, notes)
        _check_texts(encoder, vectors, problems, milliseconds)
    except BlindsightError as error:
        problems.append(str(error))
    return EncoderReport(
        encoder.name,
        encoder.identity(),
        _offers(encoder),
        tuple(problems),
        tuple(notes),
        milliseconds,
    )


def _offers(encoder: Encoder) -> tuple[str, ...]:
    offers = [f"{encoder.dimensions} numbers per image"]
    if encoder.texts(["a photo"]) is not None:
        offers.append("texts in the same space")
    elif isinstance(encoder, OnnxEncoder) and (classes := encoder.classes()) is not None:
        offers.append(f"{len(classes.names):,} classes")
    elif getattr(encoder, "network", None) is not None:
        offers.append("1,000 classes")
    return tuple(offers)


def _image_problems(encoder: Encoder, pixels: np.ndarray, vectors: Floats) -> list[str]:
    problems = []
    if isinstance(encoder, OnnxEncoder) and encoder.preparation.scale is not None:
        values = encoder.preparation.numbers(pixels[:2])
        mean, deviation = float(values.mean()), float(values.std())
        if abs(mean) > _MEAN_BOUND or not _LEAST_DEVIATION < deviation < _MOST_DEVIATION:
            problems.append(
                f"two photographs reach the network with mean {mean:.2f} and deviation "
                f"{deviation:.2g}; networks are trained on about 0 and 1. Check scale, mean and "
                "deviation of the preparation."
            )
    norms = np.linalg.norm(vectors, axis=1)
    if (norms < 0.5).any():
        problems.append("some pictures have the zero vector. The network or its output is wrong.")
    if float(vectors[0] @ vectors[1]) > _APART:
        problems.append(
            "a flower and a temple have the same vector. The output is not the image's vector, or "
            "the preparation leaves nothing of the picture."
        )
    alone = encoder.images(pixels[:1])
    again = encoder.images(pixels[:1])
    if float(alone[0] @ vectors[0]) < _REPEATED or float(alone[0] @ again[0]) < _REPEATED:
        problems.append(
            "a picture's vector depends on the other pictures of its batch, or on chance. Export "
            "the network for inference (batch normalisation and dropout switched off)."
        )
    return problems


def _check_reference(
    encoder: Encoder, vector: Floats, problems: list[str], notes: list[str]
) -> None:
    if not isinstance(encoder, OnnxEncoder):
        return
    stored = encoder.reference()
    if stored is None:
        notes.append(
            "the folder has no vector of a known picture, so a slightly wrong mean, deviation, "
            "crop or colour order cannot be seen. Compare a picture with the original model once."
        )
    elif len(stored) != len(vector) or float(unit_rows(stored[None])[0] @ vector) < _SAME:
        problems.append(
            "the vector of the known picture differs from the stored one: the preparation or the "
            "network is not the one that the folder was made with."
        )


def _check_texts(
    encoder: Encoder, vectors: Floats, problems: list[str], milliseconds: dict[str, float]
) -> None:
    texts = ("a photo of a flower", "a photo of a temple building")
    start = time.process_time()
    sides = encoder.texts(texts)
    if sides is None:
        return
    milliseconds["text"] = 1000 * (time.process_time() - start) / len(texts)
    # Each side is centred by its own mean: images and texts lie apart.
    images = unit_rows(vectors[:2] - vectors[:2].mean(axis=0))
    scores = images @ unit_rows(sides - sides.mean(axis=0)).T
    if not (scores.argmax(axis=1) == [0, 1]).all():
        problems.append(
            "by its texts, the encoder takes a flower for a temple. The towers are not a pair, "
            "the tokenizer is another one, or the preparation is wrong."
        )


def _check_vectors(encoder: Embeddings) -> EncoderReport:
    problems: list[str] = []
    seen: set[str] = set()
    try:
        for ids, _ in encoder.pieces():
            repeated = next((name for name in ids if name in seen), None)
            seen.update(ids)
            if repeated is not None or len(set(ids)) < len(ids):
                problems.append("an id occurs twice. Every vector needs an id of its own.")
                break
    except BlindsightError as error:
        problems.append(str(error))
    offers = [f"{len(encoder):,} vectors of {encoder.dimensions} numbers"]
    if encoder.text_names():
        offers.append(f"{len(encoder.text_names()):,} texts in the same space")
    note = "whether the vectors are from one model cannot be seen: compare the model's name."
    return EncoderReport(
        encoder.name, encoder.identity(), tuple(offers), tuple(problems), (note,), {}
    )
