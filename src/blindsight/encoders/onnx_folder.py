"""An encoder in a folder of ONNX files, laid out as Hugging Face's exports are.

| file | content |
|---|---|
| `image.onnx`, `vision_model.onnx` or `model.onnx` | the image tower (here or in `onnx/`) |
| `text.onnx` or `text_model.onnx`, `tokenizer.json` | the text tower, if there is one |
| `encoder.json` or `preprocessor_config.json` | how images are prepared |

`encoder.json` may also name outputs, pooling, a text template, token length, padding and a class
matrix. Every file is treated as hostile until it is checked: sizes are bounded, external
weights of a model must lie inside the folder and are part of the identity, files are loaded by path
(given bytes, onnxruntime would look for such weights in the working folder), and nothing is ever
unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.data.limits import read_bytes, regular_file
from blindsight.encoders.base import (
    Classes,
    Floats,
    Identity,
    Images,
    Preparation,
    Source,
    file_digest,
    unit_rows,
)
from blindsight.encoders.network import onnx_runtime

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

__all__ = ["MAX_DIMENSIONS", "OnnxEncoder", "TextTower", "external_files", "open_session"]

#: The longest vector that an encoder may return.
MAX_DIMENSIONS = 16_384
_MAX_MODEL_BYTES = 2 << 30  # what one protocol buffer can hold
_MAX_EXTERNAL_BYTES = 16 << 30
_MAX_CONFIG_BYTES = 1 << 20
_MAX_TOKENIZER_BYTES = 64 << 20
_MAX_CLASSES = 100_000
_MAX_TEXT = 10_000  # characters
_BATCH = 16
_IMAGE_FILES = ("image.onnx", "vision_model.onnx", "model.onnx")
_TEXT_FILES = ("text.onnx", "text_model.onnx")
_IMAGE_OUTPUTS = ("image_embeds", "image_embeddings", "pooler_output")
_TEXT_OUTPUTS = ("text_embeds", "text_embeddings", "sentence_embedding", "pooler_output")
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_NUMBERS = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_POOLING = ("none", "cls", "mean")


class _Value(Protocol):
    """An input or output of an onnxruntime session."""

    name: str
    type: str
    shape: list[int | str | None]


class _Session(Protocol):
    """The methods of an onnxruntime session that are used here."""

    def get_inputs(self) -> list[_Value]: ...
    def get_outputs(self) -> list[_Value]: ...
    def run(
        self, names: list[str] | None, feed: Mapping[str, NDArray[np.generic]]
    ) -> list[NDArray[np.generic]]: ...


class OnnxEncoder:
    """An image encoder, optionally with a text tower, from a folder of ONNX files.

    Parameters:
        folder: The folder; see the table of this module.
        name: The name in messages and in the identity; by default what encoder.json says, or the
            folder's name.
        threads: Number of threads for one image. One is best if several processes share a machine.

    Raises:
        MissingData: The folder or a file that it must hold is not there.
        HostileFile: A file is too large or damaged, or contains a setting that cannot be used.
    """

    def __init__(self, folder: str | Path, name: str | None = None, threads: int = 1) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise MissingData(f"{folder} is not a folder. Give the folder of an encoder's files.")
        self.threads = threads
        self._settings = _json(self.folder / "encoder.json", required=False)
        self._image_path = _file(self.folder, _IMAGE_FILES)
        self._text_path = _optional_file(self.folder, _TEXT_FILES)
        self._name = name or str(self._settings.get("name") or self.folder.resolve().name)
        self.preparation = _preparation(self.folder, self._settings)
        self._files: dict[str, str] = {}
        for path in (self._image_path, self._text_path, self._tokenizer_path, self._classes_path):
            if path is not None:
                self._add_digests(path)
        self._image = open_session(self._image_path, threads)
        self._input = self._image_input()
        self._output, self._pooling = _output(self._image, _IMAGE_OUTPUTS, self._settings, "image")
        blank = np.zeros((1, self.preparation.size, self.preparation.size, 3), np.uint8)
        self._dimensions = int(self._run(blank).shape[1])
        texts = self.text_tower
        if texts is not None and texts.dimensions != self._dimensions:
            raise HostileFile(
                f"images have {self._dimensions} dimensions and texts {texts.dimensions}: "
                "the towers are not a pair. Export both with their projections."
            )

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._name

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return self._dimensions

    @property
    def size(self) -> int:
        """The side of the square that the network takes."""
        return self.preparation.size

    @property
    def at_least(self) -> int | None:
        """The smallest side at which a JPEG file may be decoded; None for its full size."""
        return self.preparation.at_least

    @property
    def network(self) -> None:
        """None, because this is not a built-in network."""
        return

    def rows(self, images: Images, *, threads: int = 1) -> Floats:
        """The same as `images`; only built-in networks return features of another norm here."""
        return self.images(images)

    def read(self, source: Source) -> Images:
        """Read and prepare one image file."""
        return self.preparation.read(source)

    def prepare(self, image: NDArray[np.uint8]) -> Images:
        return self.preparation.prepare(image)

    def images(self, pixels: Images) -> Floats:
        """Unit vectors of prepared pixels (n, side, side, 3)."""
        side = self.preparation.size
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (side, side, 3):
            raise InvalidData(
                f"{self.name} takes bytes of shape (n, {side}, {side}, 3), got {pixels.dtype} of "
                f"shape {pixels.shape}. Use read or prepare."
            )
        result = np.empty((len(pixels), self.dimensions), np.float32)
        step = 1 if self._input.shape[0] == 1 else _BATCH
        for start in range(0, len(pixels), step):
            result[start : start + step] = self._run(pixels[start : start + step])
        return unit_rows(result)

    def texts(self, texts: Sequence[str]) -> Floats | None:
        """Unit vectors of texts, or None if the folder has no text tower."""
        return None if self.text_tower is None else self.text_tower(texts)

    def classes(self) -> Classes | None:
        """The class matrix that encoder.json names, or None."""
        return self._classes

    def reference(self) -> Floats | None:
        """The stored vector of the built-in photograph of a flower, which checks the encoder."""
        stated = self._settings.get("reference")
        vector = stated.get("vector") if isinstance(stated, Mapping) else None
        if not isinstance(vector, list) or not all(isinstance(x, int | float) for x in vector):
            return None
        return np.array(vector, np.float32)

    def identity(self) -> Identity:
        """Kind, name, checksums of all files, and every setting that changes a vector."""
        text = None if self.text_tower is None else self.text_tower.settings
        return {
            "kind": "onnx",
            "name": self.name,
            "dimensions": self.dimensions,
            "files": dict(sorted(self._files.items())),
            "preparation": self.preparation.to_fields(),
            "output": self._output,
            "pooling": self._pooling,
            "text": text,
        }

    def __reduce__(self) -> tuple[type[OnnxEncoder], tuple[Path, str, int]]:
        # A session cannot be pickled for another process, but its files can be opened there.
        return OnnxEncoder, (self.folder, self.name, self.threads)

    def __repr__(self) -> str:
        return f"OnnxEncoder({self.name!r}, dimensions={self.dimensions})"

    @property
    def _tokenizer_path(self) -> Path | None:
        return None if self._text_path is None else _file(self.folder, ("tokenizer.json",))

    @property
    def _classes_path(self) -> Path | None:
        named = self._settings.get("classes")
        return None if named is None else _inside(self.folder, str(named))

    @cached_property
    def text_tower(self) -> TextTower | None:
        """The text tower, which turns texts into vectors; None if the folder has none."""
        if self._text_path is None or self._tokenizer_path is None:
            return None
        return TextTower(
            open_session(self._text_path, self.threads),
            self._tokenizer_path,
            self._settings,
            padded_model=_json(self.folder / "config.json", required=False),
        )

    @cached_property
    def _classes(self) -> Classes | None:
        path = self._classes_path
        return None if path is None else _read_classes(path, self.dimensions)

    def _add_digests(self, path: Path) -> None:
        name = path.relative_to(self.folder).as_posix()
        self._files[name] = file_digest(path, largest=_MAX_MODEL_BYTES)
        if path.suffix == ".onnx":
            for weights in external_files(path, self.folder):
                inside = weights.relative_to(self.folder).as_posix()
                self._files[inside] = file_digest(weights, largest=_MAX_EXTERNAL_BYTES)

    def _image_input(self) -> _Value:
        """The only input of the image tower, after its type and shape have been checked."""
        inputs, side = self._image.get_inputs(), self.preparation.size
        if len(inputs) != 1:
            raise HostileFile(
                f"{self._image_path.name} takes {len(inputs)} inputs "
                f"({', '.join(value.name for value in inputs)[:100]}), and an image tower takes "
                "one. Export the image and the text tower as separate files."
            )
        value = inputs[0]
        if value.type not in ("tensor(float)", "tensor(float16)", "tensor(uint8)"):
            raise HostileFile(f"the image tower takes {value.type}; expected float or uint8.")
        shape = value.shape
        self._channels_last = len(shape) == 4 and shape[3] == 3
        if len(shape) != 4 or (shape[1] != 3 and not self._channels_last):
            raise HostileFile(
                f"the image tower takes shape {shape}; expected (n, 3, side, side) or "
                "(n, side, side, 3) with the channels stated."
            )
        sides = shape[1:3] if self._channels_last else shape[2:]
        wrong = [length for length in sides if isinstance(length, int) and length not in (side, 0)]
        if wrong:
            raise HostileFile(
                f"images are prepared at {side} pixels a side, and the image tower takes "
                f"{wrong[0]}. Correct the size in the preparation file."
            )
        if isinstance(shape[0], int) and shape[0] not in (0, 1):
            raise HostileFile(
                f"the image tower takes batches of exactly {shape[0]}; expected 1 or any number."
            )
        if value.type == "tensor(uint8)" and self.preparation.scale is not None:
            raise HostileFile(
                "the image tower takes bytes and normalises them itself, and the preparation "
                "file states a scale as well: images would be scaled twice. Remove one."
            )
        return value

    def _run(self, pixels: Images) -> Floats:
        kind = _NUMBERS[self._input.type]
        prepared = pixels if kind is np.uint8 else self.preparation.numbers(pixels).astype(kind)
        if not self._channels_last:
            prepared = prepared.transpose(0, 3, 1, 2)
        feed = {self._input.name: np.ascontiguousarray(prepared)}
        return _vectors(
            _guarded_run(self._image, self._output, feed), len(pixels), self._pooling, None
        )


class TextTower:
    """Turns texts into unit vectors with an ONNX text network and its tokenizer.

    Parameters:
        session: An onnxruntime session of the text network.
        tokenizer: The path of tokenizer.json.
        settings: The entries text_output, text_pooling, template, token_length, pad_to and pad_id
            of encoder.json.
        padded_model: The content of config.json, which states the length of models that need
            padding.
    """

    def __init__(
        self,
        session: _Session,
        tokenizer: Path,
        settings: Mapping[str, object],
        *,
        padded_model: Mapping[str, object] | None = None,
    ) -> None:
        tokenizers = optional_module("tokenizers", extra="words")
        self._session = session
        self._inputs = {value.name: value for value in session.get_inputs()}
        unknown = set(self._inputs) - set(_TEXT_INPUTS)
        if unknown or "input_ids" not in self._inputs:
            raise HostileFile(
                f"the text tower takes {', '.join(sorted(self._inputs))[:100]}; expected input_ids "
                "and at most attention_mask, token_type_ids and position_ids."
            )
        text = read_bytes(tokenizer, largest=_MAX_TOKENIZER_BYTES).decode("utf-8", "replace")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the tokenizers package raises plain Exception
            raise HostileFile(
                f"tokenizer.json cannot be read: {str(error)[:100]}. Export it again."
            ) from None
        padding = self._tokenizer.padding or {}
        # Texts of equal length form a batch, so padding is needed only if the network was trained
        # with it: without a mask, or with a fixed length.
        fixed = self._inputs["input_ids"].shape[1]
        self._template = str(settings.get("template", "{}"))
        if self._template.count("{}") != 1:
            raise HostileFile(f"the template must contain {{}} once, got {self._template[:60]!r}.")
        declared = padding.get("length") if "attention_mask" not in self._inputs else None
        siglip = str((padded_model or {}).get("model_type", "")).startswith("siglip")
        pad_to = settings.get("pad_to") or declared or (64 if siglip else None)
        self._pad_to = fixed if isinstance(fixed, int) and fixed > 0 else pad_to
        longest = settings.get("token_length") or self._pad_to or _known_length(padded_model)
        if not isinstance(longest, int) or not 2 <= longest <= 8192:
            raise HostileFile(
                "the text tower's token length is not known. State token_length in encoder.json "
                "(77 for CLIP, 64 for SigLIP, 128 for MiniLM)."
            )
        self._longest = longest
        pad_id = settings.get("pad_id", padding.get("pad_id", _pad_id(self._tokenizer)))
        if self._pad_to is not None and not isinstance(pad_id, int):
            raise HostileFile("the text tower pads its texts: state pad_id in encoder.json.")
        self._pad_id = pad_id if isinstance(pad_id, int) else 0
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=self._longest)
        self._output, self._pooling = _output(session, _TEXT_OUTPUTS, settings, "text")
        self.dimensions = self(["a photo"]).shape[1]

    @property
    def settings(self) -> dict[str, object]:
        """All settings that change a text's vector, for the identity."""
        return {
            "output": self._output,
            "pooling": self._pooling,
            "template": self._template,
            "token_length": self._longest,
            "pad_to": self._pad_to,
            "pad_id": self._pad_id if self._pad_to is not None else None,
        }

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Unit vectors (n, dimensions) of texts."""
        rows: list[list[int]] = []
        for text in texts:
            if not text.strip() or len(text) > _MAX_TEXT:
                raise InvalidParameter(
                    f"a text must have 1 to {_MAX_TEXT:,} characters, got {len(text)}."
                )
            rows.append(self._tokenizer.encode(self._template.replace("{}", text)).ids)
        result: Floats | None = None
        alone = self._inputs["input_ids"].shape[0] == 1
        for numbers in _by_length(rows, self._pad_to, 1 if alone else _BATCH):
            vectors = self._run([rows[number] for number in numbers])
            if result is None:
                result = np.empty((len(rows), vectors.shape[1]), np.float32)
            result[numbers] = vectors
        return np.empty((0, self.dimensions), np.float32) if result is None else unit_rows(result)

    def _run(self, rows: list[list[int]]) -> Floats:
        length = self._pad_to if isinstance(self._pad_to, int) else len(rows[0])
        ids = np.full((len(rows), length), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        tensors = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": np.broadcast_to(np.arange(length), ids.shape),
        }
        feed = {
            name: np.ascontiguousarray(tensors[name].astype(_NUMBERS.get(value.type, np.int64)))
            for name, value in self._inputs.items()
        }
        return _vectors(
            _guarded_run(self._session, self._output, feed), len(rows), self._pooling, mask
        )


def open_session(model: Path | bytes, threads: int = 1) -> _Session:
    """An onnxruntime session on the processor, from a file (by its path) or from our own bytes."""
    runtime = onnx_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Waiting threads sleep: spinning would occupy cores that other processes need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = model if isinstance(model, bytes) else str(model)
    try:
        session: _Session = runtime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime has a class for each kind of damage
        name = "the model" if isinstance(model, bytes) else model.name
        raise HostileFile(f"onnxruntime cannot load {name}: {str(error)[:200]}") from None
    return session


def external_files(model: Path, folder: Path) -> list[Path]:
    """The external files that hold a model's weights; each must lie inside the folder.

    Raises:
        HostileFile: A location is absolute, leads out of the folder, or states more bytes than the
            file has.
    """
    onnx = optional_module("onnx", extra="encoders")
    regular_file(model, largest=_MAX_MODEL_BYTES)
    try:
        graph = onnx.load(str(model), load_external_data=False).graph
    except Exception:  # the protobuf package raises its own DecodeError
        raise HostileFile(f"{model.name} is not an ONNX file. Export it again.") from None
    files: dict[str, Path] = {}
    for tensor in _tensors(graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        path = _inside(model.parent, location)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise HostileFile(f"{model.name} wants weights from outside of its folder.")
        size = regular_file(path, largest=_MAX_EXTERNAL_BYTES).stat().st_size
        offset, length = (_whole(entries.get(key, "0")) for key in ("offset", "length"))
        if offset + length > size:
            raise HostileFile(f"{path.name} is shorter than {model.name} says. Copy it again.")
        files[location] = path
    return list(files.values())


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph, including those inside nodes and nested graphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for nested in (attribute.g, *attribute.graphs):
                if nested.node or nested.initializer:
                    yield from _tensors(nested)


def _guarded_run(
    session: _Session, output: str, feed: Mapping[str, NDArray[np.generic]]
) -> NDArray[np.generic]:
    try:
        return session.run([output], feed)[0]
    except Exception as error:  # onnxruntime has a class for each kind of failure
        raise HostileFile(f"the network failed: {str(error)[:200]}") from None


def _vectors(
    output: NDArray[np.generic], rows: int, pooling: str, mask: NDArray[np.int64] | None
) -> Floats:
    """One finite vector per row, pooled if the network gives one per token or patch."""
    values = np.asarray(output, dtype=np.float32)
    if values.ndim == 3 and pooling == "cls":
        values = values[:, 0]
    elif values.ndim == 3 and pooling == "mean":
        weight = np.ones(values.shape[:2]) if mask is None else mask
        values = np.einsum("ntd,nt->nd", values, weight / weight.sum(axis=1, keepdims=True))
    if values.ndim != 2 or len(values) != rows or not 1 <= values.shape[1] <= MAX_DIMENSIONS:
        raise HostileFile(
            f"the network gave shape {values.shape} for {rows} inputs; expected ({rows}, d) with "
            f"d at most {MAX_DIMENSIONS:,}."
        )
    if not np.isfinite(values).all():
        raise HostileFile("the network gave values that are not finite. Export it in float32.")
    return values.astype(np.float32)


def _output(
    session: _Session, preferred: Sequence[str], settings: Mapping[str, object], tower: str
) -> tuple[str, str]:
    """The name of the output that is the vector, and how it is pooled."""
    outputs = {value.name: value for value in session.get_outputs()}
    stated = settings.get(f"{tower}_output")
    pooling = settings.get(f"{tower}_pooling", "none")
    if pooling not in _POOLING:
        raise HostileFile(f"{tower}_pooling must be one of {', '.join(_POOLING)}, got {pooling!r}.")
    named = [name for name in preferred if name in outputs]
    flat = [name for name, value in outputs.items() if len(value.shape) == 2]
    if stated is not None:
        chosen = str(stated)
        if chosen not in outputs:
            raise HostileFile(f"the {tower} tower has no output {chosen[:60]!r}.")
    elif named or len(flat) == 1:
        chosen = (named or flat)[0]
    elif len(outputs) == 1:
        chosen = next(iter(outputs))
    else:
        raise HostileFile(
            f"which output of the {tower} tower is the vector? State {tower}_output in "
            f"encoder.json: {', '.join(outputs)[:200]}."
        )
    rank = len(outputs[chosen].shape)
    if rank == 3 and pooling == "none":
        raise HostileFile(
            f"the {tower} tower gives one vector per token. State {tower}_pooling (cls or mean) "
            "in encoder.json, as the network was trained."
        )
    return chosen, str(pooling) if rank == 3 else "none"


def _by_length(rows: list[list[int]], padded: object, most: int) -> Iterator[list[int]]:
    """Row numbers in batches of one length, so that no padding is needed."""
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(0 if padded else len(row), []).append(number)
    for numbers in groups.values():
        yield from (numbers[start : start + most] for start in range(0, len(numbers), most))


def _known_length(config: Mapping[str, object] | None) -> object:
    text = (config or {}).get("text_config")
    source = text if isinstance(text, Mapping) else config or {}
    return source.get("max_position_embeddings")


def _pad_id(tokenizer: object) -> int | None:
    for token in ("[PAD]", "<pad>", "<|endoftext|>", "</s>"):
        number = tokenizer.token_to_id(token)  # type: ignore[attr-defined]
        if number is not None:
            return int(number)
    return None


def _preparation(folder: Path, settings: Mapping[str, object]) -> Preparation:
    stated = settings.get("preparation")
    if isinstance(stated, Mapping):
        return Preparation.from_fields(stated)
    config = _json(folder / "preprocessor_config.json", required=False)
    if not config:
        raise MissingData(
            f"{folder} does not say how images are prepared. Copy preprocessor_config.json from "
            'the model\'s page, or write encoder.json with a "preparation"; a wrong mean or '
            "deviation would go unnoticed."
        )
    return Preparation.from_hugging_face(config)


def _json(path: Path, *, required: bool) -> dict[str, object]:
    if not required and not path.exists():
        return {}
    try:
        content = json.loads(read_bytes(path, largest=_MAX_CONFIG_BYTES))
    except (ValueError, RecursionError):
        raise HostileFile(f"{path.name} is not JSON. Copy it again.") from None
    if not isinstance(content, dict):
        raise HostileFile(f"{path.name} must hold a JSON object.")
    return content


def _optional_file(folder: Path, names: Sequence[str]) -> Path | None:
    paths = [path for name in names for path in (folder / name, folder / "onnx" / name)]
    return next((path for path in paths if path.is_file()), None)


def _file(folder: Path, names: Sequence[str]) -> Path:
    path = _optional_file(folder, names)
    if path is None:
        raise MissingData(f"{folder} holds none of {', '.join(names)}, here or in onnx/.")
    return path


def _inside(folder: Path, location: str) -> Path:
    path = folder / location
    if (
        not location
        or Path(location).is_absolute()
        or not path.resolve().is_relative_to(folder.resolve())
    ):
        raise HostileFile(f"a file of {folder} lies outside of it: {location[:60]!r}.")
    return path


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise HostileFile(f"an offset of external weights is not a number: {text[:30]!r}.")
    return int(text)


def _read_classes(path: Path, dimensions: int) -> Classes:
    """Names and weights of a class matrix that `encoder export` or `storage.save` wrote."""
    from blindsight.core import storage

    arrays, fields = storage.load(path, kind="classes")
    weights, names = arrays.get("weights"), fields.get("names")
    fits = (
        weights is not None
        and weights.ndim == 2
        and weights.shape[1] == dimensions
        and 2 <= len(weights) <= _MAX_CLASSES
        and np.isfinite(weights).all()
        and isinstance(names, list)
        and len(names) == len(weights)
        and all(isinstance(name, str) for name in names)
    )
    if not fits or weights is None or names is None:
        raise HostileFile(
            f"{path.name} must hold finite weights (classes, {dimensions}) and one name for each."
        )
    return Classes(tuple(names), weights.astype(np.float32))
