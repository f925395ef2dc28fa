"""Private codes for image search: hashers, PHashing, PITQ, the codebook hasher.

| hasher | year | learns from | private version |
|---|---|---|---|
| `LSH`, `SH`, `ITQ` | 2002, 2008, 2013 | features | `PHashing(base)`; `PITQ` |
| `KSH`, `SDH` | 2012, 2015 | features and labels | `PHashing(base)` |
| `DPSH`, `DSH`, `HashNet`, `ADSH` | 2016-2018 | images or features, and labels (torch) | `PHashing(base)` |

To win back what flipping loses at record level: `CodebookHasher` (ours); beside it
`PrivUnitHasher`, `SampledPHashing` and `probing`.
"""  # noqa: E501

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blindsight.hashing.adsh import ADSH
    from blindsight.hashing.base import Hasher
    from blindsight.hashing.deep import DPSH, DSH, HashNet
    from blindsight.hashing.estimator import CodebookHasher
    from blindsight.hashing.itq import ITQ
    from blindsight.hashing.ksh import KSH
    from blindsight.hashing.lsh import LSH
    from blindsight.hashing.phashing import PHashing
    from blindsight.hashing.pitq import PITQ
    from blindsight.hashing.privunit import PrivUnitHasher
    from blindsight.hashing.sampling import SampledPHashing
    from blindsight.hashing.saving import load
    from blindsight.hashing.sdh import SDH
    from blindsight.hashing.spectral import SH

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
    "PrivUnitHasher",
    "SampledPHashing",
    "load",
]

_HOMES = {
    "LSH": "lsh",
    "ITQ": "itq",
    "SH": "spectral",
    "KSH": "ksh",
    "SDH": "sdh",
    "DPSH": "deep",
    "DSH": "deep",
    "HashNet": "deep",
    "ADSH": "adsh",
    "PHashing": "phashing",
    "PITQ": "pitq",
    "SampledPHashing": "sampling",
    "PrivUnitHasher": "privunit",
    "CodebookHasher": "estimator",
}

#: the estimators that can be saved, and loaded by `load`.
ESTIMATORS: tuple[str, ...] = tuple(_HOMES)


def __getattr__(name: str) -> Any:
    # One module a method, imported when asked for: the deep ones bring torch.
    home = {**_HOMES, "Hasher": "base", "load": "saving"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
