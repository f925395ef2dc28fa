"""EfficientNet-Lite as a plain list of convolutions, and two engines that run it: onnxruntime, or
torch.

Batch normalisation is folded into the convolution before it, once, in float64. What remains are
convolutions, some clipped to [0, 6], some with their block's input added; onnxruntime, where it
is installed, runs them about three times as fast as torch and needs no second to start.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of, optional_module
from blindsight.encoders.graphs import Convolution, image_graph
from blindsight.encoders.weights import Weights, read_weights

__all__ = [
    "DIMENSIONS",
    "ENGINES",
    "Convolution",
    "Engine",
    "Network",
    "convolutions",
    "default_engine",
    "image_model",
    "network",
]

DIMENSIONS = 1280
Engine = Literal["onnxruntime", "torch"]
ENGINES: tuple[Engine, ...] = ("onnxruntime", "torch")
Network = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# A stage begins where the number of channels changes; these stages halve the picture.
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_VARIANCE_FLOOR = 1e-3  # the normalisation's own epsilon


def default_engine() -> Engine:
    """onnxruntime where it is installed, else torch."""
    return "onnxruntime" if importlib.util.find_spec("onnxruntime") else "torch"


@lru_cache(maxsize=4)
def network(name: str, size: int, threads: int = 1, engine: Engine | None = None) -> Network:
    """RGB images (n, size, size, 3) to features (n, 1280), built once per process."""
    chosen = one_of("engine", engine or default_engine(), ENGINES)
    layers = convolutions(read_weights(name), size)
    return (
        _on_onnxruntime(layers, size, threads)
        if chosen == "onnxruntime"
        else _on_torch(layers, threads)
    )


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
    """A convolution with its normalisation folded in, and the side of what it gives."""
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


def _on_onnxruntime(layers: list[Convolution], size: int, threads: int) -> Network:
    runtime = optional_module("onnxruntime", extra="encoders")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Waiting threads sleep: spinning would burn the cores that others need.
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
