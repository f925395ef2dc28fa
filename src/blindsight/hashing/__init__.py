"""Hash codes of images and their private release: hashers, PHashing, PITQ and the codebook hasher.

| hasher | year | learns from | private version |
|---|---|---|---|
| `LSH`, `SH`, `ITQ` | 2002, 2008, 2013 | features | `PHashing(base)`; `PITQ` |
| `KSH`, `SDH` | 2012, 2015 | features and labels | `PHashing(base)` |
| `DPSH`, `DSH`, `HashNet`, `ADSH` | 2016-2018 | images or features, and labels (torch) | `PHashing(base)` |

`CodebookHasher` keeps more than flipped bits do at the same epsilon per record: it releases one cell
per image.
"""  # noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.core.checks import core_module

if TYPE_CHECKING:
    from blindsight.hashing.base import Hasher, load
    from blindsight.hashing.deep import ADSH, DPSH, DSH, HashNet
    from blindsight.hashing.estimator import CodebookHasher
    from blindsight.hashing.paper import PITQ, PHashing
    from blindsight.hashing.plain import ITQ, KSH, LSH, SDH, SH

__all__ = [
    "ADSH",
    "DPSH",
    "DSH",
    "ESTIMATORS",
    "ITQ",
    "KSH",
    "LSH",
    "PITQ",
    "SDH",
    "SH",
    "CodebookHasher",
    "HashNet",
    "Hasher",
    "PHashing",
    "load",
]

_HOMES = {
    "LSH": "plain",
    "ITQ": "plain",
    "SH": "plain",
    "KSH": "plain",
    "SDH": "plain",
    "DPSH": "deep",
    "DSH": "deep",
    "HashNet": "deep",
    "ADSH": "deep",
    "PHashing": "paper",
    "PITQ": "paper",
    "CodebookHasher": "estimator",
}

#: Names of the estimators that can be saved, and read by `load`.
ESTIMATORS: tuple[str, ...] = tuple(_HOMES)


def __getattr__(name: str) -> Any:
    # Modules are imported on first use, because the deep hashers import torch.
    home = {**_HOMES, "Hasher": "base", "load": "base"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(core_module(f"{__name__}.{home}"), name)
