"""Tags of images: private training on labelled images, and private publication of tags.

- `estimator`: `PrivateTagger`, the main class of this folder,
- `guarantee`: how answers are released, and its guarantees as values,
- `training`: the settings of training and the gradient descent,
- `learning`: the sums that are released in training, and what is computed from them,
- `prior`: public knowledge about labels and features,
- `answer_codebook`: published answers as one of k code words,
- `labels`: files of labels,
- `photos`: features of photos, and tags that are published once per photo,
- `paper`: ML-GCN, P2-ML-GCN and RP2-ML-GCN as the paper describes them; `gcn`: their network and
  their label graph.
"""

from __future__ import annotations

from typing import Any

from blindsight.core.checks import core_module

__all__ = [
    "P2MLGCN",
    "RP2MLGCN",
    "CodebookAnswers",
    "Corollary",
    "DPTraining",
    "Exact",
    "FromLabels",
    "GraphHead",
    "LabelGraph",
    "LaplaceAnswers",
    "Ordinary",
    "Prior",
    "PrivateTagger",
    "Schedule",
    "Tagger",
    "Untrained",
    "encoder_prior",
]

_HOMES = {
    "CodebookAnswers": "guarantee",
    "Corollary": "paper",
    "DPTraining": "training",
    "Exact": "guarantee",
    "FromLabels": "labels",
    "GraphHead": "paper",
    "LabelGraph": "gcn",
    "LaplaceAnswers": "guarantee",
    "Ordinary": "training",
    "P2MLGCN": "paper",
    "Prior": "prior",
    "PrivateTagger": "estimator",
    "RP2MLGCN": "paper",
    "Schedule": "paper",
    "Tagger": "paper",
    "Untrained": "training",
    "encoder_prior": "prior",
}


def __getattr__(name: str) -> Any:
    # Modules are imported on first use: importing torch takes seconds.
    if name in _HOMES:
        return getattr(core_module(f"blindsight.tagging.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
