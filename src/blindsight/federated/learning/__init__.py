"""Local learners, sparse updates, and the loop over rounds."""

from blindsight.federated.learning.federation import (
    Change,
    CommonMask,
    Federation,
    Participant,
    RoundLog,
    Sending,
    TopK,
    Weights,
)
from blindsight.federated.learning.linear import (
    flat,
    model_digest,
    predicted,
    scores,
    shaped,
    sparsity,
    targets,
)
from blindsight.federated.learning.local import (
    SGD,
    LocalTrainer,
    Proximal,
    RecordDescent,
    adapt,
    initial_weights,
)

__all__ = [
    "SGD",
    "Change",
    "CommonMask",
    "Federation",
    "LocalTrainer",
    "Participant",
    "Proximal",
    "RecordDescent",
    "RoundLog",
    "Sending",
    "TopK",
    "Weights",
    "adapt",
    "flat",
    "initial_weights",
    "model_digest",
    "predicted",
    "scores",
    "shaped",
    "sparsity",
    "targets",
]
