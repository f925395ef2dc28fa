"""Check an encoder before it is used, and export a built-in one as ONNX files.

An encoder with a wrong preparation of images runs without an error. The check detects inputs
outside the usual range of training, a known picture whose vector differs from the stored one, two
different photographs with the same vector, vectors that depend on the batch, and a text tower that
confuses a flower with a temple.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from blindsight.app.result import JobResult
from blindsight.core import durable, storage
from blindsight.core.errors import BlindsightError, InvalidParameter
from blindsight.encoders.base import Encoder, Floats, Identity, unit_rows
from blindsight.encoders.builtin import BUILT_IN, built_in
from blindsight.encoders.embeddings import Embeddings
from blindsight.encoders.hub import open_encoder
from blindsight.encoders.onnx_folder import OnnxEncoder
from blindsight.encoders.public_pictures import built_in_images, flower, temple

__all__ = ["CheckedEncoder", "ExportedEncoder", "check_encoder", "export_encoder"]

PathText = str | PathLike[str]

_PICTURES = 24
_SIDE = 256
# Networks are trained on inputs of about mean 0 and deviation 1, or in [0, 1]; these bounds include
# all common preparations.
_MEAN_BOUND, _LEAST_DEVIATION, _MOST_DEVIATION = 1.5, 0.15, 4.0
# Least cosine of a known picture with its stored vector, and of a picture alone and in a batch;
# largest cosine of two different photographs.
_SAME, _REPEATED, _APART = 0.999, 0.9999, 0.9995
_PAIR_TOKENS = 128


@dataclass(frozen=True)
class CheckedEncoder(JobResult):
    """The result of `check_encoder`.

    Parameters:
        name: the encoder's name.
        offers: what the encoder can be used for.
        problems: what is wrong; an encoder with problems should not be used.
        notes: what could not be checked.
        milliseconds: CPU time for one image and, with a text tower, for one text.
        identity: the identity that files made with the encoder store; None if it could not be
            opened.
    """

    name: str
    offers: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    milliseconds: dict[str, float]
    identity: Identity | None

    @property
    def good(self) -> bool:
        """Whether no problem was detected."""
        return not self.problems

    @property
    def title(self) -> str:
        return f"Encoder {self.name}: {'usable' if self.good else 'not usable'}"

    def facts(self) -> list[tuple[str, str]]:
        facts = [("offers", text) for text in self.offers]
        facts += [("problem", text) for text in self.problems]
        facts += [("not checked", text) for text in self.notes]
        facts += [
            (f"CPU time per {kind}", f"{value:.1f} ms") for kind, value in self.milliseconds.items()
        ]
        return facts


@dataclass(frozen=True)
class ExportedEncoder(JobResult):
    """The result of `export_encoder`.

    Parameters:
        name: the encoder's name.
        folder: the folder of ONNX files.
        files: the names of the files.
    """

    name: str
    folder: Path
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Wrote {self.name} to {self.folder}"

    def facts(self) -> list[tuple[str, str]]:
        return [("file", name) for name in self.files]


def check_encoder(source: PathText | Encoder, *, offline: bool = False) -> CheckedEncoder:
    """Check an encoder on known pictures: shapes, preparation, speed, and what it offers.

    Parameters:
        source: a built-in name, a folder of ONNX files, a file of vectors,
            `hub:owner/model@commit`, or an opened encoder.
        offline: do not fetch anything over the network.

    Returns:
        The result. For an encoder that cannot be opened it has a problem; no error is raised.

    Examples:
        >>> checked = check_encoder("pixels")
        >>> checked.good, checked.offers
        (True, ('768 numbers per image',))
    """
    try:
        encoder = open_encoder(source, offline=offline)
    except BlindsightError as error:
        name = getattr(source, "name", str(source))
        return CheckedEncoder(str(name), (), (str(error),), (), {}, None)
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
    return CheckedEncoder(
        encoder.name,
        _offers(encoder),
        tuple(problems),
        tuple(notes),
        milliseconds,
        encoder.identity(),
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
            "the preparation removes the content of the picture."
        )
    alone = encoder.images(pixels[:1])
    again = encoder.images(pixels[:1])
    if float(alone[0] @ vectors[0]) < _REPEATED or float(alone[0] @ again[0]) < _REPEATED:
        problems.append(
            "a picture's vector depends on the other pictures of its batch, or is random. Export "
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
            "crop or colour order cannot be detected. Compare a picture with the original model."
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
    # Images and texts are centred separately, because their means differ.
    images = unit_rows(vectors[:2] - vectors[:2].mean(axis=0))
    scores = images @ unit_rows(sides - sides.mean(axis=0)).T
    if not (scores.argmax(axis=1) == [0, 1]).all():
        problems.append(
            "by its texts, the encoder confuses a flower with a temple. The towers are not a pair, "
            "the tokenizer is another one, or the preparation is wrong."
        )


def _check_vectors(encoder: Embeddings) -> CheckedEncoder:
    problems: list[str] = []
    earlier: set[str] = set()
    try:
        for ids, _ in encoder.pieces():
            repeated = next((name for name in ids if name in earlier), None)
            earlier.update(ids)
            if repeated is not None or len(set(ids)) < len(ids):
                problems.append("an id occurs twice. Every vector needs an id of its own.")
                break
    except BlindsightError as error:
        problems.append(str(error))
    offers = [f"{len(encoder):,} vectors of {encoder.dimensions} numbers"]
    if encoder.text_names():
        offers.append(f"{len(encoder.text_names()):,} texts in the same space")
    note = "whether all vectors are from one model cannot be checked: compare the model's name."
    return CheckedEncoder(
        encoder.name, tuple(offers), tuple(problems), (note,), {}, encoder.identity()
    )


def export_encoder(name: str, folder: PathText, *, pair: bool = False) -> ExportedEncoder:
    """Write a built-in network as a folder of ONNX files, which other programs can open.

    Parameters:
        name: "lite0" or "lite2".
        folder: a new or empty folder.
        pair: write an image-text pair instead, in the layout of CLIP's exports: class probabilities
            times MiniLM vectors of the class names (ConSE), and MiniLM as the text tower.

    Raises:
        InvalidParameter: The encoder has no single network, or the folder is not empty.
        MissingData: Class names or the text network cannot be fetched.

    Examples:
        >>> import tempfile
        >>> export_encoder("lite0", f"{tempfile.mkdtemp()}/lite0").files
        ('classes.safetensors', 'encoder.json', 'image.onnx')
    """
    encoder = built_in(name)
    if encoder.network is None or len(encoder.networks) != 1:
        single = [key for key, value in BUILT_IN.items() if len(value.networks) == 1]
        raise InvalidParameter(f"one of {', '.join(single)} can be exported, got {name!r}.")
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidParameter(f"{target} exists and is not empty. Choose a new folder.")
    target.mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {
        "name": f"{encoder.name}-pair" if pair else encoder.name,
        "preparation": encoder.preparation.to_fields(),
    }
    if pair:
        settings |= _write_pair(encoder.network, encoder.size, target)
    else:
        settings |= _write_image_tower(encoder.network, encoder.size, target)
    _write_json(target / "encoder.json", settings)
    exported = OnnxEncoder(target)
    vector = exported.images(exported.prepare(flower())[None])[0]
    _write_json(
        target / "encoder.json",
        {
            **settings,
            "reference": {"picture": "flower", "vector": [round(float(x), 6) for x in vector]},
        },
    )
    return ExportedEncoder(name, target, tuple(sorted(path.name for path in target.iterdir())))


def _write_image_tower(network: str, size: int, target: Path) -> dict[str, object]:
    from blindsight.encoders.network import convolutions, head, image_model, read_weights
    from blindsight.encoders.words import class_names

    durable.write_file(
        target / "image.onnx", image_model(convolutions(read_weights(network), size), size)
    )
    storage.save(
        target / "classes.safetensors",
        kind="classes",
        arrays={"weights": head(network)},
        fields={"names": list(class_names())},
    )
    return {"classes": "classes.safetensors"}


def _write_pair(network: str, size: int, target: Path) -> dict[str, object]:
    from safetensors.numpy import load_file

    from blindsight.encoders.network import (
        class_mixture,
        convolutions,
        image_graph,
        read_weights,
        sentence_graph,
    )
    from blindsight.encoders.words import TEMPLATE, class_vectors, minilm_folder

    weights = read_weights(network)
    graph, features = image_graph(convolutions(weights, size), size)
    vectors = class_vectors()
    mixed = class_mixture(graph, features, weights["_fc.weight"], weights["_fc.bias"], vectors)
    output = graph.renamed(mixed, "image_embeds")
    durable.write_file(
        target / "vision_model.onnx",
        graph.model({output: (np.float32, ("batch", vectors.shape[1]))}),
    )
    source = minilm_folder()
    plain = {
        key: value.astype(np.float32)
        for key, value in load_file(source / "minilm.safetensors").items()
    }
    durable.write_file(target / "text_model.onnx", sentence_graph(plain))
    durable.write_file(target / "tokenizer.json", (source / "tokenizer.json").read_bytes())
    return {"template": TEMPLATE, "token_length": _PAIR_TOKENS}


def _write_json(path: Path, content: dict[str, object]) -> None:
    durable.write_file(path, json.dumps(content, indent=1).encode())
