"""Tags of images: learned with privacy for the training records, or published with privacy for the
asked images.

- `estimator`: `PrivateTagger`, the face of this folder; `regimes` and `answers` are the values it
  takes,
- `promise`: what it guarantees,
- `prior`: public knowledge about labels; `inputs`: public directions of features; `descent`:
  training,
- `codebook`, `answer_spread`: published answers as one of k words; `publishing`: a model made once,
  a photo answered once, with a vault; `asking`: how often images were asked about,
- `labels`, `labels_file`: tables and files of labels,
- `paper`: ML-GCN, P2-ML-GCN and RP2-ML-GCN to the letter, with `label_graph`, `label_vectors` and
  `gcn`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "P2MLGCN",
    "RP2MLGCN",
    "CodebookAnswers",
    "Corollary",
    "DPTraining",
    "Exact",
    "FromLabels",
    "GaussianAnswers",
    "GraphHead",
    "LabelGraph",
    "LaplaceAnswers",
    "Ordinary",
    "Prior",
    "PrivateTagger",
    "Schedule",
    "Tagger",
    "TopTags",
    "Untrained",
    "imagenet_prior",
]

_HOMES = {
    "CodebookAnswers": "answers",
    "Corollary": "paper",
    "DPTraining": "regimes",
    "Exact": "answers",
    "FromLabels": "labels",
    "GaussianAnswers": "answers",
    "GraphHead": "paper",
    "LabelGraph": "label_graph",
    "LaplaceAnswers": "answers",
    "Ordinary": "regimes",
    "P2MLGCN": "paper",
    "Prior": "prior",
    "PrivateTagger": "estimator",
    "RP2MLGCN": "paper",
    "Schedule": "paper",
    "Tagger": "paper",
    "TopTags": "answers",
    "Untrained": "regimes",
    "imagenet_prior": "prior",
}


def __getattr__(name: str) -> Any:
    # Lazily, so that the command line answers at once: torch alone takes seconds to import.
    if name in _HOMES:
        return getattr(import_module(f"blindsight.tagging.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
