"""Networks as ONNX graphs, built with the `onnx` package from arrays of weights.

Used for the built-in image networks, for MiniLM (the text network behind words), and for
`blindsight encoder export`. Weights come from files whose checksum is known; no graph is built
from a stranger's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike, NDArray

from blindsight.core.checks import optional_module

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

__all__ = ["Convolution", "Graph", "class_mixture", "image_graph", "sentence_graph"]

_IR_VERSION, _OPERATORS = 8, 17
_ATTENTION_HEADS, _LAYERS = 12, 6
_NORM_FLOOR = 1e-12

Value = int | float | str | list[int]
Tensors = Mapping[str, NDArray[np.float32]]


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
    zero, one = (graph.constant(f"at{i}", np.array([i], np.int64)) for i in (0, 1))
    tokens = graph.node("Gather", graph.node("Shape", "input_ids"), one, axis=0)
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
    shown = graph.node("Unsqueeze", mask, graph.constant("axis2", np.array([2])))
    total = graph.node("ReduceSum", graph.node("Mul", x, shown), one, keepdims=0)
    vectors = graph.renamed(_unit(graph, total), "sentence_embedding")
    return graph.model({vectors: (np.float32, ("batch", width))})


def _unit(graph: Graph, rows: str) -> str:
    return graph.node("LpNormalization", rows, axis=-1, p=2)
