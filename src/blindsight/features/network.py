"""EfficientNet-Lite0 prepared for inference: normalisation folded into the convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.features.weights import read_weights

if TYPE_CHECKING:
    import torch

__all__ = ["DIMENSIONS", "build", "run"]

DIMENSIONS = 1280


def build(size: int) -> torch.nn.Module:
    """The pretrained network for square images of `size` pixels, in evaluation mode."""
    torch = optional_module("torch", extra="torch")
    package = optional_module("efficientnet_lite_pytorch", extra="torch")
    network = package.EfficientNet.from_name("efficientnet-lite0", image_size=size)
    state = {name: torch.from_numpy(array) for name, array in read_weights().items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    # Only batch counters, which inference never reads, may be absent.
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise RuntimeError("the weights do not fit the installed efficientnet_lite_pytorch")
    network.eval().requires_grad_(False)
    _fold(network, "_conv_stem", "_bn0")
    _fold(network, "_conv_head", "_bn1")
    for block in network._blocks:
        for convolution, normalisation in (
            ("_expand_conv", "_bn0"),
            ("_depthwise_conv", "_bn1"),
            ("_project_conv", "_bn2"),
        ):
            if hasattr(block, convolution):
                _fold(block, convolution, normalisation)
    return network.to(memory_format=torch.channels_last)


def run(network: torch.nn.Module, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Features (n, 1280) of RGB images (n, size, size, 3): the mean over the last feature map."""
    torch = optional_module("torch", extra="torch")
    with torch.inference_mode():
        # A view in channels-last order; (x - 127) / 128 is what the network was trained with.
        x = torch.from_numpy(batch).permute(0, 3, 1, 2).to(torch.float32).sub_(127.0).div_(128.0)
        maps = network.extract_features(x)
        result: NDArray[np.float32] = maps.mean(dim=(2, 3)).numpy()
        return result


def _fold(owner: Any, convolution: str, normalisation: str) -> None:
    """Fold a batch normalisation into the convolution before it, and symmetric padding into its own."""
    torch = optional_module("torch", extra="torch")
    conv = torch.nn.utils.fusion.fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, normalisation))
    padding = getattr(conv.static_padding, "padding", None)
    if padding is not None and len(set(padding)) == 1:
        conv.padding = (padding[0], padding[0])
        conv.static_padding = torch.nn.Identity()
    setattr(owner, convolution, conv)
    setattr(owner, normalisation, torch.nn.Identity())
