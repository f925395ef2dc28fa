"""The two small networks behind the deep hashers: a head on features, a convolutional net on
images.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = ["as_input", "build", "forward", "load_parameters", "parameters"]

Array = NDArray[Any]


def torch() -> Any:
    """PyTorch, or a sentence on how to get it."""
    return checks.optional_module("torch", extra="torch")


def as_input(X: Array) -> Array:
    """Features (n, d) as they are; images (n, h, w) or (n, h, w, channels) to float32 (n, channels,
    h, w) in [0, 1].
    """
    if X.ndim == 2:
        return np.asarray(X, dtype=np.float32)
    if X.ndim == 3:
        X = X[..., None]
    if X.ndim != 4 or X.shape[3] not in (1, 3) or min(X.shape[1:3]) < 8:
        raise InvalidData(
            "images must be (n, h, w) or (n, h, w, 3) of at least 8 x 8 pixels, got shape "
            f"{X.shape}."
        )
    scale = np.float32(255 if X.dtype == np.uint8 else 1)
    return np.ascontiguousarray(np.moveaxis(X, 3, 1), dtype=np.float32) / scale


def build(shape: tuple[int, ...], n_bits: int, hidden: int, rng: np.random.Generator) -> Any:
    """A network for inputs of `shape` (d,) or (channels, h, w), its weights drawn from `rng`."""
    nn = torch().nn
    if len(shape) == 1:
        layers = [nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, n_bits)]
    else:
        channels, height, width = shape
        flat = 64 * (height // 4) * (width // 4)
        layers = [
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_bits),
        ]
    network = nn.Sequential(*layers)
    _draw(network, rng)
    return network


def _draw(network: Any, rng: np.random.Generator) -> None:
    """He's uniform initialisation from our own generator: torch's would come from its global
    seed.
    """
    with torch().no_grad():
        for layer in network:
            if hasattr(layer, "weight"):
                fan_in = math.prod(layer.weight.shape[1:])
                bound = math.sqrt(6 / fan_in) if layer is not network[-1] else 1 / math.sqrt(fan_in)
                values = rng.uniform(-bound, bound, tuple(layer.weight.shape)).astype(np.float32)
                layer.weight.copy_(torch().from_numpy(values))
                layer.bias.zero_()


def forward(network: Any, inputs: Array, *, block: int = 1024) -> NDArray[np.float32]:
    """Outputs (n, c), in blocks."""
    t = torch()
    network.eval()
    with t.no_grad():
        parts = [
            network(t.from_numpy(inputs[i : i + block])).numpy()
            for i in range(0, len(inputs), block)
        ]
    return np.concatenate(parts)


def parameters(network: Any) -> dict[str, Array]:
    """The weights as arrays."""
    return {
        f"network.{name}": value.detach().numpy() for name, value in network.state_dict().items()
    }


def load_parameters(network: Any, arrays: dict[str, Array]) -> None:
    """Put weights back; each must be there with its shape."""
    for name, value in network.state_dict().items():
        found = arrays.get(f"network.{name}")
        if (
            found is None
            or tuple(found.shape) != tuple(value.shape)
            or not np.isfinite(found).all()
        ):
            raise InvalidData(f"the weights {name!r} are missing or do not fit.")
        value.copy_(torch().from_numpy(np.ascontiguousarray(found, dtype=np.float32)))
