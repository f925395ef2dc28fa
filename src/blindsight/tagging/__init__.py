"""What you answer: tags of images, with private outputs.

- `label_graph`, `label_vectors`: the graph of labels and their vectors,
- `gcn`, `losses`, `training`: ML-GCN, P2-ML-GCN, RP2-ML-GCN,
- `dpsgd`: training-data privacy on the graph head,
- `codebook`, `outputs`: private answers,
- `baselines`: what the paper compares with,
- `estimator`: `PrivateTagger`, the face of the room; `plain`: `Tagger`, without privacy, to compare with.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["LabelGraph", "PrivateTagger", "Tagger"]

_HOMES = {"LabelGraph": "label_graph", "PrivateTagger": "estimator", "Tagger": "plain"}


def __getattr__(name: str) -> Any:
    # Lazily, so that the command line answers at once: torch alone takes seconds to import.
    if name in _HOMES:
        return getattr(import_module(f"blindsight.tagging.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
