"""Write a built-in network as a folder that `OnnxEncoder` (and other programs) can open."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from blindsight.core import durable, storage
from blindsight.core.errors import InvalidParameter
from blindsight.encoders.builtin import BUILT_IN, built_in
from blindsight.encoders.public_pictures import flower

__all__ = ["export"]

_PAIR_TEMPLATE = "a photo of a {}"
_PAIR_TOKENS = 128


def export(name: str, folder: str | Path, *, pair: bool = False) -> Path:
    """Write a built-in encoder as ONNX files, with the vector of a known picture to check it by.

    Parameters:
        name: "lite0" or "lite2".
        folder: a new or empty folder.
        pair: write an image-text pair instead: class probabilities times MiniLM vectors of the
            class names (ConSE), and MiniLM as the text tower.

    Returns:
        The folder.

    Raises:
        InvalidParameter: The encoder has no single network, or the folder is not empty.
        MissingData: Class names or MiniLM are not on this machine and cannot be fetched.
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
    from blindsight.encoders.onnx_folder import OnnxEncoder

    made = OnnxEncoder(target)
    vector = made.images(made.prepare(flower())[None])[0]
    _write_json(
        target / "encoder.json",
        {
            **settings,
            "reference": {"picture": "flower", "vector": [round(float(x), 6) for x in vector]},
        },
    )
    return target


def _write_image_tower(network: str, size: int, target: Path) -> dict[str, object]:
    from blindsight.encoders.network import convolutions, image_model
    from blindsight.encoders.weights import head, read_weights
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

    from blindsight.encoders.network import class_mixture, convolutions, image_graph, sentence_graph
    from blindsight.encoders.weights import read_weights
    from blindsight.encoders.words import class_names, minilm_folder, sentence_vectors

    weights = read_weights(network)
    graph, features = image_graph(convolutions(weights, size), size)
    names = [_PAIR_TEMPLATE.replace("{}", name) for name in class_names()]
    vectors = sentence_vectors(names)
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
    return {"template": _PAIR_TEMPLATE, "token_length": _PAIR_TOKENS}


def _write_json(path: Path, content: dict[str, object]) -> None:
    durable.write_file(path, json.dumps(content, indent=1).encode())
