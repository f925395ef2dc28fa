"""How codes are laid out for search, as values: `Flat()` is exact, `IVF` and `HNSW` trade recall
for speed.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = ["HNSW", "IVF", "Flat", "Structure", "build", "from_fields", "to_fields"]


@dataclass(frozen=True)
class Flat:
    """Compare with every code: exact, linear in the number of codes, nothing to build."""


@dataclass(frozen=True)
class IVF:
    """Cells around trained centres; a search visits the `probes` nearest (1 million codes: 8x at
    recall 0.98).
    """

    cells: int = 1024
    probes: int = 128

    def __post_init__(self) -> None:
        checks.whole("cells", self.cells)
        checks.whole("probes", self.probes)


@dataclass(frozen=True)
class HNSW:
    """A navigable graph with `links` a node: fast search, slow to build, rebuilt after a
    removal.
    """

    links: int = 16
    effort: int = 64

    def __post_init__(self) -> None:
        checks.whole("links", self.links, least=2)
        checks.whole("effort", self.effort)


Structure = Flat | IVF | HNSW
_BY_NAME = {"flat": Flat, "ivf": IVF, "hnsw": HNSW}
# faiss asks for 39 training points a centre; below that the exact scan is fast anyway.
_POINTS_PER_CELL = 39


def to_fields(structure: Structure) -> dict[str, Any]:
    """Plain values for the header of a file."""
    return {"name": type(structure).__name__.lower(), **asdict(structure)}


def from_fields(fields: Any) -> Structure:
    """The inverse of `to_fields`; anything else is refused."""
    if not isinstance(fields, dict) or fields.get("name") not in _BY_NAME:
        raise InvalidData("the structure must be flat, ivf or hnsw.")
    try:
        made: Structure = _BY_NAME[fields["name"]](
            **{key: value for key, value in fields.items() if key != "name"}
        )
        return made
    except TypeError as error:
        raise InvalidData(
            f"the structure {fields['name']} has other parameters: {error}."
        ) from error


def build(structure: Structure, codes: NDArray[np.uint8]) -> Any | None:
    """A faiss index over the codes, or None where the exact scan serves (flat, or too few codes to
    train).
    """
    faiss: Any = importlib.import_module("faiss")  # its stubs miss half of it
    n_bits = 8 * codes.shape[1]
    if isinstance(structure, IVF):
        if len(codes) < _POINTS_PER_CELL * structure.cells:
            return None
        quantizer = faiss.IndexBinaryFlat(n_bits)
        index = faiss.IndexBinaryIVF(quantizer, n_bits, structure.cells)
        index.own_fields = True
        quantizer.this.disown()
        index.nprobe = min(structure.probes, structure.cells)
        index.train(codes[:: max(1, len(codes) // (256 * structure.cells))])
        index.add(codes)
        return index
    if isinstance(structure, HNSW) and len(codes):
        index = faiss.IndexBinaryHNSW(n_bits, structure.links)
        index.hnsw.efSearch = structure.effort
        index.add(codes)
        return index
    return None
